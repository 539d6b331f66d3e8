"""SHA-256 checksums of files and arrays; large ones are computed in pieces, on several cores.

The checksum of up to `PIECE_BYTES` bytes is their SHA-256 digest, in hexadecimal. That of more bytes is `PREFIX` and
the SHA-256 digest of the digests of their pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.runtime.parallel import map_in_order
from swivel.runtime.resources import count_cores

PIECE_BYTES = 1 << 24
PREFIX = "16MiB:"
_READ_BYTES = 1 << 21  # After each read, a thread waits for Python's lock if other threads use it.
_MAX_THREADS = 8  # Memory and disk are not faster for more of them.
_limit = _MAX_THREADS  # of the last call that has run options


def limit_threads(threads: int) -> None:
    """Compute checksums on at most so many threads from now on."""
    global _limit
    _limit = min(threads, _MAX_THREADS)


def digest_file(path: Path) -> str:
    """Return the checksum of a file."""
    return _digest(lambda start: digest_range(path, start, PIECE_BYTES), path.stat().st_size)


def digest_range(path: Path, start: int, size: int) -> bytes:
    """Return the SHA-256 digest of up to `size` bytes of a file."""
    digest = hashlib.sha256()
    stop = start + size
    # One buffer per range, so that memory does not depend on the size of the file.
    buffer = np.empty(_READ_BYTES, np.uint8).data
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < stop and (read := file.readinto(buffer[: stop - start])):
            digest.update(buffer[:read])
            start += read
    return digest.digest()


def digest_array(values: NDArray[Any]) -> str:
    """Return the checksum of the bytes of an array.

    >>> digest_array(np.zeros(1 << 24, np.uint8))[:16], digest_array(np.zeros(1 << 25, np.uint8))[:16]
    ('080acf35a507ac98', '16MiB:5dbb5561c9')
    """
    return digest_bytes(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)


def digest_bytes(*buffers: bytes | memoryview) -> str:
    """Return the checksum of the bytes of some buffers, one after the other."""
    ends = np.cumsum([len(buffer) for buffer in buffers]).tolist()

    def digest_piece(start: int) -> bytes:
        digest = hashlib.sha256()
        for buffer, end in zip(buffers, ends, strict=True):
            first = end - len(buffer)
            digest.update(buffer[max(start - first, 0) : max(start + PIECE_BYTES - first, 0)])
        return digest.digest()

    return _digest(digest_piece, ends[-1])


def _digest(digest_piece: Callable[[int], bytes], size: int) -> str:
    """Return the checksum of `size` bytes; `digest_piece` returns the digest of the piece that begins at a byte."""
    if size <= PIECE_BYTES:
        return digest_piece(0).hex()

    # SHA-256 of one core is slower than a disk: pieces are computed side by side.
    whole = hashlib.sha256()
    for digest in map_in_order(digest_piece, range(0, size, PIECE_BYTES), threads=min(count_cores(), _limit)):
        whole.update(digest)
    return PREFIX + whole.hexdigest()
