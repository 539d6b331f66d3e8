"""Golden results of three small inputs: digests of matrices, and numbers of the vectors that are trained on them.

A change that should change no result, such as a refactoring or a faster kernel, must not change this file.

- **Matrices** have the same bits on every machine (docs/reliability.md, "The same bits"), so that their content is
  compared by SHA-256: labels, cells and sums, whatever files they are in.
- **Vectors** do not. Their products are computed by MKL, oneDNN or OpenBLAS, and their kernels are compiled with
  fast-math: the last bits follow the CPU and the versions of the libraries. They are compared with numbers of this
  file, within `ALLOWED`. The code for other CPUs (tools/variants.py), the backend `torch` and the float64 reference
  differ from them by less than 5e-6 in any element; a learning rate that is 1 % higher changes most numbers by more
  than 1e-3.
- On one machine, vectors have the same bits for any number of threads, which is compared exactly.

Initial vectors, orders of blocks and samples come from NumPy's generators; a version of NumPy with other streams would
need new numbers.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

import swivel
from swivel.config import TrainConfig, stage_config
from swivel.corpus.vocabulary import Vocabulary
from swivel.training.fold_in import fold_in

ALLOWED = 5e-5  # absolute difference of a number
# On a CPU, so that a GPU is not needed; few epochs, so that rounding errors stay small.
TRAINING: dict[str, Any] = {"dim": 16, "epochs": 4, "backend": "cpu", "dtype": "float32", "device": "cpu"}
KNOWN_LINES = 3_400  # of the text, for vectors that are trained again, or extended
# The numbers are those of text that is not normalized, as in version 0.1: this rule must stay.
OLD_RULE: dict[str, Any] = {"normalization": "none"}
# Those of `default` are those of much text, which does not choose the weight decay.
DEFAULT = TRAINING | {"weight_decay": 5e-5}
ANY_LETTERS = "The naïve co-op’s café — “déjà vu” — isn't in Straße 42; ΑΒΓ, 漢字、かな 3.14 new_york e\u0301te\u0301."

# SHA-256 of the content of each matrix, shortened.
MATRICES = {
    "text, default": {
        "row labels": "ec07cd86784e196d",
        "column labels": "59d7c54e5260360a",
        "occurrences": "34c52048fb45d6c1",
        "cells": "04c9bd18efa3a594",
        "sums": "ade5773d96d17a8f",
    },
    "text, fast": {
        "row labels": "ec07cd86784e196d",
        "column labels": "ec07cd86784e196d",
        "occurrences": "ff803be610febd26",
        "cells": "b14a7dada88e23b4",
        "sums": "86792ae3da146e1e",
    },
    "text, phrases": {
        "row labels": "78798d0f5f0d9f90",
        "column labels": "78798d0f5f0d9f90",
        "occurrences": "5b09b0d24dcc5251",
        "cells": "46453da1dcbb8216",
        "sums": "b453e8a57b1c18b3",
    },
    "table": {
        "row labels": "cbc4025017d0cd3f",
        "column labels": "19fd9ac29c211634",
        "occurrences": "646ba08d6ecec686",
        "cells": "8db4d25951dbf59c",
        "sums": "857070885ac2dc31",
    },
    "triples": {
        "row labels": "0c704bcab1302df4",
        "column labels": "b599ae580367e7b5",
        "occurrences": "12196aef89146725",
        "cells": "4d94a81d7064d244",
        "sums": "a69df7db35765b40",
    },
}

# Eight numbers of an array per line: see `pick`.
NUMBERS = {
    "default": """
        0.495249 0.376778 0.282606 0.619058 -0.200783 -0.325568 0.363712 0.423359
        -0.109058 0.456510 -0.314022 -0.513419 -0.765150 0.032025 -0.255229 0.337496
        -0.685290 -0.657301 -0.800965 0.214965 0.869749 -0.014760 0.831393 0.579052
    """,
    "fast": """
        -0.080030 -0.172065 0.059249 -0.193986 0.026801 -0.299336 0.220495 0.313358
        -0.540235 0.106857 -0.362460 0.488877 0.343915 -0.469692 -0.430056 0.316403
        -0.620265 -0.065209 -0.303211 0.294891 0.370717 -0.769028 -0.209561 0.544656
    """,
    "table": """
        0.088679 -0.014109 -0.282188 -0.479354 -0.224690 -0.103245 0.665999 0.401615
        0.687223 -0.418945 -0.004518 -0.277085 -0.228204 0.224685 -0.341763 0.347093
        0.088679 -0.014109 -0.282188 -0.479354 -0.224690 -0.103245 0.665999 0.401615
    """,
    "paper": """
        0.409322 -0.641790 -0.071947 -0.570972 -0.816411 0.124121 -0.311352 0.350649
        -0.614383 -0.184417 -0.015787 -0.623232 -0.393433 -0.259250 -0.314142 0.357215
        0.409322 -0.641790 -0.071947 -0.570972 -0.816411 0.124121 -0.311352 0.350649
    """,
    "from old vectors": """
        -0.199883 -0.273509 -0.006903 0.004300 0.494057 -0.091156 -0.245161 0.483498
        -0.010474 -0.397772 0.043263 -0.019181 0.282569 0.571892 -0.085203 0.418937
        0.393188 0.505939 1.007388 -0.412695 0.263898 0.683323 0.162556 0.595308
    """,
    "extended": """
        0.577101 0.154584 -0.541031 -0.635941 0.788107 0.590570 1.599008 0.841574
        1.244253 0.690230 -0.791792 0.333259 0.110564 -0.886363 0.056959 0.479412
    """,
    "folded in": """
        0.461387 0.134615 -0.231387 0.044265 0.143711 -0.084841 0.618012 -0.088757
        0.630556 0.411168 0.628861 0.585643 -0.034427 -0.112701 0.443650 0.382749
    """,
    "folded in, table": """
        1.533210 0.170595 -0.802906 0.125403 -0.493861 -1.380936 1.559815 -1.559191
        1.077858 1.156183 4.152586 2.397963 -1.326204 -1.554622 0.048450 1.705841
    """,
    "folded in, sampled": """
        0.024950 0.028909 0.069146 0.084602 0.081349 -0.159587 -0.289225 0.192625
        -0.207085 0.434300 -0.141542 0.331986 0.194221 0.002169 -0.283916 0.244582
    """,
    "guessed": """
        0.044344 -0.163325 0.057362 -0.147782 -0.104623 -0.070478 0.247287 0.093099
        -0.110315 -0.050682 -0.039936 0.016217 -0.049036 -0.144958 0.023490 0.136843
        0.339865 0.133220 0.022880
    """,
    "encoded": """
        -0.105202 0.300908 -0.202731 -0.190493 -0.021692 0.022901 -0.128235 -0.157608
        -0.025330 -0.003758 0.017699 -0.072169 -0.197122 -0.187508 -0.035276 0.194276
    """,
    "compared": """
        0.844012 0.768348 -0.894393 0.500000 0.845671 0.768348 -0.918099 0.400000
        0.775404 0.758679 -0.176977 0.100000 0.720745 0.696880 -0.194205 0.300000
        0.410748 0.695002 1.676091 0.200000
    """,
    "ranked": """
        10.878218 1.560619 1.621023 1.012425 1.962223 1.359013 0.119078 2.443564
        7.339748 7.100302 6.820415 6.541518 6.143723 4.198844 4.098824 3.872292
        3.801664 3.778862 0.540000
    """,
}


class Draws:
    """Random numbers that are the same with every version of Python, because they come from `random` alone."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def number(self, size: int) -> int:
        """Return a number below `size`, all equally often."""
        return int(size * self._rng.random())

    def rank(self, size: int) -> int:
        """Return a number below `size`, small ones more often."""
        return int(size * self._rng.random() * self._rng.random())

    def values(self, *shape: int) -> NDArray[np.float64]:
        """Return multiples of 1/64 between -1 and 1."""
        numbers = [self.number(129) - 64 for _ in range(int(np.prod(shape)))]
        return np.array(numbers, np.float64).reshape(shape) / 64


