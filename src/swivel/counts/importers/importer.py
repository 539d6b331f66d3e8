"""`import_counts`: build a matrix from a source of counts.

The source is read once, into scratch files in the folder of the matrix. Then labels are sorted by their sums, and the
builder writes the matrix. If the import fails, no partial result remains.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig, result_settings, settings_of
from swivel.corpus.sources import (
    PACKED_SUFFIXES,
    STDIN,
    TEXT_IN_MEMORY,
    can_compare,
    list_paths,
    record_sources,
)
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.block_layout import Ints, UnitCells
from swivel.counts.builder import MatrixBuilder, MatrixSpec, OwnSums, building_bytes
from swivel.counts.importers import arrow, baskets, graphs, matrix_readers
from swivel.counts.importers import import_tables as tables
from swivel.counts.importers.baskets import BasketSpill
from swivel.counts.importers.context import CellSpill, ImportContext, as_labels
from swivel.counts.importers.events import EventSpill, PersonTable
from swivel.counts.importers.import_config import (
    FORMATS,
    GRAPHS,
    IN_MEMORY,
    ImportConfig,
    WalkConfig,
    refuse_idle_settings,
)
from swivel.counts.importers.matrix_readers import VOCABULARY, read_label_file
from swivel.counts.importers.own_sums import CellSums, GivenSums, Sums, read_sums
from swivel.counts.importers.walks import Graph, count_walks, make_graph
from swivel.counts.matrix import Matrix, open_matrix
from swivel.errors import IS_TEXT_HINT, ConfigError, CorpusError, CountsError, StorageError, clear_errors
from swivel.runtime.numbers import plural
from swivel.runtime.options import RunOptions, check_names, make_options
from swivel.runtime.progress import Progress, track
from swivel.runtime.resources import ResourceEstimate, check_libraries
from swivel.storage.lock import scratch_folder
from swivel.storage.manifest import fingerprint
from swivel.storage.object_digest import digest_object
from swivel.storage.output_folder import check_output, has_result, open_work_folder

# A line of triples has at least 12 bytes; its cell takes 16 bytes in the scratch folder and 8 in the matrix. Compressed
# files take more, which is known only after reading.
SCRATCH_PER_BYTE = 2
_MEMORY_PER_BYTE = 5  # per byte of scratch: labels and sorted cells, up to the memory budget
_MIN_BYTES = 1 << 17  # of memory for the builder
_ADVICE = "remove the rarest labels"

Labels = str | Path | Sequence[str] | Sequence[int] | None
Spill: TypeAlias = CellSpill | BasketSpill | EventSpill
Reader = Callable[[Any, ImportContext], Iterator[Any]]  # yields chunks, or batches of baskets


def import_counts(
    source: Any,
    out: str | Path | None = None,
    *,
    row_labels: Labels = None,
    column_labels: Labels = None,
    row_sums: Sums = None,
    column_sums: Sums = None,
    total: float | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Matrix:
    """Import counts of another tool and return the matrix, in memory or opened from the folder `out`.

    Parameters
    ----------
    source
        A path, glob or folder, or several of them: triples as text (also compressed), Parquet, Arrow or Feather; .npz,
        Matrix Market, GloVe's cooccurrence.bin, baskets, crosstabs, edge lists, GraphML, GML. Or an object: a SciPy
        sparse matrix, an array, a pandas, polars or pyarrow table, a dictionary from (row, column) to a count, an
        iterable of (row, column, count), a graph of networkx, igraph or PyTorch Geometric.
    out
        Folder of the matrix; None for a matrix in memory.
    row_labels, column_labels
        Labels of the rows and columns of a matrix, or a file with one label per line.
    row_sums, column_sums
        Sums by label, in a mapping or a file with a label and a sum per line, or by position, if cells are missing from
        the source. A symmetric table has row sums only.
    total
        Sum of all counts, if it is not that of `row_sums`; the number of persons or baskets if the sums are those with
        a row.
    options
        Memory, threads and progress; its fields can be passed as keywords instead.
    settings
        Fields of ImportConfig: format, sides, fields, header, separator, comment, largest_basket, suppressed_below,
        drop_empty. Fields of WalkConfig: walks, step_weights, smallest_count, walks_per_node, p, q, walk_seed; see
        `walk_counts`.

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
    options = make_options(options, settings)
    config, walks = make_configs(settings)
    origin = find_source(source, config, out)
    refuse_idle_settings(config, origin.format, origin.name)

    labels = [_read_labels(row_labels), _read_labels(column_labels)]
    sums = GivenSums(read_sums(row_sums, "row_sums"), read_sums(column_sums, "column_sums"), total)
    further_files = [
        Path(file) for file in (row_labels, column_labels, row_sums, column_sums) if isinstance(file, (str, Path))
    ]

    output = check_output(out, [*origin.local_files, *further_files], options)
    record: dict[str, Any] = {"config": {"import": result_settings(config)}}
    if origin.format in GRAPHS or walks.walks is not None:
        record["config"]["graph"] = result_settings(walks)
    if output is not None:
        inputs, record["facts"] = record_sources(origin.local_files, CorpusConfig(), output, options)
        if not origin.files:
            inputs = {TEXT_IN_MEMORY: digest_object(source) or TEXT_IN_MEMORY}
        record["inputs"] = inputs
        if labels != [None, None]:
            inputs["labels"] = fingerprint(labels)
        if sums != GivenSums():
            inputs["sums"] = fingerprint(sums)
        if has_result(output, "matrix", record, options, is_comparable=can_compare(inputs)):
            return open_matrix(output)

    # The cells of an object whose size is known stay in memory, like the matrix, unless that is stored.
    in_memory = output is None and not origin.files and origin.size is not None and walks.walks is None
    with contextlib.nullcontext() if in_memory else open_work_folder(output) as path:
        check_libraries("importing")
        matrix = _import(origin, config, walks, labels, sums, path, record, options)
        return matrix if output is not None else matrix.to_memory()


