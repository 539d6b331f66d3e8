"""Count a corpus of token ids: plan, count chunk by chunk, build the matrix."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.counts.block_layout import Layout
from swivel.counts.cooccurrence.count_plan import announce_forecast, forecast_count, make_plan, survey_corpus
from swivel.counts.cooccurrence.windows import column_vocabulary, part_names, window_unit
from swivel.counts.shards import RunFiles, make_piece
from swivel.errors import ConfigError, CountsError
from swivel.runtime.options import RunOptions
from swivel.runtime.parallel import short_turns
from swivel.runtime.progress import SILENT, Task, track
from swivel.runtime.resources import may_use_cuda, release_freed_memory

if TYPE_CHECKING:
    from swivel.counts.cooccurrence.gpu.counter import DeviceCounter
    from swivel.counts.cooccurrence.rows import ChunkCounter

_MIN_DEVICE_PLACES = 10_000_000  # a smaller corpus is counted before the device is ready


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
        if config in _WAKING:  # Two threads would compile the same kernels.
            wait([_WAKING[config]])
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


# The initialization of CUDA for some settings, in a thread: what made it fail is the exception of the future.
_WAKING: dict[CountConfig, Future[None]] = {}
# Held while an entry is looked up and replaced: two counts in threads of one process must not both compile kernels.
_WAKING_LOCK = threading.Lock()


def _wake_device(config: CountConfig, ready: Future[None]) -> None:
    try:
        with short_turns():
            from swivel.counts.cooccurrence.gpu.counter import open_device, warm_up

            open_device("cuda")
            warm_up("cuda", config)
    except BaseException as error:
        ready.set_exception(error)
    else:
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
