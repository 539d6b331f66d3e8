"""Commands and their flags, which are made from the configuration dataclasses, and flags in error messages."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, get_args, get_type_hints

import click
from click.core import ParameterSource

from swivel.config import RECIPES, STAGES
from swivel.errors import ConfigError
from swivel.runtime.options import ClusterConfig, RunOptions
from swivel.runtime.progress import SILENT, Progress, TensorboardProgress, warnings_as_messages
from swivel.runtime.resources import is_leading

# Python arguments that are flags of some command.
SETTINGS = {
    field.name for config in (*STAGES.values(), ClusterConfig, RunOptions) for field in dataclasses.fields(config)
}

Decorator = Callable[[Any], Any]

# Groups of options in the help of a command, in this order.
GROUPS = ["options", *STAGES, "machine", "output"]
GROUP_OF = {config: name for name, config in STAGES.items()} | {ClusterConfig: "machine"}
# Settings of the stages that --help shows; --help-all shows the others, too.
COMMON = {"tokenizer", "min_count", "window", "dim", "epochs", "seed", "device"}
ALWAYS_USED = {"quiet", "json", "traceback"}  # flags of every command
LOCAL_RAY_WARNING = (
    "warning: the cluster of --ray local listens on all network interfaces, without a password: everyone who can reach "
    "this machine can run programs on it"
)
_SHOWS_ALL = "swivel.cli.shows_all"  # a key of click's context


class StageOption(click.Option):
    """An option in one of the groups of the help."""

    def __init__(self, *args: Any, group: str, is_common: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.is_common = is_common


class Command(click.Command):
    """A command with the flags that all commands have; it passes the run options to its function as `options`."""

    # Context of the command that this process runs. Messages about its end need it when click has closed it.
    running: ClassVar[click.Context | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        traceback_text = "print the traceback of an error"
        self.params += [
            StageOption(["--quiet"], group="output", is_flag=True, help="print no progress"),
            StageOption(["--json"], group="output", is_flag=True, help="print the result as JSON"),
            StageOption(["--traceback"], group="output", is_flag=True, expose_value=False, help=traceback_text),
        ]
        # What most users never need is hidden, so that the help fits on a screen.
        rare = sum(not getattr(parameter, "is_common", True) for parameter in self.params)
        if rare:
            text = f"Show {rare} more option{'s' * (rare > 1)}, too."
            flag = ["--help-all"]
            self.params.append(
                click.Option(flag, is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help=text)
            )

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function of the command."""
        # Set before anything can fail: messages about the end of the command need it.
        Command.running = ctx
        options, settings = take_options(ctx.params)
        if options.ray == "local":
            options.progress.message(LOCAL_RAY_WARNING)
        with warnings_as_messages(options.progress):
            return ctx.invoke(self.callback, options=options, **settings)  # type: ignore[arg-type]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups, in the order of the stages; the rare ones only after --help-all."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in GROUPS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            is_shown = getattr(parameter, "is_common", True) or _SHOWS_ALL in ctx.meta
            if record is not None and isinstance(parameter, click.Option) and is_shown:
                groups[getattr(parameter, "group", "options")].append(record)

        for name, records in groups.items():
            if records:
                with formatter.section(name.capitalize()):
                    formatter.write_dl(records)


def _show_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print the help with all options, and end the command."""
    if value and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def refuse_idle_options(is_idle: Callable[[str], bool], *, where: str) -> None:
    """Raise ConfigError for the first parameter on the command line that has no effect; `where` says in which case."""
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        name = str(parameter.name)
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in ALWAYS_USED and is_idle(name):
            hint = parameter.get_error_hint(ctx)
            if isinstance(parameter, click.Argument):
                hint = parameter.make_metavar(ctx).strip("[].")
            raise ConfigError(f"{hint} has no effect {where}; leave it out")


def take_options(arguments: Mapping[str, Any]) -> tuple[RunOptions, dict[str, Any]]:
    """Separate the run options of a command from its other arguments."""
    rest = dict(arguments)
    del rest["json"]  # read by `terminal.show`
    # Commands that cannot run on a cluster lack its flags.
    cluster_names = [field.name for field in dataclasses.fields(ClusterConfig) if field.name in rest]

    options = RunOptions(
        threads=rest.pop("threads", None),
        memory=rest.pop("memory", None),
        overwrite=rest.pop("overwrite", False),
        ray=rest.pop("ray", None),
        cluster=ClusterConfig(**{name: rest.pop(name) for name in cluster_names}),
        progress=_choose_progress(quiet=rest.pop("quiet"), tensorboard=rest.pop("tensorboard", None)),
        report=not rest.pop("no_report", True),
    )
    return options, rest


def _choose_progress(*, quiet: bool, tensorboard: str | None) -> Progress:
    from swivel.cli.terminal import CommandProgress  # which imports this module

    if not is_leading():
        return SILENT
    progress = SILENT if quiet else CommandProgress()
    return progress if tensorboard is None else TensorboardProgress(tensorboard, progress)


def combine(*decorators: Decorator) -> Decorator:
    """Return a decorator that adds several options, which the help shows in this order."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def config_options(*configs: type[Any], only: tuple[str, ...] = ()) -> Decorator:
    """Return a decorator that adds one flag per field of the configurations, or for some of their fields `only`."""
    fields = {field.name: (config, field) for config in configs for field in dataclasses.fields(config)}
    return combine(*(_field_option(*fields[name]) for name in only or fields))


