"""The command line as a process: exit statuses, signals, pipes and terminals."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swivel._version import __version__

COMMAND = [sys.executable, "-m", "swivel"]
LONG = ["--recipe", "fast", "--min-count", "1", "--dim", "8", "--block-size", "100", "--backend", "cpu"]
LONG += ["--dtype", "float32", "--no-report"]


def swivel(*arguments: object, **keywords: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    keywords = {"capture_output": True, "encoding": "utf-8", "errors": "replace", "timeout": 120, **keywords}
    return subprocess.run(command, check=False, **keywords)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    lines = [" ".join(f"w{(line * step) % 300}" for step in range(1, 20)) for line in range(600)]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_exit_statuses_are_those_of_a_good_citizen() -> None:
    done = swivel("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"swivel, version {__version__}\n", "")
    missing = swivel("info", "nowhere")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "error: nowhere: no such folder\n"
    wrong = swivel("count", "nowhere", "-o", "nowhere", "--window", "0")
    assert (wrong.returncode, wrong.stderr) == (2, "error: --window must be a positive integer, got 0\n")


def test_unexpected_error_is_one_line_too(text: Path, tmp_path: Path) -> None:
    broken = "import swivel.pipeline.count as p, swivel.cli; p.count = None; swivel.cli.main()"
    arguments = [sys.executable, "-c", broken, "count", str(text), "-o", str(tmp_path)]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "error: 'NoneType' object is not callable (unexpected; --traceback shows where)\n"


# The command gets a signal from itself in its second epoch, and every advance of a bar is drawn: what it prints does
# not depend on the speed of the machine.
STOPPED = """if True:
    import signal, sys
    from swivel.__main__ import main
    from swivel.cli.terminal import LogLines
    from swivel.runtime.progress import BarProgress, _Bar

    number = int(sys.argv.pop(1))
    begin, advance_bar, advance_log = BarProgress.begin, _Bar.advance, LogLines.advance

    def begin_and_wait(progress, *job):
        task = begin(progress, *job)
        progress._timer.join()  # The bars are started by a thread.
        return task

    def stop_in_epoch_2(note):
        global number
        if number and note.startswith("epoch 2/"):
            once, number = number, 0  # A second signal would end the command without a checkpoint.
            signal.raise_signal(once)

    def advance_and_draw(bar, amount=1, note=""):
        advance_bar(bar, amount, note)
        bar.display.refresh()
        stop_in_epoch_2(note)

    def advance_lines(log, amount=1, note=""):
        advance_log(log, amount, note)
        stop_in_epoch_2(note)

    BarProgress.begin, _Bar.advance, LogLines.advance = begin_and_wait, advance_and_draw, advance_lines
    main()
"""


def stopped_run(number: int, texts: object, out: Path) -> list[str]:
    """Return the command of a run of five epochs that gets a signal in its second one."""
    return [sys.executable, "-c", STOPPED, str(int(number)), "run", str(texts), "-o", str(out), *LONG, "--epochs", "5"]


def stop_run(number: int, texts: object, out: Path, **keywords: Any) -> subprocess.CompletedProcess[str]:
    command = stopped_run(number, texts, out)
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, **keywords)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.splitlines()[-1]


def test_interrupted_run_leaves_with_one_line_and_goes_on_when_given_again(text: Path, tmp_path: Path) -> None:
    stopped = stop_run(signal.SIGINT, text, tmp_path / "out")
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert last_line(stopped) == "interrupted; run the same command again to resume"
    done = swivel("run", text, "-o", tmp_path / "out", *LONG, "--epochs", "5")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^resuming after [\d,]+ of [\d,]+ steps$", done.stderr, re.MULTILINE)
    assert done.stdout == f"{tmp_path / 'out' / 'vectors'}: 300 vectors of 8 dimensions\n"


def test_terminated_run_leaves_with_one_line_and_its_own_status(text: Path, tmp_path: Path) -> None:
    """The signal comes from another process, and the training would take an hour."""
    command = [*COMMAND, "run", str(text), "-o", str(tmp_path / "out"), *LONG, "--epochs", "1000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(line.startswith("training 300 x 300") for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert err.splitlines()[-1] == "terminated; run the same command again to resume"


def test_terminated_run_of_standard_input_names_the_command_that_resumes(text: Path, tmp_path: Path) -> None:
    with text.open() as file:
        stopped = stop_run(signal.SIGTERM, "-", tmp_path / "out", stdin=file)
    assert stopped.returncode == 143

    what, _, command = last_line(stopped).rpartition(": ")
    assert what == "terminated; resume with the same settings"
    program, *arguments = shlex.split(command)
    assert program.endswith("swivel")
    training = [word for word in LONG if word not in ("--min-count", "1")]
    done = swivel(*arguments, *training, "--epochs", "5")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^resuming after [\d,]+ of [\d,]+ steps$", done.stderr, re.MULTILINE)
    assert done.stdout == f"{tmp_path / 'out' / 'vectors'}: 300 vectors of 8 dimensions\n"


def test_standard_input_is_read_and_odd_words_are_printed_somehow(tmp_path: Path) -> None:
    done = swivel("run", "-", "-o", tmp_path, *LONG, "--epochs", "1", input="žena dítě\n" * 3)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'vectors'}: 2 vectors of 8 dimensions\n")
    done = swivel("nearest", tmp_path, "dítě", env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, "\\u017eena" in done.stdout) == (0, True), done.stderr


def test_reader_that_goes_away_leaves_no_traceback() -> None:
    process = subprocess.Popen([*COMMAND, "run", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 1
    process.stderr.close()


def read_terminal(command: list[str]) -> tuple[int, str]:
    """Run a command on a terminal of its own and return its status and what is drawn there."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"})
    shown = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other side is closed.
            break
        if not data:
            break
        shown += data
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.decode()


