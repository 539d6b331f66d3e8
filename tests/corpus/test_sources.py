"""Files, folders, globs, compressed files, standard input and iterables, and errors of sources that cannot be read."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import socket
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from swivel.config import CorpusConfig
from swivel.corpus.encoded_corpus import EncodedCorpus, encode_corpus
from swivel.corpus.sources import fingerprint_sources, list_files
from swivel.corpus.streams import BLOCK_BYTES, open_streams
from swivel.errors import ConfigError, CorpusError, FolderExists, MissingExtra
from swivel.pipeline.count import count as matrix_of

TEXT = "Ünïcode words\nand more\r\n" * 50
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


def count(texts: Any, folder: Path, config: CorpusConfig = CorpusConfig(), **settings: Any) -> EncodedCorpus:  # noqa: B008 (frozen)
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return encode_corpus(texts, config, scratch=scratch, threads=2, **settings)


def fail(texts: Any, folder: Path, config: CorpusConfig = CorpusConfig()) -> str:  # noqa: B008 (frozen)
    with pytest.raises(CorpusError) as caught:
        count(texts, folder, config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_folders_are_read_in_sorted_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/y.txt", ".hidden", ".git/config"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    names = [Path(str(file)).relative_to(tmp_path / "in").as_posix() for file in list_files(tmp_path / "in")]
    assert names == ["a/y.txt", "a/z.txt", "b.txt"]
    assert count(tmp_path / "in", tmp_path).token_count == 8


def test_globs_match_files_and_folders_in_sorted_order(tmp_path: Path) -> None:
    for name in ("2.txt", "1.txt", "3.md", "sub/4.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [file.name for file in list_files(str(tmp_path / "*.txt"))] == ["1.txt", "2.txt"]
    assert [file.name for file in list_files(str(tmp_path / "**" / "*.txt"))] == ["1.txt", "2.txt", "4.txt"]
    assert [file.name for file in list_files([tmp_path / "su?", tmp_path / "3.md"])] == ["4.txt", "3.md"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("x")
    assert list_files(tmp_path / "a[1].txt") == [tmp_path / "a[1].txt"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_read_like_plain_ones(tmp_path: Path, suffix: str) -> None:
    data = TEXT.encode()
    half = len(data) // 2
    file = tmp_path / f"text{suffix}"
    file.write_bytes(COMPRESS[suffix](data[:half]) + COMPRESS[suffix](data[half:]))  # two members in one file
    plain = tmp_path / "text"
    plain.write_bytes(data)

    assert count(file, tmp_path).counts() == count(plain, tmp_path).counts()
    assert count(file, tmp_path).unit_count == 100


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_in_other_encodings_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    # Random letters hardly compress: many reads return no data, and some end inside a character.
    words = ["".join(map(chr, row)) for row in np.random.default_rng(5).integers(0x4E00, 0x9FA5, (30_000, 7))]
    data = " ".join(words).encode("utf-16")
    file = tmp_path / f"text{suffix}"
    file.write_bytes(COMPRESS[suffix](data[:333]) + COMPRESS[suffix](data[333:]))
    config = CorpusConfig(encoding="utf-16", tokenizer="whitespace")
    [stream] = open_streams(file, config)
    blocks = list(stream.blocks())

    assert b"".join(blocks).decode() == " ".join(words)
    assert all(blocks)
    assert stream.read_bytes == file.stat().st_size


def test_half_a_character_at_the_end_is_an_error_or_separates_tokens(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("ab".encode("utf-16-le") + b"c")
    assert "line 1: not valid utf-16-le" in fail(tmp_path / "text", tmp_path, CorpusConfig(encoding="utf-16-le"))
    config = CorpusConfig(encoding="utf-16-le", errors="replace")
    assert count(tmp_path / "text", tmp_path, config).counts() == {"ab": 1}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_damaged_compressed_file_is_an_error_with_its_name(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"text{suffix}"
    file.write_bytes(COMPRESS[suffix](TEXT.encode())[:-12])
    assert f"text{suffix}: not a " in fail(file, tmp_path)
    file.write_bytes(b"this was never compressed")
    assert "or damaged" in fail(file, tmp_path)


def test_an_xz_file_may_have_several_streams_with_zeros_between_them(tmp_path: Path) -> None:
    one, two = (lzma.compress(text) for text in (b"tea milk\n" * 100_000, b"sugar\n"))
    (tmp_path / "a.xz").write_bytes(one + bytes((1 << 17) + 4) + two + bytes(8))
    assert count(tmp_path / "a.xz", tmp_path).counts() == {"tea": 100_000, "milk": 100_000, "sugar": 1}


def test_an_xz_file_with_a_huge_dictionary_is_an_error(tmp_path: Path) -> None:
    data = bytearray(lzma.compress(b"tea milk"))
    # Block header: bytes 12 to 23, with the size of the dictionary in byte 16 (40 is 4 GiB), and its CRC at the end.
    data[16] = 40
    data[20:24] = zlib.crc32(data[12:20]).to_bytes(4, "little")
    (tmp_path / "a.xz").write_bytes(data)
    assert "a.xz: needs more than 1.0 GiB of memory to decompress; compress it" in fail(tmp_path / "a.xz", tmp_path)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_few_bytes_never_become_one_large_block(tmp_path: Path, suffix: str) -> None:
    size = 24 << 20
    file = tmp_path / f"zeros{suffix}"
    file.write_bytes(COMPRESS[suffix](bytes(size)))
    assert file.stat().st_size < size // 500
    sizes = [len(block) for block in read_blocks(file)]
    assert sum(sizes) == size
    assert max(sizes) <= 8 << 20


def test_zst_without_its_library_is_an_error_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.zst").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=r"\.zst files need zstandard: pip install .*\[zstd\]"):
        count(tmp_path / "a.zst", tmp_path)


@pytest.mark.parametrize("name", ["-", Path("-")])
def test_standard_input_is_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b\nc"), encoding="utf-8"))
    assert count(name, tmp_path).unit_count == 2
    assert fingerprint_sources(name, CorpusConfig()) == {"-": "standard input"}


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\0\0", b"\r\n\r\n"])
def test_files_without_words_are_no_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "empty").write_bytes(data)
    encoded = count(tmp_path / "empty", tmp_path)
    assert (encoded.token_count, encoded.unit_count, encoded.counts()) == (0, 0, {})
    assert count([], tmp_path).token_count == 0


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    config = CorpusConfig(tokenizer="whitespace")
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfa b")
    assert count(tmp_path / "bom", tmp_path, config).counts() == {"a": 1, "b": 1}
    (tmp_path / "bom").write_bytes("\ufeffa b".encode("utf-16-le"))
    config = CorpusConfig(tokenizer="whitespace", encoding="utf-16-le")
    assert count(tmp_path / "bom", tmp_path, config).counts() == {"a": 1, "b": 1}


def test_a_line_end_across_two_blocks_is_one(tmp_path: Path) -> None:
    line = "a" * (BLOCK_BYTES // 2 - 1)
    (tmp_path / "text").write_bytes(f"{line}\r\n".encode("utf-16-le") + b"b\0\0\xd8b\0")
    assert "line 2: not valid utf-16-le" in fail(tmp_path / "text", tmp_path, CorpusConfig(encoding="utf-16-le"))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-32-be", "cp1252", "UTF8", "utf-8-sig"])
def test_other_encodings_have_the_same_counts(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "text").write_bytes(TEXT.encode(encoding))
    encoded = count(tmp_path / "text", tmp_path, CorpusConfig(encoding=encoding))
    assert encoded.counts() == {"ünïcode": 50, "words": 50, "and": 50, "more": 50}


def test_invalid_bytes_in_other_encodings_are_an_error_or_separate_tokens(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"ab\r\nc\xe9d")
    message = fail(tmp_path / "text", tmp_path, CorpusConfig(encoding="ascii"))

    assert "text, line 2: not valid ascii (byte 0xe9); pass encoding" in message

    config = CorpusConfig(encoding="ascii", errors="replace")
    assert count(tmp_path / "text", tmp_path, config).counts() == {"ab": 1, "c": 1, "d": 1}

    (tmp_path / "text").write_bytes(b"a\0b")
    assert "not valid utf-16" in fail(tmp_path / "text", tmp_path, CorpusConfig(encoding="utf-16-le"))


@pytest.mark.parametrize("encoding", ["klingon", "rot13", "a\0b"])
def test_an_unknown_encoding_is_a_config_error(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(ConfigError, match="encoding must be"):
        count(["a"], tmp_path, CorpusConfig(encoding=encoding))


def test_a_binary_file_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_bytes(b"PK\x00\x01\xff\n")
    with pytest.raises(CorpusError, match=r"a\.dat: looks binary, not text; leave it out, or pass encoding"):
        encode_corpus(tmp_path / "a.dat", CorpusConfig(), scratch=tmp_path, threads=2)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_recognized_by_its_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes(
        ("" if encoding == "utf-16" else "\ufeff").encode(encoding) + "a b\n".encode(encoding)
    )
    with pytest.raises(CorpusError, match=r"a\.txt: looks like UTF-16; pass encoding='utf-16'"):
        encode_corpus(tmp_path / "a.txt", CorpusConfig(), scratch=tmp_path, threads=2)


@pytest.mark.parametrize("piece_bytes", [8, 64, 1 << 20])
@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"fine\nfine\r\nfine\rab\xff\n" + b"x" * 99 + b"\xff", "line 4: not valid UTF-8 (byte 0xff)"),
        (b"y" * 300 + b"\xe2\x82", "line 1: not valid UTF-8 (byte 0xe2)"),
        (b"\xed\xa0\x80", "line 1: not valid UTF-8 (byte 0xed)"),
    ],
)
def test_invalid_utf8_is_an_error_with_line_and_column(
    tmp_path: Path, data: bytes, place: str, piece_bytes: int
) -> None:
    (tmp_path / "bad.txt").write_bytes(data)
    with pytest.raises(CorpusError) as caught:
        encode_corpus(tmp_path / "bad.txt", CorpusConfig(), scratch=tmp_path, threads=2, piece_bytes=piece_bytes)
    assert str(caught.value).startswith(f"{tmp_path / 'bad.txt'}, {place}; pass encoding or errors=")


def test_an_error_in_an_earlier_file_is_raised_first(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff")
    (tmp_path / "b.gz").write_bytes(b"never compressed")
    assert "a.txt, line 1: not valid UTF-8" in fail([tmp_path / "a.txt", tmp_path / "b.gz"], tmp_path)


def test_missing_paths_are_errors_with_their_names(tmp_path: Path) -> None:
    assert "missing.txt': no such file or folder" in fail(str(tmp_path / "missing.txt"), tmp_path)
    assert "missing.gz': no such file or folder" in fail([tmp_path / "missing.gz"], tmp_path)
    assert "*.txt: no file matches" in fail(str(tmp_path / "*.txt"), tmp_path)

    (tmp_path / "empty-folder").mkdir()
    assert "empty-folder: the folder has no files" in fail(tmp_path / "empty-folder", tmp_path)
    assert "no such file or folder (pass texts" in fail("some text\n" * 1000, tmp_path)
    assert "no such file or folder" in fail("a\0b", tmp_path)


def test_unreadable_files_and_folders_are_errors_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "secret").write_text("x")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", *map(str, args[:1]))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(CorpusError, match="secret: Permission denied"):
            list(read_blocks(tmp_path / "in" / "secret"))
    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(CorpusError, match="in: Permission denied"):
        list_files(tmp_path / "in")


def read_blocks(file: Path, config: CorpusConfig = CorpusConfig()) -> Iterator[bytes]:  # noqa: B008 (frozen)
    return open_streams(file, config)[0].blocks()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", 1], "item 2: expected a string like the items before, got int"),
        ([b"a b"], "item 1: expected a string or a list of tokens, got bytes; decode them first"),
        (["a", ["b"]], "item 2: expected a string like the items before, got list"),
        ([["a"], "b"], "item 2: expected a list of tokens, got str"),
        ([["a"], 3], "item 2: expected a list of tokens, got int"),
        ([["a", 3]], "item 1: all tokens must be strings"),
        (5, "texts must be a path or an iterable, got int"),
        ([Path("-"), "a"], "item 2: expected a path like the items before, got str"),
        (["a", "b\ud800"], "item 2: contains a lone surrogate, which UTF-8 cannot encode; pass errors='replace'"),
        (
            [["a"], ["\ud800"]],
            "item 2: a token contains a lone surrogate, which UTF-8 cannot encode; pass errors='replace'",
        ),
    ],
)
def test_items_of_the_wrong_type_are_errors_with_their_numbers(tmp_path: Path, texts: Any, message: str) -> None:
    assert fail(texts, tmp_path) == message


@pytest.mark.parametrize("names", [["many/1.txt", "many/2.txt"], ["a.TXT"], ["a.gz", "b.xz"], ["s3/x", "missing/*"]])
def test_a_list_of_strings_that_look_like_paths_of_no_files_is_an_error(tmp_path: Path, names: list[str]) -> None:
    message = fail(names, tmp_path)
    assert message.startswith(f"{names[0]!r}: no such file or folder")
    assert message.endswith("(all strings look like paths; pass iter(texts) if they are texts)")
    assert count(iter(names), tmp_path).token_count > 0


def test_strings_in_a_list_are_texts_if_one_of_them_is_not_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("inside")
    texts = [str(tmp_path / "a.txt"), "two words"]
    assert "words" in count(texts, tmp_path).counts()
    assert count(texts[:1], tmp_path).counts() == {"inside": 1}
    assert count(["and/or is a text"], tmp_path).token_count > 3
    assert count(["和/洋どちらも好きです。"], tmp_path).token_count > 1  # no spaces, but a sentence


COLUMNS: dict[str, Callable[[list[Any]], Any]] = {
    "pandas": lambda items: pytest.importorskip("pandas").Series(items, index=range(5, 5 + len(items))),
    "pandas string": lambda items: pytest.importorskip("pandas").Series(items, dtype="string"),
    "pandas category": lambda items: pytest.importorskip("pandas").Series(items, dtype="category"),
    "polars": lambda items: pytest.importorskip("polars").Series(items),
    "pyarrow": lambda items: pytest.importorskip("pyarrow").array(items),
    "pyarrow chunks": lambda items: pytest.importorskip("pyarrow").chunked_array([items, items[:0]]),
    "generator": lambda items: (item for item in items),
    "tuple": tuple,
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("missing_first", [False, True])
def test_a_column_of_a_table_is_texts_and_missing_ones_are_skipped(
    tmp_path: Path, kind: str, missing_first: bool
) -> None:
    texts = [None, "a b", None, "b c"][not missing_first :]
    assert count(COLUMNS[kind](texts), tmp_path).counts() == {"a": 1, "b": 2, "c": 1}
    if kind not in ("pandas string", "pandas category"):  # which cannot hold lists
        tokens = [None, ["A b"], ["c"], None][not missing_first :]
        config = CorpusConfig(lowercase=False)
        assert count(COLUMNS[kind](tokens), tmp_path, config).counts() == {"A b": 1, "c": 1}


def test_a_column_that_can_only_be_iterated_is_texts(tmp_path: Path) -> None:
    class Column:  # as in the library datasets
        def __len__(self) -> int:
            return 2

        def __getitem__(self, key: int) -> str:
            return ["a b", "b"][key]

    assert count(Column(), tmp_path).counts() == {"a": 1, "b": 2}


def test_a_missing_item_is_counted_in_the_numbers_of_errors(tmp_path: Path) -> None:
    assert fail([None, float("nan"), "b\ud800"], tmp_path).startswith("item 3: contains a lone surrogate")
    assert fail([None, "a", 2.0], tmp_path) == "item 3: expected a string like the items before, got float"


def test_a_table_in_place_of_its_column_is_an_error(tmp_path: Path) -> None:
    table = {"text": ["a b", "b c"]}
    message = "texts must be a column of a table, such as table['text'], got a "
    assert fail(table, tmp_path) == message + "dict"
    for library, kind in {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "Table"}.items():
        make = pytest.importorskip(library).table if library == "pyarrow" else pytest.importorskip(library).DataFrame
        assert fail(make(table), tmp_path) == message + kind
    assert fail([{"text": "a b"}], tmp_path) == "item 1: expected a list of tokens, got dict"


def test_lone_surrogates_are_replaced_with_errors_replace(tmp_path: Path) -> None:
    config = CorpusConfig(errors="replace")
    assert count(["a\ud800b"], tmp_path, config).counts() == {"a": 1, "b": 1}
    assert count([["a\ud800b"]], tmp_path, config).counts() == {"a?b": 1}


def test_a_fingerprint_changes_with_the_file_and_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x")
    os.utime(file, ns=(1, 1))
    before = fingerprint_sources(file, CorpusConfig())

    assert before == fingerprint_sources([file], CorpusConfig())
    assert before != fingerprint_sources(file, CorpusConfig(lowercase=False))

    os.utime(file, ns=(2, 2))
    assert before == fingerprint_sources(file, CorpusConfig())

    file.write_text("y")
    os.utime(file, ns=(1, 1))
    assert before != fingerprint_sources(file, CorpusConfig())

    items = iter(["a"])
    assert fingerprint_sources(items, CorpusConfig()) == {"iterable": "iterable"}
    assert next(items) == "a"


def test_a_fingerprint_does_not_depend_on_the_location_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("x")
        os.utime(tmp_path / name / "a.txt", ns=(1, 1))
    monkeypatch.chdir(tmp_path / "one")
    relative = fingerprint_sources("a.txt", CorpusConfig())

    assert list(relative) == ["a.txt"]
    assert relative == fingerprint_sources(tmp_path / "one" / "a.txt", CorpusConfig())
    assert relative == fingerprint_sources(tmp_path / "two" / "a.txt", CorpusConfig())
    assert relative == fingerprint_sources(tmp_path / "two", CorpusConfig())


def test_files_of_the_same_name_have_separate_fingerprints(tmp_path: Path) -> None:
    names = ("-", "a/a.txt", "a/vocabulary", "a.txt#2", "b/a.txt", "c/a.txt", "iterable")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    fingerprints = fingerprint_sources([tmp_path / name for name in (*names, "a/a.txt")], CorpusConfig())
    assert sorted(fingerprints) == [
        "-#2", "a.txt", "a.txt#2", "a.txt#3", "a.txt#4", "a.txt#5", "iterable#2", "vocabulary#2",
    ]  # fmt: skip
    assert fingerprints["a.txt#5"] == fingerprints["a.txt"]


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
    for name in ("in/a/1.txt", "elsewhere/2.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "link2").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "a" / "loop").symlink_to(tmp_path / "in")

    expected = [tmp_path / "in" / "a" / "1.txt", tmp_path / "in" / "link" / "2.txt"]
    assert list_files(tmp_path / "in") == expected
    assert list_files(str(tmp_path / "in" / "**")) == expected


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(path.parent):  # Paths of sockets are short.
        listener.bind(path.name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
@pytest.mark.parametrize(("make", "kind"), [(getattr(os, "mkfifo", None), "a pipe"), (make_socket, "a socket")])
def test_special_file_in_a_folder_is_refused(tmp_path: Path, make: Callable[[Path], None], kind: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x")
    make(tmp_path / "in" / "special")
    for texts in (tmp_path / "in", str(tmp_path / "in" / "*")):
        with pytest.raises(CorpusError, match=f"special: {kind}, which is read only if it is named itself"):
            list_files(texts)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_named_pipe_is_read_once_and_never_compared(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert fingerprint_sources(pipe, CorpusConfig()) == {"pipe": "pipe"}

    writer = threading.Thread(target=lambda: pipe.write_text("a b\n" * 9))
    writer.start()
    assert matrix_of(pipe, tmp_path / "matrix").shape == (2, 8)
    writer.join()
    with pytest.raises(FolderExists, match="from an iterator or a pipe cannot be compared"):
        matrix_of(pipe, tmp_path / "matrix")


def test_run_length_blocks_of_zstd_are_decompressed_in_small_pieces(tmp_path: Path) -> None:
    """Each block of four bytes becomes 128 KiB; 4,000 of them are half a gigabyte of text."""
    pytest.importorskip("zstandard")
    block = ((1 << 17) << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    end = (1).to_bytes(3, "little")
    header = b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x38"  # no content size; a window of 128 KiB
    (tmp_path / "bomb.zst").write_bytes(header + 4_000 * block + end)

    [stream] = open_streams(tmp_path / "bomb.zst", CorpusConfig())
    sizes = [len(block) for block in stream.blocks()]
    assert sum(sizes) == 4_000 << 17
    assert max(sizes) <= 1 << 24
