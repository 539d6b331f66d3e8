"""The blocks of a report, independent of the output format, so that HTML and Markdown have the same content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: text, a small note below it, whether it is the best of its column, and a mark beside it."""

    text: str
    small: str = ""
    is_best: bool = False
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; text between backticks is code."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The first column is text; the others are numbers unless `is_text` is set."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure: the name of its files without extension, its caption, and its SVG data."""

    name: str
    caption: str
    svg: bytes


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that are collapsed below a summary where the format allows it."""

    summary: str
    blocks: tuple[Paragraph | Table, ...]


Block = Heading | Paragraph | Table | Picture | Details


@dataclass(frozen=True, slots=True)
class Document:
    """A report: a title, one sentence below it, and the blocks."""

    title: str
    subtitle: str
    blocks: tuple[Block, ...]


def say_value(value: Any) -> str:
    """Return the value of a setting as text for the reader of a report.

    >>> say_value(None), say_value(True), say_value(98304), say_value(0.05), say_value(["a", "b"])
    ('not set', 'yes', '98,304', '0.05', 'a, b')
    """
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(say_value, value))
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
