"""The results of an experiment as plain values, for the report and for `results.json`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from swivel.evaluation import Comparison
from swivel.reports.plots import Curve, RareWords

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
