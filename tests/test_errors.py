"""The exception hierarchy."""

from __future__ import annotations

import inspect
import pickle

import pytest

from swivel import errors
from swivel.errors import MissingExtra, SwivelError, UnknownToken, missing_extra

ALL = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, SwivelError)}


def test_every_error_has_a_docstring() -> None:
    assert all(kind.__doc__ for kind in ALL.values())


def test_only_config_errors_exit_with_status_two() -> None:
    assert {name for name, kind in ALL.items() if kind.exit_status == 2} == {"ConfigError"}
    assert {kind.exit_status for kind in ALL.values()} == {1, 2}


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ConfigError", ValueError),
        ("CountsError", ValueError),
        ("UnknownToken", KeyError),
        ("MissingExtra", ImportError),
    ],
)
def test_errors_inherit_from_the_matching_builtin(name: str, builtin: type[Exception]) -> None:
    assert issubclass(ALL[name], builtin)


def test_unknown_token_shows_its_message_without_quotes() -> None:
    assert str(UnknownToken("'color' is unknown")) == "'color' is unknown"


def test_missing_extra_names_what_to_install() -> None:
    error = missing_extra("plots", "matplotlib", "plot")
    assert isinstance(error, MissingExtra)
    assert str(error) == "plots need matplotlib: pip install 'swivel-embeddings[plot]'"


@pytest.mark.parametrize("kind", ALL.values())
def test_errors_keep_the_names_of_arguments_in_another_process(kind: type[SwivelError]) -> None:
    error = pickle.loads(pickle.dumps(kind("dim and init differ", argument=("dim", "init"))))
    assert (type(error), str(error), error.arguments) == (kind, "dim and init differ", ("dim", "init"))
    assert kind("dim is 0", argument="dim").arguments == ("dim",)
