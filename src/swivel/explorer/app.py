"""The ASGI application: the files of the page, the API of `routes`, and the error responses."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from swivel.errors import ConfigError, SwivelError
from swivel.explorer.assets import MEDIA_TYPES, page_files
from swivel.explorer.maps import MapMaker
from swivel.explorer.models import VectorSet, View
from swivel.explorer.queries import NoSuchWord
from swivel.explorer.security import Guard
from swivel.runtime.resources import count_cores


@dataclass(frozen=True, slots=True)
class Exploration:
    """The one or two sets of vectors that are shown, and the maker of their maps."""

    sets: Sequence[VectorSet]
    maps: MapMaker

    def choose(self, number: int, key: str) -> tuple[VectorSet, View]:
        """Return set `number` and its view `key`, or raise ConfigError."""
        if number >= len(self.sets):
            raise ConfigError(f"set must be below {len(self.sets)}, got {number}")
        return self.sets[number], self.sets[number].view(key)


def make_app(exploration: Exploration, bound: str) -> Guard:
    """Return the ASGI application of a server on the address `bound`, wrapped in the security checks."""
    from swivel.explorer.routes import router

    # FastAPI's documentation pages are disabled because they load scripts from other sites.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.exploration = exploration
    app.state.query_slots = asyncio.Semaphore(count_cores())

    for name, data in page_files().items():
        path = "/" if name == "index.html" else f"/{name}"
        app.add_api_route(path, _serve_file(name, data), methods=["GET", "HEAD"], response_model=None)
    app.include_router(router)

    app.add_exception_handler(SwivelError, _respond_to_error)
    app.add_exception_handler(RequestValidationError, _respond_to_invalid)
    return Guard(app, bound)


def _serve_file(name: str, data: bytes) -> Callable[[Request], Response]:
    media_type = MEDIA_TYPES[PurePath(name).suffix]
    tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}

    def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=media_type, headers=headers)

    return serve


async def _respond_to_error(request: Request, error: Exception) -> Response:
    if isinstance(error, NoSuchWord):  # A usual answer, with status 200: browsers log every other status as an error.
        return JSONResponse({"error": str(error), "word": error.token, "close": error.close})
    return JSONResponse({"error": str(error)}, 400)


async def _respond_to_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"error": f"{first['loc'][-1]}: {first['msg']}"}, 400)
