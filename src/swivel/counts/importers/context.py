"""State of one import that all readers share: settings, labels of rows and columns, progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swivel.counts.importers.config import ImportConfig
from swivel.counts.importers.labels import LabelTable, Side, make_places
from swivel.errors import ConfigError, CountsError
from swivel.runtime.progress import Task


@dataclass(slots=True)
class ImportContext:
    """State of one import.

    Attributes
    ----------
    config
        Settings of the import.
    row_side, column_side
        Table of labels, or positions of a matrix; the same object if rows and columns are the same things.
    row_labels, column_labels
        Labels for the rows and columns of a matrix, from the user or from the format.
    sides
        Relation of rows and columns (see `ImportConfig.sides`); some readers set it from the file.
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
        # All labels together may take half of the memory.
        budget = self.memory_bytes // (2 if self.is_shared else 4)
        self.row_side = LabelTable(memory_bytes=budget)
        self.column_side = self.row_side if self.is_shared else LabelTable(memory_bytes=budget)

    @property
    def is_shared(self) -> bool:
        """Whether rows and columns are the same things."""
        return self.sides != "apart"

    @property
    def rows(self) -> LabelTable:
        """The label table of the rows, for readers of labeled sources."""
        assert isinstance(self.row_side, LabelTable)
        return self.row_side

    @property
    def columns(self) -> LabelTable:
        """The label table of the columns, for readers of labeled sources."""
        assert isinstance(self.column_side, LabelTable)
        return self.column_side

    @property
    def used_bytes(self) -> int:
        """Memory of the label tables in bytes."""
        tables = {id(side): side for side in (self.row_side, self.column_side)}.values()
        return sum(side.used_bytes for side in tables if isinstance(side, LabelTable))

    def advance(self, amount: float) -> None:
        """Report progress: `amount` more bytes or rows of the source are read."""
        self.task.advance(amount)

    def set_shape(self, rows: int, columns: int, name: str) -> None:
        """Declare that ids are positions in a matrix of this shape, not labels."""
        if self.is_shared and rows != columns:
            raise CountsError(
                f"{name}: {rows:,} rows and {columns:,} columns cannot be the same things; pass sides='apart'"
            )
        self._shape = (rows, columns)
        self._name = name

    def settle(self, counts: int) -> None:
        """Create the positions of a matrix after reading, when its number of counts is known."""
        if self._shape is None:
            if self.row_labels is not None or self.column_labels is not None:
                raise ConfigError("row_labels and column_labels are for matrices; this source has its own labels")
            return

        rows, columns = self._shape
        self.row_side = make_places(rows, self.row_labels, counts, self._name, "rows")
        if self.is_shared:
            self.column_side = self.row_side
        else:
            self.column_side = make_places(columns, self.column_labels, counts, self._name, "columns")
