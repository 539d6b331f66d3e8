"""File ranges, which are cut between units and cover the files; remote files."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.tokenizer_reference import split_units
from swivel.config import CorpusConfig
from swivel.corpus import streams as ranges_module
from swivel.corpus.sources import (
    RemoteFile,
    _digest_info,
    fingerprint_sources,
    list_files,
    list_paths,
    open_file,
    size_of,
)
from swivel.corpus.streams import FileRange, cut_files, group_ranges, open_range
from swivel.counts.cooccurrence.cluster_count import TextReading, encode_ranges
from swivel.errors import CorpusError


def read(part: FileRange, config: CorpusConfig) -> bytes:
    return b"".join(open_range(part, config).blocks())


@given(
    text=st.text("ab \n\r", max_size=60),
    range_bytes=st.integers(1, 30),
    unit=st.sampled_from(["line", "sentence", "document"]),
    scan=st.integers(1, 4),
)
def test_ranges_cover_the_file_and_are_cut_between_units(
    text: str, range_bytes: int, unit: str, scan: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "range.txt"
    file.write_bytes(text.encode())
    config = CorpusConfig(unit=unit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "_SCAN_BYTES", scan)
        parts = [read(part, config) for part in cut_files([file], config, range_bytes)]

    assert b"".join(parts) == text.encode()

    units = [unit for part in parts for unit in split_units(part.decode(), config)]
    assert units == split_units(text, config)


def test_ranges_end_with_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("".join(f"line {number}\n" for number in range(100)))
    parts = [read(part, CorpusConfig()) for part in cut_files([file], CorpusConfig(), 100)]
    assert len(parts) == 8
    assert all(part.endswith(b"\n") for part in parts)


@pytest.mark.parametrize(("name", "encoding"), [("a.txt.gz", "utf-8"), ("a.txt", "utf-16")])
def test_compressed_and_transcoded_files_are_one_range(name: str, encoding: str, tmp_path: Path) -> None:
    data = ("line\n" * 100).encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    config = CorpusConfig(encoding=encoding)
    [part] = cut_files([tmp_path / name], config, 10)
    assert (part.start, part.stop) == (0, None)
    assert read(part, config) == b"line\n" * 100


def test_small_files_are_grouped_and_large_ones_are_not() -> None:
    parts = [FileRange(Path(f"{number}"), 0, None, cost) for number, cost in enumerate([3, 3, 3, 9, 1, 20, 0, 0])]
    groups = group_ranges(parts, 9)
    assert [[part.cost for part in group] for group in groups] == [[3, 3, 3], [9], [1], [20], [0, 0]]
    assert group_ranges([], 9) == []


def test_invalid_utf8_is_reported_with_its_line_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"fine\n" * 50 + b"b\xff\n" + b"fine\n" * 50)
    part = cut_files([file], CorpusConfig(), 100)[2]
    reading = TextReading(config=CorpusConfig(), shared=tmp_path)

    with pytest.raises(CorpusError, match=r"a.txt, line 51: not valid UTF-8 \(byte 0xff\)"):
        encode_ranges((part,), reading, tmp_path)

    (tmp_path / "b.txt").write_bytes(b"\xff\n")
    with pytest.raises(CorpusError, match=r"b.txt, line 1: not valid UTF-8"):
        encode_ranges((FileRange(tmp_path / "b.txt", 0, None, 2),), reading, tmp_path)


@pytest.fixture
def archive(tmp_path: Path) -> str:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("in/b.txt", "b b\n" * 100)
        file.writestr("in/a.txt", "a a\n" * 100)
        file.writestr("in/.hidden", "c c\n")
        file.writestr("in/more/c.md", "d d\n")
    return f"file://{tmp_path}/a.zip"


def test_urls_are_listed_as_folders_globs_and_files(archive: str) -> None:
    def names(url: str) -> list[str]:
        return [file.name for file in list_files(url)]

    assert names(f"zip://in::{archive}") == ["a.txt", "b.txt", "c.md"]
    assert names(f"zip://in/*.txt::{archive}") == ["a.txt", "b.txt"]
    assert names(f"zip://in/a.txt::{archive}") == ["a.txt"]
    assert list_files(list_files(f"zip://in/a.txt::{archive}"))[0].suffix == ".txt"


def test_a_url_of_a_local_file_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert list_files(f"file://{tmp_path}/*.txt") == [tmp_path / "a.txt"]
    assert list_files(f"local://{tmp_path}") == [tmp_path / "a.txt"]


def test_a_file_behind_a_url_is_cut_and_read(archive: str) -> None:
    [file] = list_files(f"zip://in/a.txt::{archive}")
    parts = cut_files([file], CorpusConfig(), 100)
    assert b"".join(read(part, CorpusConfig()) for part in parts) == b"a a\n" * 100
    assert len(parts) == 4


def test_a_fingerprint_of_a_url_changes_with_the_file(archive: str, tmp_path: Path) -> None:
    before = fingerprint_sources(f"zip://in/a.txt::{archive}", CorpusConfig())
    assert before == fingerprint_sources(list_files(f"zip://in/a.txt::{archive}"), CorpusConfig())
    assert list(before) == ["a.txt"]
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("in/a.txt", "a b\n" * 100)
    assert before != fingerprint_sources(f"zip://in/a.txt::file://{tmp_path}/other.zip", CorpusConfig())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("zip://in/none.txt::ARCHIVE", "no such file, or a folder without files"),
        ("zip://*.none::ARCHIVE", "no such file, or a folder without files"),
        ("nothing://a/b.txt", "Protocol not known: nothing"),
        ("zip://a.txt::file:///nowhere/a.zip", "no such file or folder"),
    ],
)
def test_a_url_without_files_is_an_error(url: str, message: str, archive: str) -> None:
    with pytest.raises(CorpusError, match=message):
        list_files(url.replace("ARCHIVE", archive))


def test_a_remote_file_that_does_not_exist_is_an_error(archive: str) -> None:
    [file] = list_files(f"zip://in/a.txt::{archive}")
    assert isinstance(file, RemoteFile)
    missing = RemoteFile(file.system, "in/gone.txt")
    for function in (size_of, _digest_info, open_file):
        with pytest.raises(CorpusError, match=r"zip://in/gone.txt: (no such file|\"There is no item)"):
            function(missing)


def test_list_paths_refuses_urls(archive: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="only local files are supported here; download the remote files first"):
        list_paths(f"zip://in::{archive}")
    assert list_paths(tmp_path) == [tmp_path / "a.zip"]


def test_empty_files_are_grouped_at_any_position(tmp_path: Path) -> None:
    for name, text in (("a.txt", ""), ("b.txt", "some words\n"), ("c.txt", "")):
        (tmp_path / name).write_text(text)
    files = list_files([tmp_path])
    groups = group_ranges(cut_files(files, CorpusConfig(), 1 << 20), 1 << 20)
    assert [part.file for group in groups for part in group] == list(files)
