"""Flags made from the configuration dataclasses: help text, choices and defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_type_hints

import click

from swivel.config import RECIPES, STAGES
from swivel.runtime.options import ClusterConfig

Function = TypeVar("Function", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose help groups the options by stage."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups, in the order of the stages."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "stage", "options"), []).append(record)
        for name in sorted(groups, key=["options", *STAGES, "machine", "output"].index):
            with formatter.section(name.capitalize()):
                formatter.write_dl(groups[name])


class StageOption(click.Option):
    """An option of a stage."""

    def __init__(self, *args: Any, stage: str = "options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stage = stage


def config_options(*configs: type[Any]) -> Callable[[Function], Function]:
    """Return a decorator that adds one flag per field name of the configurations."""
    fields = {field.name: (config, field) for config in configs for field in dataclasses.fields(config)}

    def decorate(function: Function) -> Function:
        for config, field in reversed(fields.values()):
            function = _field_option(config, field)(function)
        return function

    return decorate


def _field_option(config: type[Any], field: dataclasses.Field[Any]) -> Callable[[Function], Function]:
    stage = next((name for name, kind in STAGES.items() if kind is config), "machine")
    hint = get_type_hints(config)[field.name]
    kind = next((part for part in get_args(hint) if part is not type(None)), hint)
    flag = "--" + field.name.replace("_", "-")
    keywords: dict[str, Any] = {"default": None, "help": _help(stage, field), "stage": stage, "cls": StageOption}
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", **keywords)
    choices = field.metadata["choices"]
    keywords["type"] = click.Choice(choices) if choices else kind
    return click.option(flag, **keywords)


def _help(stage: str, field: dataclasses.Field[Any]) -> str:
    """Return the help text with the default, or with the value of each recipe if they differ."""
    values = {name: recipe.get(stage, {}).get(field.name, field.default) for name, recipe in RECIPES.items()}
    text = str(field.metadata["help"])
    if len({repr(value) for value in values.values()}) > 1:
        return f"{text}  [{', '.join(f'{name}: {_shown(value)}' for name, value in values.items())}]"
    return text if field.default is None else f"{text}  [default: {_shown(field.default)}]"


def _shown(value: Any) -> str:
    if value is None:
        return "auto"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _flag(stage: str, name: str, help: str, **keywords: Any) -> Callable[[Function], Function]:
    return click.option(name, cls=StageOption, stage=stage, help=help, **keywords)


def resource_options(function: Function) -> Function:
    """Add --threads, --memory and --overwrite."""
    function = _flag("machine", "--overwrite", "replace finished results", is_flag=True)(function)
    memory = "memory limit for counting, such as 1GiB  [default: half of the free memory]"
    function = _flag("machine", "--memory", memory)(function)
    return _flag("machine", "--threads", "threads to use  [default: all cores]", type=int)(function)


def watching_options(function: Function) -> Function:
    """Add --no-report and --tensorboard."""
    text = "do not write report.html"
    function = _flag("output", "--no-report", text, is_flag=True)(function)
    text = "write curves for `tensorboard --logdir DIR` while training"
    return _flag("output", "--tensorboard", text, metavar="DIR")(function)


def ray_option(function: Function) -> Function:
    """Add --ray."""
    text = "run on a Ray cluster: local (start one on this machine), auto (a running one) or HOST:PORT"
    return _flag("machine", "--ray", text, metavar="ADDRESS")(function)


def cluster_options(function: Function) -> Function:
    """Add --ray and the options of cluster training."""
    return ray_option(config_options(ClusterConfig)(function))


def output_options(function: Function) -> Function:
    """Add --quiet, --json and --traceback."""
    where = "print the traceback of an error"
    function = _flag("output", "--traceback", where, is_flag=True, expose_value=False)(function)
    function = _flag("output", "--json", "print the result as JSON", is_flag=True)(function)
    return _flag("output", "--quiet", "print no progress", is_flag=True)(function)
