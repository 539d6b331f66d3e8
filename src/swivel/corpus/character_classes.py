"""What every character means to the tokenisers.

One definition, read by the oracle (`tokenize`) a character at a time and by the compiled tokeniser as tables. It
splits nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig

# Word characters come first, white space last: the compiled tokeniser compares with LAST_WORD and FIRST_WHITE.
LETTER, LOWER, NUMBER, WORD_STOP = 0, 1, 2, 3
MARK, JOINER, APOSTROPHE, HYPHEN, SOFT, OTHER, STOP, WIDE_STOP, CLOSER, SPACE, LINE = range(4, 15)
LAST_WORD, FIRST_WHITE = WORD_STOP, SPACE

LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
STOPS = ".!?…"
WIDE_STOPS = "。！？"
MAX_TOKEN_BYTES = 65_536

# A full stop after one of these, or after a single letter, ends no sentence. ASCII, at most 7 letters, no k (the
# Kelvin sign lower-cases to it).
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
    **dict.fromkeys(("Pe", "Pf", "Pi"), CLOSER),  # Pi too: German closes with it.
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
# Everything assigned lies in the first four planes, and variation selectors and tags at U+E0000.
_ASSIGNED = (range(0x40000), range(0xE0000, 0xE1000))
_LAST_CASED = 0x20000
TWO_POINTS = -1  # in the table of lower case: U+0130, the one letter whose lower case is two code points


def kind_of(char: str) -> int:
    """Return what a character is to the `words` tokeniser.

    >>> kind_of("a") == LOWER, kind_of("’") == APOSTROPHE
    (True, True)
    """
    return _SPECIAL.get(char, _CATEGORIES.get(category(char), OTHER))


class TokenizerRules(NamedTuple):
    """How the compiled tokeniser reads text: tables, and the settings as numbers."""

    kinds: NDArray[np.uint8]  # kind of every code point
    plain: NDArray[np.uint8]  # of every byte: what an ASCII word character becomes, 0 for all others
    lower: NDArray[np.int32]  # lower case of the first code points; empty where case is kept
    abbreviations: NDArray[np.int64]
    unit: int
    is_strict: bool
    has_marks: bool  # bytes 0xFE and 0xFF, which UTF-8 has not, end tokens and texts


UNITS = {"line": 0, "sentence": 1, "document": 2}


@lru_cache(maxsize=1)
def _word_kinds() -> NDArray[np.uint8]:
    kinds = np.full(0x110000, OTHER, np.uint8)
    for points in _ASSIGNED:
        found = [_CATEGORIES.get(name, OTHER) for name in map(category, map(chr, points))]
        kinds[points.start : points.stop] = found
    for char, kind in _SPECIAL.items():
        kinds[ord(char)] = kind
    return kinds


@lru_cache(maxsize=1)
def _lower_points() -> NDArray[np.int32]:
    lowered = [char.lower() for char in map(chr, range(_LAST_CASED))]
    return np.array([ord(char) if len(char) == 1 else TWO_POINTS for char in lowered], np.int32)


def _choose_kinds(config: CorpusConfig, is_tokenised: bool) -> NDArray[np.uint8]:
    if config.tokenizer == "words" and not is_tokenised:
        kinds = _word_kinds().copy()
        if config.unit != "sentence":
            kinds[np.isin(kinds, (STOP, WIDE_STOP, CLOSER))] = OTHER
        return kinds
    kinds = np.full(0x110000, LETTER, np.uint8)
    if not is_tokenised:
        for char, kind in _WHITE.items():
            kinds[ord(char)] = kind
        if config.unit == "sentence":
            kinds[[ord(char) for char in STOPS + WIDE_STOPS]] = WORD_STOP
    return kinds


def pack_ascii(word: str) -> int:
    """Return a short ASCII word as one number, as the compiled tokeniser packs it."""
    return int.from_bytes(word.encode("ascii"), "big")


@lru_cache(maxsize=8)
def build_rules(config: CorpusConfig, *, is_tokenised: bool = False, has_marks: bool = False) -> TokenizerRules:
    """Return the tables for a configuration; `is_tokenised`: tokens are taken as they are, but for case."""
    kinds = _choose_kinds(config, is_tokenised)
    lower = _lower_points() if config.lowercase else np.empty(0, np.int32)
    plain = np.zeros(256, np.uint8)
    ascii_points = np.arange(128)
    # A stop in a tokenised text must be seen by the slow path, which knows what ends a sentence.
    is_plain = kinds[:128] < WORD_STOP
    plain[:128][is_plain] = (lower if config.lowercase else ascii_points)[:128][is_plain]
    return TokenizerRules(
        kinds=kinds,
        plain=plain,
        lower=lower,
        abbreviations=np.array(sorted(map(pack_ascii, ABBREVIATIONS)), np.int64),
        unit=UNITS[config.unit],
        is_strict=config.errors == "strict",
        has_marks=has_marks,
    )
