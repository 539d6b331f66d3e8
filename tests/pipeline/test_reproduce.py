"""Tests of `reproduce`: stages run once, methods share a vocabulary, and the results match the folders."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import swivel.pipeline.reproduce
from swivel import config as swivel_config
from swivel import storage
from swivel.cli import cli
from swivel.config import CorpusConfig
from swivel.corpus import split_units
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import open_matrix
from swivel.errors import (
    ConfigError,
    CorpusError,
    DamagedFolder,
    EvaluationError,
    FolderExists,
    MissingExtra,
    StorageError,
)
from swivel.evaluation import AnalogyResult, CategoryResult, EvaluationConfig, evaluate, read_sets
from swivel.pipeline.info import name_processor
from swivel.pipeline.reproduce import METHODS, ReproduceConfig, Results, reproduce, run_here
from swivel.pipeline.reproduce.config import count_settings, list_trained, matrix_name
from swivel.pipeline.reproduce.corpus_slice import slice_job
from swivel.pipeline.reproduce.evaluations import evaluation_job, open_evaluation
from swivel.pipeline.reproduce.results import describe_machine
from swivel.pipeline.reproduce.stages import MEASURES, Record, StageJob, Stages, read_records
from swivel.pipeline.reproduce.subprocess import Job, Measure
from swivel.runtime.options import RunOptions
from swivel.storage import create_folder, read_manifest
from swivel.vectors import Vectors, VectorTable, load

GROUPS, WORDS = 4, 40
NAMES = [f"word{'abcdefghijklmnopqrst'[n // 2]}{'xy'[n % 2]}" for n in range(WORDS)]
QUICK: dict[str, Any] = {"min_count": 1, "tokenizer": "whitespace"}


def write_corpus(file: Path) -> Path:
    """Write lines with words of one group each. Word n belongs to group n % 4; words with a small n are common."""
    rng = np.random.default_rng(5)
    lines = []
    for line in range(300):
        own = np.arange(line % GROUPS, WORDS, GROUPS)
        chances = 1 / (1 + own)
        lines.append(" ".join(NAMES[n] for n in rng.choice(own, 8, p=chances / chances.sum())))
    file.write_text("\n".join(lines) + "\n")
    return file


def write_sets(folder: Path) -> Path:
    folder.mkdir()
    pairs = [(a, b, 9 if a % GROUPS == b % GROUPS else 1) for a in range(8) for b in range(a + 1, 12)]
    (folder / "men.tsv").write_text("".join(f"{NAMES[a]}\t{NAMES[b]}\t{score}\n" for a, b, score in pairs))
    questions = [(n, n + 4, m, m + 4) for n in range(12) for m in range(12) if n != m]
    lines = ("\t".join(NAMES[n] for n in four) for four in questions)
    (folder / "google_analogies.tsv").write_text("\n".join(lines) + "\n")
    (folder / "kinds.tsv").write_text("".join(f"{NAMES[n]}\tgroup{n % GROUPS}\n" for n in range(16)))
    return folder


@dataclass
class Counting:
    """Runner that runs jobs in this process and records the names of their functions."""

    ran: list[str]

    def __call__(self, job: Job, options: RunOptions) -> Measure:
        assert isinstance(job, partial)
        self.ran.append(job.func.__name__.removeprefix("_"))
        return replace(run_here(job, options), peak_bytes=1 << 20)


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the figures, which take longer than a small experiment."""
    monkeypatch.setattr("swivel.pipeline.reproduce.report._draw", lambda results, matrix: iter(()))


