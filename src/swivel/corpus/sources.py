"""Where text comes from: files, folders, globs, URLs, compressed files, standard input, anything that can be iterated.

Receives what the user named, hands on `Stream`s: named runs of UTF-8 bytes. It does not split text.

Texts that are in memory already become bytes too: 0xFF, which UTF-8 has not, ends each text (or list of tokens),
0xFE each token of a list.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import itertools
import lzma
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from swivel.config import CorpusConfig
from swivel.corpus.remote import RemoteFile, is_url, list_url
from swivel.errors import ConfigError, CorpusError, clear_errors, missing_extra
from swivel.storage import fingerprint

TextFile: TypeAlias = "Path | RemoteFile"
Texts: TypeAlias = "str | TextFile | Iterable[str] | Iterable[TextFile] | Iterable[Iterable[str]]"

STDIN = Path("-")
BLOCK_BYTES = 1 << 20
_ZSTD_BYTES = 1 << 13  # Read little at a time: what comes out may be a thousand times as much.
_SEPARATOR = "swivel.separator"
PACKED, PACKED_SUFFIXES = 4, (".gz", ".bz2", ".xz", ".zst")  # text is so many times as large as these files, about
_FILES = (Path, RemoteFile)
_TAKEN_NAMES = ("-", "iterable", "vocabulary")  # beside the files' names, in a manifest


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Some bytes of UTF-8, never none, and how many bytes of the source they took (what a progress bar counts)."""

    data: bytes
    cost: int


@dataclass(frozen=True, slots=True)
class Stream:
    """One named run of blocks. `size`: bytes of the source where known; `has_marks`: it was in memory."""

    name: str
    blocks: Callable[[], Iterator[TextBlock]]
    size: int | None = None
    has_marks: bool = False
    is_tokenised: bool = False


def list_files(texts: str | TextFile | Iterable[TextFile]) -> list[TextFile]:
    """Return the files that paths, folders, globs and URLs stand for; a folder's sorted, hidden ones left out.

    Raises CorpusError where there is none.

    >>> list_files("-")
    [PosixPath('-')]
    """
    if isinstance(texts, (str, *_FILES)):
        return _expand(texts)
    return [file for path in texts for file in _expand(path)]


def _expand(path: str | TextFile) -> list[TextFile]:
    if isinstance(path, RemoteFile):
        return [path]
    if str(path) == "-":
        return [STDIN]
    if isinstance(path, str) and is_url(path):
        return [file for found in list_url(path) for file in _expand(found)]
    try:
        kind = "folder" if Path(path).is_dir() else "file" if Path(path).exists() else "glob"
    except (OSError, ValueError):  # too long, or with NUL: no path at all
        kind = "nothing"
    if kind == "file":
        return [Path(path)]
    if kind == "folder":
        return _list_folder(Path(path))
    if kind == "glob" and glob.has_magic(str(path)):
        found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute patterns too)
        if not found:
            raise CorpusError(f"{path}: no file matches")
        return [file for match in found for file in _expand(match)]
    shown = str(path) if len(str(path)) <= 100 else str(path)[:97] + "..."
    raise CorpusError(f"{shown!a}: no such file or folder (texts themselves are passed as a list of strings)")


def _list_folder(folder: Path) -> list[TextFile]:
    def refuse(error: OSError) -> None:
        raise CorpusError(f"{error.filename}: {error.strerror}") from error

    files = []
    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(root, name) for name in names if not name.startswith(".")]
    if not files:
        raise CorpusError(f"{folder}: the folder has no files")
    return [*sorted(files)]


def _name_files(files: Iterable[TextFile]) -> Iterator[str]:
    """Yield a name for each file that does not say where it lies; the second of a name has #2 behind it."""
    taken, seen = set(_TAKEN_NAMES), Counter[str]()
    for file in files:
        name = file.name
        while name in taken and file != STDIN:
            seen[file.name] += 1
            name = f"{file.name}#{seen[file.name] + 1}"
        taken.add(name)
        yield name


def fingerprint_sources(texts: Texts, config: CorpusConfig) -> dict[str, str]:
    """Return a digest for each source, by its file's name: of size, time of change and configuration.

    Where a file lies is left out, so that a project may be moved. What is in memory or comes from a pipe has no digest:
    its name stands in for it.
    """
    if isinstance(texts, (str, *_FILES)):
        files = list_files(texts)
    elif isinstance(texts, Collection) and texts and all(isinstance(item, _FILES) for item in texts):
        files = list_files([item for item in texts if isinstance(item, _FILES)])
    else:
        return {"iterable": "iterable"}
    return {name: _fingerprint_file(file, config) for name, file in zip(_name_files(files), files, strict=True)}


def _fingerprint_file(file: TextFile, config: CorpusConfig) -> str:
    if isinstance(file, RemoteFile):
        return fingerprint([file.size(), file.version(), fingerprint(config)])
    if file == STDIN:
        return "standard input"
    with clear_errors(file, CorpusError):
        status = file.stat()
    return fingerprint([status.st_size, status.st_mtime_ns, fingerprint(config)])


