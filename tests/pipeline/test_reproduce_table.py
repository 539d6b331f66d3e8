"""Tests of `reproduce --table`: methods on one split, left out methods, resuming, and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import swivel
from message_recorder import MessageRecorder
from swivel.cli import cli
from swivel.errors import ConfigError
from swivel.pipeline.reproduce import TABLE_METHODS, TableResults, reproduce_table, run_here
from swivel.pipeline.reproduce.subprocess import Job, Measure
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT

METHODS = ("swivel", "svd", "popularity")


def write_table(file: Path, separator: str = "\t") -> Path:
    """Write cells of rows and columns of the same of four groups; a row has three of four of them."""
    rng = np.random.default_rng(1)
    cells = [(i, j) for i in range(120) for j in range(40) if i % 4 == j % 4 and rng.random() < 0.75]
    file.write_text("".join(f"r{i}{separator}c{j}{separator}1\n" for i, j in cells))
    return file


def run(table: Path, out: Path, *, options: RunOptions | None = None, **settings: Any) -> tuple[TableResults, int]:
    """Return the results, and the number of methods that ran."""
    ran = []

    def runner(job: Job, options: RunOptions) -> Measure:
        ran.append(job)
        return run_here(job, options)

    methods = settings.pop("methods", METHODS)
    options = options or RunOptions(progress=SILENT)
    results = reproduce_table(table, out, methods=methods, dim=4, options=options, runner=runner, **settings)
    return results, len(ran)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TableResults]:
    folder = tmp_path_factory.mktemp("experiment")
    results, ran = run(write_table(folder / "table.tsv"), folder / "out")
    assert ran == len(METHODS)
    return folder, results


def test_methods_rank_the_same_cells_and_have_intervals(experiment: tuple[Path, TableResults]) -> None:
    _, results = experiment
    swivel_, svd, popularity = results.methods
    assert swivel_.scores["recall"].figure > 0.9 and popularity.scores["recall"].figure < 0.6  # of 20 of 40 columns
    assert svd.tried == 7 and swivel_.tried == 1
    for method in results.methods:
        for score in method.scores.values():
            assert score.interval is not None
            assert score.interval[0] <= score.figure <= score.interval[1]

    assert swivel_.scores["ndcg"].difference is None
    difference = popularity.scores["ndcg"].difference
    assert difference is not None and difference[0] > 0


def test_the_page_has_the_figures_the_marks_and_the_times(experiment: tuple[Path, TableResults]) -> None:
    folder, results = experiment
    markdown = (folder / "out" / "report.md").read_text()
    assert "table.tsv: 120 rows, 40 columns" in markdown
    popularity = next(line for line in markdown.splitlines() if line.startswith("| popularity"))
    assert "▽" in popularity and "power" in markdown and "7 settings" in markdown
    html = (folder / "out" / "report.html").read_text()
    assert "<h1>Swivel: methods on one table</h1>" in html and 'class="best"' in html
    assert json.loads((folder / "out" / "results.json").read_text())["dim"] == results.dim == 4


def test_finished_methods_are_not_run_again_and_a_method_can_be_added(experiment: tuple[Path, TableResults]) -> None:
    folder, results = experiment
    assert run(folder / "table.tsv", folder / "out") == (results, 0)
    more, ran = run(folder / "table.tsv", folder / "out", methods=(*METHODS, "ease"))
    assert ran == 1 and more.methods[:3] == results.methods
    assert [method.name for method in more.methods] == [*METHODS, "ease"]
    assert run(folder / "table.tsv", folder / "out", options=RunOptions(progress=SILENT, overwrite=True))[1] == 3


def test_a_matrix_is_taken_as_it_is(experiment: tuple[Path, TableResults], tmp_path: Path) -> None:
    folder, results = experiment
    matrix = swivel.import_counts(folder / "table.tsv", tmp_path / "matrix")
    found, _ = run(tmp_path / "matrix", tmp_path / "out", methods=("popularity",))
    assert found.methods[0].scores["recall"].figure == results.methods[2].scores["recall"].figure
    assert found.table["cells"] == matrix.cell_count and not (tmp_path / "out" / "matrix").exists()


def test_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.evaluation.table_baselines.MAX_EASE_COLUMNS", 10)
    recorder = MessageRecorder()
    table = write_table(tmp_path / "table.tsv")
    results, _ = run(table, tmp_path / "out", methods=("popularity", "ease"), options=RunOptions(progress=recorder))
    assert results.left_out == {"ease": "more than 10 columns"}
    assert "ease is left out: more than 10 columns" in recorder.lines
    assert "is left out: more than 10 columns." in (tmp_path / "out" / "report.md").read_text()
    with pytest.raises(ConfigError, match="no method is left to run"):
        run(table, tmp_path / "none", methods=("ease",))


def test_a_table_of_few_columns_has_the_k_that_was_ranked(tmp_path: Path) -> None:
    cells = [f"r{i}\tc{j}\t1\n" for i in range(40) for j in range(6) if (i + j) % 3]
    (tmp_path / "few.tsv").write_text("".join(cells))
    results, _ = run(tmp_path / "few.tsv", tmp_path / "out", methods=("popularity", "svd"))
    assert results.rows()[0][1:3] == ["Recall@6", "NDCG@6"]
    with pytest.raises(ConfigError, match="fields and header are for files"):
        run(tmp_path / "out" / "matrix", tmp_path / "again", methods=("popularity",), header=True)


@pytest.mark.parametrize("methods", [(), ("svd", "svd"), ("sgns",)])
def test_wrong_methods_and_dimensions_are_refused(methods: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="methods must be one or more different ones of swivel, tuned, als"):
        reproduce_table(tmp_path / "table", tmp_path / "out", methods=methods)
    with pytest.raises(ConfigError, match="dim must be a positive integer, got 0"):
        reproduce_table(tmp_path / "table", tmp_path / "out", dim=0)


def call(*words: str) -> Any:
    return CliRunner().invoke(cli, ["reproduce", *words])


def test_command_shows_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reproduce_table.__kwdefaults__ or {}, "runner", run_here)
    write_table(tmp_path / "table.csv", ",")
    words = ["--table", str(tmp_path / "table.csv"), "-o", str(tmp_path / "out"), "--methods", "popularity, svd"]
    ended = call(*words, "--dim", "4", "--quiet")
    assert ended.exit_code == 0, ended.output
    assert "popularity" in ended.stdout and "NDCG@20" in ended.stdout
    found = json.loads(call(*words, "--dim", "4", "--json", "--quiet").stdout)
    assert [method["name"] for method in found["methods"]] == ["popularity", "svd"]


def test_options_of_the_other_experiment_are_refused(tmp_path: Path) -> None:
    out = ["-o", str(tmp_path / "out")]
    for words, message in (
        (["--table", "t.tsv", "--seeds", "2"], "'--seeds' has no effect with --table"),
        (["--table", "t.tsv", "text.txt"], "has no effect with --table"),
        (["text.txt", "--header"], "has no effect without --table"),
        ([], "name files of text, or pass table=FILE"),
    ):
        ended = call(*words, *out)
        assert isinstance(ended.exception, ConfigError) and message in str(ended.exception)


def test_every_method_is_described() -> None:
    assert next(iter(TABLE_METHODS)) == "swivel" and all(TABLE_METHODS.values())
