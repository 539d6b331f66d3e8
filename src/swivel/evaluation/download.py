"""The paper's eight sets: where they are, and how they get into the cache.

Receives nothing but the network, hands on files whose checksums are known, under their publisher's names. It reads none
of them. pooch, of the extra `evaluate`, fetches and keeps them; the variable SWIVEL_DATA names another folder than the
user's cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from swivel.errors import EvaluationError, missing_extra
from swivel.runtime.progress import SILENT, Progress

if TYPE_CHECKING:
    from pooch import Pooch

HOST = "https://raw.githubusercontent.com"
FOLDER_VARIABLE = "SWIVEL_DATA"


@dataclass(frozen=True, slots=True)
class SetSource:
    """Where a set is published, and the checksum of what is there."""

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
        """Return the file's address."""
        return f"{host}/{self.repository}/{self.commit}/{self.path}"


# The test sets of Levy, Goldberg and Dagan (2015), on which the paper reports, in the order of its table.
SOURCES = (
    SetSource(
        "ws353_similarity",
        "testsets/similarity/ws353_similarity.txt",
        "f1da938998863c94e53f72f984a5c6e215f0b46c323aae8f0f4930703a339107",
    ),
    SetSource(
        "ws353_relatedness",
        "testsets/similarity/ws353_relatedness.txt",
        "66a7c88100624d0a391605ff61ce84e11d11ee620d51ec0298da49592838f8fa",
    ),
    SetSource(
        "men",
        "testsets/similarity/bruni_men.txt",
        "4596e169dd237228ca7701dde33585ca93263506ce7fca9de0f951aaab1aae36",
    ),
    SetSource(
        "mturk",
        "testsets/similarity/radinsky_mturk.txt",
        "a916fd82b98e68206873309a06fe0535424753388b3f7a8c04af6742331f6bbe",
    ),
    SetSource(
        "rare_words",
        "testsets/similarity/luong_rare.txt",
        "c07cd977f8439c02632351ec01263f2cb0509141efe24407f7dd9f3234b9708e",
    ),
    SetSource(
        "simlex999",
        "testsets/similarity/sim999.txt",
        "48a3b83c1db2af18fc16dc73bc1074cdc46c9a6bdce0fee8365cceab6e4b307e",
    ),
    SetSource(
        "google_analogies",
        "testsets/analogy/google.txt",
        "3c74b4af2299804667b2ff2f76a5e2378c7dc42ba07df13050eba37ec3b2667e",
    ),
    SetSource(
        "msr_analogies",
        "testsets/analogy/msr.txt",
        "6e8d8a1d83165250631e5d74689837ab11bd00b7547a1d5e7000fa8bb4e259ef",
    ),
)
PAPER_ORDER = tuple(source.name for source in SOURCES)
_OUR_NAMES = {PurePosixPath(source.path).stem: source.name for source in SOURCES}

# The published files have questions only. Their sections follow one another: names that take turns line by line, and
# the number of lines.
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
    """Return the name of the set in a file: ours for the publisher's files, else the file's without its ending.

    >>> name_set(Path("luong_rare.txt")), name_set(Path("own.tsv"))
    ('rare_words', 'own')
    """
    return _OUR_NAMES.get(file.stem, file.stem)


def published_sections(name: str, questions: int) -> list[str] | None:
    """Return the section of each question of a published set; None for other sets, or one of another size."""
    layout = _SECTIONS.get(name, ())
    labels = [names[line % len(names)] for names, lines in layout for line in range(lines)]
    return labels if layout and len(labels) == questions else None


def fetch_sets(
    sources: Sequence[SetSource] = SOURCES, *, host: str = HOST, progress: Progress = SILENT
) -> tuple[Path, ...]:
    """Return the files of the paper's sets, fetched when first asked for.

    Raises EvaluationError where they are not here and cannot be fetched, or are not what they should be.
    """
    shelf = _open_cache(sources, host)
    missing = [source for source in sources if not _is_there(shelf, source)]
    if missing:
        progress.message(f"fetching {', '.join(source.file for source in missing)} into {shelf.abspath}")
    with _quiet_pooch():
        for place, source in enumerate(missing):
            _fetch(shelf, source, missing[place:])
    return tuple(Path(shelf.abspath) / source.file for source in sources)


def _open_cache(sources: Sequence[SetSource], host: str) -> Pooch:
    try:
        import pooch
    except ImportError as error:
        raise missing_extra("the paper's test sets", "pooch", "evaluate") from error
    return pooch.create(
        path=Path(pooch.os_cache("swivel")) / "evaluation",
        base_url="",
        env=FOLDER_VARIABLE,
        registry={source.file: f"sha256:{source.sha256}" for source in sources},
        urls={source.file: source.url(host) for source in sources},
    )


def _is_there(shelf: Pooch, source: SetSource) -> bool:
    import pooch

    file = Path(shelf.abspath) / source.file
    return file.is_file() and pooch.file_hash(str(file)) == source.sha256


def _fetch(shelf: Pooch, source: SetSource, missing: Sequence[SetSource]) -> None:
    try:
        shelf.fetch(source.file)
    except ValueError as error:  # pooch's word for another checksum
        raise EvaluationError(
            f"{source.file}, as fetched from {shelf.get_url(source.file)}, does not have the checksum it should have; "
            "nothing was kept: try again, or pass --data DIR with a folder of test sets"
        ) from error
    except OSError as error:
        raise EvaluationError(
            f"the paper's test sets are not here and cannot be fetched ({_reason(error)}): pass --data DIR with a "
            f"folder of test sets, or put {', '.join(each.file for each in missing)} of "
            f"github.com/{source.repository}, commit {source.commit[:8]}, into {shelf.abspath}"
        ) from error


def _reason(error: OSError) -> str:
    """Return in few words why nothing was fetched; the library's own are a paragraph."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP status {response.status_code}"
    return error.strerror or type(error).__name__


@contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Keep pooch from writing to the terminal, which is not ours to write to."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
