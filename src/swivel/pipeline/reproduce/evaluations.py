"""Evaluate vectors on test sets and save the results in a folder.

The folder has `report.json`, a list with the scores of each set, and one file `NAME.npy` per set with the results of
its items: for similarity the cosines, otherwise two rows of flags (correct, known).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

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
from swivel.evaluation.report import nothing_known
from swivel.evaluation.results import Result
from swivel.pipeline.reproduce.stages import StageJob
from swivel.runtime.options import RunOptions
from swivel.storage import Folder, create_folder, digest_file, fingerprint, open_folder, read_manifest, sweep_folder
from swivel.vectors.formats import open_vectors

STAGE, REPORT = "evaluation", "report.json"


def evaluation_job(vectors: Path, out: Path, sets: tuple[TestSet, ...], rules: EvaluationConfig) -> StageJob:
    """Return the job that evaluates vectors on test sets and saves the results in the folder `out`."""
    vectors_digest = digest_file(vectors) if vectors.is_file() else read_manifest(vectors).fingerprint
    inputs = {"vectors": vectors_digest, "sets": fingerprint([repr(each) for each in sets])}
    provenance = {"config": asdict(rules), "inputs": inputs}
    return StageJob(out, provenance, partial(_save_evaluation, vectors, out, sets, provenance))


def _save_evaluation(
    path: Path, out: Path, sets: tuple[TestSet, ...], provenance: Mapping[str, Any], *, options: RunOptions
) -> None:
    # An interrupted experiment may have the folder without a record in `measures.json`.
    with contextlib.suppress(StorageError):  # The folder does not exist, or is damaged.
        manifest = open_folder(out, STAGE).manifest
        is_same = fingerprint({"config": manifest.config, "inputs": manifest.inputs}) == fingerprint(provenance)
        if is_same and not options.overwrite:
            sweep_folder(out)
            return

    vectors = open_vectors(path)
    results = score_sets(vectors, sets, EvaluationConfig(**provenance["config"]), progress=options.progress)

    # Vectors of another tool may have changed, so an older evaluation is replaced.
    with create_folder(out, STAGE, overwrite=True) as folder:
        folder.write_lines(REPORT, [json.dumps([result.to_dict() for result in results], indent=1)])
        for result in results:
            if isinstance(result, SimilarityResult):
                folder.write_array(f"{result.name}.npy", result.cosines)
            else:
                folder.write_array(f"{result.name}.npy", np.stack([result.is_right, result.is_known]))
        folder.finish(**provenance, facts={"words": len(vectors), "dim": vectors.dim})


def check_words(sets: Sequence[TestSet], vocabulary: Vocabulary, where: str) -> None:
    """Raise EvaluationError if a vocabulary has all words of no item of any set."""
    for test_set in sets:
        items: Iterable[tuple[str, ...]]
        match test_set:
            case AnalogySet():
                items = test_set.questions
            case SimilaritySet():
                items = test_set.pairs
            case CategorySet():
                items = ((word,) for word in test_set.items)
        if any(all(word in vocabulary for word in words) for words in items):
            return

    raise nothing_known((test_set.name for test_set in sets), where)


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
        return AnalogyResult(*common, figures["correct"], (), items[0], items[1], test_set.questions)
    if isinstance(test_set, CategorySet):
        return CategoryResult(*common, items[0], items[1], test_set.items)
    return SimilarityResult(*common, items, np.array(test_set.scores), test_set.pairs)
