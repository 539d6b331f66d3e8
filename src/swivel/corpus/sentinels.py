"""Two reserved values in arrays of token ids, which are written by the corpus package and read by counting."""

from __future__ import annotations

import numpy as np

BREAK = np.uint32(0xFFFFFFFF)  # between two units; no window crosses it
GAP = np.uint32(0xFFFFFFFE)  # a token that is not in the vocabulary but keeps its position in the window
