"""Split the keyword arguments of a call into the configurations of its stages and its run options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from swivel.config import (
    WARM_START,
    CorpusConfig,
    CountConfig,
    TrainConfig,
    VectorsConfig,
    VocabularyConfig,
    result_settings,
    settings_of,
    stage_config,
)
from swivel.runtime.resources import parse_bytes
from swivel.vectors import Vectors


@dataclasses.dataclass(frozen=True, slots=True)
class TextCounting:
    """Settings for reading and counting a text."""

    corpus: CorpusConfig
    vocabulary: VocabularyConfig
    count: CountConfig

    def __post_init__(self) -> None:
        if self.count.device_memory is not None:
            parse_bytes(self.count.device_memory, "device_memory")  # Report a malformed value before text is read.

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the settings of each stage, for a manifest."""
        recorded = dataclasses.replace(self, corpus=self.corpus.without_path())
        return {field.name: result_settings(getattr(recorded, field.name)) for field in dataclasses.fields(self)}


def resolve_counting(recipe: str, settings: Mapping[str, Any]) -> TextCounting:
    """Return how text is read and counted: the values of a recipe, overridden by `settings` that are not None."""
    return TextCounting(
        stage_config(CorpusConfig, recipe, **settings),
        stage_config(VocabularyConfig, recipe, **settings),
        stage_config(CountConfig, recipe, **settings),
    )


def resolve_training(
    recipe: str, settings: Mapping[str, Any], init: Vectors | None = None
) -> tuple[TrainConfig, VectorsConfig]:
    """Return how vectors are trained and combined; a warm start from `init` has its dimensions, and own defaults."""
    if init is not None:
        # What the user passes wins over what suits a warm start.
        settings = {"dim": init.rows.shape[1], **WARM_START, **settings_of(settings, TrainConfig, VectorsConfig)}
    return stage_config(TrainConfig, recipe, **settings), stage_config(VectorsConfig, recipe, **settings)
