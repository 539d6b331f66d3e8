"""Vectors guessed from the spelling: n-grams as in fastText, the fit against a dense solution, planted words."""

from __future__ import annotations

import itertools
import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import swivel
from message_recorder import MessageRecorder
from swivel.cli.main import cli
from swivel.config import VectorsConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, DamagedFolder, MemoryBudgetError, UnknownToken
from swivel.evaluation.datasets import SimilaritySet
from swivel.evaluation.results import EvaluationConfig
from swivel.evaluation.scores import score_similarity
from swivel.runtime.options import RunOptions
from swivel.vectors import Subwords, Vectors, VectorTable, subwords

STEMS = ["".join(letters) for letters in itertools.product("bdgkt", "aeiou", "lmnr", "pst")]
ENDINGS = ["", "s", "ing", "ness", "able"]


@pytest.fixture(scope="module")
def planted() -> Vectors:
    """Vectors of 1,500 words, each a stem and an ending, whose vector is the sum of both; counts fall."""
    rng = np.random.default_rng(1)
    stems = {stem: rng.standard_normal(16) for stem in STEMS}
    endings = {ending: rng.standard_normal(16) for ending in ENDINGS}
    pairs = [(stem, ending) for stem in STEMS for ending in ENDINGS]
    values = np.array([stems[stem] + endings[ending] for stem, ending in pairs], np.float32)
    counts = np.sort(rng.integers(10, 5_000, len(pairs)))[::-1]
    return Vectors(VectorTable(Vocabulary([stem + ending for stem, ending in pairs], counts), values))


def without(vectors: Vectors, is_left_out: np.ndarray) -> Vectors:
    words = [word for word, gone in zip(vectors.vocabulary, is_left_out, strict=True) if not gone]
    return Vectors(
        VectorTable(Vocabulary(words, vectors.vocabulary.counts[~is_left_out]), vectors.vectors[~is_left_out])
    )


def test_ngrams_have_the_hashes_of_fasttext() -> None:
    from gensim.models.fasttext import ft_ngram_hashes

    words = ["cat", "", "naïve", "中文", "हिन्दी", "a", "🙂x", "state-of-the-art", "<>"]
    hashes, starts = subwords.hash_ngrams(words, 3, 6)
    for number, word in enumerate(words):
        own = hashes[starts[number] : starts[number + 1]] % 12_345
        assert sorted(own.tolist()) == sorted(ft_ngram_hashes(word, 3, 6, 12_345))


def test_the_fit_is_the_ridge_regression(planted: Vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subwords, "_STEPS", 200)
    monkeypatch.setattr(subwords, "MAX_NGRAMS", 256)
    words, counts = planted.vocabulary.tokens, planted.vocabulary.counts
    fitted = subwords.fit_subwords(planted.vectors, words, counts)
    assert fitted is not None

    hashes, starts = subwords.hash_ngrams(words, 3, 6)
    column_of = {ngram: column for column, ngram in enumerate(fitted.ngrams.tolist())}
    incidence = np.zeros((len(words), 256))
    for row, (start, stop) in enumerate(itertools.pairwise(starts)):
        for ngram in hashes[start:stop].tolist():
            if ngram in column_of:
                incidence[row, column_of[ngram]] += 1 / np.sqrt(stop - start)
    assert np.unique(hashes, return_counts=True)[1].max() == (incidence > 0).sum(axis=0).max()
    weights = counts / (counts + 50)
    unit = planted.unit_vectors.astype(np.float64)
    mean = weights @ unit / weights.sum()
    gram = (incidence.T * weights) @ incidence + 0.3 * np.eye(256)
    table = np.linalg.solve(gram, (incidence.T * weights) @ (unit - mean))

    length = np.linalg.norm(planted.vectors, axis=1).mean()
    assert np.allclose(fitted.table, np.concatenate([table, mean[None]]) * length, atol=2e-3)
    expected = length * (incidence @ table + mean)
    assert np.allclose(fitted.guess(words), expected, atol=5e-3)


