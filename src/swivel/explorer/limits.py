"""Limits of the requests to the explorer, all in one place."""

from __future__ import annotations

MAX_TEXT_LENGTH = 1_000  # characters of a word or an expression
MAX_TARGET_LENGTH = 8_192  # bytes of the path and the query of a request together
MAX_ANSWERS = 200
MAX_TERMS = 10  # of an expression
MAX_POINTS = 100_000  # of a map
MAX_CONNECTIONS = 200  # open at once; a process may often have 1,024 open files only
SHARED_REACH = 100  # nearest neighbors of each of two words that are searched for shared ones
