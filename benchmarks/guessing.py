"""Compare vectors guessed from the spelling with gensim's FastText on the same text: words left out, and Rare Words.

Some words of the vocabulary are left out: a random share, and the first words of the Rare Words pairs.
Swivel and FastText are trained on the text with and without them. Three measures: the overlap of the ten nearest words
of a guess with those of the vector from the training that had the word (and as its limit, that of words which both
trainings had); Rare Words on the pairs with a left-out word; and Rare Words on all pairs. Analogies with rare words are
answered without and with a part of the vectors from the spelling. The guesses of an export for fastText are compared
with Swivel's own.

With `--vectors`, trained vectors are scored without and with a part of rare words from their spelling instead, on all
sets. Every model is trained once and kept in the work folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import swivel
from common import keep, make_parser, parse_arguments, plain_corpus, work_folder, write_corpus, write_sets
from experiments.word2vec import Word2vecConfig, train_gensim_model
from swivel.config import VectorsConfig, stage_config
from swivel.corpus.vocabulary import Vocabulary
from swivel.evaluation.datasets import AnalogySet, SimilaritySet, TestSet, find_sets
from swivel.evaluation.results import EvaluationConfig
from swivel.evaluation.scores import score_analogies, score_sets, score_similarity
from swivel.runtime.options import RunOptions
from swivel.vectors import Vectors, VectorTable, subwords
from swivel.vectors.formats import fasttext_binary
from swivel.vectors.search import Floats, scale_to_unit

MEASURES = ("swivel.vectors.subwords", "swivel.vectors.formats.fasttext_binary")
FASTTEXT = {"window": 5, "sample": 1e-4}  # as in its paper (Bojanowski et al. 2017)
NEAREST = 10
RULES = EvaluationConfig(draws=0)
GUESSING = EvaluationConfig(draws=0, unknown_pairs="guess")


def main() -> None:
    parser = make_parser(__doc__, "corpus", "eval", "megabytes", "threads")
    parser.add_argument("--vectors", type=Path, help="trained vectors, to score with and without their spelling")
    parser.add_argument("--every", type=int, default=6, help="with --vectors: ask only every n-th analogy")
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--left-out", type=float, default=0.05, help="share of the words that are left out")
    parser.add_argument("--asked", type=int, default=2_000, help="number of left-out words that are compared")
    smoke = {"corpus": write_corpus, "eval": write_sets, "threads": 1, "dim": 8, "left_out": 0.2}
    arguments = parse_arguments(parser, **smoke)
    if arguments.smoke:
        subwords.MIN_WORDS = 50
        fasttext_binary.BUCKETS = 1_000

    config = stage_config(VectorsConfig, spelling=None)
    sets = find_sets(arguments.eval)[0]
    if arguments.vectors or arguments.smoke:
        recipe = score_spelling(train_or_load(arguments), sets, config, arguments)
        keep(arguments, {"spelling": config.spelling, "recipe": recipe}, name="guessing/spelling")
    if not arguments.vectors:
        keep(arguments, compare_with_fasttext(sets, config, arguments), name="guessing/export")


def train_or_load(arguments: argparse.Namespace) -> Vectors:
    """Return the given vectors, or in a smoke run small ones."""
    if arguments.vectors:
        return swivel.load(arguments.vectors)
    files = plain_corpus(arguments.corpus, arguments.megabytes)
    matrix = swivel.count(files, work_folder() / "guessing" / "matrix", options=RunOptions(threads=arguments.threads))
    return swivel.train(matrix, dim=arguments.dim, epochs=2, subwords="none", spelling=0.0)


def score_spelling(
    vectors: Vectors, sets: tuple[TestSet, ...], config: VectorsConfig, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of vectors without and with a part from the spelling, and the card of left-out words."""
    plain = vectors.with_subwords()
    blended = subwords.add_subwords(vectors, config)
    is_left_out = np.random.default_rng(1).random(len(vectors)) < arguments.left_out
    return {
        "words": len(vectors),
        "plain": score_all(plain, sets, arguments.every),
        "blended": score_all(blended, sets, arguments.every),
        "left_out": card_of_fit(vectors, is_left_out, arguments),
    }


