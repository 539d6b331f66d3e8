"""Tokens by falling count, and their ids.

Receives tokens with their counts from `corpus` or from an importer, hands on an immutable `Vocabulary` whose ids
are positions. It does not read text.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from swivel.config import VocabularyConfig
from swivel.errors import UnknownToken, VocabularyError

# Labels are free text; these three characters would break a line of `token TAB count`.
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {escape[1]: char for char, escape in _ESCAPES.items()}
_MOST_DIGITS, _MOST_COUNT = 19, (1 << 63) - 1  # of a count, which has 64 bits
_LONG_TEXT = 1 << 16  # characters; below, splitting takes 5 ms


class Vocabulary(Sequence[str]):
    """An immutable list of distinct tokens with their counts.

    >>> vocabulary = Vocabulary(["the", "of"], [7, 3])
    >>> vocabulary.id("of"), vocabulary[0], "and" in vocabulary
    (1, 'the', False)
    """

    def __init__(self, tokens: Iterable[str], counts: Iterable[int] | None = None) -> None:
        self.tokens: tuple[str, ...] = tuple(tokens)
        values = np.zeros(len(self.tokens), np.int64) if counts is None else np.array(list(counts), np.int64)
        if len(values) != len(self.tokens):
            raise VocabularyError(f"{len(self.tokens)} tokens but {len(values)} counts")
        self.counts: NDArray[np.int64] = values
        self.counts.flags.writeable = False

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Id of each token."""
        ids = {token: number for number, token in enumerate(self.tokens)}
        if len(ids) != len(self.tokens):
            twice = next(token for number, token in enumerate(self.tokens) if ids[token] != number)
            raise VocabularyError(f"{twice!r} is in the vocabulary twice")
        return ids

    def id(self, token: str) -> int:
        """Return the id of a token, or raise UnknownToken with close spellings."""
        try:
            return self.ids[token]
        except KeyError:
            raise UnknownToken(self._unknown(token)) from None

    def _unknown(self, token: str) -> str:
        near = self.close_spellings(token)
        hint = "; did you mean " + ", ".join(map(repr, near)) + "?" if near else ""
        return f"{token!r} is not in the vocabulary of {len(self):,} tokens{hint}"

    def close_spellings(self, token: str, *, limit: int = 3) -> list[str]:
        """Return the tokens spelt most like `token`, closest first, commoner ones first among equals."""
        likely = [word for word in self.tokens if abs(len(word) - len(token)) <= 2 and set(word) & set(token)]
        same_start = [word for word in likely if word[:1] == token[:1]]
        pool = same_start if len(same_start) >= limit else likely
        return difflib.get_close_matches(token, pool[:20_000], n=limit, cutoff=0.7)

    def __contains__(self, token: object) -> bool:
        return token in self.ids

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return self.tokens[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self.tokens == other.tokens and bool(np.array_equal(self.counts, other.counts))

    def __hash__(self) -> int:
        return hash(self.tokens)

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self):,} tokens>"

    def to_lines(self) -> list[str]:
        """Return one line a token: the token, a tab, its count."""
        return [f"{escape(token)}\t{count}" for token, count in zip(self.tokens, self.counts.tolist(), strict=True)]

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> Vocabulary:
        """Read what `to_lines` wrote."""
        tokens, counts = [], []
        for number, line in enumerate(lines, 1):
            token, tab, count = line.rpartition("\t")
            if not (tab and count.isdecimal() and len(count) <= _MOST_DIGITS and int(count) <= _MOST_COUNT):
                raise VocabularyError(f"vocabulary, line {number}: expected a token, a tab and a count, got {line!r}")
            tokens.append(unescape(token))
            counts.append(int(count))
        return cls(tokens, counts)

    @staticmethod
    def from_text(text: str) -> Vocabulary:
        r"""Read the lines that `to_lines` wrote, as one text; a long one is split when a token is first asked for.

        >>> Vocabulary.from_text("the\t7\nof\t3\n").tokens
        ('the', 'of')
        """
        count = text.count("\n")
        looks_whole = text.endswith("\n") and text.count("\t") == count
        if looks_whole and len(text) >= _LONG_TEXT:
            return _StoredVocabulary(text, count)
        return Vocabulary.from_lines(text.split("\n")[:-1])


