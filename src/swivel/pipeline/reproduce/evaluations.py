"""Evaluate vectors on test sets and save the results in a folder.

The folder has `report.json`, a list with the scores of each set, and one file `NAME.npy` per set with the results of
its items: for similarity the cosines, otherwise two rows of flags (correct, known).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import DamagedFolder, StorageError
from swivel.evaluation import (
    AnalogyResult,
    AnalogySet,
    CategoryResult,
    CategorySet,
    EvaluationConfig,
    Report,
    SimilarityResult,
    SimilaritySet,
    score_sets,
)
from swivel.evaluation.datasets import TestSet
from swivel.evaluation.report import Result
from swivel.pipeline.reproduce.jobs import fingerprint_of
from swivel.runtime.options import RunOptions
from swivel.storage import Folder, create_folder, fingerprint, open_folder
from swivel.vectors.formats import open_vectors

STAGE, REPORT = "evaluation", "report.json"


@dataclass(frozen=True, slots=True)
class EvaluateJob:
    """Evaluate vectors on test sets and save the results."""

    resumes: ClassVar[bool] = False

    vectors: Path
    out: Path
    sets: tuple[TestSet, ...]
    rules: EvaluationConfig

    def provenance(self) -> dict[str, Any]:
        """Return the settings and inputs that the results depend on."""
        inputs = {"vectors": fingerprint_of(self.vectors), "sets": fingerprint([repr(each) for each in self.sets])}
        return {"config": asdict(self.rules), "inputs": inputs}

    def run(self, options: RunOptions) -> None:
        """Evaluate all sets, unless the folder has the results already.

        An interrupted experiment may have the folder without a record in `measures.json`.
        """
        if not options.overwrite and self._is_done():
            return

        vectors = open_vectors(self.vectors)
        results = score_sets(vectors, self.sets, self.rules, progress=options.progress)

        with create_folder(self.out, STAGE, overwrite=True) as folder:
            folder.write_lines(REPORT, [json.dumps([result.to_dict() for result in results], indent=1)])
            for result in results:
                folder.write_array(f"{result.name}.npy", _items_of(result))
            folder.finish(**self.provenance(), facts={"words": len(vectors), "dim": vectors.dim})

    def _is_done(self) -> bool:
        try:
            manifest = open_folder(self.out, STAGE).manifest
        except StorageError:
            return False  # missing or damaged
        return fingerprint({"config": manifest.config, "inputs": manifest.inputs}) == fingerprint(self.provenance())


def is_known(test_set: TestSet, vocabulary: Vocabulary) -> bool:
    """Return whether a vocabulary has all words of at least one item of a set."""
    return any(all(word in vocabulary for word in words) for words in _words_of(test_set))


def _words_of(test_set: TestSet) -> Iterator[tuple[str, ...]]:
    if isinstance(test_set, AnalogySet):
        return (words for _, words in test_set.rows)
    if isinstance(test_set, SimilaritySet):
        return iter(test_set.pairs)
    return ((word,) for word in test_set.words)


def _items_of(result: Result) -> np.ndarray[Any, Any]:
    if isinstance(result, SimilarityResult):
        return result.cosines
    return np.stack([result.is_right, result.is_known])


def open_evaluation(path: Path, sets: Sequence[TestSet]) -> Report:
    """Return the saved results on these sets; the sections of analogies are not saved."""
    folder = open_folder(path, STAGE)
    try:
        figures = {each["name"]: each for each in json.loads("\n".join(folder.lines(REPORT)))}
        results = tuple(_rebuild(folder, test_set, figures[test_set.name]) for test_set in sets)
        return Report(results, EvaluationConfig(**folder.manifest.config))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise DamagedFolder(
            f"{path}: not the results of these test sets ({error}); remove it and evaluate again"
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