@dataclass(frozen=True)
class Experiment:
    """A finished experiment, and a function that runs it again."""

    folder: Path
    results: Results
    again: Callable[..., tuple[Results, list[str]]]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    folder = tmp_path_factory.mktemp("experiment")
    text, sets = write_corpus(folder / "text.txt"), write_sets(folder / "sets")
    rng = np.random.default_rng(2)
    lines = (f"{word} {' '.join(f'{x:.3f}' for x in rng.normal(size=3))}" for word in NAMES[:20])
    (folder / "other.txt").write_text("\n".join(lines) + "\n")

    def again(*methods: str, **changes: Any) -> tuple[Results, list[str]]:
        config = ReproduceConfig(
            methods=methods or ("default", "paper", "sgns", "cbow", "glove"),
            dim=6,
            seeds=2,
            data=sets,
            vectors=(("other", folder / "other.txt"),),
        )
        runner = Counting([])
        new_results = reproduce(
            text, folder / "out", config=config, options=RunOptions(threads=1), runner=runner, **QUICK | changes
        )
        return new_results, runner.ran

    results, ran = again()
    counted = len({matrix_name(recipe, QUICK) for recipe in ("default", "paper", "glove")})
    trained = ["train"] * 4 + ["train_baseline"] * 2 + ["train"]
    assert ran == ["count"] * counted + trained + ["save_evaluation"] * 8
    return Experiment(folder / "out", results, again)


def test_every_public_name_is_exported() -> None:
    assert all(hasattr(swivel.pipeline.reproduce, name) for name in swivel.pipeline.reproduce.__all__)


def test_every_recipe_is_a_method() -> None:
    assert set(swivel_config.RECIPES) <= set(METHODS)


def test_every_method_has_figures_with_intervals_on_every_set(experiment: Experiment) -> None:
    results = experiment.results

    assert [info.label for info in results.sets] == ["MEN", "Google", "kinds"]
    assert [method.name for method in results.methods] == ["default", "paper", "sgns", "cbow", "glove", "other"]
    for method in results.methods:
        for info in results.sets:
            score = method.scores[info.name]
            assert score.figure is not None
            assert score.interval is not None
            low, high = score.interval
            assert low <= score.figure <= high
            assert score.known <= info.total


def test_swivel_finds_the_groups(experiment: Experiment) -> None:
    for name in ("default", "paper"):
        method = next(method for method in experiment.results.methods if method.name == name)
        assert method.scores["kinds"].mean == 1.0
        assert method.scores["men"].mean == pytest.approx(
            0.693, abs=0.001
        )  # the highest rho for judgments of two values


def test_all_trained_methods_have_the_same_words(experiment: Experiment) -> None:
    folders = sorted((experiment.folder / "vectors").iterdir())
    assert len(folders) == 7
    assert {load(folder).vocabulary.tokens for folder in folders} == {load(folders[0]).vocabulary.tokens}
    assert {method.words for method in experiment.results.methods[:-1]} == {WORDS}
    assert {method.dim for method in experiment.results.methods[:-1]} == {6}
    assert (experiment.results.methods[-1].words, experiment.results.methods[-1].dim) == (20, 3)


def test_the_first_method_is_compared_with_each_other_method(experiment: Experiment) -> None:
    ours, *others = experiment.results.methods
    assert ours.comparisons == {}
    for other in others:
        assert list(other.comparisons) == ["men", "google_analogies", "kinds"]
        for comparison in other.comparisons.values():
            assert comparison.p_value is not None
            assert comparison.interval is not None


def test_only_swivel_recipes_have_several_seeds_with_means_and_deviations(experiment: Experiment) -> None:
    results = experiment.results
    assert results.seeds == 2
    seeds = {method.name: len(method.scores["men"].by_seed) for method in results.methods}
    assert seeds == {"default": 2, "paper": 2, "sgns": 0, "cbow": 0, "glove": 0, "other": 0}
    score = results.ours.scores["men"]
    assert score.mean == pytest.approx(sum(score.by_seed) / 2)
    assert score.deviation == pytest.approx(abs(score.by_seed[0] - score.by_seed[1]) / 2**0.5)
    assert results.methods[2].scores["men"].deviation is None


def test_costs_are_those_of_each_stage(experiment: Experiment) -> None:
    stages = {method.name: [cost.stage for cost in method.costs] for method in experiment.results.methods}
    assert stages["default"] == ["counting", "training", "evaluation"]
    assert stages["sgns"] == ["training", "evaluation"]
    assert stages["other"] == ["evaluation"]
    for method in experiment.results.methods:
        assert all(cost.seconds is not None and cost.peak_bytes == 1 << 20 for cost in method.costs)