def test_terminal_sees_a_bar_that_goes_away(text: Path, tmp_path: Path) -> None:
    status, shown = read_terminal(stopped_run(signal.SIGINT, text, tmp_path))
    assert status == 130
    assert re.search(r"training .*━.* \d+% .* cells/s \d[\d:]+ left", shown)  # All on one line.
    # Below it, whole.
    assert re.search(r"\n[^\n]*  epoch \d+/5, loss \S+ \(observed \S+, unobserved \S+\)", shown)
    *_, after_the_bar = shown.split("\x1b[2K")
    assert after_the_bar.strip().removesuffix("\x1b[0m").endswith("run the same command again to resume")
    assert "━" not in after_the_bar


def test_terminal_sees_the_next_command_last(text: Path, tmp_path: Path) -> None:
    status, shown = read_terminal([*COMMAND, "run", str(text), "-o", str(tmp_path), *LONG, "--epochs", "2"])
    assert status == 0
    assert shown.removesuffix("\x1b[0m").rstrip().splitlines()[-1].startswith("next: swivel nearest ")


def test_quiet_terminal_sees_the_result_alone(text: Path, tmp_path: Path) -> None:
    status, shown = read_terminal([*COMMAND, "run", str(text), "-o", str(tmp_path), *LONG, "--epochs", "2", "--quiet"])
    shown = shown.removesuffix("\x1b[0m")  # colorama's last word, where it is installed: numba loads it
    assert (status, shown) == (0, f"{tmp_path}/vectors: 300 vectors of 8 dimensions\r\n")


def run_with_processes(limit: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command whose user may have so many threads; the limit does not hold for root."""
    limited = """if True:
        import os, resource, sys
        resource.setrlimit(resource.RLIMIT_NPROC, (int(sys.argv[1]),) * 2)
        os.execv(sys.executable, [sys.executable, "-m", "swivel", *sys.argv[2:]])
    """
    command = [sys.executable, "-c", limited, str(limit), *map(str, arguments)]
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv to become another user")
        rights = "+dac_override,+dac_read_search"  # to read this Python
        user = [
            "--reuid",
            "65431",
            "--regid",
            "65431",
            "--clear-groups",
            "--inh-caps",
            rights,
            "--ambient-caps",
            rights,
        ]
        command = ["setpriv", *user, *command]
        if subprocess.run([*command[: len(user) + 1], "true"], check=False, capture_output=True).returncode:
            pytest.skip("cannot become another user here")
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(sys.platform != "linux", reason="limits differ")
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_limit_on_processes_is_one_line(text: Path, tmp_path: Path, limit: int) -> None:
    done = run_with_processes(limit, "run", text, "-o", tmp_path / "out", *LONG)
    assert (done.returncode, done.stdout) == (1, "")
    *_, last = done.stderr.splitlines()
    assert re.fullmatch(
        r"error: (a command|training) needs about \d+ threads, but the limit on processes allows \d+ more; raise it "
        r"\(ulimit -u, pids\.max\)",
        last,
    )
    assert not (tmp_path / "out").exists()


def test_what_a_killed_process_left_in_the_temporary_folder_is_swept(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, swivel
        from swivel.pipeline import count
        count.read_beside_device = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        swivel.count(["tea milk", "milk tea"], min_count=1)
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", code], check=False, env=environment, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["scratch"]

    again = "import swivel; swivel.count(['tea milk', 'milk tea'], min_count=1)"
    subprocess.run([sys.executable, "-c", again], check=True, env=environment, timeout=120)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--decay-power", "2147483648"], "error: --decay-power must be a number from 0 to 10, got 2147483648.0"),
        (["--confidence-power", "11"], "error: --confidence-power must be a number from 0 to 10, got 11.0"),
        (["--device", "meta"], "error: device 'meta' cannot be used.*; (choose another, or cpu|pass --device auto.*)"),
        (["--device", "privateuseone"], "error: device 'privateuseone' cannot be used.*"),
    ],
)
def test_odd_settings_are_one_line(text: Path, tmp_path: Path, arguments: list[str], line: str) -> None:
    done = swivel("run", text, "-o", tmp_path / "out", *LONG[:-5], "--no-report", "--quiet", *arguments)
    assert re.fullmatch(line, done.stderr.strip())
    assert done.returncode in (1, 2)
