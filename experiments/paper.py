"""The paper's experiment on any text: count it, train every method, evaluate the vectors, and write a report.

    python -m experiments.paper TEXT... -o FOLDER

Run the same command again to resume: finished stages are not run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

import swivel
from experiments.glove import GloveConfig, train_glove
from experiments.paper_report import MethodResult, Results, TestSet, write_paper_report
from experiments.report import HTML, describe_machine
from experiments.stages import Stages, digest_files, run_command
from experiments.word2vec import Word2vecConfig, describe_settings, train_word2vec
from swivel.cli.flags import Command, config_options, resource_options
from swivel.cli.terminal import draw_table, show
from swivel.config import CorpusConfig, VocabularyConfig, stage_config
from swivel.corpus.sources import list_paths
from swivel.corpus.streams import read_lines
from swivel.corpus.text_numbers import TextNumbering
from swivel.errors import ConfigError
from swivel.evaluation import (
    CategorySet,
    EvaluationConfig,
    Report,
    SetResult,
    SimilaritySet,
    summarize_answers,
    summarize_pairs,
)
from swivel.evaluation.datasets import HALVES
from swivel.evaluation.scores import read_sets, score_sets
from swivel.runtime.options import RunOptions
from swivel.storage.manifest import read_manifest
from swivel.vectors import Vectors, VectorTable

ABOUT = {
    "default": "Swivel, the best known recipe",
    "fast": "Swivel, the fast recipe",
    "paper": "Swivel, with the settings of the paper",
    "sgns": "word2vec, skip-gram with negative sampling (gensim)",
    "cbow": "word2vec, CBOW (gensim)",
    "glove": "GloVe, with the settings of the paper",
}
FOREIGN = "vectors of another tool"
USUAL = ("default", "paper", "sgns", "cbow", "glove")
RECIPES = ("default", "fast", "paper")
COUNTED_BY = {**{recipe: recipe for recipe in RECIPES}, "glove": "fast"}  # recipe of the counts of a method

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperConfig:
    """The methods to compare, the size of the experiment, and the test sets."""

    methods: tuple[str, ...] = USUAL
    dim: int = 300
    tokens: int | None = None  # use only the first tokens of the text, in whole lines
    seeds: int = 1  # of each of Swivel's recipes
    seed: int = 1  # the first one
    data: Path | None = None  # folder of test sets; None for those of the paper
    half: str | None = None  # of every test set
    vectors: Mapping[str, Path] = field(default_factory=dict)  # of other tools, by name

    def __post_init__(self) -> None:
        if not self.methods or len({*self.methods}) < len(self.methods) or not {*self.methods} <= {*ABOUT}:
            raise ConfigError(f"methods must be different ones of {', '.join(ABOUT)}, got {', '.join(self.methods)!r}")
        if set(self.vectors) & set(ABOUT):
            raise ConfigError(f"vectors of other tools need other names than {', '.join(ABOUT)}")


# The jobs, which run in processes of their own


def take_tokens(out: Path, files: list[Path], tokens: int, reading: CorpusConfig, *, options: RunOptions) -> None:
    """Write the lines with the first `tokens` tokens, including the whole last line, as UTF-8."""
    numbering = TextNumbering([], reading)
    taken = 0
    with out.open("w", encoding="utf-8", newline="\n") as text:
        for line in (line for file in files for line in read_lines(file, reading)):
            text.write(line + "\n")
            taken += len(numbering.number([line]).numbers)
            if taken >= tokens:
                return


def count_text(out: Path, files: list[Path], recipe: str, settings: Settings, *, options: RunOptions) -> None:
    """Count co-occurrences with the settings of a recipe."""
    swivel.count(files, out, recipe=recipe, options=options, **settings)


def train_recipe(out: Path, matrix: Path, recipe: str, dim: int, seed: int, *, options: RunOptions) -> None:
    """Train one of Swivel's recipes."""
    swivel.train(matrix, out, recipe=recipe, dim=dim, seed=seed, options=options)


def train_on_cells(out: Path, matrix: Path, config: GloveConfig, *, options: RunOptions) -> None:
    """Train GloVe on the observed cells of a matrix."""
    counted = swivel.open_matrix(matrix)
    values, _ = train_glove(counted, config, threads=options.thread_count, progress=options.progress)
    Vectors(VectorTable(counted.rows, values)).save(out, overwrite=True)


def train_on_text(
    out: Path, matrix: Path, files: list[Path], method: str, config: Word2vecConfig, *, options: RunOptions
) -> None:
    """Train word2vec with the vocabulary of a matrix."""
    vectors = train_word2vec(files, swivel.open_matrix(matrix).rows, method, config, options)
    vectors.save(out, overwrite=True)


