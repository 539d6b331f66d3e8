"""Small versions of the files that the pages of the docs mention: texts, tables, test sets, and finished folders."""

from __future__ import annotations

import gzip
import itertools
import lzma
import shutil
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import swivel
from swivel.evaluation import AnalogySet
from swivel.pipeline import demo as sample
from swivel.vectors import VectorTable

GROUPS = [
    ["tuxedo", "gown", "ball", "dinner", "jacket", "tie", "shirt"],
    ["king", "queen", "man", "woman", "prince", "princess", "throne"],
    ["music", "guitar", "italy", "rome", "greece", "athens", "wine"],
    ["chigger", "louse", "flea", "mite", "tick", "beetle", "wasp"],
]
# Folders that a page expects to exist; the other pages create them.
MADE_BEFORE = {
    "evaluate.md": ("work", "other"),
    "explore.md": ("work",),
    "export.md": ("work",),
    "texts.md": ("work",),
    "vectors.md": ("work",),
}


def make_text(groups: list[list[str]], lines: int, seed: int) -> str:
    """Return lines of six words of one group and one word of the next group."""
    rng = np.random.default_rng(seed)
    text = ""
    for n in range(lines):
        words = [*rng.choice(groups[n % len(groups)], 6), rng.choice(groups[(n + 1) % len(groups)])]
        text += " ".join(words) + "\n"
    return text


def write_world(home: Path) -> None:
    """Write all files and folders that the pages mention."""
    write_texts(home)
    write_tables(home)
    write_sets(home / "sets")
    write_graph(home)
    write_sites(home)

    (home / "reviews.tsv").write_text("good\tthe king\nbad\ta flea\n" * 6, encoding="utf-8")
    (home / "classes.tsv").write_text("king\tperson\ntuxedo\tgarment\n", encoding="utf-8")
    (home / "own.tsv").write_text("king\tqueen\t9\ntie\tshirt\t8\nking\tflea\t1\n", encoding="utf-8")
    shutil.copytree(home / "sets", home / "more", ignore=shutil.ignore_patterns("g*"))

    for name, seed in {"work": 1, "other": 2}.items():
        swivel.run(home / "corpus.txt", home / name, recipe="fast", dim=8, epochs=3, seed=seed)
    swivel.export(swivel.load(home / "work"), home / "glove.6B.300d.txt", format="glove")
    make_spelled().save(home / "spelled" / "vectors")


def write_graph(home: Path) -> None:
    """Write a novel's characters, and the edges of two rings of friends, some held out, and the club of each."""
    edges = [f"{club}{i} {club}{(i + step) % 12}" for club in "ab" for i in range(12) for step in (1, 2, 3)]
    nx.write_weighted_edgelist(nx.les_miserables_graph(), home / "novel.edges")
    (home / "known.edges").write_text(
        "\n".join(["a0 b0", *(edge for number, edge in enumerate(edges) if number % 8)]) + "\n", encoding="utf-8"
    )
    (home / "held-out.edges").write_text("\n".join(edges[::8]) + "\n", encoding="utf-8")
    clubs = "".join(f"{club}{i}\tclub {club}\n" for club in "ab" for i in range(12))
    (home / "clubs.tsv").write_text(clubs, encoding="utf-8")


