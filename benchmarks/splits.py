"""The standard splits of the recommender literature: Gowalla and Yelp2018, Recall@20 and NDCG@20 over all columns.

The splits are those of LightGCN (He et al., 2020), which most later papers report. Swivel, recipe `table`, is trained
with nothing tuned; the baselines, and Swivel's `tuned`, take the settings that are best on a tenth of the training
cells, and are trained on all of them. The files are downloaded once, and their cells checked, or read from `--data`.
"""

from __future__ import annotations

import hashlib
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from common import keep, make_parser, parse_arguments, work_folder
from experiments.table_methods import METHODS, TableSplit, choose_fit, find_method, why_left_out
from swivel.evaluation.table_ranking import split_table
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT

MEASURES = (
    "swivel.training.table_settings",
    "swivel.recommender",
    "swivel.evaluation.table_ranking",
    "experiments/table_methods.py",
)
OPTIONS = RunOptions(progress=SILENT)
SOURCE = "https://raw.githubusercontent.com/kuandeng/LightGCN/master/Data/{name}/{part}.txt"
# Beginnings of the SHA-256 of the sorted cells, as pairs of int32, of training and of test.
CELLS = {"gowalla": ("f44cff05ba25a6cc", "49228ae546009830"), "yelp2018": ("e2f2f50836855d94", "02cbbfe351ce3b5e")}
PARTS = ("train", "test")


def read_cells(path: Path) -> NDArray[np.int32]:
    """Return the cells of a file with a row and its columns on every line, in ascending order."""
    cells = [(row, column) for row, *columns in map(_numbers, path.read_text().splitlines()) for column in columns]
    return np.unique(np.array(cells, np.int32), axis=0)


def _numbers(line: str) -> list[int]:
    return [int(number) for number in line.split()]


def find_file(name: str, part: str, data: Path | None) -> Path:
    """Return the file of a split, in `data` or downloaded to the work folder."""
    if data is not None:
        return data / name / f"{part}.txt"

    path = work_folder() / "splits" / name / f"{part}.txt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        urllib.request.urlretrieve(SOURCE.format(name=name, part=part), path)
    return path


def read_split(name: str, data: Path | None) -> TableSplit:
    """Return a split: a tenth of the training cells are for validation."""
    cells = [read_cells(find_file(name, part, data)) for part in PARTS]
    for part, found, expected in zip(PARTS, cells, CELLS.get(name, ()), strict=False):
        digest = hashlib.sha256(found.tobytes()).hexdigest()
        if not digest.startswith(expected):
            raise ValueError(f"{name}, {part}: these are not the cells of the standard split ({digest})")

    shape = tuple(np.concatenate(cells).max(axis=0) + 1)
    train, test = (scipy.sparse.csr_array((np.ones(len(part)), tuple(part.T)), shape=shape) for part in cells)
    return TableSplit(*split_table(train, 0.1), test)


def measure_method(name: str, split: TableSplit, dim: int) -> dict[str, Any]:
    chosen = choose_fit(find_method(name, OPTIONS), split, dim, refit=True)
    figures = {"recall": round(chosen.report.recall, 4), "ndcg": round(chosen.report.ndcg, 4)}
    return {**figures, "settings": chosen.settings, "tried": chosen.tried, "seconds": round(chosen.seconds, 2)}


def write_lists(folder: Path) -> Path:
    """Write a tiny split for a smoke run."""
    rng = np.random.default_rng(1)
    for part in PARTS:
        lines = [f"{row} {' '.join(map(str, rng.permutation(30)[:8]))}" for row in range(40)]
        path = folder / "tiny" / f"{part}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines))
    return folder


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("splits", nargs="*", default=list(CELLS), metavar="SPLIT")
    parser.add_argument("--data", type=Path, help="folder with SPLIT/train.txt and SPLIT/test.txt")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["swivel", "ials", "svd", "ease"])
    arguments = parse_arguments(parser, data=write_lists, splits=["tiny"], dims=[4], methods=["swivel", "ials"])

    found: dict[str, Any] = {}
    for split_name in arguments.splits:
        split = read_split(split_name, arguments.data)
        found[split_name] = {"shape": list(split.train.shape), "methods": {}}
        for name in arguments.methods:
            if why_left_out(name, split.train.shape[1]) is not None:
                continue
            # EASE has no dimensions.
            for dim in arguments.dims[: 1 if name == "ease" else None]:
                measured = measure_method(name, split, dim)
                found[split_name]["methods"].setdefault(name, {})[str(dim)] = measured
                print(split_name, name, dim, measured, flush=True)
    keep(arguments, {"splits": found})


if __name__ == "__main__":
    main()
