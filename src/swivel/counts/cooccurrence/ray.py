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
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel._version import __version__
from swivel.config import CorpusConfig, CountConfig, VocabularyConfig
from swivel.corpus.encoded_corpus import EncodedCorpus
from swivel.corpus.file_ranges import FileRange, cut_files, encode_ranges, group_ranges
from swivel.corpus.joined_corpus import JoinedCorpus, join_corpus
from swivel.corpus.sources import TextFile, can_compare, files_of, list_files, text_size
from swivel.corpus.type_tables import PackedTypes, TypeCounts
from swivel.corpus.vocabulary import Vocabulary, check_units, choose_vocabulary, describe_text
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.counts.cooccurrence.count import count_part, make_spec
from swivel.counts.cooccurrence.plan import split_evenly
from swivel.counts.layout import Layout
from swivel.counts.shards import FILES, CellArrays, RunFiles, ShardPiece, merge_runs
from swivel.errors import ClusterError, ConfigError, CorpusError, MemoryBudgetError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import track
from swivel.runtime.ray import IDLE_SECONDS, Node, await_nodes, connect, fetch, load_ray, take_results
from swivel.runtime.resources import format_bytes
from swivel.storage import open_array, place_folder, remove_tree, scratch_folder

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


@dataclass(frozen=True, slots=True)
class ClusterCount:
    """Texts, settings and output folder of a count on a cluster."""

    texts: Any  # paths, folders, globs or URLs that every node can read
    path: Path  # folder of the matrix, on storage that all nodes share
    configs: Mapping[str, Mapping[str, Any]]  # settings of every stage, as in the manifest
    count: CountConfig
    inputs: Mapping[str, str]  # fingerprints of the texts, for the manifest
    listed: tuple[str, ...] | None = None  # tokens of a vocabulary file; None to choose them from the corpus
    phrases: tuple[str, ...] | None = None  # phrases of a list, which are joined; None to join none
    facts: Mapping[str, Any] = field(default_factory=dict)  # further entries of the manifest


def count_on_ray(job: ClusterCount, options: RunOptions) -> Matrix:
    """Count on the cluster at `options.ray` and return the matrix; `options.memory` is the budget of one task.

    Raises ConfigError if the text is not in files, and ClusterError if the cluster cannot be reached or fails.
    """
    if files_of(job.texts) is None or not can_compare(job.inputs):
        raise ConfigError("counting on Ray reads files; save text from memory or from a pipe to a file first")
    if job.count.device not in ("auto", "cpu"):
        raise ConfigError(f"counting on Ray runs on CPU cores, got device={job.count.device!r}; omit device")

    files = [file.absolute() if isinstance(file, Path) else file for file in list_files(job.texts)]
    with connect(str(options.ray), cores=options.threads) as ray, scratch_folder(job.path.absolute()) as shared:
        return _RayCounter(ray, job, options, shared).run(files)


