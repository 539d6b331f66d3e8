"""Counts of walks: expected counts equal powers of the transition matrix, samples converge to them, bits are stable."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner
from numpy.typing import NDArray

import swivel
from message_recorder import MessageRecorder
from swivel.cli import cli
from swivel.counts.importers import WalkConfig, walks
from swivel.errors import ConfigError, CountsError

WEIGHTS: dict[str, Callable[[int], float]] = {
    "uniform": lambda t: 1.0,
    "harmonic": lambda t: 1 / t,
    "geometric": lambda t: 0.5 ** (t - 1),
}


def random_graph(nodes: int, *, directed: bool = False, weighted: bool = False, seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    table = np.triu(rng.random((nodes, nodes)) < 4 / nodes, 0 if weighted else 1).astype(float)
    if weighted:
        table *= rng.integers(1, 9, table.shape) / 4
    if directed:
        upper, lower = (rng.random(table.shape) < 0.5 for _ in range(2))
        return np.asarray(np.where(upper, table, 0) + np.where(lower, table.T, 0))
    return np.asarray(np.maximum(table, table.T))


def naive_counts(table: NDArray[np.float64], window: int, weights: str) -> NDArray[np.float64]:
    """Return the sum of w_t D P^t by dense powers."""
    degrees = table.sum(axis=1)
    step = table / np.maximum(degrees, 1e-300)[:, None]
    power, total = np.diag(degrees), np.zeros_like(table)
    for steps in range(1, window + 1):
        power = power @ step
        total += WEIGHTS[weights](steps) * power
    return total


def to_dense(matrix: Any) -> NDArray[np.float64]:
    """Return the counts in the order of the numbers that are the labels."""
    order = np.argsort([int(label) for label in matrix.rows])
    return np.asarray(matrix.to_scipy().toarray()[np.ix_(order, order)])


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(
    ("nodes", "window", "weighted"), [(2, 1, False), (23, 2, True), (150, 5, False), (67, 10, True)]
)
def test_expected_counts_are_powers_of_the_transition_matrix(
    nodes: int, window: int, weighted: bool, directed: bool, weights: str
) -> None:
    table = random_graph(nodes, directed=directed, weighted=weighted, seed=nodes)
    table[0, 1] = table[1, 0] = 1
    matrix = swivel.walk_counts(table, window=window, weights=weights)
    expected = naive_counts(table, window, weights)
    np.testing.assert_allclose(to_dense(matrix), expected, rtol=1e-5, atol=expected.max() * 2.0**-26)
    assert matrix.is_symmetric is not directed or not (table - table.T).any()
    # The edges are in the order of the rows.
    order = [int(label) for label in matrix.rows]
    np.testing.assert_array_equal(matrix.edges.toarray(), table[np.ix_(order, order)])


def test_bits_do_not_depend_on_threads_memory_or_the_place_of_the_result(tmp_path: Path) -> None:
    table = scipy.sparse.csr_array(random_graph(300, weighted=True))
    for settings in ({"window": 6}, {"window": 4, "walks_per_node": 20}, {"window": 4, "p": 0.25, "q": 4.0}):
        prints = set()
        for threads, memory in ((1, None), (2, "20MB"), (3, None)):
            options = swivel.RunOptions(threads=threads, memory=memory)
            folder = tmp_path / f"{len(settings)}-{'p' in settings}-{threads}"
            prints.add(swivel.walk_counts(table, options=options, **settings).fingerprint)
            prints.add(swivel.walk_counts(table, folder, options=options, **settings).fingerprint)
        assert len(prints) == 1


@pytest.mark.parametrize("weights", ["uniform", "harmonic"])
def test_samples_converge_to_the_expected_counts(weights: str) -> None:
    table = random_graph(40, weighted=True, seed=3)
    exact = np.zeros_like(table)
    for t in (1, 2, 3):
        # A walk of 40 nodes has 40 - t pairs of nodes that are t steps apart.
        exact += (40 - t) * (naive_counts(table, t, weights) - naive_counts(table, t - 1, weights))
    errors = []
    for walks_per_node in (20, 2000):
        counts = to_dense(swivel.walk_counts(table, window=3, weights=weights, walks_per_node=walks_per_node))
        errors.append(np.abs(counts / counts.sum() - exact / exact.sum()).sum())
    assert errors[1] < errors[0] / 5 < 0.06  # 100 times the walks: a tenth of the error


def test_p_and_q_bias_the_walks() -> None:
    # 0 - 1 - 2, and a triangle 2 - 3 - 4: from 0 over 1, the walk returns to 0 or goes on to 2, which 0 does not know.
    pairs = [("0", "1"), ("1", "2"), ("2", "3"), ("3", "4"), ("4", "2")]

    def share_of_returns(**settings: Any) -> float:
        matrix = swivel.walk_counts(pairs, window=2, walks_per_node=4000, **settings)
        # Pairs two steps apart; 0 and 2 have no edge, 0 and 0 neither.
        returns, onward = matrix.count("0", "0"), 2 * matrix.count("0", "2")
        return returns / (returns + onward)

    # From 0, the second step returns with the weight 1/p and goes on with 1/q. Seen from 2, the walk comes to 0 by 1
    # with 1/q, against 1/p for the return; all other ways are counted alike.
    assert share_of_returns(p=100.0, q=1.0) < share_of_returns() < share_of_returns(p=0.01, q=1.0)
    assert share_of_returns(p=1.0, q=0.01) < share_of_returns() < share_of_returns(p=1.0, q=100.0)


def test_extreme_p_and_q_take_the_only_step_that_there_is() -> None:
    # A walk on a line has to return from its ends, whatever p is, and the walks of a directed line never return.
    line = [(str(node), str(node + 1)) for node in range(20)]
    for sides, p, q in (("undirected", 1e20, 1.0), ("same", 1e-20, 1.0), ("same", 1.0, 1e-20)):
        matrix = swivel.walk_counts(line, window=2, walks_per_node=5, p=p, q=q, sides=sides)
        assert matrix.count("3", "4") > 0
    # From 19 the walk goes on to the end, and from there it returns: not as often as it comes without p.
    assert swivel.walk_counts(line, window=2, walks_per_node=50, p=1e20).count("0", "0") == 0


def test_steps_by_all_edges_have_the_same_shares_as_those_by_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    from swivel.counts.importers import walk_kernels as kernels

    table = scipy.sparse.csr_array(random_graph(12, weighted=True, seed=4))
    starts, ends = table.indptr.astype(np.int64), table.indices.astype(np.uint32)
    sums = np.cumsum(table.data)
    node = int(np.diff(starts).argmax())
    previous = int(ends[starts[node]])
    edges = slice(starts[node], starts[node + 1])
    factors = [kernels._bias(starts, ends, previous, end, 4.0, 0.25) for end in ends[edges]]
    shares = table.data[edges] * factors
    states = np.arange(20_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    picks = [kernels._pick_biased(starts, ends, sums, node, previous, 4.0, 0.25, state) for state in states]
    found = np.bincount(np.array(picks) - starts[node], minlength=len(factors)) / states.size
    np.testing.assert_allclose(found, shares / shares.sum(), atol=0.015)


def test_the_sample_of_expected_counts_of_large_graphs_is_bounded() -> None:
    size = 300_000
    ring = scipy.sparse.eye_array(size, k=1, format="csr") + scipy.sparse.eye_array(size, k=-1, format="csr")
    graph = walks.make_graph(list(map(str, range(size))), (*ring.tocoo().coords, ring.tocoo().data), "mirrored")
    blocks = walks.Blocks(graph, WalkConfig(walks=2))
    tracemalloc.start()
    walks.sample_counts(blocks, is_directed=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3.2 * 8 * walks.MAX_SAMPLED_COUNTS


def test_sampled_walks_follow_edges_and_end_where_there_are_none() -> None:
    table = scipy.sparse.csr_array(random_graph(30, directed=True, seed=2))
    graph = walks.make_graph(list(map(str, range(30))), (*table.tocoo().coords, table.tocoo().data), "same")
    ids = np.concatenate(list(walks.sample_walks(graph, WalkConfig(walks=2), 500, 12, threads=2))).astype(np.int64)
    breaks = np.flatnonzero(ids == 0xFFFFFFFF)
    assert breaks.size == 500
    for walk in np.split(ids, breaks + 1)[:-1]:
        nodes = walk[:-1]
        assert nodes.size <= 12 and (graph.adjacency.toarray()[nodes[:-1], nodes[1:]] > 0).all()
        assert nodes.size == 12 or graph.out_degrees[nodes[-1]] == 0


def test_small_expected_counts_are_omitted() -> None:
    table = random_graph(60)
    full = to_dense(swivel.walk_counts(table, window=4))
    part = to_dense(swivel.walk_counts(table, window=4, smallest_count=0.05))
    np.testing.assert_allclose(part, np.where(full >= 0.05, full, 0), rtol=1e-5)


def test_the_size_of_expected_counts_is_said_before_they_are_computed() -> None:
    progress = MessageRecorder()
    matrix = swivel.walk_counts(random_graph(800, seed=5), window=4, progress=progress)
    said = next(re.search(r"([\d.]+) MiB of disk for walking", line) for line in progress.lines if "walking" in line)
    # 16 bytes for each cell on one side of the diagonal, from a sample of nodes.
    assert said is not None
    assert float(said[1]) == pytest.approx(8 * matrix.cell_count / 2**20, rel=0.1)


def test_graphs_with_too_many_cells_keep_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_graph(200)
    full = swivel.walk_counts(table, window=5)
    monkeypatch.setattr(walks, "MAX_CELLS", 2_000)
    few = swivel.walk_counts(table, window=5)
    assert 3_000 < few.cell_count < 5_000 < full.cell_count / 3


def test_the_window_is_one_if_a_node_is_connected_to_most_others() -> None:
    for leaves, others, expected in ((1_200, 800, 1), (900, 1_100, 10), (900, 50, 10)):
        star = [("hub", f"leaf {leaf}") for leaf in range(leaves)]
        ring = [(f"other {node}", f"other {(node + 1) % others}") for node in range(others)]
        matrix = swivel.walk_counts([*star, *ring])
        assert (matrix.cell_count == matrix.edges.nnz) == (expected == 1)


def test_graphs_that_take_too_long_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "MAX_OPERATIONS", 1_000)
    sampled = swivel.walk_counts(random_graph(50), window=3)
    assert sampled.unit == 1  # whole counts
    assert swivel.walk_counts(random_graph(50), window=3, smallest_count=0.0).unit > 1


def test_a_finished_folder_is_returned_and_other_walks_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.edges"
    file.write_text("a b\nb c\n")
    first = swivel.walk_counts(file, tmp_path / "matrix", window=2)
    assert swivel.walk_counts(file, tmp_path / "matrix", window=2).fingerprint == first.fingerprint
    np.testing.assert_array_equal(first.edges.toarray(), swivel.open_matrix(tmp_path / "matrix").edges.toarray())
    with pytest.raises(swivel.SwivelError, match=r"finished already with other settings \(graph.walks\)"):
        swivel.walk_counts(file, tmp_path / "matrix", window=3)


def test_the_command_counts_walks(tmp_path: Path) -> None:
    (tmp_path / "a.edges").write_text("a b\nb c\n")
    arguments = ["import", str(tmp_path / "a.edges"), "--walks", "2", "-o", str(tmp_path / "matrix")]
    assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0
    matrix = swivel.open_matrix(tmp_path / "matrix")
    assert (matrix.count("a", "b"), matrix.count("a", "c"), matrix.count("b", "b")) == (1, 0.5, 2)


def test_mistakes_are_refused() -> None:
    pairs = [("a", "b")]
    with pytest.raises(ConfigError, match="p has no effect without walks"):
        swivel.import_counts(pairs, p=2.0)
    with pytest.raises(ConfigError, match="walks need a graph, whose rows and columns are the same: omit sides"):
        swivel.walk_counts(pairs, sides="apart")
    with pytest.raises(ConfigError, match="sampled walks have no geometric step_weights"):
        swivel.walk_counts(pairs, weights="geometric", walks_per_node=2)
    with pytest.raises(ConfigError, match="step_weights must be one of uniform, harmonic, geometric"):
        swivel.walk_counts(pairs, weights="linear")
    with pytest.raises(CountsError, match="the counts are not mirrored"):
        swivel.walk_counts(np.array([[0, 1], [2, 0]]), sides="mirrored")
