"""The one tolerance for results whose last bits depend on the machine.

Tests compare bits only where the design fixes them on every machine: counts, stored files, training with the `cpu`
backend, and the same computation twice in one process with the same number of threads. Matrix products of torch and
numpy on several threads, in other shapes or in other processes add the same numbers up in another order; such results
are compared here.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def assert_equal_but_for_rounding(found: ArrayLike, expected: ArrayLike, *, terms: int) -> None:
    """Assert that two arrays of one dtype differ by no more than sums of `terms` numbers can round.

    In any order, a sum of n numbers is within n eps times the largest partial sum of the exact one. Elements are
    compared with the largest of the whole array, because a small one may be the difference of large ones.

    Parameters
    ----------
    found, expected
        Float arrays of equal shape and dtype; eps is that of the dtype.
    terms
        How many numbers are summed for one element, such as the columns of a block for the gradient of a row; times
        the number of steps, where several follow one another.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    largest = float(np.abs(expected).max(initial=0.0))
    allowed = terms * float(np.finfo(expected.dtype).eps) * largest
    np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)


def usual_rounding(terms: int) -> float:
    """Return the relative error that is usual for float32 sums of `terms` numbers, whatever their order.

    Each addition rounds by half an eps at most, up or down: n of them add up to about sqrt(n) of these.
    """
    return math.sqrt(terms) * float(np.finfo(np.float32).eps) / 2