def walk_counts(
    graph: Any,
    out: str | Path | None = None,
    *,
    window: int | None = None,
    weights: str = "uniform",
    options: RunOptions | None = None,
    **settings: Any,
) -> Matrix:
    """Count the nodes that are on one random walk, and return a matrix of nodes by nodes, which also has the edges.

    The counts are expected ones, the sum over t of w_t D P^t for steps t of 1 to `window`, with the degrees D and the
    transition matrix P. Graphs that are too large for them are sampled. Expected counts are the same for any number of
    threads, bit by bit, and so are samples of one seed.

    Parameters
    ----------
    graph
        A graph, its file, or what else `import_counts` takes: pairs of nodes, an adjacency matrix.
    out
        Folder of the matrix; None for a matrix in memory.
    window
        Longest walk between two nodes that are counted; by default as many steps as suit the graph.
    weights : {"uniform", "harmonic", "geometric"}
        Weight w_t of nodes that are t steps apart: 1, 1/t or 2^(1-t).
    options
        Memory, threads and progress.
    settings
        Other settings of `import_counts`: smallest_count (omit smaller expected counts), walks_per_node (sample so many
        walks), p and q (of node2vec, which samples), walk_seed, sides, fields, ...

    Examples
    --------
    >>> matrix = walk_counts([("ann", "bob"), ("bob", "cid")], window=2)
    >>> matrix.count("ann", "bob"), matrix.count("ann", "cid")
    (1.0, 0.5)
    """
    walks = 0 if window is None else window
    return import_counts(graph, out, options=options, walks=walks, step_weights=weights, **settings)


