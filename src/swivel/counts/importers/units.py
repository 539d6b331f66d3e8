"""Which unit counts are whole numbers of. Pure arithmetic.

Receives counts, chunk by chunk; hands on one unit for all, so that they are summed as integers and any order of files
gives the same matrix. Counts that share no small unit are rounded to a power of 2 that suits the smallest and largest.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from swivel.errors import CountsError

# Whole numbers, halves and quarters, decimals, and windows of 1/t up to 10 and up to 16 (GloVe's is 15).
_CANDIDATES = (1, 4, 10, 100, 1_000, 2_520, 10_000, 720_720, 1_000_000)
_TOLERANCE = 1e-9  # of a count, as rounding by float64 leaves it
_GOOD_BITS, _FAIR_BITS = 24, 10  # how exactly the smallest count is kept: as a float32 would, or to a thousandth
_STORED_BITS = 31  # cells above 2^32 units stand in a side table
_TOTAL_BITS = 61
_MOST_BITS = 60  # of the unit itself


class UnitFinder:
    """Looks at counts and says which unit fits them.

    >>> finder = UnitFinder()
    >>> finder.look_at(np.array([0.5, 3.25]))
    >>> finder.choose_unit()
    4
    """

    def __init__(self) -> None:
        self._left = list(_CANDIDATES)
        self._smallest, self._largest, self._total = math.inf, 0.0, 0.0

    def look_at(self, counts: NDArray[np.float64]) -> None:
        """Take counts into account, all above 0 and finite."""
        if not counts.size:
            return
        self._smallest = min(self._smallest, float(counts.min()))
        self._largest = max(self._largest, float(counts.max()))
        with np.errstate(over="ignore"):  # Beyond float64 is told by `choose_unit`.
            self._total += float(counts.sum())
        while self._left and not _fits(counts, self._left[0]):
            del self._left[0]

    def look_at_ones(self, size: int) -> None:
        """Take `size` counts of 1 into account."""
        self.look_at(np.ones(min(size, 1)))
        self._total += max(size - 1, 0)

    def choose_unit(self) -> int:
        """Return the unit; raise CountsError where no unit holds both the smallest count and the sum of all."""
        if self._total >= 2.0**_TOTAL_BITS:
            raise CountsError(
                f"counts up to {self._largest:g} add up to {self._total:g}, above the most that is summed exactly "
                f"({2**_TOTAL_BITS:.2g}); scale them"
            )
        for unit in self._left:
            if self._total * unit < 2.0**_TOTAL_BITS:
                return unit
        return self._choose_binary()

    def _choose_binary(self) -> int:
        smallest, largest = math.floor(math.log2(self._smallest)), math.ceil(math.log2(self._largest))
        bits = min(_GOOD_BITS - smallest, _STORED_BITS - largest)
        bits = max(bits, _FAIR_BITS - smallest, 0)
        bits = min(bits, _TOTAL_BITS - math.ceil(math.log2(self._total)), _MOST_BITS)
        if bits < max(3 - smallest, 0) and largest < 3 - _MOST_BITS:
            raise CountsError(
                f"counts up to {self._largest:g} are too small to be summed exactly (in units of 2^-{_MOST_BITS} or "
                "more); scale them"
            )
        if bits < max(3 - smallest, 0):
            raise CountsError(
                f"counts from {self._smallest:g} to {self._largest:g} are too far apart to be summed exactly; "
                "leave out the smallest, or scale them"
            )
        return 1 << bits


def _fits(counts: NDArray[np.float64], unit: int) -> bool:
    scaled = counts * unit
    whole = np.rint(scaled)
    return bool((np.abs(scaled - whole) <= _TOLERANCE * whole).all())
