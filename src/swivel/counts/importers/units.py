"""Choose the unit of imported counts, so that they are summed exactly as integers in any order.

If the counts share no small unit, they are rounded to multiples of a power of 2 that suits the smallest and largest.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from swivel.errors import CountsError

# Whole numbers, halves and quarters, decimals, and windows of 1/t up to 10 and up to 16 (GloVe's is 15).
_CANDIDATES = (1, 4, 10, 100, 1_000, 2_520, 10_000, 720_720, 1_000_000)
_TOLERANCE = 1e-9  # relative, for rounding errors of float64
_GOOD_BITS = 24  # precision of the smallest count if possible: that of float32
_FAIR_BITS = 10  # precision of the smallest count at least: about 0.1 %
_STORED_BITS = 31  # cells of 2^32 units or more are stored separately
_TOTAL_BITS = 61
_MAX_BITS = 60  # largest unit: 2^60


class UnitFinder:
    """Finds the smallest unit in which all counts are integers.

    >>> finder = UnitFinder()
    >>> finder.look_at(np.array([0.5, 3.25]))
    >>> finder.choose_unit()
    4
    """

    def __init__(self) -> None:
        self._left = list(_CANDIDATES)
        self._smallest = math.inf
        self._largest = 0.0
        self._total = 0.0

    def look_at(self, counts: NDArray[np.float64]) -> None:
        """Take counts into account; all must be positive and finite."""
        if not counts.size:
            return

        self._smallest = min(self._smallest, float(counts.min()))
        self._largest = max(self._largest, float(counts.max()))
        with np.errstate(over="ignore"):  # `choose_unit` raises an error if the total overflows
            self._total += float(counts.sum())

        while self._left and not _fits(counts, self._left[0]):
            del self._left[0]

    def look_at_ones(self, size: int) -> None:
        """Take `size` counts of 1 into account."""
        self.look_at(np.ones(min(size, 1)))
        self._total += max(size - 1, 0)

    def choose_unit(self) -> int:
        """Return the unit; raise CountsError if no unit can represent both the smallest count and the total."""
        if self._total >= 2.0**_TOTAL_BITS:
            raise CountsError(
                f"counts up to {self._largest:g} add up to {self._total:g}, more than the largest exact sum "
                f"({2**_TOTAL_BITS:.2g}); scale them"
            )

        for unit in self._left:
            if self._total * unit < 2.0**_TOTAL_BITS:
                return unit

        return self._choose_binary()

    def _choose_binary(self) -> int:
        """Return the power of 2 that keeps the smallest count precise and the largest count in 32 bits."""
        smallest = math.floor(math.log2(self._smallest))
        largest = math.ceil(math.log2(self._largest))
        bits = min(_GOOD_BITS - smallest, _STORED_BITS - largest)
        bits = max(bits, _FAIR_BITS - smallest, 0)
        bits = min(bits, _TOTAL_BITS - math.ceil(math.log2(self._total)), _MAX_BITS)

        if bits < max(3 - smallest, 0) and largest < 3 - _MAX_BITS:
            raise CountsError(
                f"counts up to {self._largest:g} are too small for an exact sum (the smallest unit is 2^-{_MAX_BITS}); "
                "scale them"
            )
        if bits < max(3 - smallest, 0):
            raise CountsError(
                f"counts from {self._smallest:g} to {self._largest:g} are too far apart for an exact sum; "
                "remove the smallest, or scale them"
            )

        return 1 << bits


def _fits(counts: NDArray[np.float64], unit: int) -> bool:
    scaled = counts * unit
    whole = np.rint(scaled)
    return bool((np.abs(scaled - whole) <= _TOLERANCE * whole).all())
