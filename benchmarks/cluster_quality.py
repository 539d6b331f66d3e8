"""Whether a cluster trains as well: asynchronous workers and ranks against one process, loss and the eight sets.

    python benchmarks/cluster_quality.py [--modes alone,ranks,ray]

The corpus cut to 20,000 words; every training is the command that a user types. One process with three seeds is the
reference: its spread is what a figure may differ by. A smoke run trains in one process and by two ranks, without Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import swivel
from common import keep, make_parser, parse_arguments, plain_corpus, work_folder, write_corpus, write_sets
from swivel.storage.manifest import read_manifest

MEASURES = (
    "swivel.training.distributed.async_executor",
    "swivel.training.distributed.leases",
    "swivel.training.distributed.ring",
    "swivel.training.distributed.parameter_server",
    "swivel.training.schedule",
    "swivel.training.loop",
)


def commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return how each training is started, and with what seed."""
    modes = arguments.modes.split(",")
    plain, ranks = [sys.executable, "-m"], [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    found: dict[str, list[str]] = {}

    if "alone" in modes:
        found |= {
            f"one process, seed {seed}": [*plain, "swivel", "train", "--seed", str(seed)]
            for seed in range(1, arguments.seeds + 1)
        }
    if "ranks" in modes:
        for count in arguments.ranks:
            found[f"{count} ranks"] = [*ranks, f"--nproc-per-node={count}", "-m", "swivel", "train", "--threads", "1"]
    if "ray" in modes:
        servers = ["--ray", "local", "--workers", "4", "--servers", "2"]
        found["4 asynchronous workers"] = [*plain, "swivel", "train", *servers]
    return found


def train(command: list[str], matrix: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train with a command of its own; return the losses and the eight figures."""
    out = work_folder() / "quality-vectors"
    shutil.rmtree(out, ignore_errors=True)
    sizes = {"--block-size": arguments.block_size, "--epochs": arguments.epochs}
    given = [text for name, value in sizes.items() if value for text in (name, str(value))]
    flags = [*given, "--recipe", "fast", "--dim", str(arguments.dim), "--zeros", "all", "--device", "cpu", "--quiet"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # Without it, torchrun prints that it sets it.
    subprocess.run(
        [*command, str(matrix), "-o", str(out), *flags], check=True, stdout=subprocess.DEVNULL, env=environment
    )

    report = swivel.evaluate(swivel.load(out), arguments.eval, draws=0)
    figures = {one.name: round(one.figure, 4) for one in report.results if one.figure is not None}
    facts = read_manifest(out).facts
    return {"losses": [loss["mean"] for loss in facts["losses"]], "figures": figures}


def main() -> None:
    parser = make_parser(__doc__, "corpus", "eval")
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, default=3, help="of one process")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--modes", default="alone,ranks,ray")
    tiny = {"words": 100, "dim": 4, "block_size": 50, "epochs": 2, "seeds": 1, "ranks": [2], "modes": "alone,ranks"}
    arguments = parse_arguments(parser, corpus=write_corpus, eval=write_sets, **tiny)

    texts = plain_corpus(arguments.corpus)
    matrix = work_folder() / f"quality-{arguments.words}"
    swivel.count(texts, matrix, recipe="fast", max_size=arguments.words, min_count=1)

    found: dict[str, Any] = {}
    for name, command in commands(arguments).items():
        found[name] = train(command, matrix, arguments)
        print(json.dumps({name: [round(found[name]["losses"][-1], 6), found[name]["figures"]]}), flush=True)

    keep(arguments, {"words": arguments.words, "dim": arguments.dim, "runs": found, **compare(found)})


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
    main()
