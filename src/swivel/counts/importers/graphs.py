"""Read graphs: objects of networkx, igraph and PyTorch Geometric, and GraphML and GML files, which networkx parses.

A graph becomes counts of its nodes with each other: the weight of an edge, 1 without weights, and the sum of parallel
edges. Undirected edges count in both orders. Nodes without edges are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import to_label
from swivel.counts.block_layout import Ints
from swivel.counts.importers.context import PIECE, ImportChunk, ImportContext, number_places
from swivel.errors import ConfigError, CountsError, needs_extra

NO_PARTS = "sides apart needs a bipartite graph: nodes with the attribute 'bipartite' (networkx) or 'type' (igraph)"


class Edges(NamedTuple):
    """The edges of a graph, by the positions of their nodes."""

    labels: list[Any] | None  # of all nodes; None: their positions
    nodes: int
    ends: Ints  # of shape (2, edges): the source and the target of each edge
    weights: Any  # one number per edge; None if all are 1
    sides: str  # relation of rows and columns: same (directed), mirrored or undirected
    parts: NDArray[np.bool_] | None = None  # of a bipartite graph: whether a node is in the second part


def is_graph(source: Any) -> bool:
    """Return whether an object is a graph of networkx, igraph or PyTorch Geometric; none of them is imported."""
    return _name_library(source) is not None


def _name_library(source: Any) -> str | None:
    # A subclass in another module, as of a user, is a graph, too.
    for kind in type(source).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in ("networkx", "igraph") and kind.__name__.endswith("Graph"):
            return library
    has_edges = hasattr(source, "edge_index") or hasattr(source, "edge_types")
    return "torch_geometric" if has_edges and hasattr(source, "num_nodes") else None


def read_graph(graph: Any, context: ImportContext, name: str = "the graph") -> Iterator[ImportChunk]:
    """Yield the edges of a graph object."""
    library = _name_library(graph)
    if library == "networkx":
        edges = _list_networkx(graph)
    elif library == "igraph":
        edges = _list_igraph(graph)
    else:
        edges = _list_geometric(graph)

    if edges.labels is not None:
        if context.row_labels is not None or context.column_labels is not None:
            raise ConfigError("row_labels and column_labels are for matrices; this graph has its own labels")
        context.row_labels = list(map(to_label, edges.labels))  # `label_positions` rejects what is no id
    if context.config.sides is None:
        context.sides = edges.sides

    ends = edges.ends
    if context.sides == "apart":
        ends = _part_nodes(edges, context, name)
    else:
        context.set_shape(edges.nodes, edges.nodes, name)

    counts = None if edges.weights is None else _as_numbers(edges.weights, name)
    for first in range(0, ends.shape[1], PIECE):
        piece = slice(first, first + PIECE)
        place = number_places(name, "edge", first)
        yield ImportChunk(ends[0, piece], ends[1, piece], None if counts is None else counts[piece], place)
        context.task.advance(min(PIECE, ends.shape[1] - first))


def _as_numbers(weights: Any, name: str) -> NDArray[np.float64]:
    with contextlib.suppress(TypeError, ValueError):
        return np.asarray(weights, np.float64)
    for index, weight in enumerate(weights):
        if isinstance(weight, (str, bytes)) or not hasattr(weight, "__float__"):
            raise CountsError(f"{name}, edge {index + 1:,}: the weight {weight!r} is not a number")
    raise CountsError(f"{name}: the weights are not numbers")


def _part_nodes(edges: Edges, context: ImportContext, name: str) -> Ints:
    """Make the first part of a bipartite graph the rows and the second the columns; return the ends of its edges."""
    second = edges.parts
    if second is None:
        raise ConfigError(NO_PARTS, argument="sides")

    ends = np.where(second[edges.ends[0]], edges.ends[::-1], edges.ends)  # the row first
    if second[ends[0]].any() or not second[ends[1]].all():
        raise CountsError(f"{name}: not bipartite: an edge connects two nodes of the same part")

    labels = np.empty(edges.nodes, object)
    labels[:] = context.row_labels if context.row_labels is not None else list(map(str, range(edges.nodes)))
    context.row_labels, context.column_labels = labels[~second].tolist(), labels[second].tolist()
    context.set_shape(int((~second).sum()), int(second.sum()), name)
    places = np.where(second, np.cumsum(second), np.cumsum(~second)) - 1
    return np.asarray(places[ends])


def _list_networkx(graph: Any) -> Edges:
    nodes = list(graph)
    ids = {node: number for number, node in enumerate(nodes)}
    triples = list(graph.edges(data="weight", default=1))
    ends = np.array([(ids[source], ids[target]) for source, target, _ in triples], np.int64).reshape(-1, 2).T
    parts = [part for _, part in graph.nodes(data="bipartite")]
    second = np.array([bool(int(part)) for part in parts]) if nodes and None not in parts else None
    sides = "same" if graph.is_directed() else "undirected"
    return Edges(nodes, len(nodes), ends, [weight for *_, weight in triples], sides, second)


def _list_igraph(graph: Any) -> Edges:
    names = graph.vs.attributes()
    labels = graph.vs["name"] if "name" in names else None
    second = np.array(graph.vs["type"], bool) if "type" in names else None
    weights = graph.es["weight"] if "weight" in graph.es.attributes() else None
    ends = np.array(graph.get_edgelist(), np.int64).reshape(-1, 2).T
    return Edges(labels, graph.vcount(), ends, weights, "same" if graph.is_directed() else "undirected", second)


def _list_geometric(graph: Any) -> Edges:
    if not hasattr(graph, "edge_index"):
        raise CountsError("the graph has several kinds of nodes or edges: pass what its to_homogeneous() returns")

    # Graphs from networkx have `weight`; `edge_attr` may be features of edges instead of one number for each.
    found = (getattr(graph, name, None) for name in ("edge_weight", "weight", "edge_attr"))
    weights = next((each for each in found if each is not None), None)
    if weights is not None:
        weights = np.asarray(weights)
        weights = weights.reshape(-1) if weights.size == len(weights) else None

    # PyTorch Geometric stores undirected edges in both orders.
    sides = "mirrored" if graph.is_undirected() else "same"
    return Edges(None, int(graph.num_nodes), np.asarray(graph.edge_index, np.int64), weights, sides)


def read_graphml(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the edges of a GraphML file."""
    return _read_file(file, context, "graphml")


def read_gml(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the edges of a GML file."""
    return _read_file(file, context, "gml")


def _read_file(file: Path, context: ImportContext, format: str) -> Iterator[ImportChunk]:
    with needs_extra("GraphML and GML", "networkx", "graphs"):
        import networkx

    try:
        graph = networkx.read_graphml(file) if format == "graphml" else networkx.read_gml(file)
    except OSError:
        raise
    except Exception as error:  # Parsers raise any class of error.
        raise CountsError(f"{file}: not {format.upper()}, or damaged ({error})") from error
    return read_graph(graph, context, str(file))
