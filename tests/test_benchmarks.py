"""Every benchmark still runs: each script with `--smoke`, on tiny data and without anything outside the repository."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from claims import BENCHMARKS, RESULTS, find_script, find_source, read_measures, read_results

SLOW = {
    "asynchronous": "starts Ray twice",
    "cluster_counting": "starts Ray",
    "crash_points": "kills many commands",
    "crashes": "kills commands, as tests/test_crashes.py does with the same code",
    "kills": "starts a Ray cluster of two nodes",
    "limits": "starts commands in control groups",
    "long_run": "trains with a checkpoint after every step",
    "rotation": "starts three processes that train",
    "scale": "starts Ray twice",
    "wheels": "builds the package",
    "write_failures": "starts many commands",
}


def has_main(script: Path) -> bool:
    statements = ast.parse(script.read_text(encoding="utf-8")).body
    return any(isinstance(statement, ast.FunctionDef) and statement.name == "main" for statement in statements)


SCRIPTS = sorted(script.stem for script in BENCHMARKS.glob("*.py") if has_main(script))


def list_results() -> dict[str, tuple[int, int]]:
    """Return size and time of every file in the folder of results."""
    return {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in RESULTS.iterdir()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    # The data beside the repository cannot be found, and one thread keeps the machine free for other tests.
    missing = str(tmp_path_factory.mktemp("smoke") / "none")
    environment = {**os.environ, "SWIVEL_SHARED": missing, "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)  # A script asks for the interpreter itself if it needs it.

    command = [sys.executable, str(Path(__file__).parent / "smoke_server.py")]
    with subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, text=True, encoding="utf-8") as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SCRIPTS]
)
def test_a_smoke_run_prints_a_result_and_keeps_nothing(name: str, server: subprocess.Popen[str]) -> None:
    before = list_results()
    assert server.stdin is not None
    assert server.stdout is not None
    print(BENCHMARKS / f"{name}.py", file=server.stdin, flush=True)
    done = json.loads(server.stdout.readline())

    assert done["status"] == 0, done["stdout"][-2_000:] + done["stderr"][-4_000:]
    result = json.loads(done["stdout"].splitlines()[-1])
    assert result["benchmark"] == name
    assert result["machine"]["versions"]
    assert list_results() == before
    assert done["left"] == []


def test_the_slow_scripts_exist() -> None:
    assert set(SCRIPTS) >= SLOW.keys()


@pytest.mark.parametrize("name", [*SCRIPTS, "fuzz"])
def test_a_script_declares_modules_that_exist(name: str) -> None:
    for entry in read_measures(find_script(name)):
        find_source(entry)


@pytest.mark.parametrize(("name", "result"), read_results().items(), ids=list(read_results()))
def test_a_result_names_its_script_and_commit_and_no_path_of_a_machine(name: str, result: dict[str, Any]) -> None:
    assert find_script(result["benchmark"]).exists()
    assert result["machine"]["commit"]
    assert not re.search(r'"/(?!dev/)\w+/', json.dumps(result)), name
