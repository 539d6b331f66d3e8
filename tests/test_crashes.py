"""Commands that are killed and started again; `make crashes` is the long version. And two at once."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import swivel
from crash_runs import (
    Broken,
    Case,
    Life,
    check_kept,
    differing,
    digest_output,
    make_world,
    run_to_end,
    run_undisturbed,
    stamp_stages,
)
from swivel.cli import cli, terminal
from swivel.cli.flags import Command
from swivel.cli.terminal import COMPLETE, RESUMES, STARTS_OVER, describe_kept, say_goodbye
from swivel.corpus.sources import is_pipe
from swivel.errors import FolderLocked
from swivel.pipeline import train_job as making
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import ForwardingProgress, Task
from swivel.storage.files import create_folder
from swivel.storage.lock import FolderLock
from swivel.storage.manifest import MANIFEST
from swivel.training.checkpoint import remove_checkpoints
from swivel.vectors import Vectors

TEXT = "tea milk sugar\nmilk tea\nsugar cup tea\n" * 20


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("crashes") / "world"
    return {case.name: case for case in make_world(folder, epochs=4, lines=2_000)}


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("count", 1),
        ("train cpu", 1),
        pytest.param("import", 2, marks=pytest.mark.slow),
        pytest.param("run", 4, marks=pytest.mark.slow),
    ],
)
def test_killed_command_ends_with_the_bits_of_an_undisturbed_one(
    world: dict[str, Case], tmp_path: Path, name: str, kills: int
) -> None:
    seconds, rng = run_undisturbed(world[name], tmp_path / "calm"), random.Random(5)
    has_been_killed = False
    while not has_been_killed:  # On a busy machine a command may end before its moment comes: again, and earlier.
        outcome = run_to_end(world[name], tmp_path / "killed", seconds, kills, rng)
        assert not list(differing(digest_output(tmp_path / "killed"), digest_output(tmp_path / "calm")))
        has_been_killed = bool(outcome.kills)
        seconds /= 2


def make_stage(out: Path, content: str, *, overwrite: bool = False) -> None:
    with create_folder(out / "stage", "example", overwrite=overwrite) as writer:
        writer.write_lines("part.txt", [content])
        writer.finish(config={}, inputs={}, facts={"training_seconds": len(content)})


def test_harness_sees_a_finished_stage_that_is_made_again(tmp_path: Path) -> None:
    make_stage(tmp_path, "same")
    finished = stamp_stages(tmp_path)
    assert set(finished) == {"stage/manifest.json", "stage/part.txt"}
    check_kept(Case("example", ()), tmp_path, finished)
    make_stage(tmp_path, "same", overwrite=True)
    with pytest.raises(Broken, match="was finished, and was made again or lost"):
        check_kept(Case("example", ()), tmp_path, finished)


def test_harness_sees_a_bit_that_differs_and_a_file_that_was_left_behind(tmp_path: Path) -> None:
    for name, content in (("calm", "tea"), ("other", "tee")):
        make_stage(tmp_path / name, content)
    put(tmp_path / "other" / "scratch-1" / "x")
    found = differing(digest_output(tmp_path / "other"), digest_output(tmp_path / "calm"))
    assert list(found) == ["scratch-1/x", "stage/manifest.json", "stage/part.txt"]
    assert not list(differing(*[digest_output(tmp_path / "calm")] * 2))


class Interrupting(ForwardingProgress):
    """Interrupts when training has ended: after the last step, before anything is written."""

    def end(self, task: Task) -> None:
        super().end(task)
        signal.raise_signal(signal.SIGINT)


def test_interrupt_after_the_last_step_is_heeded_when_the_vectors_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = swivel.count([TEXT], min_count=1)
    written: list[Path] = []

    def note(path: Path) -> None:
        written.append(path)
        remove_checkpoints(path)

    monkeypatch.setattr(making, "remove_checkpoints", note)
    with pytest.raises(KeyboardInterrupt):
        swivel.train(matrix, tmp_path / "v", dim=4, epochs=2, options=RunOptions(threads=1, progress=Interrupting()))
    assert written == [tmp_path / "v"]
    assert len(Vectors.load(tmp_path / "v")) == 4


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return path


def parse(*arguments: str) -> click.Context:
    """Return the context of a command of `swivel`."""
    verb, *rest = arguments
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return command.make_context(verb, rest)


@pytest.mark.parametrize(
    ("arguments", "kept", "line"),
    [
        (["count", "t", "-o", "{}"], None, STARTS_OVER),
        (["count", "t", "-o{}"], "manifest.json", RESUMES),
        (["count", "t", "--output={}", "--overwrite"], "manifest.json", STARTS_OVER),
        (["train", "m", "--output", "{}"], "lock", STARTS_OVER),
        (["train", "m", "-o", "{}"], "checkpoint-2/manifest.json", RESUMES),
        (["train", "m", "-o", "{}", "--overwrite"], "checkpoint-2/manifest.json", RESUMES),
        (["run", "t", "-o", "{}"], "matrix/rows.txt", STARTS_OVER),
        (["run", "t", "-o", "{}"], "matrix/manifest.json", RESUMES),
        (["run", "t", "-o", "{}", "--traceback"], "vectors/checkpoint-1/manifest.json", RESUMES),
        (["import", "t", "-o", "{}"], "manifest.json", RESUMES),
        (["count", "-", "-o", "{}"], "manifest.json", COMPLETE),
        (["import", "-", "-o", "{}"], "manifest.json", COMPLETE),
        (["run", "-", "-o", "{}"], "matrix/rows.txt", STARTS_OVER),
        (
            ["run", "a", "-", "-o", "{}", "--window", "3", "--dim", "9"],
            "vectors/checkpoint-1/manifest.json",
            "resume with the same settings: swivel train {0}/matrix -o {0}/vectors",
        ),
        (
            ["run", "-", "-o", "{}/a\u202eb"],
            "a\u202eb/matrix/manifest.json",
            "resume with the same settings: swivel train $'{0}/a\\u202eb/matrix' -o $'{0}/a\\u202eb/vectors'",
        ),
        (["nearest", "{}", "word"], "manifest.json", ""),
        (["compare", "a", "b", "-o", "{}"], "manifest.json", ""),
        (["demo"], "manifest.json", STARTS_OVER),
    ],
)
def test_last_line_of_an_interrupted_command_is_true(
    tmp_path: Path, arguments: Sequence[str], kept: str | None, line: str
) -> None:
    if kept is not None:
        put(tmp_path / kept)
    assert describe_kept(parse(*(argument.format(tmp_path) for argument in arguments))) == line.format(tmp_path)


def test_the_last_line_knows_pipes_and_manifests_as_all_other_code_does(tmp_path: Path) -> None:
    """The module cannot import it, because that would import NumPy."""
    os.mkfifo(tmp_path / "pipe")
    put(tmp_path / "file")
    for name in ("-", "pipe", "file", "", "missing"):
        source = name if name == "-" else str(tmp_path / name)
        assert terminal._is_pipe(source) == is_pipe(Path(source))
    assert terminal.MANIFEST == MANIFEST


def test_the_last_line_needs_no_numpy_whose_import_was_interrupted(tmp_path: Path) -> None:
    put(tmp_path / "matrix" / "manifest.json")
    code = """if True:
        import sys
        sys.modules["numpy"] = None  # importing it fails
        from swivel.cli.terminal import describe_kept
        from swivel.cli.main import run
        print(describe_kept(run.make_context("run", ["t", "-o", sys.argv[1]])))
    """
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{RESUMES}\n"


def test_goodbye_tells_termination_from_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(Command, "running", parse("count", "t", "-o", "nowhere"))
    try:
        say_goodbye(signal.SIGTERM)
        monkeypatch.setattr(Command, "running", parse("info"))
        say_goodbye(signal.SIGINT)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert capsys.readouterr().err == f"terminated; {STARTS_OVER}\ninterrupted\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, sets, and what comes of them."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "text.txt").write_text(TEXT)
    (folder / "new.txt").write_text(TEXT.replace("cup", "mug"))
    (folder / "triples.tsv").write_text("tea\tmilk\t2\nmilk\tcup\t1\n")
    put(folder / "sets" / "pairs.tsv").write_text("tea\tmilk\t3\nmilk\tcup\t1\nsugar\ttea\t2\n")
    swivel.run(str(folder / "text.txt"), folder / "run", dim=4, epochs=1, min_count=1, options=RunOptions(threads=1))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        "count text.txt -o out",
        "import triples.tsv -o out",
        "add run/matrix run/matrix -o out",
        "train run/matrix -o out",
        "run text.txt -o out",
        "extend run/vectors new.txt -o out --min-count 1",
        "export run/vectors out --format swivel",
    ],
    ids=lambda arguments: str(arguments).split()[0],
)
def test_every_verb_that_writes_a_folder_is_refused_while_another_writes_it(
    small: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.chdir(small)
    Path("out").mkdir(exist_ok=True)
    lock = FolderLock(Path("out"))
    lock.acquire()
    try:
        result = CliRunner().invoke(cli, arguments.split())
        assert isinstance(result.exception, FolderLocked), result.output
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        assert str(result.exception) == f"out: {holder} is writing to it; wait until it finishes"
        assert "reading" not in result.output, "at once, not after minutes"
        assert [file.name for file in Path("out").iterdir()] == ["lock"], "the other's folder is left alone"
    finally:
        lock.release()


def test_second_process_is_refused_while_the_first_one_reads(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "swivel", "count", "-", "-o", str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as first:
        assert first.stdin is not None
        assert first.stderr is not None
        first.stdin.write(TEXT.encode())
        assert first.stderr.readline()  # It reads, and waits for more.
        life = Life(Case("second", ("count", str(small / "text.txt"), "-o", "{out}")), out)
        assert life.wait(60) == 1
        assert life.text() == (
            f"error: {out}: process {first.pid} on {socket.gethostname()} is writing to it; wait until it finishes\n"
        )
        first.stdin.close()
        assert first.wait(60) == 0
    assert swivel.count(str(small / "text.txt"), tmp_path / "other").shape == (4, 16)
