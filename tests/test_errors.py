"""The exception hierarchy."""

from __future__ import annotations

import inspect
import re

import pytest

from swivel import errors
from swivel.errors import MissingExtra, SwivelError, UnknownToken, missing_extra

ALL = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, SwivelError)}


def read_tree() -> dict[str, str | None]:
    """Return the parent of each error according to the tree in the module docstring."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    (?P<branches>[│├└─ ]*)(?P<name>[A-Z]\w+)(\s{2,}|$)", line)
        if match:
            # Each level of the tree is indented by four characters.
            depth = len(match["branches"]) // 4
            path[depth:] = [match["name"]]
            parents[match["name"]] = path[depth - 1] if depth else None

    return parents


def test_every_error_is_in_the_documented_tree_under_its_parent() -> None:
    tree = read_tree()

    assert set(tree) == set(ALL)
    for name, parent in tree.items():
        assert parent is None or ALL[parent] in ALL[name].__bases__, name


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
