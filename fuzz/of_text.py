"""Targets that are text: the tokenizer and what it reads, test sets, vocabularies, expressions, sizes, settings."""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import functools
import gzip
import itertools
import json
import lzma
import math
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fuzz.guard import SPLIT, Target, option, parts, put
from fuzz.tokenizer_reference import split_units
from swivel.config import CorpusConfig, CountConfig, TrainConfig, VectorsConfig, VocabularyConfig
from swivel.corpus import encoded_corpus
from swivel.corpus.character_classes import TokenizerRules, build_rules
from swivel.corpus.encoded_corpus import EncodedCorpus, EncodeWorker
from swivel.corpus.streams import Stream, cut_stream, open_streams
from swivel.corpus.tokenizer_kernels import START, STEP_TYPES
from swivel.corpus.vocabulary import BREAK, Vocabulary
from swivel.counts.importers.import_config import ImportConfig
from swivel.evaluation.datasets import AnalogySet, CategorySet, SimilaritySet, TestSet, find_sets, read_set
from swivel.runtime.resources import parse_bytes
from swivel.storage.manifest import open_array
from swivel.vectors import parse_expression

TEXT = (
    "Don’t stop -- it's state-of-the-art. mr. X said: “No!” Then… 中文。かな\u00ad\u0301\r\n\r\n"
    "İẞ 7.5 J. B. e.g. this\n\0\x85x"
).encode()
CONFIGS = [
    CorpusConfig(tokenizer=tokenizer, unit=unit, lowercase=lowercase, errors=errors)
    for tokenizer, unit, lowercase, errors in itertools.product(
        ("words", "whitespace"), ("line", "sentence", "document"), (True, False), ("strict", "replace")
    )
]
SEPARATOR = "swivel.separator"  # what `sources` calls the way of bytes that are not in an encoding
PACKERS: tuple[Callable[[bytes], bytes], ...] = (bytes, gzip.compress, bz2.compress, lzma.compress)
SUFFIXES = (".txt", ".gz", ".bz2", ".xz", ".zst")
ENCODINGS = ("utf-8", "utf-16", "latin-1", "shift_jis", "utf-7", "cp1252", "gb18030", "utf-8-sig", "utf-32", "idna")
SETTINGS = (CorpusConfig, VocabularyConfig, CountConfig, TrainConfig, VectorsConfig, ImportConfig)
NUMBERS = (b"1e400", b"-1e-400", b"nan", b"inf", b"Infinity", b"9" * 30, b"-0", b"1_0", b"0x10", "٣".encode())
JSON_WORDS = (b'"\\ud800"', b"null", b"true", b"[]", b"{}", b'""', b"1e999", b"NaN", b"-1", b"[[[[", *NUMBERS)


def read_corpus(data: bytes, folder: Path) -> None:
    """The compiled tokenizer gives what the one in plain Python gives, for every configuration."""
    which, text = option(data, len(CONFIGS))
    size, text = option(text, 64)
    config = CONFIGS[which]
    units = encode_alone(text, rules_of(config), folder, size + 1)
    assert units == split_units(text.decode("utf-8", "strict" if config.errors == "strict" else SEPARATOR), config)


@functools.cache
def rules_of(config: CorpusConfig) -> TokenizerRules:
    """Return the tables that the compiled tokenizer reads, made once."""
    return build_rules(config, is_tokenized=False, has_marks=False)


def encode_alone(text: bytes, rules: TokenizerRules, folder: Path, piece_bytes: int) -> list[list[str]]:
    """Return the units of a text as `encode_corpus` finds them, piece by piece, without its threads."""
    encoded_corpus._FREE_TYPES = STEP_TYPES  # The tables of small texts get full, too.
    encoded_corpus._INITIAL_TYPES = 2 * STEP_TYPES
    worker, segments = EncodeWorker(0, folder, max_table_bytes=1 << 30), []
    start = carry = encoded_corpus.start_text(), np.empty(0, np.uint8)
    stream = Stream(f"{folder}/text", lambda stream: iter([text] if text else []))
    with contextlib.closing(worker.ids):
        for piece in cut_stream(stream, piece_bytes):
            segments.append(worker.encode(piece, carry if piece.is_continued else start, rules))
            carry = segments[-1].carry
    types = worker.types.pack()
    worker.save_types()
    encoded = EncodedCorpus([(worker.path, worker.tables)], segments, memory_bytes=1 << 30)
    tokens = [types.arena[start:stop].tobytes().decode() for start, stop in itertools.pairwise(types.types[:, START])]
    ids = open_array(worker.path)
    units = [[tokens[i] for i in unit if i != BREAK] for unit in np.split(ids, np.flatnonzero(ids == BREAK))]
    units = [unit for unit in units if unit]
    assert encoded.token_count == sum(map(len, units))
    assert encoded.unit_count == len(units)
    return units


def seed_corpus(folder: Path) -> Iterable[bytes]:
    return [bytes([which, 7 * which]) + TEXT for which in range(len(CONFIGS))] + [b"\0\x3f" + TEXT[:40] + b"\xff\xc3 a"]


