"""Curves for TensorBoard: what was measured is in the event file, and everything else is handed on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import swivel
from swivel.cli import cli
from swivel.counts import Matrix
from swivel.errors import MissingExtra, StorageError
from swivel.runtime.progress import SilentProgress
from swivel.runtime.tensorboard import TensorboardProgress
from swivel.training.metrics import POINTS_PER_EPOCH, TrainingMetrics
from swivel.training.objective import Loss

NAMES = {"loss/all", "loss/observed", "loss/unobserved", "learning rate", "cells per second"}


class Listening(SilentProgress):
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


def test_event_file_has_what_was_measured(planted: Matrix, tmp_path: Path) -> None:
    heard = Listening()
    progress = TensorboardProgress(tmp_path / "board", heard)
    options = swivel.RunOptions(progress=progress, threads=1)
    swivel.train(planted, dim=4, epochs=3, block_size=21, options=options)
    written = read_events(tmp_path / "board")
    assert set(written) == NAMES
    for name in NAMES:
        assert [step for step, _ in written[name]] == [step for step, _ in heard.points]
        expected = [values[name] for _, values in heard.points]
        assert [value for _, value in written[name]] == pytest.approx(expected, rel=1e-6)
    assert any("training" in line for line in heard.lines), "everything else is handed on"


def test_curves_end_at_the_last_step_with_a_falling_rate(planted: Matrix) -> None:
    heard = Listening()
    swivel.train(planted, dim=4, epochs=4, block_size=21, options=swivel.RunOptions(progress=heard, threads=1))
    steps = [step for step, _ in heard.points]
    assert steps == sorted(set(steps))
    assert steps[-1] == 4 * 3 * 3, "epochs times blocks"
    rates = [values["learning rate"] for _, values in heard.points]
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < rates[0] / 4  # that the last step was taken at


def test_losses_that_are_measured_add_up_to_those_of_the_pass(planted: Matrix, tmp_path: Path) -> None:
    from swivel.storage import read_manifest

    heard = Listening()
    options = swivel.RunOptions(progress=heard, threads=1)
    swivel.train(planted, tmp_path / "v", dim=4, epochs=1, block_size=62, options=options, zeros="all")
    (point,) = heard.points
    (loss,) = read_manifest(tmp_path / "v").facts["losses"]
    assert point[1]["loss/all"] == pytest.approx(loss["mean"])
    assert point[1]["loss/observed"] == pytest.approx(loss["observed"])


def test_a_pass_has_some_points_however_many_steps_it_has() -> None:
    heard, now = Listening(), iter(range(10_000))
    meter = TrainingMetrics(heard, 1000, clock=lambda: float(next(now)))
    for step in range(1, 1001):
        meter.add(Loss(float(step), 1.0, 0.0, 0.0), 1, 10.0, 0.1, step)
    assert len(heard.points) == POINTS_PER_EPOCH
    step, values = heard.points[0]
    assert (step, values["loss/observed"]) == (50, 25.5)
    assert values["cells per second"] == 50 * 10.0  # the clock of this test ticks once a point


def test_a_run_without_the_package_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'swivel-embeddings\[tensorboard\]'"):
        TensorboardProgress(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
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
