"""Ids in host memory to blocks in host memory, on a GPU: seconds of each part, on a synthetic corpus.

Goal, on one H200: 3.3e9 tokens, 397,312 words, window 10, about 1e9 distinct ordered pairs: 30 s or less. The matrix of
a slice is compared with that of the cores, bit for bit, and the sum of all counts with what the corpus must give.

The corpus: documents of 255 words; half of the words are of 300 that every document uses, half of the document's
topic, one of 1,000 with 1,000 words each; both by rank with probability about 1 / rank. `expected_pairs` says how many
distinct pairs that makes; the run says how many there were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common import keep, make_parser, parse_arguments, work_folder
from swivel.config import CountConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.block_layout import Layout
from swivel.counts.cooccurrence import count_tokens
from swivel.counts.cooccurrence.corpus_count import make_spec, survey_corpus, window_weights
from swivel.counts.cooccurrence.gpu.counter import DeviceCounter
from swivel.counts.shards import SATURATED, CellArrays
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT
from swivel.runtime.resources import count_cores
from swivel.storage.lock import remove_tree
from swivel.storage.manifest import read_manifest

MEASURES = (
    "swivel.counts.cooccurrence.gpu",
    "swivel.counts.block_layout",
    "swivel.counts.shards",
)
WORDS = 397_312
COMMON_WORDS, COMMON_SHARE = 300, 0.5
TOPICS, TOPIC_WORDS = 1_000, 1_000
DOCUMENT = 255  # words, then a break
SLICE_TOKENS = 4_000_000
CHUNK_DOCUMENTS = 1 << 17
CONFIG = CountConfig(window=10)


def draw_ranks(shape: tuple[int, int], size: int, generator: torch.Generator) -> torch.Tensor:
    """Return ranks below `size`, r with probability log((r + 2) / (r + 1)) / log(size + 1)."""
    uniform = torch.rand(shape, generator=generator, device=generator.device)
    return (torch.exp(uniform * math.log(size + 1)) - 1).long().clamp_(max=size - 1)


def make_documents(documents: int, generator: torch.Generator) -> torch.Tensor:
    """Return ids [documents, 256] as int32; a break is -1. Falling ranks have rising ids, as in a vocabulary."""
    shape = (documents, DOCUMENT + 1)
    width = (WORDS - COMMON_WORDS) // TOPIC_WORDS
    topics = torch.randint(TOPICS, (documents, 1), generator=generator, device=generator.device)
    ranks = draw_ranks(shape, TOPIC_WORDS, generator)
    mixed = (topics * 2_654_435_761 + ranks * 2_246_822_519) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 15) * 668_265_263) & 0xFFFFFFFF
    ids = COMMON_WORDS + ranks * width + (mixed >> 8) % width
    is_common = torch.rand(shape, generator=generator, device=generator.device) < COMMON_SHARE
    ids = torch.where(is_common, draw_ranks(shape, COMMON_WORDS, generator), ids)
    ids[:, -1] = -1
    return ids.int()


def make_corpus(tokens: int, device: str) -> NDArray[np.uint32]:
    """Return about so many tokens, made on the device, in host memory."""
    generator = torch.Generator(device).manual_seed(1)
    documents = -(-tokens // DOCUMENT)
    ids = np.empty((documents, DOCUMENT + 1), np.uint32)
    for first in range(0, documents, CHUNK_DOCUMENTS):
        part = ids[first : first + CHUNK_DOCUMENTS]
        torch.from_numpy(part.view(np.int32)).copy_(make_documents(len(part), generator))
    return ids.reshape(-1)


def _rank_bins(size: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return mean probability and number of the ranks in bins that grow with the rank."""
    ranks = np.arange(size)
    chances = np.log((ranks + 2) / (ranks + 1)) / np.log(size + 1)
    edges = np.unique(np.geomspace(1, size + 1, 400).astype(np.int64)) - 1
    sizes = np.diff(edges)
    return np.add.reduceat(chances, edges[:-1]) / sizes, sizes


def expected_pairs(tokens: int, window: int = CONFIG.window) -> float:
    """Return how many distinct ordered pairs arise, if draws are independent: the sum of 1 - exp(-mean) over cells.

    Kinds of cells: two common words; a common word and a word of some topics (as many as a Poisson number); two words
    of a topic.
    """
    draws = tokens * sum(2 - 2 * distance / DOCUMENT for distance in range(1, window + 1))
    (p, ps), (q, qs) = _rank_bins(COMMON_WORDS), _rank_bins(TOPIC_WORDS)

    def seen(one: NDArray[Any], ones: NDArray[Any], two: NDArray[Any], twos: NDArray[Any], mean: float) -> float:
        return float((np.outer(ones, twos) * -np.expm1(-mean * np.outer(one, two))).sum())

    width = (WORDS - COMMON_WORDS) // TOPIC_WORDS
    topics, mixed = TOPICS / width, 0.0
    for number in range(1, 30):
        chance = math.exp(-topics + number * math.log(topics) - math.lgamma(number + 1))
        mean = draws * COMMON_SHARE * (1 - COMMON_SHARE) * number / TOPICS
        mixed += 2 * width * chance * seen(p, ps, q, qs, mean)
    alike = seen(p, ps, p, ps, draws * COMMON_SHARE**2)
    return alike + mixed + TOPICS * seen(q, qs, q, qs, draws * (1 - COMMON_SHARE) ** 2 / TOPICS)


