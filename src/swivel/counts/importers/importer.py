"""`import_counts`: build a matrix from a source of counts.

The source is read once, into scratch files in the folder of the matrix. Then labels are sorted by their sums, and the
builder writes the matrix. If the import fails, no partial result remains.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swivel.config import result_settings
from swivel.corpus import digest_sources, to_facts
from swivel.counts.builder import building_bytes
from swivel.counts.importers.baskets import BasketSpill
from swivel.counts.importers.build import build_matrix
from swivel.counts.importers.context import ImportContext, as_labels
from swivel.counts.importers.detect import ImportSource, find_source
from swivel.counts.importers.glove import read_label_file
from swivel.counts.importers.import_config import FORMATS, IN_MEMORY, ImportConfig, refuse_idle_settings
from swivel.counts.importers.spill import CellSpill
from swivel.counts.matrix import Matrix
from swivel.counts.matrix_folder import open_matrix
from swivel.errors import ConfigError, CountsError, StorageError, clear_errors
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import track
from swivel.runtime.resources import ResourceEstimate, check_libraries
from swivel.storage.manifest import fingerprint
from swivel.storage.output_folder import check_output, has_result, open_work_folder
from swivel.storage.temporary import scratch_folder

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
    """Import counts of another tool and return the matrix, in memory or opened from the folder `out`.

    Parameters
    ----------
    source
        A path, glob or folder, or several of them: triples as text (also compressed), Parquet, Arrow or Feather; .npz,
        Matrix Market, GloVe's cooccurrence.bin, baskets. Or an object: a SciPy sparse matrix, an array, a pandas,
        polars or pyarrow table, a dictionary from (row, column) to a count, an iterable of (row, column, count).
    out
        Folder of the matrix; None for a matrix in memory.
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
    origin = find_source(source, config, out)
    refuse_idle_settings(config, origin.format, origin.name)

    labels = [_read_labels(row_labels), _read_labels(column_labels)]
    label_files = [Path(file) for file in (row_labels, column_labels) if isinstance(file, (str, Path))]

    output = check_output(out, [*origin.local_files, *label_files], options)
    record: dict[str, Any] = {"config": {"import": result_settings(config)}}
    if output is not None:
        digests = digest_sources(
            origin.local_files, known=output, threads=options.thread_count, progress=options.progress
        )
        record["inputs"] = origin.fingerprints(digests)
        if record["inputs"] and labels != [None, None]:
            record["inputs"]["labels"] = fingerprint(labels)
        if has_result(output, "matrix", record, options):
            return open_matrix(output)
        record["facts"] = to_facts(digests)

    # The cells of an object whose size is known stay in memory, like the matrix, unless that is stored.
    in_memory = output is None and not origin.files and origin.size is not None
    with contextlib.nullcontext() if in_memory else open_work_folder(output) as path:
        check_libraries("importing")
        matrix = _import(origin, config, labels, path, record, options)
        return matrix if output is not None else matrix.to_memory()


def _make_config(settings: dict[str, Any]) -> ImportConfig:
    names = [field.name for field in dataclasses.fields(ImportConfig)]
    for setting in settings:
        if setting in {field.name for field in dataclasses.fields(RunOptions)}:
            raise ConfigError(f"{setting} does not change the result; pass options=RunOptions({setting}=...)")
        if setting not in names:
            raise ConfigError(f"{setting!r} is not a setting of import_counts; the settings are {', '.join(names)}")
    if isinstance(settings.get("fields"), (list, tuple)):
        names = [str(name) for name in settings["fields"]]
        if any("," in name for name in names):
            raise ConfigError(
                f"fields cannot have names with a comma, got {names!r}; pass their positions, from 1", argument="fields"
            )
        settings = {**settings, "fields": ",".join(names)}
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


def _import(
    source: ImportSource,
    config: ImportConfig,
    labels: Sequence[list[str] | None],
    path: Path | None,
    provenance: Mapping[str, Any],
    options: RunOptions,
) -> Matrix:
    sides = config.sides or FORMATS.get(source.format, IN_MEMORY).sides
    if source.format == "baskets" and sides == "apart":
        raise ConfigError(
            "sides must be mirrored or same for baskets, because items are rows and columns; got 'apart'",
            argument="sides",
        )
    if source.format == "baskets" and sides == "undirected":
        sides = "mirrored"
    if source.format == "edges" and config.comment is None:
        config = dataclasses.replace(config, comment="#")

    options = options.fix_memory()
    if source.files and source.size:
        disk = int(source.size * SCRATCH_PER_BYTE)
        memory = min(options.memory_bytes, _MEMORY_PER_BYTE * disk)
        ResourceEstimate("importing", disk, memory, disk, _ADVICE).announce(path, options.progress)

    with contextlib.ExitStack() as stack:
        scratch = None if path is None else stack.enter_context(scratch_folder(path))
        spill = BasketSpill(scratch, config, sides) if source.format == "baskets" else CellSpill(scratch)
        for file in spill.files:
            stack.callback(file.close)

        unit = "bytes" if source.files else "rows"
        with clear_errors("the source"), track(options.progress, "reading", source.size, unit) as task:
            context = ImportContext(config, sides, options.memory_bytes, task, labels[0], labels[1])
            for chunk in source.read(context):
                spill.add(chunk)

        spill.finish(source.name)
        cells = spill.length or 0
        context.settle(cells)
        disk, memory = building_bytes(cells, options.memory_bytes)
        ResourceEstimate("building", disk, memory, disk, _ADVICE).check(path)

        try:
            return build_matrix(spill, context, path, provenance, options)
        except CountsError as error:
            raise CountsError(f"{source.name}: {error}") from error