def test_words_that_were_left_out_are_guessed_about_as_well_as_expected(planted: Vectors) -> None:
    is_left_out = np.random.default_rng(2).random(len(planted)) < 0.1
    known = without(planted, is_left_out).with_subwords()
    words = [word for word, gone in zip(planted.vocabulary, is_left_out, strict=True) if gone]

    guesses = [known.guess(word) for word in words]
    cosines = [planted.similarity(word, guess.vector) for word, guess in zip(words, guesses, strict=True)]
    expected = [guess.expected_cosine for guess in guesses]
    assert np.mean(cosines) > 0.8
    assert abs(np.mean(cosines) - np.mean(expected)) < 0.3
    assert known.guess("qqqqxxxx").expected_cosine < np.min(expected)
    assert np.array_equal(known.get(words[0], guess=True), guesses[0].vector)
    assert known.get(words[0]) is None
    found = known.nearest(words[0], 5, guess=True)
    assert found == known.nearest(guesses[0].vector, 5)
    assert known.nearest(known.vocabulary[3], guess=True) == known.nearest(known.vocabulary[3])


def test_the_expected_cosine_grows_with_the_length_of_the_guess() -> None:
    fitted = Subwords(np.zeros(0, np.uint32), np.zeros((1, 2), np.float32), length=2.0)
    guesses = np.array([[0, 0], [0.2, 0], [0.6, 0.8], [0, -2], [3, 0]], np.float32)
    # 1.12 r - 0.155, where r is the length of the guess divided by that of the trained vectors, from 0 to 1.
    assert fitted.estimate_cosines(guesses) == pytest.approx([0, 0, 0.405, 0.965, 1])


def test_the_spelling_of_rare_words_adds_to_their_vectors(planted: Vectors) -> None:
    result = subwords.add_subwords(planted, VectorsConfig(subwords="ngrams", spelling=30.0))
    assert result.subwords is not None
    words, counts = planted.vocabulary.tokens, planted.vocabulary.counts
    for n in (0, 700, len(words) - 1):
        added = result.subwords.guess([words[n]])[0] - result.subwords.table[-1]
        weight = 2 * 30 / (counts[n] + 30)
        assert np.allclose(result.vectors[n], planted.vectors[n] + weight * added, atol=1e-5)

    restored = subwords.remove_spelling(result.vectors, result.subwords.guess_differences(words), counts, 30.0)
    assert np.allclose(restored, planted.vectors, atol=1e-4)
    assert subwords.add_subwords(planted, VectorsConfig()) is planted