def test_settings_are_those_of_the_manifests(experiment: Experiment) -> None:
    by_name = {method.name: method.settings for method in experiment.results.methods}
    assert by_name["default"]["corpus"]["unit"] == by_name["sgns"]["corpus"]["unit"] == "line"
    assert by_name["paper"]["corpus"]["unit"] == "sentence"
    assert by_name["default"]["train"]["dim"] == by_name["sgns"]["baseline"]["dim"] == 6
    assert by_name["glove"]["train"]["objective"] == "glove"
    assert by_name["other"] == {"file": "other.txt", "words": 20, "dimensions": 3}


def test_methods_with_the_same_counts_share_a_matrix(experiment: Experiment) -> None:
    folders = {folder.name for folder in (experiment.folder / "matrices").iterdir()}
    assert folders == {matrix_name(recipe, QUICK) for recipe in ("default", "paper", "glove")}


def test_frequency_curves_have_one_bucket_with_all_questions(experiment: Experiment) -> None:
    (point,) = experiment.results.curves[0].points
    assert point.questions == 132
    assert [curve.name for curve in experiment.results.differences] == ["paper", "sgns", "cbow", "glove", "other"]


def test_rare_words_have_neighbors_by_every_method(experiment: Experiment) -> None:
    rare = experiment.results.rare
    assert len(rare.words) == 4
    assert set(rare.neighbors) == {"default", "paper", "sgns", "cbow", "glove", "other"}
    assert all(len(tokens) == 6 for tokens in rare.neighbors["default"])
    assert rare.neighbors["other"] == ((),) * 4


def test_all_files_are_written_with_the_same_content(experiment: Experiment) -> None:
    folder = experiment.folder
    names = {"frequency", "differences", "loss", "block"}

    assert {file.name for file in (folder / "figures").iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    }

    page, markdown = (folder / "report.html").read_text(), (folder / "report.md").read_text()

    for text in (page, markdown):
        assert "Very rare words" in text
        assert experiment.results.rare.words[0] in text
    assert json.loads((folder / "results.json").read_text()) == json.loads(json.dumps(experiment.results.to_dict()))


def test_report_has_no_paths_and_no_host(experiment: Experiment) -> None:
    for name in ("report.html", "report.md", "results.json", MEASURES):
        text = (experiment.folder / name).read_text()
        assert str(experiment.folder.parent) not in text
        if name != "report.html":  # In the page, a short host name may occur by chance in the SVG data.
            assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", text)


def test_a_finished_experiment_runs_no_job_again(experiment: Experiment) -> None:
    before = (experiment.folder / "report.md").read_bytes()
    results, ran = experiment.again()
    assert ran == []
    assert results.to_dict() == experiment.results.to_dict()
    assert (experiment.folder / "report.md").read_bytes() == before


@pytest.mark.usefixtures("without_figures")
def test_more_and_fewer_methods_use_existing_folders(experiment: Experiment) -> None:
    is_new = not (experiment.folder / "matrices" / matrix_name("fast", QUICK)).exists()
    results, ran = experiment.again("fast", "default")
    assert ran == ["count"] * is_new + ["train"] * 2 + ["save_evaluation"] * 2
    assert [method.name for method in results.methods] == ["fast", "default", "other"]


def test_other_settings_in_the_same_folder_are_rejected(experiment: Experiment) -> None:
    with pytest.raises(FolderExists, match=r"finished already with other settings \(vocabulary\.max_size\)"):
        experiment.again(max_size=30)


@pytest.mark.usefixtures("without_figures")
def test_baselines_alone_use_the_vocabulary_of_the_default_recipe(tmp_path: Path) -> None:
    config = ReproduceConfig(methods=("cbow",), dim=4, data=write_sets(tmp_path / "sets"))
    text = write_corpus(tmp_path / "text.txt")
    results = reproduce([text], tmp_path / "out", config=config, runner=run_here, **QUICK)
    assert results.ours.words == WORDS
    assert results.differences == ()
    assert [folder.name for folder in (tmp_path / "out" / "matrices").iterdir()] == [matrix_name("default", QUICK)]


