"""One frozen dataclass of settings per stage, with defaults, validation and help text, and the named recipes."""

from __future__ import annotations

import dataclasses
import numbers
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from swivel.errors import ConfigError

Tokenizer = Callable[[str], Any]  # returns the words of a text
SCORERS = ("word2vec", "npmi")  # of phrases
MAX_REAL = 1e30  # of settings: training computes in float32, whose largest number is 3.4e38


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on a value, as a function and in words; `choices` are the values it allows, if they are few."""

    holds: Callable[[Any], bool]
    words: str
    choices: tuple[str, ...] = ()
    is_real: bool = False  # whether whole numbers become floats


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_REAL


POSITIVE_INT = Rule(lambda v: _is_int(v) and v > 0, "a positive integer")
NATURAL = Rule(lambda v: _is_int(v) and v >= 0, "an integer of 0 or more")
POSITIVE = Rule(lambda v: _is_real(v) and v > 0, "a positive number up to 1e30", is_real=True)
NOT_NEGATIVE = Rule(lambda v: _is_real(v) and v >= 0, "a number from 0 to 1e30", is_real=True)
NORMAL = Rule(lambda v: _is_real(v) and v >= 1e-30, "a number from 1e-30 to 1e30", is_real=True)
FINITE = Rule(_is_real, "a number from -1e30 to 1e30", is_real=True)
POWER = Rule(lambda v: _is_real(v) and 0 <= v <= 10, "a number from 0 to 10", is_real=True)
FRACTION = Rule(lambda v: _is_real(v) and 0 < v <= 1, "a number above 0 and at most 1", is_real=True)
FLAG = Rule(lambda v: isinstance(v, bool), "true or false")
LIMIT = Rule(lambda v: v is None or NATURAL.holds(v), NATURAL.words)
TEXT = Rule(lambda v: isinstance(v, str) and v != "", "a text that is not empty")
_TOKENIZERS = ("auto", "words", "whitespace", "icu")
TOKENIZER = Rule(
    lambda v: callable(v) or v in _TOKENIZERS or (isinstance(v, str) and re.fullmatch(r"[\w.]+:[\w.]+", v) is not None),
    f"{', '.join(_TOKENIZERS)}, module:function or, in Python, a function",
)


def one_of(*choices: str) -> Rule:
    """Return the rule that accepts only `choices`."""
    return Rule(lambda v: v in choices, "one of " + ", ".join(choices), choices)


def config_field(default: Any, help: str, rule: Rule, *, changes_result: bool = True) -> Any:
    """Return a dataclass field with a help text and a rule in its metadata; None is allowed if it is the default."""
    return dataclasses.field(default=default, metadata={"help": help, "rule": rule, "changes_result": changes_result})


def _device_field(*, changes_result: bool) -> Any:
    return config_field("auto", "auto, cpu, cuda, or any device as torch names it", TEXT, changes_result=changes_result)


def _device_memory_field() -> Any:
    text = "memory limit on the device, such as 20GiB; default: all free memory"
    return config_field(None, text, TEXT, changes_result=False)


def result_settings(config: Any) -> dict[str, Any]:
    """Return the fields that the result depends on; manifests record them, and a resumed run must have the same."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.metadata["changes_result"]
    }


def plain_number(value: Any) -> Any:
    """Return a number of NumPy as Python's, which JSON can store; any other value unchanged."""
    if isinstance(value, (int, float)) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def check_fields(config: Any) -> None:
    """Raise ConfigError for the first field whose value violates its rule; numbers of NumPy become Python's."""
    # Frozen dataclasses are set once more here, before anyone has seen them.
    for field in dataclasses.fields(config):
        value = plain_number(getattr(config, field.name))
        rule = field.metadata["rule"]
        if not (rule.holds(value) or (value is None and field.default is None)):
            raise ConfigError(f"{field.name} must be {rule.words}, got {value!r}", argument=field.name)
        if rule.is_real and value is not None:
            value = float(value)  # 0 and 0.0 must be one setting: digests and kernels tell them apart.
        object.__setattr__(config, field.name, value)


