"""Tokens to a matrix: plan, count chunk by chunk, build."""

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

_CUDA_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # one is there where CUDA is, on Linux and in its Windows subsystem
_WORTH_A_DEVICE = 10_000_000  # places of a corpus: less is counted by the time a device is ready
_PIECE_BYTES_A_CELL = 64  # position and count, in the four pieces that may be under way, and room to spare


@dataclass(frozen=True, slots=True, kw_only=True)
class CountJob:
    """Where the counts go and what counting may use.

    Attributes
    ----------
    path
        Folder of the matrix.
    memory_bytes
        What counting may take, mapped files and the interpreter itself apart.
    threads
        How many work at a time.
    inputs
        Fingerprints of what the ids were made from, for the manifest.
    settings
        The whole configuration of the job, for the manifest; by default that of the counting alone.
    device
        "cpu": all cores. Another name that torch knows, such as "cuda": by sorting on that device.
    device_memory
        What counting may take of the device's own memory; None: 90 % of what is free.
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
    """Count co-occurrences and return the matrix, which is the same whatever memory, threads and device.

    Parameters
    ----------
    ids
        The corpus, uint32: positions in `vocabulary`; 0xFFFFFFFF between two units, which no window crosses; 0xFFFFFFFE
        for a token that keeps its place and is nobody.

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
    """Return the device to count on: `auto` takes CUDA where there is one and the corpus is worth its start.

    >>> choose_device("auto", 100), choose_device("cuda:1", 100)
    ('cpu', 'cuda:1')
    """
    if asked != "auto":
        return asked
    if places < _WORTH_A_DEVICE:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(name: str) -> None:
    """Raise ConfigError where a device cannot be used."""
    from swivel.counts.cooccurrence.gpu.counter import open_device

    open_device(name)


def wake_device(asked: str) -> None:
    """Load torch and wake a CUDA device in the background, which takes seconds; do nothing where there is none."""
    if asked == "cpu" or not any(Path(device).exists() for device in _CUDA_DEVICES):
        return

    def wake() -> None:
        with contextlib.suppress(Exception):  # whatever is wrong is told when the device is used
            import torch

            torch.zeros(1, device="cuda" if asked == "auto" else asked)

    threading.Thread(target=wake, name="swivel-wake", daemon=True).start()


def forecast(
    ids: NDArray[np.uint32], vocabulary: Vocabulary, config: CountConfig, *, memory_bytes: int, threads: int = 1
) -> Forecast:
    """Return what counting would take: cells, disk, memory, seconds."""
    layout = make_spec(vocabulary, config).layout()
    return _prepare(_check_ids(ids), layout, config, threads=threads, memory_bytes=memory_bytes).forecast


def make_spec(vocabulary: Vocabulary, config: CountConfig) -> MatrixSpec:
    """Return what the matrix is of: vocabularies, unit, parts of the columns."""
    return MatrixSpec(
        rows=vocabulary,
        columns=column_vocabulary(vocabulary, config),
        unit=window_weights(config).unit,
        symmetric=is_symmetric(config),
        column_parts=part_names(config),
    )


def _check_ids(ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
    if ids.dtype != np.uint32 or ids.ndim != 1:
        raise CountsError(f"ids must be a list of uint32, got {ids.dtype} of {ids.ndim} dimensions")
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
    """Count chunk by chunk as planned, each a run of the builder."""
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
    """Count chunk by chunk as planned, each a run of whoever gathers them."""
    from swivel.counts.cooccurrence.rows import ChunkCounter

    counter = ChunkCounter(ids, layout, config, plan)
    for first, last in _split_places(ids.size, plan.chunk_places):
        _count_chunk(counter, begin_run, first, last, task)


def count_part(
    ids: NDArray[np.uint32], layout: Layout, config: CountConfig, runs: RunFiles, *, memory_bytes: int
) -> int:
    """Count a part of a corpus on one thread, as runs that somebody else merges with other parts'; return its tokens.

    The part holds whole units, and `runs` all shards of the layout.
    """
    if not ids.size:
        nothing = np.zeros(0, np.int64)
        with runs.run():
            runs.append(make_piece(np.zeros(layout.shards, np.int64), nothing.astype(np.uint32), nothing))
        return 0
    prepared = _prepare(_check_ids(ids), layout, config, threads=1, memory_bytes=memory_bytes)
    with track(SILENT, "counting", prepared.survey.tokens, "tokens") as task:
        count_chunks(ids, layout, config, plan=prepared.plan, begin_run=runs.run, task=task)
    return prepared.survey.tokens


def _split_places(places: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the fewest ranges of at most `most` places, about equal."""
    chunks = -(-places // most)
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
    stride = counter.shape.stride
    tokens = np.diff(index.starts[::stride])
    with begin_run() as run:
        blocks = range(counter.layout.row_blocks)
        pieces = map_in_order(partial(counter.count_block, index), blocks, threads=counter.plan.threads)
        for block, piece in zip(blocks, pieces, strict=True):
            run.append(piece)
            task.advance(int(tokens[block]))


def _count_on_device(
    ids: NDArray[np.uint32], spec: MatrixSpec, config: CountConfig, job: CountJob, progress: Progress
) -> Matrix:
    """Count on the job's device; what that is and does is told before it begins."""
    from swivel.counts.cooccurrence.gpu.counter import DeviceCounter, DeviceCountOptions

    layout = spec.layout()
    survey = survey_corpus(ids, layout.rows, threads=job.threads)
    options = DeviceCountOptions(
        device=job.device,
        memory_bytes=job.device_memory,
        piece_cells=max(1, job.memory_bytes // _PIECE_BYTES_A_CELL),
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
    """Count chunk by chunk on a device, each chunk a run of the builder."""
    told = 0
    builder = MatrixBuilder(job.path, spec, memory_bytes=job.memory_bytes, threads=job.threads, overwrite=job.overwrite)
    with builder:
        for first, last in counter.chunks():
            with builder.begin_run() as run:
                for counted in counter.count_chunk(first, last):
                    run.append(counted.piece)
                    places = last if counted.done == 1 else first + int(counted.done * (last - first))
                    done = tokens * places // counter.ids.size
                    task.advance(done - told)
                    told = done
        counter.release()
        return builder.finish(config=job.settings or config, inputs=job.inputs)
