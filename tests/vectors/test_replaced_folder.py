"""Vectors in memory carry what they were trained with, whatever happens to their folder and to what lies beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import swivel
from swivel.counts import Matrix
from swivel.vectors.folder import find_matrix

OVERWRITE = swivel.RunOptions(overwrite=True)
TEXT = ["red wine", "white wine", "red rose", "white rose"] * 5
CELLS = [("ann", "tea", 3.0), ("ann", "cake", 1.0), ("bob", "tea", 1.0), ("bob", "jam", 2.0), ("cid", "jam", 1.0)]


def import_table(out: Path, factor: int = 1, *, other: bool = False) -> Matrix:
    """Write a table of three rows; another one has the same labels, and other cells."""
    cells = [(row, column, count * factor) for row, column, count in CELLS]
    if other:
        cells = [
            ("ann", "jam", 1.0),
            ("ann", "tea", 1.0),
            ("bob", "cake", 5.0),
            ("cid", "tea", 1.0),
            ("cid", "jam", 2.0),
        ]
    return swivel.import_counts(cells, out, options=OVERWRITE)


def test_vectors_are_extended_as_trained_after_another_run_replaced_their_folder(tmp_path: Path) -> None:
    swivel.run(TEXT, tmp_path, dim=4, epochs=2, min_count=1, window=6)
    vectors = swivel.load(tmp_path)
    new_text = ["pink wine", "pink rose"] * 5
    expected = swivel.extend(swivel.load(tmp_path), new_text, min_count=1)

    swivel.run(TEXT, tmp_path, dim=4, epochs=9, min_count=1, window=2, seed=5, options=OVERWRITE)

    extended = swivel.extend(vectors, new_text, min_count=1)
    assert extended.settings == expected.settings
    assert extended.vocabulary.tokens == expected.vocabulary.tokens
    assert np.array_equal(extended.vectors, expected.vectors)
    assert not np.array_equal(swivel.load(tmp_path)["wine"], vectors["wine"]), "the other run made other vectors"


def test_a_recommender_never_takes_the_table_of_another_run(tmp_path: Path) -> None:
    swivel.train(import_table(tmp_path / "matrix"), tmp_path / "vectors", dim=2, epochs=2)
    vectors = swivel.load(tmp_path / "vectors")
    before = swivel.Recommender(vectors, links=False)  # Links are found in the table, too.
    assert before.matrix is not None and before.matrix.count("bob", "cake") == 0

    other = import_table(tmp_path / "matrix", other=True)
    swivel.train(other, tmp_path / "vectors", dim=2, epochs=2, recipe="fast", options=OVERWRITE)

    after = swivel.Recommender(vectors)
    assert after.matrix is None, "the table beside the folder is not the one of these vectors any more"
    assert after.ranking.popularity == before.ranking.popularity
    assert np.array_equal(after.score("ann", kind="ranking"), before.score("ann", kind="ranking"))
    with pytest.raises(swivel.SwivelError, match="pass matrix, or exclude_seen=False"):
        after.recommend("ann")
    loaded = swivel.Recommender(tmp_path / "vectors").matrix
    assert loaded is not None and loaded.fingerprint == other.fingerprint


@pytest.mark.parametrize("is_loaded", [False, True])
def test_saved_vectors_know_the_matrix_they_were_trained_on(tmp_path: Path, is_loaded: bool) -> None:
    matrix = import_table(tmp_path / "run" / "matrix")
    vectors = swivel.train(matrix, tmp_path / "trained" if is_loaded else None, dim=2, epochs=2)
    vectors.save(tmp_path / "run" / "vectors")
    found = find_matrix(swivel.load(tmp_path / "run"))
    assert found is not None and found.fingerprint == matrix.fingerprint

    # The same labels, and other counts.
    import_table(tmp_path / "other" / "matrix", factor=2)
    vectors.save(tmp_path / "other" / "vectors")
    assert find_matrix(swivel.load(tmp_path / "other")) is None
    assert swivel.Recommender(tmp_path / "other" / "vectors").matrix is None


def test_vectors_that_know_no_matrix_take_none(tmp_path: Path) -> None:
    matrix = import_table(tmp_path / "matrix")
    vectors = swivel.train(matrix, dim=2, epochs=2)
    vectors.replace(facts={}).save(tmp_path / "vectors")
    assert find_matrix(swivel.load(tmp_path / "vectors")) is None


def test_a_recommender_of_extended_vectors_takes_no_matrix_without_the_new_rows(tmp_path: Path) -> None:
    swivel.run(TEXT, tmp_path, dim=4, epochs=2, min_count=1)
    extended = swivel.extend(tmp_path, ["pink wine", "pink rose"] * 5, tmp_path / "extended", min_count=1)
    for vectors in (extended, swivel.load(tmp_path / "extended")):
        recommender = swivel.Recommender(vectors)
        assert recommender.matrix is None
        assert recommender.recommend("pink", 2, exclude_seen=False)