def _name_function(function: Callable[..., Any]) -> str:
    """Return the name of a function or object as module:name."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{re.sub(r'[^A-Za-z0-9_.]', '', named.__qualname__)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusConfig:
    """How text is read."""

    tokenizer: str | Tokenizer = config_field(  # noqa: RUF009 (a frozen field, too)
        "auto",
        "words: Unicode words, hyphenated words and contractions whole, punctuation dropped, new_york is two words "
        "unless keep_underscores is set; whitespace: split at white space only, new_york is one; icu: words of "
        "Japanese, Chinese, Thai, Lao, Khmer and Burmese by ICU; auto: words, or icu if the text is mostly one of "
        "these and icu is installed; module:function: a function that returns the words of a text",
        TOKENIZER,
    )
    unit: str = config_field(
        "line",
        "text unit that windows do not cross; a document ends at a blank line or at the end of its file",
        one_of("sentence", "line", "document"),
    )
    lowercase: bool = config_field(True, "convert the text to lower case", FLAG)
    turkish: bool = config_field(False, "lower case of Turkish and Azerbaijani: of I it is ı, and of İ it is i", FLAG)
    normalization: str = config_field(
        "NFC",
        "normal form of Unicode: NFC makes an accented letter one character; NFKC also replaces ligatures, full-width "
        "and other compatibility characters; none keeps the text, and the lower case of Σ is σ everywhere",
        one_of("NFC", "NFKC", "none"),
    )
    keep_underscores: bool = config_field(
        False, "keep _ between two letters or numbers: new_york is one word; whitespace always keeps it", FLAG
    )
    encoding: str = config_field("utf-8", "encoding of the text", TEXT)
    errors: str = config_field(
        "strict", "what to do with bytes that are invalid in the encoding", one_of("strict", "replace")
    )
    phrases: str = config_field(
        "none",
        "join phrases such as new_york to one token: none; those that score high by word2vec (as in gensim) or npmi "
        "(normalized PMI); or those of a file, one per line",
        TEXT,
    )
    phrase_threshold: float | None = config_field(
        None, "lowest score of a phrase; default: 10 by word2vec, 0.5 by npmi", FINITE
    )
    phrase_min_count: int = config_field(5, "ignore phrases with fewer occurrences", POSITIVE_INT)
    phrase_passes: int = config_field(1, "passes that find phrases; two find phrases of up to 4 words", POSITIVE_INT)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def phrase_file(self) -> Path | None:
        """The file that `phrases` names; None if phrases are found in the text, or not joined."""
        return None if self.phrases in ("none", *SCORERS) else Path(self.phrases)

    def without_path(self) -> CorpusConfig:
        """Return the settings as they are recorded: a list of phrases is an input, and a function has a name."""
        config = self if self.phrase_file is None else dataclasses.replace(self, phrases="file")
        if not callable(self.tokenizer):
            return config
        return dataclasses.replace(config, tokenizer=_name_function(self.tokenizer))


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyConfig:
    """Which tokens get vectors."""

    min_count: int = config_field(5, "ignore tokens with fewer occurrences", POSITIVE_INT)
    max_size: int | None = config_field(
        98_304, "keep only the most frequent tokens, at most this many; 0: no limit", LIMIT
    )
    words_only: bool = config_field(
        False,
        "leave out tokens with a digit or without a letter, such as 1984, 20books and mp3, and parts of addresses, "
        "such as http and html",
        FLAG,
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def listed_types(self) -> int:
        """The number of most frequent tokens among which the vocabulary is; 0: all that are frequent enough."""
        return 0 if self.words_only else self.max_size or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CountConfig:
    """How co-occurrences are counted."""

    window: int = config_field(
        10,
        "number of tokens on either side that co-occur with a token; harmonic weights are exact up to 18, and rounded "
        "to multiples of 2^-20 in larger windows",
        POSITIVE_INT,
    )
    left: int | None = config_field(None, "number of tokens to the left, if different from the window", NATURAL)
    right: int | None = config_field(None, "number of tokens to the right, if different from the window", NATURAL)
    weight: str = config_field(
        "harmonic",
        "weight of a token at distance t: 1/t, decreasing linearly, or 1",
        one_of("harmonic", "linear", "uniform"),
    )
    columns: str = config_field(
        "symmetric",
        "one column per word, or separate columns per side (directional), per distance band, or per side and band",
        one_of("symmetric", "directional", "bands", "directional-bands"),
    )
    near: int = config_field(1, "largest distance of the near band, if columns are split by bands", POSITIVE_INT)
    oov: str = config_field(
        "drop",
        "tokens outside the vocabulary are removed before windows are applied (drop) or keep their position (gap)",
        one_of("drop", "gap"),
    )
    device: str = _device_field(changes_result=False)
    device_memory: str | None = _device_memory_field()

    def __post_init__(self) -> None:
        check_fields(self)
        # Rules between fields come after those of each field.
        if self.window_left + self.window_right == 0:
            raise ConfigError("left and right are both 0: there is nothing to count", argument=("left", "right"))
        if self.has_bands and self.near >= max(self.window_left, self.window_right):
            raise ConfigError(
                f"near must be smaller than the window of {max(self.window_left, self.window_right)}, "
                f"got {self.near}: the far band would be empty; use a larger window, or columns='directional'",
                argument=("near", "window"),
            )

    @property
    def window_left(self) -> int:
        """Number of tokens to the left that co-occur with a token."""
        return self.window if self.left is None else self.left

    @property
    def window_right(self) -> int:
        """Number of tokens to the right that co-occur with a token."""
        return self.window if self.right is None else self.right

    @property
    def is_directional(self) -> bool:
        """Whether a word has separate columns for the left and the right side."""
        return self.columns in ("directional", "directional-bands")

    @property
    def has_bands(self) -> bool:
        """Whether near and far words are two columns."""
        return self.columns in ("bands", "directional-bands")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How vectors are trained. Values of None are chosen for the matrix and the device, and recorded in the plan."""

    dim: int = config_field(300, "dimensions of a vector", POSITIVE_INT)
    epochs: int | None = config_field(None, "number of epochs; default: enough for updates_per_vector", POSITIVE_INT)
    updates_per_vector: int = config_field(
        480, "if epochs is not given: about how many times every vector is updated, in at least 4 epochs", POSITIVE_INT
    )
    block_size: int | None = config_field(None, "number of rows and columns of a block", POSITIVE_INT)
    largest_block: int | None = config_field(
        None,
        "largest block size to choose, if block_size is not given: larger blocks need more epochs and give better "
        "vectors; default: 1024 on a CPU, 4096 elsewhere",
        POSITIVE_INT,
    )
    learning_rate: float = config_field(
        0.1, "learning rate of Adagrad; the recipe table has less if dim is above 64", POSITIVE
    )
    initial_accumulator: float = config_field(1e-6, "initial value of Adagrad's accumulators", NORMAL)
    accumulator_decay: float = config_field(
        1.0,
        "share of Adagrad's accumulators that an update keeps: 1 is Adagrad, less is RMSProp, which forgets old "
        "gradients and learns as much in fewer epochs",
        FRACTION,
    )
    weight_decay: float = config_field(
        0.0,
        "weight decay; 1e-4 improves vectors of text, 1e-3 ruins those of much text; tables need more (recipe table)",
        NOT_NEGATIVE,
    )
    decay_power: float = config_field(
        0.0,
        "the weight decay of a row or column is weight_decay times its sum to this power; 0: the same for all",
        POWER,
    )
    stop: str = config_field(
        "epochs",
        "end after a fixed number of epochs with a decreasing learning rate, or when the loss stops decreasing",
        one_of("epochs", "converged"),
    )
    tolerance: float = config_field(
        0.002, "with stop converged: end when the loss decreases by less than this share per epoch", POSITIVE
    )
    zeros: str = config_field(
        "all",
        "compute every unobserved cell, or an unbiased sample; auto: whichever is faster, which is all on CUDA",
        one_of("all", "sampled", "auto"),
    )
    zeros_common: float = config_field(
        0.03, "with sampled zeros: share of the most frequent rows and columns whose zeros are all computed", FRACTION
    )
    zeros_middle: float = config_field(0.3, "with sampled zeros: share of rows and columns that are not rare", FRACTION)
    zeros_share: float = config_field(
        0.008, "with sampled zeros: share of zeros computed between the rarest features; larger for others", FRACTION
    )
    sample_rows: int | None = config_field(
        None,
        "with sampled zeros: about how many rows share a sample of columns; fewer rows take longer and give columns "
        "steadier gradients; default: all rows of a block that are about as frequent",
        POSITIVE_INT,
    )
    transform: str = config_field(
        "none",
        "log: train with log(1 + x) in place of every count x, for counts that differ by orders of magnitude",
        one_of("none", "log"),
    )
    shift: float = config_field(0.0, "log of the shift, subtracted from every target", FINITE)
    confidence_base: float = config_field(0.1, "b0 in f(x) = b0 + b x^a, the weight of an observed cell", NOT_NEGATIVE)
    confidence_scale: float = config_field(0.25, "b in f(x) = b0 + b x^a", NOT_NEGATIVE)
    confidence_power: float = config_field(0.5, "a in f(x) = b0 + b x^a", POWER)
    unseen: float = config_field(
        1.0,
        "count that replaces 0 in the target of an unobserved cell; the recipe table, counts of walks and suppressed "
        "counts have their own",
        POSITIVE,
    )
    dtype: str = config_field(
        "auto",
        "data type of the operands of matrix products; auto measures which is faster",
        one_of("auto", "float32", "bfloat16"),
    )
    backend: str = config_field(
        "auto", "implementation of the training step", one_of("auto", "cpu", "triton", "torch", "reference")
    )
    device: str = _device_field(changes_result=True)
    device_memory: str | None = _device_memory_field()
    ranks: int | None = config_field(
        None,
        "number of processes that the order of blocks is made for; default: as many as there are",
        POSITIVE_INT,
    )
    seed: int = config_field(1, "seed of all random numbers", NATURAL)
    checkpoint_minutes: float = config_field(
        5.0, "minutes between checkpoints; 0: only when interrupted", NOT_NEGATIVE, changes_result=False
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.confidence_base + self.confidence_scale == 0:
            raise ConfigError(
                "confidence_base and confidence_scale are both 0: no observed cell would count",
                argument=("confidence_base", "confidence_scale"),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorsConfig:
    """How trained rows and columns are combined into vectors."""

    combine: str = config_field(
        "sum",
        "rows: w; sum: w + c (all columns of a word); parts: w, the word's columns and their sum, each normalized, "
        "concatenated and reduced to dim by an SVD",
        one_of("rows", "sum", "parts"),
    )
    column_weight: float = config_field(0.5, "with parts: weight of each column part; rows have weight 1", NOT_NEGATIVE)
    sum_weight: float = config_field(1.0, "with parts: weight of the sum of rows and columns; 0: omit it", NOT_NEGATIVE)
    spectrum: float = config_field(
        0.8,
        "with parts: power of the singular values; 1 keeps them, smaller powers even the dimensions out",
        NOT_NEGATIVE,
    )
    subwords: str = config_field(
        "none",
        "ngrams: fit vectors of character n-grams, which guess vectors of words that were never seen; not for tables, "
        "and not with fewer than 1,000 words",
        one_of("ngrams", "none"),
    )
    spelling: float = config_field(
        0.0,
        "with ngrams: to the vector of a word with n occurrences, add 2 spelling / (n + spelling) times what its "
        "spelling says",
        NOT_NEGATIVE,
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

# Accumulators that forget learn as much in 288 updates as Adagrad in 480 (experiments/notes.md).
_QUICK = {"learning_rate": 0.09, "accumulator_decay": 0.9, "updates_per_vector": 288}
# A warm start needs accumulators that remember: they keep known vectors near their old values.
WARM_START: Mapping[str, Any] = {"learning_rate": 0.1, "accumulator_decay": 1.0, "updates_per_vector": 480}

# `paper`: every setting that the paper states. It does not state, and we chose, Adagrad's learning rate and initial
# accumulator, the tolerance that ends training, and the exact tokenizer.
# `fast`: one column per word; experiments/notes.md has its figures.
# `default`: four columns per word; the best vectors known.
# `table`: for rows and columns of different kinds; weight decay, unseen, blocks and epochs follow from the table,
# and the learning rate, here that of up to 64 dimensions, from dim (training/table_settings.py).
# `graph`: for counts of walks, of which `unseen` follows from what was omitted; experiments/graphs.md has its figures.
RECIPES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "paper": {
        "corpus": {"unit": "sentence"},
        "count": {"window": 10, "weight": "harmonic", "columns": "symmetric"},
        "train": {"dim": 300, "block_size": 4096, "stop": "converged", "epochs": 100, "zeros": "all"},
        "vectors": {"combine": "sum"},
    },
    "fast": {
        "count": {"columns": "symmetric"},
        "train": {**_QUICK, "weight_decay": 1e-4, "zeros": "auto", "zeros_middle": 0.2, "zeros_share": 0.006},
        "vectors": {"combine": "sum", "subwords": "ngrams"},
    },
    "default": {
        "count": {"columns": "directional-bands", "near": 1},
        "train": {**_QUICK, "weight_decay": 5e-5, "zeros": "auto", "zeros_middle": 0.2, "zeros_share": 0.004},
        "vectors": {
            "combine": "parts",
            "column_weight": 0.5,
            "sum_weight": 1.0,
            "spectrum": 0.8,
            "subwords": "ngrams",
            "spelling": 100.0,
        },
    },
    "table": {
        "count": {"columns": "symmetric"},
        "train": {
            "dim": 256,
            "learning_rate": 0.5,
            "accumulator_decay": 0.95,
            "decay_power": 0.5,
            "transform": "log",
            "shift": -4.0,
            "confidence_base": 1.2,
            "confidence_scale": 0.0,
            "zeros": "auto",
            "zeros_common": 0.05,
            "zeros_middle": 0.2,
            "zeros_share": 0.01,
            "sample_rows": 512,
        },
        "vectors": {"combine": "rows"},
    },
    "graph": {
        "count": {"columns": "symmetric"},
        "train": {
            **_QUICK,
            "dim": 128,
            "weight_decay": 1e-4,
            "zeros": "auto",
            "zeros_middle": 0.2,
            "zeros_share": 0.006,
        },
        "vectors": {"combine": "sum"},
    },
}
TEXT_RECIPES = tuple(name for name in RECIPES if name not in ("table", "graph"))

Stage = TypeVar("Stage")

# What manifests without these settings mean: text was not normalized before they existed.
_BEFORE_UNICODE: Mapping[str, Any] = {"normalization": "none"}


def settings_of(settings: Mapping[str, Any], *stages: type[Any]) -> dict[str, Any]:
    """Return the settings that some stages have and that are not None; `device` belongs to several.

    >>> settings_of({"window": 5, "min_count": None, "dim": 100}, CountConfig, VocabularyConfig)
    {'window': 5}
    """
    names = {field.name for stage in stages for field in dataclasses.fields(stage)}
    return {name: value for name, value in settings.items() if name in names and value is not None}


def stage_config(stage: type[Stage], recipe: str = "default", **settings: Any) -> Stage:
    """Return the configuration of a stage: the recipe's values, overridden by those of its settings that are not None.

    >>> stage_config(TrainConfig, "fast", dim=100).weight_decay
    0.0001
    """
    if recipe not in RECIPES:
        raise ConfigError(f"recipe must be one of {', '.join(RECIPES)}, got {recipe!r}", argument="recipe")
    name = next(name for name, kind in STAGES.items() if kind is stage)
    return stage(**{**RECIPES[recipe].get(name, {}), **settings_of(settings, stage)})


def recorded_config(stage: type[Stage], recorded: Mapping[str, Any]) -> Stage:
    """Return the configuration of a stage from a manifest, without settings that no stage has."""
    settings = settings_of(recorded, stage)
    if stage is CorpusConfig:
        settings = {**_BEFORE_UNICODE, **settings}
    return stage(**settings)
