"""Sources of text: files, folders, globs, URLs, compressed files, standard input and iterables.

Every source becomes a `Stream`, a named sequence of UTF-8 bytes. Texts in memory become bytes, too: 0xFF, which does
not occur in UTF-8, ends each text or list of tokens, and 0xFE separates the tokens of a list.
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
_ZSTD_BYTES = 1 << 13  # Read few bytes at a time, because they may decompress to a thousand times as many.
_SEPARATOR = "swivel.separator"
COMPRESSION_RATIO = 4  # typical, for text
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_FILES = (Path, RemoteFile)
_RESERVED_NAMES = ("-", "iterable", "vocabulary")  # names of other inputs in a manifest


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Some bytes of UTF-8, at least one, and the number of source bytes they come from, for progress bars."""

    data: bytes
    cost: int


@dataclass(frozen=True, slots=True)
class Stream:
    """A named sequence of blocks.

    Attributes
    ----------
    name
        Name for error messages.
    blocks
        Function that opens the source and yields its blocks.
    size
        Bytes of the source; None if unknown.
    has_marks
        Whether the bytes 0xFE and 0xFF end tokens and texts, because the source was in memory.
    is_tokenised
        Whether the source consists of tokens.
    """

    name: str
    blocks: Callable[[], Iterator[TextBlock]]
    size: int | None = None
    has_marks: bool = False
    is_tokenised: bool = False


def list_files(texts: str | TextFile | Iterable[TextFile]) -> list[TextFile]:
    """Return the files of paths, folders, globs and URLs.

    The files of a folder are sorted, and hidden files are left out. Raises CorpusError if there is no file.

    >>> list_files("-")
    [PosixPath('-')]
    """
    if isinstance(texts, (str, *_FILES)):
        return _expand(texts)
    return [file for path in texts for file in _expand(path)]


def _expand(path: str | TextFile) -> list[TextFile]:
    """Return the files of one path, folder, glob or URL."""
    if isinstance(path, RemoteFile):
        return [path]
    if str(path) == "-":
        return [STDIN]
    if isinstance(path, str) and is_url(path):
        return [file for match in list_url(path) for file in _expand(match)]

    try:
        exists = Path(path).exists()
        is_folder = Path(path).is_dir()
        is_glob = not exists and glob.has_magic(str(path))
    except (OSError, ValueError):  # Too long, or contains NUL: a text and not a path.
        exists = is_folder = is_glob = False

    if is_folder:
        return _list_folder(Path(path))
    if exists:
        return [Path(path)]
    if is_glob:
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute patterns too)
        if not matches:
            raise CorpusError(f"{path}: no file matches")
        return [file for match in matches for file in _expand(match)]

    shown = str(path) if len(str(path)) <= 100 else str(path)[:97] + "..."
    raise CorpusError(f"{shown!a}: no such file or folder (pass texts as a list of strings)")


def _list_folder(folder: Path) -> list[TextFile]:
    """Return the files of a folder and its subfolders, sorted, without hidden files and folders."""

    def raise_error(error: OSError) -> None:
        raise CorpusError(f"{error.filename}: {error.strerror}") from error

    files = []
    for root, folders, names in os.walk(folder, onerror=raise_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(root, name) for name in names if not name.startswith(".")]

    if not files:
        raise CorpusError(f"{folder}: the folder has no files")
    return [*sorted(files)]


def _name_files(files: Iterable[TextFile]) -> Iterator[str]:
    """Yield a unique name for each file, without its folder; the second file of the same name gets the suffix #2."""
    taken = set(_RESERVED_NAMES)
    seen = Counter[str]()

    for file in files:
        name = file.name
        while name in taken and file != STDIN:
            seen[file.name] += 1
            name = f"{file.name}#{seen[file.name] + 1}"
        taken.add(name)
        yield name


