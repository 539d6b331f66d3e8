"""Methods compared on one split of a table: figures, left out methods, resuming, and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import swivel
from experiments.table_methods import METHODS
from experiments.tables import TableResults, draw_means, main, run_tables
from message_recorder import MessageRecorder
from swivel.errors import ConfigError
from swivel.evaluation.bootstrap import percentile_interval
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT

CHOSEN = ("swivel", "svd", "popularity")
QUIET = RunOptions(progress=SILENT)


@pytest.fixture(autouse=True)
def forget_stages(ran_stages: list[str]) -> None:
    ran_stages.clear()


def write_table(file: Path, separator: str = "\t") -> Path:
    """Write cells of rows and columns of the same of four groups; a row has three of four of them."""
    rng = np.random.default_rng(1)
    cells = [(i, j) for i in range(120) for j in range(40) if i % 4 == j % 4 and rng.random() < 0.75]
    file.write_text("".join(f"r{i}{separator}c{j}{separator}1\n" for i, j in cells))
    return file


def run(
    table: Path, out: Path, methods: tuple[str, ...] = CHOSEN, options: RunOptions = QUIET, **settings: Any
) -> TableResults:
    return run_tables(table, out, methods, 4, options, **settings)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory, ran_stages: list[str]) -> tuple[Path, TableResults]:
    folder = tmp_path_factory.mktemp("experiment")
    results = run(write_table(folder / "table.tsv"), folder / "out")
    assert ran_stages == [f"method {name}" for name in CHOSEN]
    return folder, results


def test_methods_rank_the_same_cells_and_have_intervals(experiment: tuple[Path, TableResults]) -> None:
    _, results = experiment
    swivel_, svd, popularity = results.methods
    assert swivel_.scores["recall"].figure > 0.9 and popularity.scores["recall"].figure < 0.6  # of 20 of 40 columns
    assert svd.tried == 3 and swivel_.tried == 1
    for method in results.methods:
        for score in method.scores.values():
            assert score.interval is not None
            assert score.interval[0] <= score.figure <= score.interval[1]

    assert swivel_.scores["ndcg"].difference is None
    difference = popularity.scores["ndcg"].difference
    assert difference is not None and difference[0] > 0


def test_the_page_has_the_figures_the_marks_and_the_times(experiment: tuple[Path, TableResults]) -> None:
    folder, results = experiment
    page = (folder / "out" / "report.html").read_text()
    assert "table.tsv: 120 rows, 40 columns" in page
    popularity = page[page.index("<td>popularity") :]
    assert "▽" in popularity[: popularity.index("</tr>")] and "power" in page and "3 settings" in page
    assert "★" in page and "<h1>Swivel: methods on one table</h1>" in page
    saved = json.loads((folder / "out" / "results.json").read_text())
    assert saved["table"]["dimensions"] == 4
    assert saved["methods"][1]["scores"]["ndcg"]["figure"] == results.methods[1].scores["ndcg"].figure


def test_finished_methods_are_not_run_again_and_a_method_can_be_added(
    experiment: tuple[Path, TableResults], ran_stages: list[str]
) -> None:
    folder, results = experiment
    ran_stages.clear()
    assert run(folder / "table.tsv", folder / "out") == results
    assert ran_stages == []
    more = run(folder / "table.tsv", folder / "out", (*CHOSEN, "ease"))
    assert ran_stages == ["method ease"]
    assert [method.name for method in more.methods] == [*CHOSEN, "ease"]
    for before, after in zip(results.methods, more.methods, strict=False):
        assert before.scores["ndcg"].figure == after.scores["ndcg"].figure
    run(folder / "table.tsv", folder / "out", options=RunOptions(progress=SILENT, overwrite=True))
    assert len(ran_stages) == 1 + 3


def test_a_matrix_is_taken_as_it_is(experiment: tuple[Path, TableResults], tmp_path: Path) -> None:
    folder, results = experiment
    matrix = swivel.import_counts(folder / "table.tsv", tmp_path / "matrix", options=QUIET)
    found = run(tmp_path / "matrix", tmp_path / "out", ("popularity",))
    assert found.methods[0].scores["recall"].figure == results.methods[2].scores["recall"].figure
    assert found.table["cells"] == matrix.cell_count and not (tmp_path / "out" / "matrix").exists()
    with pytest.raises(ConfigError, match="fields and header are for files"):
        run(tmp_path / "matrix", tmp_path / "out", ("popularity",), header=True)


def test_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.table_methods.MAX_EASE_COLUMNS", 10)
    recorder = MessageRecorder()
    table = write_table(tmp_path / "table.tsv")
    results = run(table, tmp_path / "out", ("popularity", "ease"), RunOptions(progress=recorder))
    assert results.left_out == {"ease": "more than 10 columns"}
    assert "ease is left out: more than 10 columns" in recorder.lines
    assert "is left out: more than 10 columns." in (tmp_path / "out" / "report.html").read_text()
    with pytest.raises(ConfigError, match="no method is left to run"):
        run(table, tmp_path / "none", ("ease",))


def test_a_table_of_few_columns_has_the_k_that_was_ranked(tmp_path: Path) -> None:
    cells = [f"r{i}\tc{j}\t1\n" for i in range(40) for j in range(6) if (i + j) % 3]
    (tmp_path / "few.tsv").write_text("".join(cells))
    results = run(tmp_path / "few.tsv", tmp_path / "out", ("popularity", "svd"))
    assert results.rows()[0][1:3] == ["Recall@6", "NDCG@6"]


@pytest.mark.parametrize("methods", [(), ("svd", "svd"), ("sgns",)])
def test_wrong_methods_are_refused(methods: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="methods must be different ones of swivel, tuned, als"):
        run(tmp_path / "table", tmp_path / "out", methods)


def test_the_command_shows_the_figures(tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv", ",")
    words = [str(tmp_path / "table.csv"), "-o", str(tmp_path / "out"), "--methods", "popularity, svd", "--dim", "4"]
    ended = CliRunner().invoke(main, [*words, "--quiet"])
    assert ended.exit_code == 0, ended.output
    assert "popularity" in ended.stdout and "NDCG@20" in ended.stdout
    found = json.loads(CliRunner().invoke(main, [*words, "--json", "--quiet"]).stdout)
    assert [method["name"] for method in found["methods"]] == ["popularity", "svd"]


def test_every_method_is_described() -> None:
    assert next(iter(METHODS)) == "swivel" and all(METHODS.values())


def test_intervals_of_means_cover_the_mean_and_pair_columns() -> None:
    rng = np.random.default_rng(3)
    first = rng.normal(size=400)
    means = draw_means(np.column_stack([first, first - 0.1]), draws=500)
    assert means.shape == (500, 2)
    interval = percentile_interval(means[:, 0])
    assert interval is not None and interval[0] < first.mean() < interval[1]
    assert interval[1] - interval[0] == pytest.approx(2 * 1.96 * first.std() / 20, rel=0.2)
    np.testing.assert_allclose(means[:, 0] - means[:, 1], 0.1)
