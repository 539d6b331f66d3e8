"""Control characters in text for the user, made visible."""

from __future__ import annotations

import re

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
