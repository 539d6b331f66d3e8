"""A document as Markdown, with its figures as files beside it."""

from __future__ import annotations

import re

from swivel.reports.document.model import Block, Cell, Details, Document, Heading, Paragraph, Picture, Table

FIGURES = "figures"  # the folder of the pictures


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
    text = f"**{text}**" if cell.is_best else text
    return " ".join(part for part in (text, cell.mark, f"({_escape_all(cell.small)})" if cell.small else "") if part)


def _escape(text: str) -> str:
    """Return text that Markdown leaves alone, but for what stands between backticks, which is code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part.replace("|", "\\|") if part.startswith("`") else _escape_all(part) for part in parts)


def _escape_all(text: str) -> str:
    """Return text that Markdown leaves alone: words of a vocabulary, of which some are backticks."""
    return re.sub(r"([\\*_|<>\[\]`])", r"\\\1", text)
