"""The examples run on small tables of the same shape as those they are made for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def load_example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two kinds of rows and two kinds of columns: like goes with like, in three of four cells."""
    rng = np.random.default_rng(3)
    cells = [
        f"{'ab'[row % 2]}{row}\t{'xy'[column % 2]}{column}\t1"
        for row in range(40)
        for column in range(20)
        if row % 2 == column % 2 and (rng.random() < 0.75 or row < 2)
    ]
    cells = [cell for cell in cells if not cell.startswith("a0\tx4")]  # the one that is to be suggested
    file = tmp_path / "table.tsv"
    file.write_text("\n".join(cells) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["ingredients", "debtags"])
def test_an_example_finds_likes_and_the_missing_column(
    name: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_example(name).main(str(table), "a0", dim=4)
    lines = capsys.readouterr().out.splitlines()
    second = next(number for number, line in enumerate(lines[1:], 1) if line.endswith(":"))
    assert all(line.split()[1].startswith("a") for line in lines[1:second])
    assert lines[second + 1].split()[1] == "x4"


def test_tags_without_a_package_are_folded_in(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_example("debtags").main(str(table), "x0", "x2", dim=4)
    tags = [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert sum(tag.startswith("x") for tag in tags[:4]) >= 3
    assert not {"x0", "x2"} & set(tags)