@pytest.mark.usefixtures("without_figures")
def test_an_interrupted_experiment_resumes(tmp_path: Path) -> None:
    text, sets = write_corpus(tmp_path / "text.txt"), write_sets(tmp_path / "sets")
    config = ReproduceConfig(methods=("default", "paper"), dim=4, data=sets)
    runner = Counting([])

    def stop_at_paper(job: Job, options: RunOptions) -> Measure:
        assert isinstance(job, partial)
        if job.func is swivel.train and job.keywords["recipe"] == "paper":
            raise KeyboardInterrupt
        return runner(job, options)

    with pytest.raises(KeyboardInterrupt):
        reproduce(text, tmp_path / "out", config=config, runner=stop_at_paper, **QUICK)
    assert runner.ran == ["count", "count", "train"]
    record = read_records(tmp_path / "out" / MEASURES)["vectors paper-seed1"]
    assert (record.attempts, record.is_finished) == (1, False)
    runner.ran.clear()
    results = reproduce(text, tmp_path / "out", config=config, runner=runner, **QUICK)
    assert runner.ran == ["train", "save_evaluation", "save_evaluation"]
    assert [cost.attempts for cost in results.methods[1].costs] == [1, 2, 1]


def folder_job(out: Path, value: int = 1, fails: str = "", *, resumes: bool = False) -> StageJob:
    """Return a job that writes an empty folder; it fails before or after writing if `fails` is set."""
    return StageJob(out, {"value": value}, partial(write_empty, out, fails), resumes)


def write_empty(out: Path, fails: str, *, options: RunOptions) -> None:
    if fails == "before":
        raise FolderExists("refused")
    with create_folder(out, "test", overwrite=True) as folder:
        folder.finish(config={}, inputs={}, facts={})
    if fails == "after":
        raise KeyboardInterrupt


def test_a_finished_stage_is_swept(tmp_path: Path) -> None:
    stages = Stages(tmp_path, RunOptions(), Counting([]))
    stages.do("one", folder_job(tmp_path / "one"))
    for name in ("lock", "plan.json"):
        (tmp_path / "one" / name).write_text("{}")
    (tmp_path / "one" / "checkpoint-2").mkdir()
    stages.do("one", folder_job(tmp_path / "one"))
    assert [file.name for file in (tmp_path / "one").iterdir()] == [storage.MANIFEST]


def test_a_stage_runs_once_and_again_when_its_provenance_changes(tmp_path: Path) -> None:
    runner = Counting([])
    stages = Stages(tmp_path, RunOptions(), runner)

    for _ in range(2):
        assert stages.do("one", folder_job(tmp_path / "one")) == tmp_path / "one"
    assert len(runner.ran) == 1

    Stages(tmp_path, RunOptions(), runner).do("one", folder_job(tmp_path / "one"))

    assert len(runner.ran) == 1

    stages.do("one", folder_job(tmp_path / "one", 2))

    assert len(runner.ran) == 2

    Stages(tmp_path, RunOptions(overwrite=True), runner).do("one", folder_job(tmp_path / "one", 2))
    assert len(runner.ran) == 3

    (tmp_path / "one" / storage.MANIFEST).unlink()
    stages.do("one", folder_job(tmp_path / "one", 2))

    assert len(runner.ran) == 4


def test_the_time_of_an_existing_folder_is_unknown(tmp_path: Path) -> None:
    job = folder_job(tmp_path / "one")
    job.run(options=RunOptions())
    stages = Stages(tmp_path, RunOptions(), lambda job, options: Measure(2.0))  # It keeps the existing folder.
    stages.do("one", job)
    assert stages.records["one"].seconds is None
    assert stages.records["one"].is_finished


