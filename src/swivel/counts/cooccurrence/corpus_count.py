"""Count a corpus of token ids: plan, count chunk by chunk, build the matrix.

The plan is made from a survey of the corpus: the number of cells is extrapolated from a sample of rows whose columns
are counted exactly. Weights of the window are integers in units of 1 / unit. A word has one column, or several *parts*:
left and right, near and far.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.corpus.vocabulary import LazyVocabulary, Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.counts.block_layout import Ints, Layout
from swivel.counts.builder import STORED_BYTES
from swivel.counts.shards import RunFiles, make_piece
from swivel.errors import ConfigError, CountsError, MemoryBudgetError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT, Progress, Task, track
from swivel.runtime.resources import ResourceEstimate, format_estimate, may_use_cuda, release_freed_memory
from swivel.storage.arrays import random_reads

if TYPE_CHECKING:
    from swivel.counts.cooccurrence.gpu.counter import DeviceCounter
    from swivel.counts.cooccurrence.rows import ChunkCounter

_MIN_DEVICE_PLACES = 10_000_000  # a smaller corpus is counted before the device is ready
# The initialization of CUDA for some settings, in a thread: what made it fail is the exception of the future.
_WAKING: dict[CountConfig, Future[None]] = {}
# Held while an entry is looked up and replaced: two counts in threads of one process must not both compile kernels.
_WAKING_LOCK = threading.Lock()
_SAMPLE_TOKENS = 400_000
_MIN_PLACES = 4_096
_MAX_RUNS = 256  # merging visits every run for every row of every shard
_BLOCK_SHARE = 1.5  # cells of the largest row block of a chunk, compared with those of an average one
_MAX_PADDED = (1 << 32) - (1 << 20)  # places are uint32
_MAX_REACH = 1 << 40  # None, but distances stay integers of 64 bits. Texts are shorter, and what uses them cuts them.
_MAX_UNIT = 1 << 24
_BINARY_UNIT = 1 << 20  # unit of rounded weights, if the exact common unit is too large


def count_tokens(
    ids: NDArray[np.uint32],
    vocabulary: Vocabulary,
    config: CountConfig,
    path: Path,
    options: RunOptions,
    record: Mapping[str, Any] | None = None,
) -> Matrix:
    """Count co-occurrences and return the matrix, in the folder `path`. Memory, threads and device do not change it.

    `ids` are positions in `vocabulary`, BREAK between two units, and GAP for a token outside the vocabulary that keeps
    its place. `record` has the `config`, `inputs` and `facts` of the manifest; by default only `config`.

    Examples
    --------
    >>> import tempfile
    >>> ids = np.array([0, 1, 0, 0xFFFFFFFF, 1], np.uint32)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     path = Path(parent) / "matrix"
    ...     matrix = count_tokens(ids, Vocabulary(["a", "b"], [2, 2]), CountConfig(window=2), path, RunOptions())
    ...     matrix.count("a", "b"), matrix.count("a", "a")
    (2.0, 1.0)
    """
    if ids.dtype != np.uint32 or ids.ndim != 1:
        raise CountsError(f"ids must be a one-dimensional uint32 array, got {ids.dtype} with {ids.ndim} dimensions")

    ids = np.asarray(ids)
    spec = make_spec(vocabulary, config)
    layout = spec.layout()
    threads = options.thread_count
    survey = survey_corpus(ids, layout.rows, config, threads=threads)
    device = choose_device(config.device, ids.size)
    counter: ChunkCounter | DeviceCounter

    if device == "cpu":
        from swivel.counts.cooccurrence.rows import ChunkCounter

        plan = make_plan(layout, config, survey, threads=threads, memory=options.memory_bytes)
        announce_forecast(path, survey.cells, forecast_count(layout, survey, plan), options.progress)
        counter = ChunkCounter(ids, layout, config, plan)
    else:
        if (ready := _WAKING.get(config)) is not None:  # Two threads would compile the same kernels.
            wait([ready])
        from swivel.counts.cooccurrence.gpu.counter import DeviceCounter

        counter = DeviceCounter(ids, layout, config, survey, options, device)
        announce_forecast(path, survey.cells, counter.forecast(survey.cells), options.progress)
        options.progress.message(str(counter))

    with track(options.progress, "counting", survey.tokens, "tokens") as task:
        return build_matrix(counter, spec, path, options, record or {"config": config}, task)


def make_spec(vocabulary: Vocabulary, config: CountConfig) -> MatrixSpec:
    """Return the vocabularies, unit and column parts of the matrix that counting will build."""
    return MatrixSpec(
        rows=vocabulary,
        columns=column_vocabulary(vocabulary, config),
        unit=window_unit(config),
        symmetric=config.columns == "symmetric" and config.window_left == config.window_right,
        column_parts=part_names(config),
    )


def build_matrix(
    counter: ChunkCounter | DeviceCounter,
    spec: MatrixSpec,
    path: Path,
    options: RunOptions,
    record: Mapping[str, Any],
    task: Task,
) -> Matrix:
    """Count all chunks, each as a run of the builder, and return the matrix."""
    builder = MatrixBuilder(
        path, spec, memory_bytes=options.memory_bytes, threads=counter.threads, overwrite=options.overwrite
    )
    with builder:
        _count_chunks(counter, builder.runs, task)
        counter.release()  # merging the runs needs the memory
        release_freed_memory()
        return builder.finish(**record)


def _count_chunks(counter: ChunkCounter | DeviceCounter, runs: RunFiles, task: Task) -> None:
    for first, last in counter.chunks():
        with runs.run():
            for piece, tokens in counter.count_chunk(first, last):
                runs.append(piece)
                task.advance(tokens)


def count_part(
    ids: NDArray[np.uint32], layout: Layout, config: CountConfig, runs: RunFiles, *, memory_bytes: int
) -> None:
    """Count part of a corpus on one thread and write its runs, which the caller merges with those of other parts."""
    # The part must hold whole units, and `runs` all shards of the layout.
    from swivel.counts.cooccurrence.rows import ChunkCounter

    if not ids.size:
        lengths = np.zeros(layout.shards, np.int64)
        with runs.run():  # a run must have all shards, even if they are empty
            runs.append(make_piece(lengths, np.zeros(0, np.uint32), np.zeros(0, np.int64)))
        return

    ids = np.asarray(ids)
    survey = survey_corpus(ids, layout.rows, config, threads=1)
    plan = make_plan(layout, config, survey, threads=1, memory=memory_bytes)
    with track(SILENT, "counting", survey.tokens, "tokens") as task:
        _count_chunks(ChunkCounter(ids, layout, config, plan), runs, task)


def choose_device(device: str, places: int) -> str:
    """Return the device to count on; "auto" is CUDA if there is one and the corpus is large enough."""
    if device != "auto":
        return device
    if places < _MIN_DEVICE_PLACES or not may_use_cuda(device):
        return "cpu"

    import torch  # takes 100 MB of memory

    return "cuda" if torch.cuda.is_available() else "cpu"


def _wake_device(config: CountConfig, ready: Future[None]) -> None:
    from swivel.counts.cooccurrence.gpu.counter import open_device, warm_up

    try:
        open_device("cuda")
    except Exception as error:
        ready.set_exception(error)
        return
    # What fails here fails again, with a message, in use; an error that is kept would keep arrays on the device.
    with contextlib.suppress(Exception):
        warm_up("cuda", config)
    ready.set_result(None)


def prepare_device(config: CountConfig) -> Callable[[], None]:
    """Initialize CUDA in a background thread, or raise ConfigError if another device cannot be used."""
    # Importing torch, initializing CUDA and loading kernels takes seconds, in which the text can be read; a process
    # does it once for the same settings. Call the returned function repeatedly while reading: it raises ConfigError
    # once initializing the requested CUDA device has failed.
    if not may_use_cuda(config.device):
        if config.device not in ("auto", "cpu"):
            from swivel.counts.cooccurrence.gpu.counter import open_device

            open_device(config.device)
        return lambda: None

    with _WAKING_LOCK:
        ready = _WAKING.get(config)
        if ready is None or (ready.done() and ready.exception()):  # A device that failed may work by now.
            ready = _WAKING[config] = Future()
            # A daemon: a process that ends need not wait for it.
            threading.Thread(target=_wake_device, args=(config, ready), name="swivel-wake", daemon=True).start()

    def check() -> None:
        # Other errors are raised again, with a message, in use.
        if config.device == "cuda" and ready.done() and isinstance(ready.exception(), ConfigError):
            _WAKING.pop(config, None)  # An error holds what was on the stack when it was raised.
            ready.result()

    return check


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


def estimate_disk(cells: int, layout: Layout, chunks: int) -> tuple[float, int]:
    """Return the number of stored cells, and the bytes of disk that a count in several chunks needs."""
    stored = cells * (1 + 1 / layout.row_blocks) / 2 if layout.symmetric else cells
    # Several runs are on disk next to the matrix. Together they rarely have more than three times its cells.
    copies = 1 if chunks <= 1 else 1 + min(chunks, 3)
    return stored, int(STORED_BYTES * stored * copies)


def forecast_count(layout: Layout, survey: Survey, plan: CountPlan) -> tuple[int, int]:
    """Return the estimated disk and memory, in bytes, of counting with this plan."""
    _, disk = estimate_disk(survey.cells, layout, len(split_places(survey.places, plan.chunk_places)))
    return disk, _chunk_memory(layout, survey, plan)


def announce_forecast(path: Path, cells: int, forecast: tuple[int, int], progress: Progress) -> None:
    """Report disk and memory; raise StorageError or MemoryBudgetError if one of them is clearly too small."""
    disk, memory = forecast
    sizes = f"{format_estimate(disk)} on disk, {format_estimate(memory)} of memory"
    progress.message(f"about {cells:,} cells: {sizes}")

    # Runs are memory-mapped while they are merged, and the finished matrix is memory-mapped too.
    advice = "choose a smaller vocabulary (max_size, min_count)"
    ResourceEstimate("counting", disk, memory, disk, advice).check(path)


def window_unit(config: CountConfig) -> int:
    """Return the unit of the weights: the least common multiple of their denominators, or a power of 2 if too large."""
    sizes = (config.window_left, config.window_right)
    divisors: Iterable[int] = ()
    if config.weight == "harmonic":
        divisors = range(1, max(sizes) + 1)  # weights are 1/t for t = 1, 2, ...
    elif config.weight == "linear":
        divisors = [max(size, 1) for size in sizes]  # weights are multiples of 1/left and 1/right

    unit = 1
    for divisor in divisors:
        unit = math.lcm(unit, divisor)
        if unit > _MAX_UNIT:
            return _BINARY_UNIT
    return unit


def window_weights(config: CountConfig, reach: int = _MAX_REACH) -> tuple[Ints, Ints]:
    """Return the weights at distances 1, 2, ... on the left and on the right, in units, no farther than `reach`.

    >>> window_weights(CountConfig(window=3, right=5), reach=4)[1].tolist()
    [60, 30, 20, 15]
    """
    unit = window_unit(config)
    sides = []
    for size in (config.window_left, config.window_right):
        # Python integers where a window may be wider than any text: its distances are cut, but not its weights.
        distances = np.arange(1, min(size, reach) + 1)
        if config.weight == "harmonic":
            weights = (2 * unit + distances) // (2 * distances)  # 1 / t, rounded half up
        elif config.weight == "linear":
            exact = (
                (2 * unit * (size + 1 - t) + size) // (2 * size) for t in distances.tolist()
            )  # (size + 1 - t) / size
            weights = np.fromiter(exact, np.int64, distances.size)
        else:
            weights = np.full(distances.size, unit)
        sides.append(np.maximum(weights, 1).astype(np.int64))
    return sides[0], sides[1]


def part_names(config: CountConfig) -> tuple[str, ...]:
    """Return the names of the columns of a word, or () if the word itself is its only column.

    >>> part_names(CountConfig(columns="directional-bands"))
    ('left 1', 'left 2-10', 'right 1', 'right 2-10')
    """
    sides = ("left", "right") if config.is_directional else ("",)
    bands = [""]
    if config.has_bands:
        longest = max(config.window_left, config.window_right)
        bands = [_range_name(1, config.near), _range_name(config.near + 1, longest)]

    names = tuple(f"{side} {band}".strip() for side in sides for band in bands)
    return () if names == ("",) else names


def _range_name(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def place_parts(config: CountConfig, reach: int = _MAX_REACH) -> Ints:
    """Return the part of each place of the window, from left to right, no farther from its middle than `reach`."""
    places = np.arange(-min(config.window_left, reach), min(config.window_right, reach) + 1)
    parts = np.zeros(places.size, np.int64)
    if config.has_bands:
        parts += np.abs(places) > config.near
    if config.is_directional:
        parts += (places > 0) * (2 if config.has_bands else 1)
    return parts


def column_vocabulary(vocabulary: Vocabulary, config: CountConfig) -> Vocabulary | None:
    """Return the vocabulary of the columns, all parts of a word adjacent; None if columns are the rows.

    >>> column_vocabulary(Vocabulary(["the"], [3]), CountConfig(columns="directional")).tokens
    ('left:the', 'right:the')
    """
    names = part_names(config)
    if not names:
        return None

    # The labels of several columns per word take 300 bytes per word, so they are made when they are used.
    def lines() -> Iterator[str]:
        return (f"{name}:{line}" for line in vocabulary.to_lines() for name in names)

    return LazyVocabulary(lines, len(vocabulary) * len(names))
