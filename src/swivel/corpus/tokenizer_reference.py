"""The tokenisers, in plain Python: the oracle that the compiled one is held to.

Receives a text, hands on its units (what a window never crosses) as lists of tokens. Clear rather than fast; it
reads no files.

``words``: a word begins with a letter or a number and goes on with letters, numbers and marks; one apostrophe,
hyphen or zero-width joiner between two of them is part of the word. Curly apostrophes become straight, U+2010 and
U+2011 become ``-``, soft hyphens are dropped as if they were not there, everything else separates.
``whitespace``: tokens lie between white space (as `str.split` sees it) and NUL.
Lower case is `str.lower` of each code point by itself (no final sigma). A token of more than 65,536 bytes of UTF-8
is cut there, and goes on as the next one.

A ``line`` ends where `str.splitlines` says. A ``document`` ends at a blank line. A ``sentence`` ends with its line;
at 。！？; and at . ! ? … followed by closing quotes or brackets or none, by white space, and by something that is
no lower-case letter, unless that stop is a full stop after a single letter or one of `ABBREVIATIONS`. In a text
tokenised by ``whitespace`` a sentence ends after a token that ends in one of these seven stops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import category

from swivel.config import CorpusConfig
from swivel.corpus import character_classes as c

_LINE_END = re.compile(f"\r\n|[{c.LINE_ENDS}]")
_NORMAL = str.maketrans({"\u2019": "'", "\u2010": "-", "\u2011": "-"})

# One letter a kind, so that `re` can look for patterns of kinds.
_CODES = {c.LETTER: "L", c.LOWER: "l", c.NUMBER: "N", c.MARK: "M", c.JOINER: "j", c.APOSTROPHE: "'", c.HYPHEN: "-"}
_CODES |= {c.OTHER: "o", c.STOP: "!", c.WIDE_STOP: "W", c.CLOSER: ")", c.SPACE: " "}
_WORD = re.compile("[LlN][LlNM]*(?:[j'-][LlNM]+)*")
_SENTENCE_END = re.compile("(?P<stop>!)[)']* +(?=[^ l])|W")


def split_units(text: str, config: CorpusConfig) -> list[list[str]]:
    """Return the units of a text, each a list of tokens; units without tokens are left out.

    >>> split_units("Don’t stop -- it's state-of-the-art.", CorpusConfig())
    [["don't", 'stop', "it's", 'state-of-the-art']]
    """
    if config.tokenizer == "words":
        text = text.replace("\u00ad", "")
    text = text.replace("\0", " ")
    lines = _LINE_END.split(text)
    if config.unit == "document":
        units = [[token for line in lines for token in _split_tokens(line, config)] for lines in _documents(lines)]
    elif config.unit == "sentence":
        units = [sentence for line in lines for sentence in _split_sentences(line, config)]
    else:
        units = [_split_tokens(line, config) for line in lines]
    return [[piece for token in unit for piece in _finish(token, config)] for unit in units if unit]


def _documents(lines: list[str]) -> Iterator[list[str]]:
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
    return [line[word.start() : word.end()].translate(_NORMAL) for word in _WORD.finditer(_codes(line))]


def _codes(line: str) -> str:
    return "".join(_CODES[c.kind_of(char)] for char in line)


def _split_sentences(line: str, config: CorpusConfig) -> list[list[str]]:
    if config.tokenizer == "whitespace":
        return _sentences_of_tokens(line.split())
    codes = _codes(line)
    words = {word.end(): line[word.start() : word.end()] for word in _WORD.finditer(codes)}
    sentences, start = [], 0
    for end in _SENTENCE_END.finditer(codes):
        if end["stop"] and line[end.start()] == "." and _is_exempt(words.get(end.start(), "")):
            continue
        sentences.append(line[start : end.end()])
        start = end.end()
    return [_split_tokens(sentence, config) for sentence in [*sentences, line[start:]]]


def _sentences_of_tokens(tokens: list[str]) -> list[list[str]]:
    sentences: list[list[str]] = [[]]
    for token in tokens:
        sentences[-1].append(token)
        if token[-1] in c.STOPS + c.WIDE_STOPS:
            sentences.append([])
    return sentences


def _is_exempt(word: str) -> bool:
    return (len(word) == 1 and category(word)[0] == "L") or word.lower() in c.ABBREVIATIONS


def _finish(token: str, config: CorpusConfig) -> list[str]:
    if config.lowercase:
        token = "".join(map(str.lower, token))
    if len(token) * 4 <= c.MAX_TOKEN_BYTES:
        return [token]
    pieces, size = [""], 0
    for char in token:
        width = len(char.encode())
        if size + width > c.MAX_TOKEN_BYTES:
            pieces.append("")
            size = 0
        pieces[-1] += char
        size += width
    return pieces
