"""Helpers of the tests of counting on a device: corpora, and counting on the device and on the CPU."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from swivel.config import CountConfig
from swivel.corpus.vocabulary import BREAK, GAP, Vocabulary
from swivel.counts import Matrix
from swivel.counts.block_layout import Layout
from swivel.counts.cooccurrence import corpus_count as counting
from swivel.counts.cooccurrence import count_tokens
from swivel.counts.cooccurrence.corpus_count import part_names, survey_corpus
from swivel.counts.cooccurrence.gpu import counter as device
from swivel.counts.cooccurrence.gpu.counter import DeviceCounter
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT

WORDS = 7


def make_vocabulary(size: int = WORDS) -> Vocabulary:
    return Vocabulary([f"w{number}" for number in range(size)], range(size, 0, -1))


def digest(path: Path) -> dict[str, str]:
    files = sorted(file for file in Path(path).iterdir() if file.suffix != ".json")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def make_options(**options: Any) -> RunOptions:
    return RunOptions(**{"threads": 1, "memory": 1 << 30, "progress": False, **options})


def make_counter(
    ids: ArrayLike,
    config: CountConfig,
    *,
    words: int = WORDS,
    layout: Layout | None = None,
    device_name: str = "cpu",
    device_memory: int | None = 1 << 28,
    writer: str | None = None,
    **options: Any,
) -> DeviceCounter:
    """Return a counter on a device, by default the torch CPU device, with further run options."""
    ids = np.asarray(ids, np.uint32)
    layout = layout or counting.make_spec(make_vocabulary(words), config).layout()
    config = replace(config, device_memory=None if device_memory is None else str(device_memory))
    survey = survey_corpus(ids, words, config, threads=1)
    return DeviceCounter(ids, layout, config, survey, make_options(**options), device_name, writer=writer)


def count_on_device(path: Path, ids: ArrayLike, config: CountConfig, *, words: int = WORDS, **options: Any) -> Matrix:
    """Count by sorting on a device, with the options of `make_counter`."""
    counter = make_counter(ids, config, words=words, **options)
    spec = counting.make_spec(make_vocabulary(words), config)
    return counting.build_matrix(counter, spec, path, make_options(), {"config": config}, SILENT.begin("", None, ""))


def count_on_cores(path: Path, ids: ArrayLike, config: CountConfig, *, words: int = WORDS) -> Matrix:
    return count_tokens(np.asarray(ids, np.uint32), make_vocabulary(words), config, path, make_options())


def make_corpus(seed: int, size: int, words: int = WORDS) -> NDArray[np.uint32]:
    """Return a corpus of words with about Zipf's distribution, with some breaks and gaps."""
    rng = np.random.default_rng(seed)
    ids = np.minimum((words + 1) ** rng.random(size) - 1, words - 1).astype(np.uint32)
    ids[rng.random(size) < 0.02] = BREAK
    ids[rng.random(size) < 0.02] = GAP
    return ids


def compare_writers(name: str, seed: int, device_name: str) -> int:
    """Check that `write_tiles` and another writer write the same keys for a random corpus; return their number."""
    rng = np.random.default_rng(seed)
    columns = ["symmetric", "directional", "bands", "directional-bands"][seed % 4]
    left, right = ((3, 3), (2, 5), (6, 4), (3, 3))[seed % 4]
    config = CountConfig(left=left, right=right, columns=columns, weight=["harmonic", "uniform"][seed % 2])
    words = 50
    blocks = int(rng.integers(1, 6))
    parts = len(part_names(config)) or 1
    layout = Layout(words, words * parts, blocks, blocks * parts, columns == "symmetric")
    ids = make_corpus(seed, int(rng.integers(530, 700)), words=words)
    counter = make_counter(
        ids, config, words=words, layout=layout, device_name=device_name, device_memory=1 << 24, writer=name
    )
    slots = device.upload_slots(counter, 0, ids.size)
    shards = layout.shards
    first = int(rng.integers(0, shards // 3 + 1))
    last = int(rng.integers(shards * 2 // 3, shards)) + 1
    places = range(int(rng.integers(0, 100)), ids.size - int(rng.integers(0, 100)))
    written = []

    for each in ("torch", name):
        keys = torch.full((40_000,), -1, dtype=torch.int64, device=device_name)
        total = device.make_writer(each, slots, counter.rules, tile=100)(keys, range(first, last), places)
        assert not torch.any(keys[total:] != -1)
        written.append(keys[:total].sort().values.tolist())

        # A buffer that is too short: the number is right, and nothing is written beyond its end.
        few = torch.full((total // 2 + 9,), -1, dtype=torch.int64, device=device_name)
        write = device.make_writer(each, slots, counter.rules, tile=100)
        assert write(few[: total // 2], range(first, last), places) == total
        assert torch.all(few[total // 2 :] == -1)

    assert written[0] == written[1]
    return len(written[0])
