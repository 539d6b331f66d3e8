"""Vectors of character n-grams, fitted to trained vectors: the vector of a word that was never seen, from its spelling.

The n-grams of `<word>` are named by their hash, as in fastText. Those that occur in several words have a vector z. The
guess for a word with n n-grams is the mean of all words plus the sum of the z of its n-grams divided by sqrt(n). The z
minimize the squared error of the guesses for the trained words (scaled to length 1), weighted by the confidence
count / (count + 50), plus a penalty of |z|^2: a ridge regression, solved by conjugate gradients.

The longer a guess, the higher its expected cosine: the penalty shortens predictions for which there is little evidence.

`Guesser` corrects the guesses of n-grams. They say what words with the same stem or ending have in common. What they
miss for `computable` they probably miss for `uncomputable`, too. The guess is therefore
g + sum_k s_k^3 r_k / (0.1 + sum_k s_k^3): g is the guess of the n-grams, k are the known words whose n-grams are most
similar, r_k is the vector of such a word minus the guess of its n-grams, and s_k is the cosine of the two words'
n-grams, weighted by inverse document frequency. r_k lacks what `add_spelling` added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.config import VectorsConfig
from swivel.errors import ConfigError
from swivel.runtime.parallel import open_torch_pool
from swivel.runtime.resources import check_memory, count_cores
from swivel.vectors.combine import has_cuda
from swivel.vectors.search import Floats, scale_and_measure

if TYPE_CHECKING:
    import scipy.sparse
    import torch

    from swivel.corpus.vocabulary import Vocabulary
    from swivel.vectors.vectors import Vectors

MIN_WORDS = 1_000  # Fewer words do not say what an n-gram means.
MIN_N = 3
MAX_N = 6
MAX_NGRAMS = 1 << 17
_MIN_NGRAM_WORDS = 2  # An n-gram of a single word says nothing about other words.
_PENALTY = 0.3
_HALF_COUNT = 50  # words with this count have half the weight of very frequent ones
# Expected cosine of a guess with relative length r: slope * r + offset, from words that were left out of a training on
# 65 M words of Wikipedia. (With a regression on infinitely many words it would be r.)
_SLOPE = 1.12
_OFFSET = -0.155
# Threads of a CPU that solve at a time, and the dimensions of each. With 98,304 words, 32 dimensions took a sixth less
# time and four times as much memory; all 300 on all threads took half as much time again and nine times as much.
_SOLVERS = 4
_SOLVED_DIMENSIONS = 8
_STEPS = 12  # of conjugate gradients; more fit the rare words, and guesses get worse
# Memory of `index_ngrams` for each n-gram of each word, while it runs and afterwards. Measured: 48 and 8 bytes with
# 5,000 to 84,000 English words, which have 21 to 25 n-grams each.
_INDEXING_BYTES = 48
_INDEX_BYTES = 8
# Arrays with a number per dimension that a fit has at a time: one for each n-gram, two for each word, and those of
# every thread for its dimensions.
_WORD_ARRAYS = 2
_SOLVED_NGRAM_ARRAYS = 9
_SOLVED_WORD_ARRAYS = 4
_MIN_REPEATS = 6  # mean number of occurrences of a chosen n-gram: 7 with 5,000 English words, 10 with 27,000
# Chosen on half of the words that were left out of a training on 16 MB of text (experiments/notes.md).
_NEIGHBORS = 4
_POWER = 3
_DOUBT = 0.1
_MAX_WORDS = 200  # N-grams of more words, such as "ing>", say little and would take most of the time.
# Chosen on 2, 10 and 60 MB of text (experiments/notes.md).
_WEIGHT = 2  # of the spelling in the vector of a word that occurs once
_DOUBTED = 0.25  # times `spelling`: occurrences at which a vector is half certain, before the square root
_CHUNK_WORDS = 4_096
_BYTES_PER_NGRAM = 64  # of each word, while the index is made. Measured: 58 with 98,304 English words


class Guess(NamedTuple):
    """A vector that was guessed from the spelling of a word, and its expected cosine with the true one."""

    word: str
    vector: Floats
    expected_cosine: float


@dataclass(frozen=True, slots=True)
class Subwords:
    """Vectors of n-grams."""

    ngrams: NDArray[np.uint32]  # hashes, ascending
    table: Floats  # (n_ngrams + 1, dim): one vector per n-gram, then the mean of all words
    length: float  # mean length of the vectors that the table was fitted to
    min_n: int = MIN_N
    max_n: int = MAX_N

    def __post_init__(self) -> None:
        if np.ndim(self.table) != 2 or len(self.table) != len(self.ngrams) + 1:
            raise ConfigError(f"{len(self.ngrams):,} n-grams and a mean need as many vectors, got {self.table.shape}")

    def guess(self, words: Sequence[str]) -> Floats:
        """Return one vector per word, of shape (n_words, dim); the mean for a word without n-grams."""
        return np.asarray(self.guess_differences(words) + self.table[-1])

    def guess_differences(self, words: Sequence[str]) -> Floats:
        """Return what differs in the guess of each word from the mean of all words, of shape (n_words, dim)."""
        hashes, starts = hash_ngrams(words, self.min_n, self.max_n)
        sums = sum_rows(self.table[:-1], find_sorted(self.ngrams, hashes), starts)
        lengths = np.sqrt(np.maximum(np.diff(starts), 1), dtype=np.float32)
        return np.asarray(sums / lengths[:, None])

    def estimate_cosines(self, guesses: Floats) -> NDArray[np.float64]:
        """Return the expected cosine of each guess with the vector that the word would have had."""
        lengths = np.linalg.norm(guesses.astype(np.float64), axis=1) / (self.length or 1.0)
        return np.asarray(np.clip(_SLOPE * lengths + _OFFSET, 0.0, 1.0))


def add_spelling(vectors: Floats, differences: Floats, counts: NDArray[np.int64], spelling: float) -> Floats:
    """Return vectors plus 2 spelling / (count + spelling) times the difference of each guess from the mean."""
    # The mean itself would only make rare words similar to each other: with 2 MB of text, WS sim fell from .50 to .42.
    result = differences * _weigh_spelling(vectors, counts, spelling)
    result += vectors
    return result


def remove_spelling(vectors: Floats, differences: Floats, counts: NDArray[np.int64], spelling: float) -> Floats:
    """Return the vectors from which `add_spelling` made these ones."""
    return np.asarray(vectors - differences * _weigh_spelling(vectors, counts, spelling))


def _weigh_spelling(vectors: Floats, counts: NDArray[np.int64], spelling: float) -> Floats:
    # Vectors of zeros stay zero.
    weights = _WEIGHT * spelling / (np.maximum(counts, 1) + spelling) * vectors.any(axis=1)
    return np.asarray(weights[:, None], np.float32)


def spelling_of(settings: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the setting `spelling` of vectors; 0 if it is not known."""
    return float(settings.get("vectors", {}).get("spelling", 0.0))


