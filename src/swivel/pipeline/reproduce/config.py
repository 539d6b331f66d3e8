"""What an experiment is: its methods, its settings, and the folders it is kept in.

Receives what the user asks for, hands on an `Experiment`. It runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swivel.config import (
    NATURAL,
    POSITIVE_INT,
    RECIPES,
    CorpusConfig,
    CountConfig,
    Rule,
    VocabularyConfig,
    check_fields,
    config_field,
    one_of,
    result_settings,
)
from swivel.evaluation.config import HALVES
from swivel.pipeline.stages import split_settings

WORD2VEC = {"sgns": "word2vec's skip-gram with negative samples, by gensim", "cbow": "word2vec's CBOW, by gensim"}
ABOUT = {
    "default": "Swivel, the best recipe known",
    "paper": "Swivel, every setting the paper states",
    "fast": "Swivel, the quick recipe",
    "glove": "GloVe's objective, our optimizer",
    **WORD2VEC,
}
METHODS = ("default", "paper", *sorted({*RECIPES} - {"default", "paper", "glove"}), "sgns", "cbow", "glove")
USUAL = ("default", "paper", "sgns", "cbow", "glove")

COUNT_STAGES = {"corpus": CorpusConfig, "vocabulary": VocabularyConfig, "count": CountConfig}

_ALL_KNOWN = Rule(
    lambda v: isinstance(v, tuple) and len(v) > 0 and len(set(v)) == len(v) and set(v) <= set(METHODS),
    f"different ones of {', '.join(METHODS)}",
)
_NAMED = Rule(
    lambda v: len(dict(v)) == len(v) and all(_is_free(name) and isinstance(path, Path) for name, path in v),
    "different names, of letters, digits and .+-_, that no method has, each with a pathlib.Path",
)
_PATH = Rule(lambda v: isinstance(v, Path), "a pathlib.Path")


def _is_free(name: str) -> bool:
    """Return whether vectors of another tool may have a name: it names folders, as a method and its seed do."""
    return re.fullmatch(r"\w[\w.+-]*", name) is not None and re.sub(r"-seed\d+$", "", name) not in METHODS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceConfig:
    """What to compare, and how."""

    methods: tuple[str, ...] = config_field(
        USUAL, "the methods to compare; the first is compared with the others", _ALL_KNOWN
    )
    dim: int = config_field(300, "dimensions of a vector, of every method", POSITIVE_INT)
    tokens: int | None = config_field(
        None, "only the first so many tokens of the text, in whole lines", POSITIVE_INT, optional=True
    )
    seeds: int = config_field(1, "how often Swivel's recipes are trained, each time with another seed", POSITIVE_INT)
    seed: int = config_field(1, "the first seed", NATURAL)
    data: Path | None = config_field(  # noqa: RUF009 (a field, as the others are)
        None, "folder of test sets; default: the paper's, from the cache", _PATH, optional=True
    )
    vectors: tuple[tuple[str, Path], ...] = config_field((), "vectors of other tools that join the table", _NAMED)
    half: str | None = config_field(None, "only one half of every test set", one_of(*HALVES), optional=True)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class VectorsSpec:
    """One set of vectors to be made: a method and a seed."""

    method: str
    seed: int

    @property
    def name(self) -> str:
        """What its folder is called."""
        return f"{self.method}-seed{self.seed}"


def is_ours(method: str) -> bool:
    """Return whether a method is one of Swivel's recipes: what several seeds are for."""
    return method in RECIPES and method != "glove"


def list_trained(config: ReproduceConfig) -> tuple[VectorsSpec, ...]:
    """Return all vectors that an experiment trains, method by method."""
    return tuple(
        VectorsSpec(method, config.seed + number)
        for method in config.methods
        for number in range(config.seeds if is_ours(method) else 1)
    )


def count_settings(recipe: str, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings on which the counts of a recipe depend, stage by stage."""
    chosen = split_settings(recipe, settings, *COUNT_STAGES.values())
    return {name: result_settings(config) for name, config in zip(COUNT_STAGES, chosen, strict=True)}


def matrix_name(recipe: str, settings: Mapping[str, Any]) -> str:
    """Return what the folder of a recipe's counts is called; recipes with the same counts share it.

    The same whatever other methods are asked for, so that an experiment can take more of them later.

    >>> matrix_name("paper", {})
    'symmetric-sentence'
    """
    own = count_settings(recipe, settings)
    alike: list[dict[str, dict[str, Any]]] = []
    for name in sorted(RECIPES):
        other = count_settings(name, settings)
        if _label(other) == _label(own) and other not in alike:
            alike.append(other)
    place = alike.index(own)
    return _label(own) + (f"-{place + 1}" if place else "")


def _label(settings: Mapping[str, Mapping[str, Any]]) -> str:
    return f"{settings['count']['columns']}-{settings['corpus']['unit']}"
