"""Raw text to matrix, and tokenized text to matrix: seconds, with the flush to disk apart, and memory.

Goals, on 2 cores: 30 s and 15 s for 65 M words; with a budget of 1 GiB at most 1.5 GiB of private memory, and the
same matrix, bit for bit.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from common import PrivateMemory, keep, make_parser, parse_arguments, plain_corpus, work_folder, write_corpus
from swivel.config import CorpusConfig, VocabularyConfig
from swivel.corpus.encoded_corpus import encode_corpus
from swivel.corpus.vocabulary import choose_tokens
from swivel.runtime.options import RunOptions
from swivel.storage import files
from swivel.storage.lock import remove_tree, scratch_folder
from swivel.storage.manifest import read_manifest

MEASURES = (
    "swivel.corpus.tokenizer_kernels",
    "swivel.corpus.normalization_kernels",
    "swivel.corpus.encoded_corpus",
    "swivel.corpus.vocabulary",
    "swivel.counts.cooccurrence.corpus_count",
    "swivel.counts.cooccurrence.rows",
    "swivel.counts.cooccurrence.window_kernels",
)
SETTINGS: dict[str, Any] = {"recipe": "fast", "min_count": 12}


class FlushClock:
    """Counts the seconds that the storage room waits for the disk."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._flush = files.flush
        files.flush = self

    def __call__(self, path: Path) -> None:
        started = time.perf_counter()
        self._flush(path)
        self.seconds += time.perf_counter() - started


def count_once(files: list[Path], memory: str | None, tokenizer: str, threads: int) -> dict[str, Any]:
    """Count in this process: seconds, of which flushing, peak memory and the checksums of the parts."""
    out = work_folder() / "matrix"
    remove_tree(out)
    clock = FlushClock()
    with PrivateMemory() as watched:
        started = time.perf_counter()
        matrix = swivel.count(
            files, out, tokenizer=tokenizer, options=RunOptions(memory=memory, threads=threads), **SETTINGS
        )
        seconds = time.perf_counter() - started
    manifest = read_manifest(out)
    return {
        "seconds": seconds,
        "flush_seconds": clock.seconds,
        "private_memory_gib": watched.peak / 2**30,
        "cells": matrix.cell_count,
        "rows": matrix.shape[0],
        "parts": {name: part.sha256 for name, part in manifest.parts.items()},
    }


def count_apart(files: list[Path], memory: str | None, tokenizer: str, threads: int) -> dict[str, Any]:
    """Count in a fresh process, so that its memory is its own."""
    call = (
        "import json, sys; from pathlib import Path; import counting; a = json.loads(sys.argv[1]);"
        "a[0] = [Path(file) for file in a[0]]; print(json.dumps(counting.count_once(*a)))"
    )
    arguments = json.dumps([[str(file) for file in files], memory, tokenizer, threads])
    done = subprocess.run(
        [sys.executable, "-c", call, arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def tokenize(files: list[Path], threads: int) -> list[Path]:
    """Write the corpus as tokens between spaces, a line a line: what other tools start from."""
    target = work_folder() / "tokens.txt"
    if target.exists():
        return [target]
    with scratch_folder(work_folder()) as scratch:
        encoded = encode_corpus(files, CorpusConfig(), scratch=scratch, threads=threads)
        vocabulary = choose_tokens(encoded.counts(), VocabularyConfig(min_count=1, max_size=None))
        ids = encoded.write_ids(vocabulary, keep_gaps=False, path=scratch / "ids.npy", threads=threads)
        words = np.array([*vocabulary, "\n"], object)
        with target.with_suffix(".part").open("w", encoding="utf-8") as out:
            for start in range(0, len(ids), 1 << 20):
                part = np.minimum(ids[start : start + (1 << 20)], len(vocabulary))
                out.write(" ".join(words[part]) + " ")
    target.with_suffix(".part").rename(target)
    return [target]


def main() -> None:
    parser = make_parser(__doc__, "corpus", "repeats", "threads")
    arguments = parse_arguments(parser, corpus=write_corpus, repeats=1, threads=1)

    files = plain_corpus(arguments.corpus)
    tokens = tokenize(files, arguments.threads)
    if not arguments.smoke:
        count_apart(files, None, "words", arguments.threads)  # Compiles, and warms the page cache.

    raw, tokenized = (
        [count_apart(texts, None, tokenizer, arguments.threads) for _ in range(arguments.repeats)]
        for texts, tokenizer in ((files, "words"), (tokens, "whitespace"))
    )
    small = count_apart(files, "1GiB", "words", arguments.threads)
    result = {
        name: {
            "seconds": statistics.median(run["seconds"] - run["flush_seconds"] for run in runs),
            "flush_seconds": statistics.median(run["flush_seconds"] for run in runs),
            "private_memory_gib": max(run["private_memory_gib"] for run in runs),
        }
        for name, runs in (("raw_text", raw), ("tokenized_text", tokenized), ("budget_1GiB", [small]))
    }
    same = all(run["parts"] == raw[0]["parts"] for run in [*raw, small])
    sizes = {name: raw[0][name] for name in ("rows", "cells")}
    keep(arguments, {**result, "same_matrix_bit_for_bit": same, **sizes})


if __name__ == "__main__":
    main()
