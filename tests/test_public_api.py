"""The public names: what is exported, from where, and at which price."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

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


def test_a_wrong_kind_of_object_is_refused_with_what_to_pass(tmp_path: Path) -> None:
    matrix = swivel.import_counts([("ann", "tea", 1), ("bob", "jam", 2)])
    vectors = swivel.train(matrix, tmp_path / "vectors", dim=2)
    for wrong in (["a text"], matrix.to_scipy(), vectors):
        with pytest.raises(swivel.SwivelError, match=r"got .*: pass swivel\.count\(texts\) or swivel\.import_counts"):
            swivel.train(wrong)  # type: ignore[arg-type]
    with pytest.raises(swivel.SwivelError, match="expected a matrix or the folder of one, got Vectors"):
        swivel.add(vectors, vectors)  # type: ignore[arg-type]
    with pytest.raises(swivel.SwivelError, match="expected vectors or their folder, got Matrix"):
        swivel.Recommender(matrix, vectors)  # type: ignore[arg-type]
    with pytest.raises(swivel.SwivelError, match=r"files or folders, got \('ann', 'bob', 3\)"):
        swivel.evaluate(vectors, [("ann", "bob", 3)])  # type: ignore[list-item]


def test_vectors_are_taken_as_their_folder_too(tmp_path: Path) -> None:
    swivel.train(swivel.import_counts([("ann", "tea", 1), ("bob", "jam", 2)]), tmp_path / "vectors", dim=2)
    (tmp_path / "pairs.tsv").write_text("ann\tbob\t9\nann\tann\t10\n")
    assert swivel.export(tmp_path / "vectors", tmp_path / "q.txt") == 2
    assert swivel.evaluate(str(tmp_path / "vectors"), [tmp_path / "pairs.tsv"])["pairs"].known == 2


def test_import_loads_nothing_heavy() -> None:
    assert not modules_after("import swivel") & {*HEAVY, "numpy"}


def test_reading_vectors_loads_numpy_alone() -> None:
    loaded = modules_after("from swivel import Vectors, load, Vocabulary")
    assert "numpy" in loaded
    assert not loaded & set(HEAVY)


def test_pipeline_is_light_until_it_is_called() -> None:
    assert not modules_after("from swivel import count, run, train, RunOptions, SwivelError") & set(HEAVY)
