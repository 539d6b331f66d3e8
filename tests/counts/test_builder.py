"""MatrixBuilder: the same files for any order, memory and number of threads, and its error messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from stored import folder_of
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec, open_matrix, shards, to_units
from swivel.counts import block_layout as matrix_layout
from swivel.counts import builder as builder_module
from swivel.counts.builder import sort_keys
from swivel.errors import CountsError, FolderExists, MemoryBudgetError, StorageError
from swivel.storage.arrays import ArrayAppender

ROWS = 9
COLUMNS = 7
MIN_MEMORY = 1_024 * 80


def make_spec(*, symmetric: bool = False, unit: int = 1) -> MatrixSpec:
    rows = Vocabulary([f"r{number}" for number in range(ROWS)])
    return MatrixSpec(
        rows=rows,
        columns=None if symmetric else Vocabulary([f"c{number}" for number in range(COLUMNS)]),
        symmetric=symmetric,
        unit=unit,
    )


def build(
    path: Path,
    additions: Iterable[Iterable[ArrayLike]],
    *,
    symmetric: bool = False,
    capacity: int = 10**6,
    threads: int = 1,
    unit_bits: int = 30,
) -> Matrix:
    with MatrixBuilder(path, make_spec(symmetric=symmetric), memory_bytes=MIN_MEMORY, threads=threads) as builder:
        builder._capacity = capacity
        builder._unit_bits = unit_bits
        for rows, columns, units in additions:
            builder.add(rows, columns, units)
        return builder.finish()


def digest(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in Path(path).iterdir() if file.is_file()}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.storage.files.flush", lambda path: None)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_layout, "BLOCK_SIZE", 3)


cells = st.tuples(st.integers(0, ROWS - 1), st.integers(0, COLUMNS - 1), st.integers(0, 1 << 33))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    added=st.lists(cells, min_size=1, max_size=60), capacity=st.integers(1, 40), symmetric=st.booleans(), data=st.data()
)
def test_any_order_and_memory_give_the_sums_and_the_same_bytes(
    small_blocks: None,
    tmp_path_factory: pytest.TempPathFactory,
    added: list[tuple[int, int, int]],
    capacity: int,
    symmetric: bool,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("build")
    if symmetric:
        added = [cell for row, column, units in added for cell in ((row, column, units), (column, row, units))]

    dense = np.zeros((ROWS, ROWS if symmetric else COLUMNS), np.int64)
    np.add.at(dense, tuple(np.array(added).T[:2]), np.array(added).T[2])
    if not dense.any():
        return

    one = build(folder / "one", [np.array(added).T], symmetric=symmetric)
    shuffled = data.draw(st.permutations(added))
    halves = [np.array(half).T for half in (shuffled[::2], shuffled[1::2]) if half]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_SUM_CELLS", 4)  # so that the threads add up sums of their own
        many = build(folder / "many", halves, symmetric=symmetric, capacity=capacity, threads=2, unit_bits=3)
    assert np.array_equal(one.to_scipy().toarray(), dense)
    assert digest(folder_of(one)) == digest(folder_of(many))
    assert np.array_equal(many.row_sums_units, dense.sum(axis=1))
    assert np.array_equal(many.column_sums_units, dense.sum(axis=0))


def test_zeros_are_not_stored(tmp_path: Path) -> None:
    matrix = build(tmp_path / "m", [([0, 1], [0, 1], [0, 3])])
    assert matrix.cell_count == 1


def test_rows_and_columns_without_counts_are_no_error(tmp_path: Path) -> None:
    matrix = build(tmp_path / "m", [([0], [0], [3])])
    assert matrix.row_sums.tolist() == [3.0] + [0.0] * (ROWS - 1)


def test_a_builder_that_fails_leaves_no_scratch_and_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(CountsError), MatrixBuilder(tmp_path / "m", make_spec(), memory_bytes=MIN_MEMORY) as builder:
        builder.add([0], [0], [-1])
    assert list((tmp_path / "m").iterdir()) == []
    with pytest.raises(StorageError, match="not a folder that Swivel wrote"):
        open_matrix(tmp_path / "m")


def test_a_finished_matrix_is_not_overwritten_unasked(tmp_path: Path) -> None:
    build(tmp_path / "m", [([0], [0], [3])])
    with pytest.raises(FolderExists), MatrixBuilder(tmp_path / "m", make_spec(), memory_bytes=MIN_MEMORY):
        pass
    with MatrixBuilder(tmp_path / "m", make_spec(), memory_bytes=MIN_MEMORY, overwrite=True) as builder:
        builder.add([1], [1], [4])
        assert builder.finish().count("r1", "c1") == 4.0


@pytest.mark.parametrize(
    ("rows", "columns", "units", "message"),
    [
        ([0, ROWS], [0, 0], [1, 1], "row 9 at index 1 is out of range: there are 9 rows"),
        ([0], [-1], [1], "column -1 at index 0 is out of range: there are 7 columns"),
        ([0], [0], [-5], "count -5 at index 0 is negative"),
        ([0], [0, 1], [1], "must have the same length, got 1, 2, 1"),
        ([0], [0], [0.5], "must be integers, got float64; convert counts with to_units"),
        ([0], [0], np.array([1 << 63], np.uint64), "does not fit in 63 bits"),
        ([0, 0], [0, 0], [1 << 61, 1 << 61], "more than 2\\^62 units"),
    ],
)
def test_wrong_additions_are_refused(
    tmp_path: Path, rows: ArrayLike, columns: ArrayLike, units: ArrayLike, message: str
) -> None:
    builder = MatrixBuilder(tmp_path / "m", make_spec(), memory_bytes=MIN_MEMORY)
    with builder, pytest.raises(CountsError, match=message):
        builder.add(rows, columns, units)


def test_an_empty_matrix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CountsError, match="there are no counts"):
        build(tmp_path / "m", [([0], [0], [0])])
    with pytest.raises(CountsError, match="there are no counts"):
        build(tmp_path / "n", [])


def test_counts_said_to_be_symmetric_that_are_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CountsError, match="not symmetric"):
        build(tmp_path / "m", [([0, 1], [1, 0], [2, 3])], symmetric=True)
    with pytest.raises(CountsError, match="not symmetric"):
        build(tmp_path / "n", [([0, 2], [1, 0], [2, 2])], symmetric=True)


def test_too_little_memory_is_refused_with_the_bytes_needed(tmp_path: Path) -> None:
    builder = MatrixBuilder(tmp_path / "m", make_spec(), memory_bytes=1_000)
    with pytest.raises(MemoryBudgetError, match="needs at least 40,960 bytes of memory, got 1,000"), builder:
        pass


def test_inconsistent_specs_are_refused() -> None:
    rows, columns = Vocabulary(["a", "b"]), Vocabulary(["x", "y", "z"])
    with pytest.raises(CountsError, match="unit must be 1 or more, got 0"):
        MatrixSpec(rows=rows, unit=0)

    with pytest.raises(CountsError, match="columns must be None"):
        MatrixSpec(rows=rows, columns=columns, symmetric=True)

    with pytest.raises(CountsError, match="2 rows in 2 column parts make 4 columns, not 3"):
        MatrixSpec(rows=rows, columns=columns, column_parts=("left", "right"))

    with pytest.raises(CountsError, match="0 x 3 has no cells"):
        MatrixSpec(rows=Vocabulary([]), columns=columns).layout()


def test_to_units_rounds_and_refuses_invalid_counts() -> None:
    assert to_units([0.0, 1.0, 0.3334, 0.6, 1e-9], 3).tolist() == [0, 3, 1, 2, 1]
    for value, reason in ((-1.0, "negative"), (np.nan, "not finite"), (np.inf, "not finite"), (1e30, "too large")):
        with pytest.raises(CountsError, match=f"at index 1 is {reason}"):
            to_units([1.0, value], 1)


def test_a_run_without_all_shards_raises_an_error(tmp_path: Path) -> None:
    builder = MatrixBuilder(tmp_path / "m", make_spec(), memory_bytes=MIN_MEMORY)
    with builder, pytest.raises(AssertionError, match="run has 0 shards instead of 1"), builder.runs.run():
        pass


@pytest.mark.parametrize("pieces", [[], [3], [2, 0, 5]])
def test_appended_arrays_are_what_numpy_reads(tmp_path: Path, pieces: list[int]) -> None:
    appender = ArrayAppender(tmp_path / "a.npy", np.uint32)
    for size in pieces:
        appender.append(np.arange(size, dtype=np.uint32))

    appender.close()
    appender.close()
    expected = np.concatenate([np.arange(size) for size in pieces]) if pieces else np.empty(0)
    assert np.array_equal(np.load(tmp_path / "a.npy"), expected)
    assert np.load(tmp_path / "a.npy").dtype == np.uint32
    assert (tmp_path / "a.npy").stat().st_size == 128 + 4 * sum(pieces)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 5))
def test_keys_are_sorted_on_any_number_of_threads(values: list[int], threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder_module, "_MIN_CELLS", 2)  # so that few keys are divided, too
        keys = np.array(values, np.uint64)
        sort_keys(keys, threads=threads)
    assert keys.tolist() == sorted(values)
