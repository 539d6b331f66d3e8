"""One way in: whatever holds counts, as a matrix.

Receives a source and settings, hands on a finished `Matrix`. The source is read once, into scratch files inside the
folder of the matrix; then labels are sorted by their sums and the cells go to the builder. Nothing half-written stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swivel.config import result_settings
from swivel.counts import Matrix, building_bytes, open_matrix
from swivel.counts.importers.baskets import BasketSpill, check_basket_sides
from swivel.counts.importers.build import ImportTarget, build_matrix
from swivel.counts.importers.config import ImportConfig, refuse_idle_settings
from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.detect import ImportSource, find_source
from swivel.counts.importers.glove import read_label_file
from swivel.counts.importers.labels import as_labels
from swivel.counts.importers.spill import CellSpill
from swivel.errors import ConfigError, CountsError, FolderExists, StorageError, clear_errors
from swivel.runtime.estimates import ResourceEstimate, check_libraries
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import track
from swivel.storage import MANIFEST, fingerprint, hold_folder, read_manifest, remove_tree, scratch_folder, sweep_folder

# A line of triples is 12 bytes or more; its cell takes 16 in the scratch folder and 8 in the matrix. Packed files take
# more: what they need is known when they are read.
SCRATCH_PER_BYTE = 2
_MEMORY_PER_BYTE = 5  # of scratch: labels and the cells that are sorted at a time, as far as the budget goes
_ADVICE = "leave out the rarest labels"

Labels = str | Path | Sequence[str] | Sequence[int] | None


def import_counts(
    source: Any,
    out: str | Path | None = None,
    *,
    row_labels: Labels = None,
    column_labels: Labels = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Matrix:
    """Import somebody's counts and return the matrix, kept in the folder `out` or in a temporary one.

    Parameters
    ----------
    source
        A path, a glob, a folder or several of them: triples as text (also compressed), Parquet, Arrow or Feather; .npz,
        Matrix Market, GloVe's cooccurrence.bin, a folder of the 2017 TensorFlow Swivel, baskets. Or an object: a scipy
        sparse matrix, an array, a table of pandas, polars or pyarrow, a dictionary from (row, column) to a count, an
        iterable of (row, column, count).
    row_labels, column_labels
        What the rows and columns of a matrix are called, or a file that says so, one a line.
    settings
        Fields of ImportConfig: format, sides, fields, header, separator, comment, window, weight, largest_basket,
        drop_empty.

    Raises
    ------
    CountsError
        With the file and the line, row or cell, for what is no count or no label, and for damaged files.

    Examples
    --------
    >>> matrix = import_counts([("tea", "milk", 2), ("tea", "sugar", 1), ("tea", "milk", 3)])
    >>> matrix.count("tea", "milk"), matrix.shape
    (5.0, (1, 2))
    """
    options = options or RunOptions()
    config = _make_config(settings)
    found = find_source(source, config)
    refuse_idle_settings(config, found.format, found.name)
    named = _Named(_read_labels(row_labels), _read_labels(column_labels))
    inputs = found.fingerprints()
    if inputs and (named.rows is not None or named.columns is not None):
        inputs["labels"] = fingerprint([named.rows, named.columns])
    with _folder_or_temporary(out) as path:
        target = ImportTarget(path, {"import": result_settings(config)}, inputs)
        if out is not None and _is_done(target, options):
            return open_matrix(path)
        with hold_folder(path):
            check_libraries("importing")
            matrix = _import(found, config, named, target, options)
    if out is None:
        weakref.finalize(matrix, remove_tree, path)
    return matrix


@dataclasses.dataclass(frozen=True, slots=True)
class _Named:
    rows: list[str] | None
    columns: list[str] | None


def _make_config(settings: dict[str, Any]) -> ImportConfig:
    names = [field.name for field in dataclasses.fields(ImportConfig)]
    for setting in settings:
        if setting in {field.name for field in dataclasses.fields(RunOptions)}:
            raise ConfigError(f"{setting} is given as options=Means({setting}=...): it does not change the result")
        if setting not in names:
            raise ConfigError(f"{setting!r} is not a setting of importing; known are {', '.join(names)}")
    return ImportConfig(**settings)


def _read_labels(labels: Labels) -> list[str] | None:
    if labels is None:
        return None
    if not isinstance(labels, (str, Path)):
        return as_labels(np.array(list(labels), object))
    if not Path(labels).is_file():
        raise StorageError(f"{labels}: no such file of labels")
    with clear_errors(labels):
        return read_label_file(Path(labels))


@contextlib.contextmanager
def _folder_or_temporary(out: str | Path | None) -> Iterator[Path]:
    """Yield the folder to write; what was not there before is gone if the block fails."""
    path = Path(tempfile.mkdtemp(prefix="swivel-")) if out is None else Path(out)
    is_new = out is None or not path.exists()
    try:
        yield path
    except BaseException:
        if is_new:
            remove_tree(path)
        raise


def _is_done(target: ImportTarget, options: RunOptions) -> bool:
    """Return whether the folder was made from exactly this; raise where it was made from something else."""
    if options.overwrite or not (target.path / MANIFEST).exists():
        return False
    manifest = read_manifest(target.path)
    is_same = manifest.stage == "matrix" and (manifest.config, manifest.inputs) == (target.config, target.inputs)
    if not target.inputs or not is_same:
        raise FolderExists(
            f"{target.path}: finished already, from other counts or with other settings; "
            "choose another folder or pass --overwrite"
        )
    sweep_folder(target.path)
    options.progress.message(f"{target.path}: finished already, nothing to do")
    return True


def _import(
    found: ImportSource, config: ImportConfig, named: _Named, target: ImportTarget, options: RunOptions
) -> Matrix:
    sides = config.sides or found.default_sides
    if found.is_baskets:
        sides = check_basket_sides(sides)
    if found.format == "edges" and config.comment is None:
        config = dataclasses.replace(config, comment="#")
    if found.files and found.size:
        disk = int(found.size * SCRATCH_PER_BYTE)
        memory = min(options.memory_bytes, _MEMORY_PER_BYTE * disk)
        ResourceEstimate("importing", disk, memory, disk, _ADVICE).announce(target.path, options.progress)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder(target.path))
        spill = BasketSpill(scratch, config, sides) if found.is_baskets else CellSpill(scratch)
        stack.callback(spill.close_files)
        reading = _read(found, spill, config, sides, named, options)
        spill.close(found.name)
        cells = getattr(spill, "length", 0)
        reading.settle(cells)
        disk, memory = building_bytes(cells, options.memory_bytes)
        ResourceEstimate("building", disk, memory, disk, _ADVICE).check(target.path)
        try:
            return build_matrix(spill, reading, target, options)
        except CountsError as error:
            raise CountsError(f"{found.name}: {error}") from error


def _read(
    found: ImportSource, spill: Any, config: ImportConfig, sides: str, named: _Named, options: RunOptions
) -> ImportContext:
    """Read the whole source into the spill."""
    with (
        clear_errors("the source"),
        track(options.progress, "reading", found.size, "bytes" if found.files else "rows") as task,
    ):
        reading = ImportContext(config, sides, options.memory_bytes, task, named.rows, named.columns)
        for chunk in found.read(reading):
            spill.add(chunk)
    return reading
