"""The paper's eight sets are downloaded, cached, verified and read in their published form."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import numpy as np
import pytest

from message_recorder import MessageRecorder
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import EvaluationError, MissingExtra
from swivel.evaluation import AnalogySet, SimilaritySet, evaluate, read_set
from swivel.evaluation.datasets import PAPER_ORDER, SOURCES, UNTUNED_SOURCES, SetSource, fetch_sets, find_sets
from swivel.vectors import Vectors, VectorTable

REAL_SETS = Path(__file__).resolve().parents[3] / "shared" / "data" / "eval"
CLOSED = "http://127.0.0.1:9"
# Column separators and line ends of the published files.
SHAPES = {source.name: ("\t", "\r\n") for source in SOURCES}
SHAPES |= {"men": (" ", "\n"), "simlex999": (" ", "\r\n")}
SHAPES |= dict.fromkeys(["ws353_similarity", "ws353_relatedness"], ("\t", "\n"))


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without logging; records the requested paths."""

    requested: list[str] = []

    def log_message(self, format: str, *arguments: object) -> None:
        self.requested.append(self.path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of a server and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    QuietHandler.requested = []

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as http:
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", folder
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIVEL_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def publish(folder: Path, name: str, path: str, text: str) -> SetSource:
    source = SetSource(name, path, hashlib.sha256(text.encode()).hexdigest(), "someone/sets", "abc123")
    file = folder / "someone/sets/abc123" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return source


def test_sets_are_downloaded_once_and_then_read_from_the_cache(server: tuple[str, Path], cache: Path) -> None:
    host, folder = server
    sources = [
        publish(folder, "men", "sim/bruni_men.txt", "sun moon 9\nsun pear 1\n"),
        publish(folder, "google_analogies", "ana/google.txt", "a\tb\tc\td\r\n"),
    ]
    recorder = MessageRecorder()
    files = fetch_sets(sources, host=host, progress=recorder)

    assert files == (cache / "bruni_men.txt", cache / "google.txt")
    assert recorder.lines == [f"downloading men, google_analogies into {cache}"]
    assert [each.name for each in find_sets(files)[0]] == ["men", "google_analogies"]
    assert fetch_sets(sources, host=CLOSED, progress=recorder) == files
    assert (len(recorder.lines), len(QuietHandler.requested)) == (1, 2)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
def test_others_may_read_the_cache_if_the_umask_allows_it(server: tuple[str, Path], cache: Path) -> None:
    host, folder = server
    source = publish(folder, "men", "bruni_men.txt", "sun moon 9\n")
    before = os.umask(0o022)
    try:
        fetch_sets([source], host=host)
    finally:
        os.umask(before)
    assert [(file.name, file.stat().st_mode & 0o777) for file in cache.iterdir()] == [("bruni_men.txt", 0o644)]


def test_a_damaged_file_in_the_cache_is_downloaded_again(server: tuple[str, Path], cache: Path) -> None:
    host, folder = server
    source = publish(folder, "men", "bruni_men.txt", "sun moon 9\n")
    cache.mkdir()
    (cache / "bruni_men.txt").write_text("sun mo")
    assert fetch_sets([source], host=host)[0].read_text() == "sun moon 9\n"


def test_a_file_with_a_wrong_checksum_raises_an_error_and_is_not_kept(server: tuple[str, Path], cache: Path) -> None:
    host, folder = server
    source = publish(folder, "men", "bruni_men.txt", "sun moon 9\n")
    (folder / "someone/sets/abc123/bruni_men.txt").write_text("sun moon 8\n")
    with pytest.raises(EvaluationError, match=r"bruni_men\.txt, downloaded from http.*, has a wrong checksum"):
        fetch_sets([source], host=host)
    assert not list(cache.iterdir())


def test_the_error_without_a_network_says_how_to_get_the_sets(cache: Path) -> None:
    with pytest.raises(EvaluationError) as caught:
        fetch_sets(host=CLOSED)

    text = str(caught.value)

    assert "\n" not in text
    assert text.startswith(
        "the paper's test sets are not in the cache and cannot be downloaded (ConnectionError): pass a folder"
    )
    assert "copy ws353_similarity.txt, ws353_relatedness.txt, bruni_men.txt, " in text
    assert text.endswith(f"google.txt, msr.txt from github.com/zhezhaoa/ngram2vec, commit e57c623a, to {cache}")


def test_only_missing_files_are_requested(server: tuple[str, Path], cache: Path) -> None:
    host, folder = server
    sources = [publish(folder, name, f"{name}.txt", "a b 1\n") for name in ("men", "mturk")]
    fetch_sets(sources[:1], host=host)
    (folder / "someone/sets/abc123/mturk.txt").unlink()
    with pytest.raises(EvaluationError, match=r"downloaded \(HTTP status 404\): .* or copy mturk\.txt from github"):
        fetch_sets(sources, host=host)


def test_a_cache_that_cannot_be_written_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SWIVEL_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(EvaluationError, match=r"cannot be downloaded \(.*\): pass a folder"):
        fetch_sets(host=CLOSED)


def test_without_pooch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtra, match=r"the paper's test sets need pooch: pip install .*\[evaluate\]"):
        fetch_sets()


def test_the_table_of_sources_is_complete() -> None:
    assert tuple(source.name for source in SOURCES) == PAPER_ORDER
    assert all(len(source.sha256) == 64 and len(source.commit) == 40 for source in SOURCES)
    google = next(source for source in SOURCES if source.name == "google_analogies")
    commit = "e57c623a5dfe5df4ea0be3f04ad52045aaa6360f"
    assert google.url() == f"https://raw.githubusercontent.com/zhezhaoa/ngram2vec/{commit}/testsets/analogy/google.txt"


