"""Token numbers of short texts in memory, with the boundaries of every text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig
from swivel.corpus import tokenizer_kernels as kernels
from swivel.corpus.character_classes import MAX_TOKEN_BYTES, TokenizerRules, build_rules
from swivel.corpus.encoded_corpus import TypeTable, start_text
from swivel.corpus.joined_corpus import PhraseTrie, split_phrase
from swivel.corpus.normalization import normalize
from swivel.corpus.segmentation import insert_spaces
from swivel.corpus.sources import check_items, is_missing
from swivel.corpus.vocabulary import BREAK
from swivel.errors import CorpusError

_FIRST_NODE = 1 << 31  # of tries, above all token numbers
_MAX_UNKNOWN = 1 << 20  # tokens that are not in the vocabulary; with more of them the table starts again


class NumberedTexts(NamedTuple):
    """Token numbers of several texts, one after the other, and where each text ends.

    A number below the size of the vocabulary is an id; token n of `unknown` has that size plus n.
    """

    numbers: NDArray[np.int64]
    ends: NDArray[np.int64]
    unknown: list[str]


class TextNumbering:
    """Splits texts into tokens as the corpus was, and numbers the tokens.

    >>> numbering = TextNumbering(["cat", "the"], CorpusConfig())
    >>> numbers, ends, unknown = numbering.number(["The cat, the dog.", "", "Dog!"])
    >>> numbers.tolist(), ends.tolist(), unknown
    ([1, 0, 1, 2, 2], [4, 4, 5], ['dog'])
    """

    def __init__(self, tokens: Sequence[str], config: CorpusConfig) -> None:
        self._tokens = tokens
        self._trie: PhraseTrie | None = None
        self._listed = list(tokens)
        if config.phrases != "none":
            self._trie, members = _find_phrases(tokens)
            self._listed += members
        # A text in memory has no bytes that are not UTF-8, except for lone surrogates, which separate tokens.
        self._config = dataclasses.replace(config, errors="replace")
        self._rules = build_rules(self._config)
        self._token_rules = build_rules(self._config, is_tokenized=True, has_marks=True)
        self._types = TypeTable.from_tokens(self._listed)
        self._lock = Lock()  # A table cannot be filled by two threads.

    def number(self, texts: Sequence[str | Sequence[str] | None]) -> NumberedTexts:
        """Return the token numbers of texts or lists of tokens; a missing text (None or NaN) has none."""
        items = ["" if is_missing(text) else text for text in texts]
        rules = self._rules
        if any(isinstance(item, (list, tuple)) for item in items):
            rules = self._token_rules
            encoded = [_pack_tokens(number, item, rules.form) for number, item in enumerate(items, 1)]
        else:
            if self._config.tokenizer == "icu":
                items = [insert_spaces(item) if isinstance(item, str) else item for item in items]
            strings = check_items(items, str, "a string")
            encoded = [normalize(text, rules.form).encode("utf-8", "surrogatepass") for text in strings]
        stops = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        data = np.frombuffer(b"".join(encoded), np.uint8)

        with self._lock:
            out, ends = self._scan(data, stops, rules)
            if self._trie is not None:
                out, places = self._trie.join(out)
                ends = np.searchsorted(places, ends)
            is_token = out != BREAK
            unknown, numbers = self._name_unknown(out[is_token].astype(np.int64))
        return NumberedTexts(numbers, np.concatenate([[0], np.cumsum(is_token)])[ends], unknown)

    def _scan(
        self, data: NDArray[np.uint8], stops: NDArray[np.int64], rules: TokenizerRules
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the type numbers with breaks between units, and where each text ends among them."""
        types = self._types
        types.reserve(
            len(data) // 2 + len(stops) + kernels.STEP_TYPES, 2 * len(data) + MAX_TOKEN_BYTES + kernels.STEP_BYTES
        )

        types.begin_scan(rules, start_text())

        out = np.empty(len(data) + 2 * len(stops) + 8, np.uint32)
        ends = np.empty(len(stops), np.int64)
        tables = rules.kinds, rules.plain, rules.lower, rules.abbreviations
        kernels.scan_texts(data, stops, *tables, types.slots, types.arena, types.types, types.state, out, ends)
        return out[: types.state[kernels.OUT]], ends

    def _name_unknown(self, numbers: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
        """Return the unknown tokens, and the numbers with those of unknown tokens counted from the vocabulary on."""
        size = len(self._tokens)
        is_unknown = numbers >= size
        distinct, places = np.unique(numbers[is_unknown], return_inverse=True)
        unknown = [token.decode("utf-8", "replace") for token in self._types.pack().tokens(distinct)]
        numbers[is_unknown] = size + places

        if len(self._types) > size + _MAX_UNKNOWN:
            self._types = TypeTable.from_tokens(self._listed)
        return unknown, numbers


def _pack_tokens(number: int, tokens: object, form: str) -> bytes:
    """Return a list of tokens in UTF-8, each followed by a mark."""
    if tokens and isinstance(tokens, str):
        raise CorpusError(f"item {number}: expected a list of tokens like other items, got the text {tokens[:60]!r}")
    if not all(isinstance(token, str) for token in tokens):  # type: ignore[attr-defined]
        raise CorpusError(f"item {number}: all tokens must be strings")
    return b"".join(normalize(token, form).encode("utf-8", "replace") + b"\xfe" for token in tokens)  # type: ignore[attr-defined]


def _find_phrases(tokens: Sequence[str]) -> tuple[PhraseTrie, list[str]]:
    """Return the phrases among tokens, and their words that are no tokens; these are numbered after the tokens."""
    numbers = {token: number for number, token in enumerate(tokens)}
    phrases = [(words, numbers[token]) for token in tokens if len(words := split_phrase(token)) > 1]
    members = list(dict.fromkeys(word for words, _ in phrases for word in words if word not in numbers))
    numbers |= {word: len(tokens) + place for place, word in enumerate(members)}

    # Any other token has a number that the trie does not know, and nodes must not have it.
    sequences = [([numbers[word] for word in words], target) for words, target in phrases]
    return PhraseTrie(_FIRST_NODE, sequences), members
