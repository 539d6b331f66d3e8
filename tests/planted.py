"""A text, a table and a graph with planted answers, and scores of pairs of English words, for tests of quality."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

# How similar two words are, from 0 to 10: synonyms, then words of one field, then words that have nothing in common.
# The pairs were chosen, and the scores made up, for these tests.
SIMILARITIES = """
film movie 9.8, telephone phone 9.7, begin start 9.5, illness disease 9.5, ocean sea 9.3, large big 9.3,
aircraft plane 9.3, writer author 9.3, physician doctor 9.3, fast quick 9.2, nation country 9.1, firm company 9.0,
street road 8.9, boat ship 8.9, finish end 8.8, commerce trade 8.8, cost price 8.7, little small 8.7,
vehicle car 8.6, town city 8.5, steel iron 8.4, baby child 8.4, gun weapon 8.2, novel book 8.2,
cathedral church 8.2, legal law 8.1, faith religion 8.1, hill mountain 8.1, battle war 8.0, magazine newspaper 8.0,
italy italian 7.9, beer wine 7.9, silver gold 7.9, vote election 7.9, emperor king 7.8, song music 7.8,
college school 7.8, molecule atom 7.8, poetry poet 7.8, month week 7.7, power energy 7.7, troops soldier 7.6,
dog cat 7.6, integer number 7.5, proof theorem 7.5, website internet 7.5, mother father 7.5, france paris 7.4,
evening morning 7.4, hydrogen oxygen 7.4, piano guitar 7.3, boy girl 7.3, england london 7.3, lake river 7.2,
judge court 7.2, railway train 7.2, mind brain 7.1, grammar language 7.1, arm hand 7.1, murder crime 7.0,
winter summer 7.0, minister president 6.9, meat food 6.9, moon sun 6.8, red blue 6.8, singer song 6.6,
airport aircraft 6.3, student teacher 6.3, hospital doctor 6.2, heart blood 6.1, wheat bread 6.0, prison crime 5.7,
sea fish 5.0, book school 4.8, energy sun 4.3, war ship 4.0, teacher book 3.9, army king 3.8,
river city 3.6, film music 3.5, church school 3.1, oil ship 2.9, soldier horse 2.9, house tree 2.8,
game war 2.6, food money 2.4, wine church 2.0, poet king 1.9, computer film 1.8, law doctor 1.6,
novel lake 0.7, ocean school 0.6, highway blood 0.6, forest bank 0.6, bread planet 0.5, mountain doctor 0.5,
army fruit 0.5, company rain 0.5, minister glass 0.5, moon election 0.4, music iron 0.4, car poem 0.4,
president fish 0.4, piano battle 0.4, parliament dog 0.3, river book 0.3, church electron 0.3, sister engine 0.3,
judge sugar 0.3, theory cotton 0.3, queen software 0.3, king hydrogen 0.2, tax guitar 0.2, oxygen poet 0.2,
gold grammar 0.2, missile milk 0.2, wine theorem 0.1, football molecule 0.1, vowel prison 0.1, algebra horse 0.1
"""

_MOST_COMMON = "the of and in to a is was for on as with by at from that it his an be are this had not or"
FUNCTION_WORDS = tuple(_MOST_COMMON.split())
ENDINGS = ("", "s", "ed", "ing")
_FORM_SHARES = (0.4, 0.25, 0.2, 0.15)
_MIN_COUNT = 5

FourWords = tuple[str, str, str, str]


def read_similarities() -> list[tuple[str, str, float]]:
    """Return the pairs of `SIMILARITIES` with their scores."""
    entries = (entry.split() for entry in SIMILARITIES.split(","))
    return [(first, second, float(score)) for first, second, score in entries]


@dataclass(frozen=True)
class PlantedText:
    """A text whose words have planted meanings.

    A line is about a scene, which says how frequent each stem is in it; a stem belongs to one scene and is also found
    in two others. A stem has four forms with four endings, and the form says which function words stand beside it. The
    frequencies of stems and of function words follow Zipf's law.

    The spelling says the stem and the form. It misleads about odd words, which are spelled like a stem of another scene
    and have one form.

    Attributes
    ----------
    scenes
        The scene of each word that is not a function word.
    stems, forms
        The stem and the form of each word that is neither a function word nor odd, as numbers.
    known, left_out
        The words to train, most frequent first, and words with forms to add or to guess.
    """

    lines: list[str]
    scenes: dict[str, int]
    stems: dict[str, int]
    forms: dict[str, int]
    known: list[str]
    left_out: list[str]

    @property
    def content_words(self) -> list[str]:
        """The known words that are not function words."""
        return [word for word in self.known if word in self.scenes]

    @property
    def odd_words(self) -> list[str]:
        """The known words whose spelling misleads."""
        return [word for word in self.content_words if word not in self.forms]

    @property
    def inflected_words(self) -> list[str]:
        """The known words that have forms."""
        return [word for word in self.known if word in self.forms]


def make_text(
    seed: int, *, lines: int = 14_000, scenes: int = 16, stems: int = 300, odd_words: int = 250
) -> PlantedText:
    """Return a text of about 18 words per line."""
    rng = np.random.default_rng(seed)
    names = _spell_stems(rng, stems)
    names += _spell_odd_words(rng, names, odd_words)
    scene_of = np.arange(len(names)) % scenes
    shares = _draw_shares(rng, scene_of, scenes)
    spelled = [[name + ending * (stem < stems) for ending in ENDINGS] for stem, name in enumerate(names)]
    text = _write_lines(rng, rng.integers(scenes, size=lines), shares, np.array(spelled, object))

    forms = {word: form for words in spelled[:stems] for form, word in enumerate(words)}
    counts = Counter(word for line in text for word in line.split())
    frequent = [word for word, count in counts.most_common() if count >= _MIN_COUNT]
    candidates = [word for word in frequent if word in forms]
    left_out = sorted(rng.choice(candidates, len(candidates) // 10, replace=False).tolist())
    return PlantedText(
        lines=text,
        scenes={word: int(scene_of[stem]) for stem, words in enumerate(spelled) for word in words},
        stems={word: stem for stem, words in enumerate(spelled[:stems]) for word in words},
        forms=forms,
        known=[word for word in frequent if word not in set(left_out)],
        left_out=left_out,
    )


def _spell_stems(rng: np.random.Generator, count: int) -> list[str]:
    """Return different stems of two syllables and a consonant."""
    consonants, vowels = list("bdfgklmnprstvz"), list("aeiou")
    found: dict[str, None] = {}
    while len(found) < count:
        first, second, last = rng.choice(consonants, 3)
        found[first + rng.choice(vowels) + second + rng.choice(vowels) + last] = None
    return list(found)


def _spell_odd_words(rng: np.random.Generator, stems: list[str], count: int) -> list[str]:
    """Return different words, each a random stem and two letters more."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[rng.choice(stems) + rng.choice(list("aiou")) + rng.choice(list("bklmnrt"))] = None
    return list(found)


