"""File ranges, which are cut between units and cover the files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.tokenizer_reference import split_units
from swivel.config import CorpusConfig
from swivel.corpus import streams as ranges_module
from swivel.corpus.sources import list_files
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


@pytest.mark.parametrize("url", ["s3://bucket/a.txt", "file:///tmp/a.txt", "zip://a.txt::/tmp/a.zip"])
def test_urls_are_refused(url: str) -> None:
    with pytest.raises(CorpusError, match="only local files are read; download the remote files first"):
        list_files(url)


def test_empty_files_are_grouped_at_any_position(tmp_path: Path) -> None:
    for name, text in (("a.txt", ""), ("b.txt", "some words\n"), ("c.txt", "")):
        (tmp_path / name).write_text(text)
    files = list_files([tmp_path])
    groups = group_ranges(cut_files(files, CorpusConfig(), 1 << 20), 1 << 20)
    assert [part.file for group in groups for part in group] == list(files)
