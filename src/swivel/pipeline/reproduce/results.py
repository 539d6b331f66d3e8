"""The results of an experiment as plain values, for the report and for `results.json`."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from swivel._version import __version__
from swivel.config import RECIPES
from swivel.counts import open_matrix
from swivel.evaluation import AnalogyResult, Comparison, Report, compare_reports
from swivel.evaluation.datasets import TestSet
from swivel.pipeline.info import library_versions, name_processor
from swivel.pipeline.reproduce.config import ABOUT, MethodVectors
from swivel.pipeline.reproduce.evaluations import open_evaluation
from swivel.pipeline.reproduce.experiment import Experiment
from swivel.reports.plots import Curve, RareWords, choose_rare_words, find_rare_neighbors, make_curves
from swivel.runtime.resources import count_cores
from swivel.storage import read_manifest
from swivel.vectors import Vectors
from swivel.vectors.formats import open_vectors

STAGES = ("counting", "training", "evaluation")  # the stages in the table of costs
LABELS = {
    "ws353_similarity": "WS sim",
    "ws353_relatedness": "WS rel",
    "men": "MEN",
    "mturk": "MTurk",
    "rare_words": "Rare Words",
    "simlex999": "SimLex",
    "google_analogies": "Google",
    "msr_analogies": "MSR",
}
_FOREIGN = "vectors of another tool"
_LIBRARIES = ("numpy", "scipy", "numba", "torch", "gensim", "matplotlib", "scikit-learn")


@dataclass(frozen=True, slots=True)
class SetInfo:
    """A test set: its name, its kind, and its number of items."""

    name: str
    kind: str
    total: int

    @property
    def label(self) -> str:
        """Header of the column of the set."""
        return LABELS.get(self.name, self.name)


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one method on one set (None if no item is known), its 95 % interval, and the number of known items.

    With several seeds, `by_seed` has the score of each.
    """

    figure: float | None
    interval: tuple[float, float] | None
    known: int
    by_seed: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        """Mean over the seeds, or the score of the only seed."""
        return statistics.fmean(self.by_seed) if self.by_seed else self.figure

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds, None with fewer than two."""
        return statistics.stdev(self.by_seed) if len(self.by_seed) > 1 else None


@dataclass(frozen=True, slots=True)
class Cost:
    """Time and memory of one stage of a method; None if unknown."""

    stage: str
    seconds: float | None
    peak_bytes: int | None
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class MethodResult:
    """The results of one method: scores by set, comparisons with the first method by set, costs, and settings."""

    name: str
    about: str
    words: int
    dim: int
    scores: Mapping[str, Score]
    comparisons: Mapping[str, Comparison]
    costs: tuple[Cost, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """The results of an experiment; the other methods are compared with the first one, `ours`."""

    corpus: Mapping[str, Any]
    sets: tuple[SetInfo, ...]
    methods: tuple[MethodResult, ...]
    curves: tuple[Curve, ...]
    differences: tuple[Curve, ...]
    rare: RareWords
    machine: Mapping[str, Any]
    half: str | None = None

    @property
    def ours(self) -> MethodResult:
        """The first method, which the others are compared with."""
        return self.methods[0]

    @property
    def seeds(self) -> int:
        """Number of seeds of Swivel's recipes."""
        numbers = [len(score.by_seed) for method in self.methods for score in method.scores.values()]
        return max(numbers, default=1) or 1

    def best(self, name: str) -> float | None:
        """Return the highest score on a set, None if no method has one."""
        figures = [method.scores[name].mean for method in self.methods if name in method.scores]
        return max((figure for figure in figures if figure is not None), default=None)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and rows of the table of scores; the last row is the share of known items of each set."""
        rows = []
        for method in self.methods:
            figures = [method.scores[info.name].mean for info in self.sets]
            rows.append([method.name, *("-" if figure is None else f"{figure:.3f}" for figure in figures)])

        shares = [self.ours.scores[info.name].known / max(info.total, 1) for info in self.sets]
        rows.append([f"known to {self.ours.name}", *(f"{share:.0%}" for share in shares)])
        return ["method", *(info.label for info in self.sets)], rows

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def gather_results(experiment: Experiment, made: Sequence[MethodVectors], sets: Sequence[TestSet]) -> Results:
    """Return the results of an experiment from its folders; the first method is compared with each of the others."""
    reports = {each: open_evaluation(experiment.out / "evaluation" / each.name, sets) for each in made}

    # Comparisons, figures and neighbors use the vectors of the first seed of each method.
    firsts: dict[str, MethodVectors] = {}
    for each in made:
        firsts.setdefault(each.method, each)
    vectors = {method: open_vectors(first.path) for method, first in firsts.items()}
    our_report = reports[made[0]]

    methods = []
    analogies = {}
    for method, first in firsts.items():
        report = reports[first]
        compared = [] if first == made[0] else compare_reports(our_report, report)
        method_result = MethodResult(
            name=method,
            about=ABOUT.get(method, _FOREIGN),
            words=len(vectors[method]),
            dim=vectors[method].dim,
            scores=_scores(report, [other for each, other in reports.items() if each.method == method]),
            comparisons={comparison.name: comparison for comparison in compared},
            costs=_costs(experiment, first),
            settings=_settings(experiment, first, vectors[method]),
        )
        methods.append(method_result)
        analogies[method] = [result for result in report.results if isinstance(result, AnalogyResult)]

    vocabulary = open_matrix(experiment.first_matrix).rows
    curves, differences = make_curves(analogies, vocabulary)
    return Results(
        corpus=_describe_corpus(experiment, int(vocabulary.counts.sum()), len(vocabulary)),
        sets=tuple(SetInfo(result.name, result.kind, result.total) for result in our_report.results),
        methods=tuple(methods),
        curves=curves,
        differences=differences,
        rare=find_rare_neighbors(vectors, choose_rare_words(vocabulary), vocabulary),
        machine=describe_machine(experiment.stages.options.threads),
        half=experiment.config.half,
    )


def _describe_corpus(experiment: Experiment, tokens: int, words: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"files": [file.name for file in experiment.files], "tokens": tokens, "words": words}
    if experiment.config.tokens is not None:
        facts["tokens taken"] = int(read_manifest(experiment.out / "corpus").facts["tokens"])
    return facts


def _scores(first: Report, all_seeds: Sequence[Report]) -> dict[str, Score]:
    """Return the scores of a method by test set: those of the first seed, and of all seeds if there are several."""
    scores = {}
    for result in first.results:
        by_seed: tuple[float, ...] = ()
        if len(all_seeds) > 1:
            figures = [report[result.name].figure for report in all_seeds]
            by_seed = tuple(figure for figure in figures if figure is not None)
        scores[result.name] = Score(result.figure, result.interval, result.known, by_seed)
    return scores


def _costs(experiment: Experiment, vectors: MethodVectors) -> tuple[Cost, ...]:
    """Return the time and memory of counting, training and evaluation of a method, as far as they are recorded."""
    names = {"training": f"vectors {vectors.name}", "evaluation": f"evaluation {vectors.name}"}
    if vectors.method in experiment.matrices:
        names = {"counting": f"matrix {experiment.matrices[vectors.method].name}", **names}

    costs = []
    for stage, name in names.items():
        record = experiment.stages.records.get(name)
        if record is not None:
            costs.append(Cost(stage, record.seconds, record.peak_bytes, record.attempts))
    return tuple(costs)


def _settings(experiment: Experiment, made: MethodVectors, vectors: Vectors) -> dict[str, Any]:
    """Return the settings of a method from its manifests; for vectors of another tool, the name of the file."""
    size = {"words": len(vectors), "dimensions": vectors.dim}
    if made.seed is None:
        return {"file": made.path.name, **size}

    manifest = read_manifest(made.path)
    counts = read_manifest(experiment.matrices[made.method]).config if made.method in RECIPES else {}
    plan = {"plan": manifest.facts["plan"]} if "plan" in manifest.facts else {}
    return {**size, **counts, **manifest.config, **plan}


def describe_machine(threads: int | None) -> dict[str, Any]:
    """Return processor, cores in use, system and versions, without names of hosts, users or folders."""
    return {
        "processor": name_processor(),
        "cores": threads or count_cores(),
        "system": f"{platform.system()} on {platform.machine()}",
        "swivel-embeddings": __version__,
        "python": platform.python_version(),
        **library_versions(*_LIBRARIES),
    }
