"""Vocabularies: tokens in order of decreasing count, whose ids are their positions."""

from __future__ import annotations

import difflib
import re
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig, VocabularyConfig
from swivel.corpus.normalization import normalize, normalize_tokens
from swivel.corpus.streams import read_lines
from swivel.errors import (
    ConfigError,
    CorpusError,
    CountsError,
    SwivelWarning,
    UnknownToken,
    VocabularyError,
    clear_errors,
)
from swivel.runtime.numbers import is_integer, plural
from swivel.runtime.resources import check_memory

if TYPE_CHECKING:
    from swivel.corpus.encoded_corpus import TypeCounts

# Two reserved values in arrays of token ids.
BREAK = np.uint32(0xFFFFFFFF)  # between two units; no window crosses it
GAP = np.uint32(0xFFFFFFFE)  # a token that is not in the vocabulary but keeps its position in the window

# Tokens may contain any characters; these would break a line of the form "token TAB count".
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_ESCAPE_TABLE = str.maketrans(_ESCAPES)
_UNESCAPES = {escape: char for char, escape in _ESCAPES.items()}
_ESCAPED = re.compile(r"\\.?", re.DOTALL)
_ADDRESS_PARTS = frozenset(("http", "https", "www", "com", "org", "htm", "html", "php", "asp", "aspx", "pdf", "jpg"))
_MAX_COUNT = (1 << 63) - 1
_MAX_COUNT_DIGITS = 19
_LINES_PER_CHECK = 1 << 20
_BYTES_PER_TOKEN = 200  # of a list: the tokens, and the tables that are made from them
_FEW_WORDS_PER_UNIT = 1.2  # less than in search queries
_LONG_TEXT = 1 << 16  # characters; splitting a shorter text takes at most 5 ms