def test_the_untuned_suite_has_two_sets_of_pairs_and_the_forty_sections_of_bats() -> None:
    assert [source.name for source in UNTUNED_SOURCES] == ["simverb3500", "mturk771", *["bats"] * 40]
    assert all(len(source.sha256) == 64 and len(source.commit) == 40 for source in UNTUNED_SOURCES)
    files = [source.file for source in UNTUNED_SOURCES]
    assert len(set(files)) == 42
    assert files[2] == "I01 [noun - plural_reg].txt"
    assert UNTUNED_SOURCES[2].url().endswith("/bats/1_inflectional_morphology/I01%20%5Bnoun%20-%20plural_reg%5D.txt")


def test_files_of_the_untuned_suite_get_our_names_and_bats_is_one_set(
    server: tuple[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, folder = server
    capitals = "norway\toslo\nperu\tlima\nchad\tn'djamena"
    words = "ant\tblack/brown\r\nblood\tred"
    published = {
        "sim/EN-SimVerb-3500.txt": "take\tremove\t6.81\nwalk\ttrail\t4.81",
        "sim/EN-MTurk-771.txt": "access\tgateway\t3.79\r\n",
        "bats/E01%20%5Bcountry%20-%20capital%5D.txt": capitals,
        "bats/E09%20%5Bthings%20-%20color%5D.txt": words,
    }
    sources = [publish(folder, path, unquote(path), text) for path, text in published.items()]
    sources = [
        replace(each, path=path, stored_as=Path(each.path).name) for each, path in zip(sources, published, strict=True)
    ]

    sets = {each.name: each for each in find_sets(fetch_sets(sources, host=host))[0]}

    assert {name: each.size for name, each in sets.items()} == {"simverb3500": 2, "mturk771": 1, "bats": 8}
    bats = sets["bats"]
    assert isinstance(bats, AnalogySet)
    assert Counter(bats.sections) == {"E01 [country - capital]": 6, "E09 [things - color]": 2}
    assert bats.questions[0] == ("norway", "oslo", "peru", "lima")
    assert list(zip(bats.questions[6:], bats.right_answers[6:], strict=True)) == [
        (("ant", "black", "blood", "red"), ("red",)),
        (("blood", "red", "ant", "black"), ("black", "brown")),
    ]


@pytest.mark.parametrize("separator", ["\t", " "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_published_files_get_our_names_with_any_separators_and_line_ends(
    tmp_path: Path, separator: str, end: str
) -> None:
    pair, question = [separator.join(words) + end for words in (["Sun", "moon", "9.5"], ["a", "b", "c", "d"])]

    for source in SOURCES:
        (tmp_path / source.file).write_bytes((question if "analogies" in source.name else pair).encode())

    sets = find_sets(tmp_path)[0]

    assert [each.name for each in sets] == list(PAPER_ORDER)
    for each in sets:
        if isinstance(each, SimilaritySet):
            assert (each.pairs, each.scores) == ((("sun", "moon"),), (9.5,))
        else:
            assert isinstance(each, AnalogySet) and each.questions == (("a", "b", "c", "d"),)


def test_published_analogies_without_sections_get_the_published_sections(tmp_path: Path) -> None:
    google = tmp_path / "google.txt"
    msr = tmp_path / "msr.txt"
    google.write_text("a b c d\n" * 19_544)
    msr.write_text("".join(f"a b c d{n}\n" for n in range(8_000)))
    questions = read_set(google)

    assert isinstance(questions, AnalogySet)

    sizes = Counter(questions.sections)

    assert (len(sizes), sizes["capital-world"], sizes["gram9-plural-verbs"]) == (14, 4_524, 870)

    questions = read_set(msr)

    assert isinstance(questions, AnalogySet)
    assert list(Counter(questions.sections).values()) == [500] * 16
    assert questions.sections[1] == questions.sections[7] == "JJR_JJ"
    assert [words[3] for words in questions.questions] == [f"d{n}" for n in range(8_000)]

    msr.write_text("a b c d\n" * 7)
    questions = read_set(msr)

    assert isinstance(questions, AnalogySet) and set(questions.sections) == {"msr_analogies"}


def as_published(name: str) -> bytes:
    """Return a local test set in its published form: without sections, with the published separators."""
    separator, end = SHAPES[name]
    rows = [line.split("\t")[:4] for line in (REAL_SETS / f"{name}.tsv").read_text().splitlines()]
    return "".join(separator.join(row) + end for row in rows).encode()


@pytest.mark.skipif(not REAL_SETS.is_dir(), reason="the paper's eight sets are not available")
def test_the_downloaded_sets_equal_those_of_a_folder(server: tuple[str, Path]) -> None:
    host, folder = server

    for source in SOURCES:
        file = folder / source.repository / source.commit / source.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(as_published(source.name))

    sets = find_sets(fetch_sets(host=host))[0]

    assert sets == find_sets(REAL_SETS)[0]
    assert [each.name for each in sets] == list(PAPER_ORDER)
    assert [each.size for each in sets] == [203, 252, 3000, 287, 2034, 999, 19544, 8000]

    sections = {each.name: len(set(each.sections)) for each in sets if isinstance(each, AnalogySet)}

    assert sections == {"google_analogies": 14, "msr_analogies": 16}

    vectors = Vectors(
        VectorTable(Vocabulary(["sun", "moon", "sunlight", "car", "automobile"]), np.eye(5, dtype=np.float32))
    )
    report = evaluate(vectors, draws=0)  # The sets are in the cache now.

    assert (report["men"].known > 0, report["msr_analogies"].figure) == (True, None)
