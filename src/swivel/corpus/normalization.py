"""Unicode normalization: the same letters, however they are encoded, are the same word.

ASCII does not change; in other text, a compiled search finds the few characters that may change, so that only these are
converted to strings and back.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig

# The other assigned code points are ideographs and Hangul syllables, which are normalized and begin a character.
_CHECKED = (
    *(range(0x3400), range(0xA000, 0xAC00), range(0xD7A4, 0xD800), range(0xF900, 0x12000)),
    *(range(0x16000, 0x17000), range(0x1B000, 0x20000), range(0x2F800, 0x2FA20), range(0xE0000, 0xE1000)),
)
_BYTES_PER_RUN = 256  # with more runs that may change, a piece takes less time as a whole
_MAX_CHARACTER_BYTES = 1 << 10  # of a letter and its marks; Unicode's stream-safe text has up to 30 marks
_HANGUL_PARTS = range(0x1160, 0x1200)  # vowels and final consonants, which join the syllable before them


@lru_cache(maxsize=2)
def find_unstable_points(form: str) -> NDArray[np.bool_]:
    """Return for every code point whether normalization may change it, or join it to the character before it."""
    joins = np.zeros(0x110000, np.bool_)
    joins[_HANGUL_PARTS.start : _HANGUL_PARTS.stop] = True
    chars = [chr(point) for points in _CHECKED for point in points]
    for char in chars:
        # The second part of a pair that has a code point of its own, such as the acute accent of e and U+0301.
        parts = unicodedata.decomposition(char).split()
        if len(parts) == 2 and parts[0][0] != "<":
            joins[int(parts[1], 16)] = True
        if unicodedata.combining(char):
            joins[ord(char)] = True

    is_changed = [ord(char) for char in chars if normalize(char, form) != char]
    joins[is_changed] = True
    return joins


def normalize_bytes(data: bytes, form: str) -> bytes:
    """Return UTF-8 in a normal form of Unicode, or unchanged with "none"; invalid bytes are kept."""
    if form == "none" or data.isascii():
        return data
    from swivel.corpus.normalization_kernels import find_unstable_runs

    runs = np.empty((len(data) // _BYTES_PER_RUN + 1, 2), np.int64)
    count = find_unstable_runs(np.frombuffer(data, np.uint8), find_unstable_points(form), runs)
    if count > len(runs):  # Text of another form is converted as a whole.
        return _normalize_part(data, form)

    parts = []
    end = 0
    for start, stop in runs[:count].tolist():
        parts += [data[end:start], _normalize_part(data[start:stop], form)]
        end = stop
    return b"".join([*parts, data[end:]]) if parts else data


def _normalize_part(data: bytes, form: str) -> bytes:
    return normalize(data.decode("utf-8", "surrogateescape"), form).encode("utf-8", "surrogateescape")


def find_character(data: bytes, at: int) -> int | None:
    """Return the first position from `at` on where a character of UTF-8 begins; None if the data may end before it.

    A character is a letter with its combining marks, which must be normalized together. If it is too long, the result
    is the first position between two code points.
    """
    first = None
    continuations = 0
    for position in range(at, min(at + _MAX_CHARACTER_BYTES, len(data) - 3)):
        continuations = continuations + 1 if data[position] & 0xC0 == 0x80 else 0
        if continuations > 3:  # invalid UTF-8, which may be cut anywhere
            return position
        if continuations:
            continue
        if first is None:
            first = position
        char = data[position : position + 4].decode("utf-8", "ignore")[:1]
        if data[position] < 0x80 or (char and not find_unstable_points("NFKC")[ord(char)]):
            return position
    return first if len(data) - at > _MAX_CHARACTER_BYTES + 3 else None


def normalize(text: str, form: str) -> str:
    """Return a text in a normal form of Unicode, or unchanged with "none".

    >>> len("e\\u0301"), len(normalize("e\\u0301", "NFC"))
    (2, 1)
    """
    return text if form == "none" or text.isascii() else unicodedata.normalize(form, text)  # type: ignore[arg-type]


def normalize_tokens(tokens: Iterable[str], form: str) -> tuple[str, ...]:
    """Return listed tokens in a normal form; tokens that become equal are listed once."""
    listed = tuple(tokens)
    normalized = tuple(normalize(token, form) for token in listed)
    return listed if normalized == listed else tuple(dict.fromkeys(normalized))


def lower_token(token: str, config: CorpusConfig) -> str:
    """Return a token in lower case as the tokenizer does, if it does.

    >>> lower_token("ΣΟΦΟΣ", CorpusConfig()), lower_token("ILIK", CorpusConfig(turkish=True))
    ('σοφος', 'ılık')
    """
    if not config.lowercase:
        return token
    if config.turkish:
        token = token.replace("I", "ı").replace("İ", "i")
    if config.normalization == "none":
        return "".join(map(str.lower, token))
    return token.lower()
