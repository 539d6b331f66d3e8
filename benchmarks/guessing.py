"""Compare vectors guessed from the spelling with gensim's FastText on the same text: words left out, and Rare Words.

A share of the words of the vocabulary is left out: FastText is trained without them, and Swivel's n-grams are fitted
without them. Guesses are compared with the vectors of a training that had the words: the mean cosine, and the overlap
of the ten nearest words that were not left out. Rare Words is scored on all pairs. With `--vectors`, trained vectors
are scored without and with a part of rare words from their spelling, on all sets. Every model is trained once and kept
in the work folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import swivel
from common import keep, make_parser, parse_arguments, plain_corpus, work_folder, write_corpus, write_sets
from swivel.config import VectorsConfig, stage_config
from swivel.corpus.vocabulary import Vocabulary
from swivel.evaluation import find_sets
from swivel.evaluation.baselines import BaselineConfig, train_gensim_model, vectors_of_words
from swivel.evaluation.config import EvaluationConfig
from swivel.evaluation.datasets import AnalogySet, SimilaritySet, TestSet
from swivel.evaluation.scores import score_set, score_similarity
from swivel.runtime.options import RunOptions
from swivel.vectors import Vectors, VectorTable, subwords
from swivel.vectors.search import scale_to_unit

MEASURES = ("swivel.vectors.subwords",)
FASTTEXT = {"window": 5, "sample": 1e-4}  # as in its paper (Bojanowski et al. 2017)
NEAREST = 10
RULES = EvaluationConfig(draws=0)
GUESSING = EvaluationConfig(draws=0, unknown_pairs="guess")


def main() -> None:
    parser = make_parser(__doc__, "corpus", "eval", "threads")
    parser.add_argument("--vectors", type=Path, help="trained vectors, to score with and without their spelling")
    parser.add_argument("--every", type=int, default=6, help="with --vectors: ask only every n-th analogy")
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--left-out", type=float, default=0.05, help="share of the words that are left out")
    parser.add_argument("--asked", type=int, default=2_000, help="number of left-out words that are compared")
    smoke = {"corpus": write_corpus, "eval": write_sets, "threads": 1, "dim": 8, "left_out": 0.2}
    arguments = parse_arguments(parser, **smoke)
    if arguments.smoke:
        subwords.MIN_WORDS = 50

    config = stage_config(VectorsConfig, spelling=None)
    result: dict[str, Any] = {"spelling": config.spelling}
    sets = find_sets(arguments.eval).sets
    if arguments.vectors or arguments.smoke:
        result["recipe"] = score_spelling(train_or_load(arguments), sets, config, arguments)
    result |= compare_with_fasttext(sets, config, arguments)
    keep(arguments, result)


def train_or_load(arguments: argparse.Namespace) -> Vectors:
    """Return the given vectors, or in a smoke run small ones."""
    if arguments.vectors:
        return swivel.load(arguments.vectors)
    files = plain_corpus(arguments.corpus)
    matrix = swivel.count(files, work_folder() / "guessing" / "matrix", options=RunOptions(threads=arguments.threads))
    return swivel.train(matrix, dim=arguments.dim, epochs=2, subwords="none", spelling=0.0)


def score_spelling(
    vectors: Vectors, sets: tuple[TestSet, ...], config: VectorsConfig, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of vectors without and with a part from the spelling, and the card of left-out words."""
    plain = vectors.with_subwords()
    blended = subwords.add_subwords(vectors, config)
    is_left_out = choose_left_out(len(vectors), arguments)
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
        figures[each.name] = shorten(score_set(vectors, asked, RULES).figure)
        if isinstance(each, SimilaritySet) and each.name == "rare_words":
            figures["rare_words_all_pairs"] = shorten(score_similarity(vectors, each, GUESSING).figure)
    return figures


def shorten(figure: float | None) -> float | None:
    return None if figure is None else round(float(figure), 4)


def choose_left_out(words: int, arguments: argparse.Namespace) -> NDArray[np.bool_]:
    return np.asarray(np.random.default_rng(1).random(words) < arguments.left_out)


