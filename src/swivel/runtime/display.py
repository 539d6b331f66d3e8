"""Text for people to see: control characters made visible, and short HTML tables for notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

_MAX_ROWS = 10
_MAX_LETTERS = 40
# Characters that move the cursor, color, hide or reorder text; surrogates, which are bytes of a file name that are not
# valid UTF-8; and two that are no characters, and that XML forbids.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def escape_controls(text: str) -> str:
    """Return a text in which control characters are visible, so that it is one line and looks like what it is.

    >>> escape_controls("red\x1b[31m\\nblue")
    'red\\\\x1b[31m\\\\nblue'
    """
    return CONTROL.sub(lambda match: _escape(match[0]), text)


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # how Python represents such a byte
        return f"\\x{ord(character) - 0xDC00:02x}"
    if "\x80" <= character <= "\x9f":  # In a shell, \x80 is a byte.
        return f"\\u{ord(character):04x}"
    return character.encode("unicode_escape").decode()


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
