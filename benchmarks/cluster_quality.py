"""Whether a cluster trains as well: asynchronous workers and ranks against one process, loss and the eight sets.

    python benchmarks/cluster_quality.py [--modes alone,ranks,ray]

The corpus cut to 20,000 words; every training is the command that a user types. One process with three seeds is the
yardstick: its spread is what a figure may differ by.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import swivel
from common import SHARED, WORK, keep, plain_corpus
from swivel.storage import read_manifest


def commands(modes: list[str]) -> dict[str, list[str]]:
    """Return how each training is started, and with what seed."""
    plain, ranks = [sys.executable, "-m"], [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    found: dict[str, list[str]] = {}
    if "alone" in modes:
        found |= {
            f"one process, seed {seed}": [*plain, "swivel", "train", "--seed", str(seed)]
            for seed in range(1, arguments.seeds + 1)
        }
    if "ranks" in modes:
        for count in (2, 4):
            found[f"{count} ranks"] = [*ranks, f"--nproc-per-node={count}", "-m", "swivel", "train", "--threads", "1"]
    if "ray" in modes:
        found["4 asynchronous workers"] = [
            *plain,
            "swivel",
            "train",
            "--ray",
            "local",
            "--workers",
            "4",
            "--servers",
            "2",
        ]
    return found


def train(command: list[str], matrix: Path, out: Path, dim: int) -> dict[str, Any]:
    """Train with a command of its own; return the losses and the eight figures."""
    shutil.rmtree(out, ignore_errors=True)
    sizes = {"--block-size": arguments.block_size, "--passes": arguments.passes}
    given = [text for name, value in sizes.items() if value for text in (name, str(value))]
    flags = [*given, "--recipe", "fast", "--dim", str(dim), "--zeros", "all", "--device", "cpu", "--quiet"]
    subprocess.run([*command, str(matrix), "-o", str(out), *flags], check=True, stdout=subprocess.DEVNULL)
    report = swivel.evaluate(swivel.load(out), arguments.eval, draws=0)
    figures = {one.name: round(one.rho if hasattr(one, "rho") else one.accuracy, 4) for one in report.results}
    facts = read_manifest(out).facts
    return {"losses": [loss["mean"] for loss in facts["losses"]], "figures": figures}


def main() -> None:
    texts = plain_corpus(arguments.corpus)
    matrix = WORK / f"quality-{arguments.words}"
    swivel.count(texts, matrix, recipe="fast", max_size=arguments.words, min_count=1)
    found: dict[str, Any] = {}
    for name, command in commands(arguments.modes.split(",")).items():
        found[name] = train(command, matrix, WORK / "quality-vectors", arguments.dim)
        print(json.dumps({name: [round(found[name]["losses"][-1], 6), found[name]["figures"]]}), flush=True)
    keep(arguments.name, {"words": arguments.words, "dim": arguments.dim, "runs": found, **compare(found)})


def compare(found: dict[str, Any]) -> dict[str, Any]:
    """Return each mode's difference from the mean of one process: of the last loss, and of the figures in spreads."""
    alone = [run for name, run in found.items() if name.startswith("one process")]
    if not alone:
        return {}
    loss = statistics.mean(run["losses"][-1] for run in alone)
    result = {}
    for name, run in found.items():
        if name.startswith("one process"):
            continue
        off = {}
        for test, value in run["figures"].items():
            values = [other["figures"][test] for other in alone]
            off[test] = [
                round(value - statistics.mean(values), 4),
                round(statistics.stdev(values), 4) if len(values) > 1 else None,
            ]
        result[name] = {"loss": round(run["losses"][-1] / loss - 1, 5), "figures_and_deviation": off}
    return {"against_one_process": result}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=SHARED / "corpus")
    parser.add_argument("--eval", type=Path, default=SHARED / "eval")
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--passes", type=int)
    parser.add_argument("--seeds", type=int, default=3, help="of one process")
    parser.add_argument("--modes", default="alone,ranks,ray")
    parser.add_argument("--name", default="cluster_quality")
    arguments = parser.parse_args()
    main()