def score_all(vectors: Vectors, sets: tuple[TestSet, ...], every: int) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for each in sets:
        asked = each
        if isinstance(each, AnalogySet):
            asked = AnalogySet(each.name, each.questions[::every], each.sections[::every])
        figures[each.name] = shorten(score_sets(vectors, [asked], RULES)[0].figure)
        if isinstance(each, SimilaritySet) and each.name == "rare_words":
            figures["rare_words_all_pairs"] = shorten(score_similarity(vectors, each, GUESSING).figure)
    return figures


def shorten(figure: float | None) -> float | None:
    return None if figure is None else round(float(figure), 4)


def card_of_fit(vectors: Vectors, is_left_out: NDArray[np.bool_], arguments: argparse.Namespace) -> dict[str, Any]:
    """Fit n-grams without some words, and compare the guesses for these with their vectors."""
    values = np.array(vectors.vectors)
    values[is_left_out] = 0
    fitted = subwords.fit_subwords(values, vectors.vocabulary.tokens, vectors.vocabulary.counts)
    guesser = vectors.replace(vectors=values, subwords=fitted).guesser
    asked = np.flatnonzero(is_left_out & ~vectors.is_zero)
    asked = asked[:: max(len(asked) // arguments.asked, 1)]
    words = [vectors.vocabulary[number] for number in asked.tolist()]
    guesses = guesser.guess(words)

    unit = vectors.unit_vectors
    cosines = np.einsum("ij,ij->i", scale_to_unit(guesses), unit[asked])
    space = unit[~is_left_out]
    return {
        "overlap": measure_overlap(find_nearest(guesses, space), find_nearest(unit[asked], space)),
        "cosine": round(float(cosines.mean()), 4),
        "expected_cosine": round(float(fitted.estimate_cosines(fitted.guess(words)).mean()), 4),
        "asked": len(asked),
    }


def find_nearest(queries: Any, space: Any, own: NDArray[np.int64] | None = None) -> list[list[int]]:
    """Return the nearest rows of a space for each query, without the row `own` of each query."""
    found = []
    for start in range(0, len(queries), 256):
        scores = scale_to_unit(queries[start : start + 256]) @ space.T
        if own is not None:
            np.put_along_axis(scores, own[start : start + 256, None], -2.0, axis=1)
        found += np.argpartition(-scores, NEAREST, axis=1)[:, :NEAREST].tolist()
    return found


def measure_overlap(found: list[list[int]], expected: list[list[int]]) -> float:
    shares = [len(set(a) & set(b)) / NEAREST for a, b in zip(found, expected, strict=True)]
    return round(float(np.mean(shares)), 4)


class TwoTrainings(NamedTuple):
    """Vectors of a method from trainings with and without some words; words that a training lacked have guesses.

    Both have the words of the vocabulary, and after these the unknown words of Rare Words.
    """

    trained: Vectors
    guessed: Vectors


def compare_with_fasttext(
    sets: tuple[TestSet, ...], config: VectorsConfig, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Train Swivel and FastText with and without some words, unless they are in the work folder, and compare them."""
    folder = work_folder() / "guessing"
    files = plain_corpus(arguments.corpus, arguments.megabytes)
    options = RunOptions(threads=arguments.threads)
    matrix = swivel.count(files, folder / "matrix", options=options)
    vocabulary = matrix.rows
    rare = next(each for each in sets if each.name == "rare_words")
    assert isinstance(rare, SimilaritySet)

    is_left_out = choose_left_out(vocabulary, rare, arguments.left_out)
    tokens = np.array(vocabulary.tokens, object)
    rest = Vocabulary(tokens[~is_left_out].tolist(), vocabulary.counts[~is_left_out])
    smaller = swivel.count(files, folder / "matrix-without", vocabulary=rest.tokens, options=options)

    plain = train_once(folder / "with", matrix, arguments)
    with_words = subwords.add_subwords(plain, config)
    without_words = subwords.add_subwords(train_once(folder / "without", smaller, arguments), config)

    unknown = sorted({word for pair in rare.pairs for word in pair if word not in vocabulary})
    labels = Vocabulary([*vocabulary, *unknown])
    methods = {
        "swivel": TwoTrainings(*(fill_guesses(each, labels) for each in (with_words, without_words))),
        "fasttext": TwoTrainings(
            *(train_fasttext(folder, files, words, labels, arguments) for words in (vocabulary, rest))
        ),
    }
    known = VectorTable(vocabulary, methods["fasttext"].trained.vectors[: len(vocabulary)])
    answering = {"plain": plain, "spelling": with_words, "fasttext": Vectors(known)}
    return {
        "corpus_words": len(vocabulary),
        "left_out_words": int(is_left_out.sum()),
        **{name: score_method(method, rare, is_left_out, arguments.asked) for name, method in methods.items()},
        "rare_analogies": score_rare_analogies(answering, sets, vocabulary),
        "export": compare_export(without_words, tokens[is_left_out].tolist()),
    }


def choose_left_out(vocabulary: Vocabulary, rare: SimilaritySet, share: float) -> NDArray[np.bool_]:
    """Return which words are left out: a random share, and the first words of the Rare Words pairs."""
    is_left_out = np.random.default_rng(1).random(len(vocabulary)) < share
    is_left_out[[vocabulary.ids[first] for first, _ in rare.pairs if first in vocabulary]] = True
    return is_left_out


def train_once(path: Path, matrix: swivel.Matrix, arguments: argparse.Namespace) -> Vectors:
    """Return vectors without n-grams, from the folder if it exists."""
    if path.exists():
        return swivel.load(path)
    options = RunOptions(threads=arguments.threads)
    return swivel.train(matrix, path, dim=arguments.dim, subwords="none", spelling=0.0, options=options)


def fill_guesses(vectors: Vectors, labels: Vocabulary) -> Vectors:
    """Return the vectors of some words, with guesses for unknown ones."""
    unknown = [word for word in labels if word not in vectors]
    guesses = dict(zip(unknown, vectors.guesser.guess(unknown), strict=True))
    rows = [guesses[word] if word in guesses else vectors[word] for word in labels]
    return Vectors(VectorTable(labels, np.stack(rows)))


def train_fasttext(
    folder: Path, files: list[Path], words: Vocabulary, labels: Vocabulary, arguments: argparse.Namespace
) -> Vectors:
    """Return FastText's vectors of some labels, with guesses for those that are not among the trained words."""
    path = folder / f"fasttext-{len(words)}.npy"
    if not path.exists():
        settings = FASTTEXT | {"dim": arguments.dim, "buckets": 1_000 if arguments.smoke else 2_000_000}
        options = RunOptions(threads=arguments.threads)
        model = train_gensim_model(files, words, "fasttext", Word2vecConfig(**settings), options)
        np.save(path, np.stack([model.wv[word] for word in labels]))
    return Vectors(VectorTable(labels, np.load(path)))


def score_method(
    method: TwoTrainings, rare: SimilaritySet, is_left_out: NDArray[np.bool_], count: int
) -> dict[str, Any]:
    """Return Rare Words on all pairs, on those with a left-out word, and the overlap of nearest words."""
    left_out = set(np.array(method.trained.vocabulary.tokens, object)[: len(is_left_out)][is_left_out])
    known = set(method.trained.vocabulary.tokens[: len(is_left_out)])
    kept = [number for number, pair in enumerate(rare.pairs) if left_out & set(pair) and known >= set(pair)]
    pairs = SimilaritySet("left_out", tuple(rare.pairs[n] for n in kept), tuple(rare.scores[n] for n in kept))

    trained, guessed = (each.unit_vectors[: len(is_left_out)] for each in method)
    rest = np.flatnonzero(~is_left_out)
    asked = np.flatnonzero(is_left_out)[:: max(int(is_left_out.sum()) // count, 1)]
    common = np.arange(len(rest))[:: max(len(rest) // count, 1)]
    return {
        "rare_words_all_pairs": shorten(score_similarity(method.trained, rare, RULES).figure),
        "left_out": {
            "pairs": pairs.size,
            "rare_words_trained": shorten(score_similarity(method.trained, pairs, RULES).figure),
            "rare_words_guessed": shorten(score_similarity(method.guessed, pairs, RULES).figure),
            "overlap": measure_overlap(
                find_nearest(guessed[asked], guessed[rest]), find_nearest(trained[asked], trained[rest])
            ),
            "overlap_of_trained_words": measure_overlap(
                *(find_nearest(space[rest[common]], space[rest], own=common) for space in (guessed, trained))
            ),
        },
    }


def score_rare_analogies(
    models: dict[str, Vectors], sets: tuple[TestSet, ...], vocabulary: Vocabulary
) -> dict[str, dict[str, Any]]:
    """Return the accuracy on the fifth of the known questions whose rarest word is least frequent."""
    figures: dict[str, dict[str, Any]] = {}
    for each in sets:
        if isinstance(each, AnalogySet):
            asked, count = take_rare_questions(each, vocabulary)
            scores = {name: shorten(score_analogies(model, asked, RULES).figure) for name, model in models.items()}
            figures[each.name] = {"questions": asked.size, "max_count": count, **scores}
    return figures


def take_rare_questions(questions: AnalogySet, vocabulary: Vocabulary) -> tuple[AnalogySet, int]:
    """Return the least frequent fifth of the known questions, and the largest count of their rarest words."""
    counts = dict(zip(vocabulary, vocabulary.counts.tolist(), strict=True))
    rarest = [min(counts.get(word, 0) for word in words) for words in questions.questions]
    known = [number for number in np.argsort(rarest, kind="stable").tolist() if rarest[number]]
    chosen = known[: max(len(known) // 5, 1)]
    asked = tuple(questions.questions[number] for number in chosen)
    sections = tuple(questions.sections[number] for number in chosen)
    return AnalogySet(questions.name, asked, sections), rarest[chosen[-1]]


def compare_export(vectors: Vectors, unseen: list[str]) -> dict[str, Any]:
    """Return cosines of the guesses that gensim makes from an exported model with Swivel's own."""
    from gensim.models.fasttext import load_facebook_vectors

    path = work_folder() / "guessing" / "model.bin"
    swivel.export(vectors, path, format="fasttext-bin", overwrite=True)
    model = load_facebook_vectors(str(path))
    size = path.stat().st_size
    path.unlink()

    guesses = vectors.guesser.guess(unseen)
    cosines = np.sort(row_cosines(np.stack([model[word] for word in unseen]), guesses))
    known = np.flatnonzero(~vectors.is_zero)
    words = [vectors.vocabulary[number] for number in known.tolist()]
    return {
        "unseen_words": len(unseen),
        "mean_cosine": round(float(cosines.mean()), 4),
        "cosine_of_the_worst_twentieth": round(float(cosines[len(cosines) // 20]), 4),
        "lowest_cosine": round(float(cosines[0]), 4),
        "lowest_cosine_of_known_words": round(float(row_cosines(model[words], vectors.vectors[known]).min()), 6),
        "bytes": size,
    }


def row_cosines(first: Floats, second: Floats) -> NDArray[np.float64]:
    return np.asarray(np.einsum("ij,ij->i", scale_to_unit(first).astype(np.float64), scale_to_unit(second)))


if __name__ == "__main__":
    main()
