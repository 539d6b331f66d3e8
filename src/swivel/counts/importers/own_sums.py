"""Sums of rows and columns that are imported because cells are missing: read, and compared with the cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swivel.config import POSITIVE, plain_number
from swivel.corpus.vocabulary import to_label
from swivel.counts.block_layout import Ints
from swivel.counts.builder import OwnSums
from swivel.counts.importers.context import MAX_TOTAL_BITS, ImportContext, LabelTable
from swivel.counts.importers.delimited import read_label_numbers
from swivel.errors import ConfigError, CountsError, StorageError, clear_errors

Floats: TypeAlias = NDArray[np.float64]
_TOLERANCE = 1e-6  # relative, for sums that were rounded

Sums = str | Path | Mapping[Any, float] | Sequence[float] | None


@dataclass(frozen=True, slots=True)
class GivenSums:
    """Sums by label, or by position in a matrix; None if the sums of the cells are meant."""

    rows: dict[str, float] | None = None
    columns: dict[str, float] | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", plain_number(self.total))  # JSON cannot store a number of NumPy
        if self.total is not None and not POSITIVE.holds(self.total):
            raise ConfigError(f"total must be {POSITIVE.words}, got {self.total!r}", argument="total")
        if self.rows is None and (self.columns is not None or self.total is not None):
            name = "total" if self.columns is None else "column_sums"
            raise ConfigError(f"{name} has no effect without row_sums; pass both", argument=(name, "row_sums"))

    def settle(self, cells: CellSums, unit: int, context: ImportContext) -> OwnSums | None:
        """Return the sums in units, in the order of the labels of `context`; None if none were given.

        Raises CountsError for sums that the cells contradict.
        """
        if self.rows is None:
            return None
        is_symmetric = context.sides in ("mirrored", "undirected")
        if (self.columns is None) != is_symmetric:
            problem = "the table is symmetric, and its column sums are its row sums: omit column_sums"
            if not is_symmetric:
                problem = "row_sums need column_sums, too; or pass sides='mirrored' if the table is symmetric"
            raise ConfigError(problem, argument=("row_sums", "column_sums", "sides"))

        sums = [_find_sums(self.rows, context.labels[0], cells.rows, "row", context)]
        if self.columns is not None:
            sums.append(_find_sums(self.columns, context.labels[1], cells.columns, "column", context))
        totals = [sum(given.values()) for given in (self.rows, self.columns) if given is not None]
        if self.total is None and abs(totals[0] - totals[-1]) > _TOLERANCE * totals[0]:
            raise CountsError(
                f"the row sums add up to {totals[0]:,.15g}, the column sums to {totals[1]:,.15g}; pass total, the sum "
                "of all counts",
                argument="total",
            )
        total = totals[0] if self.total is None else self.total
        if max(total, *totals) * unit >= 2.0**MAX_TOTAL_BITS:
            raise CountsError(f"sums up to {max(total, *totals):g} in units of 1/{unit:,} are too large; scale them")

        # A person or basket is in several cells of a row, so that their sum may be more than the number of persons.
        # The counts of marked cells are guesses.
        has_total = self.total is not None
        limits = cells.largest if has_total or context.marked else (cells.rows, cells.columns)
        least = "the sum of its cells" if limits is not cells.largest else "its largest cell"
        most = total if has_total else np.inf
        for side, labels, values, limit in zip(("row", "column"), context.labels, sums, limits, strict=False):
            _compare(values, (limit / unit, most), labels, side, least)

        rows, *others = (np.rint(values * unit).astype(np.int64) for values in sums)
        return OwnSums(rows, others[0] if others else rows, round(total * unit))


@dataclass(frozen=True, slots=True)
class CellSums:
    """Sums and largest counts of the cells, in units, in the order of the labels."""

    rows: Ints
    columns: Ints  # the same array as `rows` if the table is symmetric
    largest: tuple[Ints, Ints]  # without marked cells


def read_sums(given: Sums, argument: str) -> dict[str, float] | None:
    """Return sums by label from a file, a mapping or a Series; those of a sequence have their positions as labels."""
    if given is None:
        return None
    if isinstance(given, (str, Path)):
        if not Path(given).is_file():
            raise StorageError(f"{given}: no such file of sums")
        with clear_errors(given):
            labels, values, name = _read_file(Path(given))
    else:
        name = argument
        pairs: Iterable[tuple[Any, Any]] = given.items() if hasattr(given, "items") else enumerate(given)
        items = [(to_label(label), value) for label, value in pairs]
        labels = [label for label, _ in items]
        try:
            values = np.array([value for _, value in items], np.float64)
        except (TypeError, ValueError):
            raise ConfigError(f"{argument} must be numbers by label, or a file of them", argument=argument) from None

    wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
    if wrong.size:
        at = wrong[0]
        raise CountsError(f"{name}: the sum of {labels[at]!r} is {values[at]:g}; sums must be finite and not negative")
    return dict(zip(labels, values.tolist(), strict=True))


def _read_file(file: Path) -> tuple[list[str], Floats, str]:
    table = LabelTable(memory_bytes=1 << 62)
    numbers = []
    for texts, values, place in read_label_numbers(file):
        known = len(table)
        ids = table.look_up(texts, place)
        repeated = np.flatnonzero(ids != np.arange(known, known + len(ids)))
        if repeated.size:
            raise CountsError(f"{place(int(repeated[0]))}: {table.labels()[ids[repeated[0]]]!r} occurs twice")
        numbers.append(values)
    if not numbers:
        raise CountsError(f"{file}: there are no sums")
    return table.labels(), np.concatenate(numbers), str(file)


def _find_sums(
    given: Mapping[str, float], labels: Sequence[str], cell_sums: Ints, side: str, context: ImportContext
) -> Floats:
    """Return the sum of each label; 0 for those without cells, unless they are rows or columns of a matrix."""
    if context.shape is not None and given.keys() == set(map(str, range(len(labels)))):
        labels = list(map(str, range(len(labels))))  # by position
    for label, has_cells in zip(labels, (cell_sums > 0).tolist(), strict=True):
        if has_cells and label not in given:
            raise CountsError(f"{side}_sums has no sum of {label!r}", argument=f"{side}_sums")
    values = np.array([given.get(label, 0.0) for label in labels])
    is_kept = context.shape is not None and not context.config.drop_empty
    return values if is_kept else np.where(cell_sums > 0, values, 0.0)


def _compare(values: Floats, bounds: tuple[Floats, float], labels: Sequence[str], side: str, least: str) -> None:
    """Raise CountsError for the first sum that is smaller than what the cells say (`least`), or larger than a bound."""
    limits, most = bounds
    for is_wrong, problem, numbers in (
        (values < (1 - _TOLERANCE) * limits, f"smaller than {least}", limits),
        (values > most, "larger than the total", np.full(len(values), most)),
    ):
        if is_wrong.any():
            at = int(is_wrong.argmax())
            raise CountsError(
                f"the sum {values[at]:,.15g} of {side} {labels[at]!r} is {problem}, {numbers[at]:,.15g}",
                argument=f"{side}_sums",
            )