@dataclass(slots=True)
class Blocks:
    """What a count leaves in host memory: pieces in the order of the shards."""

    layout: Layout
    pieces: list[CellArrays]

    def shard_sums(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Yield shards, cells and units, piece by piece."""
        first = 0
        for piece in self.pieces:
            ends = np.cumsum(np.diff(piece.offsets[0]))
            running = np.concatenate([[0], np.cumsum(piece.counts, dtype=np.int64)])
            units = np.diff(running[np.concatenate([[0], ends])])
            shards = np.searchsorted(ends, piece.large_cells, side="right")
            np.add.at(units, shards, piece.large_counts - SATURATED)
            yield np.arange(first, first + len(ends)), np.diff(piece.offsets[0]), units
            first += len(ends)

    def totals(self) -> tuple[int, int, int]:
        """Return stored cells, cells with both mirrors, and their units."""
        stored = both = total = 0
        for shards, cells, units in self.shard_sums():
            is_diagonal = shards // self.layout.column_blocks == shards % self.layout.column_blocks
            times = np.where(is_diagonal, 1, 2)
            stored, both = stored + int(cells.sum()), both + int((times * cells).sum())
            total += int((times * units).sum())
        return stored, both, total


def copy_piece(piece: CellArrays) -> CellArrays:
    """Return a piece in memory of its own: what the counter hands on is used again."""
    return piece._replace(positions=piece.positions.copy(), counts=piece.counts.copy())


def count_in_memory(
    ids: NDArray[np.uint32], layout: Layout, device: str, memory: int | None
) -> tuple[Blocks, dict[str, float], DeviceCounter]:
    """Count as `count_tokens` does, but leave the blocks in host memory; seconds by part."""
    started = time.perf_counter()
    survey = survey_corpus(ids, WORDS, CONFIG, threads=count_cores())
    surveyed = time.perf_counter()
    config = replace(CONFIG, device_memory=None if memory is None else str(memory))
    counter = DeviceCounter(ids, layout, config, survey, RunOptions(memory=4 << 30), device)
    chunks = counter.chunks()
    if len(chunks) != 1:
        raise SystemExit(f"{ids.size:,} ids do not fit on {device}: the blocks of {len(chunks)} chunks need merging")
    pieces = [copy_piece(piece) for piece, _ in counter.count_chunk(*chunks[0])]
    seconds = {"total": time.perf_counter() - started, "survey": surveyed - started}
    return Blocks(layout, pieces), seconds, counter


def is_same_as_cores(ids: NDArray[np.uint32], vocabulary: Vocabulary, device: str) -> bool:
    """Count a slice on both, to disk, and compare every part of the two matrices."""
    parts = []
    for name in ("cpu", "cpu:0" if device == "cpu" else device):
        out = work_folder() / f"slice-{name.replace(':', '-')}"
        options = RunOptions(memory=4 << 30, overwrite=True, progress=SILENT)
        count_tokens(ids, vocabulary, replace(CONFIG, device=name), out, options)
        parts.append({name: part.sha256 for name, part in read_manifest(out).parts.items()})
        remove_tree(out)
    return parts[0] == parts[1]


def expected_units(documents: int) -> int:
    """Return the sum of all counts, both mirrors, in units: every document has as many pairs at each distance."""
    weights: list[int] = window_weights(CONFIG)[0].tolist()
    return documents * 2 * sum(weight * (DOCUMENT - distance) for distance, weight in enumerate(weights, 1))


def measure(tokens: int, device: str, memory: int | None = None) -> dict[str, Any]:
    """Make the corpus, check a slice, count it all, timed; return what was found."""
    vocabulary = Vocabulary([f"w{number}" for number in range(WORDS)], range(WORDS, 0, -1))
    layout = make_spec(vocabulary, CONFIG).layout()
    started = time.perf_counter()
    ids = make_corpus(tokens, device)
    made = time.perf_counter() - started
    places = min(ids.size, SLICE_TOKENS // DOCUMENT * (DOCUMENT + 1))
    same = is_same_as_cores(ids[:places], vocabulary, device)  # Compiles, too.
    is_cuda = device.startswith("cuda")
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    blocks, seconds, counter = count_in_memory(ids, layout, device, memory)
    stored, both, units = blocks.totals()
    words = int(ids.size - ids.size // (DOCUMENT + 1))
    return {
        "device": torch.cuda.get_device_name(device) if is_cuda else device,
        "pairs_written_by": counter.writer,
        "tokens": words,
        "seconds": seconds,
        "tokens_a_second": words / seconds["total"],
        "make_corpus_seconds": made,
        "stored_cells": stored,
        "distinct_ordered_pairs": both,
        "expected_ordered_pairs": expected_pairs(words),
        "slice_tokens": places,
        "slice_is_that_of_the_cores": same,
        "sum_of_counts_is_right": units == expected_units(ids.size // (DOCUMENT + 1)),
        "keys_at_a_time": counter.share.keys,
        "device_memory_peak_bytes": torch.cuda.max_memory_allocated(device) if is_cuda else None,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--tokens", type=float, default=3.3e9)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--memory", type=float, help="bytes of the device's memory; default: 90 %% of what is free")
    arguments = parse_arguments(parser, tokens=5_000, device="cpu", memory=100e6)

    memory = None if arguments.memory is None else int(arguments.memory)
    result = measure(int(arguments.tokens), arguments.device, memory)
    for part, seconds in result["seconds"].items():
        print(f"{part:>9} {seconds:8.2f} s")
    keep(arguments, result)


if __name__ == "__main__":
    main()
