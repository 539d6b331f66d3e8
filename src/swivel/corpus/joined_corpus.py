"""Phrases: adjacent tokens that occur together more often than by chance become one token, such as `new_york`.

The scores are those of word2vec's word2phrase and of gensim's `Phrases`, and so is the result: every pair of adjacent
tokens is counted, those that score above a threshold are joined from left to right, and a second pass over the result
finds longer phrases. All of this works on token numbers; the text is read once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.config import SCORERS, CorpusConfig
from swivel.corpus.encoded_corpus import EncodedCorpus, TypeCounts, TypeTable, write_parts
from swivel.corpus.normalization import lower_token, normalize_tokens
from swivel.corpus.vocabulary import BREAK, GAP, Vocabulary, read_tokens
from swivel.errors import ConfigError
from swivel.runtime.kernels import njit_cached
from swivel.runtime.parallel import map_in_order
from swivel.storage.arrays import ArrayAppender

Ids = NDArray[np.uint32]
Ints = NDArray[np.int64]

THRESHOLDS = {"word2vec": 10.0, "npmi": 0.5}
JOINT = "_"
_PARTS = 16  # of all pairs; the pairs of one part are counted at a time, in a table that fits in the cache
_FIRST_SLOTS = 1 << 16
_CHUNK_IDS = 1 << 20
_BASE = np.uint64(0x9E3779B97F4A7C15)  # of the hashes of sequences of words
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
_compile = njit_cached(**_OPTIONS)
_inline = njit_cached(forceinline=True, **_OPTIONS)
Keys = NDArray[np.uint64]


class Phrase(NamedTuple):
    """A phrase with its number of occurrences and its score."""

    token: str
    occurrences: int
    score: float


class JoinedCorpus:
    """A corpus as token numbers, in which phrases are tokens; it has the methods of `EncodedCorpus` and its counts."""

    def __init__(self, encoded: EncodedCorpus, scratch: Path, threads: int) -> None:
        counts = encoded.counts()
        self.tokens = list(counts)
        self.ids = encoded.write_ids(
            Vocabulary(self.tokens), keep_gaps=False, path=scratch / "tokens-0.npy", threads=threads
        )
        self.unit_count = encoded.unit_count
        self.phrases: list[Phrase] = []
        self.absent: list[str] = []  # phrases of a list that do not occur
        self._counts = np.fromiter(counts.values(), np.int64, len(counts))
        self._scratch = scratch
        self._threads = threads
        self._passes = 0

        self._hashes, self._powers = _hash_names(self.tokens)

    @property
    def token_count(self) -> int:
        """Number of tokens of the text; a phrase is one."""
        return int(self._counts.sum())

    @property
    def types(self) -> TypeCounts:
        """The tokens that occur, with their counts."""
        places = np.flatnonzero(self._counts).tolist()
        table = TypeTable.from_tokens([self.tokens[place] for place in places], self._counts[places])
        return TypeCounts([table.pack()], memory_bytes=1 << 62)  # It is in memory already.

    def write_ids(self, vocabulary: Vocabulary, *, keep_gaps: bool, path: Path, threads: int) -> Ids:
        """Write the corpus as ids of a vocabulary, as `EncodedCorpus.write_ids` does."""
        absent = GAP if keep_gaps else BREAK
        numbers = np.array([vocabulary.ids.get(token, absent) for token in self.tokens], np.uint32)
        starts = range(0, len(self.ids), _CHUNK_IDS)
        return write_parts(((numbers, self.ids[start : start + _CHUNK_IDS]) for start in starts), path, threads)

    def find(self, config: CorpusConfig) -> None:
        """Find phrases and join them, in as many passes as configured."""
        for _ in range(config.phrase_passes):
            first, second, both, counts, types = self._count_pairs(config.phrase_min_count)
            scores = score_pairs(counts[first], counts[second], both, types, self.token_count, config)
            threshold = THRESHOLDS[config.phrases] if config.phrase_threshold is None else config.phrase_threshold
            indices = np.flatnonzero(scores > threshold)
            if not len(indices):
                return

            pairs = list(zip(first[indices].tolist(), second[indices].tolist(), strict=True))
            names = [f"{self.tokens[a]}{JOINT}{self.tokens[b]}" for a, b in pairs]
            self.join(list(zip(names, pairs, strict=True)))

            occurrences_of = self.types.of_tokens(names)
            best = dict(zip(names, scores[indices].tolist(), strict=True))
            self.phrases += [Phrase(name, occurrences_of[name], best[name]) for name in best if name in occurrences_of]

    def join_list(self, phrases: Iterable[str]) -> None:
        """Join the phrases of a list, each with `_` or spaces between its words; of several, the longest."""
        ids = {token: number for number, token in enumerate(self.tokens)}
        sequences = [(JOINT.join(words), words) for words in map(split_phrase, phrases) if len(words) > 1]
        known = [(name, tuple(ids[word] for word in words)) for name, words in sequences if set(words) <= ids.keys()]
        self.join(known)
        occurrences_of = self.types.of_tokens(name for name, _ in sequences)
        self.absent = [name for name, _ in sequences if name not in occurrences_of]

    def join(self, sequences: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        """Replace sequences of tokens by tokens with the given names, from left to right."""
        numbers = self._add_tokens(sequences)
        trie = PhraseTrie(len(self.tokens), [(members, numbers[name]) for name, members in sequences])
        self._passes += 1
        joined = map_in_order(trie.join, self._chunks(), threads=self._threads)
        file = ArrayAppender(self._scratch / f"tokens-{self._passes}.npy", np.uint32)
        with contextlib.closing(file):
            for ids, _ in joined:
                file.append(ids)
        self.ids = file.open()

        counts = np.zeros(len(self.tokens), np.int64)
        for ids in self._chunks():
            counts += np.bincount(ids[ids != BREAK], minlength=len(counts))
        self._counts = counts

    def _add_tokens(self, sequences: Sequence[tuple[str, tuple[int, ...]]]) -> Mapping[str, int]:
        """Add the names of sequences to the tokens, with their hashes, and return all token numbers."""
        numbers = {token: number for number, token in enumerate(self.tokens)}
        for name, _ in sequences:
            if name not in numbers:
                numbers[name] = len(self.tokens)
                self.tokens.append(name)

        hashes, powers = _hash_names(self.tokens[len(self._hashes) :])
        self._hashes = np.concatenate([self._hashes, hashes])
        self._powers = np.concatenate([self._powers, powers])
        return numbers

    def _chunks(self) -> Iterable[Ids]:
        """Yield the ids in parts that end with a break, so that no phrase crosses the end of one."""
        start = 0
        while start < len(self.ids):
            stop = min(start + _CHUNK_IDS, len(self.ids))
            while stop < len(self.ids):
                breaks = np.flatnonzero(self.ids[stop : stop + _CHUNK_IDS] == BREAK)
                stop = stop + int(breaks[0]) + 1 if len(breaks) else min(stop + _CHUNK_IDS, len(self.ids))
                if len(breaks):
                    break
            yield self.ids[start:stop]
            start = stop

    def _count_pairs(self, min_count: int) -> tuple[Ints, Ints, Ints, Ints, int]:
        """Return the frequent pairs of adjacent tokens, their counts, those of all tokens, and the number of names.

        As in gensim, all of one name have one count: the pairs a_b + c and a + b_c, and a token a_b_c of the text.
        """
        has_parts = self._powers != _BASE
        names_with_parts = self._hashes[has_parts]

        def may_be_shared(first: Ints, second: Ints) -> NDArray[np.bool_]:
            """Return which pairs may have the name of another pair, or of a token."""
            shared = np.asarray(has_parts[first] | has_parts[second])
            if has_parts.any():
                shared |= np.isin(self._hash_pairs(first, second), names_with_parts)
            return shared

        def count(part: int) -> tuple[NDArray[np.uint64], Ints, int]:
            slots = _FIRST_SLOTS
            while True:
                keys = np.zeros(slots, np.uint64)
                counts = np.zeros(slots, np.int64)
                distinct = count_pairs(self.ids, part, _PARTS, keys, counts)
                if distinct >= 0:
                    break
                slots *= 4
            used = keys != 0
            keys, counts = keys[used], counts[used]
            is_needed = (counts >= min_count) | may_be_shared(*_split_keys(keys))
            return keys[is_needed], counts[is_needed], distinct

        with ThreadPoolExecutor(self._threads) as pool:
            parts = list(pool.map(count, range(_PARTS)))
        firsts, seconds = _split_keys(np.concatenate([part[0] for part in parts]))
        counts = np.concatenate([part[1] for part in parts])
        tokens = np.flatnonzero(has_parts & (self._counts > 0))
        pairs = np.flatnonzero(may_be_shared(firsts, seconds))

        hashes = np.concatenate([self._hash_pairs(firsts[pairs], seconds[pairs]), self._hashes[tokens]])
        unique, inverse = np.unique(hashes, return_inverse=True)
        sums = np.bincount(inverse, np.concatenate([counts[pairs], self._counts[tokens]]), len(unique)).astype(np.int64)
        counts[pairs] = sums[inverse[: len(pairs)]]
        token_counts = self._counts.copy()
        token_counts[tokens] = sums[inverse[len(pairs) :]]
        names = int(np.count_nonzero(self._counts)) + sum(part[2] for part in parts) - len(hashes) + len(unique)

        is_frequent = counts >= min_count
        return firsts[is_frequent], seconds[is_frequent], counts[is_frequent], token_counts, names

    def _hash_pairs(self, first: Ints, second: Ints) -> NDArray[np.uint64]:
        """Return the hashes of the names of pairs: those that `_hash_names` would compute."""
        with np.errstate(over="ignore"):
            return self._hashes[first] * self._powers[second] + self._hashes[second]


def _split_keys(keys: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    first = (keys >> np.uint64(32)).astype(np.int64) - 1
    return first, (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _hash_names(names: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return a hash of every name, and the power by which the hash of what precedes the name is multiplied.

    The hash of `a_b` is h(a) P + h(b) modulo 2^64, so that it does not matter how a name was put together.
    """
    hashes = np.fromiter(map(hash, names), np.int64, len(names)).view(np.uint64)
    powers = np.full(len(names), _BASE)
    with np.errstate(over="ignore"):
        for place, name in enumerate(names):
            if JOINT in name:
                # The hash of an empty part must not be 0, or _a would be a.
                parts = np.array([hash(part or JOINT) for part in name.split(JOINT)], np.int64).view(np.uint64)
                steps = np.multiply.accumulate(np.full(len(parts), _BASE))
                hashes[place] = (parts[::-1][1:] * steps[:-1]).sum() + parts[-1]
                powers[place] = steps[-1]
    return hashes, powers


