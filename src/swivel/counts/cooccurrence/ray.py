"""Count a corpus on a Ray cluster. The matrix is identical, bit for bit, to that of one machine.

There are three rounds of tasks: read every range of the corpus, to choose the vocabulary; count every range and put its
cells into the object store, split by groups of row blocks; merge every group into a folder. `MatrixBuilder` joins the
groups. Ray repeats the tasks of a lost node. The corpus and the folder of the matrix must be on storage that all nodes
share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from swivel.config import CorpusConfig, CountConfig, VocabularyConfig
from swivel.corpus import FileRange, TextFile, cut_files, group_ranges, list_files, text_size
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.counts.cooccurrence import make_spec
from swivel.counts.cooccurrence import ray_tasks as tasks
from swivel.counts.layout import Layout
from swivel.errors import ConfigError, MemoryBudgetError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import track
from swivel.runtime.ray import IDLE_SECONDS, Node, await_nodes, connect, fetch, take_results
from swivel.runtime.resources import format_bytes
from swivel.storage import remove_tree, scratch_folder

# Bytes of text per task.
MIN_PIECE_BYTES = 8 << 20
MAX_PIECE_BYTES = 256 << 20
PIECES_PER_CORE = 4  # several, so that no core waits long for the last task
GROUPS_PER_CORE = 2
MAX_GROUPS = 128
TABLES_PER_MERGE = 16  # tables of types that one task merges
MIN_BYTES_PER_SECOND = 200_000  # slowest reading speed at which a task is not considered stuck
MIN_TASK_MEMORY = 256 << 20
RETRIES = 20  # per task, if its node or process is lost


@dataclass(frozen=True, slots=True)
class ClusterCount:
    """Texts, settings and output folder of a count on a cluster.

    Attributes
    ----------
    texts
        Paths, folders, globs or URLs that every node can read.
    path
        Folder of the matrix, on storage that all nodes share.
    configs
        Settings of every stage, as in the manifest.
    inputs
        Fingerprints of the texts, for the manifest.
    listed
        Tokens of a vocabulary file; None to choose the vocabulary from the corpus.
    """

    texts: Any
    path: Path
    configs: Mapping[str, Mapping[str, Any]]
    count: CountConfig
    inputs: Mapping[str, str]
    listed: tuple[str, ...] | None = None

    @property
    def corpus(self) -> CorpusConfig:
        """Settings of reading and tokenizing the text."""
        return CorpusConfig(**self.configs["corpus"])

    @property
    def vocabulary(self) -> VocabularyConfig:
        """Settings of the vocabulary."""
        return VocabularyConfig(**self.configs["vocabulary"])


def count_on_ray(job: ClusterCount, options: RunOptions) -> Matrix:
    """Count on the cluster at `options.ray` and return the matrix; `options.memory` is the budget of one task.

    Raises ConfigError if the text is not in files, and ClusterError if the cluster cannot be reached or fails.
    """
    files = _list_texts(job)
    if job.count.device not in ("auto", "cpu"):
        raise ConfigError(f"counting on Ray runs on CPU cores, got device={job.count.device!r}; omit device")
    with connect(str(options.ray), cores=options.threads) as ray, scratch_folder(job.path.absolute()) as shared:
        return _Counter(ray, job, options, shared).run(files)


def _list_texts(job: ClusterCount) -> list[TextFile]:
    if {"iterable", "-"} & set(job.inputs):
        raise ConfigError("counting on Ray reads files; save text from memory or from a pipe to a file first")
    return [file.absolute() if isinstance(file, Path) else file for file in list_files(job.texts)]


class _Counter:
    """Submits the tasks of one count and collects their results."""

    def __init__(self, ray: Any, job: ClusterCount, options: RunOptions, shared: Path) -> None:
        self.ray = ray
        self.job = job
        self.options = options
        self.progress = options.progress
        self.shared = shared
        self.reading = tasks.TextReading(config=job.corpus, shared=shared)

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
        vocabulary = self._choose_vocabulary(pieces)
        spec = make_spec(vocabulary, self.job.count)
        groups = cut_groups(spec.layout(), min(GROUPS_PER_CORE * self.cores, MAX_GROUPS))
        cells = self._count(pieces, vocabulary, spec.layout(), groups)
        return self._build(spec, groups, cells)

    def _cut(self, files: Sequence[TextFile]) -> list[tuple[FileRange, ...]]:
        size = sum(map(text_size, files))
        piece_bytes = min(max(size // (PIECES_PER_CORE * self.cores), MIN_PIECE_BYTES), MAX_PIECE_BYTES)
        pieces = group_ranges(cut_files(files, self.job.corpus, piece_bytes), piece_bytes)

        # A compressed file is one piece of any size, so its task may take longer.
        self.idle_seconds += max(map(_cost_of, pieces)) / MIN_BYTES_PER_SECOND

        self.progress.message(f"reading {len(files):,} files: {format_bytes(size)} of text in {len(pieces):,} pieces")
        return pieces

    def _remote(self, function: Callable[..., Any], **options: Any) -> Any:
        settings = {"num_cpus": 1, "memory": self.memory_bytes, "max_retries": RETRIES, **options}
        return self.ray.remote(**settings)(function)

    def _await(self, references: Sequence[Any], record: Callable[[int, Any], None]) -> None:
        """Wait for tasks and call `record(number, result)` for each as it finishes."""
        with contextlib.closing(take_results(self.ray, references, idle_seconds=self.idle_seconds)) as ended:
            for number in ended:
                record(number, fetch(self.ray, references[number], seconds=self.idle_seconds))

    def _choose_vocabulary(self, pieces: Sequence[tuple[FileRange, ...]]) -> Vocabulary:
        read = self._remote(tasks.read_ranges, num_returns=2)
        results = [read.remote(piece, self.reading) for piece in pieces]  # references to (sizes, types)
        sizes = tasks.Sizes()

        with track(self.progress, "reading", sum(map(_cost_of, pieces)), "bytes") as task:

            def record(number: int, piece_sizes: tasks.Sizes) -> None:
                nonlocal sizes
                sizes = sizes.plus(piece_sizes)
                task.advance(_cost_of(pieces[number]), f"{sizes.pieces:,} of {len(pieces):,} pieces")

            self._await([size for size, _ in results], record)

        vocabulary = self._choose_words([types for _, types in results])
        unit = self.job.corpus.unit
        self.progress.message(f"{sizes.tokens:,} tokens in {sizes.units:,} {unit}s; vocabulary of {len(vocabulary):,}")
        return vocabulary

    def _choose_words(self, tables: list[Any]) -> Vocabulary:
        """Merge tables of types in tasks, a few at a time, and choose the vocabulary in the last task."""
        merge = self._remote(tasks.merge_types)
        choose = self._remote(tasks.choose_words)

        while len(tables) > TABLES_PER_MERGE:
            starts = range(0, len(tables), TABLES_PER_MERGE)
            tables = [merge.remote(*tables[start : start + TABLES_PER_MERGE]) for start in starts]

        chosen: list[Vocabulary] = []
        reference = choose.remote(self.job.vocabulary, self.job.listed, self.job.corpus.lowercase, *tables)
        self._await([reference], lambda _, vocabulary: chosen.append(vocabulary))

        return chosen[0]

    def _count(
        self,
        pieces: Sequence[tuple[FileRange, ...]],
        vocabulary: Vocabulary,
        layout: Layout,
        groups: tuple[range, ...],
    ) -> list[list[Any]]:
        """Count every piece and return references to the cells, one list per group."""
        counting = tasks.RangeCounting(
            reading=self.reading,
            config=self.job.count,
            vocabulary=vocabulary,
            layout=layout,
            groups=groups,
            memory_bytes=self.memory_bytes,
        )
        shared = self.ray.put(counting)  # sent once per node, not once per task
        count = self._remote(tasks.count_ranges, num_returns=1 + len(groups))
        results = [count.remote(piece, shared) for piece in pieces]  # references to (cells, group 0, group 1, ...)
        done = cells = 0

        with track(self.progress, "counting", sum(map(_cost_of, pieces)), "bytes") as task:

            def record(number: int, piece_cells: int) -> None:
                nonlocal done, cells
                done += 1
                cells += piece_cells
                task.advance(_cost_of(pieces[number]), f"{done:,} of {len(pieces):,} pieces, {cells:,} cells")

            self._await([result[0] for result in results], record)

        return [[result[1 + group] for result in results] for group in range(len(groups))]

    def _build(self, spec: MatrixSpec, groups: tuple[range, ...], cells: list[list[Any]]) -> Matrix:
        """Merge each group of row blocks in a task, into its own folder, and join the groups."""
        layout = spec.layout()
        # Merge tasks reserve no memory: a waiting task keeps its reservation, so the count tasks it waits for, which
        # Ray repeats after a node is lost, could not be scheduled.
        merge = self._remote(tasks.merge_group, memory=0)
        folders = [self.shared / f"group-{number}" for number in range(len(groups))]
        references = [
            merge.remote(parts, tasks.Merging(layout, group, folder, self.merge_bytes, self.idle_seconds))
            for parts, group, folder in zip(cells, groups, folders, strict=True)
        ]
        sums = tasks.Merged.zeros(layout)

        with track(self.progress, "merging", layout.row_blocks, "blocks") as task:

            def record(number: int, merged: tasks.Merged) -> None:
                nonlocal sums
                sums = sums.plus(merged)
                cells[number].clear()  # the cells are on disk: release them from the object store
                task.advance(len(groups[number]), f"{sums.cells:,} cells")

            self._await(references, record)

        return self._write(spec, folders, sums)

    def _write(self, spec: MatrixSpec, folders: Sequence[Path], sums: tasks.Merged) -> Matrix:
        """Append the groups as one run of the builder and return the matrix."""
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
                    run.append(tasks.open_merged(folder), with_sums=False)
                    remove_tree(folder)
                run.add_sums(sums.row_sums, sums.column_sums)
            return builder.finish(config=self.job.configs, inputs=self.job.inputs)


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
    """Return at most `max_groups` ranges of row blocks with about the same number of stored shards.

    >>> cut_groups(Layout(9, 9, 3, 3, symmetric=True), 2)
    (range(0, 1), range(1, 3))
    """
    stored = np.full(layout.row_blocks, layout.column_blocks)  # shards of each row block
    if layout.symmetric:
        stored -= np.arange(layout.row_blocks)

    total = np.cumsum(stored)
    count = min(max_groups, layout.row_blocks)
    ends = np.searchsorted(total, total[-1] * np.arange(1, count + 1) / count, side="left") + 1
    edges = np.unique([0, *ends.tolist(), layout.row_blocks])

    return tuple(range(first, last) for first, last in pairwise(edges.tolist()))
