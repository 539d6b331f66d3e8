"""Prepare the tables of the results from public files.

    python -m experiments.data FOLDER [TABLE ...]

writes TABLE.tsv, which `swivel import` and `benchmarks/ranking.py` read: one line for each observed cell. The files are
downloaded once, and their checksums compared. `README.md` says where the text is from, and what may be passed on.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from swivel.evaluation.datasets import SetSource, fetch_sets

Pair = tuple[str, str]

SIDER = ("dhimmel/SIDER4", "be3adebc0d845baaddb907a880890cb5e85f5801")
ONTOLOGY = ("dhimmel/gene-ontology", "d57fd938f90c79152449f5cd23d3c438a19ac2f5")
CASEREC = ("caserec/Datasets-for-Recommender-Systems", "82b08c787a6b50d78129b9df842285b89bc05b85")
CITEULIKE = ("js05212/citeulike-t", "4f103c6ea0fe407b23be230837b65517e613c34a")
FLAVORS = ("lingcheng99/Flavor-Network", "3233668cb1c58014ac595cbca795ef471de9eefd")

SOURCES = (
    SetSource(
        "side effects",
        "download/meddra_all_se.tsv.gz",
        "119b2f5319a9398da83e5fe3419889010dbacf8d3eef590251b00c025e2b3f99",
        *SIDER,
    ),
    SetSource(
        "genes",
        "annotations/taxid_9606/GO_annotations-9606-direct-expev.tsv",
        "1f0da3d65e707071df7c60af07c1030e8375f7c5273d3d0a4921f57c2322fb5d",
        *ONTOLOGY,
    ),
    SetSource(
        "amazon music",
        "Processed%20Datasets/Amazon/new_user_rated_music.dat",
        "75de168b6668c6575c5a4bf5d8a82b3fd071609f67931c1500b9f4b8da085836",
        *CASEREC,
    ),
    SetSource(
        "yahoo music",
        "Processed%20Datasets/Yahoo%20Music/user_music_ratings_reduce_v1_0.dat",
        "bce0b3d9d1e752a1decc8abc4ff571254e565858d62425f5a81a370ce7954f35",
        *CASEREC,
    ),
    SetSource(
        "yahoo movies",
        "Processed%20Datasets/YahooMovies/user_movie_ratings_reduce_v1_0.dat",
        "ad4553ee7b3d54cee9b893d58edc349fbf6b53ad84960f5f2e010ec5cd33acf4",
        *CASEREC,
    ),
    SetSource(
        "citeulike t", "users.dat", "02d5d429b2c0362e0ed79f6ef204666b4092563d21493abf4dfb521e8a7078bf", *CITEULIKE
    ),
    SetSource(
        "citeulike tags",
        "tag-item.dat",
        "e2b80fc0e023780b63c00a397a2d0934eff6dbaf8a1b918778698361dae7ce6b",
        *CITEULIKE,
    ),
    SetSource(
        "ingredients",
        "data/ingr_comp.tsv",
        "54ac1a13c20534ec91981e9f10d90703f78dd4c95a8eae017aea3a1b91085f24",
        *FLAVORS,
    ),
)


def read_side_effects(lines: Iterable[str]) -> Iterator[Pair]:
    """Yield drugs and their side effects, as MedDRA's preferred terms (PT)."""
    for line in lines:
        drug, _, _, kind, _, term = line.split("\t")
        if kind == "PT":
            yield drug, term


def read_genes(lines: Iterable[str]) -> Iterator[Pair]:
    """Yield genes and the terms of the Gene Ontology that they are annotated with."""
    fields = (line.split("\t") for line in lines)
    next(fields)  # the header
    for term, *_, genes, _ in fields:
        for gene in genes.split("|"):
            yield gene, term


def read_ratings(lines: Iterable[str]) -> Iterator[Pair]:
    """Yield users and what they rated, whatever the rating."""
    for line in lines:
        user, item, *_ = line.split("\t")
        yield user, item


def read_lists(lines: Iterable[str]) -> Iterator[Pair]:
    """Yield numbers of lines and what they list after its length."""
    for number, line in enumerate(lines):
        for item in line.split()[1:]:
            yield str(number), item


def read_tags(lines: Iterable[str]) -> Iterator[Pair]:
    """Yield articles and their tags, of which each has a line with its articles."""
    return ((article, tag) for tag, article in read_lists(lines))


READERS: dict[str, Callable[[Iterable[str]], Iterator[Pair]]] = {
    "side effects": read_side_effects,
    "genes": read_genes,
    "amazon music": read_ratings,
    "yahoo music": read_ratings,
    "yahoo movies": read_ratings,
    "citeulike t": read_lists,
    "citeulike tags": read_tags,
    "ingredients": lambda lines: read_ratings(line for line in lines if not line.startswith("#")),
}
WHOLE = ("ingredients",)  # all rows and columns; of the others, those with at least MIN_CELLS cells
MIN_CELLS = 5


def select_dense_part(pairs: Iterable[Pair], min_cells: int = MIN_CELLS) -> list[Pair]:
    """Return the pairs, each once and sorted, whose rows and columns all have `min_cells` pairs or more.

    >>> select_dense_part([("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("c", "y")], 2)
    [('a', 'x'), ('a', 'y'), ('b', 'x'), ('b', 'y')]
    """
    cells = sorted(set(pairs))
    sides = [np.unique(labels, return_inverse=True)[1] for labels in zip(*cells, strict=True)]
    kept = np.ones(len(cells), bool)
    while True:
        enough = [np.bincount(ids[kept], minlength=ids.max() + 1)[ids] >= min_cells for ids in sides]
        fewer = kept & enough[0] & enough[1]
        if fewer.sum() == kept.sum():
            return [cell for cell, is_kept in zip(cells, kept.tolist(), strict=True) if is_kept]
        kept = fewer


def read_text(file: Path) -> list[str]:
    """Return the lines of a file, which may be compressed."""
    content = file.read_bytes()
    return (gzip.decompress(content) if file.suffix == ".gz" else content).decode().splitlines()


def prepare_table(name: str, file: Path, folder: Path) -> Path:
    """Write a table as text, and return its path."""
    pairs = select_dense_part(READERS[name](read_text(file)), 1 if name in WHOLE else MIN_CELLS)
    table = folder / f"{name.replace(' ', '_')}.tsv"
    table.write_text("".join(f"{row}\t{column}\t1\n" for row, column in pairs), encoding="utf-8")
    return table


def main() -> None:
    """Download and prepare the tables that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"some of: {', '.join(READERS)}")
    arguments = parser.parse_args()
    unknown = set(arguments.tables) - set(READERS)
    if unknown:
        parser.error(f"no such table: {', '.join(sorted(unknown))}; there are {', '.join(READERS)}")

    arguments.folder.mkdir(parents=True, exist_ok=True)
    sources = [source for source in SOURCES if source.name in (arguments.tables or READERS)]
    for source, file in zip(sources, fetch_sets(sources, title="tables"), strict=True):
        print(prepare_table(source.name, file, arguments.folder))  # noqa: T201


if __name__ == "__main__":
    main()