def to_label(value: Any) -> Any:
    """Return the text of an id, such as 7, (3, "north") or a date, which is its label as a row or column.

    Other values are returned unchanged: fractions, truth values and missing values are no ids.

    >>> to_label(196), to_label(196.0), to_label(("ann", 7)), to_label("ann"), to_label(0.5)
    ('196', '196', "('ann', 7)", 'ann', 0.5)
    """
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]")  # `item` returns nanoseconds as a number
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        value = tuple(part.item() if isinstance(part, np.generic) else part for part in value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas converts integers to floats where values are missing

    is_missing = type(value).__name__ in ("NoneType", "NAType", "NaTType")  # the last two are those of pandas
    try:
        hash(value)
    except TypeError:
        return value
    return value if is_missing or isinstance(value, (bool, float, bytes)) else str(value)


class Vocabulary(Sequence[str]):
    """An immutable list of distinct tokens with their counts.

    Parameters
    ----------
    tokens
        Distinct tokens; the id of a token is its position.
    counts
        Count of each token; default: zeros.

    Raises
    ------
    VocabularyError
        The number of tokens and of counts differ.

    Examples
    --------
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
        """Mapping from token to id; raises VocabularyError if a token is repeated."""
        ids = {token: number for number, token in enumerate(self.tokens)}
        if len(ids) != len(self.tokens):
            repeated = next(token for number, token in enumerate(self.tokens) if ids[token] != number)
            raise VocabularyError(f"{repeated!r} is in the vocabulary twice")
        return ids

    def find(self, token: str) -> int | None:
        """Return the id of a token, or of the same token in a normal form of Unicode; None if there is none."""
        number = self.ids.get(token)
        if number is None and isinstance(token, str) and not token.isascii():
            forms = (normalize(token, form) for form in ("NFC", "NFKC"))
            number = next((self.ids[form] for form in forms if form in self.ids), None)
        return number

    def id(self, token: str, *, kind: str = "tokens") -> int:
        """Return the id of a token; raise UnknownToken with similar tokens if it is not in the vocabulary.

        `kind` is what the message calls them.
        """
        number = self.find(token)
        if number is None:
            similar = self.close_spellings(token) if isinstance(token, str) else []
            hint = f"; did you mean {', '.join(map(repr, similar))}?" if similar else ""
            raise UnknownToken(f"{token!r} is not in the vocabulary of {len(self):,} {kind}{hint}")
        return number

    def close_spellings(self, token: str, *, limit: int = 3) -> list[str]:
        """Return the tokens with the most similar spelling, most similar first.

        The same word in lower or upper case comes first. Only tokens of similar length are compared, with the same
        first character if there are enough of them.
        """
        other_case = [word for word in (token.lower(), token.capitalize(), token.upper()) if word in self.ids]
        candidates = [word for word in self.tokens if abs(len(word) - len(token)) <= 2 and set(word) & set(token)]
        same_start = [word for word in candidates if word[:1] == token[:1]]
        if len(same_start) >= limit:
            candidates = same_start

        # Frequent tokens come first, and difflib is slow: 20,000 of them are enough.
        close = difflib.get_close_matches(token, candidates[:20_000], n=limit, cutoff=0.7)
        return list(dict.fromkeys([*other_case, *close]))[:limit]

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

    def __reduce__(self) -> tuple[Any, ...]:
        return Vocabulary, (self.tokens, self.counts)

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self):,} tokens>"

    def to_lines(self) -> Iterator[str]:
        """Yield one line per token: the escaped token, a tab and its count."""
        for token, count in zip(self.tokens, self.counts.tolist(), strict=True):
            yield f"{escape(token)}\t{count}"

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> Vocabulary:
        """Return the vocabulary of lines written by `to_lines`; raise VocabularyError if a line is malformed."""
        tokens = []
        counts = []

        for number, line in enumerate(lines, 1):
            token, tab, count = line.rpartition("\t")
            if not (tab and is_integer(count) and len(count) <= _MAX_COUNT_DIGITS and int(count) <= _MAX_COUNT):
                raise VocabularyError(f"vocabulary, line {number}: expected a token, a tab and a count, got {line!r}")
            tokens.append(unescape(token))
            counts.append(int(count))

        return cls(tokens, counts)

    @staticmethod
    def from_text(text: str) -> Vocabulary:
        """Return the vocabulary of a text of such lines; a long text is parsed when a token or count is first used."""
        count = text.count("\n")
        looks_valid = text.endswith("\n") and text.count("\t") == count
        if looks_valid and len(text) >= _LONG_TEXT:
            return LazyVocabulary(lambda: text.split("\n")[:-1], count)
        return Vocabulary.from_lines(text.split("\n")[:-1])


class LazyVocabulary(Vocabulary):
    """A vocabulary that is made from its lines on first use: opening a million tokens takes milliseconds."""

    def __init__(self, lines: Callable[[], Iterable[str]], length: int) -> None:
        self.to_lines = lambda: iter(lines())  # type: ignore[method-assign]
        self._length = length

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _parsed(self) -> Vocabulary:
        parsed = Vocabulary.from_lines(self.to_lines())
        self.to_lines = parsed.to_lines  # type: ignore[method-assign]  # frees what the lines were made from
        return parsed

    @cached_property
    def tokens(self) -> tuple[str, ...]:  # type: ignore[override]
        """Tokens, in order of their ids."""
        return self._parsed.tokens

    @cached_property
    def counts(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Count of each token."""
        return self._parsed.counts


def escape(token: str) -> str:
    r"""Return a token with tabs, line ends and backslashes replaced by \t \n \r \\."""
    return token if token.isalnum() else token.translate(_ESCAPE_TABLE)


def unescape(text: str) -> str:
    """Return the token of a text written by `escape`."""
    return _ESCAPED.sub(lambda found: _UNESCAPES.get(found[0], ""), text) if "\\" in text else text


def is_word(token: str) -> bool:
    """Return whether a token has a letter and no digit, and is not a part of an address.

    >>> [is_word(token) for token in ("co-op", "हिन्दी", "20books", "km²", "1984", "--", "html")]
    [True, True, False, False, False, False, False]
    """
    has_letter = any(map(str.isalpha, token))
    return has_letter and not any(map(str.isnumeric, token)) and token.lower() not in _ADDRESS_PARTS


def choose_tokens(counts: Mapping[str, int], config: VocabularyConfig) -> Vocabulary:
    """Return the vocabulary of the most frequent tokens, as `config` limits it.

    Tokens are in order of decreasing count; tokens of equal count are in order of code points. Raises VocabularyError
    if no token is frequent enough.

    >>> choose_tokens({"b": 2, "a": 2, "rare": 1}, VocabularyConfig(min_count=2)).tokens
    ('a', 'b')
    """
    entries = [
        (-count, token)
        for token, count in counts.items()
        if count >= config.min_count and (not config.words_only or is_word(token))
    ]
    if not entries and not counts:
        raise VocabularyError("the text has no tokens")
    if not entries:
        raise VocabularyError(
            f"no token occurs {config.min_count:,} times or more (the most frequent: {max(counts.values()):,}); "
            "lower min_count",
            argument="min_count",
        )

    entries = sorted(entries)[: config.max_size or None]
    return Vocabulary([token for _, token in entries], [-negative for negative, _ in entries])


def from_list(tokens: Iterable[str], counts: Mapping[str, int]) -> Vocabulary:
    """Return the vocabulary of a list of tokens, in order of decreasing count."""
    # Tokens of equal count keep their order. Tokens that do not occur in the text are kept with a count of 0. Raises
    # VocabularyError if the list is empty, or a token is empty or repeated.
    listed = list(tokens)
    if not listed:
        raise VocabularyError("the list of tokens is empty")

    seen: set[str] = set()
    for number, token in enumerate(listed, 1):
        if token == "":
            raise VocabularyError(f"list of tokens, line {number}: the token is empty")
        if token in seen:
            raise VocabularyError(f"list of tokens, line {number}: {token!r} is repeated")
        seen.add(token)

    order = sorted(range(len(listed)), key=lambda number: -counts.get(listed[number], 0))
    return Vocabulary([listed[n] for n in order], [counts.get(listed[n], 0) for n in order])


def choose_vocabulary(
    counts: TypeCounts, config: VocabularyConfig, listed: Iterable[str] | None, corpus: CorpusConfig
) -> Vocabulary:
    """Return the vocabulary of a text: the tokens of `listed`, or if it is None those that `config` selects.

    `corpus` is how the text was read. Raises VocabularyError if the vocabulary is empty, or no listed token occurs.
    """
    if listed is None:
        frequent = counts.most_frequent(config.min_count, config.listed_types)
        return choose_tokens(frequent or counts.most_frequent(limit=1), config)

    if not counts.most_frequent(limit=1):
        raise VocabularyError("the text has no tokens")

    tokens = normalize_tokens(listed, corpus.normalization)
    vocabulary = from_list(tokens, counts.of_tokens(tokens))
    if vocabulary.counts[0] == 0:
        hint = ""
        if corpus.lowercase:
            hint = "; the text is converted to lower case, so the list must be in lower case, too"
        raise VocabularyError(f"none of the {len(vocabulary):,} listed tokens is in the text{hint}")

    return vocabulary


def read_tokens(file: Path) -> tuple[str, ...]:
    """Return the tokens of a vocabulary file: the first tab-separated field of each line, escaped as in `rows.txt`."""
    with clear_errors(file, ConfigError):
        mode = file.stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISDIR(mode):  # such as /dev/zero, which never ends
        raise ConfigError(f"{file}: a {'folder' if stat.S_ISDIR(mode) else 'device'}, not a list of tokens")

    tokens = []
    try:
        for number, line in enumerate(read_lines(file), 1):
            tokens.append(unescape(line.split("\t")[0]))
            if number % _LINES_PER_CHECK == 0:
                check_memory(f"{file}: a list of {number:,} tokens or more", _BYTES_PER_TOKEN * number)
    except CorpusError as error:
        # The settings of the text, such as its encoding, do not apply to the list.
        is_decoded = not isinstance(error.__cause__, UnicodeDecodeError)
        message = str(error) if is_decoded else f"{file}: not valid UTF-8; convert the file first"
        raise ConfigError(message) from error

    while tokens and not tokens[-1]:
        tokens.pop()
    return tuple(tokens)


def check_units(tokens: int, units: int, unit: str) -> None:
    """Raise CountsError if every line, sentence or document of a text has only one word; warn if nearly all have."""
    advice = (
        f"write several words in a {unit}, or, in Python, pass tokens as one list per text, such as [['the', 'cat']]"
    )
    if 0 < tokens == units:
        raise CountsError(f"every {unit} has only one word, so no words occur together; {advice}")
    # A list of words, of which some contain punctuation.
    if 0 < tokens < _FEW_WORDS_PER_UNIT * units:
        text = f"nearly every {unit} has only one word, so few words occur together; {advice}"
        warnings.warn(text, SwivelWarning, stacklevel=3)


def describe_text(tokens: int, units: int, unit: str, vocabulary: Vocabulary) -> str:
    """Return the size of a text as a message.

    >>> describe_text(6, 2, "line", Vocabulary(["tea", "milk"]))
    '6 tokens in 2 lines; vocabulary of 2'
    """
    return f"{plural(tokens, 'token')} in {plural(units, unit)}; vocabulary of {len(vocabulary):,}"