def score_pairs(
    first: Ints, second: Ints, both: Ints, types: int, total: int, config: CorpusConfig
) -> NDArray[np.float64]:
    """Return the score of every pair from counts: gensim's default, (n_ab - min_count) types / (n_a n_b), or NPMI."""
    a, b, ab = (counts.astype(np.float64) for counts in (first, second, both))
    if config.phrases == "word2vec":
        return (ab - config.phrase_min_count) / a / b * types

    with np.errstate(divide="ignore", invalid="ignore"):  # A text of one pair only.
        return np.asarray(np.log(ab / total / (a / total * (b / total))) / -np.log(ab / total))


class PhraseTrie:
    """Sequences of token numbers and the number that replaces each; `join` finds the longest at every position.

    >>> ids, places = PhraseTrie(6, [((0, 1), 4), ((0, 1, 2), 5)]).join(np.array([0, 1, 2, 0, 1, 3], np.uint32))
    >>> ids.tolist(), places.tolist()
    ([5, 4, 3], [0, 3, 5])
    """

    def __init__(self, tokens: int, sequences: Iterable[tuple[Sequence[int], int]]) -> None:
        nodes: dict[tuple[int, int], int] = {}
        targets: list[int] = []
        for members, target in sequences:
            state = members[0]
            for member in members[1:]:
                if (state, member) not in nodes:
                    nodes[state, member] = tokens + len(targets)
                    targets.append(-1)
                state = nodes[state, member]
            targets[state - tokens] = target

        self._tokens = tokens
        self._targets = np.array(targets, np.int64)
        slots = 1 << max(2 * len(nodes), 2).bit_length()
        self._keys = np.zeros(slots, np.uint64)
        self._nodes = np.zeros(slots, np.int64)
        keys = np.array([(state + 1) << 32 | member for state, member in nodes], np.uint64)
        fill_trie(keys, np.array(list(nodes.values()), np.int64), self._keys, self._nodes)

    def join(self, ids: Ids) -> tuple[Ids, Ints]:
        """Return the ids with phrases joined, none across a break, and the position where each of them began."""
        out = np.empty(len(ids), np.uint32)
        places = np.empty(len(ids), np.int64)
        size = join_phrases(ids, self._tokens, self._keys, self._nodes, self._targets, out, places)
        return out[:size], places[:size]


