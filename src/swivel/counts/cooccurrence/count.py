"""Count a corpus of token ids: plan, count chunk by chunk, build the matrix."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.counts.cooccurrence.plan import (
    CountPlan,
    Forecast,
    Survey,
    announce_forecast,
    forecast_count,
    make_plan,
    sample_cells,
    survey_corpus,
)
from swivel.counts.cooccurrence.windows import column_vocabulary, is_symmetric, part_names, window_weights
from swivel.counts.layout import Layout
from swivel.counts.shards import RunFiles, make_piece
from swivel.errors import CountsError
from swivel.runtime.parallel import map_in_order
from swivel.runtime.progress import SILENT, Progress, Task, track

if TYPE_CHECKING:
    from swivel.counts.cooccurrence.gpu.counter import DeviceCounter
    from swivel.counts.cooccurrence.rows import ChunkCounter

_CUDA_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # one of them exists if CUDA does, on Linux and WSL
_MIN_DEVICE_PLACES = 10_000_000  # a smaller corpus is counted before the device is ready
_PIECE_BYTES_PER_CELL = 64  # position and count of the up to four pieces in flight, with a margin


@dataclass(frozen=True, slots=True, kw_only=True)
class CountJob:
    """Output folder and resources of a count.

    Attributes
    ----------
    path
        Folder of the matrix.
    memory_bytes
        Memory budget, without memory-mapped files and the interpreter itself.
    threads
        Number of CPU threads.
    inputs
        Fingerprints of the sources of the ids, for the manifest.
    settings
        Configuration of all stages, for the manifest; by default that of counting alone.
    device
        "cpu" counts on all threads; a torch device such as "cuda" counts by sorting on that device.
    device_memory
        Memory budget on the device in bytes; None for 90 % of the free memory.
    """

    path: Path
    memory_bytes: int = 1 << 30
    threads: int = 1
    overwrite: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    device_memory: int | None = None


def count_tokens(
    ids: NDArray[np.uint32], vocabulary: Vocabulary, config: CountConfig, job: CountJob, *, progress: Progress = SILENT
) -> Matrix:
    """Count co-occurrences and return the matrix. The result does not depend on memory, threads or device.

    Parameters
    ----------
    ids
        The corpus, uint32: positions in `vocabulary`; 0xFFFFFFFF between two units, which no window crosses; 0xFFFFFFFE
        for a token outside the vocabulary that keeps its place.
    vocabulary, config
        Words of the rows, and the settings of the window.
    job
        Output folder, memory, threads and device.

    Examples
    --------
    >>> import tempfile
    >>> ids = np.array([0, 1, 0, 0xFFFFFFFF, 1], np.uint32)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     job = CountJob(path=Path(parent) / "matrix")
    ...     matrix = count_tokens(ids, Vocabulary(["a", "b"], [2, 2]), CountConfig(window=2), job)
    ...     matrix.count("a", "b"), matrix.count("a", "a")
    (2.0, 1.0)
    """
    ids = _check_ids(ids)
    spec = make_spec(vocabulary, config)
    if job.device != "cpu":
        return _count_on_device(ids, spec, config, job, progress)

    prepared = _prepare(ids, spec.layout(), config, threads=job.threads, memory_bytes=job.memory_bytes)
    announce_forecast(job.path, prepared.forecast, progress)
    with track(progress, "counting", prepared.survey.tokens, "tokens") as task:
        return count_with_plan(ids, spec, config, job, plan=prepared.plan, task=task)


def choose_device(asked: str, places: int) -> str:
    """Return the device to count on; "auto" is CUDA if there is one and the corpus is large enough.

    >>> choose_device("auto", 100), choose_device("cuda:1", 100)
    ('cpu', 'cuda:1')
    """
    if asked != "auto":
        return asked
    if places < _MIN_DEVICE_PLACES:
        return "cpu"

    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(name: str) -> None:
    """Raise ConfigError if a device cannot be used for counting."""
    from swivel.counts.cooccurrence.gpu.counter import open_device

    open_device(name)


def wake_device(asked: str) -> None:
    """Import torch and initialize a CUDA device in a background thread, because it takes seconds."""
    if asked == "cpu" or not any(Path(device).exists() for device in _CUDA_DEVICES):
        return

    def wake() -> None:
        with contextlib.suppress(Exception):  # errors are reported when the device is used
            import torch

            torch.zeros(1, device="cuda" if asked == "auto" else asked)

    threading.Thread(target=wake, name="swivel-wake", daemon=True).start()


def forecast(
    ids: NDArray[np.uint32], vocabulary: Vocabulary, config: CountConfig, *, memory_bytes: int, threads: int = 1
) -> Forecast:
    """Return the estimated cells, disk space, memory and time of a count, without counting."""
    layout = make_spec(vocabulary, config).layout()
    return _prepare(_check_ids(ids), layout, config, threads=threads, memory_bytes=memory_bytes).forecast


def make_spec(vocabulary: Vocabulary, config: CountConfig) -> MatrixSpec:
    """Return the vocabularies, unit and column parts of the matrix that counting will build."""
    return MatrixSpec(
        rows=vocabulary,
        columns=column_vocabulary(vocabulary, config),
        unit=window_weights(config).unit,
        symmetric=is_symmetric(config),
        column_parts=part_names(config),
    )


def _check_ids(ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
    if ids.dtype != np.uint32 or ids.ndim != 1:
        raise CountsError(f"ids must be a one-dimensional uint32 array, got {ids.dtype} with {ids.ndim} dimensions")
    return np.asarray(ids)


@dataclass(frozen=True, slots=True)
class _Prepared:
    survey: Survey
    plan: CountPlan
    forecast: Forecast


def _prepare(
    ids: NDArray[np.uint32], layout: Layout, config: CountConfig, *, threads: int, memory_bytes: int
) -> _Prepared:
    survey = survey_corpus(ids, layout.rows, threads=threads)
    cells = sample_cells(ids, layout.rows, config, survey)
    plan = make_plan(layout, config, survey, cells, threads=threads, memory=memory_bytes)
    return _Prepared(survey, plan, forecast_count(layout, config, survey, cells, plan))


def count_with_plan(
    ids: NDArray[np.uint32], spec: MatrixSpec, config: CountConfig, job: CountJob, *, plan: CountPlan, task: Task
) -> Matrix:
    """Count chunk by chunk and return the matrix; each chunk is a run of the builder."""
    builder = MatrixBuilder(
        job.path, spec, memory_bytes=job.memory_bytes, threads=plan.threads, overwrite=job.overwrite
    )
    with builder:
        count_chunks(ids, builder.layout, config, plan=plan, begin_run=builder.begin_run, task=task)
        return builder.finish(config=job.settings or config, inputs=job.inputs)


def count_chunks(
    ids: NDArray[np.uint32],
    layout: Layout,
    config: CountConfig,
    *,
    plan: CountPlan,
    begin_run: Callable[[], AbstractContextManager[RunFiles]],
    task: Task,
) -> None:
    """Count chunk by chunk; each chunk is written to a run opened by `begin_run`."""
    from swivel.counts.cooccurrence.rows import ChunkCounter

    counter = ChunkCounter(ids, layout, config, plan)
    for first, last in _split_places(ids.size, plan.chunk_places):
        _count_chunk(counter, begin_run, first, last, task)


def count_part(
    ids: NDArray[np.uint32], layout: Layout, config: CountConfig, runs: RunFiles, *, memory_bytes: int
) -> int:
    """Count part of a corpus on one thread, write its runs and return its number of tokens.

    The part must hold whole units, and `runs` all shards of the layout. The caller merges the runs of all parts.
    """
    if not ids.size:
        lengths = np.zeros(layout.shards, np.int64)
        with runs.run():  # a run must have all shards, even if they are empty
            runs.append(make_piece(lengths, np.zeros(0, np.uint32), np.zeros(0, np.int64)))
        return 0

    prepared = _prepare(_check_ids(ids), layout, config, threads=1, memory_bytes=memory_bytes)
    with track(SILENT, "counting", prepared.survey.tokens, "tokens") as task:
        count_chunks(ids, layout, config, plan=prepared.plan, begin_run=runs.run, task=task)

    return prepared.survey.tokens


def _split_places(places: int, max_places: int) -> Iterator[tuple[int, int]]:
    """Yield the smallest number of about equal ranges of at most `max_places` places."""
    chunks = -(-places // max_places)
    for number in range(chunks):
        yield places * number // chunks, places * (number + 1) // chunks


def _count_chunk(
    counter: ChunkCounter,
    begin_run: Callable[[], AbstractContextManager[RunFiles]],
    first: int,
    last: int,
    task: Task,
) -> None:
    index = counter.make_index(first, last)
    tokens = np.diff(index.starts[:: counter.shape.stride])  # of each row block

    with begin_run() as run:
        blocks = range(counter.layout.row_blocks)
        # Threads count the blocks; pieces arrive in order, because a run is written shard by shard.
        pieces = map_in_order(partial(counter.count_block, index), blocks, threads=counter.plan.threads)
        for block, piece in zip(blocks, pieces, strict=True):
            run.append(piece)
            task.advance(int(tokens[block]))


def _count_on_device(
    ids: NDArray[np.uint32], spec: MatrixSpec, config: CountConfig, job: CountJob, progress: Progress
) -> Matrix:
    """Count on `job.device`, after announcing the forecast and the device."""
    from swivel.counts.cooccurrence.gpu.counter import DeviceCounter, DeviceCountOptions

    layout = spec.layout()
    survey = survey_corpus(ids, layout.rows, threads=job.threads)
    options = DeviceCountOptions(
        device=job.device,
        memory_bytes=job.device_memory,
        piece_cells=max(1, job.memory_bytes // _PIECE_BYTES_PER_CELL),
        threads=job.threads,
    )
    counter = DeviceCounter(ids, layout, config, options, longest=survey.longest)

    expected = counter.forecast(sample_cells(ids, layout.rows, config, survey))
    announce_forecast(job.path, expected, progress)
    progress.message(str(counter))

    with track(progress, "counting", survey.tokens, "tokens") as task:
        return count_with_device(counter, spec, config, job, tokens=survey.tokens, task=task)


def count_with_device(
    counter: DeviceCounter, spec: MatrixSpec, config: CountConfig, job: CountJob, *, tokens: int, task: Task
) -> Matrix:
    """Count chunk by chunk on a device and return the matrix; each chunk is a run of the builder."""
    reported = 0  # tokens of which the progress bar knows
    builder = MatrixBuilder(job.path, spec, memory_bytes=job.memory_bytes, threads=job.threads, overwrite=job.overwrite)

    with builder:
        for first, last in counter.chunks():
            with builder.begin_run() as run:
                for counted in counter.count_chunk(first, last):
                    run.append(counted.piece)
                    # Tokens are not counted per group; progress is proportional to the estimated pairs.
                    places = last if counted.done == 1 else first + int(counted.done * (last - first))
                    done = tokens * places // counter.ids.size
                    task.advance(done - reported)
                    reported = done

        counter.release()
        return builder.finish(config=job.settings or config, inputs=job.inputs)
