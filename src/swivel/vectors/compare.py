"""Which words moved between two models of different text: the stage behind `swivel compare`.

Receives two trained models (of two corpora, of two decades), and at best a third, a second training of the first one's
text; hands on a `Drift`: every shared word with its cosine after alignment, what is usual for words as common as it,
and its neighbours in both. It trains nothing and, but for `write`, touches no file.

Why two figures beside the cosine. Rare words are noisier: their cosines are lower in any comparison. So a word is
ranked by how far its cosine lies below those of the words about as common as it, in units of their spread (`rank_z`).
And two trainings of one text differ, too: with that yardstick, `same_text` is the cosine that words as common as it
have between those two, and `moved_z` how far below that the word lies. Cosines are taken as arctanh, in which a spread
means the same near 1 and near 0; middle and spread are the median and the median distance from it, on which a few
words that moved have no hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import NATURAL, POSITIVE_INT, check_fields, config_field
from swivel.corpus.vocabulary import Vocabulary, escape
from swivel.errors import ConfigError
from swivel.storage import write_file
from swivel.vectors import Vectors, VectorTable, shared_words
from swivel.vectors.formats import open_vectors

Doubles = NDArray[np.float64]

NORMAL_SPREAD = 1.4826  # the standard deviation of a normal distribution over its median distance from the median
LEAST_SPREAD = 0.01  # in arctanh: equal models have none
MOST_COSINE = 1 - 1e-6  # arctanh of 1 is infinite
WORDS_LIKE_IT = 400  # as common as a word: half of them commoner, half rarer
_CHUNK = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """Which words are compared."""

    top: int = config_field(20_000, "compare the N commonest of the shared words", POSITIVE_INT)
    min_count: int = config_field(
        20, "leave out words seen fewer times in either text, where counts are known", NATURAL
    )
    neighbours: int = config_field(10, "neighbours of a word, among the words compared", POSITIVE_INT)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Word:
    """A word in both models; None where there was no yardstick.

    Attributes
    ----------
    cosine
        Between its vectors after alignment.
    usual
        The median cosine of words as common as it.
    rank_z
        How far below `usual` its cosine lies, in spreads: what words are ranked by.
    same_text, moved_z
        The same against two trainings of one text.
    overlap
        Share of its nearest neighbours that it has in both.
    """

    word: str
    count_before: int
    count_after: int
    cosine: float
    usual: float
    rank_z: float
    same_text: float | None
    moved_z: float | None
    overlap: float
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How much two models agree, over all words compared."""

    cosine: float  # mean, after alignment
    overlap: float  # mean share of nearest neighbours in both


