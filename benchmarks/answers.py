"""Answers to the items of the evaluation sets: written item by item, read again, and scored whole or by halves.

A method's answers are two files, `METHOD_similarity.tsv` (set, line, the two words, cosine; empty if unknown) and
`METHOD_analogies.tsv` (set, line, 1 if right). They are kept outside the repository, because they repeat the sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from common import work_folder
from swivel.evaluation import Report, SetResult, summarize_answers, summarize_pairs
from swivel.evaluation.datasets import AnalogySet, SimilaritySet, TestSet, split_set
from swivel.evaluation.results import EvaluationConfig

HALVES = (None, "tune", "report")  # all items, those that settings were chosen on, and the others


def answers_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder for the answers: that of the command line, or one in the work folder for this much text."""
    size = f"-{arguments.megabytes}mb" if arguments.megabytes else ""
    given: Path | None = arguments.answers
    return given or work_folder() / f"answers{size}"


def write_answers(report: Report, folder: Path, method: str) -> None:
    """Write what a method answered to every item."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs, questions = [], []
    for result in report.results:
        if result.kind == "similarity":
            for line, (words, cosine) in enumerate(zip(result.items, result.values.tolist(), strict=True), 1):
                value = "" if np.isnan(cosine) else f"{cosine:.5f}"
                pairs.append("\t".join([result.name, str(line), *words, value]))
        elif result.kind == "analogies":
            for line, is_right in enumerate(result.is_right.tolist(), 1):
                questions.append(f"{result.name}\t{line}\t{int(is_right)}")

    (folder / f"{method}_similarity.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    (folder / f"{method}_analogies.tsv").write_text("\n".join(questions) + "\n", encoding="utf-8")


def write_random_answers(sets: Iterable[TestSet], folder: Path, method: str, seed: int) -> None:
    """Write answers that were drawn at random, for smoke runs."""
    rng = np.random.default_rng(seed)
    results: list[SetResult] = []
    for each in sets:
        if isinstance(each, SimilaritySet):
            results.append(summarize_pairs(each, rng.random(each.size), draws=0))
        elif isinstance(each, AnalogySet):
            results.append(summarize_answers(each, rng.random(each.size) < 0.5, np.ones(each.size, bool)))
    write_answers(Report(tuple(results), EvaluationConfig()), folder, method)


def find_seeds(folder: Path, method: str) -> list[int]:
    """Return the seeds of a method whose answers are in a folder."""
    files = folder.glob(f"{method}_*_similarity.tsv")
    return sorted(int(file.name.removeprefix(f"{method}_").removesuffix("_similarity.tsv")) for file in files)


def read_report(folder: Path, method: str, sets: Iterable[TestSet], half: str | None = None) -> Report:
    """Return the figures of written answers, on all items or on a half of them."""
    rules = EvaluationConfig(half=half, draws=0)
    cosines = _read_last_column(folder / f"{method}_similarity.tsv")
    answers = _read_last_column(folder / f"{method}_analogies.tsv")

    results: list[SetResult] = []
    for whole in sets:
        part = whole if half is None else split_set(whole, half)
        if isinstance(whole, AnalogySet) and isinstance(part, AnalogySet):
            # A question may be in the file more than once, and is answered alike every time.
            given = {words: answers[whole.name, line] == "1" for line, words in enumerate(whole.questions, 1)}
            is_right = np.array([given[words] for words in part.questions], bool)
            results.append(summarize_answers(part, is_right, np.ones(len(is_right), bool), rules))
        elif isinstance(whole, SimilaritySet) and isinstance(part, SimilaritySet):
            values = [float(cosines[whole.name, line] or "nan") for line in range(1, whole.size + 1)]
            lines = slice(None) if half is None else slice(HALVES.index(half) - 1, None, 2)
            results.append(summarize_pairs(part, values[lines], draws=0))
    return Report(tuple(results), rules)


def _read_last_column(path: Path) -> dict[tuple[str, int], str]:
    """Return the last column of a file by set and line."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
    return {(fields[0], int(fields[1])): fields[-1] for fields in lines}


def figures_by_half(folder: Path, method: str, sets: Iterable[TestSet]) -> dict[str, dict[str, float]]:
    """Return the figure of every set: of all its items ("whole"), and of either half."""
    chosen = tuple(sets)
    found = {}
    for half in HALVES:
        report = read_report(folder, method, chosen, half)
        found[half or "whole"] = {result.name: round(result.figure or 0.0, 4) for result in report.results}
    return found