def open_streams(texts: Texts, config: CorpusConfig) -> list[Stream]:
    """Return the streams of whatever the user passed; nothing is read yet but the first item of an iterable."""
    codec = find_codec(config.encoding)
    if isinstance(texts, (str, *_FILES)):
        return [file_stream(file, codec, config) for file in list_files(texts)]
    try:
        items: Iterator[Any] = iter(texts)
    except TypeError:
        raise CorpusError(f"texts: expected a path, or texts to iterate over, got {type(texts).__name__}") from None
    first = list(itertools.islice(items, 1))
    items = itertools.chain(first, items)
    if first and isinstance(first[0], _FILES):
        files = list_files(_checked(items, _FILES, "a path"))
        return [file_stream(file, codec, config) for file in files]
    if first and not isinstance(first[0], str):
        return [Stream("iterable", lambda: _pack(_pack_tokens(items, config)), has_marks=True, is_tokenised=True)]
    return [Stream("iterable", lambda: _pack(_pack_texts(items)), has_marks=True)]


def find_codec(encoding: str) -> codecs.CodecInfo:
    """Return Python's codec of a name, or raise ConfigError."""
    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError):
        raise ConfigError(
            f"encoding must be one that Python knows, such as utf-8 or latin-1, got {encoding!r}"
        ) from None
    if not getattr(codec, "_is_text_encoding", True):
        raise ConfigError(f"encoding must be one of text, got {encoding!r}")
    return codec


def size_of(file: TextFile) -> int | None:
    """Return the bytes of a file; None of what has no size: standard input, a pipe."""
    if isinstance(file, RemoteFile):
        return file.size()
    return None if file == STDIN or not file.is_file() else file.stat().st_size


def text_size(file: TextFile) -> int:
    """Return about how many bytes of text a file has; 0 where that cannot be known."""
    return (size_of(file) or 0) * (PACKED if file.suffix.lower() in PACKED_SUFFIXES else 1)


def open_file(file: TextFile) -> IO[bytes]:
    """Open a file's bytes for reading."""
    if isinstance(file, RemoteFile):
        return file.open()
    with clear_errors(file, CorpusError):
        return file.open("rb", buffering=0)


def file_stream(file: TextFile, codec: codecs.CodecInfo, config: CorpusConfig) -> Stream:
    """Return the stream of one file, of which nothing is read yet."""
    name = "standard input" if file == STDIN else str(file)

    def read() -> Iterator[TextBlock]:
        blocks = _read_file(file, name)
        return blocks if codec.name in ("utf-8", "utf-8-sig") else _transcode(blocks, name, codec, config)

    return Stream(name, lambda: drop_bom(read()), size_of(file))


def _read_file(file: TextFile, name: str) -> Iterator[TextBlock]:
    raw = sys.stdin.buffer if file == STDIN else open_file(file)
    try:
        yield from _DECOMPRESS.get(file.suffix.lower(), _read_plain)(raw, name)
    finally:
        if file != STDIN:
            raw.close()


def _read_plain(raw: IO[bytes], name: str) -> Iterator[TextBlock]:
    while True:
        with clear_errors(name, CorpusError):
            data = raw.read(BLOCK_BYTES)
        if not data:
            return
        yield TextBlock(data, len(data))


def _decompressor(kind: str, opener: Callable[[IO[bytes]], Any]) -> Callable[[IO[bytes], str], Iterator[TextBlock]]:
    def read(raw: IO[bytes], name: str) -> Iterator[TextBlock]:
        done = 0
        with opener(raw) as file:
            while True:
                try:
                    data = file.read(BLOCK_BYTES)
                except (OSError, EOFError, ValueError, MemoryError, zlib.error, lzma.LZMAError) as error:
                    raise CorpusError(f"{name}: not a {kind} file, or damaged ({error})") from error
                if not data:
                    return
                yield TextBlock(data, raw.tell() - done)
                done = raw.tell()

    return read


def _read_zstd(raw: IO[bytes], name: str) -> Iterator[TextBlock]:
    try:
        import zstandard
    except ImportError:
        raise missing_extra(f"{name}: .zst files", "zstandard", "zstd") from None
    frame, is_open = zstandard.ZstdDecompressor().decompressobj(), False
    cost = 0
    for block in iter(lambda: raw.read(_ZSTD_BYTES), b""):
        cost, rest = cost + len(block), block
        while rest:
            try:
                data = frame.decompress(rest)
            except (zstandard.ZstdError, MemoryError) as error:
                raise CorpusError(f"{name}: not a zstd file, or damaged ({error})") from error
            is_open, rest = not frame.eof, frame.unused_data if frame.eof else b""
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            if data:
                yield TextBlock(data, cost)
                cost = 0
    if is_open:
        raise CorpusError(f"{name}: not a zstd file, or damaged (it ends in the middle)")