class _StoredVocabulary(Vocabulary):
    """A vocabulary that is still the text it was stored as, so that opening a million words takes milliseconds."""

    def __init__(self, text: str, count: int) -> None:
        self._text = text
        self._length = count

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _parsed(self) -> Vocabulary:
        parsed = Vocabulary.from_lines(self._text.split("\n")[:-1])
        self._text = ""
        return parsed

    @cached_property
    def tokens(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._parsed.tokens

    @cached_property
    def counts(self) -> NDArray[np.int64]:  # type: ignore[override]
        return self._parsed.counts


def escape(token: str) -> str:
    r"""Return a token as it stands in a line of text: tabs, line ends and backslashes as \t \n \r \\."""
    return "".join(_ESCAPES.get(char, char) for char in token) if any(char in token for char in _ESCAPES) else token


def unescape(text: str) -> str:
    """Undo `escape`."""
    if "\\" not in text:
        return text
    parts = iter(text)
    return "".join(_UNESCAPES.get(next(parts, ""), "") if char == "\\" else char for char in parts)


def choose_tokens(counts: Mapping[str, int], config: VocabularyConfig) -> Vocabulary:
    """Return the tokens that `config` keeps, by falling count; equal counts by code points.

    >>> choose_tokens({"b": 2, "a": 2, "rare": 1}, VocabularyConfig(min_count=2)).tokens
    ('a', 'b')
    """
    kept = [(-count, token) for token, count in counts.items() if count >= config.min_count]
    if not kept:
        most = max(counts.values(), default=0)
        raise VocabularyError(
            f"no token occurs {config.min_count:,} times or more (the commonest: {most:,}); lower --min-count"
            if counts
            else "the text has no tokens"
        )
    kept = sorted(kept)[: config.max_size or None]
    return Vocabulary([token for _, token in kept], [-negative for negative, _ in kept])


def from_list(tokens: Iterable[str], counts: Mapping[str, int]) -> Vocabulary:
    """Return one's own list as a vocabulary, by falling count in the text; equal counts keep their order.

    A token that the text does not have stays, with a count of 0; one given twice is an error.
    """
    listed = list(tokens)
    if not listed:
        raise VocabularyError("the list of tokens is empty")
    seen: set[str] = set()
    for number, token in enumerate(listed, 1):
        if token == "":
            raise VocabularyError(f"list of tokens, line {number}: empty")
        if token in seen:
            raise VocabularyError(f"list of tokens, line {number}: {token!r} is there twice")
        seen.add(token)
    order = sorted(range(len(listed)), key=lambda number: -counts.get(listed[number], 0))
    return Vocabulary([listed[n] for n in order], [counts.get(listed[n], 0) for n in order])


def choose_vocabulary(
    counts: Callable[[int], Mapping[str, int]],
    config: VocabularyConfig,
    listed: Iterable[str] | None,
    *,
    lowercase: bool,
) -> Vocabulary:
    """Return the vocabulary of a text: one's own list where there is one, else what `config` keeps.

    `counts(n)` gives the tokens that are n times in the text, or more often; `lowercase`: it was lower-cased.

    >>> choose_vocabulary(lambda least: {"a": 2}, VocabularyConfig(min_count=1), None, lowercase=True).tokens
    ('a',)
    """
    if listed is None:
        return choose_tokens(counts(config.min_count) or counts(1), config)
    seen = counts(1)
    if not seen:
        raise VocabularyError("the text has no tokens")
    vocabulary = from_list(listed, seen)
    if vocabulary.counts[0] == 0:
        lower = "; the text is lower-cased, the list should be too" if lowercase else ""
        raise VocabularyError(f"none of the {len(vocabulary):,} listed tokens is in the text{lower}")
    return vocabulary
