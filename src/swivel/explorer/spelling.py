"""Completion and close spellings over many labels, in milliseconds.

Receives labels by falling frequency, hands on ids. It knows no vectors.
"""

from __future__ import annotations

import bisect
import difflib
import heapq
import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_CANDIDATES = 60  # by shared pairs of letters, of which the closest are then told apart letter by letter
_CLOSE = 0.6  # of difflib's ratio: 'guitr' and 'guitar' have .91
_LONGEST = 64  # characters looked at when spellings are compared


class Speller:
    """Finds labels by how they begin, by what they contain, and by how they are spelt, upper case or lower.

    >>> speller = Speller(["guitar", "Guitars", "piano", "bass guitar"])
    >>> speller.complete("gui", 5), speller.find_close("giutar", 1)
    ([0, 1, 3], [0])
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._folded = [label.casefold() for label in labels]
        self._labels = labels

    def complete(self, text: str, count: int) -> list[int]:
        """Return ids of labels that begin with a text, itself first, then common ones; then those it is inside of."""
        folded = text.casefold()
        found = self._starting_with(folded, count)
        exact = [number for number in found if self._labels[number] == text]
        found = exact + [number for number in found if number not in exact]
        if len(found) < count and folded:
            there = set(found)
            inside = (number for number, label in enumerate(self._folded) if folded in label and number not in there)
            found += itertools.islice(inside, count - len(found))
        return found

    def find_close(self, text: str, count: int) -> list[int]:
        """Return ids of the labels spelt most like a text, the closest first, common ones first among equals."""
        folded = text.casefold()[:_LONGEST]
        matcher = difflib.SequenceMatcher(b=folded, autojunk=False)
        rated = []
        for number in self._similar(folded).tolist():
            matcher.set_seq1(self._folded[number][:_LONGEST])
            ratio = matcher.ratio()
            if ratio >= _CLOSE and self._folded[number] != folded:
                rated.append((-ratio, number))
        return [number for _, number in sorted(rated)[:count]]

    @cached_property
    def _sorted(self) -> tuple[list[str], list[int]]:
        order = sorted(range(len(self._folded)), key=self._folded.__getitem__)
        return [self._folded[number] for number in order], order

    def _starting_with(self, folded: str, count: int) -> list[int]:
        labels, order = self._sorted
        first = bisect.bisect_left(labels, folded)
        last = bisect.bisect_right(labels, folded + "\U0010ffff")
        same = order[first : bisect.bisect_right(labels, folded)]
        rest = heapq.nsmallest(count, order[first + len(same) : last])
        return (sorted(same) + rest)[:count]

    @cached_property
    def _pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Every pair of neighbouring letters, sorted; whose it is; and how many pairs each label has."""
        text = "\n".join(["", *(label[:_LONGEST].replace("\n", " ") for label in self._folded), ""])
        letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
        owner = np.cumsum(letters == ord("\n"))[:-1] - 1  # the line end before a label is its own first letter
        keys = letters[:-1] << 21 | letters[1:]
        real = owner < len(self._folded)
        keys, owner = keys[real], owner[real]
        order = np.argsort(keys, kind="stable")
        return keys[order], owner[order], np.bincount(owner, minlength=len(self._folded))

    def _similar(self, folded: str) -> NDArray[np.intp]:
        """Return ids of the labels that share most pairs of letters with a text (Dice's coefficient)."""
        keys, owner, sizes = self._pairs
        letters = [ord(letter) for letter in f"\n{folded}\n"]
        asked = np.unique([a << 21 | b for a, b in itertools.pairwise(letters)])
        begins, ends = np.searchsorted(keys, asked), np.searchsorted(keys, asked, side="right")
        shared = np.zeros(len(sizes), np.float32)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            shared += np.bincount(owner[begin:end], minlength=len(sizes))
        scores = (2 * shared / (sizes + len(asked))).astype(np.float32)
        best = np.argsort(-scores, kind="stable")[:_CANDIDATES] if len(scores) <= _CANDIDATES else _highest(scores)
        return np.asarray(best[scores[best] > 0])


def _highest(scores: NDArray[np.float32]) -> NDArray[np.intp]:
    return np.argpartition(-scores, _CANDIDATES)[:_CANDIDATES]
