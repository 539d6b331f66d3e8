"""Word arithmetic written as text, such as `king - man + woman`."""

from __future__ import annotations

import re
from typing import NamedTuple

from swivel.errors import ConfigError


class Expression(NamedTuple):
    """Word arithmetic: the tokens to add and the tokens to subtract."""

    plus: tuple[str, ...]
    minus: tuple[str, ...]


def parse_expression(text: str) -> Expression:
    """Parse text such as `king - man + woman`.

    A sign needs spaces around it, so that tokens may contain hyphens and spaces.

    >>> parse_expression("vice-president - man + woman")
    Expression(plus=('vice-president', 'woman'), minus=('man',))
    """
    # The lookarounds keep this linear in the length of the text, even for long runs of spaces.
    first, *pieces = re.split(r"(?<!\S)([+-])(?!\S)", text.strip())
    signs = pieces[::2]
    tokens = [token.strip() for token in pieces[1::2]]

    # An expression may begin with a sign; otherwise its first token is added.
    if first or not signs:
        signs.insert(0, "+")
        tokens.insert(0, first.strip())
    if "" in tokens:
        raise ConfigError(
            f"{text!r} is not an expression: write tokens with + or - between spaces, such as king - man + woman"
        )

    plus = tuple(token for sign, token in zip(signs, tokens, strict=True) if sign == "+")
    minus = tuple(token for sign, token in zip(signs, tokens, strict=True) if sign == "-")
    return Expression(plus, minus)
