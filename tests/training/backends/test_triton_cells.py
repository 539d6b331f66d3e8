"""Cells on the device equal those of the matrix re-blocked on disk, for any stored blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from step_contract import HAS_GPU, store_blocks
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import BlockCells, Matrix, MatrixBuilder, MatrixSpec
from swivel.counts import block_layout as matrix_layout
from swivel.training.schedule import block_starts

pytest.importorskip("triton")
pytest.importorskip("numba")  # builds the matrix
from swivel.training.backends.triton import device_cells as cells_module
from swivel.training.backends.triton.device_cells import DeviceCells, ShardCells
from swivel.training.backends.triton.slot_layout import KernelTile, SlotLayout

DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
SIZES = {True: (23, 23), False: (23, 31)}  # shape of the symmetric matrix and of the other one
STORED = 6  # rows and columns of a stored block
TILE = KernelTile(4, 8, 16)


def make_counts(symmetric: bool) -> NDArray[np.int64]:
    """Return counts with some above 32 bits, and an empty row and column."""
    rng = np.random.default_rng(6)
    shape = SIZES[symmetric]
    counts = rng.integers(1, 50, shape) * (rng.random(shape) < 0.4)
    counts[0, 1] = counts[7, 20] = 5 << 40
    counts[9] = 0
    counts[:, 8] = 0
    if symmetric:
        counts = np.triu(counts) + np.triu(counts, 1).T
    return counts


@pytest.fixture(scope="module")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Matrix]:
    built = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix_layout, "BLOCK_SIZE", STORED)
        patch.setattr("swivel.storage.files.flush", lambda path: None)
        for symmetric in (True, False):
            counts = make_counts(symmetric)
            rows, columns = (Vocabulary([f"w{n}" for n in range(size)]) for size in counts.shape)
            spec = MatrixSpec(rows=rows, columns=None if symmetric else columns, unit=3, symmetric=symmetric)
            path = tmp_path_factory.mktemp("cells") / "matrix"
            with MatrixBuilder(path, spec, memory_bytes=1 << 20) as builder:
                filled = np.nonzero(counts)
                builder.add(filled[0], filled[1], counts[filled])
                built[symmetric] = builder.finish()
    return built


def lay_out(matrix: Matrix, blocks: tuple[int, int]) -> DeviceCells:
    starts = [block_starts(size, count) for size, count in zip(matrix.shape, blocks, strict=True)]
    cells = DeviceCells(SlotLayout((starts[0], starts[1]), 8, TILE), DEVICE)
    cells.take(matrix)
    return cells


def entries_of(cells: DeviceCells, shard: ShardCells, slot: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    slots = cells.slots[shard.begin : shard.end].cpu().numpy()
    slots = slots.view(f"u{slots.itemsize}").astype(np.int64)
    assert np.all(np.diff(slots) >= 0)
    first, last = shard.begin + np.searchsorted(slots, [slot, slot + 1])
    places = cells.positions[first:last].cpu().numpy().view(np.uint16).astype(np.int64)
    return places, cells.counts[first:last].cpu().numpy()


def read_tiles(cells: DeviceCells, shard: ShardCells) -> NDArray[np.float32]:
    """Return the counts of the cells as a dense block."""
    x = np.zeros((shard.rows, shard.columns), np.float32)
    down, across = cells.layout.tiles
    for tile in range(down * across):
        places, counts = entries_of(cells, shard, tile)
        assert np.all(np.diff(places) > 0)

        row, column = places // 8 % TILE.rows, places // (8 * TILE.rows) * 8 + places % 8
        x[row + tile // across * TILE.rows, column + tile % across * TILE.columns] = counts
    return x


def check_block(cells: DeviceCells, block: tuple[int, int], expected: BlockCells) -> None:
    shard = cells.find(block)
    assert shard.mirrored == expected.mirrored

    positions = expected.positions.astype(np.int64)
    truth = np.zeros((shard.rows, shard.columns), np.float32)
    truth[positions >> 16, positions & 0xFFFF] = expected.counts
    np.testing.assert_array_equal(read_tiles(cells, shard), truth)
    assert shard.entries == len(positions)


NESTED = [(4, 4), (2, 2), (1, 1), (8, 8), (12, 12)]
OTHERS = [(3, 3), (5, 5), (23, 23), (4, 2), (3, 7), (1, 5)]


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "rectangular"])
@pytest.mark.parametrize("blocks", [*NESTED, *OTHERS], ids=str)
def test_cells_equal_those_of_the_reblocked_matrix(
    matrices: dict[bool, Matrix], symmetric: bool, blocks: tuple[int, int], tmp_path: Path
) -> None:
    matrix = matrices[symmetric]
    assert matrix.row_blocks == 4
    cells = lay_out(matrix, blocks)
    expected = matrix.reblocked(*blocks, scratch=tmp_path)
    assert cells.symmetric == expected.is_symmetric == (symmetric and blocks[0] == blocks[1])
    heights, widths = (np.diff(block_starts(*pair)) for pair in zip(matrix.shape, blocks, strict=True))
    for i in range(blocks[0]):
        for j in range(blocks[1]):
            check_block(cells, (i, j), expected.cells(i, j))
            shard = cells.find((i, j))
            row_block, column_block = (j, i) if shard.mirrored else (i, j)
            assert (shard.rows, shard.columns) == (heights[row_block], widths[column_block])
    assert cells.counts.max().item() == np.float32((5 << 40) / 3)


def test_counts_are_transformed_on_the_device(matrices: dict[bool, Matrix]) -> None:
    matrix = matrices[False]
    raw, found = (lay_out(each, (3, 3)).counts.cpu() for each in (matrix, matrix.transformed("log")))
    torch.testing.assert_close(found, torch.log1p(raw.double()).float())


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "rectangular"])
@pytest.mark.parametrize(("piece", "group"), [(1, 1), (7, 1 << 26), (1 << 25, 60), (13, 29)])
def test_pieces_and_groups_do_not_change_a_bit(
    matrices: dict[bool, Matrix],
    symmetric: bool,
    piece: int,
    group: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = lay_out(matrices[symmetric], (3, 3))
    monkeypatch.setattr(cells_module, "PIECE", piece)
    monkeypatch.setattr(cells_module, "GROUP", group)
    other = lay_out(matrices[symmetric], (3, 3))
    for name in ("slots", "positions", "counts"):
        assert torch.equal(getattr(other, name), getattr(whole, name)), name
    assert [other.find((i, j)) for i in range(3) for j in range(3)] == [
        whole.find((i, j)) for i in range(3) for j in range(3)
    ]


def test_positions_of_a_block_may_use_16_bits() -> None:
    shape = 3, 1 << 16
    starts = np.array([0, shape[0]]), np.array([0, shape[1]])
    cells = DeviceCells(SlotLayout(starts, 1, TILE), DEVICE)
    columns = np.array([0, 32_767, 32_768, 65_535])
    positions = (np.arange(3)[:, None] << 16 | columns).ravel().astype(np.uint32)
    expected = BlockCells(positions, np.arange(1, 13, dtype=np.float32), mirrored=False)
    cells.take(store_blocks({(0, 0): expected}, (1, 1)))
    check_block(cells, (0, 0), expected)