def test_the_time_of_a_repeated_stage_is_that_of_the_last_run(tmp_path: Path) -> None:
    for options in (RunOptions(), RunOptions(overwrite=True)):
        stages = Stages(tmp_path, options, takes(2.0))
        stages.do("one", folder_job(tmp_path / "one", resumes=True))
        assert (stages.records["one"].seconds, stages.records["one"].attempts) == (2.0, 1)
    stages.do("one", folder_job(tmp_path / "one", 2))
    assert stages.records["one"].seconds == 2.0


@pytest.mark.parametrize(("resumes", "seconds", "attempts"), [(True, 102.0, 2), (False, 2.0, 1)])
def test_time_of_attempts_adds_up_if_a_job_resumes(
    tmp_path: Path, resumes: bool, seconds: float, attempts: int
) -> None:
    stages = Stages(tmp_path, RunOptions(), takes(2.0))
    with pytest.raises(FolderExists):
        stages.do("one", folder_job(tmp_path / "one", fails="before", resumes=resumes))
    stages.records["one"] = replace(stages.records["one"], seconds=100.0)
    stages.do("one", folder_job(tmp_path / "one", resumes=resumes))
    assert (stages.records["one"].seconds, stages.records["one"].attempts) == (seconds, attempts)


def test_a_rejected_stage_keeps_the_record_of_the_existing_folder(tmp_path: Path) -> None:
    stages = Stages(tmp_path, RunOptions(), takes(2.0))
    stages.do("one", folder_job(tmp_path / "one"))
    before = read_records(tmp_path / MEASURES)
    with pytest.raises(FolderExists):
        stages.do("one", folder_job(tmp_path / "one", 2, fails="before"))
    assert read_records(tmp_path / MEASURES) == before


def test_a_stage_interrupted_after_its_folder_was_written_is_finished(tmp_path: Path) -> None:
    stages = Stages(tmp_path, RunOptions(), run_here)
    with pytest.raises(KeyboardInterrupt):
        stages.do("one", folder_job(tmp_path / "one", fails="after"))
    assert stages.records["one"].is_finished
    assert stages.records["one"].seconds is not None


def takes(seconds: float) -> Callable[[Job, RunOptions], Measure]:
    """Return a runner that runs jobs and reports the given time."""

    def run(job: Job, options: RunOptions) -> Measure:
        job(options=options)
        return Measure(seconds)

    return run


def test_seconds_of_attempts_add_up_and_the_highest_memory_counts() -> None:
    record = Record("x").after(Measure(2.0, 10), is_finished=False).after(Measure(1.5, 5), is_finished=True)
    assert (record.seconds, record.peak_bytes, record.is_finished) == (3.5, 10, True)
    assert record.after(Measure(None, None), is_finished=True).seconds is None


@pytest.mark.parametrize("text", ["{", "[]", '{"stages": {"one": {"nonsense": 1}}}', '{"stages": []}'])
def test_damaged_measures_are_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / MEASURES).write_text(text)
    with pytest.raises(DamagedFolder, match=r"measures\.json: not a record of stages"):
        read_records(tmp_path / MEASURES)


def test_unreadable_measures_are_an_error(tmp_path: Path) -> None:
    (tmp_path / MEASURES).mkdir()
    with pytest.raises(StorageError, match=r"measures\.json: Is a directory"):
        read_records(tmp_path / MEASURES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ()}, r"methods must be one or more different methods of default, paper, .*, got \(\)"),
        ({"methods": ("default", "default")}, "methods must be one or more different methods"),
        ({"methods": ("nonsense",)}, "methods must be one or more different methods"),
        ({"dim": 0}, "dim must be a positive integer, got 0"),
        ({"tokens": -1}, "tokens must be a positive integer, got -1"),
        ({"seeds": 0}, "seeds must be a positive integer, got 0"),
        ({"vectors": (("default", Path("x")),)}, "vectors must be pairs of a name"),
        ({"vectors": (("../x", Path("x")),)}, "vectors must be pairs of a name"),
        ({"vectors": (("..", Path("x")),)}, "vectors must be pairs of a name"),
        ({"vectors": (("default-seed1", Path("x")),)}, "vectors must be pairs of a name"),
        ({"vectors": (("x", "x.txt"),)}, r"vectors must be .* and a pathlib\.Path"),
        ({"vectors": (("x", Path("x")), ("x", Path("y")))}, "vectors must be pairs of a name"),
        ({"half": "other"}, "half must be one of tune, report, got 'other'"),
        ({"data": "sets"}, r"data must be a pathlib\.Path, got 'sets'"),
    ],
)
def test_wrong_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReproduceConfig(**settings)


