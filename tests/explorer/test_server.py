"""Tests of starting the explorer: ports, one-line errors, warnings, and Ctrl-C."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import uvicorn
from click.testing import CliRunner

from explorer_data import build_matrix, make_sets, make_vectors
from swivel.cli import cli
from swivel.counts import open_matrix
from swivel.errors import ConfigError, MissingExtra, StorageError
from swivel.explorer import server
from swivel.explorer.queries import open_set
from swivel.explorer.server import check_extra, listen, name_url


def test_the_error_for_a_used_port_suggests_another() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        message = rf"port {port} is in use: pass port={(port + 1) % 65_536}, or port=0 for any free port"
        with pytest.raises(ConfigError, match=message):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70_000, "port must be 0 .any free port. to 65535, got 70000"),
        ("203.0.113.1", 0, "cannot listen on 203.0.113.1"),
        ("no.such.host.invalid", 0, "cannot listen on no.such.host.invalid"),
    ],
)
def test_an_invalid_address_is_an_error(host: str, port: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        listen(host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_the_printed_address_can_be_opened(host: str) -> None:
    try:
        listener = listen(host, 0)
    except ConfigError:
        pytest.skip("no IPv6 on this machine")
    with listener:
        shown = "[::1]" if host == "::1" else "127.0.0.1"
        assert name_url(listener) == f"http://{shown}:{listener.getsockname()[1]}/"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "uvicorn":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    message = r"pages need fastapi and uvicorn: pip install 'swivel-embeddings\[explore\]'"
    with pytest.raises(MissingExtra, match=message):
        check_extra()


def test_the_matrix_of_the_same_run_is_found(tmp_path: Path) -> None:
    from swivel.storage.files import create_folder
    from swivel.vectors.folder import STAGE, write_vectors

    matrix = build_matrix(tmp_path / "run" / "matrix")
    with create_folder(tmp_path / "run" / "vectors", STAGE) as folder:
        write_vectors(folder, make_vectors(), config={}, inputs={"matrix": matrix.fingerprint})
    vector_set = open_set(tmp_path / "run")
    assert (vector_set.name, vector_set.count("king", "queen")) == ("run", 7)
    make_vectors().save(tmp_path / "other" / "vectors")
    assert open_set(tmp_path / "other").matrix is None
    assert open_set(tmp_path / "other", tmp_path / "run" / "matrix").count("king", "queen") == 7


def test_a_damaged_or_foreign_matrix_beside_the_vectors_is_ignored(tmp_path: Path) -> None:
    from swivel.storage.files import create_folder
    from swivel.vectors.folder import STAGE, write_vectors

    build_matrix(tmp_path / "matrix")
    with create_folder(tmp_path / "vectors", STAGE) as folder:
        write_vectors(folder, make_vectors(), config={}, inputs={"matrix": "another"})
    assert open_set(tmp_path).matrix is None
    (tmp_path / "matrix" / "manifest.json").write_text("{")
    assert open_set(tmp_path).matrix is None
    with pytest.raises(StorageError):
        open_matrix(tmp_path / "matrix")


def test_warm_makes_all_views() -> None:
    sets = make_sets(two=True)
    server.warm(sets)
    assert all(view._vectors is not None for each in sets for view in each.views.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        (["nowhere", "--port", "-1"], "port must be"),
        (["{vectors}", "--matrix", "nowhere"], "nowhere: no such folder"),
        (["{vectors}", "elsewhere"], "elsewhere: no such file or folder"),
    ],
)
def test_errors_are_raised_before_the_server_starts(
    tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "serve", lambda *_: pytest.fail("it served"))
    make_vectors(columns=False).save(tmp_path / "vectors")
    given = [argument.replace("{vectors}", str(tmp_path)) for argument in arguments]
    ended = CliRunner().invoke(cli, ["explore", "--no-browser", "--port", "0", *given])
    assert message in str(ended.exception)


def test_a_public_address_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_vectors(columns=False).save(tmp_path / "vectors")
    opened: list[str] = []
    monkeypatch.setattr(server, "serve", lambda *_: None)

    def note(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", note)
    ended = CliRunner().invoke(cli, ["explore", str(tmp_path), "--port", "0", "--host", "0.0.0.0"])
    assert "warning: everyone who can reach 0.0.0.0 can read these vectors" in ended.output
    assert opened[0].startswith("http://127.0.0.1:")
    quiet = CliRunner().invoke(cli, ["explore", str(tmp_path), "--port", "0"])
    assert "warning" not in quiet.output


@contextlib.contextmanager
def start_server() -> Iterator[tuple[uvicorn.Server, tuple[str, int]]]:
    """Yield a server that runs in a thread, and its address."""
    with listen("127.0.0.1", 0) as listener:
        running = server.make_server(make_sets(), "127.0.0.1")
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield running, listener.getsockname()[:2]
        finally:
            running.should_exit = True
            thread.join()


def test_with_200_connections_the_server_says_that_it_is_busy() -> None:
    with start_server() as (running, address), contextlib.ExitStack() as stack:
        for number in range(1, 201):
            last = stack.enter_context(socket.create_connection(address, timeout=30))
            wait_for_size(running.server_state.connections, number)
            if number >= 199:
                last.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert last.recv(12) == (b"HTTP/1.1 200" if number == 199 else b"HTTP/1.1 503")


def wait_for_size(accepted: set[Any], size: int) -> None:
    """Wait until the server has so many connections, for a minute at most."""
    deadline = time.monotonic() + 60
    while len(accepted) != size:
        assert time.monotonic() < deadline, f"{len(accepted)} connections instead of {size}"
        time.sleep(0.001)


def test_the_docs_list_every_option_and_every_route() -> None:
    from swivel.explorer.app import router

    page = (Path(__file__).parent.parent.parent / "docs" / "explore.md").read_text(encoding="utf-8")
    command = cli.get_command(click.Context(cli), "explore")
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert all(f"`{name}" in page for name in options - {"--traceback"})
    paths = {str(route.path).removeprefix("/api/") for route in router.routes}  # type: ignore[attr-defined]
    assert all(f"`{path}`" in page for path in paths)
    pictures = [Path("docs") / part.partition(")")[0] for part in page.split("](")[1:]]
    assert all((Path(__file__).parent.parent.parent / picture).stat().st_size < 200_000 for picture in pictures)


@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_server_without_a_traceback(tmp_path: Path, number: int) -> None:
    make_vectors().save(tmp_path / "vectors")
    command = [sys.executable, "-m", "swivel", "explore", str(tmp_path), "--no-browser", "--port", "0", "--json"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout and process.stderr
        url = json.loads(process.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}api/nearest?q=king", timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(number)
        ended = process.wait(timeout=30)
        stderr = process.stderr.read()

    assert "Traceback" not in stderr
    assert ended == (0 if number == signal.SIGINT else 128 + number)
    assert ("stopped" in stderr) is (number == signal.SIGINT)