def make_configs(settings: Mapping[str, Any]) -> tuple[ImportConfig, WalkConfig]:
    """Return the settings of an import and of its walks; raise ConfigError for a name that is none of them."""
    check_names(settings, ImportConfig, WalkConfig)
    # Positions may be numbers, and so may a time without a unit.
    texts = ("by", "code", "time", "within")
    settings = {name: str(v) if name in texts and type(v) in (int, float) else v for name, v in settings.items()}
    if isinstance(settings.get("fields"), (list, tuple)):
        names = [str(name) for name in settings["fields"]]
        if any("," in name for name in names):
            raise ConfigError(
                f"fields cannot have names with a comma, got {names!r}; pass their positions, from 1", argument="fields"
            )
        settings = {**settings, "fields": ",".join(names)}
    return ImportConfig(**settings_of(settings, ImportConfig)), WalkConfig(**settings_of(settings, WalkConfig))


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
    walks: WalkConfig,
    labels: Sequence[list[str] | None],
    sums: GivenSums,
    path: Path | None,
    provenance: Mapping[str, Any],
    options: RunOptions,
) -> Matrix:
    is_paired = source.format == "baskets" or config.by is not None
    if is_paired or walks.walks is not None:
        what = "walks" if not is_paired else "baskets" if config.by is None else "events"
        _refuse_missing_cells(config, sums, what)
    sides = config.sides or ("mirrored" if is_paired else FORMATS.get(source.format, IN_MEMORY).sides)
    if walks.walks is not None and sides == "apart":
        if config.sides == "apart":
            raise ConfigError("walks need a graph, whose rows and columns are the same: omit sides", argument="sides")
        sides = "undirected"
    if is_paired and sides != "mirrored":
        raise ConfigError(f"a pair of a basket counts in both orders: omit sides, got {sides!r}", argument="sides")
    if source.format == "edges" and config.comment is None:
        config = dataclasses.replace(config, comment="#")

    options = options.fix_memory()
    if source.files and source.size:
        disk = int(source.size * SCRATCH_PER_BYTE)
        memory = min(options.memory_bytes, _MEMORY_PER_BYTE * disk)
        ResourceEstimate("importing", disk, memory, disk, _ADVICE).announce(path, options.progress)

    with contextlib.ExitStack() as stack:
        scratch = None if path is None else stack.enter_context(scratch_folder(path))
        unit = "bytes" if source.files else "rows"
        with clear_errors("the source"), track(options.progress, "reading", source.size, unit) as task:
            context = ImportContext(config, sides, options.memory_bytes, task, labels[0], labels[1])
            spill = _open_spill(source, scratch, context)
            for file in spill.files:
                stack.callback(file.close)
            for chunk in source.read(context):
                spill.add(context.fill_marked(chunk))

        context.rows = context.columns if context.is_shared else context.rows  # after those of persons
        spill.finish(source.name)
        cells = spill.length or 0
        context.settle(cells)
        if walks.walks is not None:
            assert path is not None  # of a result in memory, too
            return count_walks(_make_graph(source, spill, context, options), walks, path, provenance, options)

        disk, memory = building_bytes(cells, options.memory_bytes)
        ResourceEstimate("building", disk, memory, disk, _ADVICE).check(path)

        try:
            return build_matrix(spill, context, path, provenance, options, sums)
        except CountsError as error:
            raise CountsError(f"{source.name}: {error}", argument=error.arguments) from error


def _open_spill(source: ImportSource, scratch: Path | None, context: ImportContext) -> Spill:
    """Return where the cells are kept that a source has, or is counted from."""
    if context.config.by is not None:
        context.rows = PersonTable(memory_bytes=context.memory_bytes)
        return EventSpill(scratch, context)
    return BasketSpill(scratch) if source.format == "baskets" else CellSpill(scratch)


def _refuse_missing_cells(config: ImportConfig, sums: GivenSums, what: str) -> None:
    """Raise ConfigError for settings of missing cells if all cells are counted here."""
    name = "suppressed_below" if config.suppressed_below is not None else "row_sums"
    if config.suppressed_below is not None or sums.rows is not None:
        raise ConfigError(f"{name} has no effect on {what}, whose counts are all there: omit it", argument=name)


