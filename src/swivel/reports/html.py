"""Convert a document to one self-contained HTML page, with light and dark colors."""

from __future__ import annotations

import html
import re
from importlib.resources import files

from swivel.reports.document import Block, Cell, Details, Document, Heading, Paragraph, Picture, Table
from swivel.reports.plots.style import FAINT, INK, PAPER


def write_html(document: Document) -> str:
    """Return a document as a complete HTML page, with its styles and figures inline."""
    style = files("swivel").joinpath("data", "report.css").read_text(encoding="utf-8")
    body = "\n".join(_block(block) for block in document.blocks)
    title = html.escape(document.title)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f'<p class="subtitle">{_text(document.subtitle)}</p>\n{body}\n</main>\n</body>\n</html>\n'
    )


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{_text(text)}</h2>"
        case Paragraph(text):
            return f"<p>{_text(text)}</p>"
        case Table():
            return _table(block)
        case Picture(name, caption, svg):
            figure = inline_svg(svg, name, caption)
            return f"<figure>\n{figure}\n<figcaption>{_text(caption)}</figcaption>\n</figure>"
        case Details(summary, blocks):
            inner = "\n".join(_block(each) for each in blocks)
            return f"<details>\n<summary>{_text(summary)}</summary>\n{inner}\n</details>"


def _table(table: Table) -> str:
    kind = ' class="text"' if table.is_text else ""
    names = "".join(f'<th scope="col">{_text(name)}</th>' for name in table.header)
    head = f"<thead><tr>{names}</tr></thead>\n" if any(table.header) else ""
    rows = "\n".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in table.rows)
    return f'<div class="scroll"><table{kind}>\n{head}<tbody>\n{rows}\n</tbody>\n</table></div>'


def _cell(cell: Cell) -> str:
    # Cells may contain any word of a vocabulary, so backticks in them do not mean code: no `_text` here.
    content = html.escape(cell.text)
    if cell.small:
        content += f"<small>{html.escape(cell.small)}</small>"
    return f"<td>{content}</td>"


def _text(text: str) -> str:
    """Return escaped text, with text between backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def inline_svg(svg: bytes, name: str, caption: str) -> str:
    """Return an SVG file as an element of the page, with the colors of the page and with ids that are unique in it."""
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)

    # Several figures share the page: prefix the ids of each, and the references to them, with its name.
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", text)

    # The style sheet sets the size, and the viewBox keeps the proportions.
    for side in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?)\s{side}="[^"]*"', r"\1", text, count=1)

    # CSS variables make the figure follow the light or dark colors of the page.
    for color, variable in ((INK, "var(--ink)"), (FAINT, "var(--faint)"), (PAPER, "var(--paper)")):
        text = re.sub(re.escape(color), variable, text, flags=re.IGNORECASE)

    label = html.escape(caption.replace("`", ""))
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
