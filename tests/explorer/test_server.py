"""The explorer as it is started: ports, errors in one line, warnings, Ctrl-C."""

from __future__ import annotations

import builtins
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from explorer_data import build_matrix, make_exploration, make_vectors
from swivel import explorer
from swivel.cli import cli
from swivel.counts import open_matrix
from swivel.errors import ConfigError, MissingExtra, StorageError
from swivel.explorer import server
from swivel.explorer.models import open_set


def test_a_port_in_use_is_told_with_what_to_do() -> None:
    with explorer.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        message = rf"port {port} is in use: pass --port {(port + 1) % 65_536}, or --port 0 for any free one"
        with pytest.raises(ConfigError, match=message):
            explorer.listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70_000, "port must be 0 .any free one. to 65535, got 70000"),
        ("203.0.113.1", 0, "cannot listen on 203.0.113.1"),
        ("no.such.host.invalid", 0, "cannot listen on no.such.host.invalid"),
    ],
)
def test_an_address_that_cannot_be_is_told(host: str, port: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explorer.listen(host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_the_printed_address_can_be_opened(host: str) -> None:
    try:
        listener = explorer.listen(host, 0)
    except ConfigError:
        pytest.skip("no IPv6 on this machine")
    with listener:
        shown = "[::1]" if host == "::1" else "127.0.0.1"
        assert explorer.name_url(listener) == f"http://{shown}:{listener.getsockname()[1]}/"


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "uvicorn":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    message = r"pages need fastapi and uvicorn: pip install 'swivel-embeddings\[explore\]'"
    with pytest.raises(MissingExtra, match=message):
        explorer.check_extra()


def test_the_matrix_of_the_same_run_is_found(tmp_path: Path) -> None:
    from swivel.storage import create_folder
    from swivel.vectors.folder import STAGE, write_contents

    matrix = build_matrix(tmp_path / "run" / "matrix")
    with create_folder(tmp_path / "run" / "vectors", STAGE) as folder:
        facts = write_contents(folder, make_vectors().contents)
        folder.finish(config={}, inputs={"matrix": matrix.fingerprint}, facts=facts)
    found = open_set(tmp_path / "run")
    assert (found.name, found.count("king", "queen")) == ("run", 7)
    make_vectors().save(tmp_path / "other" / "vectors")
    assert open_set(tmp_path / "other").matrix is None
    assert open_set(tmp_path / "other", tmp_path / "run" / "matrix").count("king", "queen") == 7


def test_a_matrix_beside_that_is_damaged_or_another_is_left_alone(tmp_path: Path) -> None:
    from swivel.storage import create_folder
    from swivel.vectors.folder import STAGE, write_contents

    build_matrix(tmp_path / "matrix")
    with create_folder(tmp_path / "vectors", STAGE) as folder:
        folder.finish(config={}, inputs={"matrix": "another"}, facts=write_contents(folder, make_vectors().contents))
    assert open_set(tmp_path).matrix is None
    (tmp_path / "matrix" / "manifest.json").write_text("{")
    assert open_set(tmp_path).matrix is None
    with pytest.raises(StorageError):
        open_matrix(tmp_path / "matrix")


def test_what_the_first_answers_need_is_there_before_them() -> None:
    exploration = make_exploration(two=True)
    server.warm(exploration)
    assert all(view._made is not None for each in exploration.sets for view in each.views.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        (["nowhere", "--port", "-1"], "port must be"),
        (["{vectors}", "--matrix", "nowhere"], "nowhere: no such folder"),
        (["{vectors}", "elsewhere"], "elsewhere: no such file or folder"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_served(
    tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explorer, "serve", lambda *_: pytest.fail("it served"))
    make_vectors(columns=False).save(tmp_path / "vectors")
    given = [argument.replace("{vectors}", str(tmp_path)) for argument in arguments]
    ended = CliRunner().invoke(cli, ["explore", "--no-browser", "--port", "0", *given])
    assert message in str(ended.exception)


def test_everyone_who_can_reach_it_is_worth_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_vectors(columns=False).save(tmp_path / "vectors")
    opened: list[str] = []
    monkeypatch.setattr(explorer, "serve", lambda *_: None)

    def note(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", note)
    ended = CliRunner().invoke(cli, ["explore", str(tmp_path), "--port", "0", "--host", "0.0.0.0"])
    assert "warning: everyone who can reach 0.0.0.0 can read these vectors" in ended.output
    assert opened[0].startswith("http://127.0.0.1:")
    quiet = CliRunner().invoke(cli, ["explore", str(tmp_path), "--port", "0"])
    assert "warning" not in quiet.output


def test_the_page_in_the_docs_has_every_option_and_every_question() -> None:
    from swivel.explorer.routes import router

    page = (Path(__file__).parent.parent.parent / "docs" / "explore.md").read_text(encoding="utf-8")
    options = {name for parameter in cli.commands["explore"].params for name in parameter.opts if name.startswith("--")}
    assert all(f"`{name}" in page for name in options - {"--traceback"})
    paths = {str(route.path).removeprefix("/api/") for route in router.routes}  # type: ignore[attr-defined]
    assert all(f"`{path}`" in page for path in paths)
    pictures = [Path("docs") / part.partition(")")[0] for part in page.split("](")[1:]]
    assert all((Path(__file__).parent.parent.parent / picture).stat().st_size < 200_000 for picture in pictures)


@pytest.mark.skipif(os.name == "nt", reason="signals are another thing there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_cleanly(tmp_path: Path, number: int) -> None:
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
        told = process.stderr.read()
    assert "Traceback" not in told
    assert ended == (0 if number == signal.SIGINT else 128 + number)
    assert ("stopped" in told) is (number == signal.SIGINT)
