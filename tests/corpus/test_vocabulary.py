"""Selection, order, lookup and storage of vocabularies."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import swivel
from swivel.config import VocabularyConfig
from swivel.corpus.vocabulary import Vocabulary, choose_tokens, escape, from_list, read_tokens, unescape
from swivel.errors import ConfigError, MemoryBudgetError, UnknownToken, VocabularyError

ALL = VocabularyConfig(min_count=1, max_size=None)


def test_tokens_are_in_order_of_decreasing_count_and_ties_of_code_points() -> None:
    counts = {"b": 2, "é": 2, "a": 2, "B": 2, "rare": 1, "the": 9}
    vocabulary = choose_tokens(counts, ALL)
    assert vocabulary.tokens == ("the", "B", "a", "b", "é", "rare")
    assert vocabulary.counts.tolist() == [9, 2, 2, 2, 2, 1]
    assert choose_tokens(dict(reversed(counts.items())), ALL) == vocabulary


def test_min_count_and_max_size_limit_the_vocabulary() -> None:
    counts = {"a": 3, "b": 2, "c": 1}
    assert choose_tokens(counts, VocabularyConfig(min_count=2)).tokens == ("a", "b")
    assert choose_tokens(counts, VocabularyConfig(min_count=1, max_size=1)).tokens == ("a",)

    assert choose_tokens(counts, VocabularyConfig(min_count=1, max_size=0)) == choose_tokens(counts, ALL)
    assert len(choose_tokens(counts, ALL)) == 3


def test_words_only_leaves_out_numbers_and_parts_of_addresses() -> None:
    lines = ["see http://www.books.com/20books 1984 and and km² 1984 1984"] * 2
    matrix = swivel.count(lines, min_count=1, max_size=3, words_only=True)
    assert matrix.rows.tokens == ("and", "books", "see")
    assert swivel.count(lines, min_count=1, max_size=3).rows.tokens == ("1984", "and", "20books")

    with pytest.raises(VocabularyError, match="no token occurs 5 times or more"):
        choose_tokens({"1984": 7}, VocabularyConfig(words_only=True))


def test_an_empty_vocabulary_is_an_error_with_the_reason() -> None:
    with pytest.raises(
        VocabularyError, match=r"no token occurs 5 times or more \(the most frequent: 3\); lower min_count"
    ):
        choose_tokens({"a": 3}, VocabularyConfig(min_count=5))
    with pytest.raises(VocabularyError, match="the text has no tokens"):
        choose_tokens({}, ALL)


@given(st.dictionaries(st.text(max_size=8), st.integers(0, 2**62), max_size=20))
def test_lines_are_read_back(counts: dict[str, int]) -> None:
    vocabulary = Vocabulary(counts, counts.values())
    lines = list(vocabulary.to_lines())
    assert not any(char in line for line in lines for char in "\r\n")
    assert Vocabulary.from_lines(lines) == vocabulary


@given(st.text(st.sampled_from("\\\t\n\rtnr a")))
def test_unescape_inverts_escape(token: str) -> None:
    assert unescape(escape(token)) == token
    assert not set(escape(token)) & set("\t\r\n")


@pytest.mark.parametrize("line", ["", "word", "word\t", "word\tmany", "word\t-1", "word 3"])
def test_a_malformed_line_is_an_error_with_its_number(line: str) -> None:
    with pytest.raises(VocabularyError, match="vocabulary, line 2: expected a token, a tab and a count"):
        Vocabulary.from_lines(["a\t1", line])


def test_a_list_of_tokens_is_ordered_by_count_and_keeps_unseen_tokens() -> None:
    vocabulary = from_list(["x", "unseen", "y", "z"], {"x": 1, "y": 5, "z": 1, "other": 9})
    assert vocabulary.tokens == ("y", "x", "z", "unseen")
    assert vocabulary.counts.tolist() == [5, 1, 1, 0]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "the list of tokens is empty"),
        (["a", ""], "list of tokens, line 2: the token is empty"),
        (["a", "b", "a"], "list of tokens, line 3: 'a' is repeated"),
    ],
)
def test_a_malformed_list_is_refused(tokens: list[str], message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        from_list(tokens, {})


def test_ids_are_positions() -> None:
    vocabulary = Vocabulary(["the", "of"], [7, 3])
    assert [vocabulary.id(token) for token in vocabulary] == [0, 1]
    assert ("of" in vocabulary, "and" in vocabulary, vocabulary[1], len(vocabulary)) == (True, False, "of", 2)
    assert hash(vocabulary) == hash(Vocabulary(["the", "of"], [7, 3]))
    assert vocabulary != Vocabulary(["the", "of"], [7, 4])
    assert vocabulary != ("the", "of")
    assert repr(vocabulary) == "<Vocabulary of 2 tokens>"


def test_an_unknown_token_is_an_error_with_similar_tokens() -> None:
    vocabulary = Vocabulary(["letter", "letters", "banana"])
    with pytest.raises(UnknownToken, match=r"'letteres' is not in the vocabulary of 3 tokens; did you mean 'let"):
        vocabulary.id("letteres")
    with pytest.raises(UnknownToken, match=r"'zzz' is not in the vocabulary of 3 tokens$"):
        vocabulary.id("zzz")
    assert Vocabulary(["cat", "NASA", "was", "war"]).close_spellings("War") == ["war"]
    assert vocabulary.close_spellings("letteres") == ["letters", "letter"]


def test_a_vocabulary_is_immutable_and_copies_the_counts() -> None:
    counts = np.array([2, 1])
    vocabulary = Vocabulary(["a", "b"], counts)
    counts[0] = 9

    assert vocabulary.counts.tolist() == [2, 1]
    with pytest.raises(ValueError, match="read-only"):
        vocabulary.counts[0] = 1
    assert Vocabulary("ab", (count for count in (2, 1))) == vocabulary


def test_mismatched_counts_and_repeated_tokens_are_errors() -> None:
    with pytest.raises(VocabularyError, match="2 tokens but 1 counts"):
        Vocabulary(["a", "b"], [1])
    with pytest.raises(VocabularyError, match="'a' is in the vocabulary twice"):
        _ = Vocabulary(["a", "b", "a"]).ids


def test_a_long_text_is_parsed_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Vocabulary(
        [f"w{number}" for number in range(50)] + ["tab\t", "line\n", "back\\slash", ""], range(54, 0, -1)
    )
    text = "".join(line + "\n" for line in words.to_lines())
    monkeypatch.setattr("swivel.corpus.vocabulary._LONG_TEXT", 10)
    stored = Vocabulary.from_text(text)

    assert len(stored) == 54
    assert "tokens" not in vars(stored)
    assert stored == words
    assert (stored.id("tab\t"), stored[52], "w3" in stored, stored.counts[0]) == (50, "back\\slash", True, 54)
    assert list(stored) == list(words)


@pytest.mark.parametrize("text", ["no count\n", "a\t1\nb\n", "a\tx\n"])
def test_a_malformed_text_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.corpus.vocabulary._LONG_TEXT", 1)
    with pytest.raises(VocabularyError, match=r"line \d: expected a token, a tab and a count"):
        _ = Vocabulary.from_text(text).tokens


def test_a_list_of_tokens_may_have_any_line_ends_and_be_a_pipe(tmp_path: Path) -> None:
    for end in ("\n", "\r", "\r\n"):
        (tmp_path / "words").write_text(f"\ufefftea\t3{end}milk\\t{end}{end}", newline="")
        assert read_tokens(tmp_path / "words") == ("tea", "milk\t")

    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("tea\nmilk\n",))
    writer.start()
    assert read_tokens(tmp_path / "pipe") == ("tea", "milk")
    writer.join()


def test_a_list_of_tokens_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="a folder, not a list of tokens"):
        read_tokens(tmp_path)
    with pytest.raises(ConfigError, match="/dev/zero: a device, not a list of tokens"):
        read_tokens(Path("/dev/zero"))

    monkeypatch.setattr("swivel.runtime.resources.free_memory", lambda: 1 << 20)
    monkeypatch.setattr("swivel.corpus.vocabulary._LINES_PER_CHECK", 10_000)
    (tmp_path / "words").write_text("x\n" * 30_000)
    with pytest.raises(MemoryBudgetError, match=r"words: a list of 10,000 tokens or more needs about 1.9 MiB"):
        read_tokens(tmp_path / "words")
