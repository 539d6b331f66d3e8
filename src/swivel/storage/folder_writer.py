"""Writing of result folders: parts, then the manifest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from swivel.errors import FolderExists, StorageError, clear_errors
from swivel.storage import files
from swivel.storage.checksums import digest_file
from swivel.storage.lock import lock_folder
from swivel.storage.manifest import MANIFEST, Manifest, Part, read_manifest, seal, to_json
from swivel.storage.npy import write_array
from swivel.storage.overlap import refuse_foreign
from swivel.storage.safetensors import write_tensors
from swivel.storage.temporary import remove_file, writing

_LINES_PER_WRITE = 1 << 16


class FolderWriter:
    """Writer of a result folder: write the parts, then call `finish` to write the manifest.

    >>> import tempfile
    >>> import numpy as np
    >>> from swivel.storage.manifest import open_folder
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with create_folder(Path(parent) / "new", "example") as folder:
    ...         folder.write_array("numbers.npy", np.arange(3))
    ...         folder.finish(config={}, inputs={}, facts={"size": 3})
    ...     open_folder(Path(parent) / "new", "example").array("numbers.npy").tolist()
    [0, 1, 2]
    """

    def __init__(self, path: Path, stage: str) -> None:
        self.path = path
        self.stage = stage
        self._parts: dict[str, Part] = {}

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """Write lines of text as the part `name`, in UTF-8."""
        remaining = iter(lines)
        with self._create_part(name) as file:
            while batch := list(islice(remaining, _LINES_PER_WRITE)):
                file.write(("\n".join(batch) + "\n").encode())

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        """Write an array as the part `name`, in `.npy` format."""
        # The file is not memory-mapped: a full disk then raises an OSError and does not kill the process.
        with self._create_part(name) as file:
            write_array(file, array)

    def write_tensors(self, name: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays as the part `name`, in safetensors format."""
        with self._create_part(name) as file:
            write_tensors(file, tensors)

    @contextlib.contextmanager
    def _create_part(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a temporary file to write, and adopt the file if the block succeeds."""
        with writing(self.path / name) as temporary:
            with temporary.open("xb") as file:
                yield file
            self.adopt(name, temporary)

    def adopt(self, name: str, file: Path) -> None:
        """Flush a complete file on the same disk and rename it; Windows cannot if it is memory-mapped."""
        with clear_errors(file), ThreadPoolExecutor(1) as pool:
            flushed = pool.submit(files.flush, file)  # The disk works while the checksum is computed.
            part = Part(file.stat().st_size, digest_file(file))
            flushed.result()

            # The old result stays complete until the first new part is on the disk.
            self._remove_previous_result()
            self._parts[name] = part
            file.replace(self.path / name)

    def _remove_previous_result(self) -> None:
        """Remove the previous result when the first new part is complete; its manifest is removed first."""
        if self._parts or not (self.path / MANIFEST).exists():
            return

        with clear_errors(self.path):
            try:
                parts = list(read_manifest(self.path).parts)
            except StorageError:
                parts = []

            # The manifest first: a folder must never look complete with parts of two results.
            for name in (MANIFEST, *parts):
                (self.path / name).unlink(missing_ok=True)

    def finish(self, *, config: Any, inputs: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        """Write the manifest, which makes the folder complete: settings, fingerprints of the inputs, other facts."""
        parts = dict(sorted(self._parts.items()))
        manifest = Manifest(self.stage, to_json(config), dict(inputs), dict(facts), parts)

        # Also if the result has no parts at all.
        self._remove_previous_result()
        with clear_errors(self.path):
            files.flush(self.path)  # The parts must be on disk before the manifest is.
            files.write_file(self.path / MANIFEST, seal(asdict(manifest)))
            try:
                files.flush(self.path)
            except OSError:
                # The new directory entry may not survive a power failure, so the folder must not count as complete.
                remove_file(self.path / MANIFEST)
                raise

    def remove_parts(self) -> None:
        """Remove the parts that were written, unless the folder is complete."""
        if not (self.path / MANIFEST).exists():
            for name in self._parts:
                remove_file(self.path / name)


@contextlib.contextmanager
def create_folder(path: str | Path, stage: str, *, overwrite: bool = False) -> Iterator[FolderWriter]:
    """Yield the writer of a folder, which is locked against other processes while the block runs.

    Files in the folder that are not parts are kept. Raises FolderExists if the folder is complete, unless `overwrite`
    is True: its parts are then removed when the first new part is complete. If the block raises before the folder is
    complete, the new parts are removed.
    """
    path = Path(path)
    if not overwrite:
        refuse_foreign(path, stage)

    with lock_folder(path):
        if not overwrite and (path / MANIFEST).exists():
            raise FolderExists(f"{path}: finished already; choose another folder or pass overwrite=True")

        writer = FolderWriter(path, stage)
        try:
            yield writer
        except BaseException:
            writer.remove_parts()
            raise
