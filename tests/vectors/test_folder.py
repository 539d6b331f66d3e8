"""Combining rows and columns into vectors, and the folder of vectors on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import swivel
from swivel.config import VectorsConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, DamagedFolder, FolderExists, StorageError, VocabularyError
from swivel.storage.arrays import map_tensors
from swivel.storage.files import FolderWriter, create_folder
from swivel.storage.manifest import digest_array, read_manifest
from swivel.vectors import Vectors, VectorTable, combine, combine_vectors
from swivel.vectors.combine import find_main_axes
from swivel.vectors.folder import HEADER, TENSORS, _read_header, write_vectors
from swivel.vectors.formats.array_files import read_tensors
from swivel.vectors.search import Floats, scale_to_unit


def make_sides(rows: int = 7, parts: int = 2, dim: int = 5) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(rows)
    w = rng.standard_normal((rows, dim)).astype(np.float32)
    c = rng.standard_normal((rows * parts, dim)).astype(np.float32)
    w[3] = 0
    c[3 * parts : 4 * parts] = 0
    return w, c


def make_model() -> Vectors:
    w, c = make_sides()
    words = Vocabulary(["the", "tab\there", "naïve", "d", "e", "f", "g"], [70, 60, 50, 40, 30, 20, 10])
    labels = Vocabulary([f"{side}:{word}" for word in words for side in ("left", "right")], range(14))
    combined = combine_vectors(w, c, 2, VectorsConfig(combine="parts"))
    rows = VectorTable(words, w, np.arange(7) / 3)
    columns = VectorTable(labels, c, np.arange(14) / 7)
    return Vectors(rows, columns, vectors=combined, shift=0.25, columns_per_row=2)


def test_rows_alone_are_the_rows_themselves() -> None:
    w, c = make_sides()
    assert combine_vectors(w, c, 2, VectorsConfig(combine="rows")) is w
    assert combine_vectors(w, None, 0, VectorsConfig(combine="rows")) is w


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_sum_adds_every_part_of_a_word(parts: int) -> None:
    w, c = make_sides(parts=parts)
    expected = [w[n] + sum(c[n * parts + part] for part in range(parts)) for n in range(len(w))]
    combined = combine_vectors(w, c, parts, VectorsConfig(combine="sum"))
    assert combined.dtype == np.float32
    assert combined == pytest.approx(np.array(expected), rel=1e-6)


@pytest.mark.parametrize("sum_weight", [0.0, 1.5])
@pytest.mark.parametrize("spectrum", [1.0, 0.8])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_combined_parts_equal_a_truncated_svd(parts: int, spectrum: float, sum_weight: float) -> None:
    w, c = make_sides(rows=60, parts=parts)
    both = w + c.reshape(len(w), parts, -1).sum(axis=1)
    sides = [scale_to_unit(w), *(0.5 * scale_to_unit(c[part::parts]) for part in range(parts))]
    wide = np.concatenate([*sides, sum_weight * scale_to_unit(both)], axis=1).astype(np.float64)
    left, values, _ = np.linalg.svd(wide, full_matrices=False)
    lengths = values[0] * (values[:5] / values[0]) ** spectrum
    best = left[:, :5] * lengths
    config = VectorsConfig(combine="parts", column_weight=0.5, sum_weight=sum_weight, spectrum=spectrum)
    combined = combine_vectors(w, c, parts, config)

    assert combined.shape == w.shape and combined.dtype == np.float32
    assert combined @ combined.T == pytest.approx(best @ best.T, abs=1e-5)
    assert np.linalg.norm(combined, axis=0) == pytest.approx(lengths, rel=1e-5)


def test_with_weights_of_zero_the_cosines_are_those_of_the_rows() -> None:
    w, c = make_sides(rows=20)
    config = VectorsConfig(combine="parts", column_weight=0.0, sum_weight=0.0, spectrum=1.0)
    combined = combine_vectors(w, c, 2, config)
    assert combined @ combined.T == pytest.approx(scale_to_unit(w) @ scale_to_unit(w).T, abs=1e-5)


def test_dimensions_without_variance_stay_zero_for_any_power() -> None:
    w, c = make_sides(rows=4)  # three rows that are not zero span only three of five dimensions
    combined = combine_vectors(w, c, 2, VectorsConfig(combine="parts", spectrum=0.0))
    assert np.isfinite(combined).all()
    assert np.abs(combined[:, 3:]).max() < 1e-4 < np.abs(combined[:, :2]).max()


@pytest.mark.parametrize("combine", ["rows", "sum", "parts"])
def test_a_word_of_zeros_stays_zero(combine: str) -> None:
    w, c = make_sides()
    assert not combine_vectors(w, c, 2, VectorsConfig(combine=combine))[3].any()


def test_the_svd_uses_the_most_frequent_rows_and_does_not_depend_on_the_chunk_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w, c = make_sides(rows=50)
    config = VectorsConfig(combine="parts")
    whole = combine_vectors(w, c, 2, config)
    monkeypatch.setattr("swivel.vectors.combine._CHUNK_ROWS", 7)

    assert combine_vectors(w, c, 2, config) == pytest.approx(whole, abs=1e-5)

    monkeypatch.setattr("swivel.vectors.combine.SVD_ROWS", 20)
    first = combine_vectors(w[:20], c[:40], 2, config)

    assert combine_vectors(w, c, 2, config)[:20] == pytest.approx(first, abs=1e-5)


def test_the_largest_component_of_every_axis_is_positive() -> None:
    table = np.random.default_rng(1).standard_normal((30, 6))
    axes = find_main_axes(table.T @ table, 4)
    assert axes.shape == (6, 4)
    assert all(axis[np.abs(axis).argmax()] > 0 for axis in axes.T)
    assert find_main_axes(table.T @ table, 4) == pytest.approx(axes)


@pytest.mark.parametrize("combine", ["sum", "parts"])
def test_columns_that_do_not_belong_to_rows_cannot_be_combined(combine: str) -> None:
    w, c = make_sides()
    with pytest.raises(ConfigError, match=f"combine={combine!r} needs columns that belong to the rows"):
        combine_vectors(w, c, 0, VectorsConfig(combine=combine))
    with pytest.raises(ConfigError, match="use combine='rows'"):
        combine_vectors(w, None, 1, VectorsConfig(combine=combine))


def assert_same(first: Vectors, second: Vectors) -> None:
    for name in ("rows", "columns", "vectors", "row_sums", "column_sums"):
        a, b = getattr(first, name), getattr(second, name)
        assert (a is None and b is None) or (a.dtype == b.dtype and np.array_equal(a, b)), name
    for name in ("vocabulary", "column_vocabulary", "shift", "columns_per_row"):
        assert getattr(first, name) == getattr(second, name), name


def test_loaded_vectors_equal_the_saved_ones(tmp_path: Path) -> None:
    vectors = make_model()
    vectors.save(tmp_path / "vectors")
    loaded = Vectors.load(tmp_path / "vectors")
    assert_same(loaded, vectors)
    assert loaded.nearest("the") == vectors.nearest("the")


def test_vectors_without_columns_are_stored_once(tmp_path: Path) -> None:
    w, _ = make_sides()
    vectors = Vectors(VectorTable(Vocabulary("abcdefg"), w), vectors=w)
    vectors.save(tmp_path)
    assert list(map_tensors(tmp_path / TENSORS).matrices) == ["rows"]
    loaded = Vectors.load(tmp_path)
    assert_same(loaded, vectors)
    assert loaded.vectors is loaded.rows


def test_loaded_values_are_mapped_not_read(tmp_path: Path) -> None:
    make_model().save(tmp_path)
    loaded = Vectors.load(tmp_path)
    for array in (loaded.rows, loaded.columns, loaded.vectors):
        base: Any = array
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
            base = base.base
        assert isinstance(base, np.memmap)


def test_loading_and_searching_import_only_numpy(tmp_path: Path) -> None:
    make_model().save(tmp_path)
    program = (
        "import sys, swivel.vectors; v = swivel.vectors.Vectors.load(sys.argv[1]); v.nearest('the');"
        "v.score('the', 'd');"
        "print([m for m in ('torch', 'numba', 'scipy', 'safetensors') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_safetensors_library_reads_the_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    vectors = make_model()
    vectors.save(tmp_path)
    tensors = load_file(tmp_path / TENSORS)
    assert np.array_equal(tensors["vectors"], vectors.vectors) and np.array_equal(tensors["rows"], vectors.rows)


def write_model(folder: FolderWriter) -> dict[str, Any]:
    """Write the model and return its facts, so that a test can write another manifest."""
    write_vectors(folder, make_model())
    return dict(read_manifest(folder.path).facts)


def test_another_stage_may_write_vectors_with_its_own_manifest(tmp_path: Path) -> None:
    with create_folder(tmp_path, "vectors") as folder:
        facts = write_model(folder)
        folder.finish(config={"dim": 5}, inputs={"matrix": "abc"}, facts={**facts, "loss": 0.1})
    assert set(facts.pop("tensors")) == {"header", "rows", "columns", "vectors"}
    assert facts == {"rows": 7, "columns": 14, "dim": 5, "shift": 0.25, "columns_per_row": 2}
    assert_same(Vectors.load(tmp_path), make_model())


def test_a_finished_folder_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    make_model().save(tmp_path)
    with pytest.raises(FolderExists):
        make_model().save(tmp_path)
    Vectors.load(tmp_path).save(tmp_path, overwrite=True)  # even from its own mapped arrays
    assert_same(Vectors.load(tmp_path), make_model())


def test_a_folder_that_is_missing_unfinished_or_of_another_stage_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such folder"):
        Vectors.load(tmp_path / "none")
    with pytest.raises(StorageError, match="not a folder that Swivel wrote"):
        Vectors.load(tmp_path)

    with create_folder(tmp_path / "matrix", "matrix") as folder:
        folder.finish(config={}, inputs={}, facts={})

    with pytest.raises(StorageError, match="a folder with a matrix, not with vectors"):
        Vectors.load(tmp_path / "matrix")

    with create_folder(tmp_path / "bare", "vectors") as folder:
        folder.finish(config={}, inputs={}, facts={})

    with pytest.raises(DamagedFolder, match=r"vectors\.safetensors is missing from the manifest"):
        Vectors.load(tmp_path / "bare")


def save_with(path: Path, parts: dict[str, Any]) -> None:
    """Save the model with some files (bytes, arrays or lines) or the facts replaced."""
    with create_folder(path, "vectors") as folder:
        real = write_model(folder)
        for name, value in parts.items():
            if name == "facts":
                real = {**value, "tensors": real["tensors"]}
            elif isinstance(value, bytes):
                with folder._create_part(name) as file:
                    file.write(value)
            elif isinstance(value, np.ndarray):
                folder.write_array(name, value)
            else:
                folder.write_lines(name, value)
        if TENSORS in parts:  # damaged before it was written, so that its checksum is right
            real["tensors"] = {HEADER: digest_array(_read_header(path / TENSORS))}
        folder.finish(config={}, inputs={}, facts=real)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"rows.txt": ["a\t1"]}, "a vocabulary of 1 tokens needs vectors"),
        ({"columns.txt": ["a\t1"]}, "a vocabulary of 1 tokens needs vectors"),
        ({"rows.txt": ["no count"] * 7}, "expected a token, a tab and a count"),
        ({"row_sums.npy": np.ones(3)}, "needs 7 sums"),
        ({"facts": {"shift": 0.0}}, "'columns_per_row' is missing"),
        ({"facts": {"shift": "x", "columns_per_row": 2}}, "its files do not match"),
        ({"facts": {"shift": 0.0, "columns_per_row": 5}}, "need 35 columns, got 14"),
    ],
)
def test_files_that_do_not_match_are_damage(tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    save_with(tmp_path, parts)
    with pytest.raises(DamagedFolder, match=message):
        Vectors.load(tmp_path)


def tensor_file(header: Any, data: bytes = b"\0" * 24) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"rows": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        b"\xff" * 40,
        tensor_file(b"not json"),
        tensor_file([1]),
        tensor_file({"rows": 3}),
        tensor_file(entry(dtype="F16")),
        tensor_file(entry(shape=[6])),
        tensor_file(entry(shape=[-2, -3])),
        tensor_file(entry(shape=None)),
        tensor_file(entry(offsets=[0, 20])),
        tensor_file(entry(offsets=[24, 48])),
        tensor_file(entry(offsets=[-24, 0])),
        tensor_file({"rows": {"dtype": "F32"}}),
        tensor_file(entry(), bytes(28)),  # bytes of no tensor
        tensor_file(entry(offsets=[4, 28]), bytes(28)),
        tensor_file(entry() | {"columns": entry()["rows"]}),  # two tensors in one place
        tensor_file(entry() | {"columns": entry(offsets=[12, 36])["rows"]}, bytes(36)),
    ],
)
def test_a_damaged_tensor_file_raises_an_error(tmp_path: Path, data: bytes) -> None:
    save_with(tmp_path, {TENSORS: data})
    with pytest.raises(DamagedFolder, match=r"vectors\.safetensors: not a safetensors file"):
        Vectors.load(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        entry(shape=[6], offsets=[24, 48]),
        entry(dtype="I32", offsets=[24, 48]),
        entry(dtype="F16", offsets=[24, 36]),
    ],
)
@pytest.mark.parametrize("name", ["columns", "vectors"])
def test_a_tensor_other_than_a_float32_matrix_is_damage(tmp_path: Path, name: str, wrong: dict[str, Any]) -> None:
    data = tensor_file(entry() | {name: wrong["rows"]}, bytes(wrong["rows"]["data_offsets"][1]))
    save_with(tmp_path, {TENSORS: data})
    with pytest.raises(DamagedFolder, match=rf"not a safetensors file of float32 matrices \({name} is not one\)"):
        Vectors.load(tmp_path)


def test_a_tensor_file_without_rows_is_damage(tmp_path: Path) -> None:
    save_with(tmp_path, {TENSORS: tensor_file({"__metadata__": {"a": "b"}}, b"")})
    with pytest.raises(DamagedFolder, match="'rows' is missing"):
        Vectors.load(tmp_path)


@pytest.mark.parametrize("odd", [5, None, "rows header", ["rows"], ["header"]])
def test_odd_checksums_of_tensors_are_damage(tmp_path: Path, odd: object) -> None:
    with create_folder(tmp_path / "v", "vectors") as folder:
        facts = write_model(folder)
        folder.finish(config={}, inputs={}, facts={**facts, "tensors": odd})
    with pytest.raises(DamagedFolder, match="'tensors' in the manifest is not a JSON object"):
        Vectors.load(tmp_path / "v")


@pytest.mark.parametrize("padding", range(4))
def test_tensors_at_odd_addresses_are_read_too(tmp_path: Path, padding: int) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    header = json.dumps(entry()).encode() + b" " * padding
    (tmp_path / "file").write_bytes(tensor_file(header, values.tobytes()))
    rows = map_tensors(tmp_path / "file").matrices["rows"]
    assert rows.flags.aligned and np.array_equal(rows, values)


def test_a_missing_tensor_file_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="none: no such file"):
        read_tensors(tmp_path / "none")


def test_tensors_that_cannot_be_written_raise_an_error(tmp_path: Path) -> None:
    with create_folder(tmp_path, "vectors") as folder, pytest.raises(StorageError, match="none"):
        folder.write_tensors("none/file", {"rows": np.ones((2, 2), np.float32)})


def test_a_device_without_memory_leaves_combining_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    w, c = make_sides()
    config = VectorsConfig(combine="parts")
    expected = combine_vectors(w, c, 2, config)

    project = combine._project

    def fail_on_device(error: RuntimeError) -> Callable[..., Floats]:
        def fail(*arguments: Any) -> Floats:
            if arguments[-1] == "cpu":
                return project(*arguments)
            raise error

        return fail

    monkeypatch.setattr(combine, "has_cuda", lambda device: device == "cuda")
    monkeypatch.setattr(combine, "_project", fail_on_device(torch.OutOfMemoryError("no memory")))
    assert np.array_equal(combine_vectors(w, c, 2, config, device="cuda"), expected)
    monkeypatch.setattr(combine, "_project", fail_on_device(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        combine_vectors(w, c, 2, config, device="cuda")


@pytest.mark.parametrize("side", ["rows", "columns"])
def test_a_label_with_half_a_surrogate_pair_cannot_be_saved_and_costs_nothing(tmp_path: Path, side: str) -> None:
    words = {
        name: Vocabulary(["tea", "half\ud800"] if name == side else ["tea", "jam"]) for name in ("rows", "columns")
    }
    table = np.eye(2, dtype=np.float32)
    vectors = Vectors(VectorTable(words["rows"], table), VectorTable(words["columns"], table))
    make_model().save(tmp_path / "v")

    with pytest.raises(VocabularyError, match=r"'half\\ud800' contains half a surrogate pair") as saved:
        vectors.save(tmp_path / "v", overwrite=True)
    with pytest.raises(VocabularyError) as exported:
        swivel.export(vectors, tmp_path / "v.npz", side=side)
    assert str(saved.value) == str(exported.value)
    assert_same(Vectors.load(tmp_path / "v"), make_model())
    assert [path.name for path in tmp_path.iterdir()] == ["v"]