def test_neighbors_are_ranked_by_cosine_and_certainty(planted: Vectors) -> None:
    counts = np.maximum(np.arange(len(planted))[::-1] // 4, 1)  # some of one occurrence
    spelled = planted.replace(
        rows=VectorTable(Vocabulary(planted.vocabulary, counts), planted.vectors),
        subwords=Subwords(np.zeros(0, np.uint32), np.zeros((1, 16), np.float32), length=1.0),
        settings={"vectors": {"spelling": 120.0}},
    )
    certainty = np.sqrt(counts / (counts + 30))
    unit = planted.unit_vectors
    words = planted.vocabulary
    a, b, c = 700, 701, 1_000

    scores = certainty * (unit @ unit[a])
    scores[a] = -1
    best = [words[number] for number in np.argsort(-scores)[:20].tolist()]
    nearest = spelled.nearest(words[a], 20)
    assert [near.token for near in nearest] == best
    assert [near.similarity for near in nearest] == pytest.approx(np.sort(scores)[::-1][:20], abs=1e-5)
    assert best != [near.token for near in planted.nearest(words[a], 20)]
    assert [near.token for near in spelled.nearest_each([words[a]], 20)[0]] == best
    assert [spelled.rank(words[a], word) for word in best] == list(range(1, 21))
    assert spelled.similarity(words[a], best[0]) == pytest.approx(float(unit[a] @ unit[words.id(best[0])]), abs=1e-6)

    for method in ("3cosadd", "3cosmul"):  # Analogies have plain cosines.
        question = words[a], words[b], words[c]
        expected = planted.analogy(*question, method=method)
        assert spelled.analogy(*question, method=method) == expected
        limited = spelled.analogy(*question, method=method, restrict_vocab=400)
        assert limited[0].token in words.tokens[:400]
    text = f"{words[b]} - {words[a]} + {words[c]}"
    assert [near.token for near in spelled.nearest_each([words[a], text])[1]] == [
        near.token for near in planted.nearest(text)
    ]


def test_vectors_of_zeros_stay_zero_and_few_words_have_no_ngrams(planted: Vectors) -> None:
    values = np.array(planted.vectors)
    values[7] = 0
    zeros = Vectors(VectorTable(planted.vocabulary, values))
    config = VectorsConfig(subwords="ngrams", spelling=30.0)
    assert not subwords.add_subwords(zeros, config).vectors[7].any()

    few = without(planted, np.arange(len(planted)) >= 999)
    assert subwords.add_subwords(few, config) is few
    with pytest.raises(ConfigError, match="n-grams need 1,000 words that have vectors, got 999"):
        few.with_subwords()
    assert few.get("dog", 3, guess=True) == 3
    with pytest.raises(ConfigError, match=r"these vectors have no n-grams .* train with subwords='ngrams'"):
        few.guess("dog")


def test_ngrams_are_saved_copied_and_rotated_with_the_vectors(planted: Vectors, tmp_path: Path) -> None:
    fitted = planted.with_subwords()
    fitted.save(tmp_path / "v")
    expected = fitted.guess("balping").vector
    for copy in (swivel.load(tmp_path / "v"), pickle.loads(pickle.dumps(fitted))):
        assert np.array_equal(copy.guess("balping").vector, expected)

    rotation = np.linalg.qr(np.random.default_rng(3).standard_normal((16, 16)))[0]
    turned = Vectors(VectorTable(planted.vocabulary, (planted.vectors @ rotation).astype(np.float32)))
    assert np.allclose(fitted.align(turned).guess("balping").vector, expected @ rotation, atol=1e-4)

    other = Subwords(np.arange(2, dtype=np.uint32), np.ones((3, 4), np.float32), 1.0)
    with pytest.raises(ConfigError, match=r"n-grams of shape \(3, 4\) need vectors of as many dimensions"):
        Vectors(VectorTable(Vocabulary(["a"]), np.ones((1, 2), np.float32)), subwords=other)
    with pytest.raises(ConfigError, match=r"3 n-grams and a mean need as many vectors, got \(3, 4\)"):
        Subwords(np.arange(3, dtype=np.uint32), np.ones((3, 4), np.float32), 1.0)


def test_a_folder_without_the_settings_of_its_ngrams_is_damaged(planted: Vectors, tmp_path: Path) -> None:
    from swivel.storage.files import create_folder
    from swivel.storage.manifest import read_manifest
    from swivel.vectors.folder import write_vectors

    with create_folder(tmp_path / "v", "vectors") as folder:
        write_vectors(folder, planted.with_subwords())
        facts = dict(read_manifest(folder.path).facts)
        del facts["subwords"]
        folder.finish(config={}, inputs={}, facts=facts)
    with pytest.raises(DamagedFolder, match="'subwords' is missing"):
        swivel.load(tmp_path / "v")


def test_the_command_marks_guesses(planted: Vectors, tmp_path: Path) -> None:
    fitted = planted.with_subwords()
    fitted.save(tmp_path / "v")
    command = ["nearest", str(tmp_path / "v"), "balpings", "balps", "--guess", "-n", "2"]
    text = CliRunner().invoke(cli, command, catch_exceptions=False).stdout
    expected = fitted.guess("balpings").expected_cosine
    assert text.startswith(f"balpings  (a guess from the spelling; expected cosine {expected:.2f})\n")
    assert "\nbalps\n" in text

    data = json.loads(CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False).stdout)
    assert data["balpings"]["guessed"] is True
    assert data["balpings"]["expected_cosine"] == pytest.approx(expected)
    assert [each["token"] for each in data["balpings"]["nearest"]] == [
        neighbor.token for neighbor in fitted.nearest("balpings", 2, guess=True)
    ]
    assert isinstance(data["balps"], list)

    with pytest.raises(
        UnknownToken, match=r"'qqqqqqqq' is not in .* tokens \(pass guess=True for a guess from its spelling\)$"
    ):
        fitted.nearest("qqqqqqqq")
    with pytest.raises(UnknownToken, match=r"'qqqqqqqq' is not in .* tokens$"):
        fitted.similarity("qqqqqqqq", "balps")


def test_unknown_pairs_can_be_scored_with_guesses(planted: Vectors) -> None:
    fitted = planted.with_subwords()
    pairs = SimilaritySet("p", (("balps", "balping"), ("balpings", "balps"), ("balps", "turts")), (9, 8, 1))
    result = score_similarity(fitted, pairs, EvaluationConfig(unknown_pairs="guess", draws=0))
    expected = fitted.similarity(fitted.guess("balpings").vector, "balps")
    assert result.values.tolist() == pytest.approx(
        [fitted.similarity("balps", "balping"), expected, fitted.similarity("balps", "turts")], abs=1e-5
    )
    assert (result.known, result.total, result.known_only) == (2, 3, None)


