"""Nothing is fetched or sent unless asked for: verbs run where every attempt to reach another machine is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import swivel
from swivel.runtime import ray as connecting

PAGE = Path(swivel.__file__).parent / "explorer" / "page"
# What a page would load from elsewhere; links that a reader may click are not among it.
LOADS = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//
    |@import|url\(["']?(?:https?:)?//|\bfrom\s+["']https?:|import\(["']https?:|fetch\(["'`]https?:|sendBeacon""",
    re.X,
)
# All in one process, for each start costs seconds.
VERBS = """
import sys, swivel, swivel.cli
for name in swivel.__all__:
    getattr(swivel, name)
small = ["--min-count", "1", "--dim", "8", "--epochs", "2", "--quiet"]
for line in (
    ["info"],
    ["run", "text.txt", "-o", "work", "--tensorboard", "curves", *small],
    ["count", "text.txt", "-o", "matrix", "--min-count", "1", "--quiet"],
    ["train", "matrix", "-o", "vectors", "--dim", "8", "--epochs", "2", "--quiet"],
    ["evaluate", "vectors", "pairs.txt", "--quiet"],
    ["nearest", "vectors", "cat"],
    ["analogy", "vectors", "cat", "dog", "mat"],
    ["export", "vectors", "vectors.txt"],
    ["export", "vectors", "vectors.kv", "--format", "gensim"],
    ["export", "vectors", "static", "--format", "model2vec"],
    ["nearest", "static", "cat"],
    ["plot", "epochs", "work", "-o", "losses.png"],
):
    sys.argv = ["swivel", *line]
    try:
        swivel.cli.main()
    except SystemExit as end:
        assert not end.code, (line, end.code)
"""


def run_offline(code: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run code where no other machine can be reached; return how it ended and whom it tried to reach."""
    log = folder / "network.log"
    log.touch()
    path = os.pathsep.join([str(Path(__file__).parent / "offline"), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "SWIVEL_NETWORK_LOG": str(log),
        "SWIVEL_DATA": str(folder / "sets"),
    }
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    return done, log.read_text(encoding="utf-8")


def test_verbs_reach_nobody(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat . the dog sat on the log .\n" * 100, encoding="utf-8")
    (tmp_path / "pairs.txt").write_text("cat\tdog\t9\nmat\tlog\t8\ncat\tmat\t2\n", encoding="utf-8")
    done, tried = run_offline(VERBS, tmp_path)
    assert (done.returncode, tried) == (0, ""), done.stderr[-2000:]
    assert (tmp_path / "losses.png").exists()
    reports = list(tmp_path.rglob("report.html"))
    assert reports
    assert not any(LOADS.search(report.read_text(encoding="utf-8")) for report in reports)


@pytest.mark.slow
def test_the_demonstration_reaches_nobody(tmp_path: Path) -> None:
    done, tried = run_offline(
        "import sys, swivel.cli; sys.argv[1:] = ['demo', '-o', 'demo']; swivel.cli.main()", tmp_path
    )
    assert (done.returncode, tried) == (0, ""), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import socket; socket.create_connection(('192.0.2.1', 80), 1)", "socket.getaddrinfo 192.0.2.1"),
        ("from swivel.evaluation.datasets import fetch_sets; fetch_sets()", "getaddrinfo raw.githubusercontent.com"),
        ("import socket; socket.socket().connect(('192.0.2.1', 80))", "socket.connect 192.0.2.1"),
        ("import urllib.request; urllib.request.urlopen('http://example.invalid')", "getaddrinfo example.invalid"),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import socket\\n"
         "socket.getaddrinfo(\"example.invalid\", 80)'], check=True)", "getaddrinfo example.invalid"),
    ],
)  # fmt: skip
def test_who_tries_is_caught_in_any_process(tmp_path: Path, code: str, expected: str) -> None:
    done, tried = run_offline(code, tmp_path)
    assert done.returncode != 0
    assert expected in tried


def test_this_machine_may_be_reached(tmp_path: Path) -> None:
    code = "import socket; s = socket.create_server(('localhost', 0)); socket.create_connection(s.getsockname()[:2])"
    done, tried = run_offline(code, tmp_path)
    assert (done.returncode, tried) == (0, ""), done.stderr


@pytest.mark.parametrize("file", sorted(PAGE.iterdir()), ids=lambda file: file.name)
def test_the_explorers_page_loads_nothing_from_elsewhere(file: Path) -> None:
    assert not LOADS.search(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text",
    ['<script defer src="https://x/y.js">', "<link rel=x href='//x/y.css'>", "@import 'x'", "fetch(`https://x`)"],
)
def test_loading_from_elsewhere_is_recognized(text: str) -> None:
    assert LOADS.search(text)


def test_links_and_own_files_are_not_taken_for_loading_from_elsewhere() -> None:
    assert not LOADS.search('<a href="https://x">y</a><script src="main.js"></script><link href="/style.css">')


def test_a_cluster_of_ones_own_sends_no_usage_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def init(**options: Any) -> None:
        seen.append((os.environ.get("RAY_USAGE_STATS_ENABLED"), options["include_dashboard"]))

    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    fake = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    monkeypatch.setattr(connecting, "load_ray", lambda: fake)
    with connecting.connect("local"):
        pass
    assert seen == [("0", False)]
