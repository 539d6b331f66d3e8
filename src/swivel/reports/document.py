"""Documents of headings, paragraphs, tables and figures, and their conversion to Markdown.

`reports.html` converts the same documents to HTML, so that both have the same content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

FIGURES = "figures"  # the folder beside a Markdown file with its figures as PNG files


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


def write_markdown(document: Document) -> str:
    r"""Return a document as Markdown that refers to figures as PNG files in a folder beside it.

    >>> write_markdown(Document("Report", "Of something.", (Paragraph("Few words."),)))
    '# Report\n\nOf something.\n\nFew words.\n'
    """
    blocks = [f"# {document.title}", _escape(document.subtitle), *(_block(block) for block in document.blocks)]
    return "\n\n".join(blocks) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {_escape(text)}"
        case Paragraph(text):
            return _escape(text)
        case Table():
            return _table(block)
        case Picture(name, caption, _):
            return f"![{name}]({FIGURES}/{name}.png)\n\n{_escape(caption)}"
        case Details(summary, blocks):
            return "\n\n".join([f"### {_escape(summary)}", *(_block(inner) for inner in blocks)])


def _table(table: Table) -> str:
    rule = ["---"] + (["---"] if table.is_text else ["---:"]) * (len(table.header) - 1)
    rows = [[_escape(name) for name in table.header], rule, *([_cell(cell) for cell in row] for row in table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(cell: Cell) -> str:
    text = _escape_all(cell.text)
    if cell.is_best:
        text = f"**{text}**"

    small = f"({_escape_all(cell.small)})" if cell.small else ""
    return " ".join(part for part in (text, cell.mark, small) if part)


def _escape(text: str) -> str:
    """Return text with Markdown's special characters escaped, except between backticks, which mark code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part.replace("|", "\\|") if part.startswith("`") else _escape_all(part) for part in parts)


def _escape_all(text: str) -> str:
    """Return text with all of Markdown's special characters escaped, for words of a vocabulary (which may be "`")."""
    return re.sub(r"([\\*_|<>\[\]`])", r"\\\1", text)
