"""Character classes of the tokenizers.

This is the single definition for both tokenizers: the compiled one reads the tables of `build_rules`, and the reference
that tests compare it with (`fuzz/tokenizer_reference.py`) classifies one character at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig

# Kinds of characters. Word characters come first and white space last, because the compiled tokenizer compares kinds
# with LAST_WORD and FIRST_WHITE.
LETTER, LOWER, NUMBER, WORD_STOP = 0, 1, 2, 3
MARK, JOINER, APOSTROPHE, HYPHEN, SOFT, OTHER, STOP, WIDE_STOP, CLOSER, SPACE, LINE = range(4, 15)
LAST_WORD = WORD_STOP
FIRST_WHITE = SPACE

LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
STOPS = ".!?…"
WIDE_STOPS = "。！？"
MAX_TOKEN_BYTES = 65_536

# A full stop after one of these, or after a single letter, does not end a sentence. The compiled tokenizer requires
# ASCII, at most 7 letters, and no "k", because the Kelvin sign becomes "k" in lower case.
_ABBREVIATIONS = """
    adm apr aug ave capt cf ch co col corp dec dept dr ed eds eg esp est etc feb fig figs gen gov hon ie inc jan jr jul
    jun lt ltd mar mr mrs ms mt no nos nov oct op pp pres prof rep rev sen sep sept sgt sr st vol vols vs
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())

_CATEGORIES = {
    "Ll": LOWER,
    **dict.fromkeys(("Lu", "Lt", "Lm", "Lo"), LETTER),
    **dict.fromkeys(("Nd", "Nl", "No"), NUMBER),
    **dict.fromkeys(("Mn", "Mc", "Me"), MARK),
    **dict.fromkeys(("Pe", "Pf", "Pi"), CLOSER),  # Pi: German closing quotes
}
_WHITE = {char: SPACE for char in map(chr, range(0x3001)) if char.isspace()} | {"\0": SPACE}
_WHITE.update(dict.fromkeys(LINE_ENDS, LINE))
_SPECIAL: Mapping[str, int] = {
    **_WHITE,
    **dict.fromkeys("\u200c\u200d", JOINER),
    **dict.fromkeys("'\u2019", APOSTROPHE),
    **dict.fromkeys("-\u2010\u2011", HYPHEN),
    "\u00ad": SOFT,
    '"': CLOSER,
    **dict.fromkeys(STOPS, STOP),
    **dict.fromkeys(WIDE_STOPS, WIDE_STOP),
}
# All assigned code points are in the first four planes, except variation selectors and tags from U+E0000 on.
_ASSIGNED = (range(0x40000), range(0xE0000, 0xE1000))
_LAST_CASED = 0x20000
UNITS = {"line": 0, "sentence": 1, "document": 2}
TWO_POINTS = -1  # in the lower-case table: U+0130, the only letter whose lower case is two code points
FINAL_SIGMA = -2  # in the lower-case table: U+03A3, whose lower case at the end of a word is another letter
# How a character decides about a capital sigma beside it, in the second row of the table.
CASED, IGNORABLE = 1, 2
# The other code points are neither: ideographs, Hangul, and letters without case.
_CASED_RANGES = (range(0x3000), range(0xA000, 0xAC00), range(0xF900, 0x11000), range(0x1D000, _LAST_CASED))


def kind_of(char: str, config: CorpusConfig) -> int:
    """Return the kind of a character in the `words` tokenizer."""
    if char == "_" and config.keep_underscores:
        return JOINER
    return _SPECIAL.get(char, _CATEGORIES.get(category(char), OTHER))


class TokenizerRules(NamedTuple):
    """Tables and settings of the compiled tokenizer."""

    kinds: NDArray[np.uint8]  # kind of every code point
    plain: NDArray[np.uint8]  # for every byte: the lower-case form of an ASCII word character, 0 for all other bytes
    lower: NDArray[np.int32]  # lower case of the first code points, and their roles; no columns if case is kept
    abbreviations: NDArray[np.int64]  # bytes of each abbreviation as one big-endian integer, sorted
    form: str  # normal form of Unicode
    unit: int  # number of the unit in `UNITS`
    is_strict: bool  # whether invalid UTF-8 is an error
    has_marks: bool  # whether the bytes 0xFE and 0xFF, which do not occur in UTF-8, end tokens and texts


