"""The files of the page, read into memory once, so that the path of a request never reaches the file system."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
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
    table = {}
    for file in (files("swivel.explorer") / "page").iterdir():
        media_type = _TYPES.get(PurePath(file.name).suffix)
        if media_type is not None:
            data = file.read_bytes()
            tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
            table[file.name] = PageFile(data, media_type, tag)
    return table
