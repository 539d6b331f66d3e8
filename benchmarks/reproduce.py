"""The paper's experiment on a slice of a corpus: minutes of the whole command, and every method's figures and seconds.

Goal: 5 million tokens, 16,384 words, d = 300, in 25 minutes on 2 cores, gensim's SGNS and CBOW and GloVe's 100 epochs
included. A folder that is finished already is read, not made again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import ROOT, SHARED, keep, make_parser, parse_arguments, work_folder, write_sets, write_text

MEASURES = (
    "swivel.pipeline.reproduce",
    "swivel.evaluation.baselines",
    "swivel.corpus",
    "swivel.counts.cooccurrence",
    "swivel.evaluation",
    "swivel.training.loop",
    "swivel.training.schedule",
    "swivel.training.objective",
    "swivel.training.backends.cpu",
    "swivel.training.backends.cpu_kernels",
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--corpus", type=Path, nargs="+", default=[SHARED / "corpus" / "enwiki-1.txt.xz"])
    parser.add_argument("--eval", type=Path, default=SHARED / "eval")
    parser.add_argument("--tokens", type=int, help="only the first so many; 0: all", default=5_000_000)
    parser.add_argument("--max-size", type=int, default=16_384)
    parser.add_argument("--methods", default="default,paper,sgns,cbow,glove")
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--out", type=Path, help="default: the folder `reproduce` in the work folder")
    tiny = {"tokens": 5_000, "max_size": 100, "methods": "fast", "dim": 4}
    arguments = parse_arguments(parser, corpus=lambda folder: [write_text(folder)], eval=write_sets, **tiny)
    arguments.out = arguments.out or work_folder() / "reproduce"

    command = [sys.executable, "-m", "swivel", "reproduce", *map(str, arguments.corpus), "-o", str(arguments.out)]
    command += ["--data", str(arguments.eval), "--max-size", str(arguments.max_size), "--methods", arguments.methods]
    command += ["--tokens", str(arguments.tokens)] if arguments.tokens else []
    command += ["--dim", str(arguments.dim)]
    subprocess.run(command, check=True, cwd=ROOT)

    sizes = {"tokens": arguments.tokens or "all", "words": arguments.max_size}
    keep(arguments, {**sizes, **describe(arguments.out)})


def describe(out: Path) -> dict[str, Any]:
    """Return minutes of all stages together, and seconds, memory and figures of each."""
    stages = json.loads((out / "measures.json").read_text())["stages"]
    results = json.loads((out / "results.json").read_text())
    return {
        "minutes_of_all_stages": sum(stage["seconds"] for stage in stages.values()) / 60,
        "stages": {
            name: {"seconds": round(stage["seconds"], 1), "peak_MiB": round((stage["peak_bytes"] or 0) / 2**20)}
            for name, stage in stages.items()
        },
        "figures": {
            method["name"]: {name: round(score["figure"], 4) for name, score in method["scores"].items()}
            for method in results["methods"]
        },
    }


if __name__ == "__main__":
    main()