_DECOMPRESS: dict[str, Callable[[IO[bytes], str], Iterator[TextBlock]]] = {
    ".gz": _decompressor("gzip", lambda raw: gzip.GzipFile(fileobj=raw, mode="rb")),
    ".bz2": _decompressor("bzip2", bz2.BZ2File),
    ".xz": _decompressor("xz", lzma.LZMAFile),
    ".zst": _read_zstd,
}


def drop_bom(blocks: Iterator[TextBlock]) -> Iterator[TextBlock]:
    """Yield the blocks without the mark of UTF-8 that some files begin with."""
    held, cost = b"", 0
    for block in blocks:
        held, cost = held + block.data, cost + block.cost
        if len(held) >= len(codecs.BOM_UTF8):
            if text := held.removeprefix(codecs.BOM_UTF8):
                yield TextBlock(text, cost)
            yield from blocks
            return
    if held:
        yield TextBlock(held, cost)


codecs.register_error(_SEPARATOR, lambda error: ("\0", error.end))  # type: ignore[attr-defined]


def _transcode(
    blocks: Iterator[TextBlock], name: str, codec: codecs.CodecInfo, config: CorpusConfig
) -> Iterator[TextBlock]:
    """Turn another encoding into UTF-8; what is not in the encoding becomes NUL, which separates."""
    assert codec.incrementaldecoder is not None  # All of Python's text encodings have one.
    decoder = codec.incrementaldecoder("strict" if config.errors == "strict" else _SEPARATOR)
    place = TextPlace()

    def decode(data: bytes, *, final: bool = False) -> bytes:
        try:
            text = decoder.decode(data, final)
        except UnicodeError as error:
            raise _not_in_encoding(error, name, place, codec) from error
        place.move(text)
        return text.encode("utf-8", "surrogatepass")

    cost = 0
    for block in blocks:
        data, cost = decode(block.data), cost + block.cost
        if data:
            yield TextBlock(data, cost)
            cost = 0
    if data := decode(b"", final=True):  # Only here: a final call in the middle takes half a character for damage.
        yield TextBlock(data, cost)


def _not_in_encoding(error: UnicodeError, name: str, place: TextPlace, codec: codecs.CodecInfo) -> CorpusError:
    where = ""
    if isinstance(error, UnicodeDecodeError):
        with suppress(UnicodeError):  # Some codecs cannot leave anything out; the column is then that of the block.
            place.move(codec.decode(error.object[: error.start], "ignore")[0])
        where = f" (byte 0x{error.object[error.start]:02x} at column {place.column})"
    return CorpusError(f"{name}, line {place.line}: not valid {codec.name}{where}; pass --encoding or --errors replace")


@dataclass(slots=True)
class TextPlace:
    """A line and a column, both counted from 1, that move along a text or its bytes."""

    line: int = 1
    column: int = 1
    _after_return: bool = False

    def move(self, text: str | bytes) -> None:
        """Move behind `text`; lines end at line feed, carriage return, or both."""
        if not text:
            return
        feed, back = ("\n", "\r") if isinstance(text, str) else (b"\n", b"\r")
        ends = text.count(feed)  # type: ignore[arg-type]
        if back in text:  # type: ignore[operator]
            ends += text.count(back) - text.count(back + feed)  # type: ignore[operator, arg-type]
        self.line += ends - (self._after_return and text.startswith(feed))  # type: ignore[arg-type]
        last = max(text.rfind(feed), text.rfind(back))  # type: ignore[arg-type]
        self.column = len(text) - last if last >= 0 else self.column + len(text)
        self._after_return = text.endswith(back)  # type: ignore[arg-type]


def _pack(parts: Iterator[bytes]) -> Iterator[TextBlock]:
    """Gather small parts into blocks."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= BLOCK_BYTES:
            yield TextBlock(b"".join(held), size)
            held, size = [], 0
    if size:
        yield TextBlock(b"".join(held), size)


def _checked(items: Iterable[Any], kind: type | tuple[type, ...], words: str) -> Iterator[Any]:
    for number, item in enumerate(items, 1):
        if not isinstance(item, kind):
            raise CorpusError(f"item {number}: expected {words}, as before, got {type(item).__name__}")
        yield item


def _pack_texts(items: Iterable[Any]) -> Iterator[bytes]:
    for text in _checked(items, str, "a string"):
        for start in range(0, len(text), BLOCK_BYTES):
            yield text[start : start + BLOCK_BYTES].encode("utf-8", "surrogatepass")
        yield b"\xff"


def _pack_tokens(items: Iterable[Any], config: CorpusConfig) -> Iterator[bytes]:
    for number, tokens in enumerate(items, 1):
        if isinstance(tokens, str) or not isinstance(tokens, Iterable):
            raise CorpusError(f"item {number}: expected a list of tokens, got {type(tokens).__name__}")
        try:
            yield b"\xfe".join([token.encode("utf-8", config.errors) for token in tokens]) + b"\xff"
        except (AttributeError, TypeError):
            raise CorpusError(f"item {number}: expected tokens that are strings") from None
        except UnicodeEncodeError:
            raise CorpusError(
                f"item {number}: a token has a lone surrogate, which UTF-8 cannot hold; pass errors='replace'"
            ) from None