def test_wrong_arguments_are_rejected_before_any_work(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "text.txt")
    out = tmp_path / "out"

    with pytest.raises(ConfigError, match="'window' is not a setting here"):
        reproduce(text, out, window=5)
    with pytest.raises(ConfigError, match="standard input and pipes cannot be read several times"):
        reproduce("-", out)
    with pytest.raises(CorpusError, match="no such file or folder"):
        reproduce(tmp_path / "nowhere", out)
    with pytest.raises(EvaluationError, match="nowhere"):
        reproduce(text, out, config=ReproduceConfig(data=tmp_path / "nowhere"))

    sets = write_sets(tmp_path / "sets")

    with pytest.raises(StorageError, match="nowhere: no such file or folder"):
        reproduce(text, out, config=ReproduceConfig(data=sets, vectors=(("x", tmp_path / "nowhere"),)))

    (tmp_path / "foreign.txt").write_text("mot 1 2\nparole 2 1\n")

    with pytest.raises(EvaluationError, match=r"no item of men, google_analogies, kinds is in .*foreign\.txt: check"):
        reproduce(text, out, config=ReproduceConfig(data=sets, vectors=(("x", tmp_path / "foreign.txt"),)))
    assert not out.exists()


def test_sets_without_known_words_are_rejected_before_training(tmp_path: Path) -> None:
    text, sets, runner = write_corpus(tmp_path / "text.txt"), tmp_path / "sets", Counting([])
    sets.mkdir()
    (sets / "pairs.tsv").write_text("mot\tparole\t9\n")
    with pytest.raises(EvaluationError, match="no item of pairs is in the vocabulary of the text"):
        reproduce(text, tmp_path / "out", config=ReproduceConfig(data=sets, dim=4), runner=runner, **QUICK)
    assert set(runner.ran) == {"count"}


@pytest.mark.usefixtures("without_figures")
def test_sets_are_lowercased_like_the_text(tmp_path: Path) -> None:
    text, sets = tmp_path / "text.txt", tmp_path / "sets"
    text.write_text("Oslo is in Norway\nand Rome is not\n" * 30)
    sets.mkdir()
    (sets / "pairs.tsv").write_text("Oslo\tNorway\t9\nOslo\tRome\t5\nnot\tin\t1\n")
    config = ReproduceConfig(methods=("default",), data=sets, dim=2)

    for lowercase in (True, False):
        out = tmp_path / f"out-{lowercase}"
        results = reproduce(text, out, config=config, runner=run_here, lowercase=lowercase, **QUICK)
        assert results.ours.scores["pairs"].known == 3


@pytest.mark.parametrize(("library", "extra"), [("matplotlib", "plot"), ("gensim", "baselines")])
def test_missing_libraries_are_an_error_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"{library}: pip install 'swivel-embeddings\[{extra}\]'"):
        reproduce(write_corpus(tmp_path / "text.txt"), tmp_path / "out")


def test_matrices_have_the_same_name_only_for_the_same_settings() -> None:
    names = {recipe: matrix_name(recipe, {}) for recipe in swivel_config.RECIPES}
    for one in names:
        for other in names:
            is_same = count_settings(one, {}) == count_settings(other, {})
            assert (names[one] == names[other]) is is_same
    assert matrix_name("paper", {"unit": "document"}).startswith("symmetric-document")


