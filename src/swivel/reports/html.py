"""Reports as one self-contained HTML page, with light and dark colors.

The `write_...` functions return the parts of a page as HTML. Their arguments are plain text, which they escape.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from swivel.reports.plots import FAINT, INK, PAPER
from swivel.runtime.display import escape_controls

Cell = str | tuple[str, str]  # text, or text and a small note below it


def write_page(title: str, subtitle: str, parts: Iterable[str]) -> str:
    """Return a complete page of a title, a sentence below it, and the parts, with its styles and figures inline."""
    style = files("swivel").joinpath("data", "report.css").read_text(encoding="utf-8")
    body = "\n".join(parts)
    title = _escape(title)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f'<p class="subtitle">{_text(subtitle)}</p>\n{body}\n</main>\n</body>\n</html>\n'
    )


def write_heading(text: str) -> str:
    """Return the title of a section."""
    return f"<h2>{_text(text)}</h2>"


def write_paragraph(text: str) -> str:
    """Return a paragraph; text between backticks is code."""
    return f"<p>{_text(text)}</p>"


def write_details(summary: str, *parts: str) -> str:
    """Return parts that are collapsed below a summary."""
    inner = "\n".join(parts)
    return f"<details>\n<summary>{_text(summary)}</summary>\n{inner}\n</details>"


def write_picture(name: str, caption: str, svg: bytes) -> str:
    """Return a figure with its caption; its name must be unique in the page."""
    return f"<figure>\n{inline_svg(svg, name, caption)}\n<figcaption>{_text(caption)}</figcaption>\n</figure>"


def write_table(header: Sequence[str], rows: Iterable[Iterable[Cell]], *, is_text: bool = False) -> str:
    """Return a table. The first column is text; the others are numbers unless `is_text` is set."""
    kind = ' class="text"' if is_text else ""
    names = "".join(f'<th scope="col">{_text(name)}</th>' for name in header)
    head = f"<thead><tr>{names}</tr></thead>\n" if any(header) else ""
    body = "\n".join("<tr>" + "".join(map(write_cell, row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table{kind}>\n{head}<tbody>\n{body}\n</tbody>\n</table></div>'


def write_cell(cell: Cell) -> str:
    """Return a cell of a table."""
    text, note = (cell, "") if isinstance(cell, str) else cell
    # Cells may contain any word of a vocabulary, so backticks in them do not mean code: no `_text` here.
    small = f"<small>{_escape(note)}</small>" if note else ""
    return f"<td>{_escape(text)}{small}</td>"


def write_facts(facts: Mapping[str, Any]) -> str:
    """Return a table of the names of settings and their values; names of nested ones are joined by dots."""
    return write_table(("", ""), flatten_facts(facts), is_text=True)


def flatten_facts(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each setting as text.

    >>> list(flatten_facts({"dim": 98304, "train": {"seed": None, "on": True}}))
    [('dim', '98,304'), ('train.seed', 'not set'), ('train.on', 'yes')]
    """
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from flatten_facts(value, f"{prefix}{name}.")
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


def _text(text: str) -> str:
    """Return escaped text, with text between backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", _escape(text))


def _escape(text: str) -> str:
    # Words, and names of folders, may have characters that a page must not have, or that hide what it says.
    return html.escape("\n".join(map(escape_controls, text.split("\n"))))


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

    label = _escape(caption.replace("`", ""))
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
