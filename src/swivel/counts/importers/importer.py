"""`import_counts`: build a matrix from a source of counts.

The source is read once, into scratch files in the folder of the matrix. Then labels are sorted by their sums, and the
builder writes the matrix. If the import fails, no partial result remains.
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

# A line of triples has at least 12 bytes; its cell takes 16 bytes in the scratch folder and 8 in the matrix. Compressed
# files take more, which is known only after reading.
SCRATCH_PER_BYTE = 2
_MEMORY_PER_BYTE = 5  # per byte of scratch: labels and sorted cells, up to the memory budget
_ADVICE = "remove the rarest labels"

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
    """Import counts of another tool and return the matrix, stored in the folder `out` or in a temporary one.

    Parameters
    ----------
    source
        A path, glob or folder, or several of them: triples as text (also compressed), Parquet, Arrow or Feather; .npz,
        Matrix Market, GloVe's cooccurrence.bin, a folder of the 2017 TensorFlow Swivel, baskets. Or an object: a SciPy
        sparse matrix, an array, a pandas, polars or pyarrow table, a dictionary from (row, column) to a count, an
        iterable of (row, column, count).
    out
        Folder of the matrix; None for a temporary folder that is deleted with the matrix object.
    row_labels, column_labels
        Labels of the rows and columns of a matrix, or a file with one label per line.
    options
        Memory, threads and progress.
    settings
        Fields of ImportConfig: format, sides, fields, header, separator, comment, window, weight, largest_basket,
        drop_empty.

    Raises
    ------
    CountsError
        For invalid counts and labels and for damaged files, with the file and the line, row or cell.

    Examples
    --------
    >>> matrix = import_counts([("tea", "milk", 2), ("tea", "sugar", 1), ("tea", "milk", 3)])
    >>> matrix.count("tea", "milk"), matrix.shape
    (5.0, (1, 2))
    """
    options = options or RunOptions()
    config = _make_config(settings)
    import_source = find_source(source, config)
    refuse_idle_settings(config, import_source.format, import_source.name)

    named = _Named(_read_labels(row_labels), _read_labels(column_labels))
    inputs = import_source.fingerprints()
    if inputs and (named.rows is not None or named.columns is not None):
        inputs["labels"] = fingerprint([named.rows, named.columns])

    with _folder_or_temporary(out) as path:
        target = ImportTarget(path, {"import": result_settings(config)}, inputs)
        if out is not None and _is_done(target, options):
            return open_matrix(path)
        with hold_folder(path):
            check_libraries("importing")
            matrix = _import(import_source, config, named, target, options)

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
            raise ConfigError(f"{setting} does not change the result; pass options=RunOptions({setting}=...)")
        if setting not in names:
            raise ConfigError(f"{setting!r} is not a setting of import_counts; the settings are {', '.join(names)}")
    return ImportConfig(**settings)


def _read_labels(labels: Labels) -> list[str] | None:
    if labels is None:
        return None
    if not isinstance(labels, (str, Path)):
        return as_labels(np.array(list(labels), object))
    if not Path(labels).is_file():
        raise StorageError(f"{labels}: no such label file")

    with clear_errors(labels):
        return read_label_file(Path(labels))


@contextlib.contextmanager
def _folder_or_temporary(out: str | Path | None) -> Iterator[Path]:
    """Yield the output folder; if the block fails, delete it unless it existed before."""
    path = Path(tempfile.mkdtemp(prefix="swivel-")) if out is None else Path(out)
    is_new = out is None or not path.exists()

    try:
        yield path
    except BaseException:
        if is_new:
            remove_tree(path)
        raise


def _is_done(target: ImportTarget, options: RunOptions) -> bool:
    """Return whether the folder is the result of the same import; raise FolderExists if it is another result."""
    if options.overwrite or not (target.path / MANIFEST).exists():
        return False

    manifest = read_manifest(target.path)
    is_same = manifest.stage == "matrix" and (manifest.config, manifest.inputs) == (target.config, target.inputs)
    if not target.inputs or not is_same:
        raise FolderExists(
            f"{target.path}: already contains a result from other counts or settings; "
            "choose another folder or pass overwrite"
        )

    sweep_folder(target.path)
    options.progress.message(f"{target.path}: finished already, nothing to do")
    return True


def _import(
    import_source: ImportSource, config: ImportConfig, named: _Named, target: ImportTarget, options: RunOptions
) -> Matrix:
    sides = config.sides or import_source.default_sides
    if import_source.is_baskets:
        sides = check_basket_sides(sides)
    if import_source.format == "edges" and config.comment is None:
        config = dataclasses.replace(config, comment="#")

    if import_source.files and import_source.size:
        disk = int(import_source.size * SCRATCH_PER_BYTE)
        memory = min(options.memory_bytes, _MEMORY_PER_BYTE * disk)
        ResourceEstimate("importing", disk, memory, disk, _ADVICE).announce(target.path, options.progress)

    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder(target.path))
        spill = BasketSpill(scratch, config, sides) if import_source.is_baskets else CellSpill(scratch)
        stack.callback(spill.close_files)
        context = _read(import_source, spill, config, sides, named, options)
        spill.close(import_source.name)

        cells = getattr(spill, "length", 0)
        context.settle(cells)
        disk, memory = building_bytes(cells, options.memory_bytes)
        ResourceEstimate("building", disk, memory, disk, _ADVICE).check(target.path)

        try:
            return build_matrix(spill, context, target, options)
        except CountsError as error:
            raise CountsError(f"{import_source.name}: {error}") from error


def _read(
    import_source: ImportSource, spill: Any, config: ImportConfig, sides: str, named: _Named, options: RunOptions
) -> ImportContext:
    """Read the whole source into the spill and return the context with its labels."""
    with (
        clear_errors("the source"),
        track(options.progress, "reading", import_source.size, "bytes" if import_source.files else "rows") as task,
    ):
        context = ImportContext(config, sides, options.memory_bytes, task, named.rows, named.columns)
        for chunk in import_source.read(context):
            spill.add(chunk)

    return context
