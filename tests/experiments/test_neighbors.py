"""Related words and look-alikes among neighbors, by a WordNet of five words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.neighbors import WordNet, choose_words, edit_distance, is_inflected, judge_neighbors
from swivel.corpus.vocabulary import Vocabulary
from swivel.vectors import Vectors, VectorTable


@pytest.fixture
def wordnet(tmp_path: Path) -> WordNet:
    """The nouns dog and cat, which are animals, goose, and bog, which is something else."""
    for part in ("noun", "verb", "adj", "adv"):
        (tmp_path / f"data.{part}").write_text("  1 the license\n")
        (tmp_path / f"{part}.exc").write_text("geese goose\n" if part == "noun" else "")
    lines = [
        "00000001 05 n 01 animal 0 000 | a living thing",
        "00000002 05 n 02 dog 0 hound 0 001 @ 00000001 n 0000 | it barks",
        "00000003 05 n 01 cat 0 001 @ 00000001 n 0000 | it does not",
        "00000004 05 n 01 bog 0 000 | wet ground",
        "00000005 05 n 01 goose 0 000 | a bird",
    ]
    with (tmp_path / "data.noun").open("a") as file:
        file.write("\n".join(lines) + "\n")
    return WordNet(tmp_path)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("dog", "cat", True),  # the same hypernym
        ("dogs", "animal", True),  # a pointer
        ("dog", "hound", True),  # the same synset
        ("geese", "goose", True),  # the same lemma
        ("dog", "bog", False),
        ("dog", "unknown", False),
    ],
)
def test_related_words(wordnet: WordNet, first: str, second: str, expected: bool) -> None:
    assert wordnet.is_related(first, second) is wordnet.is_related(second, first) is expected


def test_neighbors_are_related_or_look_alike(wordnet: WordNet) -> None:
    table = np.array([[1, 0], [1, 0.1], [1, 0.2], [1, 0.3]], np.float32)
    vectors = Vectors(VectorTable(Vocabulary(["dog", "bog", "cat", "the"], [30, 5, 4, 3]), table))
    assert judge_neighbors(vectors, ["dog"], wordnet) == {"related": 33.3, "look-alikes": 33.3}
    assert choose_words(vectors, wordnet) == {"common": [], "rare": ["bog", "cat"]}


def test_inflections_and_distances() -> None:
    assert is_inflected("carry", "carried")
    assert is_inflected("walking", "walk")
    assert not is_inflected("music", "allmusic")
    assert [edit_distance(*pair) for pair in (("kitten", "sitting"), ("", "ab"), ("ab", "ab"))] == [3, 2, 0]
