"""Download of the paper's eight test sets, and of sets of texts, into a cache, verified by checksum.

pooch, in the extra `evaluate`, downloads and stores the files. The environment variable SWIVEL_DATA selects another
folder than the user's cache.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath

from swivel.errors import EvaluationError, StorageError, missing_extra
from swivel.runtime.progress import SILENT, Progress
from swivel.storage.files import write_file
from swivel.storage.lock import scratch_folder

HOST = "https://raw.githubusercontent.com"
FOLDER_VARIABLE = "SWIVEL_DATA"


@dataclass(frozen=True, slots=True)
class SetSource:
    """Where a test set is published, and the checksum of its file."""

    name: str
    path: str
    sha256: str
    repository: str
    commit: str
    stored_as: str = ""  # name of the file in the cache; by default its published name

    @property
    def file(self) -> str:
        """Name of the file in the cache."""
        return self.stored_as or PurePosixPath(self.path).name

    def url(self, host: str = HOST) -> str:
        """Return the URL of the file."""
        return f"{host}/{self.repository}/{self.commit}/{self.path}"


def _read_data(name: str) -> list[list[str]]:
    """Return the fields of the lines of a file of the package that are no comments."""
    text = (files("swivel") / "data" / name).read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def _read_sources() -> Iterator[SetSource]:
    place = ("", "")
    for first, second, *rest in _read_data("test_sets.txt"):
        if rest:
            yield SetSource(first, second, rest[0], *place, stored_as="".join(rest[1:]))
        else:
            place = (first, second)


_ALL_SOURCES = tuple(_read_sources())
# The sets of Levy, Goldberg and Dagan (2015) in the order of the paper's table; pairs with scores of SemEval 2012 to
# 2016, and texts with labels.
SOURCES = tuple(source for source in _ALL_SOURCES if not source.stored_as)
TEXT_SOURCES = tuple(source for source in _ALL_SOURCES if source.stored_as)
PAPER_ORDER = tuple(source.name for source in SOURCES)
_OUR_NAMES = {Path(source.file).stem: source.name for source in SOURCES}


def name_set(file: Path) -> str:
    """Return the name of the set in a file: Swivel's name for a published file, otherwise the file name without suffix.

    >>> name_set(Path("luong_rare.txt")), name_set(Path("own.tsv"))
    ('rare_words', 'own')
    """
    return _OUR_NAMES.get(file.stem, file.stem)


def published_sections(name: str, questions: int) -> list[str] | None:
    """Return the section of each question of a published set; None for other sets or another number of questions."""
    layout = [(int(lines), names) for set_name, lines, *names in _read_data("sections.txt") if set_name == name]
    labels = [names[line % len(names)] for lines, names in layout for line in range(lines)]
    return labels if layout and len(labels) == questions else None


def fetch_sets(
    sources: Sequence[SetSource] = SOURCES,
    *,
    host: str = HOST,
    progress: Progress = SILENT,
    title: str = "the paper's test sets",
) -> tuple[Path, ...]:
    """Return the files of the paper's sets, or of other sets with a title for messages, downloading the missing ones.

    Raises
    ------
    EvaluationError
        If a file is missing and cannot be downloaded, or has a wrong checksum.
    """
    try:
        import pooch
    except ImportError as error:
        raise missing_extra(title, "pooch", "evaluate") from error

    chosen = os.environ.get(FOLDER_VARIABLE)
    folder = Path(chosen or Path(pooch.os_cache("swivel"), "evaluation")).expanduser()
    if not folder.is_absolute() and not chosen:
        raise EvaluationError(f"no home folder for {title}: pass a folder of sets, or set {FOLDER_VARIABLE}")

    folder = folder.absolute()
    stored = {source: folder / source.file for source in sources}
    missing = []
    for source, file in stored.items():
        if not file.is_file() or pooch.file_hash(str(file)) != source.sha256:
            missing.append(source)
    if missing:
        progress.message(f"downloading {', '.join(source.file for source in missing)} into {folder}")

    # Its messages and warnings would stand between ours.
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        for number, source in enumerate(missing):
            url = source.url(host)
            try:
                # pooch writes to a temporary file that stays if the process is killed and only its owner may read.
                with scratch_folder(folder) as scratch:
                    file = Path(pooch.retrieve(url, f"sha256:{source.sha256}", source.file, scratch))
                    write_file(folder / source.file, file.read_bytes())
            except ValueError as error:  # pooch raises it for a wrong checksum
                raise EvaluationError(
                    f"{source.file}, downloaded from {url}, has a wrong checksum and was not kept: "
                    "try again, or pass a folder of test sets"
                ) from error
            except (OSError, StorageError) as error:
                raise _explain_failure(error, missing[number:], folder, title) from error
    finally:
        logger.setLevel(level)
    return tuple(stored.values())


def _explain_failure(error: Exception, missing: Sequence[SetSource], folder: Path, title: str) -> EvaluationError:
    """Return an error that says why the first of the missing files cannot be downloaded, and how to get them."""
    first = missing[0]
    published = [
        f"{source.path} (as {source.stored_as})" if source.stored_as else source.file
        for source in missing
        if source.repository == first.repository
    ]
    return EvaluationError(
        f"{title} are not in the cache and cannot be downloaded ({_reason(error)}): pass a folder of "
        f"test sets, or copy {', '.join(published)} from "
        f"github.com/{first.repository}, commit {first.commit[:8]}, to {folder}"
    )


def _reason(error: Exception) -> str:
    """Return a short reason for a failed download; the message of the library is a whole paragraph."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP status {response.status_code}"
    if isinstance(error, StorageError):
        return str(error)
    return getattr(error, "strerror", None) or type(error).__name__
