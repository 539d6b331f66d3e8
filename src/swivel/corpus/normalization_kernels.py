"""The compiled search for text that needs to be normalized; it lets other threads run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.tokenizer_kernels import decode_point
from swivel.runtime.kernels import njit_cached

HIGH_BITS = np.uint64(0x8080808080808080)
_compile = njit_cached(nogil=True, _nrt=False)


@_compile
def find_unstable_runs(data: NDArray[np.uint8], is_unstable: NDArray[np.bool_], runs: NDArray[np.int64]) -> int:
    """Write where normalization may change text, as first and last (exclusive) byte; return how many runs there are.

    A run begins with the character before, to which the others may be joined. If there are more than `runs` has lines,
    the result is one more than that.
    """
    count = 0
    at = previous = 0
    words = data[: data.size // 8 * 8].view(np.uint64)  # eight bytes at a time, most of which are ASCII
    while at < data.size:
        if at % 8 == 0 and at // 8 < words.size and words[at // 8] & HIGH_BITS == 0:
            previous = at + 7
            at += 8
            continue
        if data[at] < 0x80:
            previous = at
            at += 1
            continue
        point, size = decode_point(data, at)
        if point < 0 or not is_unstable[point]:
            previous = at
            at += size
            continue

        if count == len(runs):
            return count + 1
        while at < data.size and point >= 0 and is_unstable[point]:
            at += size
            if at < data.size:
                point, size = decode_point(data, at)
        runs[count, 0], runs[count, 1] = previous, at
        count += 1
    return count