def test_matrices_with_the_same_label_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = ({"count": {"columns": "bands", "window": window}} for window in (10, 4))
    monkeypatch.setitem(swivel_config.RECIPES, "yy", wide)
    monkeypatch.setitem(swivel_config.RECIPES, "zz", narrow)
    assert {matrix_name("yy", {}), matrix_name("zz", {})} == {"bands-line", "bands-line-2"}


def test_each_seed_is_trained_separately() -> None:
    config = ReproduceConfig(methods=("sgns", "default"), seeds=2, seed=7)
    assert [each.path.name for each in list_trained(config, Path("vectors"))] == [
        "sgns-seed7",
        "default-seed7",
        "default-seed8",
    ]


def slice_text(tmp_path: Path, texts: dict[str, bytes], tokens: int, **settings: Any) -> tuple[str, int]:
    for name, data in texts.items():
        (tmp_path / name).write_bytes(data)
    job = slice_job([tmp_path / name for name in texts], tmp_path / "out", tokens, CorpusConfig(**settings))
    job.run(options=RunOptions(overwrite=True))
    return (tmp_path / "out" / "text.txt").read_text(), read_manifest(tmp_path / "out").facts["tokens"]


@pytest.mark.parametrize(
    ("tokens", "kept", "count"),
    [(1, "One two.\n", 2), (2, "One two.\n", 2), (3, "One two.\nthree", 3), (99, "One two.\nthree\nfour five\n", 5)],
)
def test_a_slice_is_the_first_lines_with_enough_tokens(tmp_path: Path, tokens: int, kept: str, count: int) -> None:
    texts = {"a.txt": b"One two.\nthree", "b.txt": b"four five\n"}
    assert slice_text(tmp_path, texts, tokens) == (kept, count)


def test_a_long_slice_has_the_recorded_number_of_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.pipeline.reproduce.corpus_slice.PIECE_BYTES", 100)
    lines = "".join(f"line number {n} says so, and not more.\n" for n in range(200))
    kept, count = slice_text(tmp_path, {"a.txt": lines.encode()}, 777)
    assert lines.startswith(kept)
    assert sum(map(len, split_units(kept, CorpusConfig()))) == count
    assert 777 <= count < 777 + 8


def test_a_slice_of_a_text_that_looks_like_a_path_is_that_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.pipeline.reproduce.corpus_slice.PIECE_BYTES", 100)
    text = "and/or/" * 100  # a line that is longer than a piece
    assert slice_text(tmp_path, {"a.txt": text.encode()}, 999)[0].strip() == text


def test_a_slice_is_utf_8_for_any_encoding_of_the_text(tmp_path: Path) -> None:
    assert slice_text(tmp_path, {"a.txt": "é ü\n".encode("latin-1")}, 5, encoding="latin-1") == ("é ü\n", 2)
    assert slice_text(tmp_path, {"b.txt": b"a \xff\n"}, 5, errors="replace")[0] == "a \ufffd\n"
    with pytest.raises(CorpusError, match=r"b\.txt, line 1: not valid UTF-8 \(byte 0xff at column 3\)"):
        slice_text(tmp_path, {"b.txt": b"a \xff\n"}, 5)


@pytest.mark.usefixtures("without_figures")
def test_the_report_mentions_the_slice(tmp_path: Path) -> None:
    text, sets = write_corpus(tmp_path / "text.txt"), write_sets(tmp_path / "sets")
    config = ReproduceConfig(methods=("default",), dim=4, data=sets, tokens=1000, half="tune")
    results = reproduce(text, tmp_path / "out", config=config, runner=run_here, **QUICK)

    assert results.corpus["tokens taken"] == 1000
    assert open_matrix(tmp_path / "out" / "matrices" / matrix_name("default", QUICK)).rows.counts.sum() == 1000

    markdown = (tmp_path / "out" / "report.md").read_text()

    assert "The first 1,000 tokens of text.txt" in markdown
    assert "Only the half `tune`" in markdown

    (tmp_path / "out" / MEASURES).unlink()
    runner = Counting([])
    reproduce(text, tmp_path / "out", config=config, runner=runner, **QUICK)  # The slice still counts as the same text.

    with pytest.raises(FolderExists, match=r"corpus: finished already with other settings \(corpus\.tokens\)"):
        reproduce(text, tmp_path / "out", config=replace(config, tokens=900), runner=runner, **QUICK)