def _make_graph(source: ImportSource, spill: Spill, context: ImportContext, options: RunOptions) -> Graph:
    """Return the graph of the spilled cells."""
    is_matrix = context.shape is not None and source.format != "graph" and context.config.sides is None
    pieces = list(spill.pieces(options.thread_count))
    rows, columns, units = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    # Those of baskets are their pairs, in both orders.
    return make_graph(context.labels[0], (rows, columns, units / spill.unit), None if is_matrix else context.sides)


def build_matrix(
    spill: Spill,
    context: ImportContext,
    path: Path | None,
    provenance: Mapping[str, Any],
    options: RunOptions,
    given: GivenSums | None = None,
) -> Matrix:
    """Write the matrix of the spilled cells, with `provenance` in its manifest, and return it."""
    sums = None
    if not isinstance(spill, CellSpill):
        row_sums = column_sums = spill.count_items(len(context.labels[0]))
    else:
        cell_sums = _sum_sides(spill, context, options.thread_count)
        row_sums, column_sums = cell_sums.rows, cell_sums.columns
        sums = None if given is None else given.settle(cell_sums, spill.unit, context)
        if sums is not None:
            row_sums, column_sums, _ = sums
        if context.sides == "same":  # Rows and columns have one order, by the sum of both.
            row_sums = column_sums = row_sums + column_sums

    rows, row_places = _rank(context.labels[0], row_sums, spill.unit, context)
    columns: Vocabulary | None = None
    column_places = row_places
    if not context.is_shared:
        columns, column_places = _rank(context.labels[1], column_sums, spill.unit, context)

    symmetric = context.sides in ("mirrored", "undirected")
    spec = MatrixSpec(rows=rows, columns=columns, unit=spill.unit, symmetric=symmetric)
    memory = max(context.memory_bytes - context.rows.used["bytes"], _MIN_BYTES)
    builder = MatrixBuilder(path, spec, memory_bytes=memory, threads=options.thread_count, overwrite=options.overwrite)

    cells = spill.length
    if cells is not None and context.sides == "undirected":
        cells *= 2
    with builder, track(options.progress, "building", cells, "cells") as task:
        for row_ids, column_ids, units in _walk_cells(spill, context, options.thread_count):
            places = column_places[column_ids]
            _refuse_one_sided(row_ids, column_ids, places < 0, context)
            builder.add(row_places[row_ids], places, units)
            task.advance(units.size)

        if sums is not None:
            orders = [np.argsort(places)[np.count_nonzero(places < 0) :] for places in (row_places, column_places)]
            rows_of_sums = sums.rows[orders[0]]
            columns_of_sums = rows_of_sums if symmetric else sums.columns[orders[1]]
            sums = OwnSums(rows_of_sums, columns_of_sums, sums.total)
        absent_units = _find_bound(context, spill.unit, options.progress)
        if context.marked:
            provenance = {**provenance, "facts": {**provenance.get("facts", {}), "marked_cells": context.marked}}
        return builder.finish(**provenance, sums=sums, absent_units=absent_units)


def _find_bound(context: ImportContext, unit: int, progress: Progress) -> int:
    """Return the largest count, in units, of a cell that is not in the source, and report it."""
    limit = context.config.suppressed_below
    if limit is None:
        return 0
    # A source that marks suppressed cells marks all of them.
    if context.marked:
        cells = plural(context.marked, "marked cell")
        progress.message(f"{cells} read as {context.marked_count:g}; cells that are not in the source have 0")
        return 0

    units = math.ceil(limit * unit) - 1
    progress.message(f"cells that are not in the source have at most {units / unit:g} instead of 0")
    return units


def _walk_cells(spill: Spill, context: ImportContext, threads: int) -> Iterator[UnitCells]:
    """Yield rows, columns and units of all cells; if each pair is given once, in both orders."""
    for rows, columns, units in spill.pieces(threads):
        yield rows, columns, units
        if context.sides == "undirected":
            apart = rows != columns  # a diagonal cell is its own mirror
            yield columns[apart], rows[apart], units[apart]


