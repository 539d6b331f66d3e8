"""Every format: exported vectors are loaded bit for bit, or `export` raises an error before it writes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import swivel
from swivel.cli import cli
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, FolderExists, MissingExtra, StorageError, SwivelWarning, VocabularyError
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.formats import FORMATS, export, load

NAMES = {
    "word2vec": "v.bin",
    "word2vec-text": "v.txt",
    "fasttext": "v.vec",
    "glove": "v.glove",
    "npy": "v.npy",
    "npz": "v.npz",
    "safetensors": "v.safetensors",
    "parquet": "v.parquet",
    "arrow": "v.arrow",
}
FREE = ["npy", "npz", "safetensors", "parquet", "arrow", "model2vec", "sentence-transformers", "huggingface", "swivel"]
READ = [name for name in FORMATS if name not in ("gensim", "fasttext-bin")]  # which are only written
STRICT = sorted(set(READ) - set(FREE))
WITH_COUNTS = ["npy", "npz", "safetensors", "parquet", "arrow", "projector", "swivel"]
PLAIN = ["king", "state-of-the-art", "naïve", "👑", "中文", "5", "x\u00a0y", "[UNK]", "a\\b", "-0.5", "\ufeffx"]
ODD = [
    "",
    " ",
    "olive oil",
    "tab\there",
    "line\nend",
    "\r",
    "back\\slash\\n",
    "👩‍🚀",
    " lead",
    "\u2028",
    "nul\0in",
    "2 3",
]


def make(labels: list[str], dim: int = 5, *, counts: list[int] | None = None, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    return Vectors(VectorTable(Vocabulary(labels, counts), rng.standard_normal((len(labels), dim)).astype(np.float32)))


def same(first: Vectors, second: Vectors) -> bool:
    words = first.vocabulary.tokens == second.vocabulary.tokens
    return words and first.vectors.tobytes() == second.vectors.tobytes()


def path_for(folder: Path, name: str) -> Path:
    return folder / NAMES.get(name, name)


@pytest.mark.parametrize("name", READ)
def test_exported_vectors_are_loaded_bit_for_bit(tmp_path: Path, name: str) -> None:
    vectors = make(PLAIN)
    export(vectors, path_for(tmp_path, name), format=name)
    assert same(load(path_for(tmp_path, name)), vectors)
    assert same(load(path_for(tmp_path, name), format=name), vectors)


@pytest.mark.parametrize("name", FREE)
def test_labels_of_any_text_are_preserved(tmp_path: Path, name: str) -> None:
    vectors = make(ODD)
    export(vectors, path_for(tmp_path, name), format=name)
    assert same(load(path_for(tmp_path, name)), vectors)


@pytest.mark.parametrize("name", STRICT)
@pytest.mark.parametrize("label", ["", "tab\there", "line\nend", "carriage\rreturn"])
def test_labels_that_a_format_cannot_store_raise_before_anything_is_written(
    tmp_path: Path, name: str, label: str
) -> None:
    with pytest.raises(VocabularyError, match=r"cannot store .*\(number 2\).*use npz"):
        export(make(["king", label]), path_for(tmp_path, name), format=name)
    assert not list(tmp_path.iterdir())


def test_a_space_raises_an_error_in_formats_where_it_ends_a_word(tmp_path: Path) -> None:
    for name in set(STRICT) - {"projector"}:
        with pytest.raises(VocabularyError, match=r"the label 'olive oil' \(number 1\), which contains ' ': use npz"):
            export(make(["olive oil"]), path_for(tmp_path, name), format=name)
    export(make(["olive oil"]), tmp_path / "projector", format="projector")
    assert load(tmp_path / "projector").vocabulary.tokens == ("olive oil",)


@pytest.mark.parametrize("name", WITH_COUNTS)
def test_counts_are_preserved_by_formats_that_store_them(tmp_path: Path, name: str) -> None:
    vectors = make(["word", "king"], counts=[2**40, 0])
    export(vectors, path_for(tmp_path, name), format=name)
    assert load(path_for(tmp_path, name)).vocabulary.counts.tolist() == [2**40, 0]


@pytest.mark.parametrize("name", READ)
def test_extreme_values_of_float32_are_preserved(tmp_path: Path, name: str) -> None:
    values = np.array([[3.4028235e38, -1.4e-45, -0.0], [1e-14, 1.17549435e-38, 16777217]], np.float32)
    vectors = Vectors(VectorTable(Vocabulary(["a", "b"]), values))
    export(vectors, path_for(tmp_path, name), format=name)
    assert same(load(path_for(tmp_path, name)), vectors)


@pytest.mark.parametrize("name", READ)
def test_vectors_of_one_word_and_one_dimension_are_preserved(tmp_path: Path, name: str) -> None:
    vectors = make(["5"], dim=1)
    export(vectors, path_for(tmp_path, name), format=name)
    assert same(load(path_for(tmp_path, name)), vectors)


def test_text_has_the_fewest_digits_that_identify_a_value(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([bits[np.isfinite(bits)], rng.standard_normal(20_000).astype(np.float32)])
    values = np.concatenate(
        [values, np.array([0, -0.0, 1e-14, 1e27, 0.1, 1e-5, 9.999999e22, 123456.7, 1e10], np.float32)]
    )
    export(Vectors(VectorTable(Vocabulary(["a"]), values[None])), tmp_path / "v.txt")
    texts = (tmp_path / "v.txt").read_text().split()[3:]
    assert np.array(texts, np.float64).astype(np.float32).tobytes() == values.tobytes()

    for text, value in zip(texts, values.tolist(), strict=True):
        digits = len(text.partition("e")[0].replace("-", "").replace(".", "").strip("0"))
        assert digits < 2 or np.float32(f"{value:.{digits - 2}e}") != np.float32(value), text


@given(st.lists(st.text(max_size=5), min_size=1, max_size=6, unique=True), st.sampled_from(sorted(READ)))
@settings(max_examples=80)
def test_any_labels_are_preserved_or_raise_an_error(tmp_path_factory: Any, labels: list[str], name: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    vectors = make(labels, dim=3)

    try:
        export(vectors, path_for(folder, name), format=name)
    except VocabularyError:
        assert not list(folder.iterdir())
    else:
        assert same(load(path_for(folder, name)), vectors)


@pytest.mark.parametrize(
    ("vectors", "error", "message"),
    [
        (make([]), VocabularyError, "there are no vectors to write"),
        (make(["a", "a"]), VocabularyError, "'a' is in the vocabulary twice"),
        (make(["\ud800"]), VocabularyError, "contains half a surrogate pair"),
        (
            Vectors(VectorTable(Vocabulary(["a", "b"]), np.array([[1], [np.nan]], np.float32))),
            ConfigError,
            "vector of 'b' is not finite",
        ),
    ],
)
@pytest.mark.parametrize("name", ["word2vec", "model2vec", "parquet"])
def test_vectors_that_no_format_can_store_raise_errors(
    tmp_path: Path, name: str, vectors: Vectors, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export(vectors, path_for(tmp_path, name), format=name)
    assert not list(tmp_path.iterdir())


def test_labels_that_single_formats_cannot_store_raise_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VocabularyError, match=r"npz cannot store the label 'a\\x00', which ends in NUL"):
        export(make(["a\0"]), tmp_path / "v.npz")
    with pytest.raises(VocabularyError, match=r"glove cannot store a first label that starts with U\+FEFF"):
        export(make(["\ufeffa"]), tmp_path / "v", format="glove")

    monkeypatch.setattr("swivel.vectors.formats.array_files._MAX_PADDED_BYTES", 100)

    with pytest.raises(VocabularyError, match="npz pads every label to the longest, which has 900 characters: use s"):
        export(make(["a", "b" * 900]), tmp_path / "v.npz")

    monkeypatch.setattr("swivel.vectors.formats.array_files._MAX_HEADER_BYTES", 100)

    with pytest.raises(VocabularyError, match=r"safetensors cannot store these labels: .* may have at most 100"):
        export(make(["a", "b" * 900]), tmp_path / "v.safetensors")
    assert not list(tmp_path.iterdir())


def test_the_format_follows_from_the_suffix_or_the_argument(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"v\.pkl: the suffix selects no format \(known: \.bin, .*pass format, one of word2"
    ):
        export(make(["a"]), tmp_path / "v.pkl")
    with pytest.raises(ConfigError, match=r"format must be one of word2vec, .*, got 'pickle'"):
        export(make(["a"]), tmp_path / "v.bin", format="pickle")
    with pytest.raises(ConfigError, match="format must be one of"):
        export(make(["a"]), tmp_path / "v.BIN")
        load(tmp_path / "v.BIN", format="pickle")


@pytest.mark.parametrize("name", READ)
def test_an_existing_file_or_folder_is_replaced_only_with_overwrite(tmp_path: Path, name: str) -> None:
    target = path_for(tmp_path, name)
    export(make(["a"]), target, format=name)

    with pytest.raises(FolderExists, match=r"exists already; choose another (file|folder) or pass overwrite=True"):
        export(make(["b"]), target, format=name)
    assert load(target).vocabulary.tokens == ("a",)

    export(make(["b"]), target, format=name, overwrite=True)
    assert load(target).vocabulary.tokens == ("b",)


def test_an_npy_export_that_was_killed_between_its_files_is_repeated(tmp_path: Path) -> None:
    vectors = make(["a"])
    export(vectors, tmp_path / "v.npy")
    (tmp_path / "v.npy").unlink()
    export(vectors, tmp_path / "v.npy")
    assert same(load(tmp_path / "v.npy"), vectors)


def test_refusing_a_finished_folder_removes_what_a_killed_process_left_in_it(tmp_path: Path) -> None:
    export(make(["a"]), tmp_path / "v", format="swivel")
    (tmp_path / "v" / "lock").touch()
    with pytest.raises(FolderExists):
        export(make(["a"]), tmp_path / "v", format="swivel")
    assert not (tmp_path / "v" / "lock").exists()


def test_other_files_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "v.vocabulary.txt").write_text("mine")
    with pytest.raises(FolderExists, match=r"v\.npy: exists already"):  # The words of v.npy would be in that file.
        export(make(["a"]), tmp_path / "v.npy")

    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "notes").write_text("mine")
    with pytest.raises(FolderExists, match="m: exists already, with other files; choose another folder, or remove it"):
        export(make(["b"]), tmp_path / "m", format="model2vec", overwrite=True)
    with pytest.raises(StorageError, match="m is a folder: pass the path of a file"):
        export(make(["b"]), tmp_path / "m", format="npz", overwrite=True)

    assert sorted(file.name for file in tmp_path.rglob("*")) == ["m", "notes", "v.vocabulary.txt"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_missing_folder_raises_an_error_and_is_not_created(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match=r"missing: no such folder; create it first$"):
        export(make(["a"]), path_for(tmp_path / "missing", name), format=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", READ)
def test_words_without_co_occurrences_are_left_out_with_a_warning(tmp_path: Path, name: str) -> None:
    values = np.array([[1, 2], [0, 0], [3, 4]], np.float32)
    counts = [3, 2, 1] if name in WITH_COUNTS else None  # Formats for texts weigh words by their counts.
    vectors = Vectors(VectorTable(Vocabulary(["king", "hermit", "queen"], counts), values))
    export(vectors, path_for(tmp_path, name), format=name, with_zeros=True)
    assert same(load(path_for(tmp_path, name)), vectors)

    if name == "swivel":  # which has the model, and all words
        assert export(vectors, tmp_path / name, format=name, overwrite=True) == 3
        return

    with pytest.warns(SwivelWarning, match="1 of 3 words have no co-occurrences .* left out; pass with_zeros=True"):
        assert export(vectors, path_for(tmp_path, name), format=name, overwrite=True) == 2
    with pytest.raises(FolderExists):  # without a warning, which would be an error
        export(vectors, path_for(tmp_path, name), format=name)
    read = load(path_for(tmp_path, name))
    assert (read.vocabulary.tokens, read.vectors.tolist()) == (("king", "queen"), [[1, 2], [3, 4]])
    assert read.vocabulary.counts.tolist() == ([3, 1] if name in WITH_COUNTS else [0, 0])


@pytest.mark.filterwarnings("always")
def test_the_command_says_how_many_words_it_leaves_out(tmp_path: Path) -> None:
    Vectors(VectorTable(Vocabulary(["a", "b"]), np.eye(2, 2, 1, dtype=np.float32))).save(tmp_path / "vectors")
    arguments = ["export", str(tmp_path / "vectors"), str(tmp_path / "v.txt")]

    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert "v.txt: 1 vectors of 2 dimensions" in done.stdout
    assert "1 of 2 words have no co-occurrences" in done.stderr.replace("\n", " ")
    assert "pass --with-zeros to write them" in done.stderr.replace("\n", " ")

    assert isinstance(CliRunner().invoke(cli, arguments).exception, FolderExists)
    done = CliRunner().invoke(cli, [*arguments, "--overwrite", "--with-zeros"], catch_exceptions=False)
    assert "v.txt: 2 vectors of 2 dimensions" in done.stdout
    assert "words" not in done.stderr


@pytest.mark.parametrize("name", ["word2vec", "npy", "npz", "arrow", "parquet", "projector", "sentence-transformers"])
def test_a_failure_leaves_no_partial_files(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swivel.storage.files.flush", fail)
    with pytest.raises(StorageError, match="No space left on device"):
        export(make(["a", "b"]), path_for(tmp_path, name), format=name)
    assert not list(tmp_path.iterdir())


def test_formats_are_detected_from_the_content(tmp_path: Path) -> None:
    vectors = make(PLAIN)
    for name, file in NAMES.items():
        if name != "npy":  # the words of an npy file are in a second file
            export(vectors, tmp_path / file, format=name)
            (tmp_path / file).rename(tmp_path / "data")
            assert same(load(tmp_path / "data"), vectors)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"\x80\x04\x95abc", "a pickle, which is never loaded; in gensim, call save_word2vec_format"),
        (b"\xba\x16\x4f\x2f\x0c\x00", "a fastText model; use the .vec file"),
        (b"\x1f\x8b\x08", "compressed; unpack it first"),
        (b"\x28\xb5\x2f\xfd", "compressed; unpack it first"),
    ],
)
def test_unsupported_files_raise_errors_with_advice(tmp_path: Path, start: bytes, message: str) -> None:
    (tmp_path / "v").write_bytes(start)
    with pytest.raises(StorageError, match=f"v: {message}"):
        load(tmp_path / "v")


def test_a_missing_library_raises_an_error_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(MissingExtra, match=r"pip install 'swivel-embeddings\[parquet\]'"):
        export(make(["a"]), tmp_path / "v.parquet")
    with pytest.raises(MissingExtra, match=r"KeyedVectors need gensim: pip install 'swivel-embeddings\[gensim\]'"):
        export(make(["a"]), tmp_path / "v.kv")
    assert not list(tmp_path.iterdir())


def test_importing_load_and_export_imports_only_numpy() -> None:
    code = "import sys; from swivel import export, load; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"pyarrow", "gensim", "safetensors", "tokenizers", "torch", "numba"}


def test_the_command_exports_and_lists_every_format(tmp_path: Path) -> None:
    assert "|".join(FORMATS) in CliRunner().invoke(cli, ["export", "--help"]).stdout

    make(["king", "queen"]).save(tmp_path / "vectors")
    done = CliRunner().invoke(cli, ["export", str(tmp_path), str(tmp_path / "v.npz"), "--json"], catch_exceptions=False)

    assert done.exit_code == 0
    assert '"tokens": 2, "dim": 5}' in done.stdout

    again = ["export", str(tmp_path / "v.npz"), str(tmp_path / "static"), "--format", "model2vec"]

    assert "static: 2 vectors of 5 dimensions" in CliRunner().invoke(cli, again).stdout
    assert load(tmp_path / "static").vocabulary.tokens == ("king", "queen")


def test_columns_are_exported_with_their_own_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    rows, columns = (
        VectorTable(Vocabulary(labels), rng.random((len(labels), 4), np.float32))
        for labels in (["gimp", "vim"], ["use::editing", "works-with::text", "interface::x11"])
    )
    swivel.export(Vectors(rows, columns), tmp_path / "tags.vec", side="columns")
    tags = swivel.load(tmp_path / "tags.vec")

    assert list(tags) == list(columns.vocabulary)
    assert np.array_equal(tags.vectors, columns.values)
    with pytest.raises(ConfigError, match="these vectors have no columns"):
        swivel.export(tags, tmp_path / "again.vec", side="columns")
    with pytest.raises(ConfigError, match="side must be 'rows' or 'columns', got 'left'"):
        swivel.export(tags, tmp_path / "again.vec", side="left")


@pytest.mark.parametrize("name", [name for name in READ if name != "swivel"])  # which has a lock
def test_of_two_exports_to_one_target_at_once_one_wins_whole(tmp_path: Path, name: str) -> None:
    candidates = [make([f"{letter}{i}" for i in range(300)], 20, seed=seed) for seed, letter in enumerate("ab")]
    barrier = threading.Barrier(2)

    def write(vectors: Vectors, path: Path) -> None:
        barrier.wait(30)
        with contextlib.suppress(FolderExists):  # The other one had finished before this one began.
            export(vectors, path, format=name)

    for number in range(5):
        path = path_for(tmp_path / str(number), name)
        path.parent.mkdir()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, candidates, [path, path]))
        found = load(path, format=name)
        assert any(same(found, vectors) for vectors in candidates)
        assert len(list(path.parent.iterdir())) == (2 if name == "npy" else 1)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("size", [251, 255, 256])
def test_names_of_any_length_that_the_system_allows_can_be_exported_to(tmp_path: Path, name: str, size: int) -> None:
    suffix = Path(NAMES.get(name, "")).suffix
    target = tmp_path / ("n" * (size - len(suffix)) + suffix)
    if size > 255 or name == "npy":  # its file of words has a longer name
        with pytest.raises(StorageError, match="File name too long"):
            export(make(["a", "b"]), target, format=name)
        assert not list(tmp_path.iterdir())
    else:
        export(make(["a", "b"]), target, format=name)
        assert [file.name for file in tmp_path.iterdir()] == [target.name]


def test_exporting_to_a_finished_folder_advises_a_flag_of_the_command(tmp_path: Path) -> None:
    export(make(["a", "b"]), tmp_path / "v.npz")
    arguments = ["export", str(tmp_path / "v.npz"), str(tmp_path / "folder"), "--format"]
    assert CliRunner().invoke(cli, [*arguments, "swivel"]).exit_code == 0
    for name in ("swivel", "projector", "model2vec"):
        done = CliRunner().invoke(cli, [*arguments, name])
        assert isinstance(done.exception, FolderExists)
        assert str(done.exception) == (
            f"{tmp_path / 'folder'}: exists already; choose another folder or pass overwrite=True"
        )
    assert CliRunner().invoke(cli, [*arguments, "swivel", "--overwrite"]).exit_code == 0
