"""Rotation over ranks (gloo) against one process: efficiency, bytes; with --quality, the loss.

    python benchmarks/rotation.py                       2 ranks of one thread against 2 x the plain loop, k = 4096
    python benchmarks/rotation.py --quality MATRIX      2 and 4 ranks reach the loss of one process
    python benchmarks/rotation.py --ray 3               ranks as actors on Ray against torchrun's, three times in turns

Every run is a launch of its own; the first epoch warms up, the others are measured. The machine must be quiet, except
for the comparison with Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from asynchronous import Clock, make_matrix
from asynchronous import run as run_alone
from common import keep, make_parser, parse_arguments, work_folder
from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.runtime.options import ClusterConfig
from swivel.training.loop import train_matrix

MEASURES = (
    "swivel.training.distributed.ring",
    "swivel.training.distributed.ray_ring",
    "swivel.training.schedule",
    "swivel.training.loop",
)


def drive(order: dict[str, Any]) -> None:
    """Train as one rank, or with actors on Ray; the leading process prints the figures as one line."""
    matrix, clock, config = open_matrix(order["matrix"]), Clock(), TrainConfig(**order["config"])
    workers: Any
    if order.get("actors"):
        from swivel.training.distributed.ray_ring import RayRingExecutor

        workers = RayRingExecutor("local", ClusterConfig(workers=order["actors"], worker_threads=1), config)
    else:
        from swivel.training.distributed.ring import RingExecutor

        workers = RingExecutor()
    folder = Path(order["folder"]) / os.environ.get("RANK", "0")
    folder.mkdir()
    trained = train_matrix(matrix, config, folder=folder, threads=1, progress=clock, executor=workers)
    if trained is None:
        return
    cells_per_epoch = matrix.shape[0] * matrix.shape[1]
    began, before = next((when, cells) for when, cells, _ in clock.marks if cells >= 0.999 * cells_per_epoch)
    rate = (clock.cells - before) / max(1e-9, clock.marks[-1][0] - began) if config.epochs != 1 else None
    losses = [loss.mean for loss in trained.history]
    print(
        json.dumps(
            {"cells_per_second": rate, "losses": losses, "loss": losses[-1], "sent": getattr(workers, "moved", 0)}
        )
    )


def run(order: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Train on so many ranks; return what the leading one says."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__]
    if order.get("actors"):
        launch = [sys.executable, __file__]
    with tempfile.TemporaryDirectory(dir=work_folder()) as folder:
        command = [*launch, "--drive", json.dumps({**order, "folder": folder})]
        # By default Ray's actors leave the cores to other work on the machine: they have the niceness 15.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print({"ranks": ranks, **{name: value for name, value in found.items() if name != "losses"}}, flush=True)
    return found


def make_order(options: argparse.Namespace) -> dict[str, Any]:
    matrix = make_matrix(options.blocks, options.block_size, options.cells)
    config = {"dim": options.dim, "block_size": options.block_size, "epochs": options.epochs, "dtype": options.dtype}
    return {"matrix": str(matrix.path), "config": config | {"checkpoint_minutes": 0, "backend": "cpu"}}


def measure_ray(options: argparse.Namespace) -> dict[str, Any]:
    """Return the rate of actors on Ray as a part of that of torchrun's ranks, which run right before them."""
    order = make_order(options)
    ratios, is_same = [], True
    for _ in range(options.ray):
        ranks, actors = run(order, options.ranks), run({**order, "actors": options.ranks}, options.ranks)
        ratios.append(round(actors["cells_per_second"] / ranks["cells_per_second"], 3))
        is_same = is_same and ranks["losses"] == actors["losses"]
    sizes = {name: getattr(options, name) for name in ("ranks", "blocks", "block_size", "dim", "epochs")}
    return {**sizes, "of_torchrun": ratios, "median": statistics.median(ratios), "same_losses": is_same}


def measure_efficiency(options: argparse.Namespace) -> dict[str, Any]:
    order = make_order(options)
    plain = run_alone({**order, "workers": 0, "servers": 1})
    many = run(order, options.ranks)
    # Each column block changes hands n - 1 times an epoch; the leading rank sends its share of them.
    least = (options.ranks - 1) * options.epochs * options.blocks * options.block_size * options.dim * 8 / options.ranks
    return {
        "ranks": options.ranks,
        "blocks": options.blocks**2,
        "block_size": options.block_size,
        "dim": options.dim,
        "million_cells_per_second": {
            "one process": round(plain["cells_per_second"] / 1e6, 2),
            "ranks": round(many["cells_per_second"] / 1e6, 2),
        },
        "efficiency": round(many["cells_per_second"] / (options.ranks * plain["cells_per_second"]), 3),
        "bytes_against_least": round(many["sent"] / least, 4),
    }


def measure_quality(options: argparse.Namespace) -> dict[str, Any]:
    config = {
        "dim": options.dim,
        "checkpoint_minutes": 0,
        "backend": "cpu",
        "weight_decay": 1e-4,
        "dtype": options.dtype,
    }
    order = {"matrix": str(options.quality), "config": config}
    alone = run_alone({**order, "workers": 0, "servers": 1})
    losses = {str(ranks): run(order, ranks)["losses"] for ranks in (2, 4)}
    return {
        "words": open_matrix(options.quality).shape[0],
        "losses_alone": alone["losses"],
        "losses": losses,
        "relative_difference": {ranks: round(found[-1] / alone["loss"] - 1, 5) for ranks, found in losses.items()},
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--quality", type=Path, metavar="MATRIX", help="compare losses on this matrix")
    parser.add_argument("--ray", type=int, metavar="TIMES", help="compare actors on Ray with torchrun's ranks")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=8, help="a side")
    parser.add_argument("--block-size", type=int, default=4096)
    parser.add_argument("--cells", type=int, default=160_000, help="observed, a block")
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    options = parse_arguments(parser, blocks=4, block_size=20, cells=50, dim=4)
    if options.drive:
        drive(json.loads(options.drive))
    elif options.ray:
        keep(options, measure_ray(options), name="rotation_ray")
    elif options.quality:
        keep(options, measure_quality(options), name="rotation_quality")
    else:
        keep(options, measure_efficiency(options))
    shutil.rmtree(work_folder() / "asynchronous-run", ignore_errors=True)


if __name__ == "__main__":
    main()
