"""Tests of `train --tune`: the search, its record in the folder, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner

import swivel
from message_recorder import MessageRecorder
from swivel.cli import cli
from swivel.errors import ConfigError, FolderExists
from swivel.estimator import SwivelEmbedding
from swivel.pipeline import tune
from swivel.pipeline.train import TUNING, fit_sparse
from swivel.pipeline.tune import Trial, Tuning
from swivel.recommender import Recommender
from swivel.runtime.options import RunOptions
from swivel.storage.manifest import read_manifest, seal


def make_cells(rows: int = 80, columns: int = 40) -> list[tuple[str, str, int]]:
    """Return noisy cells of rows and columns of the same of four groups."""
    rng = np.random.default_rng(1)
    chances = np.where(np.arange(rows)[:, None] % 4 == np.arange(columns) % 4, 0.6, 0.05)
    return [(f"r{i}", f"c{j}", 1) for i, j in np.argwhere(rng.random((rows, columns)) < chances).tolist()]


@pytest.fixture(scope="module")
def table() -> swivel.Matrix:
    return swivel.import_counts(make_cells())


def train(table: swivel.Matrix, out: Path | None = None, **settings: Any) -> swivel.Vectors:
    return swivel.train(table, out, tune=True, dim=4, epochs=3, backend="cpu", dtype="float32", **settings)


def search(scores: dict[int, float]) -> list[int]:
    """Return the exponents that are tried, in order, if fits have these scores."""
    tuning = Tuning("")
    while (exponent := tuning.next_exponent()) is not None:
        trial = Trial(exponent, 0.5, scores.get(exponent, 0.0), 0.0)
        tuning = dataclasses.replace(tuning, trials=(*tuning.trials, trial))
    return [trial.exponent for trial in tuning.trials]


def test_search_moves_uphill_and_ends_beside_the_best() -> None:
    assert search({0: 1}) == [0, 2, -2, 1, -1]
    assert search({0: 1, 2: 2, 4: 3, 3: 4}) == [0, 2, 4, 6, 5, 3, 1]
    assert search({exponent: -exponent + 9 for exponent in range(-9, 9)}) == [0, 2, -2, -4, -6, -5]


def test_the_best_fit_is_trained_and_recorded(table: swivel.Matrix, tmp_path: Path) -> None:
    recorder = MessageRecorder()
    vectors = train(table, tmp_path / "tuned", progress=recorder)
    plain = swivel.train(table, tmp_path / "plain", dim=4, epochs=3)
    manifest, usual = (read_manifest(tmp_path / name) for name in ("tuned", "plain"))

    trials = [Trial(**trial) for trial in manifest.facts["tuning"]["trials"]]
    best = max(trials, key=lambda trial: trial.score)
    assert best.score >= trials[0].score and trials[0].exponent == 0 and 5 <= len(trials) <= 13
    decays = [each.config["train"]["weight_decay"] for each in (manifest, usual)]
    assert decays[0] == pytest.approx(decays[1] * 2 ** (best.exponent / 2))
    assert manifest.config["ranking"] == {"popularity": best.popularity}
    assert "ranking" in usual.config and "tuning" not in usual.facts
    assert any(line.startswith(f"tuned in {len(trials)} fits: ") for line in recorder.lines)

    assert Recommender(vectors).ranking.popularity == best.popularity
    assert Recommender(vectors, popularity=0.3).ranking.popularity == 0.3
    assert Recommender(plain).ranking.popularity == usual.config["ranking"]["popularity"]
    vectors.save(tmp_path / "saved")
    assert Recommender(tmp_path / "saved").ranking.popularity == best.popularity


def test_fits_are_ranked_with_links_as_by_a_recommender(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every column has a partner in the same rows, which a vector of one dimension does not know.
    pairs = np.random.default_rng(1).random((300, 20)) < 0.15
    counts = scipy.sparse.csr_array(np.repeat(pairs, 2, axis=1).astype(float))

    def tuned_recall() -> float:
        fit = fit_sparse(counts, options=RunOptions(), tune=True, dim=1, epochs=3)
        return max(float(trial["recall"]) for trial in fit.facts["tuning"]["trials"])

    linked = tuned_recall()
    monkeypatch.setattr(tune, "MAX_LINKED_COLUMNS", 39)
    assert linked > 0.9 > tuned_recall()


def test_the_same_seed_gives_the_same_search(table: swivel.Matrix, tmp_path: Path) -> None:
    for name in ("one", "two"):
        train(table, tmp_path / name)
    facts = [read_manifest(tmp_path / name).facts["tuning"] for name in ("one", "two")]
    assert facts[0] == facts[1]
    assert not list(tmp_path.rglob(TUNING))


def test_an_interrupted_search_is_resumed_and_a_finished_one_is_not_repeated(
    table: swivel.Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[Any] = []

    def fit(*arguments: Any, **settings: Any) -> Any:
        fits.append(settings["weight_decay"])
        if len(fits) == 3:
            raise KeyboardInterrupt
        return fit_sparse(*arguments, **settings)

    monkeypatch.setattr(tune, "fit_sparse", fit)
    with pytest.raises(KeyboardInterrupt):
        train(table, tmp_path / "out")
    assert len(json.loads((tmp_path / "out" / TUNING).read_text())["trials"]) == 2

    train(table, tmp_path / "out")
    trials = read_manifest(tmp_path / "out").facts["tuning"]["trials"]
    assert len(fits) == len(trials) + 1 and fits[2] == fits[3]
    assert not (tmp_path / "out" / TUNING).exists()

    recorder = MessageRecorder()
    train(table, tmp_path / "out", progress=recorder)
    assert len(fits) == len(trials) + 1
    assert any("finished already, nothing to do" in line for line in recorder.lines)
    with pytest.raises(FolderExists, match="finished already with other settings or inputs"):
        train(table, tmp_path / "out", seed=7)
    assert len(fits) == len(trials) + 1


def test_a_record_that_is_damaged_is_ignored(
    table: swivel.Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "MAX_EXPONENT", 0)
    (tmp_path / TUNING).write_bytes(seal({"identity": "other", "trials": []}).replace(b"other", b"othor"))
    train(table, tmp_path)
    assert len(read_manifest(tmp_path).facts["tuning"]["trials"]) == 1


def test_an_unfinished_search_is_not_replaced_by_anything_else(
    table: swivel.Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        if (tmp_path / TUNING).exists():
            raise KeyboardInterrupt
        return fit_sparse(*_, **__)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(tune, "fit_sparse", interrupt)
        train(table, tmp_path)
    record = (tmp_path / TUNING).read_bytes()

    with monkeypatch.context() as patched:
        patched.setattr(tune, "fit_sparse", None)
        patched.setattr("swivel.pipeline.train_job.run_training", None)
        with pytest.raises(
            FolderExists, match="holds an unfinished search with other settings or inputs; use the same"
        ):
            train(table, tmp_path, seed=7)
        with pytest.raises(FolderExists, match="holds an unfinished search; pass tune=True and the same settings"):
            swivel.train(table, tmp_path, dim=4, epochs=3)
    assert (tmp_path / TUNING).read_bytes() == record
    assert [file.name for file in tmp_path.iterdir()] == [TUNING]

    swivel.train(table, tmp_path, dim=4, epochs=3, options=RunOptions(overwrite=True))
    assert not (tmp_path / TUNING).exists()


@pytest.mark.parametrize(("direction", "factor"), [(1, 8), (-1, 1 / 8)])
def test_factors_of_the_weight_decay_are_from_an_eighth_to_eight(direction: int, factor: float) -> None:
    tuning = Tuning("identity")
    while (exponent := tuning.next_exponent()) is not None:
        trial = Trial(exponent, popularity=0.0, recall=float(direction * exponent), ndcg=0.0)
        tuning = Tuning("identity", (*tuning.trials, trial))
    assert 2 ** (tuning.best.exponent / 2) == factor


def test_large_tables_are_tuned_on_some_of_their_rows(table: swivel.Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def fit(counts: Any, **settings: Any) -> Any:
        shapes.append(counts.shape)
        return fit_sparse(counts, **settings)

    monkeypatch.setattr(tune, "fit_sparse", fit)
    monkeypatch.setattr(tune, "MAX_ROWS", 30)
    monkeypatch.setattr(tune, "MAX_EXPONENT", 0)
    train(table)
    assert shapes == [(30, 40)]


def test_what_cannot_be_tuned_is_refused_in_one_line(
    table: swivel.Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = swivel.count(["a b c", "b c d"], min_count=1)
    for matrix, settings, message in (
        (text, {}, "tune is for tables; this matrix has counts of things of one kind, such as words: omit tune"),
        (table, {"recipe": "fast"}, "tune needs the recipe table, got 'fast'"),
        (table, {"weight_decay": 0.1}, "weight_decay is what tune chooses: omit one of them"),
        (table, {"init": swivel.train(table, dim=4, epochs=1)}, "tune starts from random vectors"),
    ):
        with pytest.raises(ConfigError, match=message):
            swivel.train(matrix, tune=True, **settings)

    monkeypatch.setattr(tune, "find_rank", lambda: (0, 2, 2))
    with pytest.raises(ConfigError, match="tune works in one process"):
        swivel.train(table, tmp_path / "ranks", tune=True)


def test_a_search_that_will_overwrite_a_result_is_resumed(
    table: swivel.Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(table, tmp_path / "out")
    fits: list[Any] = []

    def fit(*arguments: Any, **settings: Any) -> Any:
        fits.append(settings["weight_decay"])
        if len(fits) == 2:
            raise KeyboardInterrupt
        return fit_sparse(*arguments, **settings)

    monkeypatch.setattr(tune, "fit_sparse", fit)
    with pytest.raises(KeyboardInterrupt):
        train(table, tmp_path / "out", seed=7, options=RunOptions(overwrite=True))
    train(table, tmp_path / "out", seed=7, options=RunOptions(overwrite=True))
    assert len(fits) == len(read_manifest(tmp_path / "out").facts["tuning"]["trials"]) + 1


def test_another_unfinished_run_is_refused_before_the_search(
    table: swivel.Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("swivel.pipeline.train_job.combine_sides", interrupt)
        patched.setattr("swivel.training.checkpoint.CheckpointStore.is_due", lambda self: True)
        with pytest.raises(KeyboardInterrupt):
            swivel.train(table, tmp_path, dim=4, epochs=3, backend="cpu", dtype="float32")

    monkeypatch.setattr(tune, "fit_sparse", interrupt)
    with pytest.raises(FolderExists, match="holds an unfinished run with weight_decay"):
        train(table, tmp_path)
    assert not (tmp_path / TUNING).exists()


def test_a_tiny_table_cannot_be_tuned() -> None:
    with pytest.raises(ConfigError, match=r"tune holds out a tenth of the cells, and this table has only \d+: omit"):
        train(swivel.import_counts([("a", "x", 1), ("b", "y", 1), ("a", "y", 1)]))


def test_the_table_is_not_touched_if_it_is_the_output(tmp_path: Path) -> None:
    swivel.import_counts(make_cells(), tmp_path / "table")
    names = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="the output would replace the input"):
        swivel.train(tmp_path / "table", tmp_path / "table", tune=True, options=RunOptions(overwrite=True))
    assert sorted(tmp_path.rglob("*")) == names


def test_command_tunes(table: swivel.Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "MAX_EXPONENT", 0)
    swivel.import_counts(make_cells(), tmp_path / "matrix")
    words = ["train", str(tmp_path / "matrix"), "-o", str(tmp_path / "out"), "--tune", "--dim", "4", "--epochs", "2"]
    ended = CliRunner().invoke(cli, words)
    assert ended.exit_code == 0, ended.output
    assert "tuned in 1 fit: " in ended.stderr
    assert "ranking" in read_manifest(tmp_path / "out").config


def test_the_estimator_tunes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "MAX_EXPONENT", 0)
    counts = np.zeros((80, 40))
    for row, column, count in make_cells():
        counts[int(row[1:]), int(column[1:])] = count
    plain, tuned = (SwivelEmbedding(4, epochs=2, tune=is_tuned).fit(counts) for is_tuned in (False, True))
    assert plain.popularity_ is not None and tuned.popularity_ is not None
    assert tuned._ranking(None).popularity == tuned.popularity_
