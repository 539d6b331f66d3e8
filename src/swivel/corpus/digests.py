"""Digests of the content of files, computed on all cores and kept in manifests.

A manifest has the digest of each file with its full path, size, times and inode. If all of these are unchanged, the
file is not read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from swivel.errors import CorpusError, StorageError, clear_errors
from swivel.runtime.parallel import map_in_order
from swivel.runtime.progress import Progress, track
from swivel.storage.manifest import digest_range, read_manifest

SOURCES = "sources"  # key of the digests in the facts of a manifest
_CHUNK_BYTES = 64 << 20  # hashed by one thread; the digest of a file is that of the digests of its chunks
_COARSE_NS = 2 * 10**9  # With the coarsest times (FAT), a file may change for so long without another time.

# By full path: what this process has computed or found in a manifest, of files that had not just changed.
_known: dict[str, FileDigest] = {}


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Digest of the content of a file, with the properties that change if the file does."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    digest: str = ""


def full_path(file: Path) -> str:
    """Return the absolute path of a file; links are not resolved."""
    return os.path.abspath(file)  # noqa: PTH100 (Path.absolute keeps "..")


def digest_files(
    files: Iterable[Path], *, known: Path | None, threads: int, progress: Progress
) -> dict[str, FileDigest]:
    """Return the digests of files by full path; those in the manifest of the folder `known` are not computed again."""
    recorded = (_read_recorded(known) if known is not None else {}) | _known
    digests_by_path: dict[str, FileDigest] = {}
    changed: dict[str, FileDigest] = {}
    started = time.time_ns()

    for file in files:
        path = full_path(file)
        with clear_errors(file, CorpusError):
            status = file.stat()
        now = FileDigest(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        before = recorded.get(path)

        if before is not None and now == replace(before, digest=""):
            digests_by_path[path] = _known[path] = before
        else:
            changed[path] = now

    for path, digest in _compute_digests(changed, threads, progress).items():
        digests_by_path[path] = replace(changed[path], digest=digest)
        # A file that changed a moment ago may change again without another time.
        if max(changed[path].mtime_ns, changed[path].ctime_ns) + _COARSE_NS < started:
            _known[path] = digests_by_path[path]
    return digests_by_path


def to_facts(digests: dict[str, FileDigest]) -> dict[str, Any]:
    """Return digests as facts of a manifest, from which `digest_files` reads them."""
    # Those of files that changed just before they were hashed are left out: a later change may not show in their times.
    return {SOURCES: {path: asdict(digest) for path, digest in digests.items() if digest == _known.get(path)}}


def _read_recorded(folder: Path) -> dict[str, FileDigest]:
    """Return the digests in a manifest."""
    with contextlib.suppress(StorageError, TypeError, AttributeError):
        sources = read_manifest(folder).facts.get(SOURCES, {})
        return {path: FileDigest(**fields) for path, fields in sources.items()}
    return {}


def _compute_digests(files: dict[str, FileDigest], threads: int, progress: Progress) -> dict[str, str]:
    """Return the digest of each file by its path; large files are hashed by several threads."""
    if not files:
        return {}

    chunks = [(path, start) for path, file in files.items() for start in range(0, max(file.size, 1), _CHUNK_BYTES)]
    hashes = {path: hashlib.sha256() for path in files}
    with track(progress, "comparing files", sum(file.size for file in files.values()), "bytes") as task:
        digests = map_in_order(_digest_chunk, chunks, threads=threads)
        for (path, start), digest in zip(chunks, digests, strict=True):
            hashes[path].update(digest)
            task.advance(min(files[path].size - start, _CHUNK_BYTES))

    return {path: whole.hexdigest() for path, whole in hashes.items()}


def _digest_chunk(chunk: tuple[str, int]) -> bytes:
    path, start = chunk
    with clear_errors(path, CorpusError):
        return digest_range(Path(path), start, _CHUNK_BYTES)
