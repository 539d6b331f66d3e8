"""The page's own files, held in memory.

Receives nothing, hands on a fixed table of names: no path of a request ever reaches the file system.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NAMES = (
    "index.html",
    "style.css",
    "icon.svg",
    "main.js",
    "api.js",
    "state.js",
    "dom.js",
    "search.js",
    "neighbours.js",
    "compare.js",
    "analogy.js",
    "map.js",
    "map_view.js",
    "points.js",
)
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page: bytes, media type, and a tag that changes with them."""

    data: bytes
    media_type: str
    tag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Return every file of the page by its name.

    >>> page_files()["index.html"].media_type
    'text/html; charset=utf-8'
    """
    folder = files("swivel.explorer") / "page"
    table = {}
    for name in NAMES:
        data = (folder / name).read_bytes()
        table[name] = PageFile(data, _TYPES[name.rpartition(".")[2]], f'"{hashlib.sha256(data).hexdigest()[:16]}"')
    return table
