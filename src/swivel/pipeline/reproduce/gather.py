"""What the stages of an experiment left behind, gathered into its results."""

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

FOREIGN = "vectors of another tool, as they came"


@dataclass(frozen=True, slots=True)
class Made:
    """Vectors of a method: trained with a seed, or (None) brought along as a file."""

    method: str
    seed: int | None
    path: Path

    @property
    def name(self) -> str:
        """What its folders are called."""
        return self.method if self.seed is None else f"{self.method}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Ground:
    """Where everything lies, and what it took."""

    out: Path
    config: ReproduceConfig
    texts: tuple[Path, ...]  # as the user named them
    matrices: Mapping[str, Path]  # by recipe; the first one's words are everybody's
    records: Mapping[str, Record]
    threads: int | None

    @property
    def words_of(self) -> Path:
        """The matrix whose vocabulary the baselines take, and whose counts say how frequent a word is."""
        return next(iter(self.matrices.values()))


def gather_results(ground: Ground, made: Sequence[Made], sets: Sequence[TestSet]) -> Results:
    """Return all that was found; the first method is compared with each other one."""
    vocabulary = open_matrix(ground.words_of).rows
    reports = {each: open_evaluation(ground.out / "evaluation" / each.name, sets) for each in made}
    firsts = {each.method: each for each in reversed(made)}  # the first seed of each method
    order = list(dict.fromkeys(each.method for each in made))
    vectors = {method: open_vectors(firsts[method].path) for method in order}
    ours = reports[firsts[order[0]]]
    analogies = {method: _analogies_of(reports[firsts[method]]) for method in order}
    curves, differences = make_curves(analogies, vocabulary)
    return Results(
        corpus=_describe_corpus(ground, int(vocabulary.counts.sum()), len(vocabulary)),
        sets=tuple(SetInfo(each.name, _kind_of(each), each.size) for each in sets),
        methods=tuple(
            MethodResult(
                name=method,
                about=ABOUT.get(method, FOREIGN),
                words=len(vectors[method]),
                dim=vectors[method].dim,
                scores=_scores(firsts[method], reports),
                comparisons={} if method == order[0] else _compare(ours, reports[firsts[method]]),
                costs=_costs(ground, firsts[method]),
                settings=_settings(ground, firsts[method], vectors[method]),
            )
            for method in order
        ),
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
    """Return the figures of a method's first vectors, and those of its other seeds beside them."""
    same = [report for made, report in reports.items() if made.method == first.method]
    scores = {}
    for result in reports[first].results:
        figures = [report[result.name].figure for report in same]
        by_seed = tuple(figure for figure in figures if figure is not None) if len(same) > 1 else ()
        scores[result.name] = Score(result.figure, result.interval, result.known, by_seed)
    return scores


def _compare(ours: Report, other: Report) -> dict[str, Comparison]:
    return {comparison.name: comparison for comparison in compare_reports(ours, other)}


def _costs(ground: Ground, made: Made) -> tuple[Cost, ...]:
    """Return what a method's stages took: its counts, its training, its evaluation."""
    stages = {"training": f"vectors {made.name}", "evaluation": f"evaluation {made.name}"}
    if made.method in ground.matrices:
        stages = {"counting": f"matrix {ground.matrices[made.method].name}"} | stages
    found = {stage: ground.records.get(name) for stage, name in stages.items()}
    return tuple(
        Cost(stage, record.seconds, record.peak_bytes, record.attempts)
        for stage, record in found.items()
        if record is not None
    )


def _settings(ground: Ground, made: Made, vectors: Vectors) -> dict[str, Any]:
    """Return what a method used, as the manifests say; of a file, its name."""
    size = {"words": len(vectors), "dimensions": vectors.dim}
    if made.seed is None:
        return {"file": made.path.name, **size}
    manifest = read_manifest(made.path)
    counts = read_manifest(ground.matrices[made.method]).config if made.method in RECIPES else {}
    plan = {"plan": manifest.facts["plan"]} if "plan" in manifest.facts else {}
    return {**size, **counts, **manifest.config, **plan}