class _RayCounter:
    """Submits the tasks of one count and collects their results."""

    def __init__(self, ray: Any, job: ClusterCount, options: RunOptions, shared: Path) -> None:
        self.ray = ray
        self.job = job
        self.options = options
        self.progress = options.progress
        self.shared = shared
        self.corpus = CorpusConfig(**job.configs["corpus"])
        self.reading = TextReading(config=self.corpus, shared=shared, phrases=job.phrases)

        nodes = await_nodes(ray)
        self.cores = max(1, int(sum(node.cores for node in nodes)))
        self.memory_bytes = _task_memory(options, nodes)
        self.merge_bytes = min(self.memory_bytes, _core_share(nodes))
        self.idle_seconds = IDLE_SECONDS

        where = f"{len(nodes)} nodes" if len(nodes) > 1 else "one node"
        self.progress.message(f"counting on {self.cores} cores of {where}; {format_bytes(self.memory_bytes)} per task")

    def run(self, files: Sequence[TextFile]) -> Matrix:
        """Count the files and return the matrix."""
        pieces = self._cut(files)
        spec = make_spec(self._choose_vocabulary(pieces), self.job.count)
        groups = cut_groups(spec.layout(), min(GROUPS_PER_CORE * self.cores, MAX_GROUPS))
        cells = self._count(pieces, spec, groups)
        return self._build(spec, groups, cells)

    def _cut(self, files: Sequence[TextFile]) -> list[tuple[FileRange, ...]]:
        size = sum(map(text_size, files))
        piece_bytes = min(max(size // (PIECES_PER_CORE * self.cores), MIN_PIECE_BYTES), MAX_PIECE_BYTES)
        pieces = group_ranges(cut_files(files, self.corpus, piece_bytes), piece_bytes)

        # A compressed file is one piece of any size, so its task may take longer.
        self.idle_seconds += max(map(_cost_of, pieces)) / MIN_BYTES_PER_SECOND

        self.progress.message(f"reading {len(files):,} files: {format_bytes(size)} of text in {len(pieces):,} pieces")
        return pieces

    def _remote(self, function: Callable[..., Any], **options: Any) -> Any:
        settings = {"num_cpus": 1, "memory": self.memory_bytes, "max_retries": RETRIES, **options}
        return self.ray.remote(**settings)(function)

    def _results(self, references: Sequence[Any]) -> Generator[tuple[int, Any]]:
        """Yield the number and the result of each task as it ends; closing the generator cancels the others."""
        with closing(take_results(self.ray, references, idle_seconds=self.idle_seconds)) as ended:
            for number in ended:
                yield number, fetch(self.ray, references[number], seconds=self.idle_seconds)

    def _choose_vocabulary(self, pieces: Sequence[tuple[FileRange, ...]]) -> Vocabulary:
        read = self._remote(read_ranges, num_returns=2)
        results = [read.remote(piece, self.reading) for piece in pieces]  # references to (sizes, types)
        ended = self._results([sizes for sizes, _ in results])
        tokens = units = 0

        with track(self.progress, "reading", sum(map(_cost_of, pieces)), "bytes") as task, closing(ended):
            for done, (number, (piece_tokens, piece_units)) in enumerate(ended, 1):
                tokens += piece_tokens
                units += piece_units
                task.advance(_cost_of(pieces[number]), f"{done:,} of {len(pieces):,} pieces")

        vocabulary = self._choose_words([types for _, types in results])
        check_units(tokens, units, self.corpus.unit)
        self.progress.message(describe_text(tokens, units, self.corpus.unit, vocabulary))
        return vocabulary

    def _choose_words(self, tables: list[Any]) -> Vocabulary:
        """Merge tables of types in tasks, a few at a time, and choose the vocabulary in the last task."""
        merge = self._remote(merge_types)
        choose = self._remote(choose_words)

        while len(tables) > TABLES_PER_MERGE:
            starts = range(0, len(tables), TABLES_PER_MERGE)
            tables = [merge.remote(*tables[start : start + TABLES_PER_MERGE]) for start in starts]

        config = VocabularyConfig(**self.job.configs["vocabulary"])
        reference = choose.remote(config, self.job.listed, self.corpus.lowercase, *tables)
        [(_, vocabulary)] = self._results([reference])
        return vocabulary  # type: ignore[no-any-return]

    def _count(
        self, pieces: Sequence[tuple[FileRange, ...]], spec: MatrixSpec, groups: tuple[range, ...]
    ) -> list[list[Any]]:
        """Count every piece and return references to the cells, one list per group."""
        counting = RangeCounting(
            reading=self.reading,
            config=self.job.count,
            vocabulary=spec.rows,
            layout=spec.layout(),
            groups=groups,
            memory_bytes=self.memory_bytes,
        )
        shared = self.ray.put(counting)  # sent once per node, not once per task
        count = self._remote(count_ranges, num_returns=1 + len(groups))
        results = [count.remote(piece, shared) for piece in pieces]  # references to (cells, group 0, group 1, ...)
        ended = self._results([result[0] for result in results])
        cells = 0

        with track(self.progress, "counting", sum(map(_cost_of, pieces)), "bytes") as task, closing(ended):
            for done, (number, piece_cells) in enumerate(ended, 1):
                cells += piece_cells
                task.advance(_cost_of(pieces[number]), f"{done:,} of {len(pieces):,} pieces, {cells:,} cells")

        return [[result[1 + group] for result in results] for group in range(len(groups))]

    def _build(self, spec: MatrixSpec, groups: tuple[range, ...], cells: list[list[Any]]) -> Matrix:
        """Merge each group of shards in a task, into its own folder, and join the groups."""
        layout = spec.layout()
        # Merge tasks reserve no memory: a waiting task keeps its reservation, so the count tasks it waits for, which
        # Ray repeats after a node is lost, could not be scheduled.
        merge = self._remote(merge_group, memory=0)
        folders = [self.shared / f"group-{number}" for number in range(len(groups))]
        references = [
            merge.remote(parts, layout, group, folder, self.merge_bytes, self.idle_seconds)
            for parts, group, folder in zip(cells, groups, folders, strict=True)
        ]
        ended = self._results(references)
        merged_cells = 0
        row_sums = np.zeros(layout.rows, np.int64)
        column_sums = np.zeros(layout.columns, np.int64)

        with track(self.progress, "merging", layout.row_blocks, "blocks") as task, closing(ended):
            for number, merged in ended:
                cells[number].clear()  # the cells are on disk: release them from the object store
                merged_cells += merged.cells
                row_sums += merged.row_sums
                column_sums += merged.column_sums
                task.advance(len(groups[number]) // layout.column_blocks, f"{merged_cells:,} cells")

        builder = MatrixBuilder(
            self.job.path,
            spec,
            memory_bytes=self.memory_bytes,
            threads=self.options.thread_count,
            overwrite=self.options.overwrite,
        )

        with builder:
            with builder.begin_run() as run:
                for folder in folders:
                    run.append(open_merged(folder), with_sums=False)
                    remove_tree(folder)
                run.add_sums(row_sums, column_sums)
            return builder.finish(config=self.job.configs, inputs=self.job.inputs, facts=self.job.facts)


def _cost_of(piece: tuple[FileRange, ...]) -> int:
    return sum(part.cost for part in piece)


def _task_memory(options: RunOptions, nodes: Sequence[Node]) -> int:
    """Return the memory of a task: `options.memory`, or half of the memory per core of a node."""
    largest = max(node.memory_bytes for node in nodes)
    if options.memory is None:
        return min(max(_core_share(nodes) // 2, MIN_TASK_MEMORY), largest)
    if options.memory_bytes > largest:
        raise MemoryBudgetError(
            f"memory per task is {format_bytes(options.memory_bytes)}, but the largest node has "
            f"{format_bytes(largest)} for tasks; pass a smaller memory"
        )

    return options.memory_bytes


def _core_share(nodes: Sequence[Node]) -> int:
    """Return the smallest memory per core of any node."""
    return min(int(node.memory_bytes / node.cores) for node in nodes)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeCounting:
    """Settings of counting, sent once per node. `groups` are ranges of shards."""

    reading: TextReading
    config: CountConfig
    vocabulary: Vocabulary
    layout: Layout
    groups: tuple[range, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class MergedGroup:
    """Number of cells of a group of shards, and their row and column sums; the cells are in the folder of the group."""

    cells: int
    row_sums: NDArray[np.int64]
    column_sums: NDArray[np.int64]  # equal to row_sums in a symmetric matrix


def read_ranges(ranges: tuple[FileRange, ...], reading: TextReading) -> tuple[tuple[int, int], PackedTypes]:
    """Return the numbers of tokens and units, and the distinct tokens, of some ranges of the corpus."""
    reading.check()
    with _scratch() as scratch:
        encoded = _encode(ranges, reading, scratch)
        return (encoded.token_count, encoded.unit_count), encoded.types.merge().pack()


def merge_types(*parts: PackedTypes) -> PackedTypes:
    """Return the merged table of types of several parts of a corpus."""
    return TypeCounts(parts, _CHOICE_BYTES).merge().pack()


def choose_words(
    config: VocabularyConfig, listed: tuple[str, ...] | None, lowercase: bool, *parts: PackedTypes
) -> Vocabulary:
    """Return the vocabulary of a corpus from the types of its parts."""
    return choose_vocabulary(TypeCounts(parts, _CHOICE_BYTES), config, listed, lowercase=lowercase)


def count_ranges(ranges: tuple[FileRange, ...], counting: RangeCounting) -> Iterator[int | ShardPiece]:
    """Count some ranges; yield the number of cells, then the cells of each group of shards."""
    counting.reading.check()
    layout = counting.layout

    with _scratch() as scratch, _gather(scratch, layout) as runs, _gather(scratch, layout) as merged:
        encoded = _encode(ranges, counting.reading, scratch)
        keep_gaps = counting.config.oov == "gap"
        ids = encoded.write_ids(counting.vocabulary, keep_gaps=keep_gaps, path=scratch / "ids.npy", threads=1)
        count_part(ids, layout, counting.config, runs, memory_bytes=counting.memory_bytes)
        runs.close()

        if runs.runs > 1:
            merge_runs(runs.open(), merged, memory_bytes=counting.memory_bytes, threads=1)
            merged.close()
            cells = merged.open()
        else:
            cells = runs.open()

        yield len(cells.counts)
        for group in counting.groups:
            yield _take_shards(cells, group)


def _take_shards(cells: CellArrays, shards: range) -> ShardPiece:
    """Return the cells of some shards as views; Ray copies them when it stores them."""
    ends = cells.offsets[0, shards.start : shards.stop + 1]
    start = int(ends[0])
    stop = int(ends[-1])
    begin, end = np.searchsorted(cells.large_cells, (start, stop))

    return ShardPiece(
        np.diff(ends),
        np.asarray(cells.positions[start:stop]),
        np.asarray(cells.counts[start:stop]),
        np.asarray(cells.large_cells[begin:end]) - start,
        np.asarray(cells.large_counts[begin:end]),
    )


def merge_group(
    pieces: Sequence[Any], layout: Layout, shards: range, folder: Path, memory_bytes: int, wait_seconds: float
) -> MergedGroup:
    """Merge the cells of a group of shards from all ranges into the folder of the group; return their sums.

    `pieces` are references. They are fetched one at a time, so that a node never holds all of them in memory.
    """
    ray = load_ray()

    with place_folder(folder) as placed, _scratch() as scratch, _gather(scratch, layout, shards) as merged:
        target = RunFiles(placed, layout, shards)

        for first in range(0, len(pieces), MAX_RUNS):
            with _gather(scratch, layout, shards) as runs:
                for reference in pieces[first : first + MAX_RUNS]:
                    with runs.run():
                        runs.append(fetch(ray, reference, seconds=wait_seconds))
                runs.close()
                target.add_sums(runs.row_sums, runs.column_sums)

                # With more than MAX_RUNS pieces, merge each batch to one run first.
                is_only_batch = len(pieces) <= MAX_RUNS
                merge_runs(runs.open(), target if is_only_batch else merged, memory_bytes=memory_bytes, threads=1)

        if merged.runs:
            merged.close()
            merge_runs(merged.open(), target, memory_bytes=memory_bytes, threads=1)
        target.close()

    return MergedGroup(target.cells, target.row_sums, target.column_sums)


def open_merged(folder: Path) -> ShardPiece:
    """Return the cells of a group from its folder, memory-mapped."""
    arrays = {name.removesuffix(".npy"): open_array(folder / name) for name in FILES}
    return ShardPiece(np.diff(arrays.pop("offsets")), **arrays)


@contextmanager
def _gather(parent: Path, layout: Layout, shards: range | None = None) -> Iterator[RunFiles]:
    """Yield temporary files for runs, deleted when the block ends."""
    with scratch_folder(parent) as folder:
        runs = RunFiles(folder, layout, shards)
        try:
            yield runs
        finally:
            runs.close()


def _scratch() -> AbstractContextManager[Path]:
    """Return a temporary folder on the local disk of this node."""
    return scratch_folder(Path(tempfile.gettempdir()))


def _encode(ranges: tuple[FileRange, ...], reading: TextReading, scratch: Path) -> EncodedCorpus | JoinedCorpus:
    try:
        encoded = encode_ranges(ranges, reading.config, scratch=scratch)
    except CorpusError as error:
        if isinstance(error.__cause__, OSError):
            raise CorpusError(f"{error} ({_name_node()}; every node must see the corpus)") from error
        raise
    if reading.phrases is None:
        return encoded
    return join_corpus(encoded, reading.config, scratch=scratch, threads=1, phrases=reading.phrases)


def _name_node() -> str:
    return f"node {load_ray().util.get_node_ip_address()}"