def test_saved_results_equal_those_of_the_evaluation(tmp_path: Path) -> None:
    sets_folder = write_sets(tmp_path / "sets")
    rng = np.random.default_rng(3)
    vectors = Vectors(VectorTable(Vocabulary(NAMES[:14]), rng.normal(size=(14, 3)).astype(np.float32)))
    vectors.save(tmp_path / "vectors")
    sets = read_sets(sets_folder, EvaluationConfig()).sets
    evaluation_job(tmp_path / "vectors", tmp_path / "out", sets, EvaluationConfig()).run(options=RunOptions())
    kept, fresh = open_evaluation(tmp_path / "out", sets), evaluate(vectors, sets_folder)
    assert [result.to_dict().items() for result in fresh.results] != []

    for one, other in zip(kept.results, fresh.results, strict=True):
        assert (one.figure, one.interval, one.known, one.total) == (
            other.figure,
            other.interval,
            other.known,
            other.total,
        )
        assert one.items == other.items
        if isinstance(one, (AnalogyResult, CategoryResult)):
            assert isinstance(other, (AnalogyResult, CategoryResult))
            assert np.array_equal(one.is_right, other.is_right)
            assert np.array_equal(one.is_known, other.is_known)


def test_results_of_other_sets_are_an_error(tmp_path: Path) -> None:
    sets_folder = write_sets(tmp_path / "sets")
    Vectors(VectorTable(Vocabulary(NAMES), np.eye(WORDS, dtype=np.float32))).save(tmp_path / "vectors")
    sets = read_sets(sets_folder, EvaluationConfig()).sets
    evaluation_job(tmp_path / "vectors", tmp_path / "out", sets, EvaluationConfig()).run(options=RunOptions())
    with pytest.raises(DamagedFolder, match="not the results of these test sets"):
        open_evaluation(tmp_path / "out", [replace(sets[0], name="another")])


def test_the_machine_is_described_without_its_host_name(tmp_path: Path) -> None:
    machine = describe_machine(3)
    assert machine["cores"] == 3
    assert os.uname().nodename not in str(machine).split()
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A Fine One\n")
    assert name_processor(tmp_path / "cpuinfo") == "A Fine One"
    assert name_processor(tmp_path / "nowhere") != ""


@pytest.mark.usefixtures("without_figures")
def test_the_command_runs_an_experiment_and_prints_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keywords = {"config": None, "options": None, "runner": run_here}
    monkeypatch.setattr("swivel.pipeline.reproduce.run.reproduce.__kwdefaults__", keywords)
    text, sets = write_corpus(tmp_path / "text.txt"), write_sets(tmp_path / "sets")
    (tmp_path / "other.txt").write_text("wordax 1 2\nworday 2 1\nwordbx 0 1\n")
    command = ["reproduce", str(text), "-o", str(tmp_path / "out"), "--data", str(sets), "--methods", "default, glove"]
    command += ["--vectors", f"other={tmp_path / 'other.txt'}", "--dim", "4", "--min-count", "1"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.exception

    lines = done.stdout.splitlines()

    assert lines[0].split() == ["method", "MEN", "Google", "kinds"]
    assert [line.split()[0] for line in lines[1:]] == ["default", "glove", "other", "known"]
    assert lines[-1].split() == ["known", "to", "default", "100%", "100%", "100%"]
    assert f"the report: {tmp_path / 'out' / 'report.html'}" in done.stderr


@pytest.mark.parametrize("text", ["nonsense", "=x", "x="])
def test_vectors_without_a_name_are_rejected(text: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["reproduce", "text", "-o", str(tmp_path / "out"), "--vectors", text])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"--vectors takes NAME=FILE, got {text!r}"
