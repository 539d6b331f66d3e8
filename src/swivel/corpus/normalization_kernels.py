"""The compiled check of whether text needs to be normalized; it lets other threads run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.tokenizer_kernels import decode_point
from swivel.runtime.kernels import njit_cached

_compile = njit_cached(nogil=True, _nrt=False)


@_compile
def find_unstable(data: NDArray[np.uint8], is_unstable: NDArray[np.bool_]) -> int:
    """Return the position of the first character that normalization may change, or -1."""
    at = 0
    while at < data.size:
        if data[at] < 0x80:
            at += 1
            continue
        point, size = decode_point(data, at)
        if point >= 0 and is_unstable[point]:
            return at
        at += size
    return -1