def fingerprint_sources(texts: Texts, config: CorpusConfig) -> dict[str, str]:
    """Return a digest of each source's size, modification time and configuration, by file name.

    The location of a file is not included, so that a project may be moved. Iterables and standard input have no digest;
    a fixed text replaces it.
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
    """Return the streams of all kinds of texts; only the first item of an iterable is read.

    Raises CorpusError if `texts` is of the wrong type or a file does not exist.
    """
    codec = find_codec(config.encoding)
    if isinstance(texts, (str, *_FILES)):
        return [file_stream(file, codec, config) for file in list_files(texts)]

    try:
        items: Iterator[Any] = iter(texts)
    except TypeError:
        raise CorpusError(f"texts must be a path or an iterable, got {type(texts).__name__}") from None

    # The type of the first item determines the type of all items.
    first = list(itertools.islice(items, 1))
    items = itertools.chain(first, items)

    if first and isinstance(first[0], _FILES):
        files = list_files(_checked(items, _FILES, "a path"))
        return [file_stream(file, codec, config) for file in files]
    if first and not isinstance(first[0], str):
        return [Stream("iterable", lambda: _pack(_pack_tokens(items, config)), has_marks=True, is_tokenised=True)]
    return [Stream("iterable", lambda: _pack(_pack_texts(items)), has_marks=True)]


def find_codec(encoding: str) -> codecs.CodecInfo:
    """Return the Python codec of a text encoding; raise ConfigError if there is none."""
    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError):
        raise ConfigError(
            f"encoding must be the name of a Python codec, such as utf-8 or latin-1, got {encoding!r}"
        ) from None
    if not getattr(codec, "_is_text_encoding", True):
        raise ConfigError(f"encoding must be a text encoding, such as utf-8 or latin-1, got {encoding!r}")
    return codec


def size_of(file: TextFile) -> int | None:
    """Return the size of a file in bytes; None for standard input and pipes."""
    if isinstance(file, RemoteFile):
        return file.size()
    if file == STDIN or not file.is_file():
        return None
    return file.stat().st_size


def text_size(file: TextFile) -> int:
    """Return the approximate number of bytes of text in a file; 0 if unknown."""
    size = size_of(file) or 0
    if file.suffix.lower() in PACKED_SUFFIXES:
        size *= COMPRESSION_RATIO
    return size


def open_file(file: TextFile) -> IO[bytes]:
    """Open a local or remote file for reading bytes."""
    if isinstance(file, RemoteFile):
        return file.open()
    with clear_errors(file, CorpusError):
        return file.open("rb", buffering=0)


def file_stream(file: TextFile, codec: codecs.CodecInfo, config: CorpusConfig) -> Stream:
    """Return the stream of a file, which is opened when the stream is read."""
    name = "standard input" if file == STDIN else str(file)

    def read() -> Iterator[TextBlock]:
        blocks = _read_file(file, name)
        if codec.name in ("utf-8", "utf-8-sig"):
            return blocks
        return _transcode(blocks, name, codec, config)

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
    """Return a function that yields the decompressed blocks of a file."""

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
    """Yield the decompressed blocks of a zstd file, which may have several frames."""
    try:
        import zstandard
    except ImportError:
        raise missing_extra(f"{name}: .zst files", "zstandard", "zstd") from None

    frame = zstandard.ZstdDecompressor().decompressobj()
    is_open = False  # whether the last frame is incomplete
    cost = 0

    for block in iter(lambda: raw.read(_ZSTD_BYTES), b""):
        cost += len(block)
        rest = block

        while rest:
            try:
                data = frame.decompress(rest)
            except (zstandard.ZstdError, MemoryError) as error:
                raise CorpusError(f"{name}: not a zstd file, or damaged ({error})") from error

            is_open = not frame.eof
            rest = b""
            if frame.eof:  # Another frame may follow.
                rest = frame.unused_data
                frame = zstandard.ZstdDecompressor().decompressobj()

            if data:
                yield TextBlock(data, cost)
                cost = 0

    if is_open:
        raise CorpusError(f"{name}: not a zstd file, or damaged (it is truncated)")


_DECOMPRESS: dict[str, Callable[[IO[bytes], str], Iterator[TextBlock]]] = {
    ".gz": _decompressor("gzip", lambda raw: gzip.GzipFile(fileobj=raw, mode="rb")),
    ".bz2": _decompressor("bzip2", bz2.BZ2File),
    ".xz": _decompressor("xz", lzma.LZMAFile),
    ".zst": _read_zstd,
}


def drop_bom(blocks: Iterator[TextBlock]) -> Iterator[TextBlock]:
    """Yield the blocks without the UTF-8 byte order mark that some files start with."""
    held = b""
    cost = 0

    for block in blocks:
        held += block.data
        cost += block.cost
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
    """Convert blocks from another encoding to UTF-8; invalid bytes become NUL, which separates tokens."""
    assert codec.incrementaldecoder is not None  # true for all text encodings of Python
    decoder = codec.incrementaldecoder("strict" if config.errors == "strict" else _SEPARATOR)
    place = TextPlace()

    def decode(data: bytes, *, final: bool = False) -> bytes:
        try:
            text = decoder.decode(data, final)
        except UnicodeError as error:
            raise _describe_decode_error(error, name, place, codec) from error

        place.move(text)
        return text.encode("utf-8", "surrogatepass")

    cost = 0
    for block in blocks:
        data = decode(block.data)
        cost += block.cost
        if data:
            yield TextBlock(data, cost)
            cost = 0

    # Only the last call may be final: an earlier one would treat half a character at the end of a block as an error.
    if data := decode(b"", final=True):
        yield TextBlock(data, cost)


def _describe_decode_error(error: UnicodeError, name: str, place: TextPlace, codec: codecs.CodecInfo) -> CorpusError:
    where = ""
    if isinstance(error, UnicodeDecodeError):
        with suppress(UnicodeError):  # Some codecs cannot ignore errors; the column is then that of the block.
            place.move(codec.decode(error.object[: error.start], "ignore")[0])
        where = f" (byte 0x{error.object[error.start]:02x} at column {place.column})"
    return CorpusError(
        f"{name}, line {place.line}: not valid {codec.name}{where}; pass encoding (--encoding) or errors='replace' "
        "(--errors replace)"
    )


@dataclass(slots=True)
class TextPlace:
    """A line and column of a text, both counted from 1."""

    line: int = 1
    column: int = 1
    _after_return: bool = False

    def move(self, text: str | bytes) -> None:
        """Move to the position after `text`; a line ends at a line feed, a carriage return, or both."""
        if not text:
            return

        feed, back = ("\n", "\r") if isinstance(text, str) else (b"\n", b"\r")
        ends = text.count(feed)  # type: ignore[arg-type]
        if back in text:  # type: ignore[operator]
            ends += text.count(back) - text.count(back + feed)  # type: ignore[operator, arg-type]

        # A line feed at the start belongs to the carriage return at the end of the previous text.
        self.line += ends - (self._after_return and text.startswith(feed))  # type: ignore[arg-type]

        last = max(text.rfind(feed), text.rfind(back))  # type: ignore[arg-type]
        self.column = len(text) - last if last >= 0 else self.column + len(text)
        self._after_return = text.endswith(back)  # type: ignore[arg-type]


def _pack(parts: Iterator[bytes]) -> Iterator[TextBlock]:
    """Join small parts to blocks of at least BLOCK_BYTES."""
    held: list[bytes] = []
    size = 0

    for part in parts:
        held.append(part)
        size += len(part)
        if size >= BLOCK_BYTES:
            yield TextBlock(b"".join(held), size)
            held = []
            size = 0

    if size:
        yield TextBlock(b"".join(held), size)


def _checked(items: Iterable[Any], kind: type | tuple[type, ...], words: str) -> Iterator[Any]:
    """Yield the items; raise CorpusError for the first one of another type."""
    for number, item in enumerate(items, 1):
        if not isinstance(item, kind):
            raise CorpusError(f"item {number}: expected {words} like the items before, got {type(item).__name__}")
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
            raise CorpusError(f"item {number}: all tokens must be strings") from None
        except UnicodeEncodeError:
            raise CorpusError(
                f"item {number}: a token contains a lone surrogate, which UTF-8 cannot encode; pass errors='replace'"
            ) from None
