"""What counting will cost, from a survey of the corpus and a sample of rows counted for real.

Receives ids and a configuration; hands on a `Forecast` (cells, disk, memory, seconds) and a `CountPlan` (how many tokens at
a time, in which blocks). It does not count.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.counts import STORED_BYTES
from swivel.counts.cooccurrence.windows import is_symmetric, part_names, place_parts
from swivel.counts.layout import Layout
from swivel.errors import CountsError, MemoryBudgetError
from swivel.runtime.estimates import ResourceEstimate
from swivel.runtime.progress import Progress
from swivel.runtime.resources import format_bytes

_SAMPLE_TOKENS = 400_000
_LEAST_PLACES = 4_096
_MOST_RUNS = 256  # merging looks at every run for every row of every shard
_MOST_PADDED = (1 << 32) - (1 << 20)  # places have 32 bits
# Of one thread, indexing and adding; emitting, writing and checking. Fitted by hand to the CPU seconds of one corpus
# (65 M tokens, 98,304 words, symmetric and directional) on one 2-core Xeon: another machine will differ.
_SECONDS_A_NEIGHBOUR = 6e-9
_SECONDS_A_CELL = 6e-8


@dataclass(frozen=True, slots=True)
class Survey:
    """What a corpus of ids holds; `longest` is the longest unit, in places. The sample is sorted by word."""

    places: int
    tokens: int
    breaks: int
    longest: int
    sampled_words: NDArray[np.int64]
    sampled_places: NDArray[np.int64]
    sampled_share: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What counting will take."""

    cells: int
    disk_bytes: int
    memory_bytes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"about {_round_count(self.cells)} cells: {format_bytes(self.disk_bytes)} on disk, "
            f"{format_bytes(self.memory_bytes)} of memory, {max(self.seconds, 1):.0f} s"
        )


@dataclass(frozen=True, slots=True)
class CountPlan:
    """How the work is cut.

    Attributes
    ----------
    chunk_places
        Places of the corpus that are counted together; each chunk is a run.
    threads
        How many work.
    block_cells
        Cells of a row block to make room for at first.
    left, right
        Places of the window that any two tokens can have between them; less than the window where no unit is as long.
    """

    chunk_places: int
    threads: int
    block_cells: int
    left: int
    right: int


