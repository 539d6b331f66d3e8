"""The files of the page, read into memory once.

The names are a fixed list, so that the path of a request never reaches the file system.
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
    """One file of the page: its bytes, its media type, and an ETag computed from the bytes."""

    data: bytes
    media_type: str
    tag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Return all files of the page by name.

    >>> page_files()["index.html"].media_type
    'text/html; charset=utf-8'
    """
    folder = files("swivel.explorer") / "page"
    table = {}
    for name in NAMES:
        data = (folder / name).read_bytes()
        media_type = _TYPES[name.rpartition(".")[2]]
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        table[name] = PageFile(data, media_type, tag)
    return table
