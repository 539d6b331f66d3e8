"""Every config_field of every stage: its default, its check and its help, in one place.

A stage receives one frozen dataclass. The command line builds its flags and help texts from them, the manifests
keep them, and `RECIPES` names whole sets of them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from swivel.errors import ConfigError

Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be, as a test and in words."""

    holds: Check
    words: str


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # not math.isfinite, which fails for an integer beyond it


POSITIVE_INT = Rule(lambda v: _is_int(v) and v > 0, "a positive integer")
NATURAL = Rule(lambda v: _is_int(v) and v >= 0, "an integer of 0 or more")
POSITIVE = Rule(lambda v: _is_real(v) and v > 0, "a positive number")
NOT_NEGATIVE = Rule(lambda v: _is_real(v) and v >= 0, "a number of 0 or more")
NORMAL = Rule(lambda v: _is_real(v) and v >= 1e-30, "a number of 1e-30 or more")
FINITE = Rule(_is_real, "a finite number")
FRACTION = Rule(lambda v: _is_real(v) and 0 < v <= 1, "a number above 0 and at most 1")
FLAG = Rule(lambda v: isinstance(v, bool), "true or false")
TEXT = Rule(lambda v: isinstance(v, str) and v != "", "a text that is not empty")


def one_of(*choices: str) -> Rule:
    """Return the rule that a value is one of `choices`."""
    return Rule(lambda v: v in choices, "one of " + ", ".join(choices))


def config_field(
    default: Any,
    help: str,
    rule: Rule,
    *,
    choices: tuple[str, ...] = (),
    optional: bool = False,
    changes_result: bool = True,
) -> Any:
    """Return a dataclass field that knows its help text and its rule."""
    metadata = {
        "help": help,
        "rule": rule,
        "choices": choices,
        "optional": optional,
        "changes_result": changes_result,
    }
    return dataclasses.field(default=default, metadata=metadata)


