"""Node vectors against DeepWalk, NetMF and ProNE: classes of nodes and held-out edges, with the same splits for all.

    python -m experiments.graphs GRAPH.npz --labels LABELS.npz [--methods walks edges netmf prone deepwalk]

GRAPH.npz is an adjacency matrix and LABELS.npz a matrix of nodes by labels, both of `scipy.sparse.save_npz`. The public
files of BlogCatalog, PPI, Wikipedia and DBLP are in the repositories of DeepWalk and ProNE; experiments/graphs.md says
which, and has the figures. The methods are written from their papers, in a few lines of SciPy, and not tuned.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import scipy.special
from numpy.typing import NDArray

import swivel
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.importers import WalkConfig
from swivel.counts.importers.walks import make_graph, sample_walks
from swivel.evaluation import split_table
from swivel.evaluation.links import LinkReport
from swivel.vectors import Vectors, VectorTable

DIM = 128
WINDOW = 10
WALKS_PER_NODE, WALK_LENGTH = 10, 40  # of DeepWalk

Floats = NDArray[np.float64]


def train_walks(table: Any) -> Vectors:
    """Return our vectors of the counts of walks, all settings as chosen."""
    return swivel.train(swivel.walk_counts(table))


def train_edges(table: Any) -> Vectors:
    """Return our vectors of the edges alone."""
    return swivel.train(swivel.import_counts(table, sides="mirrored"), recipe="table", dim=DIM)


def factorize(table: Any, window: int = WINDOW) -> Vectors:
    """Return vectors by NetMF: a truncated SVD of log(max(M, 1)) of the exact counts of walks."""
    matrix = swivel.walk_counts(table, window=window)
    counts = matrix.to_scipy().toarray()
    degrees = counts.sum(axis=1)
    ratios = counts * counts.sum() / np.maximum(np.outer(degrees, degrees), 1e-300)
    left, values, right = scipy.sparse.linalg.svds(np.log(np.maximum(ratios, 1)), DIM)
    return label_rows(left * np.sqrt(values), matrix.rows.tokens, right.T * np.sqrt(values))


def propagate(table: Any) -> Vectors:
    """Return vectors by ProNE: an SVD of the edges against negative samples, then a Chebyshev filter of the graph."""
    size = table.shape[0]
    step = scipy.sparse.diags_array(1 / np.maximum(table.sum(axis=1), 1e-12)) @ table
    negatives = step.sum(axis=0) ** 0.75
    edges = scipy.sparse.coo_array(step)
    values = np.log(edges.data) - np.log((negatives / negatives.sum())[edges.coords[1]])
    left, singular, _ = scipy.sparse.linalg.svds(scipy.sparse.csr_array((values, edges.coords), shape=table.shape), DIM)
    start = left * np.sqrt(singular)
    start /= np.maximum(np.linalg.norm(start, axis=1, keepdims=True), 1e-12)

    looped = table + scipy.sparse.eye_array(size)
    smooth = scipy.sparse.diags_array(1 / looped.sum(axis=1)) @ looped
    laplacian = (0.8 * scipy.sparse.eye_array(size) - smooth).tocsr()  # mu = .2
    terms = [start, 0.5 * (laplacian @ (laplacian @ start)) - start]
    total = scipy.special.iv(0, 0.5) * terms[0] - 2 * scipy.special.iv(1, 0.5) * terms[1]
    for order in range(2, 10):
        following = laplacian @ (laplacian @ terms[1]) - 2 * terms[1] - terms[0]
        total += 2 * (-1) ** order * scipy.special.iv(order, 0.5) * following
        terms = [terms[1], following]
    left, singular, _ = np.linalg.svd(looped @ (start - total), full_matrices=False)
    return label_rows(left * np.sqrt(singular), list(map(str, range(size))))


def train_deepwalk(table: Any, p: float = 1.0, q: float = 1.0) -> Vectors:
    """Return vectors by skip-gram with negative sampling (gensim) on sampled walks."""
    from gensim.models import Word2Vec

    cells = scipy.sparse.coo_array(table)
    rows, columns = (ids.astype(np.int64) for ids in cells.coords)
    graph = make_graph(list(map(str, range(table.shape[0]))), (rows, columns, cells.data), "mirrored")
    config = WalkConfig(walks=WINDOW, p=p, q=q)
    walks = sample_walks(graph, config, table.shape[0] * WALKS_PER_NODE, WALK_LENGTH, threads=2)
    names = graph.nodes.tokens
    sentences = [[names[node] for node in walk] for part in walks for walk in part.reshape(-1, WALK_LENGTH + 1)[:, :-1]]
    model = Word2Vec(sentences, vector_size=DIM, window=WINDOW, min_count=0, sg=1, workers=2, epochs=1, seed=1)
    return label_rows(model.wv.vectors, model.wv.index_to_key, model.syn1neg)


def label_rows(values: Any, labels: Any, columns: Any = None) -> Vectors:
    """Return vectors with these labels, and with the columns that they were trained with, if there are some."""
    nodes = Vocabulary(labels)
    rows = VectorTable(nodes, np.asarray(values, np.float32))
    if columns is None:
        return Vectors(rows)
    return Vectors(rows, VectorTable(nodes, np.asarray(columns, np.float32)), columns_per_row=1)


OURS = ("walks", "edges")
METHODS: dict[str, Callable[[Any], Vectors]] = {
    "walks": train_walks,
    "edges": train_edges,
    "netmf": factorize,
    "netmf-1": lambda table: factorize(table, 1),
    "prone": propagate,
    "deepwalk": train_deepwalk,
    "node2vec": lambda table: train_deepwalk(table, 0.25, 4.0),
}


def hold_out(table: Any, share: float = 0.2) -> tuple[Any, Any]:
    """Return a graph without a share of its edges, and those of them whose nodes have other edges, each once."""
    known, held = split_table(scipy.sparse.triu(table, 1), share)
    known = scipy.sparse.csr_array(known + known.T)
    has_edges = scipy.sparse.diags_array((known.sum(axis=1) > 0).astype(float))
    held = scipy.sparse.csr_array(has_edges @ held @ has_edges)
    held.eliminate_zeros()
    return known, held


def predict_links(vectors: Vectors, edges: list[tuple[str, str]], known: Any, *, is_peer: bool) -> LinkReport:
    """Return how well held-out edges are predicted; for a peer, by products or by cosines, which is better."""
    matrix = swivel.import_counts(known, sides="mirrored")
    report = swivel.evaluate_links(vectors, edges, matrix)
    if not is_peer:
        return report
    return max(report, swivel.evaluate_links(Vectors(vectors.row_table), edges, matrix), key=lambda each: each.auc)


def measure(table: Any, labels: Any, method: str) -> dict[str, Any]:
    """Return the figures of a method."""
    begin = time.perf_counter()
    vectors = METHODS[method](table)
    seconds = time.perf_counter() - begin
    cells = scipy.sparse.coo_array(labels)
    pairs = [(str(node), f"label {label}") for node, label in zip(*(ids.tolist() for ids in cells.coords), strict=True)]
    report = swivel.evaluate_labels(vectors, pairs)

    known, held = hold_out(table)
    edges = [(str(a), str(b)) for a, b in zip(*(ids.tolist() for ids in held.tocoo().coords), strict=True)]
    links = predict_links(METHODS[method](known), edges, known, is_peer=method not in OURS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    f1 = {f"{each.share:.0%}": [round(each.micro, 4), round(each.macro, 4)] for each in report.scores}
    auc = {"auc": round(links.auc, 4), "average precision": round(links.average_precision, 4)}
    return {"method": method, "seconds": round(seconds, 1), "peak GiB": round(peak, 2), "f1": f1, **auc}


def main() -> None:
    """Measure methods on a graph, and print one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graph")
    parser.add_argument("--labels", required=True)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    arguments = parser.parse_args()
    table = scipy.sparse.csr_array(scipy.sparse.load_npz(arguments.graph))
    labels = scipy.sparse.load_npz(arguments.labels)
    for method in arguments.methods:
        print(json.dumps({"graph": arguments.graph, **measure(table, labels, method)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
