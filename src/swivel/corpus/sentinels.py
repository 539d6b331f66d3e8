"""The two numbers in a run of ids that are no word: the corpus writes them, counting reads them."""

from __future__ import annotations

import numpy as np

BREAK = np.uint32(0xFFFFFFFF)  # between two units, which no window crosses
GAP = np.uint32(0xFFFFFFFE)  # a token outside the vocabulary that keeps its place
