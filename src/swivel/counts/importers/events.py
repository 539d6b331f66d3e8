"""Count the codes of events, such as diagnoses, page views or orders, of the same person and about the same time.

The importers of tables read persons, codes and times in place of rows, columns and counts. Persons are known by a hash
of 64 bits, because a table of all of them may be too large. Events are kept in scratch files, in any order, and counted
in parts: all events of a person are in one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.block_layout import Ints, UnitCells
from swivel.counts.importers.context import PIECE, ImportChunk, ImportContext, LabelTable, check_label, open_spill
from swivel.errors import CountsError

_BYTES_PER_EVENT = 100  # of a part, while it is sorted and counted
_MEMORY_SHARE = 4  # of the memory is for a part; the builder has its own
_KNOWN_PERSONS = 1 << 20


class PersonTable(LabelTable):
    """Numbers of persons, from their labels alone; two of ten million have the same one with probability 3e-6."""

    def __missing__(self, label: Any) -> int:
        text = check_label(label)
        if len(self) >= _KNOWN_PERSONS:
            self.clear()
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return self.setdefault(label, int.from_bytes(digest, "little", signed=True))


class EventSpill:
    """Files of persons, codes and times, from which the cells are generated."""

    length = None  # number of cells: not known before they are generated
    unit = 1

    def __init__(self, folder: Path | None, context: ImportContext) -> None:
        kinds: dict[str, type[np.generic]] = {"persons": np.int64, "codes": np.uint32}
        if context.config.time is not None:
            kinds["times"] = np.float64
        self.files = open_spill(folder, **kinds)
        self._context = context

    def add(self, events: ImportChunk) -> None:
        """Append events to the files; raise CountsError for a time that is missing or not finite."""
        self.files[0].append(events.rows)
        self.files[1].append(events.columns)
        if events.counts is not None:
            is_wrong = ~np.isfinite(events.counts)
            if is_wrong.any():
                raise CountsError(f"{events.place(int(is_wrong.argmax()))}: the time is missing or not finite")
            self.files[2].append(events.counts)

    def finish(self, name: str) -> None:
        """Close the files; raise CountsError if the source `name` has no events."""
        for file in self.files:
            file.close()
        if not self.files[0].length:
            raise CountsError(f"{name}: there are no events")

    def count_items(self, size: int) -> Ints:
        """Return the number of events of each code."""
        counts = np.zeros(size, np.int64)
        for begin in range(0, self.files[1].length, PIECE):
            counts += np.bincount(self.files[1].read(begin, PIECE), minlength=size)
        return counts

    def pieces(self, threads: int) -> Iterator[UnitCells]:
        """Yield the cells of all pairs of codes, in both directions; `threads` is not used."""
        events = self.files[0].length
        parts = -(-events * _BYTES_PER_EVENT * _MEMORY_SHARE // self._context.memory_bytes)
        for part in range(parts):
            for rows, columns, units in self._count(self._read_part(part, parts)):
                yield rows, columns, units
                yield columns, rows, units

    def _read_part(self, part: int, parts: int) -> list[NDArray[Any]]:
        """Return persons, codes and times of the persons of a part, sorted by all three."""
        pieces: list[list[NDArray[Any]]] = []
        for begin in range(0, self.files[0].length, PIECE):
            arrays = [file.read(begin, min(PIECE, self.files[0].length - begin)) for file in self.files]
            is_here = arrays[0].view(np.uint64) % np.uint64(parts) == part
            pieces.append([array[is_here] for array in arrays])

        arrays = [np.concatenate(each) for each in zip(*pieces, strict=True)]
        if len(arrays) == 2:
            arrays.append(np.zeros(arrays[0].size))
        order = np.lexsort(arrays[::-1])
        return [array[order] for array in arrays]

    def _count(self, events: list[NDArray[Any]]) -> Iterator[UnitCells]:
        """Yield the cells of sorted events, those of whole persons at a time."""
        from swivel.counts import matrix_kernels as kernels  # imports numba, after `check_libraries`

        persons, codes, times = events
        if not persons.size:
            return
        config = self._context.config

        # A person has at most one cell for each pair of different codes.
        is_new = np.append(True, persons[1:] != persons[:-1])
        starts = np.append(np.flatnonzero(is_new), persons.size)
        is_other = is_new | np.append(True, codes[1:] != codes[:-1])
        distinct = np.add.reduceat(is_other, starts[:-1], dtype=np.int64)
        most = int(distinct.max())
        if most > config.largest_basket:
            raise CountsError(
                f"a person has {most:,} different codes, which make {most * (most - 1) // 2:,} pairs; pass a larger "
                "largest_basket",
                argument="largest_basket",
            )

        ends = np.cumsum(distinct * (distinct - 1) // 2)
        first = 0
        while first < distinct.size:
            done = int(ends[first - 1]) if first else 0
            last = max(int(np.searchsorted(ends, done + PIECE, "right")), first + 1)
            block = np.empty((3, int(ends[last - 1]) - done), np.int64)
            span = int(starts[first]), int(starts[last])
            used = kernels.count_event_pairs(
                persons, codes, times, config.longest_gap, config.count_events, span, block
            )
            yield block[0, :used], block[1, :used], block[2, :used]
            first = last
