"""Node vectors against DeepWalk, node2vec, NetMF and ProNE: classes and held-out edges, with the same splits for all.

    python -m experiments.graphs GRAPH.npz --labels LABELS.npz [--methods walks edges netmf prone deepwalk node2vec]

GRAPH.npz is an adjacency matrix and LABELS.npz a matrix of nodes by labels, both of `scipy.sparse.save_npz`. The public
files of BlogCatalog, PPI, Wikipedia and DBLP are in the repositories of DeepWalk and ProNE; experiments/graphs.md says
which, and has the figures. Methods are written from their papers, in a few lines of SciPy; node2vec is pecanpy's, and
its p and q are chosen on other splits than those that are reported.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from functools import partial
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
# p and q that node2vec's authors chose for BlogCatalog, PPI and Wikipedia.
PAPER_BIASES = ((0.25, 0.25), (4.0, 1.0), (4.0, 0.5))

Floats = NDArray[np.float64]


def train_walks(table: Any) -> Vectors:
    """Return our vectors of the counts of walks, all settings as chosen."""
    return swivel.train(swivel.walk_counts(table), dim=DIM)


def train_edges(table: Any) -> Vectors:
    """Return our vectors of the edges alone."""
    return swivel.train(swivel.import_counts(table, sides="mirrored"), recipe="table", dim=DIM)


def factorize(table: Any, window: int = WINDOW) -> Vectors:
    """Return vectors by NetMF: a truncated SVD of log(max(M, 1)) of the exact counts of walks."""
    matrix = swivel.walk_counts(table, window=window)
    counts = matrix.to_scipy().tocoo()
    rows, columns = counts.coords
    ratios = counts.data * (matrix.total / (matrix.row_sums[rows] * matrix.column_sums[columns]))
    is_kept = ratios > 1  # The logarithm of the others becomes 0.
    cells = np.log(ratios[is_kept]), (rows[is_kept], columns[is_kept])
    logs = scipy.sparse.csr_array(cells, shape=counts.shape)
    left, values, right = scipy.sparse.linalg.svds(logs, DIM)
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


def train_deepwalk(table: Any) -> Vectors:
    """Return vectors by skip-gram with negative sampling (gensim) on sampled walks."""
    from gensim.models import Word2Vec

    cells = scipy.sparse.coo_array(table)
    rows, columns = (ids.astype(np.int64) for ids in cells.coords)
    graph = make_graph(list(map(str, range(table.shape[0]))), (rows, columns, cells.data), "mirrored")
    config = WalkConfig(walks=WINDOW)
    walks = sample_walks(graph, config, table.shape[0] * WALKS_PER_NODE, WALK_LENGTH, threads=2)
    names = graph.nodes.tokens
    sentences = [[names[node] for node in walk] for part in walks for walk in part.reshape(-1, WALK_LENGTH + 1)[:, :-1]]
    model = Word2Vec(sentences, vector_size=DIM, window=WINDOW, min_count=0, sg=1, workers=2, epochs=1, seed=1)
    return label_rows(model.wv.vectors, model.wv.index_to_key, model.syn1neg)


def train_node2vec(table: Any, p: float, q: float) -> Vectors:
    """Return the vectors of pecanpy, with its own number (10) and length (80) of walks."""
    from gensim.models import Word2Vec
    from pecanpy.pecanpy import SparseOTF

    graph = SparseOTF(p=p, q=q, workers=1, verbose=False, random_state=1)
    graph.set_node_ids(list(map(str, range(table.shape[0]))))
    graph.indptr, graph.indices = table.indptr.astype(np.uint32), table.indices.astype(np.uint32)
    graph.data = table.data.astype(np.float32)
    walks = graph.simulate_walks(num_walks=10, walk_length=80)
    model = Word2Vec(walks, vector_size=DIM, window=WINDOW, min_count=0, sg=1, workers=1, epochs=1, seed=1)
    return label_rows(model.wv.vectors, model.wv.index_to_key, model.syn1neg)


def label_rows(values: Any, labels: Any, columns: Any = None) -> Vectors:
    """Return vectors with these labels, and with the columns that they were trained with, if there are some."""
    nodes = Vocabulary(labels)
    rows = VectorTable(nodes, np.asarray(values, np.float32))
    if columns is None:
        return Vectors(rows)
    return Vectors(rows, VectorTable(nodes, np.asarray(columns, np.float32)), columns_per_row=1)


OURS = ("walks", "edges")
# The trials of each method.
METHODS: dict[str, list[Callable[[Any], Vectors]]] = {
    "walks": [train_walks],
    "edges": [train_edges],
    "netmf": [factorize],
    "prone": [propagate],
    "deepwalk": [train_deepwalk],
    "node2vec": [partial(train_node2vec, p=p, q=q) for p, q in PAPER_BIASES],
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


def list_edges(held: Any) -> list[tuple[str, str]]:
    """Return the held-out edges by the labels of their nodes."""
    return [(str(a), str(b)) for a, b in zip(*(ids.tolist() for ids in held.tocoo().coords), strict=True)]


def measure_classes(table: Any, labels: Any, method: str, splits: int) -> dict[str, Any]:
    """Return how well classes are predicted by a method, by its best trial on another split."""
    trials = METHODS[method]
    begin = time.process_time()
    trained = [trial(table) for trial in trials]
    seconds = (time.process_time() - begin) / len(trials)

    cells = scipy.sparse.coo_array(labels)
    pairs = [(str(node), f"label {label}") for node, label in zip(*(ids.tolist() for ids in cells.coords), strict=True)]
    best = 0
    if len(trials) > 1:
        checks = [swivel.evaluate_labels(each, pairs, shares=[0.5], splits=1, seed=2) for each in trained]
        best = int(np.argmax([check.scores[0].micro for check in checks]))
    report = swivel.evaluate_labels(trained[best], pairs, splits=splits)

    f1 = {f"{each.share:.0%}": [round(each.micro, 4), round(each.macro, 4)] for each in report.scores}
    return {"cpu seconds": round(seconds, 1), "f1": f1, "trial": best}


def measure_links(table: Any, method: str) -> dict[str, Any]:
    """Return how well held-out edges are predicted by a method, by its best trial for other edges."""
    trials = METHODS[method]
    is_peer = method not in OURS
    known, held = hold_out(table)
    best = 0
    if len(trials) > 1:
        fewer, checked = hold_out(known)
        scores = [predict_links(trial(fewer), list_edges(checked), fewer, is_peer=is_peer).auc for trial in trials]
        best = int(np.argmax(scores))
    report = predict_links(trials[best](known), list_edges(held), known, is_peer=is_peer)
    return {
        "auc": round(report.auc, 4),
        "average precision": round(report.average_precision, 4),
        "trial of links": best,
    }


def main() -> None:
    """Measure methods on a graph, and print one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graph")
    parser.add_argument("--labels", required=True)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--splits", type=int, default=5, help="random choices of the known labels")
    parser.add_argument("--no-links", action="store_true", help="measure classes only")
    arguments = parser.parse_args()
    table = scipy.sparse.csr_array(scipy.sparse.load_npz(arguments.graph))
    labels = scipy.sparse.load_npz(arguments.labels)
    for method in arguments.methods:
        figures = measure_classes(table, labels, method, arguments.splits)
        if not arguments.no_links:
            figures |= measure_links(table, method)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        result = {"graph": arguments.graph, "method": method, "peak GiB": round(peak, 2), **figures}
        print(json.dumps(result), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