def rate_certainty(counts: NDArray[np.int64], spelling: float) -> Floats:
    """Return the certainty of vectors that `add_spelling` made, sqrt(count / (count + spelling / 4)).

    >>> [round(value, 3) for value in rate_certainty(np.array([75, 0]), 100.0).tolist()]
    [0.866, 0.196]
    """
    counts = np.maximum(counts, 1)
    return np.asarray(np.sqrt(counts / (counts + _DOUBTED * spelling)), np.float32)


def find_sorted(values: NDArray[np.uint32], keys: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the positions of some values in an ascending array; -1 for those that are not there.

    >>> find_sorted(np.array([3, 5, 9], np.uint32), np.array([9, 4, 10], np.uint32)).tolist()
    [2, -1, -1]
    """
    places = np.searchsorted(values, keys)
    is_found = places < len(values)
    is_found[is_found] = values[places[is_found]] == keys[is_found]
    return np.where(is_found, places, -1)


def sum_rows(
    table: Floats, places: NDArray[np.int64], starts: NDArray[np.int64], weights: Floats | None = None
) -> Floats:
    """Return sums of rows of a table: sum n has those at places[starts[n]:starts[n + 1]], without places of -1.

    `weights` are those of the rows of the table, by default 1.

    >>> sum_rows(np.eye(2, dtype=np.float32), np.array([0, 1, -1, 1]), np.array([0, 2, 4])).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    import scipy.sparse

    is_used = places >= 0
    # Dropping places of -1 shifts every start by the number of drops before it.
    used_starts = np.concatenate([[0], np.cumsum(is_used)])[starts]
    used = places[is_used]
    data = np.ones(len(used), np.float32) if weights is None else weights[used]
    return np.asarray(scipy.sparse.csr_array((data, used, used_starts), (len(starts) - 1, len(table))) @ table)


def hash_ngrams(words: Sequence[str], min_n: int, max_n: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return fastText's hashes of the n-grams of all words, one word after the other, and where each word starts.

    >>> hashes, starts = hash_ngrams(["cat", ""], 3, 4)
    >>> (hashes % 100).tolist(), starts.tolist()
    ([47, 31, 6, 73, 95], [0, 5, 5])
    """
    data = np.frombuffer("".join(f"<{word}>" for word in words).encode("utf-8", "surrogatepass") + b"\0", np.int8)
    characters = np.flatnonzero((data & np.int8(-64)) != np.int8(-128))  # positions of first bytes, and of the end
    lengths = np.array([len(word) + 2 for word in words], np.int64)
    ends = np.repeat(np.cumsum(lengths), lengths)  # of the word of each character

    hashes = []
    owners = []
    owner = np.repeat(np.arange(len(words)), lengths)
    for n in range(min_n, max_n + 1):
        first = np.flatnonzero(np.arange(len(ends)) + n <= ends)
        hashes.append(_hash_bytes(data, characters[first], characters[first + n]))
        owners.append(owner[first])

    # Hashes are sorted by length so far; the stable sort groups them by word and keeps that order within a word.
    order = np.argsort(np.concatenate(owners), kind="stable")
    starts = np.searchsorted(np.concatenate(owners)[order], np.arange(len(words) + 1))
    return np.concatenate(hashes)[order], starts.astype(np.int64)


def count_ngrams(words: Sequence[str], min_n: int, max_n: int) -> int:
    """Return the number of n-grams of all words, each as often as it occurs."""
    lengths = np.fromiter(map(len, words), np.int64, len(words)) + 2  # of <word>
    return sum(int(np.maximum(lengths - n + 1, 0).sum()) for n in range(min_n, max_n + 1))


def _hash_bytes(data: NDArray[np.int8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the FNV-1a hashes of slices of bytes."""
    hashes = np.full(len(starts), 2_166_136_261, np.uint32)
    longest = int((stops - starts).max(initial=0))
    # All slices advance by one byte at a time, so the loop is as long as the longest slice.
    for offset in range(longest):
        at = starts + offset
        is_inside = at < stops
        # int8 -> int32 -> uint32 extends the sign, as in fastText, whose characters are signed.
        value = data[np.where(is_inside, at, 0)].astype(np.int32).view(np.uint32)
        hashes = np.where(is_inside, (hashes ^ value) * np.uint32(16_777_619), hashes)
    return hashes


def add_subwords(
    vectors: Vectors, config: VectorsConfig, *, device: str = "cpu", index: NgramIndex | None = None
) -> Vectors:
    """Return vectors with n-grams fitted to them, with what the spelling of rare words adds to them, as configured.

    The fit runs on `device` if this process has it. `index` is that of the words, if it is known already.
    """
    words = vectors.vocabulary.tokens
    counts = vectors.vocabulary.counts
    if not needs_ngrams(config, len(words)):
        return vectors

    fitted = _fit(vectors.vectors, index or index_ngrams(words), counts, device if has_cuda(device) else "cpu")
    if fitted is None:
        return vectors

    subwords, differences = fitted
    if not config.spelling:
        return vectors.replace(subwords=subwords)
    spelled = add_spelling(vectors.vectors, differences, counts, config.spelling)
    settings = {**vectors.settings, "vectors": {**vectors.settings.get("vectors", {}), "spelling": config.spelling}}
    return vectors.replace(vectors=spelled, subwords=subwords, settings=settings)


def needs_ngrams(config: VectorsConfig, words: int) -> bool:
    """Return whether n-grams are fitted to the vectors of so many words."""
    return config.subwords != "none" and words >= MIN_WORDS


def fit_subwords(vectors: Floats, words: Sequence[str], counts: NDArray[np.int64]) -> Subwords:
    """Fit the vectors of n-grams to those of words; raise ConfigError if there are too few words."""
    check_memory("fitting n-grams", max(estimate_memory(words, vectors.shape[1])))
    fitted = _fit(vectors, index_ngrams(words), counts, "cpu")
    if fitted is None:
        used = int(vectors.any(axis=1).sum())
        raise ConfigError(f"n-grams need {MIN_WORDS:,} words that have vectors, got {used:,}")
    return fitted[0]


class NgramIndex(NamedTuple):
    """The n-grams of words and the words of n-grams; it depends on nothing but the words."""

    ngrams: NDArray[np.uint32]  # hashes of the chosen n-grams, ascending; the number of an n-gram is its position
    numbers: NDArray[np.signedinteger]  # numbers of the chosen n-grams of each word, one word after the other
    word_starts: NDArray[np.signedinteger]
    owners: NDArray[np.signedinteger]  # the words of each n-gram, one n-gram after the other
    ngram_starts: NDArray[np.signedinteger]
    scales: Floats  # 1 / sqrt(n) for a word with n n-grams, chosen or not


def index_ngrams(words: Sequence[str]) -> NgramIndex:
    """Return the index of the most frequent n-grams of some words."""
    import scipy.sparse

    hashes, starts = hash_ngrams(words, MIN_N, MAX_N)
    sizes = np.diff(starts)
    ngrams = _choose_ngrams(hashes, np.repeat(np.arange(len(words), dtype=np.int32), sizes))
    numbers = find_sorted(ngrams, hashes).astype(np.int32)
    is_chosen = numbers >= 0
    chosen = numbers[is_chosen]

    # SciPy gives numbers and starts one dtype, which torch needs, too.
    word_starts = np.concatenate([[0], np.cumsum(is_chosen)])[starts]
    shape = len(words), len(ngrams)
    by_word = scipy.sparse.csr_array((np.ones(len(chosen), np.int8), chosen, word_starts), shape=shape)
    by_ngram = by_word.tocsc()
    scales = np.asarray(1 / np.sqrt(np.maximum(sizes, 1)), np.float32)
    return NgramIndex(ngrams, by_word.indices, by_word.indptr, by_ngram.indices, by_ngram.indptr, scales)


def estimate_memory(words: Sequence[str], dim: int) -> tuple[int, int]:
    """Return the bytes that n-grams need: while the words are indexed, and for the index and the fit afterwards.

    >>> estimate_memory(["cat", "dog"], 100)[0]  # 6 n-grams each
    576
    """
    entries = count_ngrams(words, MIN_N, MAX_N)
    ngrams = min(entries // _MIN_REPEATS, MAX_NGRAMS)
    solving = _SOLVED_NGRAM_ARRAYS * ngrams + _SOLVED_WORD_ARRAYS * len(words)
    arrays = 4 * dim * (ngrams + _WORD_ARRAYS * len(words)) + 4 * _SOLVERS * min(_SOLVED_DIMENSIONS, dim) * solving
    return _INDEXING_BYTES * entries, _INDEX_BYTES * entries + arrays


def _choose_ngrams(hashes: NDArray[np.uint32], owners: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Return the hashes of the n-grams that occur in most words, ascending, without those of a single word."""
    # Hash in the upper half, word in the lower half: one sort groups the words of each n-gram.
    pairs = np.sort(hashes.astype(np.uint64) << np.uint64(32) | owners.astype(np.uint64))
    # An n-gram may occur twice in a word: count a pair once. The first pair differs from what is prepended.
    pairs = pairs[np.diff(pairs, prepend=pairs[:1] + np.uint64(1)) != 0]
    ngrams, counts = np.unique((pairs >> np.uint64(32)).astype(np.uint32), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MAX_NGRAMS]
    return np.sort(ngrams[order[counts[order] >= _MIN_NGRAM_WORDS]])


def _fit(vectors: Floats, index: NgramIndex, counts: NDArray[np.int64], device: str) -> tuple[Subwords, Floats] | None:
    """Return the vectors of n-grams and what they add to the mean for each word; None if there are too few words."""
    import torch

    unit, lengths = scale_and_measure(vectors)
    is_used = lengths > 0
    if is_used.sum() < MIN_WORDS:
        return None

    weights = np.where(is_used, counts / (counts + _HALF_COUNT) if counts.any() else 1.0, 0.0).astype(np.float32)
    mean = np.asarray(weights @ unit / weights.sum(), np.float32)
    length = float(lengths[is_used].mean())

    # The mean of all words is not an effect of spelling: the regression explains what differs from it.
    unit -= mean
    try:
        table = _solve(index, unit, weights, device)
    except torch.OutOfMemoryError:  # of the device
        table = _solve(index, unit, weights, "cpu")
    table[-1] = mean
    table *= np.float32(length)
    differences = unit
    differences *= np.float32(length)
    return Subwords(index.ngrams, table, length), differences


def _solve(index: NgramIndex, targets: Floats, weights: Floats, device: str) -> Floats:
    """Return the z that minimize sum_w weight_w |target_w - (A z)_w|^2 + penalty |z|^2, and a last row to be filled.

    The targets are replaced by A z.
    """
    # A sums the n-grams of each word and scales the sum. Conjugate gradients, preconditioned by the diagonal. The
    # dimensions do not depend on each other: a core of a CPU solves some at a time, whose arrays are small.
    import torch
    from torch.nn.functional import embedding_bag

    def on_device(array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def bag_sums(columns: NDArray[Any], starts: NDArray[Any]) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the product with a sparse matrix of ones, whose row n has the columns from starts[n] on."""
        indices = on_device(columns)
        offsets = on_device(starts)
        return lambda table: embedding_bag(indices, table, offsets, mode="sum", include_last_offset=True)

    # S sums the n-grams of each word, S' the words of each n-gram; A = diag(scale) S.
    sum_ngrams = bag_sums(index.numbers, index.word_starts)
    sum_words = bag_sums(index.owners, index.ngram_starts)
    scale = on_device(index.scales)[:, None]
    weighted = scale * on_device(weights)[:, None]
    diagonal = sum_words(scale * weighted) + _PENALTY

    dim = targets.shape[1]
    result = np.empty((len(index.ngrams) + 1, dim), np.float32)

    def solve(piece: slice) -> None:
        """Find z and A z for some dimensions. Large arrays are reused: new ones take as long as the arithmetic."""
        # The start is z = 0, whose residual is A'W targets.
        residual = sum_words(weighted * on_device(targets[:, piece]))
        table = torch.zeros_like(residual)
        direction = residual / diagonal
        scaled = torch.empty_like(residual)
        energy = torch.mul(residual, direction, out=scaled).sum(0)

        # One step solves along `direction`; `product` is (A'WA + penalty) direction, `energy` residual' M^-1 residual
        # for the preconditioner M, the diagonal.
        for _ in range(_STEPS):
            product = sum_words(sum_ngrams(direction).mul_(scale * weighted))
            product.add_(direction, alpha=_PENALTY)
            step = energy / torch.mul(direction, product, out=scaled).sum(0).clamp_min(1e-30)
            table.addcmul_(direction, step)
            residual.addcmul_(product, step, value=-1)

            torch.div(residual, diagonal, out=scaled)
            before, energy = energy, torch.mul(residual, scaled, out=product).sum(0)
            direction.mul_(energy / before.clamp_min(1e-30)).add_(scaled)

        targets[:, piece] = sum_ngrams(table).mul_(scale).cpu().numpy()
        result[:-1, piece] = table.cpu().numpy()

    if device != "cpu":
        solve(slice(0, dim))
        return result
    with open_torch_pool(min(count_cores(), _SOLVERS)) as pool:
        starts = range(0, dim, _SOLVED_DIMENSIONS)
        for _ in pool.map(solve, [slice(start, start + _SOLVED_DIMENSIONS) for start in starts]):
            pass
    return result


class Guesser:
    """Guesses the vectors of words from their spelling, that of known words, and n-grams fitted to these."""

    def __init__(
        self, vectors: Floats, vocabulary: Vocabulary, subwords: Subwords | None, spelling: float = 0.0
    ) -> None:
        import scipy.sparse

        words = vocabulary.tokens

        if subwords is None:
            raise ConfigError("these vectors have no n-grams to guess words from: train with subwords='ngrams'")
        check_memory("guessing words", _BYTES_PER_NGRAM * count_ngrams(words, subwords.min_n, subwords.max_n))
        self._vectors = vectors
        self._words = words
        self._counts = vocabulary.counts
        self._subwords = subwords
        self._spelling = spelling

        # Words without counts, and vectors that are not finite, say nothing about others.
        is_used: NDArray[np.bool_] = np.asarray(vectors.any(axis=1) & np.isfinite(vectors).all(axis=1))
        hashes, starts = hash_ngrams(words, subwords.min_n, subwords.max_n)
        owners = np.repeat(np.arange(len(words), dtype=np.int32), np.diff(starts))
        hashes, owners = hashes[is_used[owners]], owners[is_used[owners]]
        self._ngrams, places = np.unique(hashes, return_inverse=True)
        ones = np.ones(len(owners), np.float32)
        table = scipy.sparse.csr_array((ones, (places, owners)), (len(self._ngrams), len(words)))
        counts = np.diff(table.indptr)  # of words with an n-gram

        # Inverse document frequency log(N / n); an n-gram of too many words gets the weight 0 and is dropped below.
        self._highest = np.log(max(int(is_used.sum()), 2))
        weights = np.where(counts > _MAX_WORDS, 0.0, self._highest - np.log(np.maximum(counts, 1)))
        self._weights = np.asarray(np.maximum(weights, 0.0), np.float32)
        table.data *= np.repeat(self._weights, counts)
        # Columns of length 1: a product with another unit vector is a cosine.
        lengths = np.sqrt(np.bincount(table.indices, np.square(table.data), len(words)))
        table.data /= np.asarray(np.maximum(lengths, 1e-9), np.float32)[table.indices]
        table.eliminate_zeros()
        self._table = table  # (n-gram, word)

    def guess(self, words: Sequence[str]) -> Floats:
        """Return one vector per word, of shape (n_words, dim)."""
        if isinstance(words, str):
            raise ConfigError(f"words must be a list of words, got the text {words!r}")
        words = list(words)
        return self._correct(words, self._subwords.guess(words))

    def guess_word(self, word: str) -> Guess:
        """Return the vector of a word with its expected cosine."""
        by_ngrams = self._subwords.guess([word])
        expected = float(self._subwords.estimate_cosines(by_ngrams)[0])
        return Guess(word, self._correct([word], by_ngrams)[0], expected)

    def _correct(self, words: Sequence[str], guesses: Floats) -> Floats:
        """Return guesses of n-grams, corrected by what they miss for words that are spelled alike."""
        import scipy.sparse

        corrected = np.array(guesses)
        for start in range(0, len(words), _CHUNK_WORDS):
            piece = words[start : start + _CHUNK_WORDS]
            askers, neighbors, similarities = self._find_neighbors(piece)
            neighbor_ids, places = np.unique(neighbors, return_inverse=True)
            neighbor_words = [self._words[number] for number in neighbor_ids.tolist()]
            differences = self._subwords.guess_differences(neighbor_words)
            plain = remove_spelling(
                self._vectors[neighbor_ids], differences, self._counts[neighbor_ids], self._spelling
            )
            missed = plain - differences - self._subwords.table[-1]

            # The correction sum_k s_k^3 r_k / (0.1 + sum_k s_k^3), as a sparse matrix of shares times the residuals r.
            weights = similarities**_POWER
            sums = np.bincount(askers, weights, len(piece))
            shares = np.asarray(weights / (_DOUBT + sums[askers]), np.float32)
            shape = len(piece), len(neighbor_ids)
            correction = scipy.sparse.csr_array((shares, (askers, places)), shape) @ missed
            corrected[start : start + len(piece)] += np.asarray(correction, np.float32)
        return corrected

    def _find_neighbors(self, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return pairs of a word and a known word that is spelled most like it, by number, and their similarities."""
        similar = self._compare(words)
        askers: list[int] = []
        neighbors: list[int] = []
        similarities: list[float] = []
        for number, word in enumerate(words):
            row = slice(similar.indptr[number], similar.indptr[number + 1])
            values, ids = similar.data[row], similar.indices[row]
            # One more than needed, because the word itself may be known.
            order = np.argsort(-values, kind="stable")[: _NEIGHBORS + 1].tolist()
            best = [place for place in order if self._words[ids[place]] != word][:_NEIGHBORS]
            askers += [number] * len(best)
            neighbors += ids[best].tolist()
            similarities += values[best].tolist()
        return np.array(askers, np.int64), np.array(neighbors, np.int64), np.array(similarities, np.float64)

    def _compare(self, words: Sequence[str]) -> scipy.sparse.csr_array:
        """Return the cosines of words (rows) with all known words that share an n-gram with them."""
        import scipy.sparse

        hashes, starts = hash_ngrams(words, self._subwords.min_n, self._subwords.max_n)
        places = find_sorted(self._ngrams, hashes)
        is_known = places >= 0
        weights = np.full(len(hashes), self._highest)  # of n-grams that no known word has
        weights[is_known] = self._weights[places[is_known]]

        owners = np.repeat(np.arange(len(words)), np.diff(starts))
        lengths = np.sqrt(np.bincount(owners, weights**2, len(words)))
        shares = np.asarray(weights / np.maximum(lengths, 1e-9)[owners], np.float32)[is_known]
        cells = scipy.sparse.csr_array((shares, (owners[is_known], places[is_known])), (len(words), len(self._ngrams)))
        return cells @ self._table
