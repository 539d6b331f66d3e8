"""Every config_field: its default, its check, its help; the recipes."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from swivel.config import (
    RECIPES,
    STAGES,
    CorpusConfig,
    CountConfig,
    TrainConfig,
    VectorsConfig,
    VocabularyConfig,
    result_settings,
    stage_config,
)
from swivel.errors import ConfigError
from swivel.storage.manifest import fingerprint

KNOBS = [(stage, field) for stage in STAGES.values() for field in dataclasses.fields(stage)]


@pytest.mark.parametrize(("stage", "field"), KNOBS, ids=lambda value: getattr(value, "name", None))
def test_every_knob_has_a_help_and_refuses_nonsense(stage: Any, field: dataclasses.Field[Any]) -> None:
    assert field.metadata["help"]
    with pytest.raises(ConfigError, match=f"^{field.name} must be {field.metadata['rule'].words}, got \\["):
        stage(**{field.name: []})


@pytest.mark.parametrize("stage", STAGES.values())
def test_configurations_are_keyword_only_frozen_and_json(stage: Any) -> None:
    config = stage()
    with pytest.raises(TypeError):
        stage(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(stage)[0].name, 1)
    assert stage(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


@pytest.mark.parametrize(
    ("stage", "name", "value", "words"),
    [
        (CountConfig, "window", 0, "a positive integer"),
        (CountConfig, "window", True, "a positive integer"),
        (CountConfig, "window", 2.0, "a positive integer"),
        (CountConfig, "left", -1, "an integer of 0 or more"),
        (CountConfig, "weight", "quadratic", "one of harmonic, linear, uniform"),
        (CorpusConfig, "lowercase", 1, "true or false"),
        (CorpusConfig, "encoding", "", "a text that is not empty"),
        (VocabularyConfig, "max_size", -1, "an integer of 0 or more"),
        (TrainConfig, "learning_rate", math.nan, "a positive number up to 1e30"),
        (TrainConfig, "learning_rate", math.inf, "a positive number up to 1e30"),
        (TrainConfig, "initial_accumulator", 1e300, "a number from 1e-30 to 1e30"),
        (TrainConfig, "shift", -(10**300), "a number from -1e30 to 1e30"),
        (TrainConfig, "weight_decay", -1e-9, "a number from 0 to 1e30"),
        (TrainConfig, "zeros_share", 1.5, "a number above 0 and at most 1"),
        (TrainConfig, "zeros_share", 0, "a number above 0 and at most 1"),
        (TrainConfig, "shift", math.inf, "a number from -1e30 to 1e30"),
        (VectorsConfig, "combine", "product", "one of rows, sum, parts"),
    ],
)
def test_wrong_values_are_named_with_what_they_should_be(stage: Any, name: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stage(**{name: value})
    assert str(caught.value) == f"{name} must be {words}, got {value!r}"


def test_numbers_of_numpy_become_those_of_python() -> None:
    given: dict[str, Any] = {"dim": np.int64(4), "zeros_share": np.float32(0.5)}
    config = TrainConfig(**given)
    assert (config.dim, config.zeros_share) == (4, 0.5)
    assert (type(config.dim), type(config.zeros_share)) == (int, float)


def test_whole_numbers_are_the_same_setting_as_real_ones() -> None:
    whole = TrainConfig(weight_decay=0, shift=0, unseen=1)
    assert fingerprint(whole) == fingerprint(TrainConfig(weight_decay=0.0, shift=0.0, unseen=1.0))
    assert isinstance(whole.weight_decay, float)


def test_window_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="left and right are both 0: there is nothing to count"):
        CountConfig(left=0, right=0)


@pytest.mark.parametrize("columns", ["bands", "directional-bands"])
def test_near_band_must_leave_room_for_the_far_one(columns: str) -> None:
    with pytest.raises(ConfigError, match="near must be smaller than the window of 3, got 3"):
        CountConfig(window=3, near=3, columns=columns)
    assert CountConfig(window=3, near=2, columns=columns).has_bands


def test_near_does_not_matter_without_bands() -> None:
    assert CountConfig(window=1, near=5).near == 5


def test_confidence_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="confidence_base and confidence_scale are both 0"):
        TrainConfig(confidence_base=0, confidence_scale=0)


def test_memory_of_the_device_is_a_text_or_left_open_and_changes_no_result() -> None:
    assert TrainConfig().device_memory is None
    some = TrainConfig(device_memory="20GiB")
    assert some.device_memory == "20GiB"
    assert result_settings(some) == result_settings(TrainConfig())
    with pytest.raises(ConfigError, match="device_memory must be a text that is not empty, got ''"):
        TrainConfig(device_memory="")


def test_left_and_right_take_the_place_of_the_window() -> None:
    config = CountConfig(window=4, left=0)
    assert (config.window_left, config.window_right) == (0, 4)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("symmetric", (False, False)),
        ("directional", (True, False)),
        ("bands", (False, True)),
        ("directional-bands", (True, True)),
    ],
)
def test_columns_say_whether_they_know_sides_and_distances(columns: str, expected: tuple[bool, bool]) -> None:
    config = CountConfig(columns=columns)
    assert (config.is_directional, config.has_bands) == expected


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("stage", STAGES.values())
def test_every_recipe_makes_every_stage(recipe: str, stage: Any) -> None:
    name = next(name for name, kind in STAGES.items() if kind is stage)
    config = stage_config(stage, recipe)
    for setting, value in RECIPES[recipe].get(name, {}).items():
        assert getattr(config, setting) == value
    assert set(RECIPES[recipe]) <= set(STAGES)


def test_paper_recipe_is_the_papers() -> None:
    train, count = stage_config(TrainConfig, "paper"), stage_config(CountConfig, "paper")
    assert (train.dim, train.block_size, train.zeros, train.weight_decay, train.shift) == (300, 4096, "all", 0, 0)
    assert (train.confidence_base, train.confidence_scale, train.confidence_power) == (0.1, 0.25, 0.5)
    assert (count.window, count.weight, count.columns) == (10, "harmonic", "symmetric")
    assert stage_config(VectorsConfig, "paper").combine == "sum"


def test_settings_override_the_recipe_and_none_does_not() -> None:
    config = stage_config(TrainConfig, "fast", dim=64, weight_decay=None)
    assert (config.dim, config.weight_decay) == (64, 1e-4)


def test_unknown_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match="recipe must be one of paper, fast, default, table, graph, got 'slow'"):
        stage_config(TrainConfig, "slow")


def test_settings_of_other_stages_are_ignored() -> None:
    assert stage_config(CountConfig, "fast", window=3, dim=4) == CountConfig(window=3)
