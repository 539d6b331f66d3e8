"""Counting on a cluster: the corpus's files are counted by tasks, and merged by others, one a group of row blocks.

Receives files and settings, hands on the matrix that one machine would make, bit for bit. Three waves: every range of
the corpus is read for its types, from which the vocabulary is chosen; every range is counted, and its cells go to the
store, cut by groups of row blocks; every group is merged and written. The builder of `swivel.counts` puts the groups
together. Tasks of a node that is lost are run again by Ray. The corpus and the folder of the matrix must be on storage
that all nodes see. It does not tokenise, count or merge: nodes do, with the code that one machine uses.
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

LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 8 << 20, 256 << 20  # of text, a task
PIECES_A_CORE = 4  # so that no core waits long for the last one
GROUPS_A_CORE = 2
MOST_GROUPS = 128
TYPES_AT_A_TIME = 16  # tables that one task merges
SLOWEST_BYTES = 200_000  # a second, that a task is expected to read at the least
LEAST_TASK_MEMORY = 256 << 20
RETRIES = 20  # of a task whose node or process was lost


@dataclass(frozen=True, slots=True)
class ClusterCount:
    """What is to be counted, and how.

    Attributes
    ----------
    texts
        Paths, folders, globs or URLs, seen by every node.
    path
        Folder of the matrix, on storage that all nodes share.
    configs
        The settings of every stage, as the manifest keeps them.
    inputs
        Fingerprints of the texts, for the manifest.
    listed
        One's own list of tokens.
    """

    texts: Any
    path: Path
    configs: Mapping[str, Mapping[str, Any]]
    count: CountConfig
    inputs: Mapping[str, str]
    listed: tuple[str, ...] | None = None

    @property
    def corpus(self) -> CorpusConfig:
        """How the text is read."""
        return CorpusConfig(**self.configs["corpus"])

    @property
    def vocabulary(self) -> VocabularyConfig:
        """Which tokens are kept."""
        return VocabularyConfig(**self.configs["vocabulary"])


def count_on_ray(job: ClusterCount, options: RunOptions) -> Matrix:
    """Count on the cluster at `options.ray` and return the matrix; `options.memory` is the budget of one task.

    Raises ConfigError for text that is in no file, ClusterError where the cluster cannot be reached or stops.
    """
    files = _list_texts(job)
    if job.count.device not in ("auto", "cpu"):
        raise ConfigError(f"counting on Ray runs on CPU cores, got device {job.count.device}; leave it out")
    with connect(str(options.ray), cores=options.threads) as ray, scratch_folder(job.path.absolute()) as shared:
        return _Counter(ray, job, options, shared).run(files)


def _list_texts(job: ClusterCount) -> list[TextFile]:
    if {"iterable", "-"} & set(job.inputs):
        raise ConfigError("counting on Ray reads files; text in memory or from a pipe must be saved to one first")
    return [file.absolute() if isinstance(file, Path) else file for file in list_files(job.texts)]


class _Counter:
    """One count: the cluster, and what is known so far."""

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
        self.progress.message(
            f"counting on {self.cores} cores of {len(nodes)} nodes; {format_bytes(self.memory_bytes)} a task"
            if len(nodes) > 1
            else f"counting on {self.cores} cores of one node; {format_bytes(self.memory_bytes)} a task"
        )

    def run(self, files: Sequence[TextFile]) -> Matrix:
        """Count the files."""
        pieces = self._cut(files)
        vocabulary = self._choose_vocabulary(pieces)
        spec = make_spec(vocabulary, self.job.count)
        groups = cut_groups(spec.layout(), min(GROUPS_A_CORE * self.cores, MOST_GROUPS))
        cells = self._count(pieces, vocabulary, spec.layout(), groups)
        return self._build(spec, groups, cells)

    def _cut(self, files: Sequence[TextFile]) -> list[tuple[FileRange, ...]]:
        size = sum(map(text_size, files))
        piece_bytes = min(max(size // (PIECES_A_CORE * self.cores), LEAST_PIECE_BYTES), MOST_PIECE_BYTES)
        pieces = group_ranges(cut_files(files, self.job.corpus, piece_bytes), piece_bytes)
        # A compressed file is one piece, however large: who waits for it waits longer.
        self.idle_seconds += max(map(_cost_of, pieces)) / SLOWEST_BYTES
        self.progress.message(f"reading {len(files):,} files: {format_bytes(size)} of text in {len(pieces):,} pieces")
        return pieces

    def _remote(self, function: Callable[..., Any], **options: Any) -> Any:
        settings = {"num_cpus": 1, "memory": self.memory_bytes, "max_retries": RETRIES, **options}
        return self.ray.remote(**settings)(function)

    def _await(self, references: Sequence[Any], note: Callable[[int, Any], None]) -> None:
        """Wait for tasks; `note` gets the number and the result of each as it ends."""
        with contextlib.closing(take_results(self.ray, references, idle_seconds=self.idle_seconds)) as ended:
            for number in ended:
                note(number, fetch(self.ray, references[number], seconds=self.idle_seconds))

    def _choose_vocabulary(self, pieces: Sequence[tuple[FileRange, ...]]) -> Vocabulary:
        read = self._remote(tasks.read_ranges, num_returns=2)
        results = [read.remote(piece, self.reading) for piece in pieces]
        sizes = tasks.Sizes()
        with track(self.progress, "reading", sum(map(_cost_of, pieces)), "bytes") as task:

            def note(number: int, found: tasks.Sizes) -> None:
                nonlocal sizes
                sizes = sizes.plus(found)
                task.advance(_cost_of(pieces[number]), f"{sizes.pieces:,} of {len(pieces):,} pieces")

            self._await([size for size, _ in results], note)
        vocabulary = self._choose_words([types for _, types in results])
        unit = self.job.corpus.unit
        self.progress.message(f"{sizes.tokens:,} tokens in {sizes.units:,} {unit}s; vocabulary of {len(vocabulary):,}")
        return vocabulary

    def _choose_words(self, tables: list[Any]) -> Vocabulary:
        """Merge tables of types in tasks, a few at a time, and choose in the last."""
        merge, choose = self._remote(tasks.merge_types), self._remote(tasks.choose_words)
        while len(tables) > TYPES_AT_A_TIME:
            starts = range(0, len(tables), TYPES_AT_A_TIME)
            tables = [merge.remote(*tables[start : start + TYPES_AT_A_TIME]) for start in starts]
        chosen: list[Vocabulary] = []
        how = self.job.vocabulary, self.job.listed, self.job.corpus.lowercase
        self._await([choose.remote(*how, *tables)], lambda _, vocabulary: chosen.append(vocabulary))
        return chosen[0]

    def _count(
        self,
        pieces: Sequence[tuple[FileRange, ...]],
        vocabulary: Vocabulary,
        layout: Layout,
        groups: tuple[range, ...],
    ) -> list[list[Any]]:
        """Count every piece; return references to its cells, by group."""
        counting = tasks.RangeCounting(
            reading=self.reading,
            config=self.job.count,
            vocabulary=vocabulary,
            layout=layout,
            groups=groups,
            memory_bytes=self.memory_bytes,
        )
        shared = self.ray.put(counting)  # once a node, not once a task
        count = self._remote(tasks.count_ranges, num_returns=1 + len(groups))
        results = [count.remote(piece, shared) for piece in pieces]
        done = cells = 0
        with track(self.progress, "counting", sum(map(_cost_of, pieces)), "bytes") as task:

            def note(number: int, found: int) -> None:
                nonlocal done, cells
                done, cells = done + 1, cells + found
                task.advance(_cost_of(pieces[number]), f"{done:,} of {len(pieces):,} pieces, {cells:,} cells")

            self._await([result[0] for result in results], note)
        return [[result[1 + group] for result in results] for group in range(len(groups))]

    def _build(self, spec: MatrixSpec, groups: tuple[range, ...], cells: list[list[Any]]) -> Matrix:
        """Merge the groups in tasks, each into a folder of its own, and put them together."""
        # Nothing is reserved: a task that waits keeps what it has reserved, and those that it waits for, run again
        # because a node was lost, would find no room.
        layout, merge = spec.layout(), self._remote(tasks.merge_group, memory=0)
        folders = [self.shared / f"group-{number}" for number in range(len(groups))]
        references = [
            merge.remote(parts, tasks.Merging(layout, group, folder, self.merge_bytes, self.idle_seconds))
            for parts, group, folder in zip(cells, groups, folders, strict=True)
        ]
        sums = tasks.Merged.nothing(layout)
        with track(self.progress, "merging", layout.row_blocks, "blocks") as task:

            def note(number: int, found: tasks.Merged) -> None:
                nonlocal sums
                sums = sums.plus(found)
                cells[number].clear()  # The store may forget what is on disk now.
                task.advance(len(groups[number]), f"{sums.cells:,} cells")

            self._await(references, note)
        return self._write(spec, folders, sums)

    def _write(self, spec: MatrixSpec, folders: Sequence[Path], sums: tasks.Merged) -> Matrix:
        """Put the groups together, as one run of the builder."""
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
    """Return what a task may take: what was asked for, or half of a core's share of its node."""
    largest = max(node.memory_bytes for node in nodes)
    if options.memory is None:
        return min(max(_core_share(nodes) // 2, LEAST_TASK_MEMORY), largest)
    if options.memory_bytes > largest:
        raise MemoryBudgetError(
            f"a task may take {format_bytes(options.memory_bytes)}, the largest node has {format_bytes(largest)} for "
            "tasks; pass a smaller --memory"
        )
    return options.memory_bytes


def _core_share(nodes: Sequence[Node]) -> int:
    """Return the memory that a node has for each of its cores, where that is least."""
    return min(int(node.memory_bytes / node.cores) for node in nodes)


def cut_groups(layout: Layout, most: int) -> tuple[range, ...]:
    """Return ranges of row blocks with about equally many shards, at most `most` of them.

    >>> cut_groups(Layout(9, 9, 3, 3, symmetric=True), 2)
    (range(0, 1), range(1, 3))
    """
    shards = np.arange(layout.row_blocks)
    kept = np.cumsum(layout.column_blocks - shards if layout.symmetric else np.full(shards.size, layout.column_blocks))
    count = min(most, layout.row_blocks)
    ends = np.searchsorted(kept, kept[-1] * np.arange(1, count + 1) / count, side="left") + 1
    edges = np.unique([0, *ends.tolist(), layout.row_blocks])
    return tuple(range(first, last) for first, last in pairwise(edges.tolist()))
