"""The command line's own words: help, version and completion."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from swivel._version import __version__
from swivel.cli import cli
from swivel.cli.flags import Command
from swivel.cli.main import COMMANDS
from swivel.config import STAGES, CorpusConfig, CountConfig, TrainConfig, VectorsConfig, VocabularyConfig
from swivel.runtime.options import ClusterConfig

VERBS = sorted(COMMANDS)


def show(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="swivel")


def test_without_a_verb_the_verbs_are_shown() -> None:
    ended = show()
    assert ended.exit_code == 2
    assert all(verb in ended.stderr for verb in VERBS)


def test_version_is_shown() -> None:
    for flag in ("--version", "-V"):
        ended = show(flag)
        assert (ended.exit_code, ended.stdout) == (0, f"swivel, version {__version__}\n")


def test_verbs_fit_on_their_lines() -> None:
    lines = show("--help").stdout.splitlines()
    summaries = [line for line in lines if line.strip().split(" ")[0] in VERBS]
    assert len(summaries) == len(VERBS)
    assert not [line for line in summaries if line.endswith("...")]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    ended = show(verb, "--help")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"Usage: swivel {verb} ")
    options = ended.stdout.partition("Options:")[2]
    assert not re.search(r"^  [A-Z.]", options, re.MULTILINE), "an argument stands among the options"


@pytest.mark.parametrize(
    ("verb", "configs"),
    [
        ("count", [CorpusConfig, VocabularyConfig, CountConfig]),
        ("train", [TrainConfig, VectorsConfig, ClusterConfig]),
        ("run", [*STAGES.values(), ClusterConfig]),
    ],
)
def test_help_has_a_flag_for_every_setting(verb: str, configs: list[type[Any]]) -> None:
    shown = show(verb, "--help-all").stdout
    for config in configs:
        for field in dataclasses.fields(config):
            assert "  --" + field.name.replace("_", "-") in shown


@pytest.mark.parametrize(("verb", "most"), [("run", 16), ("count", 13), ("train", 14)])
def test_help_shows_the_options_that_people_use_and_help_all_the_rest(verb: str, most: int) -> None:
    def flags(page: str) -> set[str]:
        return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", page, re.MULTILINE))

    short, full = (flags(show(verb, flag).stdout) for flag in ("--help", "--help-all"))
    assert short < full
    assert len(short) <= most
    assert {"--output", "--recipe", "--threads", "--help-all", "--device"} <= short
    assert f"Show {len(full - short)} more options" in show(verb, "--help").stdout


def test_one_more_option_is_singular() -> None:
    hidden = click.Option(["--rare"], help="rare")
    hidden.is_common = False  # type: ignore[attr-defined]
    page = CliRunner().invoke(Command("verb", params=[hidden], callback=print), ["--help"]).output
    assert "Show 1 more option, too." in page


def test_every_option_has_a_text() -> None:
    def walk(command: click.Command, name: str) -> Iterator[str]:
        context = click.Context(command, info_name=name)
        for option in command.get_params(context):
            if isinstance(option, click.Option) and not (option.help or "").strip():
                yield f"{name} {option.opts[-1]}"
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield from walk(found, f"{name} {inner}")

    assert list(walk(cli, "swivel")) == []


def test_commands_are_listed_by_the_steps_of_a_project() -> None:
    shown = show("--help").stdout
    places = [shown.index(text) for text in ("Make vectors:", "  run ", "  train ", "Use them:", "  nearest ")]
    places += [shown.index(text) for text in ("Check them:", "  evaluate ", "Files and shell:", "  info ")]
    assert places == sorted(places)


def test_help_shows_defaults_and_where_recipes_differ() -> None:
    shown = " ".join(show("run", "--help-all").stdout.split())
    assert "default: directional-bands, table: symmetric, graph: symmetric]" in shown
    assert "ignore tokens with fewer occurrences [default: 5]" in shown
    assert "convert the text to lower case [default: yes]" in shown
    assert "[paper: 4096, fast: auto, default: auto, table: auto, graph: auto]" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    ended = show("completion", shell)
    assert ended.exit_code == 0
    assert f"_SWIVEL_COMPLETE={shell}_complete" in ended.stdout
