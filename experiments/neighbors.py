"""How many of the nearest words are related by WordNet, and how many are only spelled alike.

The queries are 500 common words (ranks 300 to 5,000) and 500 rare ones (at most 20 occurrences) that WordNet knows.
A neighbor is related if WordNet links a sense of it with one of the query (the same synset, any pointer, or the same
hypernym), or if it is an inflection. It is a look-alike if it is not related and one of the two words contains the
other, or they differ by at most two letters (one, if a word has four letters or fewer).

    python -m experiments.neighbors VECTORS /usr/share/wordnet

The second argument is the folder of WordNet's files (Debian: wordnet-base).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

import swivel

NEAREST = 10
ASKED = 500
COMMON = 300, 5_000  # ranks
RARE = 20  # occurrences
ENDINGS = ("s", "es", "'s", "ed", "d", "ing", "ly", "er", "ers")
# Endings that WordNet's morphy detaches, and what it puts in their place.
DETACHED = {
    "noun": "s: ses:s ves:f xes:x zes:z ches:ch shes:sh men:man ies:y",
    "verb": "s: ies:y es:e es: ed:e ed: ing:e ing:",
    "adj": "er: est: er:e est:e",
    "adv": "",
}
KINDS = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
Synset = tuple[str, str]  # part of speech and offset


class WordNet:
    """Judges pairs of words by the files of WordNet 3."""

    def __init__(self, folder: Path) -> None:
        self.synsets: dict[tuple[str, str], set[Synset]] = {}  # of a part of speech and a word
        self.linked: dict[Synset, set[Synset]] = {}
        self.parents: dict[Synset, set[Synset]] = {}
        self.exceptions: dict[tuple[str, str], list[str]] = {}
        for part in DETACHED:
            for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
                if not line.startswith(" "):  # the license
                    self._add(part, line.split(" | ")[0].split())
            for line in (folder / f"{part}.exc").read_text(encoding="utf-8").splitlines():
                word, *lemmas = line.split()
                self.exceptions.setdefault((part, word), []).extend(lemmas)
        self.find_senses = cache(self._find_senses)

    def _add(self, part: str, fields: Sequence[str]) -> None:
        synset = part, fields[0]
        words = int(fields[3], 16)
        for word in fields[4 : 4 + 2 * words : 2]:
            self.synsets.setdefault((part, word.lower().partition("(")[0]), set()).add(synset)

        pointers = fields[5 + 2 * words : 5 + 2 * words + 4 * int(fields[4 + 2 * words])]
        targets = [(KINDS[kind], offset) for offset, kind in zip(pointers[1::4], pointers[2::4], strict=True)]
        self.linked[synset] = set(targets)
        self.parents[synset] = {
            target for symbol, target in zip(pointers[::4], targets, strict=True) if symbol in ("@", "@i", "&")
        }

    def _find_senses(self, word: str) -> tuple[frozenset[str], frozenset[Synset]]:
        """Return the lemmas of a word and their synsets."""
        lemmas: set[str] = set()
        synsets: set[Synset] = set()
        for part, rules in DETACHED.items():
            candidates = [word, *self.exceptions.get((part, word), [])]
            for ending, replacement in (rule.split(":") for rule in rules.split()):
                if word.endswith(ending):
                    candidates.append(word[: -len(ending)] + replacement)
            for candidate in candidates:
                if (part, candidate) in self.synsets:
                    lemmas.add(candidate)
                    synsets |= self.synsets[part, candidate]
        return frozenset(lemmas), frozenset(synsets)

    def is_related(self, first: str, second: str) -> bool:
        """Return whether two words are forms of one lemma, or a sense of one is linked with one of the other."""
        (lemmas, senses), (other_lemmas, other_senses) = map(self.find_senses, (first, second))
        if lemmas & other_lemmas or senses & other_senses:
            return True
        if any(b in self.linked[a] or a in self.linked[b] for a, b in product(senses, other_senses)):
            return True
        parents, others = (set().union(*map(self.parents.__getitem__, each)) for each in (senses, other_senses))
        return bool(parents & others)


def is_inflected(first: str, second: str) -> bool:
    """Return whether one of two words is the other with an ending, for words that WordNet does not know."""
    short, long = sorted((first, second), key=len)
    stems = [(short, ENDINGS)] + [(short[:-1], ("ies", "ied", "ier", "ing", "ed"))] * short.endswith(("y", "e"))
    return any(long == stem + ending for stem, endings in stems for ending in endings)


def is_spelled_alike(first: str, second: str) -> bool:
    """Return whether one of two words contains the other, or they differ by few letters.

    >>> is_spelled_alike("physics", "pataphysics"), is_spelled_alike("dog", "bog"), is_spelled_alike("dog", "cat")
    (True, True, False)
    """
    short, long = sorted((first, second), key=len)
    if len(short) >= 3 and short in long:
        return True
    most = 1 if len(short) <= 4 else 2
    return len(long) - len(short) <= most and edit_distance(short, long) <= most


def edit_distance(first: str, second: str) -> int:
    """Return the Levenshtein distance."""
    row = list(range(len(second) + 1))
    for number, letter in enumerate(first, 1):
        before, row = row, [number]
        for place, other in enumerate(second, 1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != other)))
    return row[-1]


def judge_neighbors(vectors: swivel.Vectors, words: Iterable[str], wordnet: WordNet) -> dict[str, float]:
    """Return the percentages of related words and of look-alikes among the nearest of some words."""
    asked = list(words)
    tally: Counter[str] = Counter()
    for word, nearest in zip(asked, vectors.nearest_each(asked, NEAREST), strict=True):
        for neighbor in nearest:
            related = wordnet.is_related(word, neighbor.token) or is_inflected(word, neighbor.token)
            alike = not related and is_spelled_alike(word, neighbor.token)
            tally.update({"related": related, "look-alikes": alike, "all": 1})
    return {name: round(100 * tally[name] / max(tally["all"], 1), 1) for name in ("related", "look-alikes")}


def choose_words(vectors: swivel.Vectors, wordnet: WordNet) -> dict[str, list[str]]:
    """Return common and rare words that WordNet knows, evenly over the ranks."""
    tokens, counts = vectors.vocabulary.tokens, vectors.vocabulary.counts
    known = np.array([
        number
        for number, word in enumerate(tokens)
        if len(word) >= 3 and word.isascii() and word.isalpha() and wordnet.find_senses(word)[1]
    ])  # fmt: skip
    pools = {"common": known[(known >= COMMON[0]) & (known < COMMON[1])], "rare": known[counts[known] <= RARE]}
    chosen = {
        name: pool[np.linspace(0, len(pool) - 1, min(ASKED, len(pool))).astype(int)] for name, pool in pools.items()
    }
    return {name: [tokens[number] for number in numbers.tolist()] for name, numbers in chosen.items()}


def main() -> None:
    """Print the percentages for vectors and the folder of WordNet that the command line names."""
    path, folder = sys.argv[1:]
    vectors, wordnet = swivel.load(path), WordNet(Path(folder))
    for name, words in choose_words(vectors, wordnet).items():
        print(name, judge_neighbors(vectors, words, wordnet))  # noqa: T201


if __name__ == "__main__":
    main()
