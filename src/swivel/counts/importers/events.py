"""Count the codes of events, such as diagnoses, page views or orders, of the same person and about the same time.

The importers of tables read persons, codes and times in place of rows, columns and counts. Persons are known by a hash
of 64 bits, because a table of all of them may be too large. Events are kept in scratch files, in any order, and counted
in parts: all events of a person are in one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.block_layout import Ints, UnitCells
from swivel.counts.importers.context import PIECE, ImportChunk, ImportContext, LabelTable, Place, open_spill
from swivel.errors import CountsError
from swivel.runtime.parallel import map_in_order
from swivel.runtime.resources import check_memory

_BYTES_PER_EVENT = 100  # of a part, while it is sorted and counted
_MEMORY_SHARE = 4  # of the memory is for parts; the builder has its own
_BUCKETS = 256  # of persons, by their hash; a part has one or several


class PersonTable(LabelTable):
    """Numbers of persons, from their labels alone; two of ten million have the same one with probability 3e-6."""

    def look_up(self, labels: Sequence[Any], place: Place) -> Ints:
        """Return the hashes of labels; `place` returns the location of the label at an index."""
        from swivel.corpus.tokenizer_kernels import hash_texts  # imports numba, after `check_libraries`

        try:
            texts = [label if isinstance(label, bytes) else label.encode() for label in labels]
            data = b"".join(texts)
            data.decode()
        except (AttributeError, UnicodeError):  # no text, or no UTF-8
            return super().look_up(labels, place)  # raises the error with the place
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        if not lengths.all():
            return super().look_up(labels, place)

        hashes = np.empty(len(texts), np.int64)
        hash_texts(np.frombuffer(data, np.uint8), np.cumsum(lengths), hashes)
        return hashes


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
        self._waiting: list[list[NDArray[Any]]] = []  # arrays for the files
        self._waiting_events = 0
        # Pieces of the files are sorted by bucket, so that a part is read alone: where each bucket of a piece begins.
        self._bucket_starts: list[list[int]] = []

    def add(self, events: ImportChunk) -> None:
        """Append events to the files; raise CountsError for a time that is missing or not finite."""
        arrays: list[NDArray[Any]] = [events.rows, events.columns]
        if events.counts is not None:
            is_wrong = ~np.isfinite(events.counts)
            if is_wrong.any():
                raise CountsError(f"{events.place(int(is_wrong.argmax()))}: the time is missing or not finite")
            arrays.append(events.counts)

        self._waiting.append(arrays)
        self._waiting_events += events.rows.size
        if self._waiting_events >= PIECE:
            self._write_piece()

    def _write_piece(self) -> None:
        """Append the waiting events to the files, sorted by bucket."""
        arrays = [np.concatenate(each) for each in zip(*self._waiting, strict=True)]
        self._waiting = []
        self._waiting_events = 0

        buckets = (arrays[0] % _BUCKETS).astype(np.uint8)  # which a radix sort sorts
        order = np.argsort(buckets, kind="stable")
        starts = np.cumsum(np.bincount(buckets, minlength=_BUCKETS)) + self.files[0].length
        self._bucket_starts.append([self.files[0].length, *starts.tolist()])
        for file, array in zip(self.files, arrays, strict=True):
            file.append(array[order])

    def finish(self, name: str) -> None:
        """Close the files; raise CountsError if the source `name` has no events."""
        if self._waiting:
            self._write_piece()
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
        """Yield the cells of all pairs of codes, in both directions; while parts are counted, threads load the next."""
        size = self.files[0].length * _BYTES_PER_EVENT * _MEMORY_SHARE * threads
        parts = min(-(-size // self._context.memory_bytes), _BUCKETS)
        edges = [part * _BUCKETS // parts for part in range(parts + 1)]
        for events in map_in_order(self._read_part, itertools.pairwise(edges), threads=threads, ahead=threads):
            for rows, columns, units in self._count(events):
                yield rows, columns, units
                yield columns, rows, units

    def _read_part(self, buckets: tuple[int, int]) -> list[NDArray[Any]]:
        """Return persons, codes and times of the persons of some buckets, sorted by all three."""
        spans = [(starts[buckets[0]], starts[buckets[1]]) for starts in self._bucket_starts]
        events = sum(end - begin for begin, end in spans)
        check_memory(f"sorting {events:,} events of some persons", events * _BYTES_PER_EVENT)

        arrays = [np.concatenate([file.read(begin, end - begin) for begin, end in spans]) for file in self.files]
        if len(arrays) == 2:
            arrays.append(np.zeros(events))
        if self._context.config.counting == "windows":
            arrays[0] = number_windows(arrays[0], arrays[2], self._context.config.longest_gap)
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
                persons, codes, times, config.longest_gap, config.counting == "events", span, block
            )
            yield block[0, :used], block[1, :used], block[2, :used]
            first = last


def number_windows(persons: Ints, times: NDArray[np.float64], length: float) -> Ints:
    """Return a number for each window of each person; the first one begins with the first event, and so on.

    >>> number_windows(np.array([7, 7, 3, 7]), np.array([0.0, 30.0, 5.0, 29.0]), 30.0).tolist()
    [2, 3, 1, 2]
    """
    order = np.lexsort((times, persons))
    persons = persons[order]
    times = times[order]
    is_first = np.ones(times.size, bool)
    is_first[1:] = persons[1:] != persons[:-1]

    passed = times - times[is_first][np.cumsum(is_first) - 1]
    windows = np.floor_divide(passed, length) if length else passed
    is_first[1:] |= windows[1:] != windows[:-1]
    numbers = np.empty(times.size, np.int64)
    numbers[order] = np.cumsum(is_first)
    return numbers
