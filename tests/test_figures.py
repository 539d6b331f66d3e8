"""The tables of the README and the docs are those that `make figures` makes from the result files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "figures.py"


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


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_every_mark_of_a_table_is_whole(path: Path) -> None:
    text = path.read_text()
    assert text.count("<!-- figures: ") == text.count("<!-- /figures -->")