def read_packed(data: bytes, folder: Path) -> None:
    """Files, compressed or not, in any encoding, become blocks of bytes that are not empty."""
    which, data = option(data, len(SUFFIXES))
    coded, data = option(data, 2 * len(ENCODINGS))
    file = put(folder, "text" + SUFFIXES[which], data)
    config = CorpusConfig(encoding=ENCODINGS[coded // 2], errors=("strict", "replace")[coded % 2])
    for stream in open_streams(file, config):
        for block in stream.blocks():
            assert block


def seed_packed(folder: Path) -> Iterable[bytes]:
    packed = [bytes([which, 0]) + pack(TEXT) for which, pack in enumerate(PACKERS)]
    coded = [bytes([0, 2 * n]) + TEXT.decode().encode(name, "ignore") for n, name in enumerate(ENCODINGS[:-1])]
    if find_spec("zstandard") is None:
        return packed + coded
    import zstandard

    return packed + coded + [b"\x04\0" + zstandard.compress(TEXT), b"\x04\0" + zstandard.compress(TEXT) * 2]


def check_set(found: TestSet) -> None:
    """A set has items, and as many of each kind as it says."""
    assert found.size
    if isinstance(found, SimilaritySet):
        assert len(found.scores) == found.size
        assert all(map(math.isfinite, found.scores))
        assert all(word for pair in found.pairs for word in pair)
    elif isinstance(found, AnalogySet):
        assert len(found.sections) == found.size
        assert all(word for words in found.questions for word in words)
    else:
        assert isinstance(found, CategorySet)
        assert len(found.categories) == found.size
        assert all(found.items)


def read_evaluation(data: bytes, folder: Path) -> None:
    """A file is a test set."""
    check_set(read_set(put(folder, "set.tsv", data)))


def read_evaluation_folder(data: bytes, folder: Path) -> None:
    """A folder has test sets, two of them of the paper's names."""
    (folder / "sets").mkdir(exist_ok=True)
    for name, text in zip(("google.txt", "own.tsv", "bruni_men.txt"), parts(data, 3), strict=True):
        put(folder / "sets", name, text)
    for each in find_sets(folder / "sets", lowercase=len(data) % 2 == 0)[0]:
        check_set(each)


SETS = (
    b"tiger\tcat\t7.35\nbook paper 7.46\r\n",
    b"\xef\xbb\xbf: capital\na b c d\n: more\ne f g h\n",
    b"a b c d x\ne f g h y\na b c e x\n",
    b"dog\tanimal\noak\ttree\n",
)


def read_vocabulary(data: bytes, folder: Path) -> None:
    """The vocabulary of a folder: what is read is written the same, whenever it is parsed."""
    which, data = option(data, 2)
    text = data.decode("utf-8", "replace")
    found = Vocabulary.from_text(text)
    assert len(found.tokens) == len(found.counts) == len(found)
    assert (found.counts >= 0).all()
    again = Vocabulary.from_lines(found.to_lines())
    assert again == found
    if which:
        assert len(found.ids) == len(found)


def read_listed(data: bytes, folder: Path) -> None:
    """One's own list of tokens: as texts, the last one not empty."""
    from swivel.corpus.vocabulary import read_tokens

    found = read_tokens(put(folder, "words.txt", data))
    assert not found or found[-1]


def read_arithmetic(data: bytes, folder: Path) -> None:
    """An expression is tokens to add and to take away, none of them empty."""
    found = parse_expression(data.decode("utf-8", "surrogateescape"))
    assert found.plus or found.minus
    assert all(token.strip() == token != "" for token in found.plus + found.minus)


def read_memory(data: bytes, folder: Path) -> None:
    """A size is a whole number above 0."""
    found = parse_bytes(data.decode("utf-8", "surrogateescape"))
    assert isinstance(found, int)
    assert found > 0


def read_settings(data: bytes, folder: Path) -> None:
    """Settings of a stage, of whatever types: what is taken keeps its rules."""
    which, data = option(data, len(SETTINGS))
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    names = [field.name for field in dataclasses.fields(SETTINGS[which])]
    if isinstance(given, dict):
        made = SETTINGS[which](**{name: value for name, value in given.items() if name in names})
        assert dataclasses.asdict(made)


def seed_settings(folder: Path) -> Iterable[bytes]:
    made = [json.dumps(dataclasses.asdict(kind())).encode() for kind in SETTINGS]
    return [bytes([which]) + text for which, text in enumerate(made)]


TARGETS = [
    Target("corpus", read_corpus, seed_corpus, 200),
    Target("packed", read_packed, seed_packed, 400),
    Target("evaluation", read_evaluation, lambda _: SETS, 900, words=NUMBERS),
    Target(
        "evaluation-folder",
        read_evaluation_folder,
        lambda _: [SPLIT.join((SETS[1], SETS[3], SETS[0])), SPLIT.join((SETS[2], SETS[0], SETS[0]))],
        300,
        words=NUMBERS,
    ),
    Target(
        "vocabulary",
        read_vocabulary,
        lambda _: [b"\0the\t7\nof\\t\t3\n", b"\1a\t0\n\\\\\\n\\\t12\n"],
        900,
        names_file=False,
        words=NUMBERS,
    ),
    Target(
        "vocabulary-list",
        read_listed,
        lambda _: [b"the\nof\t3\n\na\\tb\n", b"\xef\xbb\xbfa\r\nb\r\n\n"],
        400,
        needs=("click", "rich"),
    ),
    Target(
        "expression",
        read_arithmetic,
        lambda _: [b"king - man + woman", b"- a b + vice-president", b"+ x"],
        1000,
        names_file=False,
    ),
    Target(
        "memory", read_memory, lambda _: [b"1GiB", b"1.5 GB", b"4096", b"12tib"], 800, names_file=False, words=NUMBERS
    ),
    Target("settings", read_settings, seed_settings, 500, names_file=False, words=JSON_WORDS),
]
