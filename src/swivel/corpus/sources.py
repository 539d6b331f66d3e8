"""Files of a corpus: paths, folders, globs and URLs (s3://, gs://, hdfs://, zip://...::file://...).

Remote files are read with fsspec. The digests of the content of local files are computed on all cores and kept in
manifests, each with the full path, size, times and inode of its file. If all of these are unchanged, the file is not
read again.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias

from swivel.config import CorpusConfig
from swivel.errors import IS_TEXT_HINT, CorpusError, StorageError, clear_errors, first_line
from swivel.runtime.options import RunOptions
from swivel.runtime.parallel import map_in_order
from swivel.runtime.progress import SILENT, Progress, track
from swivel.runtime.resources import count_cores
from swivel.storage.manifest import digest_file, fingerprint, read_manifest
from swivel.storage.object_digest import digest_object
from swivel.storage.output_folder import identify, is_own_file, is_own_folder

STDIN = Path("-")
# In place of the fingerprint of a source that can be read only once.
TEXT_IN_MEMORY, STANDARD_INPUT, PIPE = "iterable", "standard input", "pipe"
READ_ONCE = {TEXT_IN_MEMORY, STANDARD_INPUT, PIPE}
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
COMPRESSION_RATIO = 4  # typical, for text
_PATH = re.compile(  # A sentence without spaces may contain a slash, but paths contain no full stop of such scripts.
    rf"(?!.*[、。！？])\S*[/{re.escape(os.sep)}]\S*|\S+\.(txt|text|md|csv|tsv|jsonl?|html?|gz|bz2|xz|zst)",
    re.IGNORECASE,
)
_RESERVED_NAMES = ("-", TEXT_IN_MEMORY, "vocabulary")  # names of other inputs in a manifest
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")  # two letters or more, because C:\ is a disk
_LOCAL_URL = re.compile(r"(file|local)://(?!.*::)")
_INFO_TYPES = (str, bytes, int, float, tuple, datetime)  # types of file information that have a stable string
_LOCATION_KEYS = ("name", "filename", "orig_filename", "Key")

SOURCES = "sources"  # key of the digests in the facts of a manifest
_COARSE_NS = 2 * 10**9  # With the coarsest times (FAT), a file may change for so long without another time.

# By full path: what this process has computed or found in a manifest, of files that had not just changed.
_known: dict[str, FileDigest] = {}


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of an fsspec file system. It can be pickled and opened on other machines."""

    system: Any
    path: str

    def __str__(self) -> str:
        return str(self.system.unstrip_protocol(self.path))

    @property
    def name(self) -> str:
        """Last component of the path."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """File extension with its dot, or an empty string."""
        return PurePosixPath(self.path).suffix


FILE_TYPES = (Path, RemoteFile)
TextFile: TypeAlias = "Path | RemoteFile"
Texts: TypeAlias = "str | TextFile | Iterable[str] | Iterable[TextFile] | Iterable[Iterable[str]]"


def find_texts(texts: Texts, out: str | Path | None = None) -> Texts:
    """Return paths, folders, globs and URLs as a list of their files, and texts in memory unchanged."""
    # Nothing in the output folder `out` is listed. Nothing is taken from an iterator yet, unless it is `glob.iglob`.
    if isinstance(texts, Iterator):
        code = getattr(texts, "gi_code", None)
        is_glob = code is not None and code.co_filename == glob.iglob.__code__.co_filename
        return list_files(texts, outside=out) if is_glob else _skip_output(texts, out)
    files = files_of(texts, out)
    return texts if files is None else files


def _skip_output(items: Iterator[Any], out: str | Path | None) -> Iterator[Any]:
    """Yield items, except paths in the output folder or in other results of Swivel, as from `Path.rglob`."""
    is_output = _output_filter(None if out is None else Path(out))
    for item in items:
        if not isinstance(item, Path) or not is_output(item):
            yield item


def check_items(items: Iterable[Any], kind: type | tuple[type, ...], words: str) -> Iterator[Any]:
    """Yield the items; raise CorpusError for the first one of another type."""
    for number, item in enumerate(items, 1):
        if not isinstance(item, kind):
            before = " like the items before" if number > 1 else ""
            raise CorpusError(f"item {number}: expected {words}{before}, got {type(item).__name__}")
        yield item


def list_files(
    texts: str | TextFile | Iterable[str | TextFile], *, outside: str | Path | None = None
) -> list[TextFile]:
    """Return the files of paths, folders (sorted, without hidden files), globs and URLs; raise CorpusError if none."""
    # Links to folders are followed, and each folder is read once. Folders and globs do not include the folder
    # `outside`, which is the output, nor the results of other commands. A pipe, socket or device is read only if it is
    # named itself.
    paths = [texts] if isinstance(texts, (str, *FILE_TYPES)) else list(texts)
    out = None if outside is None else Path(outside)

    files = [file for path in paths for file in _expand(path, out)]
    if paths and not files:
        raise CorpusError(f"{_shorten(paths[0])}: no files; folders that Swivel writes are not read")
    return files


def list_paths(texts: str | Path | Iterable[str | Path], *, outside: str | Path | None = None) -> list[Path]:
    """Return the files of paths, folders and globs, as `list_files` does, but raise CorpusError for a URL."""
    paths = []
    for file in list_files(texts, outside=outside):
        if not isinstance(file, Path):
            raise CorpusError(f"{file}: only local files are supported here; download the remote files first")
        paths.append(file)
    return paths


def _expand(path: str | TextFile, out: Path | None) -> Sequence[TextFile]:
    """Return the files of one path, folder, glob or URL."""
    if isinstance(path, RemoteFile):
        return [path]
    if str(path) == "-":
        return [STDIN]
    if isinstance(path, str):
        path = _LOCAL_URL.sub("", path)
        if _URL.match(path):
            return _list_url(path)

    try:
        if Path(path).is_dir():
            return _list_folder(Path(path), out)
        if Path(path).exists():
            return [Path(path)]
        is_glob = glob.has_magic(str(path))
    except PermissionError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    except (OSError, ValueError):  # Too long, or contains NUL: a text and not a path.
        is_glob = False

    if is_glob:
        return _list_matches(str(path), out)

    raise CorpusError(f"{_shorten(path)!a}: no such file or folder{IS_TEXT_HINT}")


def _shorten(path: object) -> str:
    return str(path) if len(str(path)) <= 100 else str(path)[:97] + "..."


def _list_url(url: str) -> list[RemoteFile]:
    """Return the files of a URL, sorted: a file, those of a folder without hidden ones, or the matches of a glob."""
    with clear_file_errors(url):
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
        if glob.has_magic(path):
            paths = [match for match in system.glob(path) if not system.isdir(match)]
        else:
            paths = system.find(path)  # of a file, the file

    files = []
    for file in sorted(paths):
        parts = PurePosixPath(file.removeprefix(path)).parts
        if not any(part.startswith(".") for part in parts):
            files.append(RemoteFile(system, file))
    if not files:
        raise CorpusError(f"{url}: no such file, or a folder without files")
    return files


def _list_folder(folder: Path, out: Path | None) -> list[Path]:
    """Return the files of a folder and of the folders in it; raise CorpusError if it has no files at all."""
    files: list[Path] = []
    own: list[Path] = []  # what Swivel wrote, which is left out
    # Folders that were seen before are left out: they are the output, or have several names because of links.
    seen = {None if out is None else identify(out)}

    def refuse(error: OSError) -> None:
        raise CorpusError(f"{error.filename}: {error.strerror}") from error

    for path, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        identity = identify(Path(path))
        if identity in seen or is_own_folder(Path(path)):
            own.append(Path(path))
            folders.clear()
            continue

        seen.add(identity)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in (Path(path, name) for name in names if not name.startswith(".")):
            if is_own_file(file):
                own.append(file)
            else:
                files.append(_regular(file))

    if not files and not own:
        raise CorpusError(f"{folder}: the folder has no files")
    return [*sorted(files)]


def _list_matches(pattern: str, out: Path | None) -> list[Path]:
    """Return the files that match a glob, and those of the folders that do, each once."""
    names = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207 (absolute patterns too)
    # The shortest name of each, because a loop of links gives a file many names.
    longest_first = sorted(names, key=lambda path: (len(path.parts), path), reverse=True)
    matches = {os.path.realpath(path): path for path in longest_first}
    if not matches:
        raise CorpusError(f"{pattern}: no file matches")

    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts)
    is_output = _output_filter(out, len(list(fixed)))
    files: dict[str, Path] = {}  # by real path, because a folder and the files in it can match

    for match in sorted(matches.values()):
        if is_output(match):
            continue
        for file in _list_folder(match, out) if match.is_dir() else [_regular(match)]:
            files.setdefault(os.path.realpath(file), file)
    return [*files.values()]


def _output_filter(out: Path | None, top: int = 0) -> Callable[[Path], bool]:
    """Return a function that tells whether a path is, or is inside of, the output folder or another result."""
    # `top` is the number of parts of the path of the folder above which no folder is examined.
    output = None if out is None else identify(out)

    @cache
    def is_in_output(folder: Path) -> bool:
        if identify(folder) in (output, None) or is_own_folder(folder):
            return True
        is_top = len(folder.parts) <= top or folder == folder.parent
        return not is_top and is_in_output(folder.parent)

    def is_output(path: Path) -> bool:
        return is_in_output(path) if path.is_dir() else is_own_file(path) or is_in_output(path.parent)

    return is_output


def _regular(path: Path) -> Path:
    """Return the path of a file; raise CorpusError if reading it could block forever."""
    with clear_errors(path, CorpusError):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise CorpusError(f"{path}: {kind}, which is read only if it is named itself; remove it from the folder")
    return path


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


def fingerprint_sources(
    texts: Texts, config: CorpusConfig, digests: Mapping[str, FileDigest] | None = None
) -> dict[str, str]:
    """Return a fingerprint of each source's content and configuration, by file name."""
    # The location of a file is not included, so that a project may be moved. Iterators and pipes have no fingerprint; a
    # fixed text replaces it. `digests` are those of `digest_sources`, which computes them by default.
    files = files_of(texts)
    if files is None:
        digest = digest_object(texts)
        return {TEXT_IN_MEMORY: TEXT_IN_MEMORY if digest is None else fingerprint([digest, fingerprint(config)])}

    known = digest_sources(files) if digests is None else digests
    return {name: _fingerprint_file(file, config, known) for name, file in zip(_name_files(files), files, strict=True)}


