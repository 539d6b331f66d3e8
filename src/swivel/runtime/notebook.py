"""Short HTML tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

_MAX_ROWS = 10
_MAX_LETTERS = 40


def draw_html(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table of the first rows, escaped, with long cells cut.

    >>> draw_html("1 word", ("word",), [("<b>",)])
    '<table><caption>1 word</caption><tr><th>word</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    shown = list(islice(rows, _MAX_ROWS + 1))
    if len(shown) > _MAX_ROWS:
        shown[-1] = ["..."] * len(header)

    lines = [_draw_row("th", header), *(_draw_row("td", row) for row in shown)]
    return f"<table><caption>{escape(caption)}</caption>{''.join(lines)}</table>"


def _draw_row(tag: str, cells: Iterable[object]) -> str:
    texts = [f"{cell:,}" if isinstance(cell, int | float) else str(cell) for cell in cells]
    short = [text if len(text) <= _MAX_LETTERS else text[: _MAX_LETTERS - 3] + "..." for text in texts]
    return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in short) + "</tr>"
