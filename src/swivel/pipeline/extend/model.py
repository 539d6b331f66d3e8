"""What is extended: trained vectors, and how their text was counted.

Receives a path or loaded vectors, hands on a `TrainedModel` and a `TextCounting`, or says why there can be none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig, CountConfig, TrainConfig, VectorsConfig, VocabularyConfig, result_settings
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.cooccurrence import column_vocabulary
from swivel.errors import ConfigError
from swivel.pipeline.stages import split_settings
from swivel.runtime.progress import Progress
from swivel.storage import Manifest, fingerprint, read_manifest
from swivel.vectors import Vectors, VectorTable, load
from swivel.vectors.formats.reader import find_vectors, recognise

COLUMNS = ("symmetric", "directional", "bands", "directional-bands")


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A folder of vectors with all that folding into it needs."""

    path: Path
    manifest: Manifest
    vectors: Vectors
    columns: VectorTable
    row_sums: NDArray[np.float64]
    column_sums: NDArray[np.float64]

    @property
    def words(self) -> int:
        """How many words were trained: the first ones. Those after them were added by `extend`."""
        return int(self.manifest.facts.get("trained_rows", len(self.vectors)))

    @property
    def total(self) -> float:
        """The sum of all counts of the training."""
        return float(self.row_sums[: self.words].sum())

    @property
    def train_config(self) -> TrainConfig:
        """How they were trained."""
        return TrainConfig(**self.manifest.config["train"])

    @property
    def vectors_config(self) -> VectorsConfig:
        """How rows and columns became vectors."""
        return VectorsConfig(**self.manifest.config["vectors"])

    @property
    def fingerprint(self) -> str:
        """Digest of the content."""
        return fingerprint({name: part.sha256 for name, part in sorted(self.manifest.parts.items())})


def open_trained(vectors: Vectors | str | Path) -> TrainedModel:
    """Return the vectors with the settings of their training, or raise ConfigError for what has no such thing."""
    path = vectors.path if isinstance(vectors, Vectors) else find_vectors(vectors)
    if path is None:
        raise ConfigError("vectors that are in no folder do not say how they were trained: extend the trained folder")
    if recognise(path) != "swivel":
        raise ConfigError(f"{path}: another tool's vectors have no columns to fold words into; extend a trained folder")
    manifest = read_manifest(path)
    loaded = vectors if isinstance(vectors, Vectors) else load(path)
    if not {"train", "vectors"} <= set(manifest.config):
        raise ConfigError(f"{path}: does not say how it was trained; extend the folder that training wrote")
    if manifest.config["train"].get("objective", "swivel") != "swivel":
        raise ConfigError(f"{path}: trained with objective glove, whose column biases are not kept: train it otherwise")
    columns = loaded.contents.columns
    if columns is None or columns.sums is None or loaded.row_sums is None:
        raise ConfigError(f"{path}: no columns, or no sums of rows and columns; extend the folder that training wrote")
    if loaded.columns_per_row == 0:
        raise ConfigError(
            f"{path}: its columns are not its words, so text says nothing of them; "
            "swivel.training.fold_in.fold_rows takes counts of new rows"
        )
    return TrainedModel(path, manifest, loaded, columns, loaded.row_sums, columns.sums)


@dataclass(frozen=True, slots=True)
class TextCounting:
    """How the new text is read and counted."""

    corpus: CorpusConfig
    vocabulary: VocabularyConfig
    count: CountConfig

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the settings of each stage, for a manifest."""
        return {field.name: result_settings(getattr(self, field.name)) for field in dataclasses.fields(self)}


def choose_counting(trained: TrainedModel, settings: Mapping[str, Any], progress: Progress) -> TextCounting:
    """Return what the training recorded, with what was asked for; an older folder is asked by its columns' names."""
    asked = {name: value for name, value in settings.items() if value is not None}
    checked = split_settings("fast", _without_count(asked), CorpusConfig, VocabularyConfig, CountConfig)
    to_count = _pick(asked, CountConfig)
    recorded = trained.manifest.facts.get("counted_with") or {}
    corpus = CorpusConfig(**{**recorded.get("corpus", {}), **_pick(asked, CorpusConfig)})
    if "count" not in recorded:
        chosen = TextCounting(corpus, checked[1], _guess_counting(trained, to_count))
        progress.message(_describe_guess(trained.path, chosen))
        return chosen
    count = CountConfig(**{**recorded["count"], **to_count})
    for name in to_count.keys() & recorded["count"].keys():
        if to_count[name] != recorded["count"][name]:
            raise ConfigError(
                f"{name} is {recorded['count'][name]!r} in the training of {trained.path}, got {to_count[name]!r}: "
                "new words are counted as the others were; leave it out"
            )
    return TextCounting(corpus, checked[1], count)


def _without_count(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without the values of those that are only right together with the training's."""
    names = {field.name for field in dataclasses.fields(CountConfig)}
    return {name: None if name in names else value for name, value in settings.items()}


def _pick(settings: Mapping[str, Any], stage: type[Any]) -> dict[str, Any]:
    return {field.name: settings[field.name] for field in dataclasses.fields(stage) if field.name in settings}


def _guess_counting(trained: TrainedModel, asked: Mapping[str, Any]) -> CountConfig:
    """Return the settings under which the columns have the names that they have."""
    first = Vocabulary(trained.vectors.vocabulary.tokens[:1], [1])
    found = trained.columns.vocabulary.tokens[: trained.vectors.columns_per_row]
    for columns in COLUMNS:
        config = CountConfig(**{"columns": columns, **asked})
        if (column_vocabulary(first, config) or first).tokens == found:
            return config
    raise ConfigError(
        f"{trained.path}: its columns are called {', '.join(map(repr, found))}, which no counting like this one calls "
        "them; pass the training's --window, --near and --columns"
    )


def _describe_guess(path: Path, how: TextCounting) -> str:
    count = how.count
    return (
        f"{path} does not say how its text was counted: {count.columns} columns, window {count.window_left} and "
        f"{count.window_right}, weight {count.weight}, unit {how.corpus.unit}; pass the training's where they differ"
    )
