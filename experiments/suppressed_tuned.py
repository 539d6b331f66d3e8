"""SVD of PPMI, GloVe, item2vec and Swivel on counts with and without small cells, each with the same number of trials.

    python -m experiments.suppressed_tuned text TEXT SETS [--words 5000000] [--vocabulary 6000]
    python -m experiments.suppressed_tuned baskets TABLE [--swap]

TEXT and SETS are those of `experiments.suppressed`. The settings of a method are chosen on the odd lines of the sets,
and its figures are those of the even lines. TABLE has a basket and an item on each line (`--swap`: an item and a
basket). A fifth of the baskets is held out, one item of each is removed, and all items are ranked by the sum of their
cosines with the others: settings are chosen on half of those baskets by the mean reciprocal rank and the share of hits
among the first ten, and the other half is reported. `experiments/suppressed.md` has the figures.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

import swivel
from experiments.glove import GloveConfig, train_glove
from experiments.suppressed import LIMIT, SETS, WINDOW, read_words, suppress
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.search import scale_to_unit

TOP = 10

Floats = NDArray[np.float32]
Settings = dict[str, Any]
# Figures of the vectors of all items, by the part of the data that they are measured on: "tune" or "report".
Measure = Callable[[Floats, str], list[float]]


@dataclass(frozen=True)
class Counts:
    """Symmetric counts of items, all or only large ones, with the sums of all."""

    cells: scipy.sparse.csr_array
    own_sums: NDArray[np.float64]
    labels: Sequence[str]
    is_suppressed: bool
    baskets: Sequence[NDArray[np.intp]] = ()  # the numbers of their items, for item2vec

    def sums(self, has_own: bool) -> NDArray[np.float64]:
        """Return the sums of all counts, or of these cells."""
        return self.own_sums if has_own else np.maximum(self.cells.sum(axis=1), 1)

    def matrix(self, has_own: bool) -> swivel.Matrix:
        """Return the counts for Swivel and GloVe, with rows of any order."""
        known: Settings = {"suppressed_below": LIMIT} if self.is_suppressed else {}
        if has_own:
            known["row_sums"] = dict(zip(self.labels, self.own_sums.tolist(), strict=True))
        return swivel.import_counts(self.cells, row_labels=self.labels, sides="mirrored", progress=False, **known)


def order_rows(matrix: swivel.Matrix, values: Floats, labels: Sequence[str]) -> Floats:
    """Return the rows of a matrix in the order of the labels."""
    return np.asarray(values[[matrix.rows.ids[label] for label in labels]])


def fit_svd(counts: Counts, dim: int) -> Callable[..., Floats]:
    """Return the function that fits a truncated SVD of positive PMI."""

    @cache
    def decompose(own: bool, smoothing: float) -> tuple[Any, Any]:
        cells = scipy.sparse.coo_array(counts.cells)
        rows, columns = cells.coords
        sums = counts.sums(own)
        smooth = sums**smoothing
        pmi = np.log(cells.data * smooth.sum() / (sums[rows] * smooth[columns]))
        ppmi = scipy.sparse.csr_array((np.maximum(pmi, 0), (rows, columns)), shape=cells.shape)
        left, values, _ = scipy.sparse.linalg.svds(ppmi, dim, random_state=1)
        return left, values

    def fit(own: bool, smoothing: float, power: float) -> Floats:
        left, values = decompose(own, smoothing)
        return np.asarray(left * values**power, np.float32)

    return fit


def fit_glove(counts: Counts, dim: int) -> Callable[..., Floats]:
    """Return the function that fits GloVe, which reads observed cells only."""

    def fit(own: bool, x_max: float, epochs: int) -> Floats:
        matrix = counts.matrix(counts.is_suppressed)
        config = GloveConfig(dim=dim, x_max=x_max, epochs=epochs)
        values, _ = train_glove(matrix, config, sums=matrix.row_sums.astype(np.float32) if own else None)
        return order_rows(matrix, values, counts.labels)

    return fit


def fit_item2vec(counts: Counts, dim: int) -> Callable[..., Floats]:
    """Return the function that fits skip-grams of the items of each basket, in a new random order in every epoch."""
    from gensim.models import Word2Vec

    class Baskets:
        """Lists of the numbers of items, as texts."""

        def __init__(self) -> None:
            self.rng = np.random.default_rng(1)

        def __iter__(self) -> Iterator[list[str]]:
            return (list(map(str, self.rng.permutation(basket))) for basket in counts.baskets)

    def fit(power: float, epochs: int, learning_rate: float) -> Floats:
        settings: Settings = {"vector_size": dim, "sg": 1, "window": 1_000, "sample": 0, "min_count": 1, "workers": 1}
        model = Word2Vec(Baskets(), **settings, ns_exponent=power, epochs=epochs, alpha=learning_rate, seed=1)
        return np.asarray(model.wv[list(map(str, range(len(counts.labels))))])

    return fit


def fit_swivel(counts: Counts, dim: int) -> Callable[..., Floats]:
    """Return the function that trains with the recipe for square counts."""

    def fit(own: bool = False, **settings: Any) -> Floats:
        matrix = counts.matrix(own)
        vectors = swivel.train(matrix, dim=dim, progress=False, threads=1, **settings)
        return order_rows(matrix, vectors.vectors, counts.labels)

    return fit


def list_trials(is_suppressed: bool, has_baskets: bool) -> dict[str, tuple[Any, list[Settings]]]:
    """Return what fits each method, and the settings that are tried, eight of each; the first of Swivel is untuned."""

    def combine(**axes: Sequence[Any]) -> list[Settings]:
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    methods: dict[str, tuple[Any, list[Settings]]] = {}
    if is_suppressed:
        methods["SVD"] = fit_svd, combine(own=(False, True), smoothing=(1, 0.75), power=(0.5, 0))
        methods["Swivel"] = fit_swivel, combine(own=(False, True), unseen=(10, 20), weight_decay=(1e-4, 1e-3))
    else:
        methods["SVD"] = fit_svd, combine(own=(True,), power=(0.5, 0, 0.25, 1), smoothing=(1, 0.75))
        axes = {"confidence_power": (0.5, 0.25), "weight_decay": (1e-4, 1e-3), "combine": ("sum", "parts")}
        methods["Swivel"] = fit_swivel, combine(**axes)
    methods["GloVe"] = fit_glove, combine(own=(False, True), x_max=(10, 100), epochs=(15, 50))
    if has_baskets:
        methods["item2vec"] = fit_item2vec, combine(power=(0.75, 0.0), learning_rate=(0.1, 0.3), epochs=(40, 160))
    return methods


def count_text(file: str, sets: str, words: int, vocabulary: int, folder: Path) -> tuple[Counts, Measure]:
    """Return the counts of a text, and what measures Spearman's rho of the halves of each similarity set."""
    texts = list(read_words(file, words))
    counting: Settings = {"window": WINDOW, "weight": "uniform", "columns": "symmetric", "progress": False}
    matrix = swivel.count(texts, max_size=vocabulary, min_count=1, **counting)
    for number, part in enumerate(("tune", "report")):
        (folder / part).mkdir()
        for name in SETS:
            lines = (Path(sets) / f"{name}.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
            (folder / part / f"{name}.tsv").write_text("".join(lines[number::2]), encoding="utf-8")

    def measure(values: Floats, part: str) -> list[float]:
        vectors = Vectors(VectorTable(matrix.rows, values))
        report = swivel.evaluate(vectors, folder / part, progress=False, draws=0)
        return [report[name].figure or 0.0 for name in SETS]

    return Counts(scipy.sparse.csr_array(matrix.to_scipy()), matrix.row_sums, matrix.rows.tokens, False), measure


def count_baskets(file: str, is_swapped: bool) -> tuple[Counts, Measure]:
    """Return the counts of four fifths of the baskets, and what ranks an item of each of the others."""
    fields = "2,1" if is_swapped else "1,2"
    table = swivel.import_counts(file, fields=fields, header=False, progress=False)
    seen = scipy.sparse.csr_array(table.to_scipy().astype(bool).astype(np.float64))
    # In the order of the labels, so that the split does not depend on counts.
    seen = seen[np.argsort(table.rows.tokens)]
    rng = np.random.default_rng(1)
    is_held = rng.random(seen.shape[0]) < 0.2
    known = seen[~is_held]
    cells = scipy.sparse.lil_array(known.T @ known)
    cells.setdiag(0)
    cells = scipy.sparse.csr_array(cells)
    cells.eliminate_zeros()
    has_counts = np.diff(cells.indptr) > 0
    cells = cells[has_counts][:, has_counts]
    labels = [label for label, is_kept in zip(table.columns.tokens, has_counts, strict=True) if is_kept]

    held = seen[is_held][:, has_counts]
    baskets = [basket for basket in np.split(held.indices, held.indptr[1:-1]) if basket.size > 1]
    queries = [np.roll(np.sort(basket), -int(rng.integers(basket.size))) for basket in baskets]  # the first is removed

    def measure(values: Floats, part: str) -> list[float]:
        unit = scale_to_unit(values)
        ranks = []
        for query in queries[0 if part == "tune" else 1 :: 2]:
            scores = unit @ unit[query[1:]].sum(axis=0)
            scores[query[1:]] = -np.inf
            ranks.append(1 + np.count_nonzero(scores > scores[query[0]]))
        return [float(np.mean(1 / np.array(ranks))), float(np.mean(np.array(ranks) <= TOP))]

    kept = scipy.sparse.csr_array(known[:, has_counts])
    trained = [basket for basket in np.split(kept.indices, kept.indptr[1:-1]) if basket.size > 1]
    return Counts(cells, cells.sum(axis=1), labels, False, trained), measure


def main() -> None:
    """Tune every method on the counts with and without small cells, and print what was chosen and its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("text", "baskets"))
    parser.add_argument("source")
    parser.add_argument("sets", nargs="?")
    parser.add_argument("--words", type=int, default=5_000_000)
    parser.add_argument("--vocabulary", type=int, default=6_000)
    parser.add_argument("--swap", action="store_true")
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--trials", type=int, default=8, help="settings of each method, at most 8")
    parser.add_argument("--only", nargs="*", default=[""], help="only methods such as 'all Swivel', 'suppressed GloVe'")
    arguments = parser.parse_args()

    with TemporaryDirectory() as folder:
        if arguments.kind == "text":
            full, measure = count_text(
                arguments.source, arguments.sets, arguments.words, arguments.vocabulary, Path(folder)
            )
        else:
            full, measure = count_baskets(arguments.source, arguments.swap)
        few = Counts(suppress(full.cells, LIMIT), full.own_sums, full.labels, True)
        for each in (full, few):
            shares = each.cells.nnz / len(each.labels) ** 2, each.cells.sum() / full.cells.sum()
            print(f"{len(each.labels):,} items, {shares[0]:.1%} of the cells, {shares[1]:.1%} of the counts")  # noqa: T201
            for name, (prepare, trials) in list_trials(each.is_suppressed, bool(each.baskets)).items():
                title = f"{'suppressed' if each.is_suppressed else 'all'} {name}"
                if any(part in title for part in arguments.only):
                    tune(title, prepare(each, arguments.dim), trials[: arguments.trials], measure)


def tune(title: str, fit: Callable[..., Floats], trials: Sequence[Settings], measure: Measure) -> None:
    """Print the figures of the settings that are best on average where settings are chosen, and of the first ones."""
    begin = time.process_time()
    tried = []
    for settings in trials:
        values = fit(**settings)
        tried.append((float(np.mean(measure(values, "tune"))), settings, values))
    best = max(tried, key=lambda each: each[0])
    seconds = (time.process_time() - begin) / len(trials)
    for kind, (quality, settings, values) in (("first", tried[0]), ("chosen", best)):
        figures = measure(values, "report")
        shown = " ".join(f"{figure:.3f}" for figure in [*figures, float(np.mean(figures))])
        print(f"{title}, {kind} {settings}: {shown} (chosen by {quality:.3f}, {seconds:.1f} CPU s per fit)", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
