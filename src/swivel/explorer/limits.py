"""What a request may ask for, and no more: every bound of the explorer in one place."""

from __future__ import annotations

LONGEST_TEXT = 1_000  # characters of a word or an expression
LONGEST_TARGET = 8_192  # bytes of a request's path and query together
MOST_ANSWERS = 200
MOST_TERMS = 10  # of an expression
MOST_POINTS = 100_000  # of a map
REACH = 100  # neighbours of each of two words among which they share some
