"""The paper's experiment: stages run once, methods share a vocabulary, and the report has what the folders have."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import swivel
from experiments.paper import (
    ABOUT,
    Experiment,
    PaperConfig,
    answer_sets,
    find_test_sets,
    main,
    read_answers,
    run_paper,
    take_tokens,
)
from experiments.paper_report import Results
from experiments.stages import MEASURES
from fuzz.tokenizer_reference import split_units
from swivel.config import CorpusConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import open_matrix
from swivel.errors import ConfigError, CorpusError, EvaluationError, FolderExists, StorageError
from swivel.evaluation import EvaluationConfig, evaluate
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT
from swivel.vectors import Vectors, VectorTable

GROUPS, WORDS = 4, 40
NAMES = [f"word{'abcdefghijklmnopqrst'[n // 2]}{'xy'[n % 2]}" for n in range(WORDS)]
QUIET = RunOptions(threads=1, progress=SILENT)
READING: dict[str, Any] = {"min_count": 1, "tokenizer": "whitespace"}
METHODS = ("default", "paper", "sgns", "cbow", "glove")


@pytest.fixture(autouse=True)
def forget_stages(ran_stages: list[str]) -> None:
    ran_stages.clear()


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
    return folder


@dataclass(frozen=True)
class Finished:
    """A finished experiment, and a function that runs it again and returns the names of the stages that ran."""

    folder: Path
    results: Results
    again: Callable[..., tuple[Results, list[str]]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, ran_stages: list[str]) -> Finished:
    folder = tmp_path_factory.mktemp("experiment")
    text, sets = write_corpus(folder / "text.txt"), write_sets(folder / "sets")
    rng = np.random.default_rng(2)
    lines = (f"{word} {' '.join(f'{x:.3f}' for x in rng.normal(size=3))}" for word in NAMES[:20])
    (folder / "other.txt").write_text("\n".join(lines) + "\n")

    def again(*methods: str, options: RunOptions = QUIET, **changes: Any) -> tuple[Results, list[str]]:
        ran_stages.clear()
        config = PaperConfig(
            methods=methods or METHODS, dim=6, seeds=2, data=sets, vectors={"other": folder / "other.txt"}
        )
        return run_paper([text], folder / "out", config, options, **READING | changes), list(ran_stages)

    results, names = again()
    trained = [
        "default-seed1",
        "default-seed2",
        "paper-seed1",
        "paper-seed2",
        "sgns-seed1",
        "cbow-seed1",
        "glove-seed1",
    ]
    assert names[:3] == ["matrix default", "matrix paper", "matrix fast"]
    assert sorted(names[3:]) == sorted(
        [*(f"vectors {name}" for name in trained), *(f"evaluation {name}" for name in [*trained, "other"])]
    )
    return Finished(folder / "out", results, again)


def test_every_method_has_scores_on_every_set(finished: Finished) -> None:
    results = finished.results
    assert results.table()[0] == ["method", "MEN", "Google"]
    assert [method.name for method in results.methods] == [*METHODS, "other"]
    for method in results.methods:
        for each in results.sets:
            assert method.mean(each.name) is not None
    assert results.table()[1][-1] == ["known to default", "100%", "100%"]


def test_swivel_finds_the_groups(finished: Finished) -> None:
    for method in finished.results.methods[:2]:
        assert method.mean("men") == pytest.approx(0.693, abs=0.001)  # the highest rho for judgments of two values


def test_all_trained_methods_have_the_same_words(finished: Finished) -> None:
    folders = sorted((finished.folder / "vectors").iterdir())
    assert len(folders) == 7
    assert {Vectors.load(folder).vocabulary.tokens for folder in folders} == {
        Vectors.load(folders[0]).vocabulary.tokens
    }
    assert {method.vectors.vectors.shape for method in finished.results.methods[:-1]} == {(WORDS, 6)}
    assert finished.results.methods[-1].vectors.vectors.shape == (20, 3)


def test_the_first_method_is_compared_with_each_other_method(finished: Finished) -> None:
    comparisons = finished.results.comparisons
    assert list(comparisons) == [*METHODS[1:], "other"]
    for found in comparisons.values():
        assert list(found) == ["men", "google_analogies"]
        assert all(each.p_value is not None for each in found.values())


def test_only_swivel_recipes_have_several_seeds(finished: Finished) -> None:
    seeds = {method.name: len(method.scores("men")) for method in finished.results.methods}
    assert seeds == {"default": 2, "paper": 2, "sgns": 1, "cbow": 1, "glove": 1, "other": 1}
    first = finished.results.methods[0]
    assert first.mean("men") == pytest.approx(sum(first.scores("men")) / 2)


def test_costs_are_those_of_each_stage(finished: Finished) -> None:
    stages = {method.name: {*method.costs} for method in finished.results.methods}
    assert stages["default"] == stages["glove"] == {"counting", "training", "evaluation"}
    assert stages["sgns"] == {"training", "evaluation"}
    assert stages["other"] == {"evaluation"}
    for method in finished.results.methods:
        assert {(cost.seconds, cost.peak_bytes) for cost in method.costs.values()} == {(2.5, 1 << 20)}


def test_settings_are_those_of_the_trained_vectors(finished: Finished) -> None:
    by_name = {method.name: method.settings for method in finished.results.methods}
    assert by_name["default"]["corpus"]["unit"] == by_name["sgns"]["corpus"]["unit"] == "line"
    assert by_name["paper"]["corpus"]["unit"] == "sentence"
    assert by_name["default"]["train"]["dim"] == by_name["sgns"]["dim"] == by_name["glove"]["dim"] == 6
    assert by_name["default"]["plan"]["backend"] == "cpu"
    assert by_name["sgns"]["method"] == "sgns" and by_name["sgns"]["corpus"]["tokenizer"] == "whitespace"
    assert by_name["glove"]["x_max"] == 100
    assert by_name["other"] == {"file": "other.txt"}


def test_all_files_are_written(finished: Finished) -> None:
    folder = finished.folder
    names = {"frequency", "differences", "loss", "block"}
    assert {file.name for file in (folder / "figures").iterdir()} == {f"{name}.png" for name in names}
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == len(names)
    assert json.loads((folder / "results.json").read_text()) == json.loads(json.dumps(finished.results.to_dict()))


def test_the_report_has_no_paths_and_no_host(finished: Finished) -> None:
    for name in ("report.html", "results.json", MEASURES):
        text = (finished.folder / name).read_text()
        assert str(finished.folder.parent) not in text
        if name != "report.html":  # In the page, a short host name may occur by chance in the SVG data.
            assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", text)


def test_a_finished_experiment_runs_no_stage_again(finished: Finished) -> None:
    before = (finished.folder / "results.json").read_bytes()
    _, names = finished.again()
    assert names == []
    assert (finished.folder / "results.json").read_bytes() == before


def test_more_and_fewer_methods_use_existing_folders(finished: Finished) -> None:
    results, names = finished.again("fast", "default")
    assert names == ["vectors fast-seed1", "vectors fast-seed2", "evaluation fast-seed1", "evaluation fast-seed2"]
    assert [method.name for method in results.methods] == ["fast", "default", "other"]


def test_other_settings_in_the_same_folder_are_rejected(finished: Finished) -> None:
    with pytest.raises(FolderExists, match=r"finished already with other settings \(vocabulary\.max_size\)"):
        finished.again(max_size=30)


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the figures, which take longer than a small experiment."""
    monkeypatch.setattr("experiments.paper_report.draw_figures", lambda results, matrix: iter(()))


