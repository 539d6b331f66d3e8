"""Every code block of the README and of docs/ runs, and the site builds without a warning.

Python runs as it stands, with one namespace a page; what `>>>` prints must be what the page says. Lines of shell run
through the command line, in a folder with small files of the names that the pages use (`docs_world`). A block below
`<!-- not run: REASON -->` is parsed: its Python must compile, its commands must have the flags that they name.
"""

from __future__ import annotations

import ast
import doctest
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import swivel
from docs_world import copy_world, shorten_demo, write_world
from swivel.cli import cli
from swivel.cli.main import COMMANDS
from swivel.explorer import server

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"(?P<marker>^ *<!-- not run: .+? -->\n)?^(?P<in> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=in)```$", re.M | re.S
)
KINDS = {"python", "sh", "text", "json"}
QUIET = {"NO_MKDOCS_2_WARNING": "true"}  # the theme's word on a version that is not used
SMALL = {  # what commands get besides, unless they say otherwise
    "explore": (["--port", "0"],),
    "run": (["--dim", "8"], ["--epochs", "3"], ["--no-report"]),
    "train": (["--dim", "8"], ["--epochs", "3"], ["--no-report"]),
}
SHELL = ("swivel ", "make ", "pip ", "torchrun ", "tensorboard ")


@dataclass(frozen=True)
class Block:
    """A block of code: where it stands, what it is, and whether it is to run."""

    page: Path
    line: int
    kind: str
    text: str
    is_run: bool

    def __str__(self) -> str:
        return f"{self.page.name}, line {self.line}"


@cache
def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        code = textwrap.dedent(match["text"])
        kind = match["kind"] or ("sh" if code.startswith(SHELL) else "text")
        line = text.count("\n", 0, match.start("kind")) + 1
        found.append(Block(page, line, kind, code, is_run=match["marker"] is None))
    return found


def commands_of(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command."""
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


# Python


def run_python(block: Block, names: dict[str, Any]) -> None:
    code = compile(block.text, str(block), "exec") if ">>>" not in block.text else None
    if not block.is_run:
        return
    if code is not None:
        exec(code, names)
        return
    test = doctest.DocTestParser().get_doctest(block.text, {}, str(block), str(block.page), block.line)
    test.globs = names
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(test, out=said.append, clear_globs=False).failed == 0, "".join(said)


# Shell


def parse(words: list[str]) -> None:
    """Raise click's error where a command does not exist or has no such flag."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words[0]
        command, words = found, words[1:]
    command.make_context("swivel", list(words))


def run_swivel(words: list[str], said_by: str) -> None:
    text = None
    if "<" in words:
        words, text = words[: words.index("<")], Path(words[-1]).read_bytes()
    for flag in SMALL.get(words[0], ()):
        words = words if flag[0] in words else [*words, *flag]
    ended = CliRunner().invoke(cli, words, input=text)
    assert ended.exit_code == 0, f"{said_by}: swivel {shlex.join(words)}: {ended.exception!r}\n{ended.output}"


def run_shell(block: Block) -> None:
    for words in commands_of(block):
        if words[0] == "swivel" and block.is_run:
            run_swivel(words[1:], str(block))
        elif words[0] == "swivel":
            parse(words[1:])
        elif words[0] == "torchrun":
            parse(words[words.index("swivel") + 1 :])
        elif words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), str(block)
        else:
            assert words[:2] == ["pip", "install"] or words[0] == "tensorboard", f"{block}: {shlex.join(words)}"


# The pages


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("world")
    write_world(home)
    return home