def _round_count(count: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return str(count)


def survey_corpus(ids: NDArray[np.uint32], words: int, *, threads: int) -> Survey:
    """Read all ids once: sizes, wrong ids, and where the words of a sample occur."""
    from swivel.counts.cooccurrence import kernels

    step = max(1, min(ids.size // _SAMPLE_TOKENS, words // 64))
    is_sampled = np.zeros(words, np.bool_)
    is_sampled[min(step // 2, words - 1) :: step] = True
    edges = np.linspace(0, ids.size, threads + 1).astype(np.int64)
    rooms = [np.empty(8 * _SAMPLE_TOKENS // threads, np.int64) for _ in range(threads)]

    def survey(part: int) -> NDArray[np.int64]:
        piece = ids[edges[part] : edges[part + 1]]
        return kernels.survey_range(piece, np.uint32(words), is_sampled, rooms[part])  # type: ignore[no-any-return]

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(survey, range(threads)))
    for part, row in enumerate(found):
        if row[6] >= 0:
            place = int(edges[part] + row[6])
            raise CountsError(f"id {ids[place]} at place {place:,} of the corpus: the vocabulary has {words:,} words")
    places = np.concatenate([room[: row[5]] + edge for room, row, edge in zip(rooms, found, edges, strict=False)])
    return _join_survey(np.array(found), ids, is_sampled, places)


def _join_survey(
    found: NDArray[np.int64], ids: NDArray[np.uint32], is_sampled: NDArray[np.bool_], places: NDArray[np.int64]
) -> Survey:
    longest = run = 0
    for _, breaks, head, inside, tail, _, _ in found.tolist():
        longest = max(longest, run + head, inside)
        run = tail if breaks else run + tail
    order = np.argsort(ids[places], kind="stable")
    share = float(is_sampled.sum() / is_sampled.size)
    return Survey(
        places=int(ids.size),
        tokens=int(found[:, 0].sum()),
        breaks=int(found[:, 1].sum()),
        longest=max(longest, run),
        sampled_words=ids[places[order]].astype(np.int64),
        sampled_places=places[order],
        sampled_share=share,
    )


def sample_cells(ids: NDArray[np.uint32], words: int, config: CountConfig, survey: Survey) -> int:
    """Return the observed cells of the whole matrix, extrapolated from the sampled rows."""
    from swivel.counts.cooccurrence import kernels

    stamps = np.zeros(words * max(len(part_names(config)), 1), np.int32)
    parts = place_parts(config)
    edges = np.flatnonzero(np.diff(survey.sampled_words, prepend=-1, append=-1))
    distinct = 0
    for number, (first, last) in enumerate(pairwise(edges.tolist()), 1):
        places = survey.sampled_places[first:last]
        distinct += kernels.sample_row(ids, places, parts, config.window_left, words, stamps, np.int32(number))
    return int(distinct / survey.sampled_share)


@dataclass(frozen=True, slots=True)
class _Costs:
    """Bytes of memory: what any chunk needs, and what each place of it adds."""

    fixed: int
    a_place: float


def _estimate_costs(layout: Layout, survey: Survey, plan: CountPlan) -> _Costs:
    from swivel.counts.cooccurrence.rows import accumulator_shape

    shape = accumulator_shape(layout, plan.left + plan.right)
    accumulators = shape.parts * shape.part_stride
    workspace = 13 * accumulators + 8 * layout.largest_rows * layout.column_blocks + 8 * plan.block_cells
    tallies = 8 * (plan.threads + 1) * shape.blocks * shape.stride
    in_flight = (plan.threads + 1) * 8 * plan.block_cells
    padding = survey.breaks * max(plan.left, plan.right, 1) / max(survey.places, 1)
    return _Costs(plan.threads * workspace + tallies + in_flight + (2 << 20), 4 * (2 + padding))


def make_plan(
    layout: Layout, config: CountConfig, survey: Survey, cells: int, *, threads: int, memory: int
) -> CountPlan:
    """Return how to count inside `memory` bytes, or raise MemoryBudgetError with what is needed.

    Where memory is short there are more runs, up to `_MOST_RUNS`; then fewer threads, whose room the runs get.
    """
    most = layout.largest_rows * layout.columns
    plan = CountPlan(
        chunk_places=0,
        threads=threads,
        block_cells=min(most, int(1.3 * cells / layout.row_blocks) + 1_024),
        left=min(config.window_left, max(survey.longest - 1, 1)),
        right=min(config.window_right, max(survey.longest - 1, 1)),
    )
    costs = _estimate_costs(layout, survey, plan)
    most_places = _MOST_PADDED // max(plan.left, plan.right, 1)
    least_places = min(max(_LEAST_PLACES, -(-survey.places // _MOST_RUNS)), survey.places, most_places)
    chunk = int((memory - costs.fixed) / costs.a_place)
    if chunk >= max(least_places, 1):
        return replace(plan, chunk_places=min(chunk, most_places))
    if threads > 1:
        return make_plan(layout, config, survey, cells, threads=threads // 2, memory=memory)
    needed = costs.fixed + math.ceil(costs.a_place * max(least_places, 1))
    raise MemoryBudgetError(
        f"counting {layout.rows:,} x {layout.columns:,} features needs {needed / 2**20:,.1f} MiB of memory or more, "
        f"got {memory / 2**20:,.1f} MiB"
    )


def forecast_count(layout: Layout, config: CountConfig, survey: Survey, cells: int, plan: CountPlan) -> Forecast:
    """Return what counting with this plan will take."""
    costs = _estimate_costs(layout, survey, plan)
    chunks = -(-survey.places // plan.chunk_places)
    stored = cells * (1 + 1 / layout.row_blocks) / 2 if is_symmetric(config) else cells
    # Runs are on disk beside the matrix; each has fewer cells than it, all together rarely more than thrice as many.
    disk = STORED_BYTES * stored * (1 if chunks == 1 else 1 + min(chunks, 3))
    neighbours = survey.tokens * (plan.left + plan.right + 1)
    seconds = (neighbours * _SECONDS_A_NEIGHBOUR + stored * _SECONDS_A_CELL) / plan.threads
    memory = costs.fixed + costs.a_place * min(plan.chunk_places, survey.places)
    return Forecast(cells, int(disk), int(memory), seconds * (1 if chunks == 1 else 1.6))


def announce_forecast(path: Path, forecast: Forecast, progress: Progress) -> None:
    """Say what counting will take; raise StorageError or MemoryBudgetError where there is clearly no room."""
    progress.message(str(forecast))
    advice = "choose a smaller vocabulary (--max-size, --min-count)"
    # Runs are mapped while they are merged, and the matrix in the end.
    ResourceEstimate("counting", forecast.disk_bytes, forecast.memory_bytes, forecast.disk_bytes, advice).check(path)
