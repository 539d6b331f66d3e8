"""The tables of the README and the docs are those that `make figures` makes from the result files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "figures.py"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_PROSE = re.compile(r"<!-- figures: (\w+) -->\n.*?<!-- /figures -->|```.*?```|`[^`]*`|\$[^$]*\$", re.DOTALL)
MEASURED = re.compile(
    r"(?<![\w.])0?\.\d{3}\b(?! *\))(?<!\.001)"  # a figure of a test set
    r"|\d[\d.]* (?:times|x) (?:as )?(?:fast|slow|quick)"
    r"|\b(?:takes?|took|needs?|after) (?:about )?\d[\d.]* (?:ms|s|seconds|minutes|hours)\b"
)


def test_tables_in_the_docs_are_made_from_the_results() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run make figures:\n{done.stdout}{done.stderr}"


def test_a_changed_figure_is_noticed(tmp_path: Path) -> None:
    copy = tmp_path / "project"
    (copy / "tools").mkdir(parents=True)
    (copy / "benchmarks").mkdir()
    (copy / "docs").mkdir()
    (copy / "tools" / "figures.py").write_text(TOOL.read_text())
    (copy / "benchmarks" / "results").symlink_to(ROOT / "benchmarks" / "results")
    readme = (ROOT / "README.md").read_text()
    figure = next(word for word in readme.split() if word.strip("*").startswith(".") and word.strip("*.").isdecimal())
    (copy / "README.md").write_text(readme.replace(figure, ".999", 1))

    done = subprocess.run([sys.executable, str(copy / "tools" / "figures.py"), "--check"], check=False)
    assert done.returncode == 1


@pytest.mark.parametrize("path", [page for page in PAGES if page.stem != "licenses"], ids=lambda p: p.name)
def test_measured_figures_stand_in_tables_that_are_made_from_results(path: Path) -> None:
    assert MEASURED.findall(NOT_PROSE.sub("", path.read_text())) == []


@pytest.mark.parametrize(
    ("text", "is_measured"),
    [
        ("reaches .783 on MEN", True),
        ("is 3 times as fast as gensim", True),
        ("takes 14 seconds", True),
        ("version 0.3.0", False),
        ("the constant is .001", False),
        ("| `smoothing` | 0.001 |", False),
    ],
)
def test_a_measured_figure_in_prose_is_found(text: str, is_measured: bool) -> None:
    assert bool(MEASURED.search(NOT_PROSE.sub("", text))) is is_measured


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_every_mark_of_a_table_is_whole(path: Path) -> None:
    text = path.read_text()
    assert text.count("<!-- figures: ") == text.count("<!-- /figures -->")