@dataclass(frozen=True, slots=True)
class Drift:
    """What comparing two models gave: words by falling `rank_z`, and the whole."""

    words: tuple[Word, ...]
    whole: Agreement
    yardstick: Agreement | None

    def __iter__(self) -> Iterator[Word]:
        return iter(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def to_dict(self, count: int | None = None) -> dict[str, Any]:
        """Return plain values, of the first `count` words."""
        words = [asdict(word) for word in self.words[:count]]
        yardstick = None if self.yardstick is None else asdict(self.yardstick)
        return {"compared": len(self), "whole": asdict(self.whole), "yardstick": yardstick, "words": words}

    def write(self, file: str | Path) -> None:
        """Write all words, as a table (`.tsv`) or with the whole (`.json`)."""
        path = Path(file)
        check_ending(path)
        text = "".join(self._table()) if path.suffix == ".tsv" else json.dumps(self.to_dict(), ensure_ascii=False)
        write_file(path, text.encode())

    def _table(self) -> Iterator[str]:
        yield "\t".join(Word.__dataclass_fields__) + "\n"
        for word in self.words:
            yield "\t".join(_cell(value) for value in asdict(word).values()) + "\n"


def check_ending(path: Path) -> None:
    """Raise ConfigError for a file that is neither `.tsv` nor `.json`."""
    if path.suffix not in (".tsv", ".json"):
        raise ConfigError(f"{path}: a comparison is written as .tsv or .json, by the ending of its name")


def _cell(value: Any) -> str:
    """Return a value as a field of a line: words escaped as in `rows.txt`, several with spaces between them."""
    if isinstance(value, tuple):
        return " ".join(escape(word) for word in value)
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else escape(str(value))


def compare(
    before: Vectors | str | Path,
    after: Vectors | str | Path,
    *,
    yardstick: Vectors | str | Path | None = None,
    **settings: Any,
) -> Drift:
    """Return which words two models share and which of them moved, farthest first.

    Parameters
    ----------
    before, after
        Models of two texts, of the same dimensions, or where they are.
    yardstick
        A second training of the text of `before`, with another seed: what training alone moves.
    settings
        Fields of CompareConfig: top, min_count, neighbours.

    Raises ConfigError where the models share too few words, or not their dimensions.

    >>> rng = np.random.default_rng(0)
    >>> words, table = [f"w{n}" for n in range(50)], rng.normal(size=(50, 4)).astype(np.float32)
    >>> moved = table.copy()
    >>> moved[7] *= -1
    >>> before, after = (Vectors(VectorTable(Vocabulary(words), values)) for values in (table, moved[:, ::-1]))
    >>> compare(before, after).words[0].word
    'w7'
    """
    config = CompareConfig(**settings)
    models = [_open(model) for model in (before, after, *([] if yardstick is None else [yardstick]))]
    words = _choose_words(models, config)
    first, second, *third = [_restrict(model, words) for model in models]
    pair = _Pair.of(first, second, config.neighbours)
    same = _Pair.of(third[0], first, config.neighbours) if third else None
    listed = _rank_words(first.vocabulary, second.vocabulary, pair, same)
    return Drift(tuple(listed), pair.agreement, None if same is None else same.agreement)


def _open(model: Vectors | str | Path) -> Vectors:
    return model if isinstance(model, Vectors) else open_vectors(model)


def _rank_words(before: Vocabulary, after: Vocabulary, pair: _Pair, same: _Pair | None) -> Iterator[Word]:
    """Yield the words, those that moved farthest for words as common as they are first."""
    usual, spread = running_middle(pair.angles)
    rank_z = (usual - pair.angles) / spread
    if same is not None:
        middle, breadth = running_middle(same.angles)
        moved_z = (middle - pair.angles) / breadth
    for n in np.argsort(-rank_z, kind="stable").tolist():
        yield Word(
            word=before.tokens[n],
            count_before=int(before.counts[n]),
            count_after=int(after.counts[n]),
            cosine=float(pair.cosines[n]),
            usual=float(np.tanh(usual[n])),
            rank_z=float(rank_z[n]),
            same_text=None if same is None else float(np.tanh(middle[n])),
            moved_z=None if same is None else float(moved_z[n]),
            overlap=float(pair.overlaps[n]),
            before=pair.first[n],
            after=pair.second[n],
        )


def _choose_words(models: Sequence[Vectors], config: CompareConfig) -> list[str]:
    """Return the words to compare, commonest first: in all models, with a vector, and common enough."""
    words = shared_words(models[0].vocabulary, models[1].vocabulary)
    words = [word for word in words if all(_is_usable(model, word, config.min_count) for model in models)]
    if not words:
        raise ConfigError("the models share no word that has a vector and occurs often enough; lower --min-count")
    return words[: config.top]


def _is_usable(model: Vectors, word: str, min_count: int) -> bool:
    number = model.vocabulary.ids.get(word)
    if number is None or model.is_zero[number]:
        return False
    count = int(model.vocabulary.counts[number])
    return count == 0 or count >= min_count  # 0: not known, as in another tool's file


def _restrict(model: Vectors, words: Sequence[str]) -> Vectors:
    """Return the model of these words alone."""
    ids = [model.vocabulary.ids[word] for word in words]
    return Vectors(VectorTable(Vocabulary(words, model.vocabulary.counts[ids]), model.unit_vectors[ids]))


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two models of the same words in the same order: what they agree on."""

    cosines: Doubles
    overlaps: Doubles
    first: list[tuple[str, ...]]
    second: list[tuple[str, ...]]

    @classmethod
    def of(cls, first: Vectors, second: Vectors, neighbours: int) -> _Pair:
        aligned = first.align(second).unit_vectors
        cosines = np.einsum("ij,ij->i", aligned, second.unit_vectors, dtype=np.float64)
        found = [_list_neighbours(model, neighbours) for model in (first, second)]
        most = max(min(neighbours, len(first) - 1), 1)
        shared = [len({*a} & {*b}) / most for a, b in zip(*found, strict=True)]
        return cls(np.clip(cosines, -1, 1), np.array(shared), *found)

    @property
    def angles(self) -> Doubles:
        return np.arctanh(np.clip(self.cosines, -MOST_COSINE, MOST_COSINE))

    @property
    def agreement(self) -> Agreement:
        return Agreement(float(self.cosines.mean()), float(self.overlaps.mean()))


def _list_neighbours(model: Vectors, count: int) -> list[tuple[str, ...]]:
    found = model.nearest_each(model.vocabulary.tokens, count=count)
    return [tuple(neighbour.token for neighbour in each) for each in found]


def running_middle(values: Doubles) -> tuple[Doubles, Doubles]:
    """Return, for each value, the median and the spread of the values around it: of words about as common.

    >>> middle, spread = running_middle(np.array([1.0, 2.0, 3.0, 9.0]))
    >>> middle.tolist(), spread.round(4).tolist()
    ([2.5, 2.5, 2.5, 2.5], [1.4826, 1.4826, 1.4826, 1.4826])
    """
    width = min(WORDS_LIKE_IT, len(values))
    starts = np.clip(np.arange(len(values)) - width // 2, 0, len(values) - width)
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    middle, spread = np.empty(len(windows)), np.empty(len(windows))
    for start in range(0, len(windows), _CHUNK):
        piece = slice(start, start + _CHUNK)
        middle[piece] = np.median(windows[piece], axis=1)
        spread[piece] = np.median(np.abs(windows[piece] - middle[piece, None]), axis=1)
    return middle[starts], np.maximum(NORMAL_SPREAD * spread, LEAST_SPREAD)[starts]
