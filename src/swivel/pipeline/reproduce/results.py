"""What an experiment found, as plain values: what the report is written from, and `results.json`.

Nothing here computes but means; nothing knows where a value came from.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from swivel.evaluation import Comparison
from swivel.reports.plots import Curve, RareWords

STAGES = ("counting", "training", "evaluation")  # whose costs are shown
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
    """A test set: its name, its kind, its items."""

    name: str
    kind: str
    total: int

    @property
    def label(self) -> str:
        """What stands above its column."""
        return LABELS.get(self.name, self.name)


@dataclass(frozen=True, slots=True)
class Score:
    """One method's figure on one set (None: nothing of it is known), its 95 % interval, and the items that counted."""

    figure: float | None
    interval: tuple[float, float] | None
    known: int
    by_seed: tuple[float, ...] = ()  # one figure a seed, where there are several

    @property
    def mean(self) -> float | None:
        """Mean over the seeds."""
        return statistics.fmean(self.by_seed) if self.by_seed else self.figure

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds."""
        return statistics.stdev(self.by_seed) if len(self.by_seed) > 1 else None


@dataclass(frozen=True, slots=True)
class Cost:
    """What one of a method's STAGES took; None: not known."""

    stage: str
    seconds: float | None
    peak_bytes: int | None
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class MethodResult:
    """All about one method: its vectors, figures by set, comparisons with ours by set, costs and settings."""

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
    """All that an experiment found; the first method is ours, with which the others are compared."""

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
        """The method that the others are compared with."""
        return self.methods[0]

    @property
    def seeds(self) -> int:
        """How often our recipes were trained."""
        return max((len(score.by_seed) for method in self.methods for score in method.scores.values()), default=1) or 1

    def best(self, name: str) -> float | None:
        """Return the highest figure on a set."""
        figures = [method.scores[name].mean for method in self.methods if name in method.scores]
        return max((figure for figure in figures if figure is not None), default=None)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of the table, for a terminal; the last row says how much of each set is known."""
        rows = []
        for method in self.methods:
            figures = [method.scores[info.name].mean for info in self.sets]
            rows.append([method.name, *("-" if figure is None else f"{figure:.3f}" for figure in figures)])
        shares = [self.ours.scores[info.name].known / max(info.total, 1) for info in self.sets]
        rows.append([f"known to {self.ours.name}", *(f"{share:.0%}" for share in shares)])
        return ["method", *(info.label for info in self.sets)], rows

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)  # tuples become lists, frozen classes plain dicts
