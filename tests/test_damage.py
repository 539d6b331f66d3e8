"""Damaged files are found before they are used, or harm nobody. `make damage` does all of it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from stored import folder_of
from swivel import vectors
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, open_matrix
from swivel.errors import DamagedFolder
from swivel.storage.arrays import map_tensors
from swivel.storage.files import create_folder
from swivel.storage.manifest import MANIFEST, open_folder, seal, unseal
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.folder import TENSORS

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import damage


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[damage.Place]:
    damage.HOME = tmp_path_factory.mktemp("damage") / "home"
    return damage.make_ready()


@pytest.mark.parametrize("name", ["matrix", "vectors", "training", "run"])
def test_damage_is_found_or_harmless(places: list[damage.Place], name: str) -> None:
    place = next(each for each in places if each.name == name)
    counts, missed, _ = damage.run_place(place, 401 if name == "training" else 97)
    assert missed == []
    assert sum(counts.values()) > 10


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_cells_are_compared_when_the_first_is_asked_for(planted: Matrix, tmp_path: Path) -> None:
    shutil.copytree(folder_of(planted), tmp_path / "matrix")
    flip(tmp_path / "matrix" / "counts.npy", -1)
    matrix = open_matrix(tmp_path / "matrix")
    assert matrix.rows == planted.rows
    for _ in range(2):
        with pytest.raises(DamagedFolder, match=r"counts\.npy: checksum differs .*overwrite=True, or restore the file"):
            matrix.cells(0, 0)
    trusted = open_matrix(tmp_path / "matrix")
    trusted.trust()
    assert len(trusted.cells(0, 0).counts)


def save_vectors(path: Path) -> Vectors:
    rng = np.random.default_rng(4)
    rows, columns = (rng.normal(size=(3, 2)).astype(np.float32) for _ in range(2))
    words = Vocabulary(["a", "b", "c"])
    made = Vectors(VectorTable(words, rows), VectorTable(words, columns), vectors=rows + columns, columns_per_row=1)
    made.save(path)
    return made


@pytest.mark.parametrize("tensor", ["rows", "columns", "vectors"])
def test_a_damaged_tensor_is_found_on_its_first_use_and_the_others_can_be_used(tmp_path: Path, tensor: str) -> None:
    made = save_vectors(tmp_path)
    file = tmp_path / TENSORS
    flip(file, file.read_bytes().index(np.ascontiguousarray(getattr(made, tensor)).tobytes()))
    loaded = vectors.Vectors.load(tmp_path)
    assert (len(loaded), loaded.dim) == (3, 2)
    for name in ("rows", "columns", "vectors"):
        if name == tensor:
            for _ in range(2):
                with pytest.raises(DamagedFolder, match=rf"{TENSORS}: the checksum of {name} differs"):
                    getattr(loaded, name)
        else:
            assert np.array_equal(getattr(loaded, name), getattr(made, name))
    with pytest.raises(DamagedFolder):
        loaded.replace()


def test_checksums_of_tensors_are_of_their_bytes(tmp_path: Path) -> None:
    save_vectors(tmp_path)
    said = unseal((tmp_path / MANIFEST).read_bytes())["facts"]["tensors"]
    assert set(said) == {"header", *map_tensors(tmp_path / TENSORS).matrices}
    assert len(set(said.values())) == 4


@pytest.mark.parametrize("data", [b"[]", b"{", b"\xff", seal({"a": 1}).replace(b"1", b"2"), b'{"checksum": "x"}'])
def test_what_is_not_sealed_well_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unseal(data)


def test_parts_are_compared_once(tmp_path: Path) -> None:
    with create_folder(tmp_path, "example") as writer:
        writer.write_array("numbers.npy", np.arange(3))
        writer.finish(config={}, inputs={}, facts={})
    folder = open_folder(tmp_path, "example")
    assert folder.array("numbers.npy").tolist() == [0, 1, 2]
    flip(tmp_path / "numbers.npy", -1)
    folder.array("numbers.npy")
    with pytest.raises(DamagedFolder):
        open_folder(tmp_path, "example").array("numbers.npy")
