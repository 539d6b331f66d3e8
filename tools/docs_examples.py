"""For the site: puts examples and one-line `Raises` of our docstrings under headers that the reference knows.

In the code an example follows the text without a header, as doctest takes it; numpydoc wants one.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


def add_headers(text: str) -> str:
    """Return a docstring with headers before `Raises X where ...` and before the first example.

    >>> add_headers("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()[2:4]
    ['Examples', '--------']
    """
    text = re.sub(r"^Raises (\w+)\W+((?:.+\n?)+)", _make_section, text, flags=re.M)
    if re.search(r"^Examples\n-", text, re.M):
        return text
    return re.sub(r"(?<=\n\n)(?=>>> )", "Examples\n--------\n", text, count=1)


def _make_section(raises: re.Match[str]) -> str:
    return f"Raises\n------\n{raises[1]}\n    {' '.join(raises[2].split())}\n"


class Headers(griffe.Extension):
    """Griffe's hook: called for everything that is documented."""

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:
        """Change the docstring before it is parsed."""
        if obj.docstring:
            obj.docstring.value = add_headers(obj.docstring.value)
