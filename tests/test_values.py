"""Matrices and vectors are values: in memory or opened from a folder, they can be pickled, copied and stored."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import swivel
from stored import folder_of
from swivel.config import STAGES
from swivel.counts import Matrix, open_matrix
from swivel.errors import ConfigError

TEXT = ["red wine and white wine", "red rose and white rose", "white wine or red rose"] * 4
QUICK: dict[str, Any] = {"dim": 4, "epochs": 2, "device": "cpu"}


def content(matrix: Matrix) -> tuple[Any, ...]:
    cells = matrix.to_scipy()
    labels = matrix.rows.tokens, matrix.columns.tokens, matrix.column_parts, matrix.columns_per_row
    sums = matrix.row_sums.tolist(), matrix.column_sums.tolist(), matrix.total
    return cells.toarray().tolist(), labels, sums, matrix.config, matrix.layout, matrix.cell_count


@pytest.fixture(params=["default", "fast", "table"])
def matrix(request: pytest.FixtureRequest) -> Matrix:
    if request.param == "table":
        return swivel.import_counts([("ann", "tea", 1.5), ("bob", "jam", 2), ("ann", "jam", 7)])
    return swivel.count(TEXT, recipe=request.param, min_count=1)


@pytest.mark.parametrize("transform", ["none", "log"])
def test_a_matrix_is_the_same_after_pickling_and_copying(matrix: Matrix, transform: str) -> None:
    matrix = matrix.transformed(transform).reblocked(2, 2)
    for other in (pickle.loads(pickle.dumps(matrix)), copy.deepcopy(matrix), copy.copy(matrix)):
        assert content(other) == content(matrix)
        assert other.fingerprint == matrix.fingerprint


def test_a_matrix_in_memory_is_the_one_that_it_is_saved_as(matrix: Matrix, tmp_path: Path) -> None:
    matrix.save(tmp_path / "matrix")
    opened = open_matrix(tmp_path / "matrix")
    opened.verify()
    assert content(opened) == content(matrix)
    assert opened.fingerprint == matrix.fingerprint
    assert opened.to_memory().path is None


def test_the_matrix_of_a_folder_outlives_it_if_it_is_pickled(tmp_path: Path) -> None:
    stored = swivel.count(TEXT, tmp_path / "matrix", min_count=1)
    data, expected = pickle.dumps(stored), content(stored)
    (tmp_path / "data").write_bytes(data)
    shutil.rmtree(tmp_path / "matrix")
    assert content(pickle.loads(data)) == expected

    code = "import pickle, sys; m = pickle.loads(open(sys.argv[1], 'rb').read()); print(m.count('red', m.columns[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) == expected[0][stored.rows.id("red")][1]


def test_training_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = swivel.import_counts([("ann", "tea", 1), ("bob", "jam", 2), ("ann", "jam", 7)])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    changed = tmp_path.stat().st_mtime_ns
    vectors = swivel.train(table, **QUICK, block_size=1)  # in other blocks than those of the matrix
    assert tmp_path.stat().st_mtime_ns == changed
    assert vectors.path is None


def test_vectors_in_memory_are_those_of_a_folder(tmp_path: Path) -> None:
    matrix = swivel.count(TEXT, min_count=1)
    in_memory, stored = swivel.train(matrix, **QUICK), swivel.train(matrix, tmp_path / "v", **QUICK)
    assert in_memory.vectors.tobytes() == stored.vectors.tobytes()
    assert in_memory.settings == stored.settings
    loaded = swivel.load(tmp_path / "v")
    for vectors in (stored, loaded, pickle.loads(pickle.dumps(in_memory))):
        known = {name: value for name, value in vectors.facts.items() if name not in ("library", "training_seconds")}
        assert known == {name: in_memory.facts[name] for name in known}


def test_vectors_in_memory_can_be_extended_and_saved(tmp_path: Path) -> None:
    vectors = swivel.train(swivel.count(TEXT, min_count=1), **QUICK)
    extended = swivel.extend(vectors, ["pink wine", "pink rose"] * 5)
    assert "pink" in extended and extended.facts["trained_rows"] == len(vectors)

    extended.save(tmp_path / "saved")
    again = swivel.extend(swivel.load(tmp_path / "saved"), ["blue wine", "blue rose"] * 5)
    assert "blue" in again and again.facts["trained_rows"] == len(vectors)


def test_vectors_keep_what_they_were_trained_with_when_their_folder_is_replaced(tmp_path: Path) -> None:
    table = swivel.import_counts([("ann", "tea", 1), ("bob", "jam", 2), ("ann", "jam", 7)], tmp_path / "matrix")
    vectors = swivel.train(table, tmp_path / "vectors", **QUICK)
    settings, matrix = vectors.settings, vectors.facts["matrix"]

    options = swivel.RunOptions(overwrite=True)
    other = swivel.import_counts(
        [("ann", "tea", 3), ("bob", "jam", 9), ("ann", "jam", 1)], tmp_path / "matrix", options=options
    )
    swivel.train(other, tmp_path / "vectors", **{**QUICK, "dim": 3}, options=options)
    assert (vectors.settings, vectors.facts["matrix"]) == (settings, matrix)
    recommender = swivel.Recommender(vectors)
    assert recommender.matrix is None  # The one beside them is that of other vectors.
    with pytest.raises(ConfigError, match="matrix is needed"):
        recommender.recommend("ann")


def test_saved_vectors_know_their_matrix(tmp_path: Path) -> None:
    cells = [("ann", "tea", 1), ("bob", "jam", 2), ("ann", "jam", 7)]
    table = swivel.import_counts(cells)
    swivel.train(table, **QUICK).save(tmp_path / "vectors")
    table.save(tmp_path / "matrix")
    recommender = swivel.Recommender(tmp_path / "vectors")
    assert recommender.matrix is not None and folder_of(recommender.matrix) == tmp_path / "matrix"

    swivel.import_counts([(row, column, 5) for row, column, _ in cells]).save(tmp_path / "matrix", overwrite=True)
    assert swivel.Recommender(tmp_path / "vectors").matrix is None  # the same labels, other counts


def test_a_run_resolves_the_settings_of_each_stage_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constructed: Counter[str] = Counter()
    checks = {name: vars(stage)["__post_init__"] for name, stage in STAGES.items()}
    for name, stage in STAGES.items():

        def count_and_check(self: Any, name: str = name) -> None:
            constructed[name] += 1
            checks[name](self)

        monkeypatch.setattr(stage, "__post_init__", count_and_check)
    swivel.run(TEXT, tmp_path / "run", min_count=1, **QUICK)
    # The text decides about the tokenizer "auto".
    assert constructed == dict.fromkeys(STAGES, 1) | {"corpus": 2}
    assert all(dataclasses.is_dataclass(stage) for stage in STAGES.values())


def test_random_access_to_pickled_cells(matrix: Matrix) -> None:
    other = pickle.loads(pickle.dumps(matrix))
    expected = matrix.to_scipy().toarray()
    for i in range(other.shape[0]):
        for j in range(other.shape[1]):
            assert np.isclose(other.count(other.rows[i], other.columns[j]), expected[i, j])