def card_of_fit(vectors: Vectors, is_left_out: NDArray[np.bool_], arguments: argparse.Namespace) -> dict[str, Any]:
    """Fit n-grams without some words, and compare the guesses for these with their vectors."""
    values = np.array(vectors.vectors)
    values[is_left_out] = 0
    fitted = subwords.fit_subwords(values, vectors.vocabulary.tokens, vectors.vocabulary.counts)
    assert fitted is not None
    asked = np.flatnonzero(is_left_out & ~vectors.is_zero)
    asked = asked[:: max(len(asked) // arguments.asked, 1)]
    guesses = fitted.guess([vectors.vocabulary[number] for number in asked.tolist()])

    unit = vectors.unit_vectors
    cosines = np.einsum("ij,ij->i", scale_to_unit(guesses), unit[asked])
    return {
        **compare_guesses(guesses, unit[asked], unit[~is_left_out], unit[~is_left_out]),
        "cosine": round(float(cosines.mean()), 4),
        "expected_cosine": round(float(fitted.estimate_cosines(guesses).mean()), 4),
        "asked": len(asked),
    }


def compare_guesses(guesses: Any, true: Any, guess_space: Any, true_space: Any) -> dict[str, float]:
    """Return the overlap of the nearest words of guesses and of true vectors, each in its own space."""
    guesses = scale_to_unit(guesses)
    found = find_nearest(guesses, guess_space)
    expected = find_nearest(true, true_space)
    overlap = np.mean([len(set(a) & set(b)) / NEAREST for a, b in zip(found, expected, strict=True)])
    return {"overlap": round(float(overlap), 4)}


def find_nearest(queries: Any, space: Any) -> list[list[int]]:
    found = []
    for start in range(0, len(queries), 256):
        scores = queries[start : start + 256] @ space.T
        found += np.argpartition(-scores, NEAREST, axis=1)[:, :NEAREST].tolist()
    return found


def compare_with_fasttext(
    sets: tuple[TestSet, ...], config: VectorsConfig, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Train Swivel and FastText on the same text, unless they are in the work folder, and compare their guesses."""
    folder = work_folder() / "guessing"
    files = plain_corpus(arguments.corpus)
    options = RunOptions(threads=arguments.threads)
    matrix = swivel.count(files, folder / "matrix", options=options)
    is_left_out = choose_left_out(len(matrix.rows), arguments)
    tokens = np.array(matrix.rows.tokens, object)
    left_out = tokens[is_left_out].tolist()
    rest = Vocabulary(tokens[~is_left_out].tolist(), matrix.rows.counts[~is_left_out])
    rare = next(each for each in sets if each.name == "rare_words")
    assert isinstance(rare, SimilaritySet)
    asked = [*left_out, *sorted({word for pair in rare.pairs for word in pair if word not in matrix.rows})]

    settings = FASTTEXT | {"dim": arguments.dim, "buckets": 1_000 if arguments.smoke else 2_000_000}
    models = {}
    for name, words in (("without", rest), ("with", matrix.rows)):
        path = folder / f"fasttext-{name}.npz"
        if not path.exists():
            train_fasttext(path, files, words, asked, settings, options)
        models[name] = np.load(path)

    path = folder / "with"
    if path.exists():
        trained = swivel.load(path)
    else:
        trained = swivel.train(matrix, path, dim=arguments.dim, subwords="none", spelling=0.0, options=options)
    return {
        "corpus_words": len(matrix.rows),
        "fasttext": score_fasttext(models, rare, is_left_out, arguments),
        "swivel": {
            "rare_words_all_pairs": shorten(
                score_similarity(subwords.add_subwords(trained, config), rare, GUESSING).figure
            ),
            "left_out": card_of_fit(trained, is_left_out, arguments),
        },
    }


def train_fasttext(
    path: Path, files: list[Path], words: Vocabulary, asked: list[str], settings: dict[str, Any], options: RunOptions
) -> None:
    """Write the vectors of a vocabulary, and those that FastText guesses for other words."""
    model = train_gensim_model(files, words, "fasttext", BaselineConfig(**settings), options)
    guesses = np.stack([model.wv[word] for word in asked])
    np.savez(path, words=np.array(words.tokens), vectors=vectors_of_words(model, words), asked=asked, guesses=guesses)


def score_fasttext(
    models: dict[str, Any], rare: SimilaritySet, is_left_out: NDArray[np.bool_], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return Rare Words on all pairs of the full model, and the card of the words that the other one did not see."""
    full = models["with"]
    guessed = full["guesses"][is_left_out.sum() :]
    words = [*full["words"].tolist(), *full["asked"].tolist()[is_left_out.sum() :]]
    everything = Vectors(VectorTable(Vocabulary(words), np.concatenate([full["vectors"], guessed])))

    asked = np.flatnonzero(is_left_out)
    kept = slice(None, None, max(len(asked) // arguments.asked, 1))
    with_words = scale_to_unit(full["vectors"])
    card = compare_guesses(
        models["without"]["guesses"][: len(asked)][kept],
        with_words[asked[kept]],
        scale_to_unit(models["without"]["vectors"]),
        with_words[~is_left_out],
    )
    return {"rare_words_all_pairs": shorten(score_similarity(everything, rare, RULES).figure), "left_out": card}


if __name__ == "__main__":
    main()
