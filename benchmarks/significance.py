"""Which differences between Swivel's vectors and the baselines' are significant: a paired bootstrap over the items.

Reads what `benchmarks/end_to_end.py` and `benchmarks/baselines.py` answered to every item (`--answers`). Every seed is
compared with every baseline on each set, on all items and on either half.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from answers import HALVES, figures_by_half, find_seeds, read_report, write_random_answers
from common import keep, make_parser, parse_arguments, work_folder, write_sets
from swivel.evaluation import Report, compare_reports
from swivel.evaluation.datasets import TestSet, find_sets

MEASURES = (
    "swivel.evaluation.bootstrap",
    "swivel.evaluation.datasets",
    "swivel.evaluation.scores",
)

BASELINES = ("sgns", "cbow", "fasttext", "glove")


def main() -> None:
    parser = make_parser(__doc__, "eval")
    parser.add_argument("--answers", type=Path, default=work_folder() / "answers", help="folder with the answers")
    parser.add_argument("--methods", nargs="+", default=["default_cuda"])
    parser.add_argument("--baselines", nargs="+", default=BASELINES)
    smoke = {"methods": ["default_cuda"], "baselines": ["sgns"], "answers": make_smoke_answers}
    arguments = parse_arguments(parser, eval=write_sets, **smoke)

    sets = find_sets(arguments.eval)[0]
    compared = {}
    for method in arguments.methods:
        seeds = find_seeds(arguments.answers, method)
        for half in HALVES:
            ours = [read_report(arguments.answers, f"{method}_{seed}", sets, half) for seed in seeds]
            for baseline in arguments.baselines:
                theirs = read_report(arguments.answers, baseline, sets, half)
                compared[f"{method}, {baseline}, {half or 'whole'}"] = compare_seeds(ours, theirs)
    figures = {name: figures_by_half(arguments.answers, name, sets) for name in arguments.baselines}
    keep(arguments, {"compared": compared, "baseline_figures": figures})


def make_smoke_answers(folder: Path) -> Path:
    """Write random answers to the sets of a smoke run, and return their folder."""
    sets: tuple[TestSet, ...] = find_sets(folder / "sets")[0]
    for seed, method in enumerate(("default_cuda_1", "default_cuda_2", "sgns")):
        write_random_answers(sets, folder / "answers", method, seed)
    return folder / "answers"


def compare_seeds(ours: list[Report], theirs: Report) -> dict[str, Any]:
    """Return, for every set, the mean difference over the seeds and for how many of them it is significant."""
    found = [{each.name: each for each in compare_reports(report, theirs)} for report in ours]
    return {
        name: {
            "seeds": len(found),
            "mean_difference": round(statistics.mean(seed[name].difference or 0.0 for seed in found), 4),
            "seeds_significantly_above": sum((seed[name].interval or (0, 0))[0] > 0 for seed in found),
            "seeds_significantly_below": sum((seed[name].interval or (0, 0))[1] < 0 for seed in found),
        }
        for name in found[0]
    }


if __name__ == "__main__":
    main()
