"""Collect the results of an experiment from the folders of its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swivel.config import RECIPES
from swivel.counts import open_matrix
from swivel.evaluation import AnalogyResult, Comparison, Report, compare_reports
from swivel.evaluation.datasets import AnalogySet, CategorySet, TestSet
from swivel.pipeline.reproduce.config import ABOUT, ReproduceConfig
from swivel.pipeline.reproduce.evaluations import open_evaluation
from swivel.pipeline.reproduce.machine import describe_machine
from swivel.pipeline.reproduce.results import Cost, MethodResult, Results, Score, SetInfo
from swivel.pipeline.reproduce.stages import Record
from swivel.reports.plots import choose_rare_words, find_rare_neighbours
from swivel.reports.plots.frequency_buckets import make_curves
from swivel.storage import read_manifest
from swivel.vectors import Vectors
from swivel.vectors.formats import open_vectors

FOREIGN = "vectors of another tool"


@dataclass(frozen=True, slots=True)
class Made:
    """Vectors of a method: trained with a seed, or read from the file of another tool (seed None)."""

    method: str
    seed: int | None
    path: Path

    @property
    def name(self) -> str:
        """Name of the folders of the vectors and of their evaluation."""
        return self.method if self.seed is None else f"{self.method}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Ground:
    """Settings, folders and measurements of an experiment."""

    out: Path
    config: ReproduceConfig
    texts: tuple[Path, ...]  # the files that the user passed, also if only a slice of them was used
    matrices: Mapping[str, Path]  # by recipe; all methods use the vocabulary of the first one
    records: Mapping[str, Record]
    threads: int | None

    @property
    def words_of(self) -> Path:
        """The matrix with the vocabulary of the baselines and the word frequencies."""
        return next(iter(self.matrices.values()))


def gather_results(ground: Ground, made: Sequence[Made], sets: Sequence[TestSet]) -> Results:
    """Return the results of an experiment; the first method is compared with each of the others."""
    vocabulary = open_matrix(ground.words_of).rows
    reports = {each: open_evaluation(ground.out / "evaluation" / each.name, sets) for each in made}

    # Comparisons, figures and neighbors use the vectors of the first seed of each method.
    firsts: dict[str, Made] = {}
    for each in made:
        firsts.setdefault(each.method, each)
    vectors = {method: open_vectors(first.path) for method, first in firsts.items()}
    our_report = reports[made[0]]

    methods = []
    for method, first in firsts.items():
        method_result = MethodResult(
            name=method,
            about=ABOUT.get(method, FOREIGN),
            words=len(vectors[method]),
            dim=vectors[method].dim,
            scores=_scores(first, reports),
            comparisons={} if first == made[0] else _compare(our_report, reports[first]),
            costs=_costs(ground, first),
            settings=_settings(ground, first, vectors[method]),
        )
        methods.append(method_result)

    analogies = {method: _analogies_of(reports[first]) for method, first in firsts.items()}
    curves, differences = make_curves(analogies, vocabulary)
    return Results(
        corpus=_describe_corpus(ground, int(vocabulary.counts.sum()), len(vocabulary)),
        sets=tuple(SetInfo(each.name, _kind_of(each), each.size) for each in sets),
        methods=tuple(methods),
        curves=curves,
        differences=differences,
        rare=find_rare_neighbours(vectors, choose_rare_words(vocabulary), vocabulary),
        machine=describe_machine(ground.threads),
        half=ground.config.half,
    )


def _kind_of(test_set: TestSet) -> str:
    if isinstance(test_set, AnalogySet):
        return "analogies"
    return "categories" if isinstance(test_set, CategorySet) else "similarity"


def _analogies_of(report: Report) -> list[AnalogyResult]:
    return [result for result in report.results if isinstance(result, AnalogyResult)]


def _describe_corpus(ground: Ground, tokens: int, words: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"files": [file.name for file in ground.texts], "tokens": tokens, "words": words}
    if ground.config.tokens is not None:
        facts["tokens taken"] = int(read_manifest(ground.out / "corpus").facts["tokens"])
    return facts


def _scores(first: Made, reports: Mapping[Made, Report]) -> dict[str, Score]:
    """Return the scores of a method by test set: those of the first seed, and of all seeds if there are several."""
    same_method = [report for made, report in reports.items() if made.method == first.method]

    scores = {}
    for result in reports[first].results:
        by_seed: tuple[float, ...] = ()
        if len(same_method) > 1:
            figures = [report[result.name].figure for report in same_method]
            by_seed = tuple(figure for figure in figures if figure is not None)
        scores[result.name] = Score(result.figure, result.interval, result.known, by_seed)
    return scores


def _compare(ours: Report, other: Report) -> dict[str, Comparison]:
    return {comparison.name: comparison for comparison in compare_reports(ours, other)}


def _costs(ground: Ground, made: Made) -> tuple[Cost, ...]:
    """Return the time and memory of counting, training and evaluation of a method, as far as they are recorded."""
    names = {}
    if made.method in ground.matrices:
        names["counting"] = f"matrix {ground.matrices[made.method].name}"
    names["training"] = f"vectors {made.name}"
    names["evaluation"] = f"evaluation {made.name}"

    costs = []
    for stage, name in names.items():
        record = ground.records.get(name)
        if record is not None:
            costs.append(Cost(stage, record.seconds, record.peak_bytes, record.attempts))
    return tuple(costs)


def _settings(ground: Ground, made: Made, vectors: Vectors) -> dict[str, Any]:
    """Return the settings of a method from its manifests; for vectors of another tool, the name of the file."""
    size = {"words": len(vectors), "dimensions": vectors.dim}
    if made.seed is None:
        return {"file": made.path.name, **size}

    manifest = read_manifest(made.path)
    counts = read_manifest(ground.matrices[made.method]).config if made.method in RECIPES else {}
    plan = {"plan": manifest.facts["plan"]} if "plan" in manifest.facts else {}
    return {**size, **counts, **manifest.config, **plan}
