"""Arithmetic on words, as people write it. Receives text, hands on tokens; it knows no vectors."""

from __future__ import annotations

import re
from typing import NamedTuple

from swivel.errors import ConfigError


class Expression(NamedTuple):
    """Arithmetic on words: the tokens added, and those taken away."""

    plus: tuple[str, ...]
    minus: tuple[str, ...]


def parse_expression(text: str) -> Expression:
    """Read `king - man + woman`; signs stand between spaces, so tokens may hold hyphens and spaces of their own.

    >>> parse_expression("vice-president - man + woman")
    Expression(plus=('vice-president', 'woman'), minus=('man',))
    """
    first, *pieces = re.split(r"(?<!\S)([+-])(?!\S)", text.strip())  # In linear time, however long the spaces are.
    signs, tokens = pieces[::2], [token.strip() for token in pieces[1::2]]
    if first or not signs:  # An expression may begin with a sign.
        signs, tokens = ["+", *signs], [first.strip(), *tokens]
    if "" in tokens:
        raise ConfigError(f"{text!r} is no expression: write tokens with + or - between spaces, as king - man + woman")
    chosen = {sign: tuple(token for mark, token in zip(signs, tokens, strict=True) if mark == sign) for sign in "+-"}
    return Expression(chosen["+"], chosen["-"])