def split_phrase(phrase: str) -> tuple[str, ...]:
    """Return the words of a phrase, which are separated by `_` or white space."""
    return tuple(phrase.replace(JOINT, " ").split())


def read_phrases(config: CorpusConfig) -> tuple[str, ...] | None:
    """Return the phrases in the file that `config.phrases` names, as the text is read; None if it names no file."""
    path = config.phrase_file
    if path is None:
        return None
    if not path.is_file():
        raise ConfigError(
            f"phrases must be none, {', '.join(SCORERS)} or a file with one phrase per line, got {path}",
            argument="phrases",
        )
    phrases = normalize_tokens(read_tokens(path), config.normalization)
    return tuple(lower_token(phrase, config) for phrase in phrases)


def join_corpus(
    encoded: EncodedCorpus, config: CorpusConfig, *, scratch: Path, threads: int, phrases: Iterable[str] | None = None
) -> JoinedCorpus:
    """Return the corpus with phrases joined: those of a list, or without one those found in the text."""
    joined = JoinedCorpus(encoded, scratch, threads)
    if phrases is None:
        joined.find(config)
    else:
        joined.join_list(phrases)
    return joined


@_inline
def _mix(key: Any) -> Any:
    """Return a key with its bits mixed by multiplication and shifts."""
    value = key * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return value ^ (value >> np.uint64(32))


