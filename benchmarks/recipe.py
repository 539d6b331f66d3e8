"""The recipe `default` against SGNS, CBOW and GloVe on the paper's eight sets: whole, and by halves; five seeds.

Its settings were chosen on the tuning halves (docs/experiments.md). Receives a corpus, or a matrix that the recipe
counted, the folder of the sets, and, where there is one, a folder with what gensim's models answer item by item
(`sgns_similarity.tsv`, `sgns_analogies.tsv`, and `cbow_...`), which every seed is compared with by a paired bootstrap.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from common import SHARED, WORK, keep, plain_corpus
from end_to_end import BASELINES
from swivel.evaluation import Report, compare_reports, evaluate, find_sets, split_set
from swivel.evaluation.analogies import summarise_answers
from swivel.evaluation.datasets import PAPER_ORDER, AnalogySet, TestSet
from swivel.evaluation.rules import Rules
from swivel.evaluation.similarity import summarise_pairs
from swivel.matrix import Matrix, open_matrix
from swivel.storage import read_manifest, remove_tree

HALVES = (None, "tune", "report")
GLOVE = (0.613, 0.548, 0.606, 0.617, 0.301, 0.260, 0.467, 0.339)  # its objective on our engine
GOALS = {"google_analogies": 0.62, "msr_analogies": 0.48, "rare_words": 0.47, "simlex999": 0.385}
BEST = dict(zip(PAPER_ORDER, map(max, zip(*BASELINES.values(), GLOVE, strict=True)), strict=True))


def read_items(path: Path) -> dict[tuple[str, int], str]:
    """Return the last column of a baseline's file by set and line."""
    lines = [line.split("\t") for line in path.read_text().split("\n") if line]
    return {(fields[0], int(fields[1])): fields[-1] for fields in lines}


def baseline_report(folder: Path, method: str, sets: Iterable[TestSet], half: str | None) -> Report:
    """Return the figures of answers that another tool gave, on all items or on a half of them."""
    rules = Rules(half=half, draws=0)
    pairs, answers = (read_items(folder / f"{method}_{kind}.tsv") for kind in ("similarity", "analogies"))
    results = []
    for whole in sets:
        part = whole if half is None else split_set(whole, half)
        if isinstance(whole, AnalogySet):
            # A question may stand in the file more than once, and is answered alike every time.
            given = {words: answers[whole.name, n] == "1" for n, (_, words) in enumerate(whole.rows, 1)}
            is_right = np.array([given[words] for _, words in part.rows])
            results.append(summarise_answers(part, is_right, np.ones(len(is_right), bool), rules))
        else:
            cosines = [float(pairs[whole.name, n] or "nan") for n in range(1, whole.size + 1)]
            step = slice(None) if half is None else slice(HALVES.index(half) - 1, None, 2)
            results.append(summarise_pairs(part, cosines[step], draws=0))
    return Report(tuple(results), rules)


def make_matrix(arguments: argparse.Namespace) -> Matrix:
    if arguments.matrix is not None:
        return open_matrix(arguments.matrix)
    files = [file for path in arguments.corpus for file in plain_corpus(path)]
    out = WORK / f"{arguments.recipe}-matrix"
    return swivel.count(files, out, recipe=arguments.recipe, min_count=arguments.min_count)


def train_seed(matrix: Matrix, seed: int, arguments: argparse.Namespace) -> tuple[swivel.Vectors, dict[str, Any]]:
    out = WORK / f"{arguments.recipe}-{seed}"
    remove_tree(out)
    vectors = swivel.train(matrix, out, recipe=arguments.recipe, seed=seed, device=arguments.device)
    return vectors, read_manifest(out).facts


def figures_of(report: Report) -> list[float]:
    return [report[name].figure for name in PAPER_ORDER]  # type: ignore[misc]


def summarise(columns: list[list[float]]) -> dict[str, dict[str, float]]:
    by_set = zip(PAPER_ORDER, zip(*columns, strict=True), strict=True)
    return {
        name: {
            "mean": round(statistics.mean(values), 4),
            "deviation": round(statistics.stdev(values), 4) if len(values) > 1 else 0.0,
        }
        for name, values in by_set
    }


def compare_seeds(reports: list[Report], baseline: Report) -> dict[str, Any]:
    """Return, for every set, the mean difference over the seeds and each seed's p."""
    seeds = [{each.name: each for each in compare_reports(report, baseline)} for report in reports]
    return {
        name: {
            "theirs": round(seeds[0][name].second or 0.0, 4),
            "mean_difference": round(statistics.mean(seed[name].difference for seed in seeds), 4),
            "p": [round(seed[name].p_value, 4) for seed in seeds],
            "seeds_significantly_below": sum(seed[name].interval[1] < 0 for seed in seeds),
            "seeds_significantly_above": sum(seed[name].interval[0] > 0 for seed in seeds),
        }
        for name in PAPER_ORDER
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, nargs="+", default=[SHARED / "corpus"])
    parser.add_argument("--matrix", type=Path, help="a matrix that the recipe counted, instead of the corpus")
    parser.add_argument("--eval", type=Path, default=SHARED / "eval")
    parser.add_argument("--baselines", type=Path, default=SHARED / "baselines")
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--min-count", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(11, 16)))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--name", default="recipe", help="keep the result under this name")
    arguments = parser.parse_args()
    matrix = make_matrix(arguments)
    reports: dict[str | None, list[Report]] = {half: [] for half in HALVES}
    facts: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        vectors, fact = train_seed(matrix, seed, arguments)
        facts.append(fact)
        for half in HALVES:
            reports[half].append(evaluate(vectors, arguments.eval, half=half, draws=0))
        print(seed, [round(value, 3) for value in figures_of(reports[None][-1])], flush=True)
    keep(arguments.name, describe(reports, facts, arguments, matrix))


def describe(
    reports: dict[str | None, list[Report]], facts: list[dict[str, Any]], arguments: argparse.Namespace, matrix: Matrix
) -> dict[str, Any]:
    sets = find_sets(arguments.eval).sets
    figures = {half or "whole": summarise([figures_of(report) for report in some]) for half, some in reports.items()}
    whole = {name: value["mean"] for name, value in figures["whole"].items()}
    compared = {}
    if arguments.baselines.exists():
        for half, some in reports.items():
            for method in ("sgns", "cbow"):
                baseline = baseline_report(arguments.baselines, method, sets, half)
                compared[f"{method}, {half or 'whole'}"] = compare_seeds(some, baseline)
    rows, columns = matrix.shape
    return {
        "recipe": arguments.recipe,
        "seeds": arguments.seeds,
        "plan": facts[0]["plan"],
        "training_seconds": [fact["training_seconds"] for fact in facts],
        "cells_visited": rows * columns * facts[0]["plan"]["passes"],
        "figures": figures,
        "above_the_best_of_the_three": {name: whole[name] > best for name, best in BEST.items()},
        "goals_reached": {name: whole[name] >= goal for name, goal in GOALS.items()},
        "against_gensim": compared,
    }


if __name__ == "__main__":
    main()
