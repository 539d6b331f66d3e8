"""Convert a document to Markdown that refers to figures as PNG files in a folder beside it."""

from __future__ import annotations

import re

from swivel.reports.document.model import Block, Cell, Details, Document, Heading, Paragraph, Picture, Table

FIGURES = "figures"  # the folder of the figures


def write_markdown(document: Document) -> str:
    r"""Return a document as Markdown.

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
