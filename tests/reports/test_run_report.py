"""Tests of the report of a run: its numbers, the self-contained page, and errors that do not make the run fail."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import swivel
from message_recorder import MessageRecorder
from stored import folder_of
from swivel.cli import cli
from swivel.cli.terminal import LogLines
from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix
from swivel.errors import ConfigError
from swivel.evaluation import SetResult
from swivel.pipeline.report_job import ReportJob, timed_options
from swivel.reports.plots import plot_epochs
from swivel.reports.run_report import ask_words, choose_map, choose_words, compose_run, summarize_run, write_report
from swivel.runtime.child_process import ChildProcess
from swivel.runtime.progress import Stopwatch, track
from swivel.storage.manifest import read_manifest
from swivel.training.objective import loss_and_gradient, observed_losses
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.projection import compute_umap, fit_to_frame

LINES = ["the man drinks tea", "the woman drinks milk", "a <b>bold</b> cat & a dog", "tea with milk and sugar"] * 6


class Addresses(HTMLParser):
    """Collect the addresses that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if value and name in ("src", "href", "xlink:href", "srcset")]
        assert tag not in ("script", "link", "iframe")


@pytest.fixture(scope="module")
def trained(planted: Matrix, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "vectors"
    swivel.train(planted, folder, recipe="fast", dim=8, epochs=4, block_size=21)
    return folder


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def section(page: str, title: str) -> str:
    return page.partition(f"<h2>{title}</h2>")[2].partition("<h2>")[0]


# Numbers


def test_losses_are_those_of_the_manifest(planted: Matrix, trained: Path) -> None:
    epochs = summarize_run(swivel.load(trained), planted).epochs
    losses = read_manifest(trained).facts["losses"]
    assert epochs == losses
    assert len(epochs) == 4


def test_losses_of_observed_cells_are_those_of_the_objective() -> None:
    rng = np.random.default_rng(3)
    x = rng.poisson(2, (7, 9)).astype(np.float64)
    products, offsets, objective = (
        rng.normal(size=(7, 9)),
        rng.normal(size=(7, 9)),
        TrainConfig(confidence_base=0.2, confidence_scale=0.3, confidence_power=0.7),
    )
    expected, _ = loss_and_gradient(products, x, offsets, objective)
    seen = x > 0
    found = observed_losses(products[seen], x[seen], offsets[seen], objective)
    assert found.sum() == pytest.approx(expected.observed)


def make_words(tokens: list[str]) -> Vectors:
    return Vectors(VectorTable(Vocabulary(tokens), np.ones((len(tokens), 2), np.float32)))


@pytest.mark.parametrize("size", [1, 2, 7, 40, 1000, 30_000])
def test_words_of_each_band_are_distinct_and_ordered(size: int) -> None:
    chosen = choose_words(make_words([f"word{n}" for n in range(size)]))
    numbers = [number for _, number in chosen]
    assert numbers == sorted(set(numbers))
    assert chosen
    bands = [["common", "middling", "rare"].index(band) for band, _ in chosen]
    assert bands == sorted(bands)
    assert size < 1000 or len(chosen) == 15


def test_words_of_letters_are_preferred() -> None:
    tokens = [f"x{n}" for n in range(100)]
    for number in (92, 93, 95, 97, 98):
        tokens[number] = "rare" + chr(97 + number - 90)
    rare = [number for band, number in choose_words(make_words(tokens)) if band == "rare"]
    assert rare == [92, 93, 95, 97, 98]


def test_words_that_occur_with_everything_are_not_asked() -> None:
    tokens = [f"{kind}{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(200) for kind in ("and", "plain")]
    rows = np.ones((400, 4), np.float32)
    rows[::2] *= 0.1  # w . c is about 0: as often as by chance
    chosen = choose_words(Vectors(VectorTable(Vocabulary(tokens), rows)))
    assert len(chosen) == 15
    assert all(tokens[number].startswith("plain") for _, number in chosen)


def test_rare_words_have_neighbors_among_many(monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    everything = ask_words(swivel.load(trained))
    monkeypatch.setattr("swivel.reports.run_report.MAX_CANDIDATES", 20)
    asked = ask_words(swivel.load(trained))
    assert [each.word for each in asked] == [each.word for each in everything]
    common = {f"w{n}" for n in range(20)} | {each.word for each in asked}
    assert all(near.token in common for each in asked for near in each.nearest)


# The page


def test_page_has_all_sections_and_is_self_contained(planted: Matrix, trained: Path, tmp_path: Path) -> None:
    write_report(trained, planted, tmp_path / "page.html", {"reading": 1.5, "counting": 75.0, "total": 80.0})
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    titles = re.findall("<h2>(.*?)</h2>", page)

    first = ["Neighbors", "Map", "Evaluation"]
    assert titles == [*first, "Losses", "Time", "Settings"]

    addresses = Addresses()
    addresses.feed(page)

    assert all(address.startswith("#") for address in addresses.found)
    assert not re.search(r"url\((?!#)|@import", page)
    assert page.count("<svg") == 2
    assert "prefers-color-scheme: dark" in page
    assert "1 min 15 s" in section(page, "Time")
    assert all(band in section(page, "Neighbors") for band in ("common", "middling", "rare"))
    assert "confidence_power" in section(page, "Settings")


@pytest.mark.parametrize("in_process", [False, True])
def test_the_page_of_a_training_is_that_of_its_folder(
    in_process: bool, planted: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training computes its report while the vectors are written, from what is in memory; beside a GPU, a process of
    its own draws the figures.
    """
    started: list[ChildProcess] = []

    def start() -> ChildProcess:
        started.append(ChildProcess())
        return started[-1]

    monkeypatch.setattr("swivel.pipeline.report_job.ChildProcess", start)
    monkeypatch.setattr("swivel.pipeline.report_job.may_use_cuda", lambda asked: in_process)
    swivel.train(planted, tmp_path / "v", dim=4, epochs=2, options=swivel.RunOptions(report=True))
    assert len(started) == in_process

    write_report(tmp_path / "v", planted, tmp_path / "again.html")
    pages = [path.read_text(encoding="utf-8") for path in (tmp_path / "v" / "report.html", tmp_path / "again.html")]
    for title in ("Neighbors", "Map", "Evaluation", "Losses", "Settings"):
        assert section(pages[0], title) == section(pages[1], title), title


@pytest.mark.parametrize("fault", ["cannot start", "is killed"])
def test_figures_are_drawn_here_if_the_other_process_does_not_run(
    fault: str, planted: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> ChildProcess:
        if fault == "cannot start":
            raise BlockingIOError(11, "no more processes")
        process = ChildProcess()
        process._process.kill()
        return process

    monkeypatch.setattr("swivel.pipeline.report_job.ChildProcess", start)
    monkeypatch.setattr("swivel.pipeline.report_job.may_use_cuda", lambda asked: True)
    swivel.train(planted, tmp_path / "v", dim=4, epochs=2, options=swivel.RunOptions(report=True))
    assert (tmp_path / "v" / "report.html").read_text(encoding="utf-8").count("<svg") == 2


def test_the_map_has_the_words_that_say_most(trained: Path) -> None:
    labels, components = choose_map(swivel.load(trained))
    points = fit_to_frame(compute_umap(components))
    assert len(labels) == len(points) > 10
    assert np.quantile(np.abs(points), 0.9) <= 1  # nearly all are in the frame
    assert len(np.unique(points, axis=0)) == len(points)


def test_the_evaluation_has_the_known_sections(planted: Matrix, trained: Path) -> None:
    run = summarize_run(swivel.load(trained), planted)
    assert "None of the bundled questions" in section(compose_run(run, {}, {}), "Evaluation")

    sections = (
        SetResult("section", "capitals", 0.5, None, 4, 6, 0.5, 0.3),
        SetResult("section", "plurals", None, None, 0, 5, None, None),
    )
    asked = SetResult("analogies", "bundled", 0.5, None, 4, 11, 0.5, 0.2, sections)
    page = section(compose_run(replace(run, analogies=asked), {}, {}), "Evaluation")
    assert "<td>capitals</td><td>50%</td><td>4</td><td>6</td>" in page
    assert "<td>all</td><td>50%</td><td>4</td><td>11</td>" in page
    assert "plurals" not in page


def test_page_of_the_same_run_is_the_same(planted: Matrix, trained: Path, tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        write_report(trained, planted, tmp_path / name)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_without_matplotlib_the_page_has_tables_and_a_note(
    planted: Matrix, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_report(trained, planted, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<svg" not in page
    assert "pip install &#x27;swivel-embeddings[plot]&#x27;" in page
    assert "<table>" in section(page, "Losses")
    assert "<details>" not in section(page, "Losses")


def test_labels_with_markup_are_escaped(tmp_path: Path) -> None:
    odd = "<script>alert(1)</script>"
    matrix = swivel.count([["tea", odd], [odd, "milk"], ["tea", "milk"]], min_count=1, columns="symmetric")
    swivel.train(matrix, tmp_path / "vectors", recipe="fast", dim=2, epochs=1)
    write_report(tmp_path / "vectors", matrix, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert odd not in page
    assert "&lt;script&gt;alert(1)" in page


def test_vectors_without_losses_have_a_page(planted: Matrix, trained: Path) -> None:
    run = summarize_run(swivel.load(trained).replace(facts={}), planted)
    assert "Losses" not in compose_run(replace(run, asked=()), {}, {})


# Writing the report


def test_train_writes_a_report_only_if_the_option_is_set(planted: Matrix, tmp_path: Path) -> None:
    swivel.train(planted, tmp_path / "one", dim=2, epochs=1)
    swivel.train(planted, tmp_path / "two", dim=2, epochs=1, options=swivel.RunOptions(report=True))
    assert [(tmp_path / name / "report.html").exists() for name in ("one", "two")] == [False, True]
    swivel.open_matrix(folder_of(planted)).verify()
    swivel.Vectors.load(tmp_path / "two")


def test_run_writes_one_report_with_the_times_of_its_stages(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(LINES))
    done = invoke("run", tmp_path / "text.txt", "-o", tmp_path / "work", "--dim", 4, "--epochs", 2, "--min-count", 1)
    assert done.exit_code == 0, done.output
    assert f"the report: {tmp_path / 'work' / 'report.html'}" in done.stderr
    assert not (tmp_path / "work" / "vectors" / "report.html").exists()
    times = section((tmp_path / "work" / "report.html").read_text(encoding="utf-8"), "Time")
    assert re.findall(r"<tr><td>(\w+)", times) == ["comparing", "reading", "counting", "training", "this"]


def test_a_missing_report_is_written_by_the_same_command_later(planted: Matrix, tmp_path: Path) -> None:
    command = ["train", planted.path, "-o", tmp_path / "v", "--dim", 4, "--epochs", 1]
    assert invoke(*command, "--no-report").exit_code == 0
    assert not (tmp_path / "v" / "report.html").exists()
    assert invoke(*command).exit_code == 0
    page = (tmp_path / "v" / "report.html").read_bytes()
    assert invoke(*command).exit_code == 0
    assert (tmp_path / "v" / "report.html").read_bytes() == page
    assert invoke("info", tmp_path / "v", "--verify").exit_code == 0, "the page must not be part of the manifest"


def test_the_report_of_a_table_has_its_counts_and_not_their_logarithms(tmp_path: Path) -> None:
    table = swivel.import_counts([(f"r{n}", f"c{n % 7}", 10.0 * n + 1) for n in range(40)])
    options = swivel.RunOptions(report=True)
    for _ in range(2):  # The page that is removed is written again by the same command.
        swivel.train(table, tmp_path / "vectors", dim=2, epochs=1, options=options)
        page = (tmp_path / "vectors" / "report.html").read_text(encoding="utf-8")
        assert table.total == 7840
        assert re.search(r"counts, all together.{0,20}7,?840\b", page)
        (tmp_path / "vectors" / "report.html").unlink()


def test_the_report_of_a_table_speaks_of_rows(tmp_path: Path) -> None:
    table = swivel.import_counts([(f"user{n}", f"item{(n + k) % 7}", 1) for n in range(40) for k in range(3)])
    swivel.train(table, tmp_path / "vectors", dim=2, epochs=2)
    run = write_report(tmp_path / "vectors", table, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    shown = re.sub(r"<style>.*?</style>", "", page.partition("<h2>Settings</h2>")[0], flags=re.DOTALL)
    assert not re.search(r"\bwords?\b|English|Evaluation", shown)
    assert "common, middling and rare rows" in section(page, "Neighbors")
    assert run.analogies is None


def test_a_training_of_one_epoch_has_its_losses_as_a_table(planted: Matrix, tmp_path: Path) -> None:
    swivel.train(planted, tmp_path / "v", dim=4, epochs=1, options=swivel.RunOptions(report=True))
    page = (tmp_path / "v" / "report.html").read_text(encoding="utf-8")
    assert (page.count("<svg"), "<table" in section(page, "Losses")) == (1, True)


def test_an_error_in_the_report_does_not_make_the_run_fail(
    planted: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no luck")

    monkeypatch.setattr("swivel.reports.run_report.summarize_run", fail)
    progress = MessageRecorder()
    swivel.train(planted, tmp_path / "v", dim=2, epochs=1, options=swivel.RunOptions(report=True, progress=progress))
    assert progress.lines[-1] == "no report: no luck"
    assert len(swivel.load(tmp_path / "v")) == 62


def test_a_report_of_vectors_in_memory_is_refused(planted: Matrix) -> None:
    message = "a report is a file: pass out, the folder of the result"
    with pytest.raises(ConfigError, match=message):
        swivel.train(planted, report=True)
    with pytest.raises(ConfigError, match=message):
        swivel.run(["a b"], report=True)


def test_only_the_leader_writes_the_report(
    planted: Matrix, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, is_written in ((1, False), (0, True)):
        monkeypatch.setattr("swivel.runtime.resources.find_rank", lambda rank=rank: (rank, 2, 2))
        options = timed_options(tmp_path, swivel.RunOptions(report=True))
        ReportJob(tmp_path, trained, planted, options).write(swivel.load(trained))
        assert (tmp_path / "report.html").exists() is is_written


# Single figures


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_plot_draws_the_losses(kind: str, trained: Path, tmp_path: Path) -> None:
    done = invoke("plot", "epochs", trained, "-o", tmp_path / f"figure.{kind}")
    assert done.exit_code == 0, done.output
    assert (tmp_path / f"figure.{kind}").read_bytes().startswith(b"\x89PNG" if kind == "png" else b"<?xml")


def test_a_figure_without_losses_is_an_error() -> None:
    with pytest.raises(ConfigError, match="losses"):
        plot_epochs(())


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_axes_have_whole_epochs_and_more_than_one_tick(count: int) -> None:
    figure = plot_epochs([{"mean": 0.5, "observed": 2.0, "unobserved": 0.25}] * count)
    figure.draw_without_rendering()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            assert len([tick for tick in axis.get_ticklocs() if low <= tick <= high]) >= 2
        assert all(tick == int(tick) for tick in axes.xaxis.get_ticklocs())


def test_curves_show_the_given_numbers() -> None:
    losses = [{"mean": 0.5, "observed": 2.0, "unobserved": 0.25}, {"mean": 0.25, "observed": 1.0, "unobserved": 0.125}]
    figure = plot_epochs(losses)

    assert [np.asarray(axes.lines[0].get_ydata()).tolist() for axes in figure.axes] == [
        [0.5, 0.25],
        [2.0, 1.0],
        [0.25, 0.125],
    ]


# Progress


def test_stopwatch_adds_up_the_parts_of_a_job() -> None:
    ticks = iter([0.0, 1.0, 3.0, 10.0, 14.0, 20.0])
    watch = Stopwatch(clock=lambda: next(ticks))
    for _ in range(2):
        with track(watch, "counting", None, "tokens"):
            pass
    assert watch.seconds == {"counting": 2.0 + 4.0}
    assert watch.total == 20.0


def test_a_log_has_one_line_per_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    task = LogLines("training", 1000.0, "cells", clock=lambda: now[0])
    for second in range(1, 131):
        now[0] = float(second)
        task.advance(5.0, f"epoch {second}")

    assert capsys.readouterr().err.splitlines() == [
        f"training: {30 * n} %, 5.0 cells/s, {left} left; epoch {60 * n}"
        for n, left in ((1, "0:02:20"), (2, "0:01:20"))
    ]


def test_a_log_without_a_total_has_the_speed_only(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    task = LogLines("reading", None, "tokens", clock=lambda: now[0])
    now[0] = 100.0
    task.advance(2_500_000)
    assert capsys.readouterr().err == "reading: 25.0 k tokens/s\n"


def test_bars_show_losses_speed_and_time_left_in_80_columns() -> None:
    from io import StringIO

    from rich.console import Console

    from swivel.runtime.progress import create_display

    display = create_display()
    display.add_task("training", total=100, completed=40, unit="cells", note="epoch 12/20, loss 0.0421 (observed 0.5)")
    screen = StringIO()
    console = Console(file=screen, width=80)
    console.print(*display.get_renderables(), sep="\n")
    shown = screen.getvalue()
    assert "epoch 12/20, loss 0.0421 (observed 0.5)" in shown
    assert "40%" in shown
    assert "left" in shown
