"""Queries: a token, a vector, or word arithmetic written as text, such as `king - man + woman`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.vectors.search import Floats

if TYPE_CHECKING:
    from swivel.vectors.vectors import Vectors

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


def resolve_query(
    vectors: Vectors, query: Query, minus: str | Iterable[str] = ()
) -> tuple[Floats, list[int], list[int]]:
    """Return the vector of a query, the ids of the tokens that it adds, and of those that it subtracts."""
    subtracted = as_tokens(minus)
    if subtracted is None:
        raise ConfigError(f"minus must be tokens, got {minus!r}: subtract a vector from the query instead")
    if isinstance(query, str):
        number = vectors.vocabulary.ids.get(query)
        if number is not None and not subtracted:
            return np.asarray(vectors.unit_vectors[number]), [number], []  # the usual case, quickly
        if number is None and " " in query:
            query, negative = parse_expression(query)
            subtracted += negative

    # Unit vectors: a frequent word with a long vector must not dominate the sum.
    tokens = as_tokens(query)
    plus = vectors.find_rows(tokens or ())
    less = vectors.find_rows(subtracted)
    total = _check_vector(query, vectors.dim) if tokens is None else vectors.unit_vectors[plus].sum(axis=0)
    return np.asarray(total - vectors.unit_vectors[less].sum(axis=0)), plus, less


def _check_vector(query: Query, dim: int) -> Floats:
    try:
        vector = np.array(query, np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a query must be a token, several tokens or a vector: {error}") from error
    if vector.shape != (dim,):
        raise ConfigError(f"a query vector must have shape ({dim},), got {vector.shape}")
    if not np.isfinite(vector).all():
        raise ConfigError("a query vector must be finite")
    return vector


def explain_zero(vectors: Vectors, plus: Sequence[int], less: Sequence[int]) -> ConfigError:
    """Return the error for a query whose vector is zero."""
    if len(plus) == 1 and not less:
        token = vectors.vocabulary[plus[0]]
        return ConfigError(f"{token!r} has no neighbors: it has no co-occurrences, so its vector is zero")
    return ConfigError("the query has no neighbors: its vector is zero")
