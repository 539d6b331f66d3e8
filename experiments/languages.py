"""Word vectors of any language, judged by public sets of pairs and by a bilingual word list.

The text is read once, by Swivel's reader, and Swivel and gensim train on the same tokens and vocabulary. Two words
are related if they have a translation in common, or WordNet relates one of their translations to one of the other's
(`neighbors.py`). Neighbors that are not in the word list are not judged; `chance` is the percentage for random words
instead of neighbors.

    python -m experiments.languages german.txt de-en.dict /usr/share/wordnet --pairs simlex.txt ws353.txt

A line of the word list is `english @ word`, as in MUSE's dictionaries for hunalign, or `word english`. A line of a set
of pairs has two words and a score, with tabs, commas or spaces between; lines without a score are skipped.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

import swivel
from experiments.neighbors import COMMON, NEAREST, WordNet, is_spelled_alike
from experiments.word2vec import Word2vecConfig, train_word2vec
from swivel.config import CorpusConfig, recorded_config
from swivel.evaluation.datasets import SimilaritySet
from swivel.evaluation.scores import score_similarity
from swivel.runtime.options import RunOptions

METHODS = ("default", "sgns", "fasttext")
ASKED = 300  # words


class WordList:
    """Judges pairs of words by their English translations."""

    def __init__(self, file: Path, wordnet: WordNet) -> None:
        self.translations: dict[str, set[str]] = {}
        for line in file.read_text(encoding="utf-8").splitlines():
            english, at, word = line.partition(" @ ")
            if not at:
                word, english = line.split(maxsplit=1)
            if wordnet.find_senses(english)[1]:
                self.translations.setdefault(word.lower(), set()).add(english)
        self.is_linked = cache(wordnet.is_related)

    def is_related(self, first: str, second: str) -> bool:
        """Return whether two words share a translation, or have translations that WordNet relates."""
        pairs = product(self.translations[first], self.translations[second])
        return any(a == b or self.is_linked(*sorted((a, b))) for a, b in pairs)


def read_pairs(file: Path) -> SimilaritySet:
    """Return the pairs and scores of a file of almost any format."""
    pairs, scores = [], []
    for line in file.read_text(encoding="utf-8-sig").splitlines():
        fields = re.split(r"\t|,|\s+", line.strip())
        try:
            score = float(fields[2])
        except (IndexError, ValueError):
            continue
        pairs.append((fields[0].lower(), fields[1].lower()))
        scores.append(score)
    return SimilaritySet(file.stem, tuple(pairs), tuple(scores))


def judge(vectors: swivel.Vectors, words: Sequence[str], listed: WordList) -> dict[str, float]:
    """Return percentages of the nearest words: how many are listed, and how many of these are related or look alike."""
    rng = np.random.default_rng(1)
    others = [word for word in vectors.vocabulary.tokens[: COMMON[1]] if word in listed.translations]
    all_neighbors = related = judged = alike = chance = 0
    for word, nearest in zip(words, vectors.nearest_each(words, NEAREST), strict=True):
        all_neighbors += len(nearest)
        known = [neighbor.token for neighbor in nearest if neighbor.token in listed.translations]
        judged += len(known)
        is_related = [listed.is_related(word, token) for token in known]
        related += sum(is_related)
        alike += sum(not each and is_spelled_alike(word, token) for each, token in zip(is_related, known, strict=True))
        chance += sum(listed.is_related(word, others[n]) for n in rng.integers(0, len(others), NEAREST))
    return {
        "listed": round(100 * judged / max(all_neighbors, 1), 1),
        "related": round(100 * related / max(judged, 1), 1),
        "look-alikes": round(100 * alike / max(judged, 1), 1),
        "chance": round(100 * chance / (NEAREST * len(words)), 1),
    }


def main() -> None:
    """Print the results of every method as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("words", type=Path, help="bilingual word list")
    parser.add_argument("wordnet", type=Path, help="folder of WordNet's files (Debian: wordnet-base)")
    parser.add_argument("--pairs", type=Path, nargs="*", default=[])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=10, help="of SGNS and fastText")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", nargs="*", default=[], help="words whose neighbors are printed")
    arguments = parser.parse_args()

    options = RunOptions(threads=arguments.threads)
    listed = WordList(arguments.words, WordNet(arguments.wordnet))
    matrix = swivel.count(str(arguments.text), options=options)
    corpus = recorded_config(CorpusConfig, matrix.config["corpus"])
    print(json.dumps({"words": len(matrix.rows), "tokens": int(matrix.rows.counts.sum())}))  # noqa: T201

    known = [
        word
        for word in matrix.rows.tokens[COMMON[0] : COMMON[1]]
        if len(word) > 1 and word in listed.translations and listed.translations[word] != {word}
    ]
    asked = [known[n] for n in np.linspace(0, len(known) - 1, min(ASKED, len(known))).astype(int)]
    for method in arguments.methods:
        if method == "default":
            vectors = swivel.train(matrix, dim=arguments.dim, options=options)
        else:
            window = 10 if method == "sgns" else 5
            config = Word2vecConfig(dim=arguments.dim, window=window, epochs=arguments.epochs, corpus=corpus)
            vectors = train_word2vec(str(arguments.text), matrix.rows, method, config, options)
        scores = {each.stem: score_similarity(vectors, read_pairs(each)) for each in arguments.pairs}
        result = {
            "method": method,
            **{name: [each.figure and round(each.figure, 3), each.known, each.total] for name, each in scores.items()},
            **judge(vectors, asked, listed),
        }
        print(json.dumps(result))  # noqa: T201
        for word in arguments.show:
            if word in vectors:
                print(word, *(neighbor.token for neighbor in vectors.nearest(word)))  # noqa: T201


if __name__ == "__main__":
    main()