@pytest.mark.parametrize("combine", ["parts", "rows"])
def test_training_fits_ngrams_and_extend_keeps_them(tmp_path: Path, combine: str) -> None:
    rng = np.random.default_rng(4)
    words = [stem + ending for stem in STEMS for ending in ENDINGS[:4]]
    lines = [" ".join(rng.choice(words[first : first + 40], 12)) for first in rng.integers(0, len(words) - 40, 1_500)]
    settings: dict[str, Any] = {"dim": 4, "epochs": 2, "device": "cpu", "combine": combine}
    trained = swivel.run(lines, tmp_path / "run", spelling=10.0, min_count=1, **settings)
    plain = swivel.train(tmp_path / "run" / "matrix", subwords="none", spelling=0.0, **settings)
    assert plain.subwords is None
    assert trained.subwords is not None
    counts = trained.vocabulary.counts
    differences = trained.subwords.guess_differences(trained.vocabulary.tokens)
    restored = subwords.remove_spelling(trained.vectors, differences, counts, 10.0)
    assert np.allclose(restored, plain.vectors, atol=1e-4)

    new = ["balzzzz " + line for line in lines[:30]]
    extended = swivel.extend(trained, new)
    without_spelling = swivel.extend(plain, new)
    assert np.array_equal(extended.vectors[: len(trained)], trained.vectors)
    assert extended.subwords is not None
    added = trained.subwords.guess(["balzzzz"])[0] - trained.subwords.table[-1]
    count = extended.vocabulary.counts[extended.vocabulary.id("balzzzz")]
    expected = without_spelling["balzzzz"] + 2 * 10 / (count + 10) * added
    assert np.allclose(extended["balzzzz"], expected, atol=1e-2)


def test_an_ngram_that_occurs_twice_in_one_word_is_not_one_of_several_words() -> None:
    index = subwords.index_ngrams(["banana", "xyzw", "xyz"])  # "ana" occurs twice, "<xy", "xyz" and "<xyz" in two words
    shared, _ = subwords.hash_ngrams(["banana"], 3, 3)
    assert len(index.ngrams) == 3
    assert not set(shared.tolist()) & set(index.ngrams.tolist())


def test_the_index_lists_the_words_of_every_ngram() -> None:
    words = ["banana", "bandana", "cabana", "x"]
    index = subwords.index_ngrams(words)
    pairs = {
        (int(number), word)
        for word, (start, stop) in enumerate(itertools.pairwise(index.word_starts))
        for number in index.numbers[start:stop]
    }
    assert len({array.dtype for array in index[1:5]}) == 1  # torch needs equal ones
    assert pairs == {
        (number, int(word))
        for number, (start, stop) in enumerate(itertools.pairwise(index.ngram_starts))
        for word in index.owners[start:stop]
    }


def test_memory_for_indexing_is_about_the_estimate(planted: Vectors) -> None:
    words = planted.vocabulary.tokens
    tracemalloc.start()
    index = subwords.index_ngrams(words)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index.scales) == len(words)
    indexing, fitting = subwords.estimate_memory(words, 100)
    assert 0.5 * indexing < peak < 1.5 * indexing
    assert kept < fitting


def test_ngrams_are_not_fitted_into_too_little_memory(planted: Vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.runtime.resources.free_memory", lambda: 1 << 20)
    with pytest.raises(MemoryBudgetError, match="fitting n-grams needs about"):
        planted.with_subwords()


def test_training_says_that_ngrams_need_memory(tmp_path: Path) -> None:
    words = [stem + ending for stem in STEMS for ending in ENDINGS[:4]]
    lines = [" ".join(words[first : first + 12]) for first in range(0, len(words), 4)]
    matrix = swivel.count(lines, tmp_path / "matrix", min_count=1)

    said: list[str] = []
    for kind in ("none", "ngrams"):
        heard = MessageRecorder()
        swivel.train(matrix, dim=2, epochs=1, subwords=kind, spelling=0.0, options=RunOptions(progress=heard))
        said += [line for line in heard.lines if line.endswith("for training")]
    without_ngrams, with_ngrams = said
    assert without_ngrams != with_ngrams
