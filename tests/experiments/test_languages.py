"""Neighbors in other languages, judged by a word list and a WordNet of two words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.languages import WordList, judge, read_pairs
from experiments.neighbors import WordNet
from swivel.corpus.vocabulary import Vocabulary
from swivel.vectors import Vectors, VectorTable


@pytest.fixture
def listed(tmp_path: Path) -> WordList:
    for part in ("noun", "verb", "adj", "adv"):
        (tmp_path / f"data.{part}").write_text("")
        (tmp_path / f"{part}.exc").write_text("")
    (tmp_path / "data.noun").write_text(
        "00000001 05 n 01 animal 0 000 | a living thing\n"
        "00000002 05 n 01 dog 0 001 @ 00000001 n 0000 | it barks\n"
        "00000003 05 n 01 bog 0 000 | wet ground\n"
    )
    (tmp_path / "words.dict").write_text(
        "dog @ Hund\nanimal @ tier\nbog @ moor\nthe @ der\ndog @ köter\n", encoding="utf-8"
    )
    return WordList(tmp_path / "words.dict", WordNet(tmp_path))


def test_words_are_related_by_their_translations(listed: WordList) -> None:
    assert listed.is_related("hund", "tier") and listed.is_related("hund", "köter")
    assert not listed.is_related("hund", "moor")
    assert "der" not in listed.translations  # WordNet does not know "the"


def test_only_listed_neighbors_are_judged(listed: WordList) -> None:
    words = Vocabulary(["hund", "tier", "der", "moor"])
    table = np.array([[1, 0], [1, 0.1], [1, 0.2], [1, 0.3]], np.float32)
    result = judge(Vectors(VectorTable(words, table)), ["hund"], listed)
    assert (result["listed"], result["related"], result["look-alikes"]) == (66.7, 50.0, 0.0)


@pytest.mark.parametrize(
    "text", ["word1,word2,score\nHund,Tier,7.5,8\n", "a b c\nhund\ttier\t7.5\n", "Hund Tier 7.5\n\n"]
)
def test_pairs_are_read_in_any_format(tmp_path: Path, text: str) -> None:
    (tmp_path / "pairs.csv").write_text(text, encoding="utf-8-sig")
    pairs = read_pairs(tmp_path / "pairs.csv")
    assert (pairs.name, pairs.pairs, pairs.scores) == ("pairs", (("hund", "tier"),), (7.5,))
