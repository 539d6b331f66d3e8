"""Numbers in text. `int` and `float` also accept digits of other scripts and 1_000, which other programs do not."""

from __future__ import annotations

from typing import Any


def is_integer(text: str) -> bool:
    """Return whether a text consists of the digits 0 to 9.

    >>> is_integer("10"), is_integer("1_0"), is_integer("-1")
    (True, False, False)
    """
    return text.isascii() and text.isdecimal()


def is_plain(text: str | bytes) -> bool:
    """Return whether a text has none of the characters that only Python accepts in numbers.

    >>> is_plain("1e-3 2.5"), is_plain("1_0")
    (True, False)
    """
    underscore: Any = "_" if isinstance(text, str) else b"_"
    return text.isascii() and underscore not in text


def parse_float(text: str | bytes) -> float:
    """Return a number; raise ValueError if the text is none.

    >>> parse_float("1_0")
    Traceback (most recent call last):
    ValueError: could not convert string to float: '1_0'
    """
    if not is_plain(text):
        raise ValueError(f"could not convert string to float: {text!r}")
    return float(text)


def is_number(text: str | bytes) -> bool:
    """Return whether a text is a number.

    >>> is_number("-1e3"), is_number("1_0")
    (True, False)
    """
    try:
        parse_float(text)
    except ValueError:
        return False
    return True


def plural(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "file"), plural(2_000, "line")
    ('1 file', '2,000 lines')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
