"""Completions and similar spellings of labels."""

from __future__ import annotations

import bisect
import difflib
import heapq
import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from swivel.vectors.search import best_ids

_CANDIDATES = 60  # labels that share most pairs of letters with a text; only these are compared letter by letter
_MIN_RATIO = 0.6  # of difflib; 'guitr' and 'guitar' have .91
_MAX_LENGTH = 64  # characters of a spelling that are compared


class Speller:
    """Find labels by prefix, by substring, and by similar spelling, ignoring case.

    Labels are in order of decreasing frequency, and the methods return their positions.

    >>> speller = Speller(["guitar", "Guitars", "piano", "bass guitar"])
    >>> speller.complete("gui", 5), speller.find_close("giutar", 1)
    ([0, 1, 3], [0])
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._folded = [label.casefold() for label in labels]
        self._labels = labels

    def complete(self, text: str, count: int) -> list[int]:
        """Return the ids of labels that complete a text."""
        # The text itself comes first, then labels that start with it, then labels that contain it; common
        # ones first.
        folded = text.casefold()
        matches = self._starting_with(folded, count)
        exact = [number for number in matches if self._labels[number] == text]
        matches = exact + [number for number in matches if number not in exact]

        if len(matches) < count and folded:
            known = set(matches)
            inside = (number for number, label in enumerate(self._folded) if folded in label and number not in known)
            matches += itertools.islice(inside, count - len(matches))
        return matches

    def find_close(self, text: str, count: int) -> list[int]:
        """Return the ids of the labels with the most similar spelling, the closest first; ties by frequency."""
        folded = text.casefold()[:_MAX_LENGTH]
        matcher = difflib.SequenceMatcher(b=folded, autojunk=False)

        rated = []
        for number in self._similar(folded).tolist():
            matcher.set_seq1(self._folded[number][:_MAX_LENGTH])
            ratio = matcher.ratio()
            if ratio >= _MIN_RATIO and self._labels[number] != text:
                rated.append((-ratio, number))

        return [number for _, number in sorted(rated)[:count]]

    @cached_property
    def _sorted(self) -> tuple[list[str], list[int]]:
        order = sorted(range(len(self._folded)), key=self._folded.__getitem__)
        return [self._folded[number] for number in order], order

    def _starting_with(self, folded: str, count: int) -> list[int]:
        """Return the ids of labels with a prefix: the prefix itself, then the most common ones."""
        labels, order = self._sorted
        first = bisect.bisect_left(labels, folded)
        last = bisect.bisect_right(labels, folded + "\U0010ffff")

        same = order[first : bisect.bisect_right(labels, folded)]
        rest = heapq.nsmallest(count, order[first + len(same) : last])
        return (sorted(same) + rest)[:count]

    @cached_property
    def _pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Sorted keys of all pairs of adjacent letters, the label of each, and the number of pairs per label."""
        # Line ends mark the start and the end of a label: "ab" has the pairs (start, a), (a, b) and (b, end).
        text = "\n".join(["", *(label[:_MAX_LENGTH].replace("\n", " ") for label in self._folded), ""])
        letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)

        # A key packs two code points of at most 21 bits. The line end before a label belongs to that label.
        keys = letters[:-1] << 21 | letters[1:]
        owner = np.cumsum(letters == ord("\n"))[:-1] - 1

        is_real = owner < len(self._folded)
        keys = keys[is_real]
        owner = owner[is_real]
        order = np.argsort(keys, kind="stable")
        return keys[order], owner[order], np.bincount(owner, minlength=len(self._folded))

    def _similar(self, folded: str) -> NDArray[np.intp]:
        """Return the ids of the labels that share most pairs of letters with a text (Dice coefficient)."""
        keys, owner, sizes = self._pairs
        letters = [ord(letter) for letter in f"\n{folded}\n"]
        pairs_of_text = np.unique([a << 21 | b for a, b in itertools.pairwise(letters)])

        begins = np.searchsorted(keys, pairs_of_text)
        ends = np.searchsorted(keys, pairs_of_text, side="right")
        shared = np.zeros(len(sizes), np.float32)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            shared += np.bincount(owner[begin:end], minlength=len(sizes))

        scores = (2 * shared / (sizes + len(pairs_of_text))).astype(np.float32)
        best = best_ids(scores, _CANDIDATES)
        return best[scores[best] > 0]
