"""The report as plain blocks, from which its two faces are written.

Nothing here knows HTML or Markdown, and nothing there knows a result: twins that cannot drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a table: its text, something small below it, whether it is the best, and a mark beside it."""

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
    """A table; its first column is text, the others are numbers unless `is_text`."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure: the name of its files, what it shows, and itself as SVG."""

    name: str
    caption: str
    svg: bytes


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that are folded away where a page can do that."""

    summary: str
    blocks: tuple[Paragraph | Table, ...]


Block = Heading | Paragraph | Table | Picture | Details


@dataclass(frozen=True, slots=True)
class Document:
    """A report: its title, one sentence below it, and the blocks."""

    title: str
    subtitle: str
    blocks: tuple[Block, ...]


def say_value(value: Any) -> str:
    """Return a value of the settings for people.

    >>> say_value(None), say_value(True), say_value(98304), say_value(0.05), say_value(["a", "b"])
    ('not set', 'yes', '98,304', '0.05', 'a, b')
    """
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(say_value, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
