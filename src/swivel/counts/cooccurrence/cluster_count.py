"""Count a corpus on a Ray cluster. The matrix is identical, bit for bit, to that of one machine.

There are three rounds of tasks: read every range of the corpus, to choose the vocabulary; count every range and put its
cells into the object store, split by groups of shards; merge every group into a folder. `MatrixBuilder` joins the
groups. The corpus and the folder of the matrix must be on storage that all nodes share.

Each task returns its result through the object store and leaves no files on its node. Ray repeats the tasks of a lost
node on any other node, with the same result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from swivel._version import __version__
from swivel.config import CorpusConfig, CountConfig, VocabularyConfig
from swivel.corpus.encoded_corpus import EncodedCorpus, PackedTypes, TypeCounts, encode_corpus
from swivel.corpus.joined_corpus import JoinedCorpus, join_corpus
from swivel.corpus.sources import TextFile, files_of, is_pipe, text_size
from swivel.corpus.streams import FileRange, cut_files, group_ranges, open_range
from swivel.corpus.vocabulary import Vocabulary, check_units, choose_vocabulary, describe_text
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.counts.block_layout import Layout
from swivel.counts.cooccurrence.corpus_count import count_part, make_spec
from swivel.counts.shards import CellArrays, RunFiles, gather_runs, merge_runs, open_cells, split_evenly
from swivel.errors import ClusterError, ConfigError, CorpusError, MemoryBudgetError
from swivel.runtime.numbers import plural
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import track
from swivel.runtime.ray import IDLE_SECONDS, Node, await_nodes, connect, fetch, load_ray, take_results
from swivel.runtime.resources import format_bytes
from swivel.storage.files import place_folder
from swivel.storage.lock import remove_tree, scratch_folder

# Bytes of text per task.
MIN_PIECE_BYTES = 8 << 20
MAX_PIECE_BYTES = 256 << 20
PIECES_PER_CORE = 4  # several, so that no core waits long for the last task
GROUPS_PER_CORE = 2
MAX_GROUPS = 128
TABLES_PER_MERGE = 16  # tables of types that one task merges
_CHOICE_BYTES = 1 << 30  # memory of the task that chooses the vocabulary
MIN_BYTES_PER_SECOND = 200_000  # slowest reading speed at which a task is not considered stuck
MIN_TASK_MEMORY = 256 << 20
RETRIES = 20  # per task, if its node or process is lost
MAX_RUNS = 64  # per merge: merging visits every run for every row of every shard


def count_on_ray(
    texts: Any,
    path: Path,
    stages: tuple[CorpusConfig, VocabularyConfig, CountConfig],
    listed: tuple[str, ...] | None,
    phrases: tuple[str, ...] | None,
    record: Mapping[str, Mapping[str, Any]],
    options: RunOptions,
) -> Matrix:
    """Count text in files on the cluster at `options.ray` and return the matrix, in the shared folder `path`.

    `stages` are the settings of reading, of the vocabulary and of the window, `listed` the tokens of a vocabulary file
    and `phrases` those of a list, if there is one. `record` has the config, inputs and facts of the manifest. The
    budget of one task is `options.memory`.
    """
    corpus, choice, count = stages
    found = files_of(texts)
    if found is None or any(map(is_pipe, found)):
        raise ConfigError("counting on Ray reads files; save text from memory or from a pipe to a file first")
    if count.device not in ("auto", "cpu"):
        raise ConfigError(
            f"counting on Ray runs on CPU cores, got device={count.device!r}; omit device", argument="device"
        )

    files = [file.absolute() if isinstance(file, Path) else file for file in found]
    with connect(str(options.ray), cores=options.threads) as ray, scratch_folder(path.absolute()) as shared:
        counter = _RayCounter(ray, TextReading(config=corpus, shared=shared, phrases=phrases), options)
        pieces = counter.cut(files)
        spec = make_spec(counter.choose_vocabulary(pieces, choice, listed), count)
        groups = cut_groups(spec.layout(), min(GROUPS_PER_CORE * counter.cores, MAX_GROUPS))
        cells = counter.count(pieces, spec, count, groups)
        return counter.build(path, spec, groups, cells, record)


class _RayCounter:
    """Submits the tasks of one count and collects their results."""

    def __init__(self, ray: Any, reading: TextReading, options: RunOptions) -> None:
        self.ray = ray
        self.options = options
        self.progress = options.progress
        self.reading = reading
        # Large objects are sent once per node, not once per task.
        self.shared_reading = ray.put(reading)

        nodes = await_nodes(ray)
        self.cores = max(1, int(sum(node.cores for node in nodes)))
        core_share = min(int(node.memory_bytes / node.cores) for node in nodes)
        self.memory_bytes = _task_memory(options, nodes, core_share)
        self.merge_bytes = min(self.memory_bytes, core_share)
        self.idle_seconds = IDLE_SECONDS

        where = f"{len(nodes)} nodes" if len(nodes) > 1 else "one node"
        self.progress.message(f"counting on {self.cores} cores of {where}; {format_bytes(self.memory_bytes)} per task")

    def cut(self, files: Sequence[TextFile]) -> list[tuple[FileRange, ...]]:
        """Return the pieces of the text, each for one task."""
        size = sum(map(text_size, files))
        piece_bytes = min(max(size // (PIECES_PER_CORE * self.cores), MIN_PIECE_BYTES), MAX_PIECE_BYTES)
        pieces = group_ranges(cut_files(files, self.reading.config, piece_bytes), piece_bytes)

        # A compressed file is one piece of any size, so its task may take longer.
        self.idle_seconds += max(map(_cost_of, pieces)) / MIN_BYTES_PER_SECOND

        text = f"{format_bytes(size)} of text in {plural(len(pieces), 'piece')}"
        self.progress.message(f"reading {plural(len(files), 'file')}: {text}")
        return pieces

    def _remote(self, function: Callable[..., Any], **options: Any) -> Any:
        settings = {"num_cpus": 1, "memory": self.memory_bytes, "max_retries": RETRIES, **options}
        return self.ray.remote(**settings)(function)

    def _results(
        self, references: Sequence[Any], what: str, costs: Sequence[int], unit: str
    ) -> Generator[tuple[int, Any]]:
        """Yield the number and the result of each task as it ends; closing the generator cancels the others."""
        with (
            track(self.progress, what, sum(costs), unit) as task,
            closing(take_results(self.ray, references, idle_seconds=self.idle_seconds)) as ended,
        ):
            for done, number in enumerate(ended, 1):
                yield number, fetch(self.ray, references[number], seconds=self.idle_seconds)
                task.advance(costs[number], f"{done:,} of {len(references):,} tasks")

    def choose_vocabulary(
        self, pieces: Sequence[tuple[FileRange, ...]], choice: VocabularyConfig, listed: tuple[str, ...] | None
    ) -> Vocabulary:
        """Read all pieces and return the vocabulary."""
        read_task = self._remote(read_ranges, num_returns=2)
        results = [read_task.remote(piece, self.shared_reading) for piece in pieces]  # references to (sizes, types)
        costs = list(map(_cost_of, pieces))
        sizes = [size for _, size in self._results([size for size, _ in results], "reading", costs, "bytes")]
        tokens, units = map(sum, zip(*sizes, strict=True))

        # Merge tables of types in tasks, a few at a time, and choose the vocabulary in the last task.
        tables = [types for _, types in results]
        merge = self._remote(merge_types)
        choose = self._remote(choose_words)

        while len(tables) > TABLES_PER_MERGE:
            starts = range(0, len(tables), TABLES_PER_MERGE)
            tables = [merge.remote(*tables[start : start + TABLES_PER_MERGE]) for start in starts]

        reference = choose.remote(choice, listed, self.reading.config, *tables)
        [(_, vocabulary)] = self._results([reference], "choosing the vocabulary", [1], "tasks")

        unit = self.reading.config.unit
        check_units(tokens, units, unit)
        self.progress.message(describe_text(tokens, units, unit, vocabulary))
        return vocabulary  # type: ignore[no-any-return]

    def count(
        self, pieces: Sequence[tuple[FileRange, ...]], spec: MatrixSpec, config: CountConfig, groups: tuple[range, ...]
    ) -> list[list[Any]]:
        """Count every piece and return references to the cells, one list per group."""
        rows = self.ray.put(spec.rows)
        count = self._remote(count_ranges, num_returns=1 + len(groups))
        # References to (cells, group 0, group 1, ...) of each piece.
        results = [
            count.remote(piece, self.shared_reading, config, rows, spec.layout(), groups, self.memory_bytes)
            for piece in pieces
        ]
        for _ in self._results([result[0] for result in results], "counting", list(map(_cost_of, pieces)), "bytes"):
            pass  # The first result of a task says that the others are in the object store.
        return [[result[1 + group] for result in results] for group in range(len(groups))]

    def build(
        self, path: Path, spec: MatrixSpec, groups: tuple[range, ...], cells: list[list[Any]], record: Mapping[str, Any]
    ) -> Matrix:
        """Merge each group of shards in a task, into its own folder, and join the groups."""
        layout = spec.layout()
        # Merge tasks reserve no memory: a waiting task keeps its reservation, so the count tasks it waits for, which
        # Ray repeats after a node is lost, could not be scheduled.
        merge = self._remote(merge_group, memory=0)
        folders = [self.reading.shared / f"group-{number}" for number in range(len(groups))]
        references = [
            merge.remote(parts, layout, group, folder, self.merge_bytes, self.idle_seconds)
            for parts, group, folder in zip(cells, groups, folders, strict=True)
        ]
        blocks = [len(group) // layout.column_blocks for group in groups]
        for number, _ in self._results(references, "merging", blocks, "blocks"):
            cells[number].clear()  # the cells are on disk: release them from the object store

        builder = MatrixBuilder(
            path,
            spec,
            memory_bytes=self.memory_bytes,
            threads=self.options.thread_count,
            overwrite=self.options.overwrite,
        )

        with builder:
            with builder.runs.run() as run:
                for folder in folders:
                    run.append(open_cells(folder))
                    remove_tree(folder)
            return builder.finish(**record)


def _cost_of(piece: tuple[FileRange, ...]) -> int:
    return sum(part.cost for part in piece)


def _task_memory(options: RunOptions, nodes: Sequence[Node], core_share: int) -> int:
    """Return the memory of a task: `options.memory`, or half of the memory per core of a node."""
    largest = max(node.memory_bytes for node in nodes)
    if options.memory is None:
        return min(max(core_share // 2, MIN_TASK_MEMORY), largest)
    if options.memory_bytes > largest:
        raise MemoryBudgetError(
            f"memory per task is {format_bytes(options.memory_bytes)}, but the largest node has "
            f"{format_bytes(largest)} for tasks; pass a smaller memory",
            argument="memory",
        )

    return options.memory_bytes


def cut_groups(layout: Layout, max_groups: int) -> tuple[range, ...]:
    """Return at most `max_groups` ranges of shards, of whole row blocks, with about as many stored shards in each."""
    stored = np.full(layout.row_blocks, layout.column_blocks)  # shards of each row block
    if layout.symmetric:
        stored -= np.arange(layout.row_blocks)

    columns = layout.column_blocks
    return tuple(range(first * columns, last * columns) for first, last in split_evenly(stored, max_groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReading:
    """Settings of reading, equal on all nodes."""

    config: CorpusConfig
    shared: Path  # a folder that all nodes share
    phrases: tuple[str, ...] | None = None  # joined after a text is read
    version: str = __version__

    def check(self) -> None:
        """Raise ClusterError if this node has another version of Swivel or does not see the shared folder."""
        if self.version != __version__:
            raise ClusterError(f"{_name_node()} has Swivel {__version__}, the driver {self.version}; install the same")
        if not self.shared.is_dir():
            raise ClusterError(
                f"{_name_node()} does not see {self.shared.parent}; the output folder must be on storage that all "
                "nodes share"
            )


def read_ranges(ranges: tuple[FileRange, ...], reading: TextReading) -> tuple[tuple[int, int], PackedTypes]:
    """Return the numbers of tokens and units, and the distinct tokens, of some ranges of the corpus."""
    reading.check()
    with _scratch() as scratch:
        encoded = encode_ranges(ranges, reading, scratch)
        return (encoded.token_count, encoded.unit_count), encoded.types.merge().pack()


def merge_types(*parts: PackedTypes) -> PackedTypes:
    """Return the merged table of types of several parts of a corpus."""
    return TypeCounts(parts, _CHOICE_BYTES).merge().pack()


def choose_words(
    config: VocabularyConfig, listed: tuple[str, ...] | None, corpus: CorpusConfig, *parts: PackedTypes
) -> Vocabulary:
    """Return the vocabulary of a corpus from the types of its parts."""
    return choose_vocabulary(TypeCounts(parts, _CHOICE_BYTES), config, listed, corpus)


def count_ranges(
    ranges: tuple[FileRange, ...],
    reading: TextReading,
    config: CountConfig,
    vocabulary: Vocabulary,
    layout: Layout,
    groups: tuple[range, ...],
    memory_bytes: int,
) -> Iterator[CellArrays | None]:
    """Count some ranges; yield None when that is done, then the cells of each group of shards."""
    reading.check()

    with _scratch() as scratch, gather_runs(scratch, layout) as runs, gather_runs(scratch, layout) as merged:
        encoded = encode_ranges(ranges, reading, scratch)
        ids = encoded.write_ids(vocabulary, keep_gaps=config.oov == "gap", path=scratch / "ids.npy", threads=1)
        count_part(ids, layout, config, runs, memory_bytes=memory_bytes)
        runs.close()

        final = runs
        if runs.runs > 1:
            final = merged
            merge_runs(runs.open(), merged, memory_bytes=memory_bytes, threads=1)
            merged.close()

        cells = final.open()
        yield None
        for group in groups:
            yield _take_shards(cells, group)


def _take_shards(cells: CellArrays, shards: range) -> CellArrays:
    """Return the cells of some shards as views; Ray copies them when it stores them."""
    ends = cells.offsets[0, shards.start : shards.stop + 1]
    start = int(ends[0])
    stop = int(ends[-1])
    begin, end = np.searchsorted(cells.large_cells, (start, stop))

    return CellArrays(
        ends[None] - start,
        np.asarray(cells.positions[start:stop]),
        np.asarray(cells.counts[start:stop]),
        np.asarray(cells.large_cells[begin:end]) - start,
        np.asarray(cells.large_counts[begin:end]),
    )


def merge_group(
    pieces: Sequence[Any], layout: Layout, shards: range, folder: Path, memory_bytes: int, wait_seconds: float
) -> None:
    """Merge the cells of a group of shards into its folder."""
    # `pieces` are references to the cells of each range. They are fetched one at a time, so that a node never holds all
    # of them in memory.
    ray = load_ray()

    with place_folder(folder) as placed, _scratch() as scratch, gather_runs(scratch, layout, shards) as merged:
        target = RunFiles(placed, layout, shards)

        for first in range(0, len(pieces), MAX_RUNS):
            with gather_runs(scratch, layout, shards) as runs:
                for reference in pieces[first : first + MAX_RUNS]:
                    with runs.run():
                        runs.append(fetch(ray, reference, seconds=wait_seconds))
                runs.close()

                # With more than MAX_RUNS pieces, merge each batch to one run first.
                is_only_batch = len(pieces) <= MAX_RUNS
                merge_runs(runs.open(), target if is_only_batch else merged, memory_bytes=memory_bytes, threads=1)

        if merged.runs:
            merged.close()
            merge_runs(merged.open(), target, memory_bytes=memory_bytes, threads=1)
        target.close()


def _scratch() -> AbstractContextManager[Path]:
    """Return a temporary folder on the local disk of this node."""
    return scratch_folder(Path(tempfile.gettempdir()))


def encode_ranges(ranges: tuple[FileRange, ...], reading: TextReading, scratch: Path) -> EncodedCorpus | JoinedCorpus:
    """Tokenize ranges with one thread; raise CorpusError with the line of the file if one cannot be read."""

    def encode(parts: tuple[FileRange, ...]) -> EncodedCorpus:
        streams = [open_range(part, reading.config) for part in parts]
        return encode_corpus(streams, reading.config, scratch=scratch, threads=1)

    try:
        corpus = encode(ranges)
    except CorpusError as error:
        if isinstance(error.__cause__, OSError):
            raise CorpusError(f"{error} ({_name_node()}; every node must see the corpus)") from error
        # Read again from the start of the files: this raises the same error, with the line of the file.
        encode(tuple(replace(part, start=0) for part in ranges))
        raise

    if reading.phrases is None:
        return corpus
    return join_corpus(corpus, reading.config, scratch=scratch, threads=1, phrases=reading.phrases)


def _name_node() -> str:
    return f"node {load_ray().util.get_node_ip_address()}"
