"""The tokenizers in plain Python: the reference that the compiled tokenizer is tested against.

`split_units` splits a text into units (which no window crosses), each a list of tokens. It is written for clarity, not
speed.

``words``: a word starts with a letter or number, followed by letters, numbers and marks. A single apostrophe, hyphen or
zero-width joiner between two of these is part of the word. Curly apostrophes become straight, U+2010 and U+2011 become
``-``, and soft hyphens are removed. All other characters separate words, also ``_`` unless `keep_underscores` is set;
then it is a joiner.

``whitespace``: tokens are separated by white space (as in `str.split`) and NUL.

The text is in the normal form that is configured, NFC by default. Lower case is `str.lower` of each token, with final
sigma; without normalization, of each code point separately. In Turkish, that of I is ı and that of İ is i. A token of
more than 65,536 bytes of UTF-8 is split into tokens of at most that size.

A ``line`` ends where `str.splitlines` splits. A ``document`` ends at a blank line. A ``sentence`` ends with its line,
at 。！？, and at . ! ? … if optional closing quotes or brackets, white space, and a character that is not a lower-case
letter follow, unless the stop is a full stop after a single letter or one of `ABBREVIATIONS`. With the ``whitespace``
tokenizer, a sentence ends after a token that ends in one of these seven stops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import category, normalize

from swivel.config import CorpusConfig
from swivel.corpus import character_classes as c

_LINE_END = re.compile(f"\r\n|[{c.LINE_ENDS}]")
_NORMAL = str.maketrans({"\u2019": "'", "\u2010": "-", "\u2011": "-"})

# One letter per kind of character, so that `re` can match patterns of kinds.
_CODES = {c.LETTER: "L", c.LOWER: "l", c.NUMBER: "N", c.MARK: "M", c.JOINER: "j", c.APOSTROPHE: "'", c.HYPHEN: "-"}
_CODES |= {c.OTHER: "o", c.STOP: "!", c.WIDE_STOP: "W", c.CLOSER: ")", c.SPACE: " "}
_WORD = re.compile("[LlN][LlNM]*(?:[j'-][LlNM]+)*")
_SENTENCE_END = re.compile("(?P<stop>!)[)']* +(?=[^ l])|W")


def split_units(text: str, config: CorpusConfig) -> list[list[str]]:
    """Return the units of a text as lists of tokens, without empty units.

    >>> split_units("Don’t stop -- it's state-of-the-art.", CorpusConfig())
    [["don't", 'stop', "it's", 'state-of-the-art']]
    """
    if config.normalization != "none":
        text = normalize(config.normalization, text)  # type: ignore[arg-type]
    if config.tokenizer != "whitespace":
        text = text.replace("\u00ad", "")
    text = text.replace("\0", " ")
    lines = _LINE_END.split(text)

    units: list[list[str]] = []
    if config.unit == "document":
        for document in _documents(lines):
            units.append([token for line in document for token in _split_tokens(line, config)])
    elif config.unit == "sentence":
        for line in lines:
            units += _split_sentences(line, config)
    else:
        units = [_split_tokens(line, config) for line in lines]

    return [[piece for token in unit for piece in _finish(token, config)] for unit in units if unit]


def _documents(lines: list[str]) -> Iterator[list[str]]:
    """Yield the groups of lines between blank lines."""
    document: list[str] = []
    for line in lines:
        if line.strip():
            document.append(line)
        else:
            yield document
            document = []
    yield document


def _split_tokens(line: str, config: CorpusConfig) -> list[str]:
    if config.tokenizer == "whitespace":
        return line.split()
    return [line[word.start() : word.end()].translate(_NORMAL) for word in _WORD.finditer(_codes(line, config))]


def _codes(line: str, config: CorpusConfig) -> str:
    """Return one letter per character, the code of its kind."""
    return "".join(_CODES[c.kind_of(char, config)] for char in line)


def _split_sentences(line: str, config: CorpusConfig) -> list[list[str]]:
    if config.tokenizer == "whitespace":
        return _group_sentences(line.split())

    codes = _codes(line, config)
    word_before = {word.end(): line[word.start() : word.end()] for word in _WORD.finditer(codes)}  # by end position

    sentences = []
    start = 0
    for end in _SENTENCE_END.finditer(codes):
        if end["stop"] and line[end.start()] == "." and _is_exempt(word_before.get(end.start(), "")):
            continue
        sentences.append(line[start : end.end()])
        start = end.end()

    return [_split_tokens(sentence, config) for sentence in [*sentences, line[start:]]]


def _group_sentences(tokens: list[str]) -> list[list[str]]:
    """Split a list of tokens after each token that ends in a stop."""
    sentences: list[list[str]] = [[]]
    for token in tokens:
        sentences[-1].append(token)
        if token[-1] in c.STOPS + c.WIDE_STOPS:
            sentences.append([])
    return sentences


def _is_exempt(word: str) -> bool:
    """Return whether a full stop after a word does not end a sentence: a single letter or an abbreviation."""
    return (len(word) == 1 and category(word)[0] == "L") or word.lower() in c.ABBREVIATIONS


def _finish(token: str, config: CorpusConfig) -> list[str]:
    """Return a token in lower case if configured, split into pieces of at most MAX_TOKEN_BYTES."""
    if config.turkish and config.lowercase:
        token = token.replace("I", "ı").replace("İ", "i")
    if config.lowercase:
        # The capital sigma has as many bytes as the small ones, which depend on the end of the token.
        token = "".join(char if char == "Σ" else char.lower() for char in token)
    return [_lower_sigma(piece, config) for piece in _cut(token)]


def _lower_sigma(token: str, config: CorpusConfig) -> str:
    if not config.lowercase:
        return token
    return token.replace("Σ", "σ") if config.normalization == "none" else token.lower()


def _cut(token: str) -> list[str]:
    """Return the pieces of at most MAX_TOKEN_BYTES of a token."""
    if len(token) * 4 <= c.MAX_TOKEN_BYTES:
        return [token]

    pieces = [""]
    size = 0
    for char in token:
        width = len(char.encode())
        if size + width > c.MAX_TOKEN_BYTES:
            pieces.append("")
            size = 0
        pieces[-1] += char
        size += width
    return pieces