@pytest.mark.usefixtures("without_figures")
def test_baselines_alone_use_the_vocabulary_of_the_default_recipe(tmp_path: Path) -> None:
    config = PaperConfig(methods=("cbow",), dim=4, data=write_sets(tmp_path / "sets"))
    text = write_corpus(tmp_path / "text.txt")
    results = run_paper([text], tmp_path / "out", config, QUIET, **READING)
    assert len(results.methods[0].vectors) == WORDS
    assert results.comparisons == {}
    assert [folder.name for folder in (tmp_path / "out" / "matrices").iterdir()] == ["default"]


@pytest.mark.usefixtures("without_figures")
def test_an_interrupted_experiment_resumes(
    tmp_path: Path, ran_stages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, sets = write_corpus(tmp_path / "text.txt"), write_sets(tmp_path / "sets")
    config = PaperConfig(methods=("default", "glove"), dim=4, data=sets)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("experiments.paper.train_on_cells", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_paper([text], tmp_path / "out", config, QUIET, **READING)
    assert ran_stages[-1] == "vectors glove-seed1"
    ran_stages.clear()
    results = run_paper([text], tmp_path / "out", config, QUIET, **READING)
    assert ran_stages == ["vectors glove-seed1", "evaluation glove-seed1"]
    assert results.methods[1].costs["training"].seconds == 2.5


@pytest.mark.usefixtures("without_figures")
def test_sets_are_lowercased_like_the_text(tmp_path: Path) -> None:
    text, sets = tmp_path / "text.txt", tmp_path / "sets"
    text.write_text("Oslo is in Norway\nand Rome is not\n" * 30)
    sets.mkdir()
    (sets / "pairs.tsv").write_text("Oslo\tNorway\t9\nOslo\tRome\t5\nnot\tin\t1\n")
    for lowercase in (True, False):
        config = PaperConfig(methods=("default",), data=sets, dim=2)
        out = tmp_path / f"out-{lowercase}"
        results = run_paper([text], out, config, QUIET, lowercase=lowercase, **READING)
        assert results.methods[0].reports[0]["pairs"].known == 3


@pytest.mark.usefixtures("without_figures")
def test_a_slice_is_counted_and_mentioned(tmp_path: Path, ran_stages: list[str]) -> None:
    text, sets = write_corpus(tmp_path / "text.txt"), write_sets(tmp_path / "sets")
    text.write_bytes(text.read_text().replace("word", "wörd").encode("latin-1"))
    for file in sets.iterdir():
        file.write_text(file.read_text().replace("word", "wörd"), encoding="utf-8")
    config = PaperConfig(methods=("default", "sgns"), dim=4, data=sets, tokens=1000, half="tune")

    for _ in range(2):
        results = run_paper([text], tmp_path / "out", config, QUIET, encoding="latin-1", **READING)
    assert len(ran_stages) == len(set(ran_stages)) == 6  # text, matrix, and vectors and evaluation of both
    assert results.corpus["first tokens"] == results.corpus["tokens in the vocabulary"] == 1000
    assert open_matrix(tmp_path / "out" / "matrices" / "default").rows.counts.sum() == 1000
    assert not Vectors.load(tmp_path / "out" / "vectors" / "sgns-seed1").is_zero.any()
    assert "Only the half <code>tune</code>" in (tmp_path / "out" / "report.html").read_text()


def slice_text(tmp_path: Path, texts: dict[str, bytes], tokens: int, **settings: Any) -> str:
    for name, data in texts.items():
        (tmp_path / name).write_bytes(data)
    take_tokens(
        tmp_path / "out.txt", [tmp_path / name for name in texts], tokens, CorpusConfig(**settings), options=QUIET
    )
    return (tmp_path / "out.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [(1, "One two.\n"), (2, "One two.\n"), (3, "One two.\nthree\n"), (99, "One two.\nthree\nfour five\n")],
)
def test_a_slice_is_the_first_lines_with_enough_tokens(tmp_path: Path, tokens: int, kept: str) -> None:
    assert slice_text(tmp_path, {"a.txt": b"One two.\nthree", "b.txt": b"four five\n"}, tokens) == kept


def test_a_long_slice_has_the_number_of_tokens(tmp_path: Path) -> None:
    lines = "".join(f"line number {n} says so, and not more.\n" for n in range(200))
    kept = slice_text(tmp_path, {"a.txt": lines.encode()}, 777)
    assert lines.startswith(kept)
    assert 777 <= sum(map(len, split_units(kept, CorpusConfig()))) < 777 + 8


def test_a_slice_is_utf_8_for_any_encoding_of_the_text(tmp_path: Path) -> None:
    assert slice_text(tmp_path, {"a.txt": "é ü\n".encode("latin-1")}, 5, encoding="latin-1") == "é ü\n"
    with pytest.raises(CorpusError, match=r"b\.txt, line 1: not valid UTF-8 \(byte 0xff\)"):
        slice_text(tmp_path, {"b.txt": b"a \xff\n"}, 5)


def test_saved_answers_give_the_results_of_the_evaluation(tmp_path: Path) -> None:
    folder = write_sets(tmp_path / "sets")
    rng = np.random.default_rng(3)
    vectors = Vectors(VectorTable(Vocabulary(NAMES[:14]), rng.normal(size=(14, 3)).astype(np.float32)))
    vectors.save(tmp_path / "vectors")
    sets = find_test_sets(folder, EvaluationConfig())
    answer_sets(tmp_path / "answers.npz", tmp_path / "vectors", sets, EvaluationConfig(), options=QUIET)
    kept = read_answers(tmp_path / "answers.npz", sets, EvaluationConfig())

    for one, other in zip(kept.results, evaluate(vectors, folder).results, strict=True):
        assert one.to_dict() == other.to_dict()
        assert one.items == other.items
        if one.kind == "analogies":
            assert np.array_equal(one.is_right, other.is_right)
            assert np.array_equal(one.is_known, other.is_known)


@pytest.mark.parametrize("methods", [(), ("default", "default"), ("nonsense",)])
def test_wrong_methods_are_rejected(methods: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="methods must be different ones of default, fast, paper, sgns"):
        PaperConfig(methods=methods)


def test_other_vectors_need_other_names() -> None:
    with pytest.raises(ConfigError, match="vectors of other tools need other names than default"):
        PaperConfig(vectors={"glove": Path("x")})


def test_wrong_arguments_are_rejected_before_any_work(tmp_path: Path, ran_stages: list[str]) -> None:
    text, sets = write_corpus(tmp_path / "text.txt"), write_sets(tmp_path / "sets")

    def start(source: Path, **config: Any) -> Experiment:
        return Experiment([source], tmp_path / "out", PaperConfig(**{"data": sets, **config}), QUIET, {})

    with pytest.raises(CorpusError, match="no such file or folder"):
        start(tmp_path / "nowhere")
    with pytest.raises(EvaluationError, match="nowhere"):
        start(text, data=tmp_path / "nowhere")
    with pytest.raises(StorageError, match="nowhere: no such file or folder"):
        start(text, vectors={"x": tmp_path / "nowhere"})
    for name in ("men.tsv", "google_analogies.tsv"):
        (sets / name).unlink()
    with pytest.raises(EvaluationError, match="sets: no test sets found"):
        start(text)
    assert not (tmp_path / "out").exists()


def test_every_recipe_of_text_is_a_method() -> None:
    assert set(swivel.config.TEXT_RECIPES) <= set(ABOUT)


@pytest.mark.usefixtures("without_figures")
def test_the_command_runs_an_experiment_and_prints_its_table(tmp_path: Path) -> None:
    text, sets = write_corpus(tmp_path / "text.txt"), write_sets(tmp_path / "sets")
    (tmp_path / "other.txt").write_text("wordax 1 2\nworday 2 1\nwordbx 0 1\n")
    words = [str(text), "-o", str(tmp_path / "out"), "--data", str(sets), "--methods", "default, glove"]
    words += ["--vectors", f"other={tmp_path / 'other.txt'}", "--dim", "4", "--min-count", "1"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.exception

    lines = done.stdout.splitlines()
    assert lines[0].split() == ["method", "MEN", "Google"]
    assert [line.split()[0] for line in lines[1:]] == ["default", "glove", "other", "known"]
    assert lines[-1].split() == ["known", "to", "default", "100%", "100%"]
    assert f"the report: {tmp_path / 'out' / 'report.html'}" in done.stderr


@pytest.mark.parametrize("text", ["nonsense", "=x", "x="])
def test_vectors_without_a_name_are_rejected(text: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["text", "-o", str(tmp_path / "out"), "--vectors", text])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"--vectors takes NAME=FILE, got {text!r}"
