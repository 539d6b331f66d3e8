"""The public names: what is exported, from where, and at which price."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import mypy.api
import pytest

import swivel

HEAVY = ("torch", "numba", "scipy", "click", "rich", "safetensors", "matplotlib")


def modules_after(statement: str) -> set[str]:
    """Return the packages that a fresh process has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_all_names_are_there_and_public() -> None:
    assert sorted(swivel.__all__) == list(swivel.__all__)
    assert len(set(swivel.__all__)) == len(swivel.__all__)
    for name in swivel.__all__:
        assert getattr(swivel, name) is not None
        assert name == "__version__" or not name.startswith("_")


def test_all_is_what_is_exported() -> None:
    assert set(swivel.__all__) == {*swivel._HOMES, "__version__"}
    assert set(swivel.__all__) <= set(dir(swivel))


@pytest.mark.parametrize(("name", "home"), swivel._HOMES.items())
def test_names_are_exported_by_their_rooms_too(name: str, home: str) -> None:
    room = importlib.import_module(home)
    assert getattr(swivel, name) is getattr(room, name)
    assert name in getattr(room, "__all__", [name])


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'swivel' has no attribute 'nonsense'"):
        _ = swivel.nonsense


@pytest.mark.slow
def test_mypy_finds_a_misspelled_setting_in_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
        import swivel

        matrix = swivel.count("x.txt", window=3, unit="line")
        vectors = swivel.train(matrix, dim=3, zeros="all")
        swivel.count("x.txt", windoww=3)
        swivel.train(matrix, zeroes="all")
        swivel.run("x.txt", "out", min_cuont=3)
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MYPYPATH", str(Path(swivel.__file__).parents[1]))

    found, problems, status = mypy.api.run(["--strict", "--follow-imports=silent", "--cache-dir=cache", "script.py"])
    assert (problems, status) == ("", 1)
    errors = re.findall(r'script.py:(\d+): error: Unexpected keyword argument "(\w+)"', found)
    assert errors == [("6", "windoww"), ("7", "zeroes"), ("8", "min_cuont")]
    assert "Found 3 errors in 1 file" in found


def test_import_loads_nothing_heavy() -> None:
    assert not modules_after("import swivel") & {*HEAVY, "numpy"}


def test_reading_vectors_loads_numpy_alone() -> None:
    loaded = modules_after("from swivel import Vectors, load, Vocabulary")
    assert "numpy" in loaded
    assert not loaded & set(HEAVY)


def test_pipeline_is_light_until_it_is_called() -> None:
    assert not modules_after("from swivel import count, run, train, RunOptions, SwivelError") & set(HEAVY)