def answer_sets(
    out: Path, vectors: Path, sets: tuple[TestSet, ...], rules: EvaluationConfig, *, options: RunOptions
) -> None:
    """Save what vectors answer: the cosine of each pair; of each question whether it is right, and whether known."""
    answers: dict[str, Any] = {}
    for each in score_sets(swivel.load(vectors), sets, rules, progress=options.progress):
        if each.kind == "similarity":
            answers[each.name] = each.values
        else:
            answers[each.name] = np.stack([each.is_right, each.is_known])
    np.savez(out, **answers)


def read_answers(file: Path, sets: Iterable[TestSet], rules: EvaluationConfig) -> Report:
    """Return the results of saved answers."""
    results: list[SetResult] = []
    with np.load(file) as answers:
        for each in sets:
            if isinstance(each, SimilaritySet):
                results.append(summarize_pairs(each, answers[each.name], draws=rules.draws))
            else:
                is_right, is_known = answers[each.name]
                results.append(summarize_answers(each, is_right, is_known, rules))
    return Report(tuple(results), rules)


# The experiment


class Experiment:
    """Runs the stages of an experiment in the folder `out`."""

    def __init__(
        self, texts: Iterable[str | Path], out: Path, config: PaperConfig, options: RunOptions, settings: Settings
    ) -> None:
        self.out = out
        self.config = config
        self.stages = Stages(out, options)
        self.sources = list_paths(texts, outside=out)
        self.settings = dict(settings)
        self.reading = stage_config(CorpusConfig, **settings)

        # What is missing is an error now, and not after hours of training.
        self.rules = EvaluationConfig(half=config.half, lowercase=self.reading.lowercase)
        self.sets = find_test_sets(config.data, self.rules)
        for path in config.vectors.values():
            swivel.load(path)

        self.files: list[Path] = []
        self.matrices: dict[str, Path] = {}  # by recipe

    def count(self) -> None:
        """Count the text, or the first part of it, once for each recipe that a method needs."""
        made_from: dict[str, Any] = {"texts": digest_files(self.sources)}
        self.files = self.sources
        if self.config.tokens is not None:
            made_from |= {"tokens": self.config.tokens, "reading": asdict(self.reading)}
            job: tuple[Any, ...] = (take_tokens, self.sources, self.config.tokens, self.reading)
            self.files = [self.stages.run("text", self.out / "text.txt", *job, made_from=made_from)]
            self.settings["encoding"] = "utf-8"
            self.reading = replace(self.reading, encoding="utf-8")

        # The first matrix has the vocabulary of all methods.
        recipes = dict.fromkeys(COUNTED_BY[method] for method in self.config.methods if method in COUNTED_BY)
        for recipe in recipes or ("default",):
            counted_from = {**made_from, "recipe": recipe, "settings": self.settings}
            job = (count_text, self.files, recipe, self.settings)
            out = self.out / "matrices" / recipe
            self.matrices[recipe] = self.stages.run(f"matrix {recipe}", out, *job, made_from=counted_from)

    def train(self, method: str, seed: int) -> tuple[str, Path]:
        """Train vectors and return their name and folder."""
        name, dim = f"{method}-seed{seed}", self.config.dim
        recipe = COUNTED_BY.get(method, next(iter(self.matrices)))
        matrix = self.matrices[recipe]

        job: tuple[Any, ...]
        if method in RECIPES:
            job = (train_recipe, matrix, method, dim, seed)
        elif method == "glove":
            job = (train_on_cells, matrix, GloveConfig(dim=dim, seed=seed))
        else:
            config = Word2vecConfig(dim=dim, seed=seed, corpus=self.reading)
            job = (train_on_text, matrix, self.files, method, config)

        made_from = {"method": method, "dim": dim, "seed": seed}
        out = self.out / "vectors" / name
        return name, self.stages.run(f"vectors {name}", out, *job, made_from=made_from, after=f"matrix {recipe}")

    def evaluate(self, name: str, vectors: Path) -> Report:
        """Evaluate vectors on all test sets."""
        files = [vectors] if vectors.is_file() else sorted(file for file in vectors.rglob("*") if file.is_file())
        sets = hashlib.sha256(repr(self.sets).encode()).hexdigest()
        made_from = {"vectors": digest_files(files), "sets": sets, "rules": asdict(self.rules)}
        job = (answer_sets, vectors, self.sets, self.rules)
        out = self.out / "evaluation" / f"{name}.npz"
        answers = self.stages.run(f"evaluation {name}", out, *job, made_from=made_from)
        return read_answers(answers, self.sets, self.rules)

    def describe(self, method: str, name: str, vectors: Path, reports: tuple[Report, ...]) -> MethodResult:
        """Return the results of a trained method; costs and settings are those of the named vectors."""
        settings: dict[str, Any] = {"dim": self.config.dim, "seed": self.config.seed}
        if method == "glove":
            settings = asdict(GloveConfig(**settings))
        elif method in RECIPES:
            manifest = read_manifest(vectors)
            settings = {**swivel.open_matrix(self.matrices[method]).config, **manifest.config}
            settings["plan"] = manifest.facts["plan"]
        else:
            settings = {**describe_settings(method, Word2vecConfig(**settings)), "corpus": asdict(self.reading)}

        measure = self.stages.measure
        costs = {"training": measure(f"vectors {name}"), "evaluation": measure(f"evaluation {name}")}
        if method in COUNTED_BY:
            costs["counting"] = measure(f"matrix {COUNTED_BY[method]}")
        return MethodResult(method, ABOUT[method], swivel.load(vectors), reports, costs, settings)


