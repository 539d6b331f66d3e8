"""Phrases: the same as gensim's, lists of one's own, and phrases in counting, extending and encoding."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import swivel
from fuzz.tokenizer_reference import split_units
from message_recorder import MessageRecorder
from swivel.cli.main import cli
from swivel.config import CorpusConfig
from swivel.corpus import joined_corpus
from swivel.corpus.encoded_corpus import encode_corpus
from swivel.corpus.text_numbers import TextNumbering
from swivel.corpus.vocabulary import BREAK, Vocabulary
from swivel.errors import ConfigError, FolderExists, SwivelError
from swivel.runtime.options import RunOptions

CITY = ["in new york city", "new york city is big", "a new car", "to york"] * 6


def units_of(ids: np.ndarray, tokens: Any) -> list[list[str]]:
    parts = np.split(ids, np.flatnonzero(ids == BREAK))
    return [[tokens[number] for number in part if number != BREAK] for part in parts]


def join(texts: Iterable[str], scratch: Path, threads: int = 2, **settings: Any) -> joined_corpus.JoinedCorpus:
    config = CorpusConfig(**settings)
    encoded = encode_corpus(iter(texts), config, scratch=scratch, threads=threads)
    listed = joined_corpus.read_phrases(config)
    return joined_corpus.join_corpus(encoded, config, scratch=scratch, threads=threads, phrases=listed)


@pytest.mark.parametrize(("score", "scoring", "threshold"), [("word2vec", "default", 0.02), ("npmi", "npmi", 0.02)])
@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("seed", range(1, 4))
def test_phrases_are_those_of_gensim(
    score: str, scoring: Any, threshold: float, passes: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gensim.models.phrases import Phrases

    monkeypatch.setattr(joined_corpus, "_FIRST_SLOTS", 2)
    monkeypatch.setattr(joined_corpus, "_CHUNK_IDS", 64)
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(8 + seed))
    texts = [
        " ".join(f"w{word}" for word in rng.choice(len(shares), rng.integers(1, 15), p=shares)) for _ in range(300)
    ]

    expected = [unit for text in texts for unit in split_units(text, CorpusConfig())]
    for _ in range(passes):
        model = Phrases(expected, min_count=3, threshold=threshold, scoring=scoring)
        expected = [model[unit] for unit in expected]

    settings: dict[str, Any] = {"phrase_threshold": threshold, "phrase_min_count": 3, "phrase_passes": passes}
    joined = join(texts, tmp_path, phrases=score, **settings)
    assert units_of(joined.ids, joined.tokens) == expected
    assert any("_" in token for unit in expected for token in unit)
    assert joined.token_count == sum(map(len, expected))

    vocabulary = Vocabulary(sorted({token for unit in expected for token in unit})[::2])
    ids = joined.write_ids(vocabulary, keep_gaps=False, path=tmp_path / "out.npy", threads=2)
    kept = [[token for token in unit if token in vocabulary] for unit in expected]
    assert units_of(np.array(ids), vocabulary) == [unit for unit in kept if unit]


@pytest.mark.parametrize(("threshold", "is_joined"), [(0.875, False), (0.874, True)])
def test_a_pair_is_a_phrase_if_its_score_is_higher_than_the_threshold(
    threshold: float, is_joined: bool, tmp_path: Path
) -> None:
    from gensim.models.phrases import Phrases

    texts = ["a b"] * 3 + ["a c", "d b"]
    # (3 - 1) * 7 / (4 * 4) = 0.875: "a b" occurs three times, "a" and "b" four times; four words and three pairs.
    joined = join(texts, tmp_path, phrases="word2vec", phrase_threshold=threshold, phrase_min_count=1)
    expected = [["a_b"] if is_joined else ["a", "b"]] * 3 + [["a", "c"], ["d", "b"]]
    assert units_of(joined.ids, joined.tokens) == expected

    units = [text.split() for text in texts]
    model = Phrases(units, min_count=1, threshold=threshold)
    assert [model[unit] for unit in units] == expected


def test_found_phrases_have_counts_and_scores() -> None:
    found = swivel.find_phrases(CITY, phrase_threshold=0.5, phrase_min_count=2)
    assert {"new_york", "city_is"} <= {phrase.token for phrase in found}
    words = [word for text in CITY for word in text.split()]
    pairs = [pair for text in CITY for pair in zip(text.split(), text.split()[1:], strict=False)]
    for phrase in found:
        a, b = phrase.token.split("_")
        types = len(set(words)) + len(set(pairs))
        score = (pairs.count((a, b)) - 2) / words.count(a) / words.count(b) * types
        assert phrase.score == pytest.approx(score)
    with pytest.raises(ConfigError, match="phrases must be one of word2vec, npmi, got 'none'"):
        swivel.find_phrases(CITY, phrases="none")


def test_phrases_of_a_list_are_joined_the_longest_first(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("new york\nnew_york_city\nunheard of\nbig\n")
    joined = join(CITY[:4], tmp_path, phrases=str(tmp_path / "list.txt"))
    expected = [["in", "new_york_city"], ["new_york_city", "is", "big"], ["a", "new", "car"], ["to", "york"]]
    assert units_of(joined.ids, joined.tokens) == expected
    with pytest.raises(ConfigError, match="phrases must be none, word2vec, npmi or a file with one phrase per line"):
        join(CITY, tmp_path, phrases=str(tmp_path / "missing.txt"))


@pytest.mark.parametrize("lowercase", [True, False])
def test_phrases_of_a_list_are_lower_cased_with_the_text(lowercase: bool, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("New York\nUnheard Of\nbig city\n")
    texts = ["in New York", "a new york"]
    settings: dict[str, Any] = {"phrases": str(tmp_path / "list.txt"), "lowercase": lowercase, "min_count": 1}
    recorder = MessageRecorder()
    matrix = swivel.count(texts, progress=recorder, **settings)
    joined = [token for token in matrix.rows if "_" in token]
    assert joined == ["new_york" if lowercase else "New_York"]
    absent = "unheard_of" if lowercase else "Unheard_Of"
    assert f"joined nowhere: 2 listed phrases, such as {absent!r}" in recorder.lines


def test_the_path_of_a_list_is_not_part_of_the_result(tmp_path: Path) -> None:
    text, one, two = (tmp_path / name for name in ("city.txt", "one.txt", "two.txt"))
    text.write_text("\n".join(CITY))
    one.write_text("new york\n")
    two.write_text("new york\n")
    made = swivel.count(text, tmp_path / "matrix", phrases=str(one), min_count=1)
    assert made.config["corpus"]["phrases"] == "file"

    recorder = MessageRecorder()
    swivel.count(text, tmp_path / "matrix", phrases=str(two), min_count=1, progress=recorder)
    assert any("finished already, nothing to do" in line for line in recorder.lines)
    two.write_text("york city\n")
    with pytest.raises(FolderExists):
        swivel.count(text, tmp_path / "matrix", phrases=str(two), min_count=1)


def test_no_phrase_crosses_the_end_of_a_unit(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("b a\n")
    joined = join(["a b\na b", "a"], tmp_path, phrases=str(tmp_path / "list.txt"))
    assert units_of(joined.ids, joined.tokens) == [["a", "b"], ["a", "b"], ["a"]]


def test_texts_are_numbered_with_the_phrases_of_the_vocabulary() -> None:
    tokens = ["new_york", "in", "new_york_city", "new", "x"]
    numbering = TextNumbering(tokens, CorpusConfig(phrases="word2vec"))
    texts = ["In New York City, in new york", "", "new\nyork york", "new new york x"]
    numbers, ends, unknown = numbering.number(texts)
    names = [*tokens, *unknown]
    found = [[names[number] for number in part] for part in np.split(numbers, ends[:-1])]
    assert found == [["in", "new_york_city", "in", "new_york"], [], ["new", "york", "york"], ["new", "new_york", "x"]]
    assert TextNumbering(tokens, CorpusConfig()).number(["new york"]).unknown == ["york"]


def test_phrases_are_counted_extended_and_encoded(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"min_count": 2, "dim": 4, "device": "cpu"}
    found: dict[str, Any] = {"phrases": "word2vec", "phrase_threshold": 1.0, "phrase_min_count": 2}
    trained = swivel.run(CITY, tmp_path / "run", **found, **settings)
    joined = [token for token in trained.vocabulary if "_" in token]
    assert joined
    first, second = joined[0].split("_")
    text = f"{first} {second}"
    assert np.allclose(trained.encode([text], components=0, smoothing=np.inf)[0], trained[joined[0]], atol=1e-5)

    extended = swivel.extend(trained, [f"zzz {text}", f"{text} zzz"] * 5)
    assert "zzz" in extended
    assert extended.columns is not None
    # The phrase is the neighbor of the new word, and not its two words.
    assert extended.row_sums is not None and extended.row_sums[-1] > 0

    (tmp_path / "own.txt").write_text("new york\n")
    own = swivel.count(CITY, tmp_path / "own", phrases=str(tmp_path / "own.txt"), min_count=2)
    assert "new_york" in own.rows
    (tmp_path / "own.txt").write_text("york city\n")
    with pytest.raises(FolderExists):
        swivel.count(CITY, tmp_path / "own", phrases=str(tmp_path / "own.txt"), min_count=2)
    with pytest.raises(ConfigError, match="phrases='npmi': phrases cannot be found on a cluster, only those of a list"):
        swivel.count(CITY, phrases="npmi", options=RunOptions(ray="local"))


def test_the_command_shows_phrases_and_writes_a_list(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n".join(CITY))
    command = ["phrases", str(tmp_path / "t.txt"), "--phrase-threshold", "1", "--phrase-min-count", "2"]
    expected = swivel.find_phrases(CITY, phrase_threshold=1, phrase_min_count=2)

    text = CliRunner().invoke(cli, [*command, "-o", str(tmp_path / "out.txt")], catch_exceptions=False).stdout
    assert text.startswith(f"phrase (of {len(expected)})")
    assert (tmp_path / "out.txt").read_text().splitlines() == [phrase.token for phrase in expected]
    assert isinstance(CliRunner().invoke(cli, [*command, "-o", str(tmp_path / "out.txt")]).exception, FolderExists)
    data = json.loads(CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False).stdout)
    assert [row["token"] for row in data] == [phrase.token for phrase in expected]


def test_the_command_reads_the_folder_it_runs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("\n".join(CITY))
    Path("empty.txt").write_text("")
    command = ["phrases", "empty.txt", ".", "--phrase-threshold", "0.5", "--phrase-min-count", "2", "--json"]
    data = json.loads(CliRunner().invoke(cli, command, catch_exceptions=False).stdout)
    assert "new_york" in {row["token"] for row in data}


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["-n", "-1"], "count must be a positive integer, got -1"), (["-o", "gone/list.txt"], "gone: no such folder")],
)
def test_wrong_flags_of_the_command_are_found_before_the_text_is_read(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_bytes(b"\xff")  # not UTF-8: reading it is an error
    with pytest.raises(SwivelError, match=message):
        CliRunner().invoke(cli, ["phrases", "t.txt", *flags], catch_exceptions=False)
