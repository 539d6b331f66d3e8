"""Ray tasks of a count: read ranges, count ranges, merge the cells of a group of row blocks.

Each task returns its result through the object store, leaves no files on its node, and may be repeated on any node with
the same result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel._version import __version__
from swivel.config import CorpusConfig, CountConfig, VocabularyConfig
from swivel.corpus import EncodedCorpus, FileRange, encode_ranges
from swivel.corpus.type_table import PackedTypes, TypeTable
from swivel.corpus.vocabulary import Vocabulary, choose_vocabulary
from swivel.counts.cooccurrence import count_part
from swivel.counts.layout import Layout
from swivel.counts.merge import merge_runs
from swivel.counts.shards import FILES, CellArrays, RunFiles, ShardPiece
from swivel.errors import ClusterError, CorpusError
from swivel.runtime.ray import fetch, load_ray
from swivel.storage import open_array, place_folder, scratch_folder

MAX_RUNS = 64  # per merge: merging visits every run for every row of every shard


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReading:
    """Settings of reading, equal on all nodes."""

    config: CorpusConfig
    shared: Path  # a folder that all nodes share
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
    """Settings of counting, sent once per node. `groups` are ranges of row blocks."""

    reading: TextReading
    config: CountConfig
    vocabulary: Vocabulary
    layout: Layout
    groups: tuple[range, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Merging:
    """One group of row blocks to merge: its output folder, memory budget and timeout."""

    layout: Layout
    row_blocks: range
    folder: Path
    memory_bytes: int
    wait_seconds: float

    @property
    def shards(self) -> range:
        """The shards of the group."""
        columns = self.layout.column_blocks
        return range(self.row_blocks.start * columns, self.row_blocks.stop * columns)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of pieces, tokens and units read."""

    pieces: int = 0
    tokens: int = 0
    units: int = 0

    def plus(self, other: Sizes) -> Sizes:
        """Return the sum of two sizes."""
        return Sizes(self.pieces + other.pieces, self.tokens + other.tokens, self.units + other.units)


@dataclass(frozen=True, slots=True)
class Merged:
    """Row and column sums of a group whose cells are in its folder."""

    cells: int
    row_sums: NDArray[np.int64]
    column_sums: NDArray[np.int64]  # equal to row_sums in a symmetric matrix

    @classmethod
    def zeros(cls, layout: Layout) -> Merged:
        """Return sums of zero."""
        return cls(0, np.zeros(layout.rows, np.int64), np.zeros(layout.columns, np.int64))

    def plus(self, other: Merged | RunFiles) -> Merged:
        """Return the total of two sums."""
        return Merged(self.cells + other.cells, self.row_sums + other.row_sums, self.column_sums + other.column_sums)


def read_ranges(ranges: tuple[FileRange, ...], reading: TextReading) -> tuple[Sizes, PackedTypes]:
    """Return the sizes and the distinct tokens of some ranges of the corpus."""
    reading.check()
    with _scratch() as scratch:
        encoded = _encode(ranges, reading, scratch)
        return Sizes(1, encoded.token_count, encoded.unit_count), encoded.pack_types()


def merge_types(*parts: PackedTypes) -> PackedTypes:
    """Return the merged table of types of several parts of a corpus."""
    return _merge(parts).pack()


def _merge(parts: Sequence[PackedTypes]) -> TypeTable:
    table = TypeTable()
    for part in parts:
        table.merge(part)
    return table


def choose_words(
    config: VocabularyConfig, listed: tuple[str, ...] | None, lowercase: bool, *parts: PackedTypes
) -> Vocabulary:
    """Return the vocabulary of a corpus from the types of its parts."""
    return choose_vocabulary(_merge(parts).counts, config, listed, lowercase=lowercase)


def count_ranges(ranges: tuple[FileRange, ...], counting: RangeCounting) -> Iterator[int | ShardPiece]:
    """Count some ranges; yield the number of cells, then the cells of each group of row blocks."""
    counting.reading.check()
    layout = counting.layout
    memory_bytes = counting.memory_bytes

    with _scratch() as scratch, _gather(scratch, layout) as runs, _gather(scratch, layout) as merged:
        encoded = _encode(ranges, counting.reading, scratch)
        keep_gaps = counting.config.oov == "gap"
        ids = encoded.write_ids(counting.vocabulary, keep_gaps=keep_gaps, path=scratch / "ids.npy", threads=1)
        count_part(ids, layout, counting.config, runs, memory_bytes=memory_bytes)
        runs.close()

        if runs.runs > 1:
            merge_runs(runs.open(), merged, memory_bytes=memory_bytes, threads=1)
            merged.close()
            cells = merged.open()
        else:
            cells = runs.open()

        yield len(cells.counts)
        for group in counting.groups:
            yield _take_shards(cells, group.start * layout.column_blocks, group.stop * layout.column_blocks)


def _take_shards(cells: CellArrays, first: int, last: int) -> ShardPiece:
    """Return the cells of the shards `first` to `last - 1` as views; Ray copies them when it stores them."""
    ends = cells.offsets[0, first : last + 1]
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


def merge_group(pieces: Sequence[Any], merging: Merging) -> Merged:
    """Merge the cells of a group of row blocks from all ranges into the folder of the group; return their sums.

    `pieces` are references. They are fetched one at a time, so that a node never holds all of them in memory.
    """
    sums = Merged.zeros(merging.layout)
    with _scratch() as scratch, ExitStack() as stack:
        batches = []
        for first in range(0, len(pieces), MAX_RUNS):
            runs = stack.enter_context(_gather(scratch, merging.layout, merging.shards))
            _append_fetched(runs, pieces[first : first + MAX_RUNS], merging.wait_seconds)
            sums = sums.plus(runs)
            batches.append(runs)

        # With more than MAX_RUNS pieces, merge each batch to one run first.
        if len(batches) == 1:
            final = batches[0]
        else:
            final = stack.enter_context(_merge_batches(batches, merging, scratch))

        with place_folder(merging.folder) as folder:
            target = RunFiles(folder, merging.layout, merging.shards)
            merge_runs(final.open(), target, memory_bytes=merging.memory_bytes, threads=1)
            target.close()

    return replace(sums, cells=target.cells)


def _append_fetched(runs: RunFiles, references: Sequence[Any], seconds: float) -> None:
    ray = load_ray()
    for reference in references:
        with runs.run():
            runs.append(fetch(ray, reference, seconds=seconds))
    runs.close()


@contextmanager
def _merge_batches(batches: Sequence[RunFiles], merging: Merging, scratch: Path) -> Iterator[RunFiles]:
    """Yield files with one run per batch, the merged runs of that batch."""
    with _gather(scratch, merging.layout, merging.shards) as runs:
        for batch in batches:
            with _gather(scratch, merging.layout, merging.shards) as merged:
                merge_runs(batch.open(), merged, memory_bytes=merging.memory_bytes, threads=1)
                merged.close()
                with runs.run():
                    runs.append(_take_shards(merged.open(), 0, len(merging.shards)), with_sums=False)

        runs.close()
        yield runs


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


def _encode(ranges: tuple[FileRange, ...], reading: TextReading, scratch: Path) -> EncodedCorpus:
    try:
        return encode_ranges(ranges, reading.config, scratch=scratch)
    except CorpusError as error:
        if isinstance(error.__cause__, OSError):
            raise CorpusError(f"{error} ({_name_node()}; every node must see the corpus)") from error
        raise


def _name_node() -> str:
    return f"node {load_ray().util.get_node_ip_address()}"