def _sum_sides(spill: CellSpill, context: ImportContext, threads: int) -> CellSums:
    """Return the sums of the rows and columns in units, and their largest cells."""
    is_symmetric = context.sides in ("mirrored", "undirected")  # Every pair is there in both orders.
    shape = len(context.labels[0]), len(context.labels[1])
    row_sums, largest_of_rows = (np.zeros(shape[0], np.int64) for _ in range(2))
    column_sums, largest_of_columns = row_sums, largest_of_rows
    if not is_symmetric:
        column_sums, largest_of_columns = (np.zeros(shape[1], np.int64) for _ in range(2))

    mark = context.marked_count * spill.unit if context.marked else 0
    for rows, columns, units in _walk_cells(spill, context, threads):
        known = np.where(units <= mark, 0, units)
        np.add.at(row_sums, rows, units)
        np.maximum.at(largest_of_rows, rows, known)
        if not is_symmetric:
            np.add.at(column_sums, columns, units)
            np.maximum.at(largest_of_columns, columns, known)

    return CellSums(row_sums, column_sums, (largest_of_rows, largest_of_columns))


def _rank(labels: list[str], sums: Ints, unit: int, context: ImportContext) -> tuple[Vocabulary, Ints]:
    """Return the rows or columns by descending sum, and the position of each id among them, or -1."""
    # Equal sums are ordered by label, so that the order of the source does not matter, or by position in a matrix.
    is_labeled = context.shape is None
    order = np.arange(len(labels))
    if is_labeled:
        order = np.array(sorted(range(len(labels)), key=labels.__getitem__), np.int64)

    order = order[np.argsort(-sums[order], kind="stable")]
    if is_labeled or context.config.drop_empty:
        order = order[: int(np.count_nonzero(sums))]  # those without counts are last

    places = np.full(len(labels), -1, np.int64)
    places[order] = np.arange(order.size)
    counts = np.maximum((sums[order] + unit // 2) // unit, sums[order] > 0)

    return Vocabulary([labels[number] for number in order.tolist()], counts.tolist()), places


def _refuse_one_sided(rows: Ints, columns: Ints, is_missing: NDArray[np.bool_], context: ImportContext) -> None:
    """Raise CountsError for a column of mirrored cells that is never a row; only row sums were computed."""
    if is_missing.any():
        cell = int(is_missing.argmax())
        row = context.labels[0][rows[cell]]
        column = context.labels[0][columns[cell]]
        raise CountsError(
            f"the counts are not mirrored: {column!r} is a column of {row!r} but never a row; pass "
            "sides='undirected' if each pair is given once, sides='apart' if rows and columns are different things"
        )


@dataclass(frozen=True, slots=True)
class ImportSource:
    """A source of counts: its format, files and reader."""

    format: str  # one of `import_config.FORMATS`, or "memory" for an object
    files: tuple[Path, ...]  # in order; () for an object
    size: float | None  # bytes, rows or cells; None if unknown
    read: Callable[[ImportContext], Iterator[Any]]

    @property
    def name(self) -> str:
        """Name in messages: the first file and the number of further files."""
        if not self.files:
            return "the source"
        return f"{self.files[0]}" + (f" and {len(self.files) - 1:,} more" if len(self.files) > 1 else "")

    @property
    def local_files(self) -> list[Path]:
        """All files that are read, including the vocabulary of GloVe."""
        beside = [file.with_name(VOCABULARY) for file in self.files if self.format == "glove"]
        return [*(file for file in self.files if file != STDIN), *(file for file in beside if file.is_file())]


def find_source(source: Any, config: ImportConfig, out: str | Path | None = None) -> ImportSource:
    """Return the source behind a path, several paths or an object; raise ConfigError if its format is unknown."""
    # Nothing in the output folder `out` is part of a source.
    paths = [source] if isinstance(source, (str, Path)) else source
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, (str, Path)) for path in paths):
        return _find_object(source, config)
    if not paths:
        raise ConfigError("no source: pass a file, several files, or a folder")

    files = tuple(file for path in paths for file in _expand(path, out))
    names = {config.format or _guess_format(file) for file in files}
    if len(names) > 1:
        raise ConfigError(f"sources have several formats ({', '.join(sorted(names))}); import them separately")

    name = names.pop()
    format = FORMATS[name]
    if format.is_alone and len(files) > 1:
        raise ConfigError(f"{files[1]}: second source, but format {name} allows only one; import them separately")

    for file in files:
        if not format.may_be_packed and (file == STDIN or file.suffix.lower() in PACKED_SUFFIXES):
            shown = "standard input" if file == STDIN else str(file)
            raise CountsError(f"{shown}: {name} must be an uncompressed file; save or unpack it first")

    module, function = format.reader.split(".")
    reader: Reader = getattr(import_module(f"swivel.counts.importers.{module}"), function)

    def read(context: ImportContext) -> Iterator[Any]:
        for file in files:
            yield from reader(file, context)

    size = None if STDIN in files else sum(file.stat().st_size for file in files)
    return ImportSource(name, files, size, read)


