"""`EvaluationConfig`: the rules of evaluation, with the paper's rules as defaults."""

from __future__ import annotations

from dataclasses import dataclass

from swivel.config import FLAG, NATURAL, POSITIVE_INT, check_fields, config_field, one_of
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
