"""What every reader is given: the settings, the two sides, and whom to tell how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swivel.counts.importers.config import ImportConfig
from swivel.counts.importers.labels import LabelTable, Side, make_places
from swivel.errors import ConfigError, CountsError
from swivel.runtime.progress import Task


@dataclass(slots=True)
class ImportContext:
    """One import under way.

    Attributes
    ----------
    config
        The settings.
    row_side, column_side
        Labels or places; the same object where rows and columns are the same things.
    row_labels, column_labels
        What the user calls the places of a matrix.
    sides
        What rows and columns are to each other; a reader of a format that says so sets it.
    """

    config: ImportConfig
    sides: str
    memory_bytes: int
    task: Task
    row_labels: Sequence[str] | None = None
    column_labels: Sequence[str] | None = None
    row_side: Side = field(init=False)
    column_side: Side = field(init=False)
    _shape: tuple[int, int] | None = None
    _name: str = ""

    def __post_init__(self) -> None:
        half = self.memory_bytes // (2 if self.is_shared else 4)
        self.row_side = LabelTable(memory_bytes=half)
        self.column_side = self.row_side if self.is_shared else LabelTable(memory_bytes=half)

    @property
    def is_shared(self) -> bool:
        """Whether rows and columns are the same things."""
        return self.sides != "apart"

    @property
    def rows(self) -> LabelTable:
        """The table of the rows' labels."""
        assert isinstance(self.row_side, LabelTable)
        return self.row_side

    @property
    def columns(self) -> LabelTable:
        """The table of the columns' labels."""
        assert isinstance(self.column_side, LabelTable)
        return self.column_side

    @property
    def used_bytes(self) -> int:
        """What the tables of labels take."""
        tables = {id(side): side for side in (self.row_side, self.column_side)}.values()
        return sum(side.used_bytes for side in tables if isinstance(side, LabelTable))

    def advance(self, amount: float) -> None:
        """Report that so much of the source is read."""
        self.task.advance(amount)

    def set_shape(self, rows: int, columns: int, name: str) -> None:
        """Say that ids are places in a matrix of this shape."""
        if self.is_shared and rows != columns:
            raise CountsError(f"{name}: {rows:,} rows and {columns:,} columns cannot be the same things (--sides)")
        self._shape, self._name = (rows, columns), name

    def settle(self, counts: int) -> None:
        """Make the places of a matrix, now that it is known how many counts it has."""
        if self._shape is None:
            if self.row_labels is not None or self.column_labels is not None:
                raise ConfigError("row_labels and column_labels name the places of a matrix; this source has labels")
            return
        rows, columns = self._shape
        self.row_side = make_places(rows, self.row_labels, counts, f"{self._name}: its rows")
        if self.is_shared:
            self.column_side = self.row_side
        else:
            self.column_side = make_places(columns, self.column_labels, counts, f"{self._name}: its columns")
