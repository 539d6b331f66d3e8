"""`EvaluationConfig`: the rules of evaluation, with the paper's rules as defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swivel.config import FLAG, NATURAL, POSITIVE_INT, check_fields, config_field, one_of
from swivel.errors import ConfigError
from swivel.vectors import Vectors
from swivel.vectors.vectors import METHODS

HALVES = ("tune", "report")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Rules for scoring data sets; the defaults are the paper's.

    >>> EvaluationConfig(unknown="skip").unknown
    'skip'
    """

    method: str = config_field("3cosadd", "how analogies are answered", one_of(*METHODS))
    unknown: str = config_field(
        "wrong",
        "questions with an unknown word count as wrong (the paper's rule) or are skipped",
        one_of("wrong", "skip"),
    )
    unknown_pairs: str = config_field(
        "skip",
        "pairs with an unknown word are skipped (the paper's rule), count with a cosine of zero, or use the mean "
        "vector or a vector guessed from the spelling for the unknown word",
        one_of("skip", "zero", "mean", "guess"),
    )
    top: int | None = config_field(None, "only the first N, most frequent words count as known", POSITIVE_INT)
    lowercase: bool = config_field(True, "lower-case the words of the data sets", FLAG)
    half: str | None = config_field(None, "use only one half of every data set", one_of(*HALVES))
    draws: int = config_field(10_000, "bootstrap resamplings per interval; 0 for no intervals", NATURAL)

    def __post_init__(self) -> None:
        check_fields(self)

    def known_words(self, vectors: Vectors) -> int:
        """Return the number of words that count as known; these are the first ones."""
        return len(vectors) if self.top is None else min(self.top, len(vectors))


def find_ids(vectors: Vectors, words: tuple[str, ...], rules: EvaluationConfig) -> list[int]:
    """Return the ids of words, with -1 for words that do not count as known."""
    ids = vectors.vocabulary.ids
    limit = rules.known_words(vectors)

    numbers = [ids.get(word, limit) for word in words]
    return [number if number < limit else -1 for number in numbers]


def change_rules(rules: EvaluationConfig | None, changes: Mapping[str, Any]) -> EvaluationConfig:
    """Return the rules with some of them changed; raise ConfigError for an unknown rule."""
    names = [field.name for field in dataclasses.fields(EvaluationConfig)]
    for name in changes:
        if name not in names:
            raise ConfigError(f"{name!r} is not an evaluation rule; the rules are {', '.join(names)}")
    return dataclasses.replace(rules or EvaluationConfig(), **changes)
