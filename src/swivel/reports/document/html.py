"""Convert a document to one self-contained HTML page, with light and dark colors."""

from __future__ import annotations

import html
import re

from swivel.reports.document.model import Block, Cell, Details, Document, Heading, Paragraph, Picture, Table
from swivel.reports.plots.style import FAINT, INK, PAPER

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1d; --soft: #6a6a72; --faint: #8a8a90; --rule: #e2e2e6;
  --paper: #fdfdfc; --best: #0a5f96; --band: #f3f6f8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e3; --soft: #a2a2a8; --faint: #85858c; --rule: #34343a;
  --paper: #17181a; --best: #7cc0ee; --band: #1e2226; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font: 1.0625rem/1.55 Charter, "Bitstream Charter", "Sitka Text", Cambria, Georgia, serif; }
main { max-width: 72rem; margin: 0 auto; padding: 3.5rem 1.25rem 5rem; }
h1 { font-size: 2rem; line-height: 1.2; font-weight: 600; margin: 0 0 .4rem; letter-spacing: -.01em; }
.subtitle { color: var(--soft); font-size: 1.15rem; margin: 0 0 2.5rem; max-width: 44rem; }
h2 { font-size: 1.3rem; font-weight: 600; margin: 3.2rem 0 .6rem; }
p { margin: .6rem 0 1rem; max-width: 44rem; }
code { font: .88em ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.scroll { overflow-x: auto; margin: 1.2rem 0 1.6rem; }
table { border-collapse: collapse; font: .9rem/1.35 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-variant-numeric: tabular-nums; min-width: 100%; }
th { text-align: right; font-weight: 500; color: var(--soft); padding: .35rem .45rem; white-space: nowrap;
  border-bottom: 1px solid var(--faint); vertical-align: bottom; }
td { text-align: right; padding: .45rem .45rem; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.text th, .text td { text-align: left; }
.text td { white-space: normal; }
.text td:nth-child(-n+2) { white-space: nowrap; }
tbody tr:hover { background: var(--band); }
small { display: block; color: var(--soft); font-size: .76rem; }
td:first-child small { white-space: normal; max-width: 10rem; }
.best { color: var(--best); font-weight: 650; }
.mark { color: var(--soft); font-size: .7rem; margin-left: .2em; }
figure { margin: 1.6rem 0 2.2rem; }
figure svg { width: 100%; height: auto; max-width: 50rem; display: block; }
figcaption { color: var(--soft); font-size: .95rem; max-width: 44rem; margin-top: .5rem; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--soft); }
@media (max-width: 40rem) { figure { overflow-x: auto; } figure svg { min-width: 36rem; }
  .text td:nth-child(n+4) { min-width: 11rem; } }
@media print { main { max-width: none; padding: 0; } details { display: block; } }
"""


def write_html(document: Document) -> str:
    """Return a document as a complete HTML page, with its styles and figures inline."""
    body = "\n".join(_block(block) for block in document.blocks)
    title = html.escape(document.title)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
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
    if cell.is_best:
        content = f'<span class="best">{content}</span>'
    if cell.mark:
        content += f'<span class="mark">{html.escape(cell.mark)}</span>'
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
