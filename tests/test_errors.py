"""The tree of exceptions."""

from __future__ import annotations

import inspect
import re

import pytest

from swivel import errors
from swivel.errors import MissingExtra, SwivelError, UnknownToken, missing_extra

ALL = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, SwivelError)}


def read_drawing() -> dict[str, str | None]:
    """Return the parent of each error in the module docstring's drawing."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    (?P<branches>[│├└─ ]*)(?P<name>[A-Z]\w+)(\s{2,}|$)", line)
        if found:
            depth = len(found["branches"]) // 4
            path[depth:] = [found["name"]]
            parents[found["name"]] = path[depth - 1] if depth else None
    return parents


def test_every_error_is_in_the_drawing_under_its_parent() -> None:
    drawn = read_drawing()
    assert set(drawn) == set(ALL)
    for name, parent in drawn.items():
        assert parent is None or ALL[parent] in ALL[name].__bases__, name


def test_every_error_says_what_it_means() -> None:
    assert all(kind.__doc__ for kind in ALL.values())


def test_wrong_settings_exit_with_two_and_all_else_with_one() -> None:
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
def test_errors_are_also_what_python_would_raise(name: str, builtin: type[Exception]) -> None:
    assert issubclass(ALL[name], builtin)


def test_unknown_token_shows_its_message_as_it_is() -> None:
    assert str(UnknownToken("'colour' is not there")) == "'colour' is not there"


def test_missing_extra_names_what_to_install() -> None:
    error = missing_extra("plots", "matplotlib", "plot")
    assert isinstance(error, MissingExtra)
    assert str(error) == "plots need matplotlib: pip install 'swivel-embeddings[plot]'"
