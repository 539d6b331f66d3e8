"""Download of the paper's eight test sets into a cache, verified by checksum.

pooch, in the extra `evaluate`, downloads and stores the files. The environment variable SWIVEL_DATA selects another
folder than the user's cache.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from swivel.errors import EvaluationError, StorageError, missing_extra
from swivel.runtime.progress import SILENT, Progress
from swivel.storage import scratch_folder, write_file

if TYPE_CHECKING:
    from pooch import Pooch

HOST = "https://raw.githubusercontent.com"
FOLDER_VARIABLE = "SWIVEL_DATA"


@dataclass(frozen=True, slots=True)
class SetSource:
    """Where a test set is published, and the checksum of its file."""

    name: str
    path: str
    sha256: str
    repository: str = "zhezhaoa/ngram2vec"
    commit: str = "e57c623a5dfe5df4ea0be3f04ad52045aaa6360f"

    @property
    def file(self) -> str:
        """Name of the file."""
        return PurePosixPath(self.path).name

    def url(self, host: str = HOST) -> str:
        """Return the URL of the file."""
        return f"{host}/{self.repository}/{self.commit}/{self.path}"


# The test sets of Levy, Goldberg and Dagan (2015) in the order of the paper's table: checksum, file and our name.
_PUBLISHED = """
f1da938998863c94e53f72f984a5c6e215f0b46c323aae8f0f4930703a339107 similarity/ws353_similarity.txt ws353_similarity
66a7c88100624d0a391605ff61ce84e11d11ee620d51ec0298da49592838f8fa similarity/ws353_relatedness.txt ws353_relatedness
4596e169dd237228ca7701dde33585ca93263506ce7fca9de0f951aaab1aae36 similarity/bruni_men.txt men
a916fd82b98e68206873309a06fe0535424753388b3f7a8c04af6742331f6bbe similarity/radinsky_mturk.txt mturk
c07cd977f8439c02632351ec01263f2cb0509141efe24407f7dd9f3234b9708e similarity/luong_rare.txt rare_words
48a3b83c1db2af18fc16dc73bc1074cdc46c9a6bdce0fee8365cceab6e4b307e similarity/sim999.txt simlex999
3c74b4af2299804667b2ff2f76a5e2378c7dc42ba07df13050eba37ec3b2667e analogy/google.txt google_analogies
6e8d8a1d83165250631e5d74689837ab11bd00b7547a1d5e7000fa8bb4e259ef analogy/msr.txt msr_analogies
"""
_ROWS = [line.split() for line in _PUBLISHED.strip().splitlines()]
SOURCES = tuple(SetSource(name, f"testsets/{file}", sha256) for sha256, file, name in _ROWS)
PAPER_ORDER = tuple(source.name for source in SOURCES)
_OUR_NAMES = {Path(source.file).stem: source.name for source in SOURCES}

# The published files contain questions without sections. Each entry has the names of sections that alternate line by
# line, and their total number of lines.
_SECTIONS: dict[str, tuple[tuple[tuple[str, ...], int], ...]] = {
    "google_analogies": (
        (("capital-common-countries",), 506),
        (("capital-world",), 4524),
        (("currency",), 866),
        (("city-in-state",), 2467),
        (("family",), 506),
        (("gram1-adjective-to-adverb",), 992),
        (("gram2-opposite",), 812),
        (("gram3-comparative",), 1332),
        (("gram4-superlative",), 1122),
        (("gram5-present-participle",), 1056),
        (("gram6-nationality-adjective",), 1599),
        (("gram7-past-tense",), 1560),
        (("gram8-plural",), 1332),
        (("gram9-plural-verbs",), 870),
    ),
    "msr_analogies": (
        (("JJ_JJR", "JJR_JJ", "JJ_JJS", "JJS_JJ", "JJS_JJR", "JJR_JJS"), 3000),
        (("NN_NNS", "NNS_NN"), 1000),
        (("NN_NNPOS", "NNPOS_NN"), 1000),
        (("VB_VBD", "VBD_VB", "VB_VBZ", "VBZ_VB", "VBZ_VBD", "VBD_VBZ"), 3000),
    ),
}


def name_set(file: Path) -> str:
    """Return the name of the set in a file: Swivel's name for a published file, otherwise the file name without suffix.

    >>> name_set(Path("luong_rare.txt")), name_set(Path("own.tsv"))
    ('rare_words', 'own')
    """
    return _OUR_NAMES.get(file.stem, file.stem)


def published_sections(name: str, questions: int) -> list[str] | None:
    """Return the section of each question of a published set; None for other sets or another number of questions."""
    layout = _SECTIONS.get(name, ())
    labels = [names[line % len(names)] for names, lines in layout for line in range(lines)]
    return labels if layout and len(labels) == questions else None


def fetch_sets(
    sources: Sequence[SetSource] = SOURCES, *, host: str = HOST, progress: Progress = SILENT
) -> tuple[Path, ...]:
    """Return the files of the paper's sets, downloading the missing ones.

    Raises
    ------
    EvaluationError
        If a file is missing and cannot be downloaded, or has a wrong checksum.
    """
    try:
        import pooch
    except ImportError as error:
        raise missing_extra("the paper's test sets", "pooch", "evaluate") from error

    folder = Path(pooch.os_cache("swivel")) / "evaluation"
    if not folder.is_absolute() and FOLDER_VARIABLE not in os.environ:
        raise EvaluationError(
            f"no home folder for the paper's test sets: pass a folder of sets, or set {FOLDER_VARIABLE}"
        )

    cache = pooch.create(
        path=folder,
        base_url="",
        env=FOLDER_VARIABLE,
        registry={source.file: f"sha256:{source.sha256}" for source in sources},
        urls={source.file: source.url(host) for source in sources},
    )
    files = {source: Path(cache.abspath) / source.file for source in sources}

    missing = []
    for source, file in files.items():
        if not file.is_file() or pooch.file_hash(str(file)) != source.sha256:
            missing.append(source)
    if missing:
        progress.message(f"downloading {', '.join(source.file for source in missing)} into {cache.abspath}")

    with errors_only(pooch.get_logger()):
        for number, source in enumerate(missing):
            _download(cache, source, missing[number:])

    return tuple(files.values())


def _download(cache: Pooch, source: SetSource, missing: Sequence[SetSource]) -> None:
    import pooch

    folder = Path(cache.abspath)
    try:
        # pooch writes to a temporary file that stays if the process is killed, and that only its owner may read.
        with scratch_folder(folder) as scratch:
            file = pooch.retrieve(cache.get_url(source.file), cache.registry[source.file], source.file, scratch)
            write_file(folder / source.file, Path(file).read_bytes())
    except ValueError as error:  # pooch raises it for a wrong checksum
        raise EvaluationError(
            f"{source.file}, downloaded from {cache.get_url(source.file)}, has a wrong checksum and was not kept: "
            "try again, or pass a folder of test sets"
        ) from error
    except (OSError, StorageError) as error:
        raise EvaluationError(
            f"the paper's test sets are not in the cache and cannot be downloaded ({_reason(error)}): pass a folder of "
            f"test sets, or copy {', '.join(other.file for other in missing)} from "
            f"github.com/{source.repository}, commit {source.commit[:8]}, to {cache.abspath}"
        ) from error


def _reason(error: OSError | StorageError) -> str:
    """Return a short reason for a failed download; the message of the library is a whole paragraph."""
    if isinstance(error, StorageError):
        return str(error)
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP status {response.status_code}"
    return error.strerror or type(error).__name__


@contextmanager
def errors_only(logger: logging.Logger) -> Iterator[None]:
    """Suppress the messages and warnings of a library."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