def _draw_shares(rng: np.random.Generator, scene_of: NDArray[np.int64], scenes: int) -> NDArray[np.float64]:
    """Return the share of each stem in each scene, of shape (scenes, stems)."""
    size = len(scene_of)
    weights = np.ones((scenes, size))
    for stem in range(size):
        weights[rng.choice(scenes, 2, replace=False), stem] = 10
    weights[scene_of, np.arange(size)] = 30
    weights /= 1 + rng.permutation(size)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _write_lines(
    rng: np.random.Generator,
    line_scenes: NDArray[np.int64],
    shares: NDArray[np.float64],
    spelled: NDArray[np.object_],
) -> list[str]:
    """Return one line per scene: eight words, most of them with a function word before or after."""
    shape = len(line_scenes), 8
    stems = np.empty(shape, np.int64)
    for scene, share in enumerate(shares):
        is_here = line_scenes == scene
        stems[is_here] = rng.choice(len(share), (int(is_here.sum()), shape[1]), p=share)
    forms = rng.choice(len(ENDINGS), shape, p=_FORM_SHARES)

    # Four of five function words are those of the form.
    function_words = np.array(FUNCTION_WORDS, object)
    zipf = 1 / np.arange(1, len(function_words) + 1)
    others = rng.choice(function_words, (2, *shape), p=zipf / zipf.sum())
    of_form = np.stack([function_words[forms], function_words[len(ENDINGS) + forms]])
    around = np.where(rng.random((2, *shape)) < 0.8, of_form, others)
    before = np.where(rng.random(shape) < 0.8, around[0], "")
    after = np.where(rng.random(shape) < 0.5, around[1], "")

    words = np.stack([before, spelled[stems, forms], after], axis=2).reshape(len(line_scenes), -1)
    return [" ".join(filter(None, line)) for line in words.tolist()]


