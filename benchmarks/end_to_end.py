"""Raw text to vectors by one `swivel run`: the seconds that a user waits, and the eight figures, over several seeds.

The command runs in a process of its own, `--commands` times; its first run on a machine also compiles. The other seeds
are trained from the matrix of the first command. Figures are given for all items of each set and for either half:
settings of the recipes were chosen on the odd lines ("tune"), the even ones ("report") were not looked at. What each
seed answers is written to `--answers`, for `benchmarks/significance.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import swivel
from answers import answers_folder, figures_by_half, write_answers
from common import (
    ROOT,
    PrivateMemory,
    keep,
    make_parser,
    parse_arguments,
    plain_corpus,
    work_folder,
    write_corpus,
    write_sets,
)
from swivel.counts import open_matrix
from swivel.evaluation import evaluate
from swivel.evaluation.datasets import PAPER_ORDER, TestSet, find_sets
from swivel.runtime.options import RunOptions
from swivel.storage.lock import remove_tree
from swivel.storage.manifest import read_manifest

MEASURES = (
    "swivel.pipeline.run",
    "swivel.pipeline.count",
    "swivel.pipeline.train",
    "swivel.corpus.tokenizer_kernels",
    "swivel.corpus.normalization",
    "swivel.corpus.vocabulary",
    "swivel.counts.cooccurrence.corpus_count",
    "swivel.counts.cooccurrence.window_kernels",
    "swivel.training.loop",
    "swivel.training.schedule",
    "swivel.training.initialization",
    "swivel.training.objective_numba",
    "swivel.training.objective_triton",
    "swivel.training.backends.cpu",
    "swivel.training.backends.cpu_kernels",
    "swivel.training.backends.triton.step_kernels",
    "swivel.vectors.combine",
    "swivel.vectors.subwords",
    "swivel.evaluation.datasets",
    "swivel.evaluation.scores",
)


def main() -> None:
    parser = make_parser(__doc__, "corpus", "eval", "megabytes", "threads")
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--commands", type=int, default=2, help="how many seeds are trained by whole commands")
    parser.add_argument("--answers", type=Path, help="folder for the answers item by item")
    parser.add_argument("--dim", type=int, help="default: the recipe's")
    parser.add_argument("--epochs", type=int, help="default: the recipe's")
    smoke = {"corpus": write_corpus, "eval": write_sets, "threads": 1, "seeds": [1, 2], "commands": 1, "device": "cpu"}
    arguments = parse_arguments(parser, **smoke, dim=8, epochs=2)

    if arguments.device != "cpu":
        import torch  # noqa: F401  (so that the result names the GPU)

    answers = answers_folder(arguments)
    files = plain_corpus(arguments.corpus, arguments.megabytes)
    sets = find_sets(arguments.eval)[0]

    compile_bytecode()
    commands, plans = [], []
    for number, seed in enumerate(arguments.seeds):
        out = work_folder() / f"run-{arguments.recipe}-{arguments.device}-{seed}"
        if number < arguments.commands:
            commands.append(time_command(files, out, seed, arguments))
        else:
            train_again(out, seed, arguments)
        plans.append(read_manifest(out / "vectors").facts)
        report = evaluate(swivel.Vectors.load(out / "vectors"), arguments.eval, draws=0)
        write_answers(report, answers, method_name(arguments, seed))
        print(seed, [round(report[name].figure or 0.0, 3) for name in PAPER_ORDER], flush=True)

    keep(arguments, describe(arguments, answers, sets, commands, plans), name=result_name(arguments))


def result_name(arguments: argparse.Namespace) -> str:
    if arguments.megabytes:
        return f"small_corpus/{arguments.recipe}"
    return f"headline/{arguments.recipe}_{arguments.device}"


def method_name(arguments: argparse.Namespace, seed: int) -> str:
    return f"{arguments.recipe}_{arguments.device}_{seed}"


def time_command(files: list[Path], out: Path, seed: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Run the command as a user does; return its wall and processor seconds, and those of training."""
    remove_tree(out)
    command = [sys.executable, "-m", "swivel", "run", *map(str, files), "-o", str(out), "--recipe", arguments.recipe]
    command += ["--seed", str(seed), "--device", arguments.device, "--threads", str(arguments.threads)]
    for name, value in changed_settings(arguments).items():
        command += [f"--{name}", str(value)]

    before, started = os.times(), time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env=make_environment())
    with PrivateMemory(process.pid) as memory:
        if process.wait():
            raise SystemExit(f"the command failed with status {process.returncode}")
    wall, after = time.perf_counter() - started, os.times()

    used = after.children_user + after.children_system - before.children_user - before.children_system
    training = read_manifest(out / "vectors").facts["training_seconds"]
    return {
        "wall_seconds": round(wall, 2),
        "cpu_seconds": round(used, 1),
        "training_seconds": round(training, 2),
        "private_bytes": memory.peak,
    }


def make_environment() -> dict[str, str]:
    """Return the environment of the commands, in which Python keeps the bytecode that it compiles.

    pip compiles what it installs. In an image without bytecode that forbids Python to write it, every import of torch
    would compile all of it again (5 s instead of 2.6 s on the host of an H200).
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT / "src")}


def compile_bytecode() -> None:
    """Import the libraries that a command imports, so that the first command does not compile their bytecode."""
    modules = [name for name in ("torch", "triton", "numba", "matplotlib.pyplot") if find_spec(name.split(".")[0])]
    subprocess.run([sys.executable, "-c", f"import {', '.join(modules)}"], env=make_environment(), check=True)


def changed_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that differ from the recipe's."""
    return {name: getattr(arguments, name) for name in ("dim", "epochs") if getattr(arguments, name)}


def train_again(out: Path, seed: int, arguments: argparse.Namespace) -> None:
    """Train another seed from the matrix of the first command."""
    remove_tree(out)
    first = work_folder() / f"run-{arguments.recipe}-{arguments.device}-{arguments.seeds[0]}"
    swivel.train(
        open_matrix(first / "matrix"),
        out / "vectors",
        recipe=arguments.recipe,
        seed=seed,
        device=arguments.device,
        **changed_settings(arguments),
        options=RunOptions(threads=arguments.threads),
    )


def describe(
    arguments: argparse.Namespace,
    answers: Path,
    sets: tuple[TestSet, ...],
    commands: list[dict[str, float]],
    plans: list[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return what is kept."""
    later = commands[1:] or commands
    by_seed = [figures_by_half(answers, method_name(arguments, seed), sets) for seed in arguments.seeds]
    return {
        "recipe": arguments.recipe,
        "device": arguments.device,
        "threads": arguments.threads,
        "seeds": arguments.seeds,
        "plan": plans[0]["plan"],
        "commands": commands,
        "wall_seconds": statistics.median(each["wall_seconds"] for each in later),
        "cpu_seconds": statistics.median(each["cpu_seconds"] for each in later),
        "training_seconds": statistics.median(each["training_seconds"] for each in later),
        "private_bytes": max(each["private_bytes"] for each in commands),
        "figures": {
            half: {name: round(statistics.mean(each[half][name] for each in by_seed), 4) for name in by_seed[0][half]}
            for half in by_seed[0]
        },
        "deviations": {name: deviation([each["whole"][name] for each in by_seed]) for name in by_seed[0]["whole"]},
    }


def deviation(values: list[float]) -> float | None:
    """Return the standard deviation over seeds, if there are several."""
    return round(statistics.stdev(values), 4) if len(values) > 1 else None


if __name__ == "__main__":
    main()
