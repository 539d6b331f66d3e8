"""Matrices, steps and runs for the tests of data that is larger than the device."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.counts.block_layout import Layout
from swivel.counts.builder import to_units
from swivel.counts.matrix_cells import MatrixCells
from swivel.counts.shards import make_piece
from swivel.training.backends import BackendSettings, ParameterBlock, Step, ZeroSampling
from swivel.training.backends.base import Starts
from swivel.training.backends.triton.backend import TritonBackend
from swivel.training.backends.triton.device_cells import EntryArrays
from swivel.training.backends.triton.launch import Batch, StepLauncher
from swivel.training.backends.triton.memory_plan import DeviceMemoryEstimate
from swivel.training.objective import Loss
from swivel.training.schedule import block_starts, rounds_in_groups

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIM = 6
UNIT = 2520
# Shape, stored blocks, trained blocks; the sizes are not multiples of the numbers of blocks.
MATRICES = {
    "symmetric": ((37, 37), (3, 3), (4, 4)),
    "rectangular": ((37, 31), (3, 2), (5, 3)),
    "tiny": ((5, 3), (1, 1), (3, 2)),
}

each_kind = pytest.mark.parametrize("kind", ["symmetric", "rectangular"])
with_plain_steps = pytest.mark.usefixtures("plain")


def store(counts: NDArray[np.float64], blocks: tuple[int, int], symmetric: bool) -> MatrixCells:
    """Return cells in stored blocks; for a symmetric matrix only the upper ones. One count is above 2^32 units."""
    lengths: list[int] = []
    positions = []
    units = []

    for i in range(blocks[0]):
        for j in range(blocks[1]):
            part = counts[i :: blocks[0], j :: blocks[1]] * (not symmetric or i <= j)
            rows, columns = np.nonzero(part)
            positions.append((rows << 16 | columns).astype(np.uint32))
            units.append(to_units(part[rows, columns], UNIT))
            lengths.append(len(rows))

    arrays = make_piece(np.array(lengths), np.concatenate(positions), np.concatenate(units))
    layout = Layout(len(counts), counts.shape[1], *blocks, symmetric)
    return MatrixCells(layout, arrays, UNIT)


@cache
def make_matrix(kind: str) -> tuple[MatrixCells, tuple[int, int]]:
    """Return the stored cells, and the numbers of row blocks and column blocks to train."""
    rng = np.random.default_rng(5)
    shape, stored, blocks = MATRICES[kind]
    common = 1 / np.sqrt(1 + np.arange(shape[0])[:, None]) / np.sqrt(1 + np.arange(shape[1]))
    counts = rng.lognormal(0, 1, shape) * (rng.random(shape) < 3 * common)
    counts[0, 0] = 2.0**32 / UNIT + 1
    if kind == "symmetric":
        counts = np.triu(counts) + np.triu(counts, 1).T
    return store(counts, stored, kind == "symmetric"), blocks


def make_sides(kind: str) -> tuple[ParameterBlock, ParameterBlock]:
    rng = np.random.default_rng(6)

    def side(size: int) -> ParameterBlock:
        vectors = rng.normal(0, 0.4, (size, DIM)).astype(np.float32)
        return ParameterBlock(vectors, np.full(size, 1e-3, np.float32), rng.normal(0, 1, size).astype(np.float32))

    layout = make_matrix(kind)[0].layout
    return side(layout.rows), side(layout.columns)


def make_starts(kind: str) -> Starts:
    stored, (rows, columns) = make_matrix(kind)
    return block_starts(stored.layout.rows, rows), block_starts(stored.layout.columns, columns)


def make_needs(kind: str) -> DeviceMemoryEstimate:
    stored = make_matrix(kind)[0]
    settings = BackendSettings(TrainConfig(), ZeroSampling(), device=DEVICE)
    settings = replace(settings, cells=len(stored.arrays.counts), is_halved=stored.layout.symmetric)
    return DeviceMemoryEstimate(settings, make_starts(kind), DIM)


def make_backend(memory: int | None = None, groups: tuple[int, int] | None = None) -> TritonBackend:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    return TritonBackend(replace(settings, device=DEVICE, memory=memory, groups=groups))


def hand_over(backend: TritonBackend, kind: str) -> None:
    backend.hold(*make_sides(kind), make_starts(kind))
    backend.take(make_matrix(kind)[0])  # type: ignore[arg-type]


Run = tuple[list[bytes], list[Loss]]


def run_epochs(backend: TritonBackend, kind: str, groups: tuple[int, int], epochs: int = 2) -> Run:
    """Run epochs in the order of groups; return the bits of the parameters, and the losses."""

    count = make_matrix(kind)[1]
    orders = [rounds_in_groups(*count, *groups, (4, number)) for number in range(epochs)]

    losses: list[Loss] = []
    for number, order in enumerate(orders):
        backend.announce([round for later in orders[number:] for round in later])
        for round in order:
            steps = [Step(block, 0.1, (number, *block)) for block in round]
            losses += backend.run(steps, lambda: False)()

    return bits(backend), losses


def bits(backend: TritonBackend) -> list[bytes]:
    return [array.tobytes() for side in backend.fetch() for array in (side.vectors, side.state, side.offsets)]


class PlainLauncher(StepLauncher):
    """Replaces the kernels: a fast step on the CPU whose result depends on every parameter and every entry."""

    def run(
        self,
        batch: Batch,
        learning_rate: float,
        cells: EntryArrays,
        totals: torch.Tensor,
        accumulator_decay: float | None,
    ) -> None:
        slots, positions, counts = cells
        totals.zero_()
        for number, (x0, height, y0, width, first, last, _) in enumerate(batch.table.tolist()):
            places = positions[first:last].to(torch.int64) % (height * width)
            weighted = counts[first:last] * (1 + slots[first:last] % 3)
            pull = torch.zeros(height * width).index_add_(0, places, weighted).view(height, width)
            rows, columns = slice(x0, x0 + height), slice(y0, y0 + width)
            totals[number, 0] = self._update(rows, columns, pull, learning_rate)

    def _update(self, rows: slice, columns: slice, pull: torch.Tensor, rate: float) -> float:
        p, dim = self.parameters, self.layout.dim
        x, y = p.mirror[rows, :dim].clone(), p.mirror[columns, :dim].clone()
        gradient = torch.sigmoid(x @ y.T - p.offsets[rows, None] - p.offsets[columns]) - 0.01 * pull
        for where, part in ((rows, gradient @ y), (columns, gradient.T @ x)):
            p.state[where] += (part**2).mean(1)
            p.vectors[where] -= rate * part / p.state[where].sqrt()[:, None]
            p.mirror[where, :dim] = p.vectors[where]
        return float(gradient.sum())


@cache
def run_resident(kind: str, groups: tuple[int, int]) -> Run:
    backend = make_backend(groups=groups)
    hand_over(backend, kind)
    assert not backend.is_streaming
    assert not backend.is_swapping
    return run_epochs(backend, kind, groups)
