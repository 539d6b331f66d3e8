"""Counts of the nodes that are on one random walk: expected counts, computed exactly, or sampled walks.

The expected counts are the sum over steps r of w_r D P^r, with the transition matrix P and the degrees D: the number of
times that a walk from i is at j after r steps, for as many walks from each node as its degree. They are symmetric if
the graph is. Blocks of nodes are advanced step by step, as dense vectors. Larger graphs are sampled: the walks are
written as a corpus of token ids, which is counted as text is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.corpus.vocabulary import BREAK, Vocabulary
from swivel.counts.block_layout import Ints
from swivel.counts.builder import MatrixBuilder, MatrixSpec, building_bytes
from swivel.counts.importers.context import CellSpill, ImportChunk, number_places
from swivel.counts.importers.import_config import WalkConfig
from swivel.counts.matrix import Matrix
from swivel.errors import ConfigError, CountsError
from swivel.runtime.options import RunOptions
from swivel.runtime.parallel import map_in_order
from swivel.runtime.progress import track
from swivel.runtime.resources import ResourceEstimate
from swivel.storage.arrays import ArrayAppender
from swivel.storage.lock import scratch_folder

# Longest walk that is counted, if it is not given: 1 if a node is connected to so large a share of all nodes that two
# steps lead from nearly every node to every other one (experiments/graphs.md).
WINDOW = 10
HUB_SHARE = 0.5
MIN_HUB_NODES = 1_000  # of a graph to which this applies
# Expected counts take nodes x edges x steps multiplications, about 2 billion a second on each core.
MAX_OPERATIONS = 2e12
MAX_CELLS = 1 << 27  # stored expected counts, of 8 bytes
SAMPLED_NODES = 256  # whose counts show how many are small; fewer if these would be too many counts
MAX_SAMPLED_COUNTS = 1 << 24
MAX_RANGE = 2.0**27  # between the largest and the smallest expected count
_LANES = 64  # nodes of a block
_BLOCK_ARRAYS = 3  # of nodes x lanes float64
_SPILL_BYTES = 16  # of an expected count, before the matrix is built

WALK_LENGTH = 40  # nodes of a sampled walk
MAX_WALKS_PER_NODE = 80
MAX_PAIRS = 1 << 30  # of a node and a later one on the same walk, unless there is one walk per node
_WALKS_PER_PIECE = 1 << 14


class Graph(NamedTuple):
    """The edges of a graph between nodes in descending order of their degrees."""

    nodes: Vocabulary
    adjacency: Any  # a csr array, with both orders of an edge that has no direction
    is_directed: bool

    @property
    def out_degrees(self) -> NDArray[np.float64]:
        """Sums of the weights of the edges that leave each node."""
        return np.asarray(self.adjacency.sum(axis=1)).ravel()


def make_graph(labels: list[str], cells: tuple[Ints, Ints, NDArray[np.float64]], sides: str | None) -> Graph:
    """Return the graph of cells (rows, columns, counts).

    `sides` is the relation of rows and columns. None is a matrix: one that is not symmetric is directed, or has every
    pair once if it is triangular.
    """
    import scipy.sparse

    rows, columns, counts = cells
    table = scipy.sparse.csr_array((counts, (rows, columns)), shape=(len(labels), len(labels)))
    is_symmetric = (table != table.T).nnz == 0
    if sides is None:
        is_triangular = bool((rows <= columns).all() or (rows >= columns).all())
        sides = "undirected" if is_triangular else "same"
        sides = "mirrored" if is_symmetric else sides
    if sides == "mirrored" and not is_symmetric:
        raise CountsError(
            "the counts are not mirrored: some x_ij differs from x_ji; pass sides='undirected' if each pair is given "
            "once, sides='same' if edges have a direction"
        )
    if sides == "undirected":
        table = table + table.T - scipy.sparse.diags_array(table.diagonal())

    is_directed = sides == "same"
    degrees = table.sum(axis=1) + table.sum(axis=0) if is_directed else table.sum(axis=1)
    order = np.argsort(-degrees, kind="stable")
    adjacency = scipy.sparse.csr_array(table[order][:, order])
    adjacency.sort_indices()
    degree_counts = np.ceil(degrees[order]).astype(np.int64)
    nodes = Vocabulary([labels[node] for node in order.tolist()], degree_counts.tolist())
    return Graph(nodes, adjacency, is_directed)


def count_walks(graph: Graph, config: WalkConfig, path: Path, record: Mapping[str, Any], options: RunOptions) -> Matrix:
    """Count the nodes of walks and return the matrix, in the folder `path`; it also has the edges of the graph.

    `record` has the `config`, `inputs` and `facts` of the manifest.
    """
    if not graph.adjacency.nnz:
        raise CountsError("there are no edges: a walk cannot leave any node")

    config = dataclasses.replace(config, walks=config.walks or choose_window(graph))
    operations = float(len(graph.nodes)) * graph.adjacency.nnz * ((config.walks or 1) - 1)
    record = {**record, "edges": graph.adjacency}
    if config.is_sampled or (operations > MAX_OPERATIONS and config.smallest_count is None):
        return _count_sampled(graph, config, path, record, options)
    return _count_expected(graph, config, path, record, options)


def choose_window(graph: Graph) -> int:
    """Return the longest walk that is counted if it is not given."""
    size = len(graph.nodes)
    has_hub = int(np.diff(graph.adjacency.indptr).max()) > HUB_SHARE * size
    return 1 if has_hub and size >= MIN_HUB_NODES else WINDOW


def step_weight(config: WalkConfig, steps: int) -> float:
    """Return the weight of two nodes that are so many steps apart on a walk."""
    if config.step_weights == "geometric":
        return 2.0 ** (1 - steps)
    return 1.0 / steps if config.step_weights == "harmonic" else 1.0


class Blocks:
    """Expected counts of blocks of nodes."""

    def __init__(self, graph: Graph, config: WalkConfig) -> None:
        self.size = len(graph.nodes)
        self.steps = config.walks or 1
        self._weights = [step_weight(config, steps) for steps in range(1, self.steps + 1)]
        self._adjacency = graph.adjacency
        # Row k has the probabilities of the steps that lead to node k.
        degrees = graph.out_degrees
        shares = graph.adjacency.copy()
        shares.data = graph.adjacency.data / np.repeat(degrees, np.diff(graph.adjacency.indptr))
        incoming = shares.T.tocsr()
        incoming.sort_indices()
        self._edges = incoming.indptr.astype(np.int64), incoming.indices.astype(np.int64), incoming.data

    def compute(self, first: int, last: int) -> NDArray[np.float64]:
        """Return the expected counts of the nodes `first` to `last - 1` with all nodes, of shape (nodes, block)."""
        from swivel.counts.importers import walk_kernels as kernels

        before = self._adjacency[first:last].toarray().T.copy()  # after one step
        total = self._weights[0] * before
        after = np.empty_like(before)
        for weight in self._weights[1:]:
            kernels.step(*self._edges, before, after, weight, total)
            before, after = after, before
        return np.asarray(total)


def sample_counts(blocks: Blocks, is_directed: bool) -> tuple[NDArray[np.float64], float]:
    """Return the expected counts of some nodes, ascending, and how many of the matrix each one stands for."""
    sampled = min(SAMPLED_NODES, math.ceil(MAX_SAMPLED_COUNTS / blocks.size), blocks.size)
    nodes = np.unique(np.linspace(0, blocks.size - 1, sampled).astype(np.int64))
    sample = np.concatenate([blocks.compute(node, node + 1).ravel() for node in nodes.tolist()])
    return np.sort(sample[sample > 0]), blocks.size / nodes.size * (1.0 if is_directed else 0.5)


def choose_smallest(sample: NDArray[np.float64], scale: float) -> float:
    """Return the smallest expected count to keep: as few are omitted as the largest matrix and the exact sums allow.

    `sample` and `scale` are from `sample_counts`.
    """
    smallest = float(sample.max(initial=0.0)) / MAX_RANGE
    if sample.size * scale > MAX_CELLS:
        smallest = max(smallest, float(sample[math.floor(sample.size - MAX_CELLS / scale)]))
    return float(f"{smallest:.3g}")


def _count_expected(
    graph: Graph, config: WalkConfig, path: Path, record: Mapping[str, Any], options: RunOptions
) -> Matrix:
    from swivel.counts.importers import walk_kernels as kernels

    blocks = Blocks(graph, config)
    sample, scale = sample_counts(blocks, graph.is_directed)
    smallest = config.smallest_count
    if smallest is None:
        smallest = choose_smallest(sample, scale)
    # The memory limit decides how many nodes are advanced together, which does not change their counts.
    per_node = 8 * _BLOCK_ARRAYS * blocks.size * options.thread_count
    lanes = max(min(options.memory_bytes // (2 * per_node), _LANES), 1)
    disk = int(_SPILL_BYTES * scale * (sample.size - np.searchsorted(sample, smallest)))
    walking = ResourceEstimate("walking", disk, per_node * lanes, disk, "sample walks: pass walks_per_node")
    walking.announce(path, options.progress)

    def list_cells(first: int) -> ImportChunk:
        total = blocks.compute(first, min(first + lanes, blocks.size))
        settings = first, not graph.is_directed, smallest
        size = kernels.take_cells(total, *settings, *(np.empty(0, kind) for kind in (np.int64, np.int64, np.float64)))
        arrays = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size)
        if size:
            kernels.take_cells(total, *settings, *arrays)
        return ImportChunk(*arrays, number_places("the walks", "cell", 0))

    with scratch_folder(path) as scratch:
        spill = CellSpill(scratch)
        with track(options.progress, "walking", blocks.size, "nodes") as task:
            starts = range(0, blocks.size, lanes)
            chunks = map_in_order(list_cells, starts, threads=options.thread_count)
            for start, chunk in zip(starts, chunks, strict=True):
                spill.add(chunk)
                task.advance(min(lanes, blocks.size - start))
        spill.finish("the walks")
        _report_cells(spill.length, smallest, options)

        disk, memory = building_bytes(spill.length, options.memory_bytes)
        ResourceEstimate("building", disk, memory, disk, "pass a larger smallest_count").check(path)
        spec = MatrixSpec(rows=graph.nodes, unit=spill.unit, symmetric=not graph.is_directed)
        builder = MatrixBuilder(
            path,
            spec,
            memory_bytes=options.memory_bytes,
            threads=options.thread_count,
            overwrite=options.overwrite,
        )
        with builder, track(options.progress, "building", spill.length, "cells") as task:
            for rows, columns, units in spill.pieces(options.thread_count):
                builder.add(rows, columns, units)
                if spec.symmetric:
                    apart = rows != columns
                    builder.add(columns[apart], rows[apart], units[apart])
                task.advance(units.size)
            return builder.finish(**record)


def _report_cells(cells: int, smallest: float, options: RunOptions) -> None:
    options.progress.message(f"{cells:,} expected counts of {smallest:.3g} and more")


def _count_sampled(
    graph: Graph, config: WalkConfig, path: Path, record: Mapping[str, Any], options: RunOptions
) -> Matrix:
    from swivel.counts.cooccurrence import count_tokens

    window = config.walks or 1
    if config.step_weights == "geometric":
        raise ConfigError(
            "sampled walks have no geometric step_weights; pass uniform or harmonic ones", argument="step_weights"
        )
    length = max(WALK_LENGTH, window + 1)
    size = len(graph.nodes)
    walks = config.walks_per_node
    if walks is None:
        walks = max(1, min(MAX_PAIRS // (size * length * window), MAX_WALKS_PER_NODE))

    options.progress.message(f"sampling {walks} walks of {length} nodes for each node")
    # Walks of a directed graph count what comes later only.
    counting = CountConfig(
        window=window, left=0 if graph.is_directed else None, weight=config.step_weights, columns="symmetric"
    )
    with scratch_folder(path) as scratch:
        disk = 4 * (length + 1) * walks * size
        ResourceEstimate("sampling walks", disk, 0, disk, "pass a smaller walks_per_node").announce(
            path, options.progress
        )
        file = ArrayAppender(scratch / "ids.npy", np.uint32)
        with track(options.progress, "walking", walks * size, "walks") as task:
            for ids in sample_walks(graph, config, walks * size, length, threads=options.thread_count):
                file.append(ids)
                task.advance(ids.size // (length + 1))
        file.close()
        return count_tokens(file.open(), graph.nodes, counting, path, options, record)


def sample_walks(
    graph: Graph, config: WalkConfig, walks: int, length: int, *, threads: int
) -> Iterator[NDArray[np.uint32]]:
    """Yield walks as a corpus of ids: the numbers of their nodes, with BREAK after each walk."""
    from swivel.counts.importers import walk_kernels as kernels

    adjacency = graph.adjacency
    edges = adjacency.indptr.astype(np.int64), adjacency.indices.astype(np.uint32), np.cumsum(adjacency.data)

    def sample(first: int) -> NDArray[np.uint32]:
        stop = min(first + _WALKS_PER_PIECE, walks)
        ids = np.empty((stop - first, length + 1), np.uint32)
        kernels.sample_walks(*edges, first, stop, config.walk_seed, config.p, config.q, ids)
        flat = ids.ravel()
        if graph.is_directed:  # A walk that could not go on is followed by one BREAK, as the others are.
            is_repeated = (flat[1:] == BREAK) & (flat[:-1] == BREAK)
            flat = flat[np.concatenate([[True], ~is_repeated])]
        return flat

    return map_in_order(sample, range(0, walks, _WALKS_PER_PIECE), threads=threads)