def ask_analogies(text: PlantedText, seed: int, *, count: int = 1_500) -> list[FourWords]:
    """Return questions: two forms of one stem, and the same two forms of another."""
    rng = np.random.default_rng(seed)
    words_of: dict[int, dict[int, str]] = {}
    for word in text.inflected_words:
        words_of.setdefault(text.stems[word], {})[text.forms[word]] = word

    whole = [words for words in words_of.values() if len(words) == len(ENDINGS)]
    pairs = list(permutations(range(len(ENDINGS)), 2))
    questions = []
    for _ in range(count):
        one, other = (whole[stem] for stem in rng.choice(len(whole), 2, replace=False).tolist())
        first, second = pairs[int(rng.integers(len(pairs)))]
        questions.append((one[first], one[second], other[first], other[second]))
    return questions


def write_texts(text: PlantedText, seed: int, *, count: int = 600) -> tuple[list[str], list[int]]:
    """Return texts and their scenes: six words of the scene and 4 to 15 of three function words, in any order."""
    rng = np.random.default_rng(seed)
    words_of: dict[int, list[str]] = {}
    for word in text.content_words:
        words_of.setdefault(text.scenes[word], []).append(word)

    scenes = rng.integers(len(words_of), size=count).tolist()
    texts = []
    for scene in scenes:
        zipf = 1 / np.arange(3, len(words_of[scene]) + 3)
        meant = rng.choice(words_of[scene], 6, p=zipf / zipf.sum())
        usual = rng.choice(rng.choice(FUNCTION_WORDS, 3, replace=False), int(rng.integers(4, 16)))
        texts.append(" ".join(rng.permutation(np.concatenate([meant, usual])).tolist()))
    return texts, scenes


def make_table(seed: int, *, rows: int, columns: int = 900) -> scipy.sparse.csr_array:
    """Return a table of users and items: ten kinds of taste, popular items, and users with 3 to over 50 items."""
    rng = np.random.default_rng(seed)
    tastes, items = rng.normal(size=(rows, 10)), rng.normal(size=(columns, 10))
    tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    scores = 5 * tastes @ items.T - 0.8 * np.log(1 + rng.permutation(columns))

    # The items with the largest sums of score and Gumbel noise are drawn without replacement in proportion to e^score.
    ranked = np.argsort(-(scores + rng.gumbel(size=scores.shape)), axis=1)
    sizes = np.maximum(3, rng.lognormal(np.log(18), 0.6, rows)).astype(np.int64)
    row_ids = np.repeat(np.arange(rows), sizes)
    column_ids = np.concatenate([ranked[row, :size] for row, size in enumerate(sizes.tolist())])
    counts = 1.0 + rng.poisson(1, len(row_ids))
    return scipy.sparse.csr_array((counts, (row_ids, column_ids)), shape=(rows, columns))


def make_graph(
    seed: int, *, nodes: int = 2_000, communities: int = 100
) -> tuple[list[tuple[str, str, int]], dict[str, int]]:
    """Return the edges of a stochastic block model, and the community of each node.

    A node has eight edges in its community and three to others, on average; some nodes have five times as many as
    others. The names of nodes say nothing.
    """
    rng = np.random.default_rng(seed)
    of_node = np.arange(nodes) % communities
    activity = 1 / np.sqrt(1 + 20 * rng.random(nodes))
    chances = np.outer(activity, activity)
    np.fill_diagonal(chances, 0)
    is_inside = of_node[:, None] == of_node
    for is_kind, degree in ((is_inside, 8), (~is_inside, 3)):
        chances[is_kind] *= degree * nodes / chances[is_kind].sum()
    first, second = np.nonzero(np.triu(rng.random(chances.shape) < chances, 1))

    names = [f"n{number}" for number in rng.permutation(nodes).tolist()]
    edges = [(names[a], names[b], 1) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    return edges, {name: int(community) for name, community in zip(names, of_node.tolist(), strict=True)}