def result_settings(config: Any) -> dict[str, Any]:
    """Return the fields on which the result depends: what manifests keep and a resumed run must share."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.metadata["changes_result"]
    }


def choice(default: str, help: str, *choices: str) -> Any:
    """Return a field whose value is one of `choices`."""
    return config_field(default, help, one_of(*choices), choices=choices)


def _device_field(*, changes_result: bool) -> Any:
    return config_field("auto", "auto, cpu, cuda, or any device as torch names it", TEXT, changes_result=changes_result)


def _device_memory_field() -> Any:
    text = "memory of the device to stay inside, such as 20GiB; default: what is free"
    return config_field(None, text, TEXT, optional=True, changes_result=False)


def check_fields(config: Any) -> None:
    """Raise ConfigError for the first field whose value breaks its rule."""
    for field in dataclasses.fields(config):
        value, rule = getattr(config, field.name), field.metadata["rule"]
        if value is None and field.metadata["optional"]:
            continue
        if not rule.holds(value):
            raise ConfigError(f"{field.name} must be {rule.words}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusConfig:
    """How text is read."""

    tokenizer: str = choice(
        "words",
        "words: Unicode words, hyphenated words and contractions whole, punctuation dropped; "
        "whitespace: the text is tokenised already",
        "words",
        "whitespace",
    )
    unit: str = choice(
        "line",
        "what a window never crosses; a document ends at a blank line or with its file",
        "sentence",
        "line",
        "document",
    )
    lowercase: bool = config_field(True, "lower-case the text", FLAG)
    encoding: str = config_field("utf-8", "encoding of the text", TEXT)
    errors: str = choice("strict", "what to do with bytes that are not in the encoding", "strict", "replace")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyConfig:
    """Which tokens get vectors."""

    min_count: int = config_field(5, "leave out tokens seen fewer times", POSITIVE_INT)
    max_size: int | None = config_field(
        98_304, "keep at most this many, the commonest; 0: no limit", NATURAL, optional=True
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountConfig:
    """How co-occurrences are counted."""

    window: int = config_field(10, "how many tokens to each side co-occur with a token", POSITIVE_INT)
    left: int | None = config_field(
        None, "tokens to the left, where not the same as the window", NATURAL, optional=True
    )
    right: int | None = config_field(
        None, "tokens to the right, where not the same as the window", NATURAL, optional=True
    )
    weight: str = choice(
        "harmonic",
        "weight of a token at distance t: 1/t, falling linearly, or 1",
        "harmonic",
        "linear",
        "uniform",
    )
    columns: str = choice(
        "symmetric",
        "one column a word; or one for each side (directional), for each band of distance, or for both",
        "symmetric",
        "directional",
        "bands",
        "directional-bands",
    )
    near: int = config_field(1, "last distance of the near band, where columns are split by bands", POSITIVE_INT)
    oov: str = choice(
        "drop",
        "tokens outside the vocabulary are taken out before the window is laid (drop) or keep their place (gap)",
        "drop",
        "gap",
    )
    device: str = _device_field(changes_result=False)
    device_memory: str | None = _device_memory_field()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.window_left + self.window_right == 0:
            raise ConfigError("left and right are both 0: there is nothing to count")
        if self.has_bands and self.near >= max(self.window_left, self.window_right):
            raise ConfigError(
                f"near must be smaller than the window of {max(self.window_left, self.window_right)}, "
                f"got {self.near}: the far band would be empty; take a wider window, or --columns directional"
            )

    @property
    def window_left(self) -> int:
        """Tokens to the left that co-occur with a token."""
        return self.window if self.left is None else self.left

    @property
    def window_right(self) -> int:
        """Tokens to the right that co-occur with a token."""
        return self.window if self.right is None else self.right

    @property
    def is_directional(self) -> bool:
        """Whether a word to the left and one to the right are two columns."""
        return self.columns in ("directional", "directional-bands")

    @property
    def has_bands(self) -> bool:
        """Whether near and far words are two columns."""
        return self.columns in ("bands", "directional-bands")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How vectors are trained. What is None is chosen for the device, once, and written down."""

    dim: int = config_field(300, "dimensions of a vector", POSITIVE_INT)
    epochs: int | None = config_field(
        None, "visits to every block; default: about 480 updates of every vector", POSITIVE_INT, optional=True
    )
    block_size: int | None = config_field(None, "rows and columns of a block", POSITIVE_INT, optional=True)
    largest_block: int | None = config_field(
        None,
        "the largest block, where its size is left open: larger ones take more epochs and make better vectors; "
        "default: 1024 on a CPU, 4096 elsewhere",
        POSITIVE_INT,
        optional=True,
    )
    learning_rate: float = config_field(0.1, "learning rate of Adagrad", POSITIVE)
    initial_accumulator: float = config_field(1e-6, "initial accumulator of Adagrad", NORMAL)
    weight_decay: float = config_field(0.0, "weight decay; 1e-4 helps, 1e-3 ruins", NOT_NEGATIVE)
    objective: str = choice(
        "swivel",
        "swivel: targets are PMI, and unobserved cells push; glove: observed cells alone, their targets log x, with "
        "biases (the recipe glove has its weights, too)",
        "swivel",
        "glove",
    )
    end: str = choice(
        "epochs",
        "after a fixed number of epochs with a falling rate, or at a constant rate until the loss no longer falls",
        "epochs",
        "converged",
    )
    tolerance: float = config_field(
        0.002, "with --end converged: the relative fall of the loss an epoch that ends training", POSITIVE
    )
    zeros: str = choice(
        "all",
        "every unobserved cell in every step, or a sample without bias; auto: whichever is faster",
        "all",
        "sampled",
        "auto",
    )
    common: float | None = config_field(
        None,
        "with sampled zeros: share of rows and columns, the commonest, whose zeros are all taken; "
        "default: .05, on a GPU .1",
        FRACTION,
        optional=True,
    )
    middle: float = config_field(
        0.3, "with sampled zeros: where the middling rows and columns end and the rare begin", FRACTION
    )
    share: float = config_field(
        0.008, "with sampled zeros: share of the zeros taken between the very rarest; more for the others", FRACTION
    )
    shift: float = config_field(0.0, "log s, taken off every target", FINITE)
    confidence_base: float = config_field(0.1, "b0 in f(x) = b0 + b x^a, the weight of an observed cell", NOT_NEGATIVE)
    confidence_scale: float = config_field(0.25, "b in f(x) = b0 + b x^a", NOT_NEGATIVE)
    confidence_power: float = config_field(0.5, "a in f(x) = b0 + b x^a", NOT_NEGATIVE)
    confidence_most: float | None = config_field(
        None, "the most that f(x) may be; default: no limit", POSITIVE, optional=True
    )
    unseen: float = config_field(1.0, "the count that stands in for 0 in the target of an unobserved cell", POSITIVE)
    dtype: str = choice("auto", "operands of the matrix products; auto measures", "auto", "float32", "bfloat16")
    backend: str = choice("auto", "what computes a step", "auto", "cpu", "triton", "torch", "reference")
    device: str = _device_field(changes_result=True)
    device_memory: str | None = _device_memory_field()
    ranks: int | None = config_field(
        None,
        "processes that the order of blocks is made for, between which column blocks rotate; default: as many as "
        "torchrun starts",
        POSITIVE_INT,
        optional=True,
    )
    seed: int = config_field(1, "seed of everything random", NATURAL)
    checkpoint_minutes: float = config_field(
        5.0, "minutes between checkpoints; 0: only when interrupted", NOT_NEGATIVE, changes_result=False
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.confidence_base + self.confidence_scale == 0:
            raise ConfigError("confidence_base and confidence_scale are both 0: no observed cell would count")
        if self.objective == "glove" and (self.shift != 0 or self.unseen != 1):
            raise ConfigError(
                f"shift ({self.shift:g}) and unseen ({self.unseen:g}) say nothing to objective glove: its biases take "
                "up any shift, and unobserved cells do not count; leave both out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorsConfig:
    """How the trained rows and columns become the vectors that users get."""

    combine: str = choice(
        "sum",
        "rows: w; sum: w + c (all columns of a word); parts: w, the word's columns and their sum side by side, each "
        "of length 1, cut back to dim by an SVD",
        "rows",
        "sum",
        "parts",
    )
    column_weight: float = config_field(0.5, "with parts: weight of each column part against the rows' 1", NOT_NEGATIVE)
    sum_weight: float = config_field(
        1.0, "with parts: weight of the sum of rows and columns; 0: without it", NOT_NEGATIVE
    )
    spectrum: float = config_field(
        0.8, "with parts: power of the SVD's singular values; 1 keeps them, less evens the dimensions out", NOT_NEGATIVE
    )

    def __post_init__(self) -> None:
        check_fields(self)


STAGES = {
    "corpus": CorpusConfig,
    "vocabulary": VocabularyConfig,
    "count": CountConfig,
    "train": TrainConfig,
    "vectors": VectorsConfig,
}

# `paper`: every setting the paper states. It leaves open, and we chose: Adagrad's rate and initial accumulator,
# the tolerance that ends training, and the exact tokeniser.
# `fast`: the quick one; docs/experiments.md has its figures.
# `glove`: GloVe's objective with its own settings (x_max 100, alpha .75, 100 epochs), by our optimizer: a baseline.
# Its optimizer divides gradients by 1,024 and starts its accumulators at 1e-6: GloVe's own start at 1, undivided. Its
# rate of .1 falls to 0, GloVe's .05 stays.
# `default`: the best vectors known.
RECIPES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "paper": {
        "corpus": {"unit": "sentence"},
        "count": {"window": 10, "weight": "harmonic", "columns": "symmetric"},
        "train": {"dim": 300, "block_size": 4096, "end": "converged", "epochs": 100, "zeros": "all"},
        "vectors": {"combine": "sum"},
    },
    "fast": {
        "count": {"columns": "symmetric"},
        "train": {"weight_decay": 1e-4, "zeros": "auto"},
        "vectors": {"combine": "sum"},
    },
    "default": {
        "count": {"columns": "directional-bands", "near": 1},
        "train": {"weight_decay": 5e-5, "zeros": "auto"},
        "vectors": {"combine": "parts", "column_weight": 0.5, "sum_weight": 1.0, "spectrum": 0.8},
    },
    "glove": {
        "count": {"columns": "symmetric"},
        "train": {
            "objective": "glove",
            "epochs": 100,
            "block_size": 1024,
            "learning_rate": 0.1,
            "confidence_base": 0.0,
            "confidence_scale": 100**-0.75,
            "confidence_power": 0.75,
            "confidence_most": 1.0,
            "zeros": "auto",
        },
        "vectors": {"combine": "sum"},
    },
}

Stage = TypeVar("Stage")


def stage_config(stage: type[Stage], recipe: str = "default", **settings: Any) -> Stage:
    """Return the configuration of a stage: the recipe's values, overridden by `settings` that are not None.

    >>> stage_config(TrainConfig, "fast", dim=100).decay
    0.0001
    """
    if recipe not in RECIPES:
        raise ConfigError(f"recipe must be one of {', '.join(RECIPES)}, got {recipe!r}")
    name = next(name for name, kind in STAGES.items() if kind is stage)
    names = {field.name for field in dataclasses.fields(stage)}  # type: ignore[arg-type]
    for setting in settings:
        if setting not in names:
            raise ConfigError(f"{setting} is not a setting of {name}; it has {', '.join(sorted(names))}")
    given = {key: value for key, value in settings.items() if value is not None}
    return stage(**{**RECIPES[recipe].get(name, {}), **given})
