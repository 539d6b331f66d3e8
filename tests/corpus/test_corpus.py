"""Rules of tokens and units, on examples."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest

from fuzz.tokenizer_reference import split_units
from swivel.config import CorpusConfig

WORDS = CorpusConfig()
SENTENCES = CorpusConfig(unit="sentence")
DOCUMENTS = CorpusConfig(unit="document")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Don’t stop", ["don't", "stop"]),
        ("state-of-the-art city's", ["state-of-the-art", "city's"]),
        ("well‐known non‑breaking", ["well-known", "non-breaking"]),
        ("'quoted' -dash- rock 'n' roll", ["quoted", "dash", "rock", "n", "roll"]),
        ("a--b a'-b x–y", ["a", "b", "a", "b", "x", "y"]),
        ("3.14 1,000 50% x_y", ["3", "14", "1", "000", "50", "x", "y"]),
        ("co\u00adoperate co\u00ad\noperate", ["cooperate", "co", "operate"]),
        ("e\u0301te\u0301 ❤\ufe0f", ["\u00e9t\u00e9"]),
        ("x\u0301y\u0323\u0301 हिन्दी ภาษา שָׁלוֹם", ["x\u0301\u1ef5\u0301", "हिन्दी", "ภาษา", "שָׁלוֹם"]),
        ("हिन्दी की", ["हिन्दी", "की"]),
        ("می\u200cخواهم \U0001f468\u200d\U0001f469", ["می\u200cخواهم"]),
        ("র\u200d\u09cdয", ["র\u200d\u09cdয"]),
        ("a\0b\u00a0c\u3000d", ["a", "b", "c", "d"]),
        ("İ ẞ ΣΑΣ", ["i\u0307", "ß", "σας"]),
        ("中文，日本", ["中文", "日本"]),
        ("", []),
    ],
)
def test_words_follow_the_rules(text: str, tokens: list[str]) -> None:
    assert [token for unit in split_units(text, WORDS) for token in unit] == tokens


def test_case_can_be_kept() -> None:
    assert split_units("The CAT", CorpusConfig(lowercase=False)) == [["The", "CAT"]]


def test_whitespace_tokens_keep_their_punctuation() -> None:
    config = CorpusConfig(tokenizer="whitespace")
    assert split_units("Hello, w\u00adorld!\u00a0x\0y\n--", config) == [["hello,", "w\u00adorld!", "x", "y"], ["--"]]


def test_the_tokenizers_treat_an_underscore_as_their_help_says() -> None:
    text = next(field.metadata["help"] for field in fields(CorpusConfig) if field.name == "tokenizer")
    assert re.search(
        "words: .*new_york is two words unless keep_underscores is set; whitespace: .*new_york is one;", text
    )
    assert split_units("new_york", WORDS) == [["new", "york"]]
    assert split_units("new_york", CorpusConfig(tokenizer="whitespace")) == [["new_york"]]
    kept = split_units("New_York _a_ b__c", CorpusConfig(keep_underscores=True))
    assert kept == [["new_york", "a", "b", "c"]]


@pytest.mark.parametrize(
    "end", ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
)
def test_a_line_ends_at_every_line_end(end: str) -> None:
    for config in (WORDS, SENTENCES, CorpusConfig(tokenizer="whitespace")):
        assert split_units(f"a b{end}c{end}{end}d", config) == [["a", "b"], ["c"], ["d"]]


def test_a_document_ends_at_a_blank_line() -> None:
    assert split_units("a\nb\n \t\u00a0\0\nc\r\nd\r\n\r\ne\n", DOCUMENTS) == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four… Five", 5),
        ('He said "go." She went.', 2),
        ("(It rained.) Then it stopped.", 2),
        ("Er ging.“ Dann kam sie.", 2),
        ("Mr. Smith met J. R. Tolkien, etc. and left.", 1),
        ("It cost 3.14 at example.com today.", 1),
        ("approx. five and so on. but lower case continues", 1),
        ("Wait... What", 2),
        ("In 1999. The end", 2),
        ("這是。那是！對嗎？好", 4),
        ("First line\nsecond line", 2),
        ("No stop. 5 digits. “Quote", 3),
    ],
)
def test_sentences_end_according_to_the_rules(text: str, sentences: int) -> None:
    assert len(split_units(text, SENTENCES)) == sentences


def test_with_whitespace_tokens_a_sentence_ends_after_a_token_that_ends_in_a_stop() -> None:
    config = CorpusConfig(tokenizer="whitespace", unit="sentence")
    assert split_units("it ends . here too! and 。 on", config) == [
        ["it", "ends", "."],
        ["here", "too!"],
        ["and", "。"],
        ["on"],
    ]


def test_importing_the_package_does_not_import_numba() -> None:
    code = "import sys, swivel.corpus; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
