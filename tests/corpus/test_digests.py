"""Digests of files: content decides, and an unchanged file is not read again."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stored import folder_of
from swivel.config import CorpusConfig
from swivel.corpus import sources as digesting
from swivel.corpus.sources import SOURCES, digest_sources, fingerprint_sources
from swivel.errors import CorpusError, FolderExists
from swivel.pipeline.count import count
from swivel.storage import manifest
from swivel.storage.manifest import read_manifest, seal

TEXT = "the cat sat on the mat\n" * 9


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose content is read for a digest."""
    names: list[str] = []

    def digest_file(path: Path) -> str:
        names.append(path.name)
        return manifest.digest_file(path)

    monkeypatch.setattr(digesting, "digest_file", digest_file)
    monkeypatch.setattr(digesting, "_known", {})
    return names


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture
def a_minute_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files look as if they had been written a minute before they are hashed."""
    clock = SimpleNamespace(time_ns=lambda: time.time_ns() + 60 * 10**9)
    monkeypatch.setattr(digesting, "time", clock)


@pytest.mark.usefixtures("a_minute_later")
def test_text_of_the_same_name_size_and_time_is_another_text(text: Path, tmp_path: Path) -> None:
    os.utime(text, (0, 0))
    count(text, tmp_path / "matrix", min_count=1)

    text.write_text(TEXT.replace("cat", "dog"))
    os.utime(text, (0, 0))
    with pytest.raises(FolderExists, match="finished already from other inputs"):
        count(text, tmp_path / "matrix", min_count=1)


def test_moved_text_is_the_same_text(text: Path, tmp_path: Path) -> None:
    count(text, tmp_path / "matrix", min_count=1)
    (tmp_path / "new").mkdir()
    moved = shutil.copy(text, tmp_path / "new" / "text.txt")
    text.unlink()
    assert count(Path(moved), tmp_path / "matrix", min_count=1).shape == (5, 20)


@pytest.mark.usefixtures("a_minute_later")
def test_unchanged_file_is_not_read_again(text: Path, tmp_path: Path, read: list[str]) -> None:
    count(text, tmp_path / "matrix", min_count=1)
    assert read == ["text.txt"]

    digesting._known.clear()  # as in another process
    count(text, tmp_path / "matrix", min_count=1)
    assert read == ["text.txt"]

    os.utime(text)  # The content is the same, and so is the result.
    count(text, tmp_path / "matrix", min_count=1)
    assert read == ["text.txt"] * 2


@pytest.mark.usefixtures("a_minute_later")
def test_changed_file_is_read_once(text: Path, tmp_path: Path, read: list[str]) -> None:
    count(text, tmp_path / "matrix", min_count=1)
    text.write_text(TEXT * 2)
    for _ in range(2):
        with pytest.raises(FolderExists, match="finished already from other inputs"):
            count(text, tmp_path / "matrix", min_count=1)
    assert read == ["text.txt"] * 2


def test_file_that_changed_just_before_it_was_hashed_is_read_again(text: Path, tmp_path: Path, read: list[str]) -> None:
    count(text, tmp_path / "matrix", min_count=1)

    # The clock of a file system may be too coarse to show another change, however long counting takes.
    later = time.time() + 60
    os.utime(tmp_path / "matrix" / "manifest.json", (later, later))
    count(text, tmp_path / "matrix", min_count=1)
    assert read == ["text.txt"] * 2


@pytest.mark.parametrize("damage", [5, {"a": 1}, {"/a": {"size": "x"}}])
def test_damaged_record_is_ignored(text: Path, tmp_path: Path, damage: Any) -> None:
    matrix = count(text, tmp_path / "matrix", min_count=1)
    manifest = read_manifest(folder_of(matrix))
    fields = {name: getattr(manifest, name) for name in ("stage", "config", "inputs", "facts", "format", "library")}
    parts = {name: {"bytes": part.bytes, "sha256": part.sha256} for name, part in manifest.parts.items()}
    facts = {**manifest.facts, SOURCES: damage}
    (folder_of(matrix) / "manifest.json").write_bytes(seal({**fields, "parts": parts, "facts": facts}))
    assert count(text, tmp_path / "matrix", min_count=1).shape == matrix.shape


def test_digest_of_a_large_file_does_not_depend_on_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    monkeypatch.setattr("swivel.storage.manifest.PIECE_BYTES", 1000)
    file = tmp_path / "large"
    file.write_bytes(bytes(range(250)) * 41)
    one, three = (digest_sources(file, threads=threads)[str(file)] for threads in (1, 3))
    assert one == three
    assert read == ["large"] * 2

    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert digest_sources(file, threads=3)[str(file)].digest != one.digest


def test_file_that_is_gone_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"gone': no such file or folder"):
        digest_sources(tmp_path / "gone")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "broken").symlink_to(tmp_path / "gone")
    with pytest.raises(CorpusError, match=r"broken: no such file or folder"):
        fingerprint_sources(tmp_path / "folder", CorpusConfig())
