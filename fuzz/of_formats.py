"""Targets that are vectors: every file and folder that `swivel.load` takes."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from fuzz.guard import SPLIT, Target, parts, put
from fuzz.of_importers import NPY_WORDS
from fuzz.of_text import JSON_WORDS, NUMBERS
from swivel.corpus.vocabulary import Vocabulary
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.formats import FORMATS, export, load

WORDS = ["king", "queen", "é-ö", "7"]
TENSOR_WORDS: tuple[bytes, ...] = (
    b'"F32"',
    b'"F64"',
    b'"F16"',
    b'"data_offsets"',
    b'"shape"',
    b'"dtype"',
    b'"vectors"',
    b'"__metadata__"',
)
TENSOR_WORDS += JSON_WORDS
TOKENIZER_WORDS = (b'"unk_id"', b'"unk_token"', b'"added_tokens"', b'"content"', b'"id"', b'"vocab"', b'"model"')


def check(vectors: Vectors) -> None:
    """Vectors are finite float32, one a word, and words are distinct texts."""
    words = vectors.vocabulary
    assert vectors.vectors.shape == (len(words), vectors.dim)
    assert len(words) and vectors.dim
    assert vectors.vectors.dtype == np.float32
    assert np.isfinite(vectors.vectors).all()
    assert len(words.ids) == len(words)
    assert all(isinstance(word, str) and word.encode() is not None for word in words)
    assert (words.counts >= 0).all()


def make_vectors(count: int = 3, dim: int = 2) -> Vectors:
    """Return a few words' vectors."""
    values = np.arange(1, count * dim + 1, dtype=np.float32).reshape(count, dim) / np.float32(8)
    return Vectors(VectorTable(Vocabulary(WORDS[:count], range(count, 0, -1)), values))


def file_reader(format: str | None, name: str) -> Callable[[bytes, Path], None]:
    """Return the function that reads a file in a format; None: the one that its content says."""
    return lambda data, folder: check(load(put(folder, name, data), format=format))


def folder_reader(format: str, names: tuple[str, ...]) -> Callable[[bytes, Path], None]:
    """Return the function that reads a folder of these files in a format."""

    def read(data: bytes, folder: Path) -> None:
        (folder / "vectors").mkdir(exist_ok=True)
        for name, part in zip(names, parts(data, len(names)), strict=True):
            put(folder / "vectors", name, part)
        check(load(folder / "vectors", format=format))

    return read


def written(*formats: str) -> Callable[[Path], Iterable[bytes]]:
    """Return what makes files in these formats, by our own writers."""

    def seeds(folder: Path) -> Iterable[bytes]:
        for number, format in enumerate(formats):
            for count, dim in ((3, 2), (1, 1)):
                path = folder / f"{number}-{count}{''.join(FORMATS[format].suffixes[:1])}"
                export(make_vectors(count, dim), path, format=format, overwrite=True)
                yield path.read_bytes()

    return seeds


def written_folder(format: str, names: tuple[str, ...]) -> Callable[[Path], Iterable[bytes]]:
    """Return what makes the files of a folder in a format."""

    def seeds(folder: Path) -> Iterable[bytes]:
        export(make_vectors(), folder / "made", format=format)
        found = {file.name: file.read_bytes() for file in (folder / "made").rglob("*") if file.is_file()}
        shutil.rmtree(folder / "made")
        yield SPLIT.join(found[name] for name in names)

    return seeds


def read_npy(data: bytes, folder: Path) -> None:
    """A matrix, and the words beside it."""
    words, matrix = parts(data, 2)
    put(folder, "v.vocabulary.txt", words)
    check(load(put(folder, "v.npy", matrix), format="npy"))


def npy(array: np.ndarray) -> bytes:
    """Return an array as a file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def seed_npy(folder: Path) -> Iterable[bytes]:
    values = make_vectors().vectors
    for words, matrix in (
        (b"king\t3\nqueen\t2\na\\tb\t1\n", values),
        (b"x\ny\nz\n", np.asfortranarray(values, np.float64)),
    ):
        yield words + SPLIT + npy(matrix)


def read_npz_members(data: bytes, folder: Path) -> None:
    """The arrays of an .npz, which is whole: damage gets as far as they are."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, member in zip(("vectors", "words", "counts"), parts(data, 3), strict=True):
            if member:
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member)
    check(load(put(folder, "v.npz", file.getvalue()), format="npz"))


def seed_npz_members(folder: Path) -> Iterable[bytes]:
    values = make_vectors().vectors
    yield SPLIT.join((npy(values), npy(np.array(WORDS[:3])), npy(np.array([3, 2, 1]))))
    yield SPLIT.join((npy(values.astype(">f2")), npy(np.array(WORDS[:3], ">U5"))))


def seed_static(folder: Path) -> Iterable[bytes]:
    """Beside our own: a tokenizer of the Unigram kind, whose tokens are a list."""
    (ours,) = written_folder("model2vec", STATIC)(folder)
    yield ours
    model = {"vocab": [["a", -1.5], ["b", 0], ["c", 1], ["<unk>", 2]], "unk_id": 3}
    yield json.dumps({"model": model, "added_tokens": []}).encode() + SPLIT + ours.partition(SPLIT)[2]


STATIC, PROJECTOR = ("tokenizer.json", "model.safetensors"), ("vectors.tsv", "metadata.tsv")
TEXTS = [b"2 3\nking 1 0 0\nqueen 0.8 0.6 -1e-3\n", b"\xef\xbb\xbfking 1 0\r\nold queen\t.8\t.6\r\n"]
TARGETS = [
    Target("vectors-text", file_reader("word2vec-text", "v.txt"), lambda _: TEXTS, 400, words=NUMBERS),
    Target("vectors-binary", file_reader("word2vec", "v.bin"), written("word2vec"), 150),
    Target("vectors-npy", read_npy, seed_npy, 250, words=NPY_WORDS),
    Target("vectors-npz", file_reader("npz", "v.npz"), written("npz"), 100),
    Target("vectors-npz-members", read_npz_members, seed_npz_members, 150, words=NPY_WORDS),
    Target(
        "vectors-safetensors",
        file_reader("safetensors", "v.safetensors"),
        written("safetensors"),
        300,
        words=TENSOR_WORDS,
    ),
    Target("vectors-parquet", file_reader("parquet", "v.parquet"), written("parquet"), 50, needs=("pyarrow",)),
    Target("vectors-arrow", file_reader("arrow", "v.arrow"), written("arrow"), 60, needs=("pyarrow",)),
    Target(
        "vectors-projector",
        folder_reader("projector", PROJECTOR),
        written_folder("projector", PROJECTOR),
        250,
        words=NUMBERS,
    ),
    Target(
        "vectors-static", folder_reader("model2vec", STATIC), seed_static, 200, words=TENSOR_WORDS + TOKENIZER_WORDS
    ),
    Target(
        "vectors-any",
        file_reader(None, "v"),
        written("word2vec", "word2vec-text", "npz", "safetensors", "arrow"),
        150,
        needs=("pyarrow",),
    ),
]