@pytest.fixture
def place(tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a page runs: no network, no browser, and a demonstration that takes a second."""
    monkeypatch.setattr(server, "serve", lambda *_: None)
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    monkeypatch.setattr("swivel.evaluation.scores.fetch_sets", lambda *_, **__: sorted((world / "sets").iterdir()))
    shorten_demo(monkeypatch, world / "corpus.txt")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "page"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(page: Path, place: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_world(world, page.name, place)
    monkeypatch.chdir(place)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks_of(page):
        assert block.kind in KINDS, f"{block}: {block.kind!r}"
        if block.kind == "python":
            run_python(block, names)
        elif block.kind == "sh":
            run_shell(block)


def test_no_block_is_left_out_by_a_slip() -> None:
    for page in PAGES:
        fences = sum(line.lstrip().startswith("```") for line in page.read_text(encoding="utf-8").splitlines())
        assert fences == 2 * len(blocks_of(page)), page.name


def test_commands_inside_sentences_have_the_flags_they_name() -> None:
    verbs = "|".join(COMMANDS)
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for command in re.findall(rf"`swivel ({verbs})([^`]*?)`", text.replace("\n", " ")):
            known = {flag for each in all_parameters(command[0]) for flag in each.opts + each.secondary_opts}
            named = set(re.findall(r"(?<!\S)--[\w-]+", command[1]))
            assert named <= known | {"--help", "--help-all"}, f"{page.name}: swivel {''.join(command)}"


def all_parameters(verb: str) -> Iterator[click.Parameter]:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    yield from command.params
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        yield from each.params


def test_extras_that_pages_name_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for page in PAGES:
        for named in re.findall(r"swivel-embeddings\[([\w,]+)\]", page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= set(extras), page.name


OUTSIDE_THE_SITE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "experiments").glob("*.md"))]


@pytest.mark.parametrize("page", OUTSIDE_THE_SITE, ids=lambda page: page.name)
def test_links_of_pages_outside_the_site_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M) if anchor else []
        assert anchor in ("", *(re.sub(r"[^\w\- ]", "", each).lower().replace(" ", "-") for each in headings)), link


def test_pages_are_short_and_tables_are_narrow() -> None:
    """The limits keep the documentation readable: what is not needed for use belongs in `experiments/`."""
    lines = {"|", "---"}
    words = {page: sum(word not in lines for word in page.read_text("utf-8").split()) for page in PAGES}
    assert words[ROOT / "README.md"] <= 900
    assert sum(words.values()) - words[ROOT / "README.md"] <= 25_000
    for page in PAGES:
        rules = re.findall(r"^\|(?: --- \|)+$", page.read_text(encoding="utf-8"), re.M)
        assert all(rule.count("---") <= 8 for rule in rules), page.name


def test_code_fits_on_a_page_without_scrolling() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            assert max(map(len, block.text.splitlines()), default=0) <= 120, str(block)


def test_all_notebooks_are_in_the_gallery_and_in_the_readme() -> None:
    pages = ("README.md", "docs/gallery.md", "mkdocs.yml")
    readme, gallery, site = ((ROOT / page).read_text("utf-8") for page in pages)
    for notebook in (ROOT / "examples").glob("*.ipynb"):
        assert f"(examples/{notebook.name})" in readme
        assert f"(gallery/{notebook.stem}.md)" in gallery
        assert f": gallery/{notebook.stem}.md" in site


def test_the_api_has_a_page_for_every_public_name() -> None:
    overview = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    linked = re.findall(r"\[`(\w+)`\]\(api/(\w+)\.md\)", overview)
    assert all(name == page for name, page in linked)
    listed = re.findall(r"^ +- api/(\w+)\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(name for name, _ in linked) == sorted(set(swivel.__all__) - {"__version__"})


def test_errors_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    templates = list(message_templates())
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    said = re.findall(r"^### `(\w+): (.+)`$", page, re.M)
    assert len(said) > 20
    for error, message in said:
        assert error == "warning" or hasattr(swivel.errors, error)
        pattern = re.compile(".*".join(map(re.escape, message.split("..."))), re.S)
        assert any(pattern.search(template) for template in templates), message


def message_templates() -> Iterator[str]:
    """Yield every text of the package, with a gap for each value that is put in."""
    for file in Path(swivel.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


# The site


class Fetches(HTMLParser):
    """Collects what a page makes the browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio"):
            self.found.append(given.get("src") or "")
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(given.get("href") or "")


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | QUIET)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    site = tmp_path / "site"
    assert (site / "algorithm.html").read_text(encoding="utf-8").count('<svg class="formula"') > 20
    assert "data:image/png" in (site / "gallery" / "words.html").read_text(encoding="utf-8")
    assert "<code>accumulator_decay</code>" in (site / "api" / "settings.html").read_text(encoding="utf-8")
    assert 'id="swivel.Vectors.nearest"' in (site / "api" / "Vectors.html").read_text(encoding="utf-8")
    pages = list(site.rglob("*.html"))
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.ipynb")]
    assert {page.stem for page in sources} <= {page.stem for page in pages}
    for page in pages:
        fetches = Fetches()
        fetches.feed(page.read_text(encoding="utf-8"))
        assert "arithmatex" not in page.read_text(encoding="utf-8"), page.name
        assert not [each for each in fetches.found if each.startswith(("http", "//"))], page.name
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name
