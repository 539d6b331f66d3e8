"""Split the keyword arguments of a call into the configurations of its stages and its run options."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from swivel.config import stage_config
from swivel.errors import ConfigError
from swivel.runtime.options import RunOptions


def split_settings(recipe: str, settings: Mapping[str, Any], *stages: type[Any]) -> list[Any]:
    """Return the configuration of each stage: the values of a recipe, overridden by the settings that are not None.

    Raises ConfigError for a name that no stage has.
    """
    known = {field.name for stage in stages for field in dataclasses.fields(stage)}
    for setting in settings:
        if setting not in known:
            raise ConfigError(_describe_unknown(setting, known))

    return [stage_config(stage, recipe, **settings_of(settings, stage)) for stage in stages]


def _describe_unknown(setting: str, known: set[str]) -> str:
    if setting in {field.name for field in dataclasses.fields(RunOptions)}:
        return f"{setting} is a run option, not a setting: pass options=RunOptions({setting}=...)"
    close = difflib.get_close_matches(setting, sorted(known), n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
    return f"{setting!r} is not a setting here; {hint}"


def settings_of(settings: Mapping[str, Any], *stages: type[Any]) -> dict[str, Any]:
    """Return the settings that some stages have; `device` belongs to several."""
    names = {field.name for stage in stages for field in dataclasses.fields(stage)}
    return {name: value for name, value in settings.items() if name in names}


def given(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None.

    >>> given(window=5, min_count=None)
    {'window': 5}
    """
    return {name: value for name, value in settings.items() if value is not None}


def make_options(options: RunOptions | None, **changes: Any) -> RunOptions:
    """Return the run options, changed by the keyword arguments that are not None.

    >>> make_options(RunOptions(threads=2, overwrite=True), threads=1).threads
    1
    """
    return dataclasses.replace(options or RunOptions(), **given(**changes))
