"""The bundled analogies of common English words."""

from __future__ import annotations

from importlib.resources import files
from itertools import permutations

from swivel.evaluation.datasets import AnalogySet, FourWords


def read_bundled() -> AnalogySet:
    """Return the bundled analogies: in each section, every pair of words is asked about every other pair.

    >>> read_bundled().size > 1_000
    True
    """
    pairs: dict[str, list[tuple[str, str]]] = {}
    for line in (files("swivel") / "data" / "pairs.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(": "):
            section = pairs.setdefault(line[2:], [])
        else:
            a, b = line.split("\t")
            section.append((a, b))

    questions: list[FourWords] = []
    sections: list[str] = []
    for name, members in pairs.items():
        for first, second in permutations(members, 2):
            questions.append((*first, *second))
            sections.append(name)
    return AnalogySet("bundled", tuple(questions), tuple(sections))
