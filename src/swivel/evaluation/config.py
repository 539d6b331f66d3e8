"""How sets are scored: every convention on which figures depend, in one place.

Receives nothing, hands on `EvaluationConfig`. Its defaults are the paper's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swivel.config import FLAG, NATURAL, POSITIVE_INT, check_fields, choice, config_field, one_of
from swivel.errors import ConfigError
from swivel.vectors import Vectors
from swivel.vectors.vectors import METHODS

HALVES = ("tune", "report")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """How sets are scored; the defaults are the paper's rules.

    >>> EvaluationConfig(unknown="skip").unknown
    'skip'
    """

    method: str = choice("3cosadd", "how analogies are answered", *METHODS)
    unknown: str = choice(
        "wrong", "questions with an unknown word count as wrong (the paper's rule) or are left out", "wrong", "skip"
    )
    unknown_pairs: str = choice(
        "skip",
        "pairs with an unknown word are left out (the paper's rule), count with a cosine of zero, or take the mean "
        "vector for the unknown word",
        "skip",
        "zero",
        "mean",
    )
    top: int | None = config_field(
        None, "only the N first, commonest words count as known", POSITIVE_INT, optional=True
    )
    lowercase: bool = config_field(True, "lower-case the words of the sets", FLAG)
    half: str | None = config_field(None, "only one half of every set", one_of(*HALVES), choices=HALVES, optional=True)
    draws: int = config_field(10_000, "resamplings behind each interval; 0: no intervals", NATURAL)

    def __post_init__(self) -> None:
        check_fields(self)

    def known_words(self, vectors: Vectors) -> int:
        """Return how many words count as known: they are the first ones."""
        return len(vectors) if self.top is None else min(self.top, len(vectors))


def find_ids(vectors: Vectors, words: tuple[str, ...], rules: EvaluationConfig) -> list[int]:
    """Return the ids of words, -1 for those that do not count as known."""
    ids, limit = vectors.vocabulary.ids, rules.known_words(vectors)
    found = (ids.get(word, limit) for word in words)
    return [number if number < limit else -1 for number in found]


def change_rules(rules: EvaluationConfig | None, changes: Mapping[str, Any]) -> EvaluationConfig:
    """Return rules with some of them changed, or raise ConfigError for one that there is not."""
    names = [field.name for field in dataclasses.fields(EvaluationConfig)]
    for name in changes:
        if name not in names:
            raise ConfigError(f"{name!r} is not a rule of evaluation; known are {', '.join(names)}")
    return dataclasses.replace(rules or EvaluationConfig(), **changes)