def _expand(path: str | Path, out: str | Path | None) -> list[Path]:
    try:
        return list_paths(path, outside=out)
    except CorpusError as error:
        raise CountsError(str(error).removesuffix(IS_TEXT_HINT)) from None


def _guess_format(file: Path) -> str:
    # What precedes the suffix of a compression counts: visits.tsv.gz has triples.
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in PACKED_SUFFIXES]
    for name, format in FORMATS.items():
        if suffixes and suffixes[-1] in format.suffixes:
            return name

    known = ", ".join(suffix for format in FORMATS.values() for suffix in format.suffixes)
    raise ConfigError(f"{file}: unknown format; the name ends in none of {known}; pass format", argument="format")


def _find_object(source: Any, config: ImportConfig) -> ImportSource:
    if config.format not in (None, "triples", "edges", "baskets", "crosstab"):
        raise ConfigError(f"format {config.format} is for files; for an object in memory omit format")

    format = "memory"
    size: int | None = None
    reader: Reader
    if config.format == "baskets":
        format = "baskets"
        reader = baskets.read_basket_lists
    elif config.format == "crosstab":
        if not tables.is_frame(source) or type(source).__module__.partition(".")[0] == "pyarrow":
            raise ConfigError("format crosstab is for files and for tables of pandas and polars", argument="format")
        format = "crosstab"
        size = source.shape[0]
        reader = tables.read_wide_frame
    elif type(source).__module__.partition(".")[0] == "pyarrow":
        reader = arrow.read_table
    elif graphs.is_graph(source):
        format = "graph"
        size = source.number_of_edges() if hasattr(source, "number_of_edges") else None
        reader = graphs.read_graph
    elif matrix_readers.is_sparse(source):
        size = source.nnz
        reader = matrix_readers.read_sparse
    elif tables.is_frame(source):
        size = source.shape[0]
        reader = tables.read_frame
    elif hasattr(source, "__array__") and hasattr(source, "shape"):
        reader = matrix_readers.read_sparse
    else:
        format = config.format or "memory"
        is_mapping = isinstance(source, Mapping)
        size = len(source) if is_mapping else None
        reader = tables.read_mapping if is_mapping else tables.read_iterable

    if config.by is not None and reader not in (arrow.read_table, tables.read_frame, tables.read_iterable):
        raise ConfigError("by is for events in a table, one in a row", argument="by")
    if reader in (baskets.read_basket_lists, tables.read_iterable) and not isinstance(source, Iterable):
        raise CountsError(f"expected a path, a table, a matrix or triples to iterate over, got {type(source).__name__}")
    return ImportSource(format, (), size, lambda context: reader(source, context))