@_compile
def count_pairs(ids: Ids, part: int, parts: int, keys: Keys, counts: Ints) -> int:
    """Count the pairs of adjacent tokens that belong to a part of all pairs, in a hash table with open addressing."""
    # The key of a pair is (first + 1) << 32 | second. Returns the number of distinct pairs, or -1 if the table is more
    # than half full.
    mask = np.uint64(keys.size - 1)  # The number of slots is a power of two.
    distinct = 0
    for position in range(ids.size - 1):
        first = ids[position]
        second = ids[position + 1]
        if first == BREAK or second == BREAK:
            continue

        key = ((np.uint64(first) + np.uint64(1)) << np.uint64(32)) | np.uint64(second)
        # The part is in other bits of the hash than the slot, or all pairs of a part would share few slots.
        mixed = _mix(key)
        if (mixed >> np.uint64(48)) % np.uint64(parts) != np.uint64(part):
            continue

        slot = mixed & mask
        while keys[slot] != np.uint64(0) and keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if keys[slot] == np.uint64(0):
            keys[slot] = key
            distinct += 1
            if 2 * distinct > keys.size:
                return -1
        counts[slot] += 1
    return distinct


@_compile
def fill_trie(new_keys: Keys, new_nodes: Ints, keys: Keys, nodes: Ints) -> None:
    """Insert distinct keys with their nodes into empty slots; at most half of the slots are used."""
    mask = np.uint64(keys.size - 1)
    for number in range(new_keys.size):
        slot = _mix(new_keys[number]) & mask
        while keys[slot] != np.uint64(0):
            slot = (slot + np.uint64(1)) & mask
        keys[slot] = new_keys[number]
        nodes[slot] = new_nodes[number]


@_inline
def _find_node(keys: Keys, nodes: Ints, state: int, member: Any) -> Any:
    """Return the node after a state and a token, or -1."""
    mask = np.uint64(keys.size - 1)
    key = ((np.uint64(state) + np.uint64(1)) << np.uint64(32)) | np.uint64(member)
    slot = _mix(key) & mask
    while keys[slot] != np.uint64(0):
        if keys[slot] == key:
            return nodes[slot]
        slot = (slot + np.uint64(1)) & mask
    return np.int64(-1)


@_compile
def join_phrases(ids: Ids, tokens: int, keys: Keys, nodes: Ints, targets: Ints, out: Ids, places: Ints) -> int:
    """Replace the longest phrase that starts at each position, from left to right; return the number of ids written."""
    # A state is a token, or a node of the trie from `tokens` on; `targets` has the phrase of a node, or -1. `places` is
    # filled with the position where each written id began.
    size = 0
    position = 0
    while position < ids.size:
        first = ids[position]
        target = np.int64(first)
        stop = position + 1

        if first != BREAK:
            state = np.int64(first)
            after = position + 1
            while after < ids.size and ids[after] != BREAK:
                state = _find_node(keys, nodes, state, ids[after])
                if state < 0:
                    break
                after += 1
                if targets[state - tokens] >= 0:
                    target = targets[state - tokens]
                    stop = after

        out[size] = target
        places[size] = position
        size += 1
        position = stop
    return size
