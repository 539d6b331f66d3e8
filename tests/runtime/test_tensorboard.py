"""TensorBoard curves: measured values are in the event file, and all events are forwarded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import swivel
from swivel.cli import cli
from swivel.counts import Matrix
from swivel.errors import MissingExtra, StorageError
from swivel.runtime.progress import Progress, TensorboardProgress

NAMES = {"loss/all", "loss/observed", "loss/unobserved", "learning rate", "cells per second"}


class MeasureRecorder(Progress):
    def __init__(self) -> None:
        self.points: list[tuple[int, Mapping[str, float]]] = []
        self.lines: list[str] = []

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        self.points.append((step, values))

    def message(self, text: str) -> None:
        self.lines.append(text)


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(each.step, each.value) for each in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_event_file_contains_the_measured_values(planted: Matrix, tmp_path: Path) -> None:
    recorder = MeasureRecorder()
    progress = TensorboardProgress(tmp_path / "board", recorder)
    options = swivel.RunOptions(progress=progress, threads=1)
    swivel.train(planted, dim=4, epochs=3, block_size=21, options=options)
    written = read_events(tmp_path / "board")

    assert set(written) == NAMES

    for name in NAMES:
        assert [step for step, _ in written[name]] == [step for step, _ in recorder.points]
        expected = [values[name] for _, values in recorder.points]
        assert [value for _, value in written[name]] == pytest.approx(expected, rel=1e-6)
    assert any("training" in line for line in recorder.lines), "messages are forwarded"


def test_curves_end_at_the_last_step_with_a_decreasing_learning_rate(planted: Matrix) -> None:
    recorder = MeasureRecorder()
    swivel.train(planted, dim=4, epochs=4, block_size=21, options=swivel.RunOptions(progress=recorder, threads=1))
    steps = [step for step, _ in recorder.points]

    assert steps == sorted(set(steps))
    assert steps[-1] == 4 * 3 * 3, "epochs times blocks"

    rates = [values["learning rate"] for _, values in recorder.points]
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < rates[0] / 4  # the learning rate of the last step


def test_measured_losses_equal_those_of_the_epoch(planted: Matrix, tmp_path: Path) -> None:
    from swivel.storage.manifest import read_manifest

    recorder = MeasureRecorder()
    options = swivel.RunOptions(progress=recorder, threads=1)
    swivel.train(planted, tmp_path / "v", dim=4, epochs=1, block_size=62, options=options, zeros="all")
    (point,) = recorder.points
    (loss,) = read_manifest(tmp_path / "v").facts["losses"]

    assert point[1]["loss/all"] == pytest.approx(loss["mean"])
    assert point[1]["loss/observed"] == pytest.approx(loss["observed"])


def test_points_are_means_over_a_twentieth_of_an_epoch(planted: Matrix) -> None:
    recorder = MeasureRecorder()
    options = swivel.RunOptions(progress=recorder, threads=1)
    trained = swivel.train(planted, dim=4, epochs=2, block_size=2, device="cpu", zeros="all", options=options)

    # A twentieth of 31 x 31 blocks is 48, and a round has 31: every point is two rounds.
    assert [step for step, _ in recorder.points] == [62 * number for number in range(1, 32)]
    means = [loss["mean"] for loss in trained.facts["losses"]]
    assert np.mean([values["loss/all"] for _, values in recorder.points]) == pytest.approx(np.mean(means))
    assert all(values["cells per second"] > 0 for _, values in recorder.points)


def test_a_missing_package_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'swivel-embeddings\[tensorboard\]'"):
        TensorboardProgress(tmp_path)


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        TensorboardProgress(tmp_path / "file" / "board").measure(1, {"loss": 1.0})


@pytest.mark.parametrize("verb", ["train", "run"])
def test_command_line_writes_curves(verb: str, planted: Matrix, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("tea with milk and sugar\ncoffee with milk\n" * 5)
    source = str(planted.path if verb == "train" else tmp_path / "text.txt")
    arguments: list[Any] = [verb, source, "-o", tmp_path / "out", "--dim", 4, "--epochs", 2, "--quiet", "--no-report"]
    done = CliRunner().invoke(cli, [*map(str, arguments), "--tensorboard", str(tmp_path / "board")])
    assert done.exit_code == 0, done.output
    assert set(read_events(tmp_path / "board")) == NAMES
