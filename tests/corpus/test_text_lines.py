"""One definition of a line: it ends at a line feed, a carriage return, or both, in every kind of file."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swivel.config import CorpusConfig
from swivel.corpus import streams, text_lines
from swivel.corpus.encoded_corpus import encode_corpus
from swivel.corpus.text_lines import read_lines
from swivel.errors import CorpusError, MemoryBudgetError

ENDS = st.sampled_from(["\n", "\r", "\r\n"])
LINES = st.lists(st.tuples(st.sampled_from(["", "a", "b c", "é x", "\ufeff"]), ENDS), max_size=12)


@pytest.mark.oracle
@given(LINES, st.sampled_from(["", "last"]), st.integers(1, 7))
def test_lines_end_at_cr_lf_and_both_wherever_blocks_end(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]], last: str, block_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    text = "".join(line + end for line, end in lines) + last
    data = text.encode()
    (folder / "a.txt").write_bytes(data)
    (folder / "a.txt.gz").write_bytes(gzip.compress(data))
    # The definition of Python's text files, without the byte order mark.
    expected = io.StringIO(text.removeprefix("\ufeff"), newline=None).read().split("\n")
    if not expected[-1]:
        expected.pop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "BLOCK_BYTES", block_bytes)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        for name in (folder / "a.txt", folder / "a.txt.gz", "-"):
            assert list(read_lines(name)) == expected, name


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_counting_and_reading_see_the_same_lines(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.txt").write_text(end.join(["tea milk", "tea", "milk sugar"]) + end, newline="")
    encoded = encode_corpus(tmp_path / "a.txt", CorpusConfig(), scratch=tmp_path, threads=1)
    assert encoded.unit_count == 3
    assert list(read_lines(tmp_path / "a.txt")) == ["tea milk", "tea", "milk sugar"]


def test_invalid_bytes_have_the_line_and_column_of_any_line_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\rtwo\r\nab\xff")
    with pytest.raises(CorpusError, match=r"a.txt, line 3: not valid UTF-8 .byte 0xff at column 3"):
        list(read_lines(tmp_path / "a.txt"))
    assert list(read_lines(tmp_path / "a.txt", CorpusConfig(errors="replace"))) == ["one", "two", "ab\0"]


def test_a_line_beyond_memory_is_refused_before_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gzip.open(tmp_path / "a.gz", "wb") as file:
        for _ in range(40):
            file.write(b"x" * (1 << 20))
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 1 << 20)
    monkeypatch.setattr("swivel.runtime.resources.free_memory", lambda: 1 << 25)
    with pytest.raises(MemoryBudgetError, match=r"a.gz, line 1: a line of 3.0 MiB or more needs about 48.0 MiB"):
        list(read_lines(tmp_path / "a.gz"))
