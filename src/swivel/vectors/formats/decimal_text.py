"""The fewest digits that give a float32 back.

Receives float32 values, hands on texts. `repr` of a Python float writes the fewest digits that give a *float64* back,
so each value is first replaced by the float64 whose digits are those of the float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from swivel.vectors.search import Floats

_MOST, _FEWEST = 9, 6  # 9 digits always give a float32 back; 6 digits survive a float32, so no shorter one is missed
_POWERS = np.array([float(f"1e{power}") for power in range(23)])  # all of them exact
_SMALLEST, _LARGEST = 1e-14, 1e27  # between them no power above is missing


def join_digits(values: Floats, separator: str) -> list[str]:
    """Return each row's values as text.

    >>> join_digits(np.array([[0.1, -2, 1 / 3]], np.float32), " ")
    ['0.1 -2.0 0.33333334']
    """
    return [separator.join(map(repr, row)) for row in round_to_shortest(values).tolist()]


def round_to_shortest(values: Floats) -> NDArray[np.float64]:
    """Return the float64 with the fewest digits that rounds to each float32 (finite)."""
    exact = values.astype(np.float64)
    size = np.abs(exact)
    is_usual = (size >= _SMALLEST) & (size < _LARGEST)
    exponents = np.floor(np.log10(np.where(is_usual, size, 1.0))).astype(np.intp)
    result = exact.copy()
    for digits in range(_MOST, _FEWEST - 1, -1):
        rounded = _round_digits(exact, digits - 1 - exponents)
        np.copyto(result, rounded, where=is_usual & (rounded.astype(np.float32) == values))
    for place in zip(*np.nonzero(~is_usual & (size > 0)), strict=True):
        result[place] = float(str(values[place]))
    return result


def _round_digits(exact: NDArray[np.float64], decimals: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return values rounded to so many decimals, each the float64 nearest to its digits.

    That is one correctly rounded operation on two exact numbers: a whole one below 2^53 and a power of ten.
    """
    power = _POWERS[np.abs(decimals)]
    is_fraction = decimals >= 0
    whole = np.rint(np.where(is_fraction, exact * power, exact / power))
    return np.asarray(np.where(is_fraction, whole / power, whole * power))
