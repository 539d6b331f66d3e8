"""Matrix: blocks, sums, re-blocking, opening, and errors for damaged folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stored import folder_of
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec, open_matrix
from swivel.counts import block_layout as matrix_layout
from swivel.counts.block_layout import Layout, block_count_for, block_length, choose_layout
from swivel.errors import (
    CountsError,
    DamagedFolder,
    FolderExists,
    MemoryBudgetError,
    StorageError,
    UnfinishedFolder,
    UnknownToken,
)
from swivel.storage.manifest import seal, unseal


def make_vocabulary(size: int, letter: str = "w") -> Vocabulary:
    return Vocabulary([f"{letter}{number}" for number in range(size)], range(size, 0, -1))


def make_dense(
    rows: int, columns: int, *, symmetric: bool = False, seed: int = 1, large: bool = False
) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    dense = rng.integers(1, 9, (rows, columns)) * (rng.random((rows, columns)) < 0.4)
    if large:
        dense[:3, :4] += (1 << 32) - 3
        dense[-1, -1] = 5 << 40
    return dense + dense.T if symmetric else dense


def build(
    path: Path, dense: NDArray[np.int64], *, symmetric: bool = False, unit: int = 1, memory_bytes: int = 1 << 20
) -> Matrix:
    rows, columns = dense.shape
    labels = None if symmetric else make_vocabulary(columns, "c")
    spec = MatrixSpec(rows=make_vocabulary(rows), columns=labels, unit=unit, symmetric=symmetric)
    with MatrixBuilder(path, spec, memory_bytes=memory_bytes) as builder:
        filled = np.nonzero(dense)
        builder.add(filled[0], filled[1], dense[filled])
        return builder.finish(config={"made": "here"})


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.storage.files.flush", lambda path: None)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_layout, "BLOCK_SIZE", 4)


@given(size=st.integers(1, 10_000), blocks=st.integers(1, 300))
def test_every_row_is_in_exactly_one_block_and_sizes_differ_by_at_most_one(size: int, blocks: int) -> None:
    blocks = min(size, blocks)
    sizes = [block_length(size, blocks, block) for block in range(blocks)]
    assert sizes == np.bincount(np.arange(size) % blocks, minlength=blocks).tolist()
    assert max(sizes) - min(sizes) <= 1


@given(rows=st.integers(1, 5_000_000), columns=st.integers(1, 5_000_000), parts=st.integers(1, 4))
def test_a_chosen_layout_has_at_most_a_million_shards_of_at_most_65536_rows(
    rows: int, columns: int, parts: int
) -> None:
    layout = choose_layout(rows, columns * parts, parts=parts)
    assert layout.shards <= 1 << 20
    assert layout.largest_rows <= 1 << 16
    assert layout.column_blocks % parts == 0


def test_stored_blocks_have_about_1024_rows() -> None:
    layout = choose_layout(98_305, 98_305)
    assert (layout.row_blocks, layout.column_blocks) == (97, 97)
    assert block_count_for(98_304, 1_024) == 96


def test_blocks_too_large_for_16_bit_positions_are_refused() -> None:
    with pytest.raises(CountsError, match="at most 65,536 rows; use 2 blocks or more"):
        Layout(65_537, 10, 1, 1, False)
    with pytest.raises(CountsError, match="column blocks must be 1 to 10"):
        Layout(10, 10, 1, 11, False)


def test_positions_and_keys_are_each_others_inverse() -> None:
    layout = Layout(23, 31, 3, 5, False)
    rows, columns = (ids.ravel() for ids in np.indices((23, 31)))
    keys = layout.keys(rows, columns)
    assert len(set(keys.tolist())) == rows.size
    back = layout.find_cells(*layout.split_keys(keys))
    assert np.array_equal(back[0], rows) and np.array_equal(back[1], columns)


def check_blocks(matrix: Matrix, dense: NDArray[np.int64]) -> None:
    """Assert that every block has exactly its cells, in order."""
    for i in range(matrix.row_blocks):
        for j in range(matrix.column_blocks):
            cells = matrix.cells(i, j)
            expected = dense[i :: matrix.row_blocks, j :: matrix.column_blocks]
            block = np.zeros(expected.shape, np.float32)
            sides = cells.positions >> 16, cells.positions & 0xFFFF
            block[sides[::-1] if cells.mirrored else sides] = cells.counts
            assert np.array_equal(block, (expected / matrix.unit).astype(np.float32))
            assert np.all(np.diff(cells.positions.astype(np.int64)) > 0)
            assert cells.mirrored == (matrix.is_symmetric and i > j)


@pytest.mark.parametrize("symmetric", [False, True])
def test_blocks_hold_every_cell_at_its_place(tmp_path: Path, small_blocks: None, symmetric: bool) -> None:
    dense = make_dense(11, 11 if symmetric else 14, symmetric=symmetric)
    matrix = build(tmp_path / "m", dense, symmetric=symmetric, unit=3)
    check_blocks(matrix, dense)
    assert matrix.is_symmetric == symmetric


@pytest.mark.parametrize("symmetric", [False, True])
def test_sums_cells_and_total_are_those_of_the_counts(tmp_path: Path, small_blocks: None, symmetric: bool) -> None:
    dense = make_dense(13, 13, symmetric=symmetric, large=True)
    matrix = build(tmp_path / "m", dense, symmetric=symmetric, unit=2)
    assert np.array_equal(matrix.row_sums_units, dense.sum(axis=1))
    assert np.array_equal(matrix.column_sums_units, dense.sum(axis=0))
    assert np.array_equal(matrix.row_sums, dense.sum(axis=1) / 2)
    assert np.array_equal(matrix.column_sums, dense.sum(axis=0) / 2)
    assert matrix.total == dense.sum() / 2
    assert matrix.cell_count == np.count_nonzero(dense)
    assert matrix.shape == (13, 13)


@pytest.mark.parametrize("symmetric", [False, True])
def test_counts_past_32_bits_are_exact(tmp_path: Path, small_blocks: None, symmetric: bool) -> None:
    dense = make_dense(9, 9, symmetric=symmetric, large=True)
    matrix = build(tmp_path / "m", dense, symmetric=symmetric)
    assert np.array_equal(matrix.to_scipy().toarray(), dense)
    assert matrix.count("w8", "w8" if symmetric else "c8") == dense[8, 8]
    block = matrix.units(0, 0)[1]
    assert block.max() == dense[:: matrix.row_blocks, :: matrix.column_blocks].max()
    assert matrix.cells(0, 0).counts.max() == np.float32(block.max())


@pytest.mark.parametrize("symmetric", [False, True])
def test_stored_cells_are_all_cells_in_shard_order(tmp_path: Path, small_blocks: None, symmetric: bool) -> None:
    dense = make_dense(11, 11 if symmetric else 14, symmetric=symmetric, large=True)
    matrix = build(tmp_path / "m", dense, symmetric=symmetric, unit=3)
    offsets, positions = matrix.arrays.offsets[0], matrix.arrays.positions
    assert len(offsets) == matrix.row_blocks * matrix.column_blocks + 1
    assert offsets[-1] == len(positions) == matrix.stored_cell_count

    for i in range(matrix.row_blocks):
        for j in range(matrix.column_blocks):
            first, last = offsets[i * matrix.column_blocks + j :][:2].tolist()
            cells = matrix.cells(i, j)
            if cells.mirrored:
                assert first == last
                continue
            assert np.array_equal(positions[first:last], cells.positions)
            assert np.array_equal(matrix.counts_of(first, last), cells.counts)


def test_stored_counts_are_read_in_any_pieces(tmp_path: Path, small_blocks: None) -> None:
    dense = make_dense(9, 9, large=True)
    stored = build(tmp_path / "m", dense, unit=3)
    whole = stored.counts_of(0, stored.stored_cell_count)
    assert whole.dtype == np.float32
    assert whole.max() == np.float32((5 << 40) / 3)

    for first in range(len(whole)):
        for last in (first, first + 1, len(whole)):
            assert np.array_equal(stored.counts_of(first, last), whole[first:last])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("blocks", [(6, 6), (1, 1), (2, 5), (5, 2), (12, 9), (3, 3)])
def test_reblocked_is_the_same_matrix(
    tmp_path: Path, small_blocks: None, symmetric: bool, blocks: tuple[int, int]
) -> None:
    dense = make_dense(12, 12, symmetric=symmetric, large=True)
    matrix = build(tmp_path / "m", dense, symmetric=symmetric)
    other = matrix.reblocked(*blocks, scratch=tmp_path / "scratch", threads=2)
    assert (other.row_blocks, other.column_blocks) == blocks
    assert (other.to_scipy() != matrix.to_scipy()).nnz == 0
    assert np.array_equal(other.to_scipy().toarray(), dense)
    assert other.cell_count == matrix.cell_count
    assert other.rows is not None and np.array_equal(other.row_sums, matrix.row_sums)
    check_blocks(other, dense)


def test_reblocked_to_its_own_blocks_is_itself(tmp_path: Path) -> None:
    matrix = build(tmp_path / "m", make_dense(5, 6))
    assert matrix.reblocked(1, 1, scratch=tmp_path / "scratch") is matrix
    assert not (tmp_path / "scratch").exists()


def test_a_symmetric_matrix_stores_half_of_its_shards(tmp_path: Path, small_blocks: None) -> None:
    matrix = build(tmp_path / "m", make_dense(40, 40, symmetric=True), symmetric=True)
    assert matrix.stored_cell_count < 0.6 * matrix.cell_count


def test_count_finds_cells_from_both_sides(tmp_path: Path, small_blocks: None) -> None:
    dense = make_dense(10, 10, symmetric=True)
    matrix = build(tmp_path / "m", dense, symmetric=True)
    counts = [[matrix.count(row, column) for column in matrix.columns] for row in matrix.rows]
    assert np.array_equal(counts, dense)
    with pytest.raises(UnknownToken, match="'w99' is not in the vocabulary"):
        matrix.count("w99", "w0")


def test_blocks_out_of_range_are_refused(tmp_path: Path) -> None:
    matrix = build(tmp_path / "m", make_dense(5, 6))
    with pytest.raises(IndexError, match=r"block \(0, 1\) is outside a matrix of 1 x 1 blocks"):
        matrix.cells(0, 1)


def test_a_matrix_opens_without_reading_its_vocabularies(tmp_path: Path) -> None:
    build(tmp_path / "m", make_dense(50, 60))
    matrix = open_matrix(tmp_path / "m")
    assert "rows" not in vars(matrix)
    assert "50 x 60" in repr(matrix)
    assert matrix.config == {"made": "here"}


def test_html_shows_the_first_rows_and_their_sums_escaped(tmp_path: Path) -> None:
    matrix = build(tmp_path / "<m>", np.full((12, 2), 1000))
    table = matrix._repr_html_()
    assert "Matrix of 12 x 2, 24 cells" in table and "&lt;m&gt;</caption>" in table
    assert f"<td>{matrix.rows[0]}</td><td>2,000.0</td>" in table
    assert f"<td>{matrix.rows[11]}</td>" not in table


def test_fingerprints_differ_for_different_matrices(tmp_path: Path) -> None:
    first = build(tmp_path / "a", make_dense(5, 6))
    again = build(tmp_path / "b", make_dense(5, 6))
    other = build(tmp_path / "c", make_dense(5, 6, seed=2))
    assert first.fingerprint == again.fingerprint == open_matrix(tmp_path / "a").fingerprint
    assert first.fingerprint != other.fingerprint


def test_to_scipy_is_a_sparse_matrix_of_float64(tmp_path: Path) -> None:
    sparse = build(tmp_path / "m", make_dense(5, 6), unit=4).to_scipy()
    assert isinstance(sparse, scipy.sparse.csr_matrix)
    assert sparse.dtype == np.float64
    assert np.array_equal(sparse.toarray(), make_dense(5, 6) / 4)


def test_a_scipy_matrix_beyond_memory_is_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = build(tmp_path / "m", make_dense(5, 6))
    monkeypatch.setattr("swivel.runtime.resources.free_memory", lambda: 100)
    with pytest.raises(
        MemoryBudgetError, match="m: a SciPy matrix of it needs about 720 B of memory, but 100 B are free"
    ):
        matrix.to_scipy()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m"
    matrix = build(path, make_dense(5, 6))
    matrix.verify()
    data = bytearray((path / "counts.npy").read_bytes())
    data[-1] ^= 1
    (path / "counts.npy").write_bytes(data)
    with pytest.raises(DamagedFolder, match=r"counts\.npy: checksum differs"):
        open_matrix(path).verify()

    (path / "counts.npy").write_bytes(data[:-4])
    with pytest.raises(DamagedFolder, match=r"counts\.npy: .* bytes, but the manifest says"):
        open_matrix(path)

    (path / "counts.npy").unlink()
    with pytest.raises(DamagedFolder, match=r"counts\.npy: missing"):
        open_matrix(path)

    (path / "manifest.json").unlink()
    with pytest.raises(UnfinishedFolder):
        open_matrix(path)

    with pytest.raises(StorageError, match="no such folder"):
        open_matrix(tmp_path / "nowhere")


def test_a_new_matrix_has_the_labels_that_were_written(tmp_path: Path) -> None:
    matrix = build(tmp_path / "m", make_dense(5, 6))
    again = open_matrix(folder_of(matrix))
    assert matrix.rows.tokens == again.rows.tokens
    assert matrix.columns.tokens == again.columns.tokens


@pytest.mark.parametrize(
    ("fact", "value", "message"),
    [
        ("row_blocks", 3, "does not match"),
        ("shape", [5], "not describe a matrix"),
        ("shape", [0, 6], "positive integers"),
    ],
)
def test_a_manifest_that_does_not_match_is_refused(tmp_path: Path, fact: str, value: object, message: str) -> None:
    path = tmp_path / "m"
    build(path, make_dense(5, 6))
    manifest = unseal((path / "manifest.json").read_bytes())
    manifest["facts"][fact] = value
    (path / "manifest.json").write_bytes(seal(manifest))
    with pytest.raises(DamagedFolder, match=message):
        open_matrix(path)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("blocks", [None, (2, 5), (3, 3)])
def test_transformed_matrix_has_the_logarithms_of_the_counts(
    tmp_path: Path, small_blocks: None, symmetric: bool, blocks: tuple[int, int] | None
) -> None:
    dense = make_dense(9, 9, symmetric=symmetric, large=True)
    original = build(tmp_path / "m", dense, symmetric=symmetric, unit=1 << 30)
    matrix = original.transformed("log")
    if blocks is not None:
        matrix = matrix.reblocked(*blocks, scratch=tmp_path)
        original = original.reblocked(*blocks, scratch=tmp_path)

    # Most counts are about 1e-9: log(1 + x) is x there.
    expected = np.log1p(dense / (1 << 30))
    np.testing.assert_allclose(matrix.to_scipy().toarray(), expected, rtol=1e-15)
    np.testing.assert_allclose(matrix.row_sums, expected.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(matrix.column_sums, expected.sum(axis=0), rtol=1e-12)
    assert matrix.total == pytest.approx(expected.sum())
    assert matrix.count("w8", "w8" if symmetric else "c8") == expected[8, 8]
    assert matrix.fingerprint == original.fingerprint

    for i in range(matrix.row_blocks):
        for j in range(matrix.column_blocks):
            raw, cells = original.cells(i, j), matrix.cells(i, j)
            assert np.array_equal(cells.positions, raw.positions) and cells.mirrored == raw.mirrored
            np.testing.assert_allclose(cells.counts, np.log1p(raw.counts.astype(np.float64)), rtol=1e-6)


def test_a_matrix_may_be_saved_over_itself_and_not_over_a_run(tmp_path: Path, small_blocks: None) -> None:
    counted = build(tmp_path / "run" / "matrix", make_dense(5, 6))
    matrix = open_matrix(tmp_path / "run")
    matrix.save(tmp_path / "run" / "matrix", overwrite=True)
    assert open_matrix(tmp_path / "run").fingerprint == counted.fingerprint
    open_matrix(tmp_path / "run").verify()

    with pytest.raises(FolderExists, match=r"run: the folder of a run, with a result in .*matrix; choose another"):
        matrix.save(tmp_path / "run", overwrite=True)
