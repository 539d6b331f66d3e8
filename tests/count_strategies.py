"""Hypothesis strategies for the tests of counting: corpora and configurations; and counts by their definition."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from hypothesis import strategies as st

from swivel.config import CountConfig
from swivel.corpus.vocabulary import BREAK, GAP, Vocabulary
from swivel.counts import Matrix


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


def weigh(config: CountConfig, distance: int, side: int) -> Fraction:
    if config.weight == "harmonic":
        return Fraction(1, distance)
    return Fraction(side + 1 - distance, side) if config.weight == "linear" else Fraction(1)


def name_part(config: CountConfig, offset: int) -> str:
    side = ("left" if offset < 0 else "right") if config.is_directional else ""
    longest = max(config.window_left, config.window_right)
    bands = (1, config.near), (config.near + 1, longest)
    first, last = bands[abs(offset) > config.near]
    band = (str(first) if first == last else f"{first}-{last}") if config.has_bands else ""
    return f"{side} {band}".strip()


def count_by_definition(ids: list[int], vocabulary: Vocabulary, config: CountConfig) -> dict[tuple[str, str], Fraction]:
    """Return the counts by the definition of the window, as exact fractions."""
    counts: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    units: list[list[int]] = [[]]

    for number in ids:
        if number == BREAK:
            units.append([])
        else:
            units[-1].append(number)

    for unit in units:
        for place, word in enumerate(unit):
            for offset in range(-config.window_left, config.window_right + 1):
                other = place + offset
                if offset == 0 or not 0 <= other < len(unit) or word == GAP or unit[other] == GAP:
                    continue
                side = config.window_left if offset < 0 else config.window_right
                name = name_part(config, offset)
                label = f"{name}:{vocabulary[unit[other]]}" if name else vocabulary[unit[other]]
                counts[vocabulary[word], label] += weigh(config, abs(offset), side)

    return counts


def read_counts(matrix: Matrix) -> dict[tuple[str, str], Fraction]:
    """Return all cells as exact fractions, read through the public blocks."""
    found = {}
    for i in range(matrix.row_blocks):
        for j in range(matrix.column_blocks):
            positions, units = matrix.units(i, j)
            mirrored = matrix.cells(i, j).mirrored
            for position, amount in zip(positions.tolist(), units.tolist(), strict=True):
                row, column = (position & 0xFFFF, position >> 16) if mirrored else (position >> 16, position & 0xFFFF)
                label = matrix.columns[column * matrix.column_blocks + j]
                found[matrix.rows[row * matrix.row_blocks + i], label] = Fraction(amount, matrix.unit)

    return found
