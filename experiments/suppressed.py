"""What suppressed counts cost: a text's counts without the cells below a limit, by SVD of PPMI and by Swivel.

    python -m experiments.suppressed TEXT SETS [--words 3000000] [--vocabulary 6000] [--dim 100] [--only NAME ...]

TEXT is a text file (also compressed), SETS a folder of similarity sets for `swivel evaluate`. Each method prints
Spearman's rho of each set, and their mean. `experiments/suppressed.md` has the figures.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

import swivel
from swivel.corpus.streams import read_lines
from swivel.evaluation import Report
from swivel.vectors import Vectors, VectorTable

WINDOW = 10
LIMIT = 11
SITES = 3
SETS = ("ws353_similarity", "ws353_relatedness", "men", "mturk", "rare_words", "simlex999")

Floats = NDArray[np.float64]


def read_words(file: str, words: int) -> Iterator[str]:
    """Yield the lines of a text until they have so many words."""
    left = words
    for line in read_lines(file):
        left -= line.count(" ") + 1
        yield line
        if left <= 0:
            return


def suppress(counts: Any, limit: float) -> scipy.sparse.csr_array:
    """Return the counts without the cells below a limit."""
    cells = scipy.sparse.coo_array(counts)
    is_kept = cells.data >= limit
    rows, columns = cells.coords
    return scipy.sparse.csr_array((cells.data[is_kept], (rows[is_kept], columns[is_kept])), shape=cells.shape)


def factorize(counts: Any, sums: Floats, words: list[str], dim: int) -> Vectors:
    """Return a truncated SVD of the positive PMI of the cells, with the root of the singular values."""
    cells = scipy.sparse.coo_array(counts)
    rows, columns = cells.coords
    pmi = np.log(cells.data * sums.sum() / (sums[rows] * sums[columns]))
    ppmi = scipy.sparse.csr_array((np.maximum(pmi, 0), (rows, columns)), shape=cells.shape)
    left, values, _ = scipy.sparse.linalg.svds(ppmi, dim, random_state=1)
    return Vectors(VectorTable(swivel.Vocabulary(words), (left * np.sqrt(values)).astype(np.float32)))


def make_methods(texts: list[str], vocabulary: int, dim: int) -> Iterator[tuple[str, Callable[[], Vectors]]]:
    """Yield the name and the function of each method."""
    counting: dict[str, Any] = {"window": WINDOW, "weight": "uniform", "columns": "symmetric"}
    matrix = swivel.count(texts, max_size=vocabulary, min_count=1, **counting)
    full = scipy.sparse.csr_array(matrix.to_scipy())
    words = list(matrix.rows.tokens)
    few = suppress(full, LIMIT)
    sums = matrix.row_sums
    print(f"{len(few.data) / len(full.data):.1%} of the cells and {few.sum() / full.sum():.1%} of the counts are left")  # noqa: T201

    def train(counts: Any, importing: dict[str, Any], **settings: Any) -> Vectors:
        table = counts
        if not isinstance(counts, swivel.Matrix):
            table = swivel.import_counts(counts, row_labels=words, sides="mirrored", **importing)
        return swivel.train(table, recipe="graph", dim=dim, **settings)

    def mark(counts: Any) -> scipy.sparse.csr_array:
        cells = scipy.sparse.csr_array(counts, copy=True)
        cells.data[cells.data < LIMIT] = -1
        return cells

    def count_sites() -> list[swivel.Matrix]:
        parts = [texts[number::SITES] for number in range(SITES)]
        return [swivel.count(part, vocabulary=words, **counting) for part in parts]

    def add_sites(is_marked: bool = False, has_sums: bool = False) -> swivel.Matrix:
        return swivel.add(
            *(
                swivel.import_counts(
                    mark(site.to_scipy()) if is_marked else suppress(site.to_scipy(), LIMIT),
                    row_labels=site.rows.tokens,
                    sides="mirrored",
                    suppressed_below=LIMIT,
                    row_sums=site.row_sums.tolist() if has_sums else None,
                )
                for site in count_sites()
            )
        )

    def find_true_counts() -> scipy.sparse.csr_array:
        """Return the counts of the whole text of the cells that at least one site has."""
        pooled = add_sites()
        places = [pooled.rows.ids[word] for word in words]
        return scipy.sparse.csr_array(full * (pooled.to_scipy()[places][:, places] > 0))

    def factorize_sites() -> Vectors:
        pooled = add_sites()
        return factorize(pooled.to_scipy(), np.maximum(pooled.row_sums, 1), list(pooled.rows.tokens), dim)

    known = {"suppressed_below": LIMIT}
    own = {**known, "row_sums": dict(zip(words, sums, strict=True))}
    yield "SVD, all counts", lambda: factorize(full, sums, words, dim)
    yield "SVD, suppressed", lambda: factorize(few, np.maximum(few.sum(axis=1), 1), words, dim)
    yield "SVD, suppressed, own sums", lambda: factorize(few, sums, words, dim)
    yield "Swivel, all counts", lambda: train(full, {})
    yield "Swivel, suppressed read as 0", lambda: train(few, {})
    yield "Swivel, suppressed_below", lambda: train(few, known)
    yield "Swivel, suppressed_below, own sums", lambda: train(few, own)
    yield "Swivel, suppressed_below, own sums, unseen 20", lambda: train(few, own, unseen=20)
    yield "Swivel, marked", lambda: train(mark(full), known)
    lost = SITES * (LIMIT - 1) + 1  # what a pair may have in all sites together without being in one of them
    fewer = suppress(full, lost)
    yield f"Swivel, suppressed below {lost}, own sums", lambda: train(fewer, {**own, "suppressed_below": lost})
    yield "SVD, three sites", factorize_sites
    yield "Swivel, three sites", lambda: train(add_sites(), {})
    yield "Swivel, three sites, own sums", lambda: train(add_sites(has_sums=True), {})
    yield "Swivel, three sites, unseen 10", lambda: train(add_sites(), {}, unseen=10)
    yield (
        "Swivel, three sites, true counts of their cells",
        lambda: train(find_true_counts(), {"suppressed_below": lost}),
    )
    yield "Swivel, three sites, marked", lambda: train(add_sites(is_marked=True), {})


def format_line(report: Report) -> str:
    """Return rho of each set, and their mean."""
    figures = [report[name].figure or 0.0 for name in SETS]
    return " ".join(f"{figure:.3f}" for figure in [*figures, float(np.mean(figures))])


def main() -> None:
    """Measure the methods one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("sets")
    parser.add_argument("--words", type=int, default=3_000_000)
    parser.add_argument("--vocabulary", type=int, default=6_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=[""], help="only methods whose names contain one of these")
    arguments = parser.parse_args()

    texts = list(read_words(arguments.text, arguments.words))
    for name, method in make_methods(texts, arguments.vocabulary, arguments.dim):
        if not any(part in name for part in arguments.only):
            continue
        begin = time.perf_counter()
        report = swivel.evaluate(method(), arguments.sets, progress=False, draws=0)
        print(f"{name}: {format_line(report)} ({time.perf_counter() - begin:.0f} s)", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
