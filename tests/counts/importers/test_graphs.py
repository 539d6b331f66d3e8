"""Graphs: every format and library gives the same matrix, with all nodes, directions and weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch

import swivel
from import_sources import counts_of, write_text
from swivel.errors import ConfigError, CountsError

# Four nodes with edges, a loop, and one node without edges.
EDGES = [("ann", "bob", 2.0), ("bob", "cid", 1.0), ("cid", "ann", 0.5), ("cid", "dan", 1.0), ("dan", "dan", 3.0)]
NODES = ["ann", "bob", "cid", "dan", "eve"]
EXPECTED = {(a, b): x for a, b, x in EDGES} | {(b, a): x for a, b, x in EDGES}


def make_graph(kind: Any = nx.Graph) -> Any:
    graph = kind()
    graph.add_nodes_from(NODES)
    graph.add_weighted_edges_from(EDGES)
    return graph


class Graph:
    """What the importer uses of `igraph.Graph`."""

    __module__ = "igraph"

    def __init__(self, *, directed: bool = False, named: bool = True) -> None:
        self.vs = Attributes({"name": NODES} if named else {})
        self.es = Attributes({"weight": [weight for *_, weight in EDGES]})
        self.directed = directed

    def vcount(self) -> int:
        return len(NODES)

    def is_directed(self) -> bool:
        return self.directed

    def get_edgelist(self) -> list[tuple[int, int]]:
        return [(NODES.index(a), NODES.index(b)) for a, b, _ in EDGES]


class Attributes(dict[str, list[Any]]):
    def attributes(self) -> list[str]:
        return list(self)


def geometric(*, undirected: bool = True) -> Any:
    """Return what the importer uses of `torch_geometric.data.Data`."""
    pairs = {**EXPECTED} if undirected else {(a, b): x for a, b, x in EDGES}
    index = torch.tensor([[NODES.index(a), NODES.index(b)] for a, b in pairs]).T
    return SimpleNamespace(
        edge_index=index,
        edge_attr=torch.tensor(list(pairs.values()))[:, None],
        num_nodes=len(NODES),
        is_undirected=lambda: undirected,
    )


def write_networkx(path: Path, write: Callable[[Any, Path], None], graph: Any = None) -> Path:
    write(make_graph() if graph is None else graph, path)
    return path


FILES: dict[str, Callable[[Path], Path]] = {
    "default.edges": lambda path: write_networkx(path, nx.write_edgelist),
    "tabs.edges": lambda path: write_networkx(path, lambda graph, file: nx.write_edgelist(graph, file, delimiter="\t")),
    "weighted.edgelist": lambda path: write_networkx(path, nx.write_weighted_edgelist),
    "packed.edges.gz": lambda path: write_networkx(path, nx.write_edgelist),
    "a.graphml": lambda path: write_networkx(path, nx.write_graphml),
    "a.gml": lambda path: write_networkx(path, nx.write_gml),
}


@pytest.mark.parametrize("name", FILES)
def test_every_file_gives_the_same_counts(name: str, tmp_path: Path) -> None:
    matrix = swivel.import_counts(FILES[name](tmp_path / name), tmp_path / "matrix")
    assert counts_of(matrix) == EXPECTED
    assert matrix.is_symmetric


@pytest.mark.parametrize("graph", [make_graph(), make_graph(nx.MultiGraph), Graph()], ids=["nx", "multi", "igraph"])
def test_every_object_gives_the_same_counts_and_keeps_nodes_without_edges(graph: Any) -> None:
    matrix = swivel.import_counts(graph)
    assert counts_of(matrix) == EXPECTED
    assert sorted(matrix.rows) == NODES and matrix.rows[-1] == "eve"


def test_nodes_of_pytorch_geometric_are_positions_or_have_labels() -> None:
    assert counts_of(swivel.import_counts(geometric(), row_labels=NODES)) == EXPECTED
    assert sorted(swivel.import_counts(geometric()).rows) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("graph", [make_graph(nx.DiGraph), Graph(directed=True)], ids=["nx", "igraph"])
def test_directions_are_kept(graph: Any) -> None:
    matrix = swivel.import_counts(graph)
    assert counts_of(matrix) == {(a, b): x for a, b, x in EDGES}
    assert matrix.columns is matrix.rows and not matrix.is_symmetric
    assert counts_of(swivel.import_counts(graph, sides="undirected")) == EXPECTED


def test_directions_of_pytorch_geometric_are_kept() -> None:
    matrix = swivel.import_counts(geometric(undirected=False), row_labels=NODES)
    assert counts_of(matrix) == {(a, b): x for a, b, x in EDGES}


@pytest.mark.heavy
@pytest.mark.parametrize("directed", [False, True])
def test_graphs_of_igraph_itself_give_the_same_counts(directed: bool) -> None:
    igraph = pytest.importorskip("igraph")
    graph = igraph.Graph.TupleList(EDGES, directed=directed, weights=True)
    graph.add_vertex("eve")
    matrix = swivel.import_counts(graph)
    assert counts_of(matrix) == ({(a, b): x for a, b, x in EDGES} if directed else EXPECTED)
    assert sorted(matrix.rows) == NODES
    assert counts_of(swivel.import_counts(igraph.Graph([(0, 1)], n=3))) == {("0", "1"): 1, ("1", "0"): 1}
    assert swivel.import_counts(igraph.Graph.Full_Bipartite(2, 3), sides="apart").shape == (2, 3)


@pytest.mark.heavy
def test_graphs_of_pytorch_geometric_itself_give_the_same_counts() -> None:
    data = pytest.importorskip("torch_geometric.data")
    utils = pytest.importorskip("torch_geometric.utils")
    for undirected in (False, True):
        parts = geometric(undirected=undirected)
        expected = EXPECTED if undirected else {(a, b): x for a, b, x in EDGES}
        for name in ("edge_attr", "edge_weight"):
            graph = data.Data(edge_index=parts.edge_index, num_nodes=5, **{name: parts.edge_attr})
            assert counts_of(swivel.import_counts(graph, row_labels=NODES)) == expected
    assert counts_of(swivel.import_counts(utils.from_networkx(make_graph()), row_labels=NODES)) == EXPECTED
    kinds = data.HeteroData(user={"num_nodes": 2}, film={"num_nodes": 3})
    kinds["user", "likes", "film"].edge_index = torch.tensor([[0, 1], [1, 2]])
    assert counts_of(swivel.import_counts(kinds.to_homogeneous())) == {("0", "3"): 1, ("1", "4"): 1}
    with pytest.raises(CountsError, match="several kinds of nodes or edges"):
        swivel.import_counts(kinds)
    features = data.Data(edge_index=parts.edge_index, num_nodes=5, edge_attr=torch.ones(len(EXPECTED), 4))
    assert counts_of(swivel.import_counts(features, row_labels=NODES)) == dict.fromkeys(EXPECTED, 1)


def test_parallel_edges_are_summed() -> None:
    graph = nx.MultiGraph([("a", "b"), ("a", "b"), ("b", "c")])
    assert swivel.import_counts(graph).count("a", "b") == 2


def test_edges_without_weights_count_one(tmp_path: Path) -> None:
    file = write_networkx(tmp_path / "a.edges", nx.write_edgelist, nx.Graph([(1, 2), (2, 3)]))
    assert file.read_text() == "1 2 {}\n2 3 {}\n"
    pairs = {("1", "2"): 1, ("2", "1"): 1, ("2", "3"): 1, ("3", "2"): 1}
    assert counts_of(swivel.import_counts(file)) == pairs
    assert counts_of(swivel.import_counts(nx.Graph([(1, 2), (2, 3)]))) == pairs


def test_other_attributes_of_an_edge_are_skipped(tmp_path: Path) -> None:
    graph = nx.Graph()
    graph.add_edge("a", "b", color="red, blue", weight=3)
    graph.add_edge("b", "c", since=1999)
    matrix = swivel.import_counts(write_networkx(tmp_path / "a.edges", nx.write_edgelist, graph))
    assert (matrix.count("a", "b"), matrix.count("b", "c")) == (3, 1)


def test_a_bipartite_graph_becomes_a_table_if_asked() -> None:
    graph = nx.Graph()
    graph.add_nodes_from(["ann", "bob"], bipartite=0)
    graph.add_nodes_from(["tea", "jam"], bipartite=1)
    graph.add_edges_from([("ann", "tea"), ("jam", "bob"), ("bob", "tea")])
    table = swivel.import_counts(graph, sides="apart")
    assert counts_of(table) == {("ann", "tea"): 1, ("bob", "jam"): 1, ("bob", "tea"): 1}
    assert swivel.import_counts(graph).shape == (4, 4)

    graph.add_edge("ann", "bob")
    with pytest.raises(CountsError, match="not bipartite: an edge connects two nodes of the same part"):
        swivel.import_counts(graph, sides="apart")
    with pytest.raises(ConfigError, match="sides apart needs a bipartite graph"):
        swivel.import_counts(make_graph(), sides="apart")


def test_bad_graphs_are_refused_in_one_line(tmp_path: Path) -> None:
    graph = nx.Graph()
    graph.add_edge("a", "b", weight="heavy")
    with pytest.raises(CountsError, match="the graph, edge 1: the weight 'heavy' is not a number"):
        swivel.import_counts(graph)
    graph["a"]["b"]["weight"] = -1
    with pytest.raises(CountsError, match="the graph, edge 1: the count -1 is negative"):
        swivel.import_counts(graph)
    with pytest.raises(ConfigError, match="this graph has its own labels"):
        swivel.import_counts(make_graph(), row_labels=NODES)
    with pytest.raises(CountsError, match="label 1: labels must be strings or integers, got float"):
        swivel.import_counts(nx.Graph([(0.5, 1)]))
    with pytest.raises(CountsError, match=r"several kinds of nodes or edges: pass what its to_homogeneous\(\) returns"):
        swivel.import_counts(SimpleNamespace(edge_types=[("user", "likes", "film")], num_nodes=5))
    for name in ("a.graphml", "a.gml"):
        with pytest.raises(CountsError, match=f"{name}: not {name[2:].upper()}, or damaged"):
            swivel.import_counts(write_text(tmp_path / name, "no graph"))


def test_nodes_may_be_tuples_as_in_every_other_source() -> None:
    grid = nx.grid_2d_graph(2, 2)
    assert counts_of(swivel.import_counts(grid)) == counts_of(swivel.import_counts(grid.edges, sides="undirected"))
    assert swivel.import_counts(grid).count("(0, 0)", "(0, 1)") == 1


def test_edges_of_networkx_are_read_with_their_attributes() -> None:
    graph = make_graph()
    graph.remove_node("eve")
    for edges in (graph.edges(data=True), graph.edges(data="weight"), graph.edges):
        assert counts_of(swivel.import_counts(edges, sides="undirected")) == EXPECTED


def test_walks_of_every_source_are_the_same(tmp_path: Path) -> None:
    expected = counts_of(swivel.walk_counts(make_graph(), window=3))
    adjacency = nx.to_scipy_sparse_array(make_graph())
    sources: list[Any] = [EDGES, FILES["a.gml"](tmp_path / "a.gml"), FILES["default.edges"](tmp_path / "a.edges")]
    sources += [Graph(), {(a, b): x for a, b, x in EDGES}]
    for source in sources:
        assert counts_of(swivel.walk_counts(source, window=3)) == expected
    for matrix in (adjacency, scipy.sparse.triu(adjacency), np.array(adjacency.todense())):
        assert counts_of(swivel.walk_counts(matrix, window=3, row_labels=NODES)) == expected