def write_sites(home: Path) -> None:
    """Write pairs of codes of two hospitals without small counts, and how many patients have each code; and events."""
    for site, seed, first in (("a", 1, 0), ("b", 2, 3)):
        counts = np.triu(np.random.default_rng(seed).poisson(20, (9, 9)), 1)
        codes = [f"C{first + number:02}" for number in range(9)]
        pairs = [(codes[i], codes[j], int(counts[i, j])) for i, j in np.argwhere(counts).tolist()]
        lines = [f"{row}\t{column}\t{count}" for row, column, count in pairs if count >= 11]
        (home / f"hospital-{site}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        patients = "".join(f"{code}\t100\n" for code in codes)
        (home / f"patients-{site}.tsv").write_text(patients, encoding="utf-8")
    events = [f"p{day % 9},2026-01-{day:02},{('asthma', 'cough', 'fever', 'rash')[day % 4]}" for day in range(1, 32)]
    (home / "events.csv").write_text("\n".join(["patient,date,code", *events]) + "\n", encoding="utf-8")


def make_spelled() -> swivel.Vectors:
    """Return vectors of enough words for n-grams: those of the texts, and made-up ones."""
    letters = itertools.product("bdgkt", "aeiou", "lmnr", "pst", ["", "ed", "ing", "able"])
    words = [*itertools.chain(*GROUPS), *map("".join, letters), "computable"]
    values = np.random.default_rng(5).standard_normal((len(words), 8)).astype(np.float32)
    return swivel.Vectors(VectorTable(swivel.Vocabulary(words), values)).with_subwords()


def write_texts(home: Path) -> None:
    text = make_text(GROUPS, 240, 1)
    for name in ("corpus.txt", "old.txt", "tokens.txt", "reviews/first.txt"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    (home / "corpus.txt.gz").write_bytes(gzip.compress(text.encode()))
    (home / "wikipedia.txt.xz").write_bytes(lzma.compress(text.encode()))
    (home / "words.txt").write_text("king\nqueen\ntuxedo\n", encoding="utf-8")
    (home / "names.txt").write_text("chisel\n", encoding="utf-8")

    (home / "later").mkdir()
    for name, word in {"new.txt": "blockchain", "news.txt": "blockchain", "later/a.txt": "chisel"}.items():
        (home / name).write_text(make_text([[*GROUPS[0], word], *GROUPS[1:]], 240, 2), encoding="utf-8")
    for name, seed in {"1900s.txt": 3, "1990s.txt": 4}.items():
        (home / name).write_text(make_text(GROUPS, 480, seed), encoding="utf-8")


def write_tables(home: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    users = ["ann", "bob", "eve"] * 4
    pages = ["home", "help", "news", "shop"] * 3
    counts = [str(1 + n % 3) for n in range(12)]
    lines = ["\t".join(cell) for cell in zip(users, pages, counts, strict=True)]
    (home / "visits.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    parquet.write_table(pa.table({"user": users, "page": pages}), home / "log.parquet")

    # The names are those of the real table.
    compounds = ["allyl_isothiocyanate", "limonene_(d-,l-,_and_dl-)", "linalool", "vanillin"]
    foods = {"garlic": 3, "onion": 3, "lemon": 2, "basil": 2, "vanilla": 1}
    cells = [f"{food}\t{compound}\t1" for food, number in foods.items() for compound in compounds[:number]]
    (home / "ingredient_compound.tsv").write_text("\n".join([*cells, "vanilla\tvanillin\t1", ""]), encoding="utf-8")
    (home / "held_out.tsv").write_text("lemon\tlinalool\t1\nvanilla\tlinalool\t1\n", encoding="utf-8")
    (home / "orders.csv").write_text("bread,butter,jam\npasta,tomato,basil\nbread,butter,milk\n", encoding="utf-8")


def write_sets(folder: Path) -> None:
    folder.mkdir()
    words = [word for group in GROUPS for word in group]
    pairs = [f"{a}\t{b}\t{(n * 7) % 10}" for n, (a, b) in enumerate(itertools.combinations(words, 2))]
    (folder / "men.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")

    questions = [" ".join(four) for four in itertools.islice(itertools.permutations(words, 4), 0, 40_000, 90)]
    (folder / "google_analogies.txt").write_text(": mixed\n" + "\n".join(questions) + "\n", encoding="utf-8")


def copy_world(world: Path, page: str, target: Path) -> None:
    """Copy all files, and the folders that a page expects to exist."""
    missing = {"work", "other", "spelled"} - set(MADE_BEFORE.get(page, ()))
    shutil.copytree(world, target, ignore=lambda folder, _: missing if Path(folder) == world else ())
    if page == "guess.md":  # It needs vectors with n-grams.
        shutil.copytree(world / "spelled", target / "work")


def shorten_demo(patch: pytest.MonkeyPatch, text: Path) -> None:
    """Make `demo` train on a small text instead of the bundled matrix, which `test_demo` uses."""
    patch.setattr(sample, "open_sample", lambda out=None, **_: swivel.count(text, out, columns="symmetric"))
    patch.setattr(sample, "SETTINGS", {"dim": 8, "epochs": 3, "combine": "sum"})
    patch.setattr(sample, "SHOWN", ("king", "music"))
    patch.setattr(sample, "QUESTIONS", (("man", "king", "woman"),))
    questions = (("man", "woman", "king", "queen"), ("king", "queen", "man", "woman"))
    patch.setattr(sample, "read_bundled", lambda: AnalogySet("bundled", questions, ("all", "all")))