@lru_cache(maxsize=1)
def _word_kinds() -> NDArray[np.uint8]:
    kinds = np.full(0x110000, OTHER, np.uint8)
    for points in _ASSIGNED:
        kinds[points.start : points.stop] = [_CATEGORIES.get(category(chr(point)), OTHER) for point in points]

    for char, kind in _SPECIAL.items():
        kinds[ord(char)] = kind
    return kinds


@lru_cache(maxsize=1)
def _lower_points() -> NDArray[np.int32]:
    lowered = [char.lower() for char in map(chr, range(_LAST_CASED))]
    table = np.zeros((2, _LAST_CASED), np.int32)
    table[0] = [ord(char) if len(char) == 1 else TWO_POINTS for char in lowered]

    # Python does not tell the roles of characters, but `str.lower` shows them: the lower case of a sigma is final
    # unless a cased letter follows, perhaps after ignorable characters.
    for points in _CASED_RANGES:
        chars = ["" if point == ord("\n") else chr(point) for point in points]
        alone = "\n".join(f"ΑΣ{char}" for char in chars).lower().split("\n")
        before_letter = "\n".join(f"ΑΣ{char}Α" for char in chars).lower().split("\n")
        for point, end, middle in zip(points, alone, before_letter, strict=True):
            if end[1] == "σ":
                table[1, point] = CASED
            elif middle[1] == "σ":
                table[1, point] = IGNORABLE
    table[1, ord("\n")] = 0
    return table


def _choose_lower(config: CorpusConfig) -> NDArray[np.int32]:
    """Return the table of lower case for a configuration."""
    if not config.lowercase:
        return np.empty((2, 0), np.int32)

    table = _lower_points().copy()
    if config.normalization != "none":
        table[0, ord("Σ")] = FINAL_SIGMA
    if config.turkish:
        table[0, [ord("I"), ord("İ")]] = ord("ı"), ord("i")
    return table


def _choose_kinds(config: CorpusConfig, is_tokenized: bool) -> NDArray[np.uint8]:
    """Return the kind of every code point for a tokenizer and unit."""
    if config.tokenizer != "whitespace" and not is_tokenized:
        kinds = _word_kinds().copy()
        kinds[ord("_")] = kind_of("_", config)
        if config.unit != "sentence":
            kinds[np.isin(kinds, (STOP, WIDE_STOP, CLOSER))] = OTHER
        return kinds

    # The `whitespace` tokenizer: everything but white space is part of a token.
    kinds = np.full(0x110000, LETTER, np.uint8)
    if not is_tokenized:
        for char, kind in _WHITE.items():
            kinds[ord(char)] = kind
        if config.unit == "sentence":
            kinds[[ord(char) for char in STOPS + WIDE_STOPS]] = WORD_STOP
    return kinds


def build_rules(config: CorpusConfig, *, is_tokenized: bool = False, has_marks: bool = False) -> TokenizerRules:
    """Return the tables and settings for a kind of stream; of tokens (`is_tokenized`) only the case is changed."""
    # A function of the user has no rules, and may not be hashable.
    if callable(config.tokenizer):
        config = dataclasses.replace(config, tokenizer="words")
    return _build_rules(config, is_tokenized, has_marks)


@lru_cache(maxsize=8)
def _build_rules(config: CorpusConfig, is_tokenized: bool, has_marks: bool) -> TokenizerRules:
    kinds = _choose_kinds(config, is_tokenized)
    lower = _choose_lower(config)

    # WORD_STOP is not plain: the slow path must process it, because it may end a sentence.
    ascii_lower = lower[0, :128] if config.lowercase else np.arange(128)
    is_plain = (kinds[:128] < WORD_STOP) & (ascii_lower < 128)  # in Turkish, the lower case of I is not ASCII
    plain = np.zeros(256, np.uint8)
    plain[:128][is_plain] = ascii_lower[is_plain]

    packed = sorted(int.from_bytes(word.encode("ascii"), "big") for word in ABBREVIATIONS)
    return TokenizerRules(
        kinds=kinds,
        plain=plain,
        lower=lower,
        abbreviations=np.array(packed, np.int64),
        form=config.normalization,
        unit=UNITS[config.unit],
        is_strict=config.errors == "strict",
        has_marks=has_marks,
    )