@cache
def make_lines() -> tuple[str, ...]:
    """Return six lines with letters of many kinds, and lines of made-up words, most of them of one of 13 topics."""
    draws = Draws(1)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    words = []
    for number in range(1_300):
        places = [number, number // 70 + 11 * number, number // 70 + 3 * number][: 2 + number % 2]
        words.append("".join(syllables[place % 70] for place in places))

    lines = []
    for _ in range(4_000):
        topic = draws.number(13)
        words_of_line = []
        for _ in range(10):
            is_of_topic = draws.number(5) > 0
            words_of_line.append(words[13 * draws.rank(100) + topic if is_of_topic else draws.rank(1_300)])
        lines.append(" ".join(words_of_line))
    return (*[ANY_LETTERS] * 6, *lines)


def make_table() -> scipy.sparse.coo_array:
    """Return a table of amounts, in which a row has most of its cells in columns of its own group."""
    draws = Draws(2)
    amounts: dict[tuple[int, int], int] = {}
    for _ in range(24_000):
        row, column = draws.rank(2_000), draws.rank(1_100)
        if draws.number(4):
            column = column // 10 * 10 + row % 10
        amounts[row, column] = 1 + draws.rank(9)
    cells = np.array([*amounts])
    return scipy.sparse.coo_array((np.array([*amounts.values()]), (cells[:, 0], cells[:, 1])), shape=(2_000, 1_100))


def make_triples() -> Iterator[tuple[str, str, float]]:
    """Yield counts with two decimals, of rows and columns in no order, some of them in several parts."""
    draws = Draws(3)
    for _ in range(4_000):
        yield f"row {draws.rank(150)}", f"column {draws.rank(90)}", (1 + draws.number(300)) / 100


@cache
def get_matrix(name: str) -> swivel.Matrix:
    if name == "table":
        return swivel.import_counts(make_table())
    if name == "triples":
        return swivel.import_counts(list(make_triples()))
    if name == "text, phrases":
        return swivel.count(make_lines(), recipe="paper", phrases="word2vec", **OLD_RULE)
    return swivel.count(make_lines(), recipe=name.removeprefix("text, "), **OLD_RULE)


@cache
def get_vectors(name: str, threads: int = 2) -> swivel.Vectors:
    """Return vectors of a matrix: those of a text are trained with the recipe that it was counted with."""
    options = swivel.RunOptions(threads=threads)
    if name == "table":
        settings = TRAINING | {"epochs": None, "sample_rows": 64}  # Several samples of zeros per block.
        return swivel.train(get_matrix(name), recipe="table", options=options, **settings)
    if name == "triples":
        return swivel.train(get_matrix(name), recipe="paper", options=options, **TRAINING)
    settings = DEFAULT if name == "text, default" else TRAINING
    return swivel.train(get_matrix(name), recipe=name.removeprefix("text, "), options=options, **settings)


@cache
def get_old_vectors() -> swivel.Vectors:
    """Return vectors of a part of the text."""
    return swivel.train(swivel.count(make_lines()[:KNOWN_LINES], **OLD_RULE), **DEFAULT)


def digest(*arrays: ArrayLike) -> str:
    """Return the first 16 digits of the SHA-256 of the values of some arrays: int64 or float64, little-endian."""
    sha = hashlib.sha256()
    for array in map(np.asarray, arrays):
        sha.update(array.astype("<f8" if array.dtype.kind == "f" else "<i8").tobytes())
    return sha.hexdigest()[:16]


def digest_labels(vocabulary: Vocabulary) -> str:
    return hashlib.sha256("\n".join(vocabulary.tokens).encode()).hexdigest()[:16]


def digest_matrix(matrix: swivel.Matrix) -> dict[str, str]:
    """Return digests of the content of a matrix, which do not depend on its files, blocks and units."""
    cells = matrix.to_scipy().tocoo()
    order = np.lexsort((cells.col, cells.row))
    return {
        "row labels": digest_labels(matrix.rows),
        "column labels": digest_labels(matrix.columns),
        "occurrences": digest(matrix.rows.counts, matrix.columns.counts),
        "cells": digest(cells.row[order], cells.col[order], cells.data[order]),
        "sums": digest(matrix.row_sums, matrix.column_sums, [matrix.total]),
    }


def pick(*arrays: ArrayLike, count: int = 7) -> list[float]:
    """Return elements of each array at equal distances, and the root mean square of all of its elements."""
    numbers: list[float] = []
    for array in arrays:
        values = np.asarray(array, np.float64).ravel()
        picked = values[np.arange(count) * len(values) // count]
        numbers += [float(value) for value in (*picked, np.sqrt(np.mean(values**2)))]
    return numbers


def pick_sides(vectors: swivel.Vectors) -> list[float]:
    assert vectors.columns is not None
    return pick(vectors.rows, vectors.columns, vectors.vectors)


def train_from_old_vectors() -> list[float]:
    """Training that starts from other vectors; most words of the text have one."""
    return pick_sides(swivel.train(get_matrix("text, default"), init=get_old_vectors(), **TRAINING))


def extend_vectors() -> list[float]:
    """Vectors of new words, without training."""
    old = get_old_vectors()
    vectors = swivel.extend(old, make_lines()[KNOWN_LINES:], min_count=2)
    return pick(vectors.rows[len(old) :], vectors.vectors[len(old) :])


def fold_in_rows(recipe: str, columns: int) -> list[float]:
    """Vectors of rows that were not trained; with many columns, a sample of them is used."""
    draws = Draws(4)
    vectors = draws.values(columns, 24)
    sums = [1.0 + draws.rank(100) for _ in range(columns)]
    counts = np.zeros((5, columns))
    for _ in range(200):
        counts[draws.number(5), draws.rank(columns)] += 1 + draws.number(3)
    config = stage_config(TrainConfig, recipe, dim=24)
    return pick(fold_in(counts, vectors, sums, sum(sums), config, device="cpu"), count=15)


def guess_words() -> list[float]:
    vectors = get_vectors("text, default")
    guesses = [vectors.guess(word) for word in ("bamo", "dekilo", "zzzz")]
    return [*pick([guess.vector for guess in guesses], count=15), *[guess.expected_cosine for guess in guesses]]


def encode_texts() -> list[float]:
    """Vectors of texts of known words, of known and unknown words, and of unknown words."""
    vectors = get_vectors("text, default")
    lines = make_lines()
    return pick(vectors.encode([lines[0], lines[-1], f"{lines[1]} bamo dekilo", "bamo"]), count=15)


def compare_models() -> list[float]:
    """How far some words changed, in units of the spread of similar words."""
    found = swivel.compare(get_old_vectors(), get_vectors("text, default"), min_count=10)
    changes = {word.word: word for word in found}
    some = [changes[word] for word in sorted(changes)[:: len(changes) // 4]]
    return [number for word in some for number in (word.cosine, word.usual, word.rank_z, word.overlap)]


def score_columns() -> list[float]:
    """Rankings of a known row of the table and of a new one, by the dot product and the popularity of a column."""
    vectors = get_vectors("table")
    recommender = swivel.Recommender(vectors, get_matrix("table"))
    known, new = vectors.vocabulary.tokens[5], dict.fromkeys(get_matrix("table").columns.tokens[:40:3], 2.0)
    return [
        *pick(recommender.score(known, kind="ranking")),
        *[found.score for row in (known, new) for found in recommender.recommend(row, 5)],
        recommender.ranking.popularity,
    ]


RESULTS: dict[str, Callable[[], list[float]]] = {
    "default": lambda: pick_sides(get_vectors("text, default")),
    "fast": lambda: pick_sides(get_vectors("text, fast")),
    "table": lambda: pick_sides(get_vectors("table")),
    "paper": lambda: pick_sides(get_vectors("triples")),
    "from old vectors": train_from_old_vectors,
    "extended": extend_vectors,
    "folded in": lambda: fold_in_rows("default", 300),
    "folded in, table": lambda: fold_in_rows("table", 300),
    "folded in, sampled": lambda: fold_in_rows("default", 9_000),
    "guessed": guess_words,
    "encoded": encode_texts,
    "compared": compare_models,
    "ranked": score_columns,
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrix_has_the_same_content_everywhere(name: str) -> None:
    assert digest_matrix(get_matrix(name)) == MATRICES[name]


@pytest.mark.parametrize("threads", [1, 3])
def test_matrix_does_not_depend_on_threads_and_memory(threads: int) -> None:
    matrix = swivel.count(iter(make_lines()), **OLD_RULE, options=swivel.RunOptions(threads=threads, memory="20MB"))
    assert digest_matrix(matrix) == MATRICES["text, default"]


@pytest.mark.parametrize("name", RESULTS)
def test_numbers_are_those_of_this_file(name: str) -> None:
    expected = np.array(NUMBERS[name].split(), np.float64)
    found = np.array(RESULTS[name]())
    assert found.shape == expected.shape

    differences = np.abs(found - expected)
    lines = [" ".join(f"{number:.6f}" for number in found[start : start + 8]) for start in range(0, len(found), 8)]
    assert differences.max() <= ALLOWED, (
        f"{name}: {(differences > ALLOWED).sum()} of {len(found)} numbers differ, by up to {differences.max():.1e}; "
        "if that is deliberate, replace them by\n" + "\n".join(lines)
    )


@pytest.mark.parametrize("name", ["text, default", "text, fast", "table", "triples"])
def test_vectors_have_the_same_bits_for_any_number_of_threads(name: str) -> None:
    one, two = get_vectors(name, threads=1), get_vectors(name, threads=2)
    assert one.columns is not None and two.columns is not None
    for first, second in ((one.rows, two.rows), (one.columns, two.columns), (one.vectors, two.vectors)):
        assert first.tobytes() == second.tobytes()


def test_run_gives_the_bits_of_count_and_train(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(make_lines()) + "\n", encoding="utf-8")
    vectors = swivel.run(text, tmp_path / "work", **OLD_RULE, **DEFAULT)
    assert digest_matrix(swivel.open_matrix(tmp_path / "work" / "matrix")) == MATRICES["text, default"]
    assert vectors.vectors.tobytes() == get_vectors("text, default").vectors.tobytes()
