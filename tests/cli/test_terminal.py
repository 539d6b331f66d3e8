"""What commands print: labels with control characters, and streams that are closed, full or without a reader."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from message_recorder import MessageRecorder
from swivel.cli import terminal
from swivel.cli.terminal import CommandProgress, align_table, draw_facts, draw_neighbors, next_command, quote
from swivel.cli.vector_tools import draw_comparison
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import SwivelWarning
from swivel.runtime.display import escape_controls
from swivel.runtime.progress import warnings_as_messages
from swivel.vectors import Neighbor, Vectors, VectorTable
from swivel.vectors.comparison import compare

COMMAND = [sys.executable, "-m", "swivel"]
FORGED = "b\x1b[31m\r\nerror: forged\x9b"
SHOWN = "b\\x1b[31m\\r\\nerror: forged\\u009b"


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "vectors"
    make_vectors().save(path)
    return path


def make_vectors() -> Vectors:
    values = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    return Vectors(VectorTable(Vocabulary(["a", FORGED, "c", "d"], [40, 30, 20, 10]), values))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    """Return a terminal that is standard output. A fixture would not do: pytest replaces the stream after it."""
    screen = _Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("žena \U0001f600 a\u200db", "žena \U0001f600 a\u200db"),
        ("a\x1b]0;t\x07", "a\\x1b]0;t\\x07"),
        ("a\r\n\tb\x7f\x85", "a\\r\\n\\tb\\x7f\\u0085"),
        ("a\u202eb\u2066\u2028\u200f", "a\\u202eb\\u2066\\u2028\\u200f"),
        (os.fsdecode(b"t\xff.txt"), "t\\xff.txt"),
    ],
)
def test_control_characters_are_visible_and_words_are_unchanged(text: str, expected: str) -> None:
    assert escape_controls(text) == expected
    assert escape_controls(expected) == expected


def test_results_on_a_terminal_have_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = open_terminal(monkeypatch)
    comparison = compare(make_vectors(), make_vectors(), min_count=1)
    draw_neighbors({FORGED: [Neighbor(FORGED, 0.5)]})
    draw_facts({"folder": FORGED, FORGED: {"inner": [FORGED]}})
    draw_comparison(comparison, 4)
    terminal.print_result(*align_table(["word", "number"], [[FORGED, "1"], ["long " * 9, "2"]]))
    terminal.print_json({"word": FORGED})

    shown = screen.getvalue()
    assert SHOWN in shown
    assert not set(shown) & set("\x1b\r\x9b")
    assert not [line for line in shown.split("\n") if line.startswith("error: ")]
    assert json.loads(shown.strip().split("\n")[-1]) == {"word": FORGED}


def test_the_columns_of_a_table_are_aligned_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch)
    lines = align_table(["word", "number"], [[FORGED, "1"], ["a", "22"]])
    assert len({len(line) for line in lines}) == 1


def test_results_in_a_pipe_are_unchanged(vectors: Path) -> None:
    done = subprocess.run([*COMMAND, "nearest", vectors, "a"], capture_output=True, check=True, timeout=60)
    assert FORGED.encode() in done.stdout


def test_a_command_on_a_terminal_escapes_labels(vectors: Path) -> None:
    master, slave = pty.openpty()
    done = subprocess.run([*COMMAND, "nearest", vectors, "a"], stdout=slave, stderr=subprocess.PIPE, timeout=60)
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert (done.returncode, done.stderr) == (0, b"")
    assert SHOWN in shown


@pytest.mark.parametrize("arguments", [["info", FORGED], ["nearest", FORGED, "a"], ["info", "a", FORGED]])
def test_an_error_is_one_line_whatever_the_name_of_a_file(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
    assert done.returncode in (1, 2)
    last = done.stderr.removesuffix("\n").split("\n")[-1]
    assert SHOWN in last
    assert last.startswith("error: ")


def test_progress_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    CommandProgress().message(f"reading {FORGED}")
    assert capsys.readouterr().err == f"reading {SHOWN}\n"


@pytest.mark.parametrize("word", ["a", "my work", "it's", "a\nb", "\x1b[31m'\\", "\x85\u200e", os.fsdecode(b"t\xff'")])
def test_a_command_can_be_pasted_into_a_shell(word: str) -> None:
    quoted = quote(word)
    assert escape_controls(quoted) == quoted
    try:
        command = ["bash", "-c", f"printf %s {quoted}"]
        done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    except FileNotFoundError:
        pytest.skip("bash is not installed")
    assert os.fsdecode(done.stdout) == word


def test_hints_are_quoted() -> None:
    assert next_command("train", Path("a b\n"), "-o", "vectors").endswith(" train $'a b\\n' -o vectors")


class _Broken(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(28, "No space left on device")

    def isatty(self) -> bool:
        return False


def test_messages_that_cannot_be_written_are_dropped() -> None:
    stream = terminal._wrap(io.TextIOWrapper(io.BufferedWriter(_Broken())), 2, has_results=False)
    for _ in range(1_000):
        print("a message", file=stream, flush=True)


def test_a_result_that_cannot_be_written_is_an_error_once() -> None:
    stream = terminal._wrap(io.TextIOWrapper(io.BufferedWriter(_Broken())), 1, has_results=True)
    with pytest.raises(OSError, match="No space left on device: 'standard output'"):
        print("a result", file=stream, flush=True)
    stream.flush()


def run_redirected(redirection: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command with a shell's redirection of its streams."""
    if "/dev/full" in redirection and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2>&- >&- <&-"])
def test_a_job_goes_on_without_messages(redirection: str, tmp_path: Path) -> None:
    (tmp_path / "counts.tsv").write_text("a\tb\t1\nb\tc\t2\n")
    done = run_redirected(redirection, "import", tmp_path / "counts.tsv", "-o", tmp_path / "matrix")
    assert done.returncode == 0
    assert (tmp_path / "matrix" / "manifest.json").exists()
    assert done.stdout == ("" if ">&- <" in redirection else f"{tmp_path}/matrix: 2 x 2, 2 cells observed\n")


def test_a_job_goes_on_when_the_reader_of_both_streams_has_ended(tmp_path: Path) -> None:
    (tmp_path / "counts.tsv").write_text("a\tb\t1\nb\tc\t2\n")
    reading, writing = os.pipe()
    os.close(reading)
    command = [*COMMAND, "import", str(tmp_path / "counts.tsv"), "-o", str(tmp_path / "matrix")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(command, stdout=writing, stderr=writing, check=False, env=environment, timeout=120)
    os.close(writing)
    assert done.returncode == 0
    assert (tmp_path / "matrix" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("redirection", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_a_result_that_is_lost_is_one_line(redirection: str, reason: str, vectors: Path) -> None:
    done = run_redirected(redirection, "nearest", vectors, "a")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: standard output: {reason}\n")


def test_errors_without_a_place_for_them_set_the_status() -> None:
    assert run_redirected("2>&-", "info", "nowhere").returncode == 1
    assert run_redirected("2>/dev/full", "info", "nowhere", "odd").returncode == 2


def test_warnings_of_swivel_are_messages_and_those_of_libraries_are_not() -> None:
    recorder = MessageRecorder()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with warnings_as_messages(recorder):
            warnings.warn("set something", SwivelWarning, stacklevel=1)
            warnings.warn("overflow encountered in cast", RuntimeWarning, stacklevel=1)
    assert recorder.lines == ["warning: set something"]