def record_sources(
    texts: Texts, config: CorpusConfig, known: Path, options: RunOptions
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a fingerprint of each source, and facts for a manifest, by which the next call need not read it again.

    `known` is the folder that may have such a manifest.
    """
    digests = digest_sources(texts, known=known, threads=options.thread_count, progress=options.progress)
    # Those of files that changed just before they were hashed are left out: a later change may not show in their times.
    facts = {path: asdict(digest) for path, digest in digests.items() if digest == _known.get(path)}
    return fingerprint_sources(texts, config, digests), {SOURCES: facts}


def can_compare(inputs: Mapping[str, str]) -> bool:
    """Return whether a result of these inputs can be recognized: all of them have fingerprints."""
    return not READ_ONCE & set(inputs.values())


def local_files(texts: Texts) -> list[Path]:
    """Return the paths of the files on this machine among texts; none for texts in memory."""
    return [file for file in files_of(texts) or [] if isinstance(file, Path) and file != STDIN]


def refuse_table(texts: object) -> None:
    """Raise CorpusError for a table or a dictionary, whose items are the names of its columns."""
    if isinstance(texts, Mapping) or hasattr(type(texts), "columns") or hasattr(type(texts), "column_names"):
        raise CorpusError(f"texts must be a column of a table, such as table['text'], got a {type(texts).__name__}")


def files_of(texts: Texts, out: str | Path | None = None) -> list[TextFile] | None:
    """Return the files of paths that are not in the folder `out`; None for texts in memory."""
    # Strings in a list are paths if each of them exists or looks like a path. Strings of an iterator are texts, unless
    # it is `glob.iglob`.
    if isinstance(texts, (str, *FILE_TYPES)):
        return list_files(texts, outside=out)
    refuse_table(texts)
    if not isinstance(texts, Collection):
        return None

    # The type of the first item determines the type of all items.
    first = next(iter(texts), None)
    if isinstance(first, FILE_TYPES):
        return list_files(check_items(texts, FILE_TYPES, "a path"), outside=out)
    if not isinstance(first, str) or not all(map(_is_path, texts)):
        return None

    try:
        return list_files(texts, outside=out)
    except CorpusError as error:
        reason = str(error).removesuffix(IS_TEXT_HINT)
        raise CorpusError(f"{reason} (all strings look like paths; pass iter(texts) if they are texts)") from error


def _is_path(item: object) -> bool:
    """Return whether a string exists as a path, or has no white space and a separator or the suffix of a text file."""
    return isinstance(item, str) and (_PATH.fullmatch(item) is not None or os.path.exists(item))  # noqa: PTH110 (any text)


def is_missing(item: object) -> bool:
    """Return whether an item is a missing value of a column: None, NaN, or the NA of pandas."""
    return item is None or (isinstance(item, float) and item != item) or type(item).__name__ == "NAType"


def _fingerprint_file(file: TextFile, config: CorpusConfig, digests: Mapping[str, FileDigest]) -> str:
    if isinstance(file, RemoteFile):
        return fingerprint([size_of(file), _digest_info(file), fingerprint(config)])
    if file == STDIN:
        return STANDARD_INPUT
    if is_pipe(file):
        return PIPE
    return fingerprint([digests[full_path(file)].digest, fingerprint(config)])


def _digest_info(file: RemoteFile) -> str:
    """Return a digest that changes with a file: of everything the file system reports except the location."""
    with clear_file_errors(file):
        info = file.system.info(file.path).items()
    stable = [(key, value) for key, value in info if isinstance(value, _INFO_TYPES) and key not in _LOCATION_KEYS]
    return fingerprint(sorted((key, str(value)) for key, value in stable))


def is_pipe(file: TextFile) -> bool:
    """Return whether a file can be read only once: standard input, a pipe, a socket or a device."""
    return file == STDIN or (isinstance(file, Path) and file.exists() and not file.is_file() and not file.is_dir())


def size_of(file: TextFile) -> int | None:
    """Return the size of a file in bytes; None for standard input, pipes, and file systems that do not report it."""
    if isinstance(file, RemoteFile):
        with clear_file_errors(file):
            return file.system.size(file.path)  # type: ignore[no-any-return]
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
    with clear_file_errors(file):
        if isinstance(file, RemoteFile):
            return file.system.open(file.path, "rb")  # type: ignore[no-any-return]
        return file.open("rb", buffering=0)


@contextlib.contextmanager
def clear_file_errors(file: TextFile | str) -> Iterator[None]:
    """Convert an error of a file or URL into a CorpusError with a one-line message."""
    try:
        with clear_errors(file, CorpusError):
            yield
    except CorpusError:
        raise
    except Exception as error:  # Each remote file system raises the errors of its own library.
        raise CorpusError(f"{file}: {first_line(error)}") from error


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Digest of the content of a file, with the properties that change if the file does."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    digest: str = ""


def full_path(file: Path) -> str:
    """Return the absolute path of a file; links are not resolved."""
    return os.path.abspath(file)  # noqa: PTH100 (Path.absolute keeps "..")


def digest_sources(
    texts: Texts, *, known: Path | None = None, threads: int | None = None, progress: Progress = SILENT
) -> dict[str, FileDigest]:
    """Return the digests of all local files of texts, by full path."""
    # A file that has not changed since the folder `known` was written from it is not read again.
    recorded = (_read_recorded(known) if known is not None else {}) | _known
    digests_by_path: dict[str, FileDigest] = {}
    changed: dict[str, FileDigest] = {}
    started = time.time_ns()

    for file in local_files(texts):
        if is_pipe(file):
            continue
        path = full_path(file)
        with clear_errors(file, CorpusError):
            status = file.stat()
        now = FileDigest(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        before = recorded.get(path)

        if before is not None and now == replace(before, digest=""):
            digests_by_path[path] = _known[path] = before
        else:
            changed[path] = now

    if changed:
        with track(progress, "comparing files", sum(file.size for file in changed.values()), "bytes") as task:
            computed = map_in_order(_compute_digest, changed, threads=threads or count_cores())
            for (path, now), digest in zip(changed.items(), computed, strict=True):
                digests_by_path[path] = replace(now, digest=digest)
                task.advance(now.size)
                # A file that changed a moment ago may change again without another time.
                if max(now.mtime_ns, now.ctime_ns) + _COARSE_NS < started:
                    _known[path] = digests_by_path[path]
    return digests_by_path


def _read_recorded(folder: Path) -> dict[str, FileDigest]:
    """Return the digests in a manifest."""
    with contextlib.suppress(StorageError, TypeError, AttributeError):
        sources = read_manifest(folder).facts.get(SOURCES, {})
        return {path: FileDigest(**fields) for path, fields in sources.items()}
    return {}


def _compute_digest(path: str) -> str:
    with clear_errors(path, CorpusError):
        return digest_file(Path(path))


def is_on_disk(file: TextFile) -> bool:
    """Return whether another process finds the same file under this path; /dev/stdin belongs to each process."""
    return isinstance(file, Path) and file.is_file() and file.absolute().parts[1:2] not in (("dev",), ("proc",))
