"""The files of the page, read into memory once, so that the path of a request never reaches the file system."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import PurePath

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def page_files() -> dict[str, bytes]:
    """Return all files of the page by name.

    >>> page_files()["index.html"][:15]
    b'<!doctype html>'
    """
    page = (files("swivel.explorer") / "page").iterdir()
    return {file.name: file.read_bytes() for file in page if PurePath(file.name).suffix in MEDIA_TYPES}
