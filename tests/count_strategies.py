"""Hypothesis strategies for the tests of counting: corpora and configurations."""

from __future__ import annotations

from hypothesis import strategies as st

from swivel.config import CountConfig
from swivel.corpus import BREAK, GAP


def corpora(words: int, min_size: int) -> st.SearchStrategy[list[int]]:
    """Lists of word ids with breaks and gaps; about two thirds are words."""
    word = st.integers(0, words - 1)
    return st.lists(st.one_of(word, word, st.sampled_from([int(BREAK), int(GAP)])), min_size=min_size, max_size=60)


@st.composite
def configs(draw: st.DrawFn) -> CountConfig:
    left = draw(st.integers(0, 5))
    right = draw(st.integers(0, 5))
    if draw(st.booleans()) or left + right == 0:
        left = right = max(left, 2)

    columns = draw(st.sampled_from(["symmetric", "directional", "bands", "directional-bands"]))
    if "bands" in columns and max(left, right) < 2:
        left = 3

    near = draw(st.integers(1, max(left, right) - 1)) if "bands" in columns else 1
    weight = draw(st.sampled_from(["harmonic", "linear", "uniform"]))
    return CountConfig(left=left, right=right, columns=columns, near=near, weight=weight)
