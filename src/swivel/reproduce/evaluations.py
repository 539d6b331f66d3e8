"""Figures of one set of vectors, kept: a folder with `report.json` and, set by set, what was found item by item.

Receives vectors and test sets, hands on results, from the folder or fresh. Parts: `report.json` (a list of each set's
figures) and `NAME.npy` (of similarity: the cosines; else two rows of flags, right and known), in the set's order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swivel.errors import DamagedFolder
from swivel.evaluation import (
    AnalogyResult,
    CategoryResult,
    Report,
    Rules,
    SimilarityResult,
    evaluate,
    fetch_sets,
    find_sets,
    split_set,
)
from swivel.evaluation.datasets import AnalogySet, CategorySet, TestSet
from swivel.means import Means
from swivel.progress import Progress
from swivel.reproduce.jobs import fingerprint_of, open_vectors
from swivel.storage import Folder, create_folder, fingerprint, open_folder

STAGE, REPORT = "evaluation", "report.json"
Result = SimilarityResult | AnalogyResult | CategoryResult


def read_sets(data: Path | None, half: str | None, progress: Progress) -> tuple[TestSet, ...]:
    """Return the test sets of a folder, or the paper's, and of each the half that is asked for."""
    sets = find_sets(fetch_sets(progress=progress) if data is None else data).sets
    return sets if half is None else tuple(split_set(each, half) for each in sets)


@dataclass(frozen=True, slots=True)
class EvaluateJob:
    """Score vectors on test sets, and keep what was found."""

    vectors: Path
    out: Path
    data: Path | None
    half: str | None
    sets: str  # digest of what the sets hold

    def made_from(self) -> dict[str, Any]:
        """Return what the figures depend on."""
        return {"config": {"half": self.half}, "inputs": {"vectors": fingerprint_of(self.vectors), "sets": self.sets}}

    def run(self, means: Means) -> None:
        """Score every set."""
        source = fetch_sets(progress=means.progress) if self.data is None else self.data
        vectors = open_vectors(self.vectors)
        report = evaluate(vectors, source, half=self.half, progress=means.progress)
        with create_folder(self.out, STAGE, overwrite=True) as folder:
            folder.write_lines(REPORT, [json.dumps([result.to_dict() for result in report.results], indent=1)])
            for result in report.results:
                folder.write_array(f"{result.name}.npy", _items_of(result))
            folder.finish(**self.made_from(), facts={"words": len(vectors), "dim": vectors.dim})


def digest_sets(sets: Sequence[TestSet]) -> str:
    """Return a digest of what test sets hold."""
    return fingerprint([repr(each) for each in sets])


def _items_of(result: Result) -> np.ndarray[Any, Any]:
    return result.cosines if isinstance(result, SimilarityResult) else np.stack([result.is_right, result.is_known])


def open_evaluation(path: Path, sets: Sequence[TestSet]) -> Report:
    """Return what a folder keeps of the results on these sets, sections apart."""
    folder = open_folder(path, STAGE)
    try:
        figures = {each["name"]: each for each in json.loads("\n".join(folder.lines(REPORT)))}
        results = tuple(_rebuild(folder, test_set, figures[test_set.name]) for test_set in sets)
        return Report(results, Rules(half=folder.manifest.config["half"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFolder(
            f"{path}: not what was found on these sets ({error}); remove it and evaluate again"
        ) from error


def _rebuild(folder: Folder, test_set: TestSet, figures: Mapping[str, Any]) -> Result:
    interval = figures["interval"] and (figures["interval"][0], figures["interval"][1])
    common = test_set.name, figures["figure"], interval, figures["known"], figures["total"]
    items = np.asarray(folder.array(f"{test_set.name}.npy"))
    if isinstance(test_set, AnalogySet):
        questions = tuple(words for _, words in test_set.rows)
        return AnalogyResult(*common, figures["correct"], (), items[0], items[1], questions)
    if isinstance(test_set, CategorySet):
        return CategoryResult(*common, items[0], items[1], test_set.words)
    return SimilarityResult(*common, items, np.array(test_set.scores), test_set.pairs)
