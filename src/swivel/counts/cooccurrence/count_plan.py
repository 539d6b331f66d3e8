"""Plan a count: survey the corpus, estimate cells, disk, memory and time, and choose the size of the chunks.

The number of cells is extrapolated from a sample of rows whose columns are counted exactly.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.counts.block_layout import Layout
from swivel.counts.builder import STORED_BYTES
from swivel.counts.cooccurrence.windows import part_names, place_parts
from swivel.errors import CountsError, MemoryBudgetError
from swivel.runtime.progress import Progress
from swivel.runtime.resources import ResourceEstimate, format_bytes
from swivel.storage.npy import random_reads

_SAMPLE_TOKENS = 400_000
_MIN_PLACES = 4_096
_MAX_RUNS = 256  # merging visits every run for every row of every shard
_BLOCK_SHARE = 1.5  # cells of the largest row block of a chunk, compared with those of an average one
_MAX_PADDED = (1 << 32) - (1 << 20)  # places are uint32
# CPU time of one thread: indexing and adding per neighbor; emitting, writing and checking per cell. Fitted by hand to
# one corpus (65 M tokens, 98,304 words, symmetric and directional) on a 2-core Xeon; other machines differ.
_SECONDS_PER_NEIGHBOR = 6e-9
_SECONDS_PER_CELL = 6e-8
_SIZES = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


@dataclass(frozen=True, slots=True)
class Survey:
    """Sizes of a corpus of ids."""

    places: int
    tokens: int
    breaks: int
    longest: int  # length of the longest unit in places
    cells: int  # observed cells of the matrix, extrapolated from a sample of its rows


@dataclass(frozen=True, slots=True)
class CountPlan:
    """How the corpus is divided into chunks."""

    chunk_places: int  # places per chunk; each chunk becomes a run
    threads: int
    block_cells: int  # initial capacity for the cells of a row block
    left: int  # reach of the window; smaller than the configured window if no unit is that long
    right: int


def survey_corpus(ids: NDArray[np.uint32], words: int, config: CountConfig, *, threads: int) -> Survey:
    """Read all ids once and return their sizes, and the number of cells that they will have.

    Raises CountsError for an id that is not in the vocabulary of so many words.
    """
    from swivel.counts.cooccurrence import window_kernels as kernels

    # Every step-th word, from the most frequent to the rarest, so that the sample has words of all frequencies.
    step = max(1, min(ids.size // _SAMPLE_TOKENS, words // 64))
    is_sampled = np.zeros(words, np.bool_)
    is_sampled[min(step // 2, words - 1) :: step] = True
    edges = np.linspace(0, ids.size, threads + 1).astype(np.int64)
    buffers = [np.empty(8 * _SAMPLE_TOKENS // threads, np.int64) for _ in range(threads)]

    def survey(part: int) -> NDArray[np.int64]:
        piece = ids[edges[part] : edges[part + 1]]
        return kernels.survey_range(piece, np.uint32(words), is_sampled, buffers[part])  # type: ignore[no-any-return]

    with ThreadPoolExecutor(threads) as pool:
        surveys = list(pool.map(survey, range(threads)))

    tokens = breaks = longest = 0
    run = 0  # length so far of a unit that continues from one range into the next
    samples = []

    for start, buffer, row in zip(edges.tolist(), buffers, surveys, strict=False):
        part_tokens, part_breaks, head, inside, tail, sampled, wrong = row.tolist()
        if wrong >= 0:
            place = start + wrong
            raise CountsError(f"id {ids[place]} at place {place:,} of the corpus: the vocabulary has {words:,} words")

        tokens += part_tokens
        breaks += part_breaks
        longest = max(longest, run + head, inside)
        run = tail if part_breaks else run + tail
        samples.append(buffer[:sampled] + start)

    longest = max(longest, run)
    cells = _count_columns(ids, np.concatenate(samples), words, config, max(longest - 1, 1)) / is_sampled.mean()
    return Survey(int(ids.size), tokens, breaks, longest, int(cells))


def _count_columns(
    ids: NDArray[np.uint32], places: NDArray[np.int64], words: int, config: CountConfig, reach: int
) -> int:
    """Return the number of cells of the words at these places, which are all places where these words occur."""
    from swivel.counts.cooccurrence import window_kernels as kernels

    # By word: the columns of a word are counted exactly, and only the number of words is extrapolated.
    places = places[np.argsort(ids[places], kind="stable")]
    edges = np.flatnonzero(np.diff(ids[places].astype(np.int64), prepend=-1, append=-1)).tolist()
    stamps = np.zeros(words * max(len(part_names(config)), 1), np.int32)
    parts = place_parts(config, reach)
    left = min(config.window_left, reach)
    cells = 0

    # `ids` may be larger than memory: reading ahead would load pages that are not used.
    with random_reads(ids):
        for number, (first, last) in enumerate(pairwise(edges), 1):
            row = places[first:last]
            cells += kernels.sample_row(ids, row, parts, left, words, stamps, np.int32(number))

    return cells


def _chunk_memory(layout: Layout, survey: Survey, plan: CountPlan) -> int:
    from swivel.counts.cooccurrence.rows import accumulator_shape

    shape = accumulator_shape(layout, plan.left + plan.right)
    accumulators = shape.parts * shape.part_stride
    row_cells = max(plan.block_cells, accumulators)  # the capacity of a workspace is at least one row
    # Per accumulator: uint32 and int64 values and a sixteenth of a `touched` byte. Per cell: position and count.
    workspace = 13 * accumulators + 8 * layout.largest_rows * layout.column_blocks + 8 * row_cells
    tallies = 8 * (plan.threads + 1) * shape.blocks * shape.stride
    in_flight = (plan.threads + 1) * 8 * plan.block_cells
    padding = survey.breaks * max(plan.left, plan.right, 1) / max(survey.places, 1)
    index = math.ceil(4 * (2 + padding) * min(plan.chunk_places, survey.places))

    return plan.threads * workspace + tallies + in_flight + index + (2 << 20)


def make_plan(layout: Layout, config: CountConfig, survey: Survey, *, threads: int, memory: int) -> CountPlan:
    """Return a plan that stays within `memory` bytes, or raise MemoryBudgetError with the bytes needed."""
    # If memory is short, the plan has more and smaller chunks, up to `_MAX_RUNS`, and then fewer threads.
    left = min(config.window_left, max(survey.longest - 1, 1))
    right = min(config.window_right, max(survey.longest - 1, 1))
    max_block_cells = min(layout.largest_rows * layout.columns, int(1.3 * survey.cells / layout.row_blocks) + 1_024)

    def plan_chunks(places: int) -> CountPlan:
        # A chunk has at most as many cells as neighbors. Blocks with frequent words have more of them than others.
        neighbors = _BLOCK_SHARE * places * (left + right) / layout.row_blocks
        block_cells = min(max_block_cells, int(neighbors) + 1_024)
        return CountPlan(chunk_places=places, threads=threads, block_cells=block_cells, left=left, right=right)

    max_places = _MAX_PADDED // max(left, right, 1)
    min_places = max(min(max(_MIN_PLACES, -(-survey.places // _MAX_RUNS)), survey.places, max_places), 1)
    places = max(min(survey.places, max_places), min_places)
    while places > min_places and _chunk_memory(layout, survey, plan_chunks(places)) > memory:
        places = max(places * 15 // 16, min_places)

    plan = plan_chunks(places)
    needed = _chunk_memory(layout, survey, plan)
    if needed <= memory:
        return plan
    if threads > 1:
        return make_plan(layout, config, survey, threads=threads // 2, memory=memory)

    raise MemoryBudgetError(
        f"counting {layout.rows:,} x {layout.columns:,} features needs at least {needed / 2**20:,.1f} MiB of memory, "
        f"got {memory / 2**20:,.1f} MiB"
    )


def split_places(places: int, max_places: int) -> list[tuple[int, int]]:
    """Return the chunks of a corpus: as few ranges of about equal length as `max_places` allows.

    >>> split_places(10, 4)
    [(0, 3), (3, 6), (6, 10)]
    """
    count = -(-places // max_places)
    return list(pairwise(places * number // max(count, 1) for number in range(count + 1)))


def split_evenly(weights: NDArray[Any], parts: int) -> list[tuple[int, int]]:
    """Return at most `parts` ranges of indices that cover all weights, with about the same sum of weights.

    >>> split_evenly(np.array([3, 2, 1]), 2)
    [(0, 1), (1, 3)]
    """
    ends = np.cumsum(weights)
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts, side="left") + 1
    return list(pairwise(np.unique([0, *edges.tolist(), weights.size]).tolist()))


def estimate_disk(cells: int, layout: Layout, chunks: int) -> tuple[float, int]:
    """Return the number of stored cells, and the bytes of disk that a count in several chunks needs."""
    stored = cells * (1 + 1 / layout.row_blocks) / 2 if layout.symmetric else cells
    # Several runs are on disk next to the matrix. Together they rarely have more than three times its cells.
    copies = 1 if chunks <= 1 else 1 + min(chunks, 3)
    return stored, int(STORED_BYTES * stored * copies)


def forecast_count(layout: Layout, survey: Survey, plan: CountPlan) -> tuple[int, int, float]:
    """Return the estimated disk and memory, in bytes, and the seconds of counting with this plan."""
    chunks = len(split_places(survey.places, plan.chunk_places))
    stored, disk = estimate_disk(survey.cells, layout, chunks)

    neighbors = survey.tokens * (plan.left + plan.right + 1)
    seconds = (neighbors * _SECONDS_PER_NEIGHBOR + stored * _SECONDS_PER_CELL) / plan.threads
    if chunks > 1:
        seconds *= 1.6  # merging the runs

    return disk, _chunk_memory(layout, survey, plan), seconds


def announce_forecast(path: Path, cells: int, forecast: tuple[int, int, float], progress: Progress) -> None:
    """Report disk, memory and seconds; raise StorageError or MemoryBudgetError if one of them is clearly too small."""
    disk, memory, seconds = forecast
    size, letter = next((each for each in _SIZES if cells >= each[0]), (1, ""))
    number = f"{cells / size:.3g} {letter}" if letter else str(cells)
    costs = f"{format_bytes(disk)} on disk, {format_bytes(memory)} of memory, {max(seconds, 1):.0f} s"
    progress.message(f"about {number} cells: {costs}")

    # Runs are memory-mapped while they are merged, and the finished matrix is memory-mapped too.
    advice = "choose a smaller vocabulary (max_size, min_count)"
    ResourceEstimate("counting", disk, memory, disk, advice).check(path)
