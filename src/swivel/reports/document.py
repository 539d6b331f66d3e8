"""Documents of headings, paragraphs, tables and figures, which `reports.html` converts to pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: text, and a small note below it."""

    text: str
    small: str = ""


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
    """A figure: its name, its caption, and its SVG data."""

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


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Return a table of two columns, the names of settings and their values; names of nested ones are joined by dots.

    >>> [[cell.text for cell in row] for row in facts_table({"dim": 98304, "train": {"seed": None, "on": True}}).rows]
    [['dim', '98,304'], ['train.seed', 'not set'], ['train.on', 'yes']]
    """
    return Table(("", ""), tuple((Cell(name), Cell(text)) for name, text in _flatten(facts)), is_text=True)


def _flatten(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, _format_value(value)


def _format_value(value: Any) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(_format_value, value))
        case int():
            return f"{value:,}"
        case float():
            return f"{value:g}"
    return str(value)