def find_test_sets(data: Path | None, rules: EvaluationConfig) -> tuple[TestSet, ...]:
    """Return the sets of pairs and of analogies in a folder, or those of the paper."""
    sets = tuple(each for each in read_sets(data, rules)[0] if not isinstance(each, CategorySet))
    if not sets:
        raise ConfigError(f"{data}: no pairs of words with scores, and no analogies")
    return sets


def run_paper(
    texts: Iterable[str | Path], out: Path, config: PaperConfig, options: RunOptions, **settings: Any
) -> Results:
    """Run all stages that are not finished, and write the report; `settings` are those of text and vocabulary."""
    experiment = Experiment(texts, out, config, options, settings)
    experiment.count()
    methods = []
    for method in config.methods:
        seeds = range(config.seed, config.seed + (config.seeds if method in RECIPES else 1))
        trained = [experiment.train(method, seed) for seed in seeds]
        reports = tuple(experiment.evaluate(*each) for each in trained)
        methods.append(experiment.describe(method, *trained[0], reports))
    for name, path in config.vectors.items():
        reports = (experiment.evaluate(name, path),)
        costs = {"evaluation": experiment.stages.measure(f"evaluation {name}")}
        methods.append(MethodResult(name, FOREIGN, swivel.load(path), reports, costs, {"file": path.name}))

    matrix = swivel.open_matrix(next(iter(experiment.matrices.values())))
    corpus = {
        "files": [file.name for file in experiment.sources],
        "first tokens": config.tokens,
        "tokens in the vocabulary": int(matrix.rows.counts.sum()),
        "words": len(matrix.rows),
    }
    results = Results(corpus, experiment.sets, tuple(methods), config.half, describe_machine(options.threads))
    write_paper_report(out, results, matrix)
    return results


@click.command(cls=Command)
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("-o", "--output", required=True, metavar="DIR", help="folder for everything, report.html included")
@click.option(
    "--methods", default=",".join(USUAL), show_default=True, help="what to compare, the first with the others"
)
@click.option("--vectors", multiple=True, metavar="NAME=FILE", help="other vectors to compare: a folder, or text")
@click.option("--data", metavar="DIR", help="folder of test sets  [default: the paper's eight, from the cache]")
@click.option("--half", type=click.Choice(HALVES), help="use only one half of every test set")
@click.option("--dim", type=int, default=300, show_default=True, help="dimensions of the vectors of every method")
@click.option("--tokens", type=int, help="use only the first tokens of the text, this many, in whole lines")
@click.option("--seeds", type=int, default=1, show_default=True, help="number of seeds of each of Swivel's recipes")
@click.option("--seed", type=int, default=1, show_default=True, help="first seed")
@config_options(CorpusConfig, VocabularyConfig)
@resource_options
def main(
    texts: tuple[str, ...],
    output: str,
    methods: str,
    vectors: tuple[str, ...],
    data: str | None,
    options: RunOptions,
    **given: Any,
) -> None:
    """Count, train and evaluate every method on TEXT, and write report.html; run it again to resume.

    Methods: Swivel's recipes (default, paper, fast), sgns and cbow (word2vec, by gensim), and glove.
    """
    config = PaperConfig(
        methods=tuple(name.strip() for name in methods.split(",")),
        vectors=dict(map(name_path, vectors)),
        data=None if data is None else Path(data),
        **{name: given.pop(name) for name in ("half", "dim", "tokens", "seeds", "seed")},
    )
    settings = {name: value for name, value in given.items() if value is not None}
    results = run_paper(texts, Path(output), config, options, **settings)
    show(results.to_dict(), lambda: draw_table(*results.table()))
    options.progress.message(f"the report: {Path(output) / HTML}")


def name_path(text: str) -> tuple[str, Path]:
    """Return the parts of NAME=FILE."""
    name, sign, path = text.partition("=")
    if not (sign and name and path):
        raise ConfigError(f"--vectors takes NAME=FILE, got {text!r}")
    return name, Path(path)


if __name__ == "__main__":
    run_command(main)
