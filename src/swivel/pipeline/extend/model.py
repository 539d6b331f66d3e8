"""Open trained vectors, and find out how their text was counted."""

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
from swivel.pipeline.settings import split_settings
from swivel.runtime.progress import Progress
from swivel.storage import Manifest, fingerprint, read_manifest
from swivel.vectors import Vectors, VectorTable, load
from swivel.vectors.formats.reader import find_vectors, recognise

COLUMNS = ("symmetric", "directional", "bands", "directional-bands")


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """Trained vectors with their columns and marginals, as the fold-in needs them."""

    path: Path
    manifest: Manifest
    vectors: Vectors
    columns: VectorTable
    row_sums: NDArray[np.float64]
    column_sums: NDArray[np.float64]

    @property
    def words(self) -> int:
        """Number of trained words. They come first; the words after them were added by `extend`."""
        return int(self.manifest.facts.get("trained_rows", len(self.vectors)))

    @property
    def total(self) -> float:
        """The sum D of all counts of the training."""
        return float(self.row_sums[: self.words].sum())

    @property
    def train_config(self) -> TrainConfig:
        """The settings of the training."""
        return TrainConfig(**self.manifest.config["train"])

    @property
    def vectors_config(self) -> VectorsConfig:
        """The settings that combined rows and columns into vectors."""
        return VectorsConfig(**self.manifest.config["vectors"])

    @property
    def fingerprint(self) -> str:
        """Digest of the files in the folder."""
        return fingerprint({name: part.sha256 for name, part in sorted(self.manifest.parts.items())})


def open_trained(vectors: Vectors | str | Path) -> TrainedModel:
    """Return the vectors with the settings of their training, or raise ConfigError if they cannot be extended."""
    path = vectors.path if isinstance(vectors, Vectors) else find_vectors(vectors)
    if path is None:
        raise ConfigError("vectors in memory have no record of their training; pass a folder written by training")
    if recognise(path) != "swivel":
        raise ConfigError(f"{path}: vectors of another tool have no columns; pass a folder written by swivel train")
    manifest = read_manifest(path)
    loaded = vectors if isinstance(vectors, Vectors) else load(path)

    if not {"train", "vectors"} <= set(manifest.config):
        raise ConfigError(f"{path}: the manifest has no training settings; pass a folder written by training")
    if manifest.config["train"].get("objective", "swivel") != "swivel":
        raise ConfigError(f"{path}: trained with objective='glove', whose column biases are not saved; use 'swivel'")

    columns = loaded.contents.columns
    if columns is None or columns.sums is None or loaded.row_sums is None:
        raise ConfigError(f"{path}: has no columns or no sums of rows and columns; pass a folder written by training")
    if loaded.columns_per_row == 0:
        raise ConfigError(
            f"{path}: its columns are not words, so that text cannot be counted with them; "
            "swivel.training.fold_in.fold_rows accepts counts of new rows"
        )
    return TrainedModel(path, manifest, loaded, columns, loaded.row_sums, columns.sums)


@dataclass(frozen=True, slots=True)
class TextCounting:
    """Settings for reading and counting the new text."""

    corpus: CorpusConfig
    vocabulary: VocabularyConfig
    count: CountConfig

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the settings of each stage, for a manifest."""
        return {field.name: result_settings(getattr(self, field.name)) for field in dataclasses.fields(self)}


def choose_counting(trained: TrainedModel, settings: Mapping[str, Any], progress: Progress) -> TextCounting:
    """Return the recorded settings of the training, updated with `settings`.

    Older folders have no record of CountConfig. It is then inferred from the names of the columns.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    _, vocabulary, _ = split_settings("fast", _without_count(given), CorpusConfig, VocabularyConfig, CountConfig)
    given_count = _pick(given, CountConfig)

    recorded = trained.manifest.facts.get("counted_with") or {}
    corpus = CorpusConfig(**{**recorded.get("corpus", {}), **_pick(given, CorpusConfig)})
    if "count" not in recorded:
        chosen = TextCounting(corpus, vocabulary, _guess_counting(trained, given_count))
        progress.message(_describe_guess(trained.path, chosen))
        return chosen

    count = CountConfig(**{**recorded["count"], **given_count})
    for name in given_count.keys() & recorded["count"].keys():
        if given_count[name] != recorded["count"][name]:
            raise ConfigError(
                f"{name} must be {recorded['count'][name]!r} as in the training of {trained.path}, "
                f"got {given_count[name]!r}; omit {name}"
            )
    return TextCounting(corpus, vocabulary, count)


def _without_count(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with None for fields of CountConfig, which are only valid together with the recorded ones."""
    names = {field.name for field in dataclasses.fields(CountConfig)}
    return {name: None if name in names else value for name, value in settings.items()}


def _pick(settings: Mapping[str, Any], stage: type[Any]) -> dict[str, Any]:
    return {field.name: settings[field.name] for field in dataclasses.fields(stage) if field.name in settings}


def _guess_counting(trained: TrainedModel, given: Mapping[str, Any]) -> CountConfig:
    """Return the first kind of columns whose names match those of the first word, or raise ConfigError."""
    first = Vocabulary(trained.vectors.vocabulary.tokens[:1], [1])
    names = trained.columns.vocabulary.tokens[: trained.vectors.columns_per_row]

    for columns in COLUMNS:
        config = CountConfig(**{"columns": columns, **given})
        if (column_vocabulary(first, config) or first).tokens == names:
            return config

    raise ConfigError(
        f"{trained.path}: the column names {', '.join(map(repr, names))} do not match these settings; "
        "pass window, near and columns of the training"
    )


def _describe_guess(path: Path, counting: TextCounting) -> str:
    count = counting.count
    return (
        f"{path} has no record of how its text was counted; assuming {count.columns} columns, window "
        f"{count.window_left} and {count.window_right}, weight {count.weight}, unit {counting.corpus.unit}; "
        "pass the settings of the training if they differ"
    )
