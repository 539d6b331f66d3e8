"""Stages of experiments: each runs once, and its time and memory are those of its own process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import stage_jobs
from experiments.stages import MEASURES, Measure, Stages, run_in_process
from swivel.errors import ConfigError, SwivelError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT
from swivel.storage.files import create_folder

QUIET = RunOptions(threads=3, progress=SILENT)


@pytest.fixture(autouse=True)
def forget_stages(ran_stages: list[str]) -> None:
    ran_stages.clear()


def write(out: Path, text: str = "done", *, options: RunOptions) -> None:
    out.write_text(text)


def write_folder(out: Path, *, options: RunOptions) -> None:
    with create_folder(out, "test", overwrite=True) as folder:
        folder.finish(config={}, inputs={}, facts={})


def test_a_finished_stage_is_not_run_again(tmp_path: Path, ran_stages: list[str]) -> None:
    for _ in range(2):
        first = Stages(tmp_path, QUIET)
        assert first.run("one", tmp_path / "one", write, made_from={"dim": (1, 2)}) == tmp_path / "one"
        first.run("two", tmp_path / "two", write, "more", made_from={}, after="one")
    assert ran_stages == ["one", "two"]
    assert (tmp_path / "two").read_text() == "more"
    assert Stages(tmp_path, QUIET).measure("one") == Measure(2.5, 1 << 20)


@pytest.mark.parametrize("change", ["input", "input of the stage before", "result removed", "overwrite"])
def test_a_stage_is_run_again_after_a_change(tmp_path: Path, ran_stages: list[str], change: str) -> None:
    def run(dim: int, scale: int, options: RunOptions = QUIET) -> None:
        found = Stages(tmp_path, options)
        found.run("one", tmp_path / "one", write, made_from={"dim": dim})
        found.run("two", tmp_path / "two", write, made_from={"scale": scale}, after="one")

    run(1, 1)
    ran_stages.clear()
    if change == "input":
        run(1, 2)
    elif change == "input of the stage before":
        run(2, 1)
    elif change == "overwrite":
        run(1, 1, RunOptions(overwrite=True, progress=SILENT))
    else:
        (tmp_path / "two").unlink()
        run(1, 1)
    assert ran_stages == (["two"] if change in ("input", "result removed") else ["one", "two"])


def test_a_stage_that_fails_is_not_finished(tmp_path: Path, ran_stages: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError):
            Stages(tmp_path, QUIET).run("one", tmp_path / "one", stage_jobs.fail, made_from={})
    assert ran_stages == ["one", "one"]
    assert not (tmp_path / MEASURES).exists()


@pytest.mark.parametrize("left", ["manifest.json", "checkpoint-1"])
def test_a_stage_that_continues_an_interrupted_one_has_no_time(
    tmp_path: Path, ran_stages: list[str], left: str
) -> None:
    (tmp_path / "one" / left).mkdir(parents=True)
    done = Stages(tmp_path, QUIET)
    done.run("one", tmp_path / "one", lambda out, options: None, made_from={})
    assert done.measure("one") == Measure(None, 1 << 20)

    anew = Stages(tmp_path, RunOptions(overwrite=True, progress=SILENT))
    anew.run("one", tmp_path / "one", lambda out, options: None, made_from={})
    assert anew.measure("one") == Measure(2.5, 1 << 20)


def test_a_folder_is_a_result(tmp_path: Path, ran_stages: list[str]) -> None:
    for _ in range(2):
        Stages(tmp_path, QUIET).run("one", tmp_path / "one", write_folder, made_from={})
    assert ran_stages == ["one"]
    assert json.loads((tmp_path / MEASURES).read_text())["one"]["seconds"] == 2.5


# The real processes


def test_jobs_run_in_processes_of_their_own_and_their_memory_is_measured(tmp_path: Path) -> None:
    small, large = (
        run_in_process("one", stage_jobs.write_options, (tmp_path / f"{size}", size), QUIET) for size in (1, 300)
    )
    threads, process = (tmp_path / "300").read_text().split()
    assert (threads, int(process) != os.getpid()) == ("3", True)
    assert small.seconds is not None and 0 <= small.seconds < 60  # rounded
    if sys.platform == "linux":
        assert small.peak_bytes is not None and large.peak_bytes is not None
        assert 250 << 20 < large.peak_bytes - small.peak_bytes < 350 << 20


def test_errors_of_a_process_are_raised_here(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dim must be positive"):
        run_in_process("one", stage_jobs.fail, (tmp_path / "one",), QUIET)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_process_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SwivelError, match="one: the process was killed, probably because memory ran out"):
        run_in_process("one", stage_jobs.kill_itself, (tmp_path / "one",), QUIET)
