"""The methods and settings of an experiment, and the names of its folders."""

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
)
from swivel.evaluation.config import HALVES
from swivel.pipeline.count import TextCounting
from swivel.pipeline.settings import split_settings

WORD2VEC = {"sgns": "word2vec, skip-gram with negative sampling (gensim)", "cbow": "word2vec, CBOW (gensim)"}
ABOUT = {
    "default": "Swivel, the best known recipe",
    "paper": "Swivel, with the settings of the paper",
    "fast": "Swivel, the fast recipe",
    "glove": "the GloVe objective with Swivel's optimizer",
    **WORD2VEC,
}
METHODS = ("default", "paper", *sorted({*RECIPES} - {"default", "paper", "glove"}), "sgns", "cbow", "glove")
USUAL = ("default", "paper", "sgns", "cbow", "glove")

_ALL_KNOWN = Rule(
    lambda v: isinstance(v, tuple) and len(v) > 0 and len(set(v)) == len(v) and set(v) <= set(METHODS),
    f"one or more different methods of {', '.join(METHODS)}",
)
_NAMED = Rule(
    lambda v: len(dict(v)) == len(v) and all(_is_free(name) and isinstance(path, Path) for name, path in v),
    "pairs of a name (of letters, digits and .+-_, different from the other names and the methods) and a pathlib.Path",
)
_PATH = Rule(lambda v: isinstance(v, Path), "a pathlib.Path")


def _is_free(name: str) -> bool:
    """Return whether vectors of another tool may have a name: it is used for folders, like `METHOD-seedN`."""
    return re.fullmatch(r"\w[\w.+-]*", name) is not None and re.sub(r"-seed\d+$", "", name) not in METHODS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceConfig:
    """Settings of `reproduce`: the methods to compare, the size of the experiment, and the test sets."""

    methods: tuple[str, ...] = config_field(
        USUAL, "methods to compare; the others are compared with the first one", _ALL_KNOWN
    )
    dim: int = config_field(300, "dimensions of the vectors of every method", POSITIVE_INT)
    tokens: int | None = config_field(
        None, "use only the first tokens of the text, this many, in whole lines", POSITIVE_INT
    )
    seeds: int = config_field(1, "number of seeds that each of Swivel's recipes is trained with", POSITIVE_INT)
    seed: int = config_field(1, "first seed", NATURAL)
    data: Path | None = config_field(None, "folder of test sets; default: those of the paper, from the cache", _PATH)  # noqa: RUF009
    vectors: tuple[tuple[str, Path], ...] = config_field((), "vectors of other tools to add to the table", _NAMED)
    half: str | None = config_field(None, "use only one half of every test set", one_of(*HALVES))

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class MethodVectors:
    """Vectors of a method: trained with a seed, or read from the file of another tool (seed None)."""

    method: str
    seed: int | None
    path: Path

    @property
    def name(self) -> str:
        """Name of the folders of the vectors and of their evaluation."""
        return self.method if self.seed is None else f"{self.method}-seed{self.seed}"


def list_trained(config: ReproduceConfig, folder: Path) -> list[MethodVectors]:
    """Return all vectors that an experiment trains into `folder`; Swivel's recipes are trained with several seeds."""
    trained = []
    for method in config.methods:
        seeds = config.seeds if method in RECIPES and method != "glove" else 1
        for seed in range(config.seed, config.seed + seeds):
            trained.append(MethodVectors(method, seed, folder / f"{method}-seed{seed}"))
    return trained


def count_settings(recipe: str, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings that the counts of a recipe depend on, by stage."""
    return TextCounting(*split_settings(recipe, settings, CorpusConfig, VocabularyConfig, CountConfig)).to_dict()


def matrix_name(recipe: str, settings: Mapping[str, Any]) -> str:
    """Return the name of the folder for the counts of a recipe; recipes with the same counts share it.

    The name does not depend on the methods of the experiment, so that methods can be added later.

    >>> matrix_name("paper", {})
    'symmetric-sentence'
    """
    own = count_settings(recipe, settings)

    # Recipes with the same label but other settings get a number.
    same_label: list[dict[str, dict[str, Any]]] = []
    for name in sorted(RECIPES):
        other = count_settings(name, settings)
        if _label(other) == _label(own) and other not in same_label:
            same_label.append(other)

    index = same_label.index(own)
    suffix = f"-{index + 1}" if index else ""
    return _label(own) + suffix


def _label(settings: Mapping[str, Mapping[str, Any]]) -> str:
    return f"{settings['count']['columns']}-{settings['corpus']['unit']}"