def flag_of(name: str) -> str:
    """Return the flag of a Python argument.

    >>> flag_of("min_count")
    '--min-count'
    """
    return "--" + name.replace("_", "-")


def _field_option(config: type[Any], field: dataclasses.Field[Any]) -> Decorator:
    hint = get_type_hints(config)[field.name]
    kind = next((part for part in get_args(hint) if part is not type(None)), hint)
    choices = field.metadata["rule"].choices
    flag = flag_of(field.name)
    if kind is bool:
        flag += "/--no-" + flag[2:]

    # The settings of the stages depend on the recipe: None takes its value.
    is_stage = config in STAGES.values()
    return click.option(
        flag,
        cls=StageOption,
        group=GROUP_OF.get(config, "options"),
        is_common=config not in GROUP_OF or field.name in COMMON,
        type=click.Choice(choices) if choices else kind,
        default=None if is_stage else field.default,
        help=_help(GROUP_OF.get(config, ""), field),
    )


def _help(stage: str, field: dataclasses.Field[Any]) -> str:
    """Return the help text with the default, or with the value of each recipe if they differ."""
    # A default that depends on the recipe is shown for each of them.
    values = {name: recipe.get(stage, {}).get(field.name, field.default) for name, recipe in RECIPES.items()}
    text = str(field.metadata["help"])
    if len({repr(value) for value in values.values()}) > 1:
        return f"{text}  [{', '.join(f'{name}: {_shown(value)}' for name, value in values.items())}]"
    return text if field.default is None else f"{text}  [default: {_shown(field.default)}]"


def _shown(value: Any) -> str:
    words = {"None": "auto", "True": "yes", "False": "no"}
    return words.get(str(value), str(value))


def group_option(group: str, flag: str, help: str, **keywords: Any) -> Decorator:
    """Return an option in a group of the help."""
    return click.option(flag, cls=StageOption, group=group, help=help, **keywords)


def count_option(help: str = "how many", default: int = 10) -> Decorator:
    """Return the option for the number of results that a command shows."""
    return click.option("-n", "--count", type=int, default=default, show_default=True, help=help)


def restrict_option() -> Decorator:
    """Return the option for the number of most frequent words that answers are taken from."""
    return click.option(
        "--restrict-vocab", type=click.IntRange(min=1), metavar="N", help="only some of the N most frequent words"
    )


map_options = combine(
    click.option("--clusters", type=int, help="number of clusters of the map  [default: by the vectors]"),
    click.option("--color-by", metavar="FILE", help="color by classes: lines of a label, a tab and its class"),
)


def choice_option(flag: str, choices: Sequence[str], help: str) -> Decorator:
    """Return an option for one of a few values, by default the first."""
    return click.option(flag, type=click.Choice(choices), default=choices[0], show_default=True, help=help)


def side_option(help: str) -> Decorator:
    """Return the option for the side of a table that labels are from."""
    return choice_option("--side", ["rows", "columns"], help)


overwrite_option = group_option("machine", "--overwrite", "replace finished results", is_flag=True)
threads_option = group_option("machine", "--threads", "threads to use  [default: all cores]", type=int)
resource_options = combine(
    threads_option,
    group_option(
        "machine",
        "--memory",
        "memory limit for counting, such as 1GiB  [default: half of the free memory]",
        is_common=False,
    ),
    overwrite_option,
)
watching_options = combine(
    group_option(
        "output",
        "--tensorboard",
        "write curves for `tensorboard --logdir DIR` while training",
        metavar="DIR",
        is_common=False,
    ),
    group_option("output", "--no-report", "do not write report.html", is_flag=True, is_common=False),
)
ray_option = group_option(
    "machine",
    "--ray",
    "run on a Ray cluster: local (start one on this machine), auto (a running one) or HOST:PORT",
    metavar="ADDRESS",
    is_common=False,
)
cluster_options = combine(ray_option, config_options(ClusterConfig))


def translate(message: str, arguments: Iterable[str] = (), command: click.Command | None = None) -> str:
    """Return a message with the flags of a command in place of `name=value` and of the named arguments.

    The command is by default the running one; without any, the message is unchanged.

    >>> command = click.Command("run", params=[click.Option(["--dim"]), click.Option(["--min-count"])])
    >>> translate("lower min_count, or pass a smaller dim, such as dim=50", ["min_count", "dim"], command)
    'lower --min-count, or pass a smaller --dim, such as --dim 50'
    """
    if command is None:
        if Command.running is None:
            return message
        command = Command.running.command

    # The flags of the command come last: they win where a setting has another name there.
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    own_flags = {str(option.name): max(option.opts, key=len) for option in options}
    flags = {name: flag_of(name) for name in SETTINGS} | {"out": "--output"} | own_flags

    def flag_with_value(match: re.Match[str]) -> str:
        flag = flags[match["name"]]
        value = match["value"].strip("'\"")
        return {"True": flag, "False": "--no-" + flag[2:]}.get(value, f"{flag} {value}")

    # A part of a path and a word in quotes are no arguments.
    before = r"(?<![\w./'\"-])"
    after = r"(?![\w/'\"-]|\.\w)"
    message = re.sub(r"options=RunOptions\((.*?)\)", r"\1", message)
    message = re.sub(rf"{before}(?P<name>{'|'.join(flags)})=(?P<value>'[^']*'|[\w.-]+)", flag_with_value, message)
    for name in flags.keys() & set(arguments):
        message = re.sub(before + name + after, flags[name], message)
    return message
