"""The examples run on small tables of the same shape as those they are made for, and the notebooks as they are."""

from __future__ import annotations

import copy
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

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
def test_an_example_without_arguments_says_how_it_is_called(name: str) -> None:
    ended = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert f"python examples/{name}.py" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", ["ingredients", "debtags"])
def test_an_example_finds_finds_likes_and_the_missing_column(
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


# Notebooks


def run_notebook(notebook: Any, folder: Path) -> list[list[Any]]:
    """Run a notebook in a folder and return the outputs of its code cells, which have the names of the stored ones."""
    stored = copy.deepcopy(notebook.cells)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    for before, now in zip(stored, notebook.cells, strict=True):
        assert names_in(before.get("outputs", [])) == names_in(now.get("outputs", []))
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def names_in(outputs: list[Any]) -> set[str]:
    """Return the fields and columns that outputs show: `label=`, `<th>label</th>`."""
    names = set()
    for output in outputs:
        data = output.get("data", {})
        names.update(re.findall(r"<th>([a-z][\w -]*)</th>", data.get("text/html", "")))
        names.update(re.findall(r"\b([a-z]\w*)=", data.get("text/plain", "")))
    return names


@pytest.mark.slow
def test_the_notebook_of_words_goes_from_text_to_a_map_and_an_evaluation(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "words.ipynb", as_version=4)
    for _ in range(2):  # It can be run again.
        outputs = run_notebook(notebook, tmp_path)
    assert "raised" in outputs[3][-1].data["text/plain"]
    assert "image/png" in outputs[5][-1].data
    assert (tmp_path / "map.html").stat().st_size > 10_000
    assert "python" in outputs[6][-1].data["text/html"]
    assert not [each for output in outputs for each in output if each.output_type in ("stream", "error")]


@pytest.mark.slow
@pytest.mark.parametrize("is_given", [False, True])
def test_the_notebook_of_ratings_recommends_what_users_prefer_and_can_be_run_again(
    is_given: bool, tmp_path: Path
) -> None:
    notebook = nbformat.read(EXAMPLES / "ratings.ipynb", as_version=4)
    if is_given:
        write_ratings(tmp_path / "u.data")
        for _ in range(2):
            outputs = run_notebook(notebook, tmp_path)
    else:
        outputs = run_notebook(notebook, tmp_path)

    report, known, new_user, new_film, similar = outputs[2:7]
    recall = re.search(r"recall@10 (\d\.\d+)", report[0].text)
    assert recall is not None
    assert float(recall[1]) > 0.3  # by chance .1
    for output in (known, new_user, new_film, similar):
        # The kind of a user or film is its number modulo 4; the two films of the new user may be of two kinds.
        labels = [int(line.split()[1]) for line in output[-1].data["text/plain"].splitlines()[1:]]
        assert len({label % 4 for label in labels}) <= (2 if output is new_user else 1)

    served, missing = (output[-1].data["text/plain"] for output in outputs[-2:])
    assert served.count("'because_of': [") == 2
    assert "'nobody' is not in the vocabulary" in missing


def write_ratings(file: Path) -> None:
    """Write ratings as MovieLens has them: users prefer films whose number has the same remainder of 4."""
    rng = np.random.default_rng(2)
    lines = []
    for user in range(200):
        for film in rng.choice(100, 40, replace=False).tolist():
            rating = rng.integers(4, 6) if film % 4 == user % 4 else rng.integers(1, 3)
            lines.append(f"{user}\t{film}\t{rating}\t{rng.integers(1_000_000)}\n")
    file.write_text("".join(lines), encoding="utf-8")


@pytest.mark.slow
def test_the_notebook_of_a_graph_finds_communities_and_held_out_edges(tmp_path: Path) -> None:
    outputs = run_notebook(nbformat.read(EXAMPLES / "graph.ipynb", as_version=4), tmp_path)
    groups = outputs[1][0].text.splitlines()
    assert any("Fantine Tholomyes" in group for group in groups)
    assert any("Enjolras Courfeyrac Combeferre" in group for group in groups)
    found = re.search(r"AUC (0\.\d+)", outputs[3][0].text)
    assert found is not None
    assert float(found[1]) > 0.85


def test_the_notebook_of_guesses_is_surer_of_what_a_guess_can_do(tmp_path: Path) -> None:
    outputs = run_notebook(nbformat.read(EXAMPLES / "guesses.ipynb", as_version=4), tmp_path)
    tables = [outputs[number][-1].data["text/plain"] for number in (2, 3)]
    can, cannot = ([float(figure) for figure in re.findall(r"\b0\.\d+", table)] for table in tables)
    assert (len(can), len(cannot)) == (4, 3)
    assert min(can) > max(cannot)
    assert all(word in tables[0] for word in ("computing", "guitar,", "president", "mathematics"))
    assert not [each for output in outputs for each in output if each.output_type in ("stream", "error")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baskets", "codes", "tags"])
def test_the_notebooks_of_baskets_codes_and_tags_find_the_planted_groups(name: str, tmp_path: Path) -> None:
    outputs = run_notebook(nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4), tmp_path)
    assert float(outputs[-1][-1].data["text/plain"]) > 0.9
    assert not [each for output in outputs for each in output if each.output_type in ("stream", "error")]


@pytest.mark.slow
def test_a_notebook_shows_a_bar_for_long_work_only(tmp_path: Path) -> None:
    code = """
import time
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import track
with track(RunOptions({}).progress, "counting", 10, "tokens") as task:
    task.advance(5)
    time.sleep({})
"""
    cells = [code.format("", 1.5), code.format("", 0), code.format("progress=False", 1.5)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    long, short, silent = run_notebook(notebook, tmp_path)
    assert [each.data["text/plain"] for each in long] == [""]  # It was shown, and removed at the end.
    assert short == silent == []
