"""Word arithmetic written as text, such as `king - man + woman`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError

Query = str | Iterable[str] | NDArray[Any]


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


def as_tokens(query: Query) -> tuple[str, ...] | None:
    """Return the tokens of a query, or None if it is a vector."""
    if isinstance(query, str):
        return (query,)
    if not isinstance(query, Iterable) or (isinstance(query, np.ndarray) and query.dtype.kind not in "OTU"):
        return None
    tokens = tuple(query)  # once, because it may be a generator
    return tokens if all(isinstance(token, str) for token in tokens) else None


def need_tokens(words: str | Iterable[str]) -> tuple[str, ...]:
    """Return the tokens to subtract; raise ConfigError for a vector."""
    tokens = as_tokens(words)
    if tokens is None:
        raise ConfigError(f"minus must be tokens, got {words!r}: subtract a vector from the query instead")
    return tokens
