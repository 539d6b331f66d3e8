"""The ASGI application: the files of the page, the HTTP API, and the error responses.

Each route of the API calls a function of `queries` or `maps` and returns JSON or bytes; FastAPI checks the sizes of all
arguments.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from pathlib import PurePath
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse

from swivel.errors import ConfigError, SwivelError
from swivel.explorer import queries
from swivel.explorer.maps import MAX_TEXT_LENGTH, Map
from swivel.explorer.queries import MAX_TERMS, VectorSet, View
from swivel.explorer.server import HEADERS, find_fault
from swivel.vectors import Expression

MAX_ANSWERS = 200
_LABELS_PER_LINE = 2_000
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


Text = Annotated[str, Query(max_length=MAX_TEXT_LENGTH)]
Texts = Annotated[list[Text] | None, Query(max_length=MAX_TERMS)]
Count = Annotated[int, Query(ge=1, le=MAX_ANSWERS)]
RestrictVocab = Annotated[int | None, Query(ge=1)]  # the most frequent words, of which answers are some
Number = Annotated[int, Query(ge=0, le=9, alias="set")]

router = APIRouter(prefix="/api")
get = partial(router.api_route, methods=["GET", "HEAD"], response_model=None)


def choose(request: Request, number: Number = 0, view: Text = "") -> tuple[VectorSet, View]:
    """Return the set and the view named in a request."""
    sets: Sequence[VectorSet] = request.app.state.sets
    if number >= len(sets):
        raise ConfigError(f"set must be below {len(sets)}, got {number}")
    return sets[number], sets[number].view(view)


Chosen = Annotated[tuple[VectorSet, View], Depends(choose)]


def find_map(choice: Chosen) -> Map:
    """Return the map of the view named in a request; the first request for a map starts its computation."""
    choice[1].map.start()
    return choice[1].map


ChosenMap = Annotated[Map, Depends(find_map)]


def read_query(choice: Chosen, q: Text = "", plus: Texts = None, minus: Texts = None) -> Expression:
    """Return the expression of a request: the typed text `q`, or the words `plus` and `minus`."""
    if q:
        return queries.read_expression(choice[1], q)
    return Expression(tuple(plus or ()), tuple(minus or ()))


TypedExpression = Annotated[Expression, Depends(read_query)]


@get("/sets")
def describe_sets(request: Request) -> Response:
    """Return a description of the sets of vectors, and the largest `count` that is allowed."""
    shown = request.app.state.sets
    return _json({"sets": [each.describe() for each in shown], "most": MAX_ANSWERS})


@get("/suggest")
def suggest(choice: Chosen, q: Text = "", count: Count = 8) -> Response:
    """Return completions and similar spellings of a text."""
    return _json(queries.suggest(choice[1], q, count))


@get("/nearest")
def nearest(
    choice: Chosen,
    expression: TypedExpression,
    guess: bool = False,
    count: Count = 20,
    restrict_vocab: RestrictVocab = None,
) -> Response:
    """Return the nearest neighbors of an expression; an unknown word may be guessed from its spelling."""
    view = choice[1]
    words = expression.plus + expression.minus
    if guess and len(words) == 1 and words[0] not in view.vectors and view.vectors.subwords is not None:
        return _json(queries.guess_nearest(view, words[0], count, restrict_vocab))
    return _json(queries.find_nearest(view, expression, count, restrict_vocab))


@get("/columns")
def columns(choice: Chosen, q: Text, count: Count = 20) -> Response:
    """Return the columns with the highest scores for a word."""
    return _json(queries.find_columns(choice[0], (q,), count))


@get("/recommend")
def recommend(choice: Chosen, row: Text = "", column: Texts = None, count: Count = 20) -> Response:
    """Return the best columns for a row of a table, or for a new row with the columns `column`."""
    return _json(queries.recommend(choice[0], row, column or (), count))


@get("/analogy")
def analogy(
    choice: Chosen,
    words: Annotated[list[Text], Query(min_length=3, max_length=3, alias="word")],
    method: Literal["3cosadd", "3cosmul"] = "3cosadd",
    count: Count = 10,
    restrict_vocab: RestrictVocab = None,
) -> Response:
    """Return the answers to the analogy "a is to b as c is to ?"; the parameter `word` is given three times."""
    a, b, c = words
    return _json(queries.solve_analogy(choice[1], (a, b, c), method, count, restrict_vocab))


@get("/compare")
def compare(choice: Chosen, a: Text, b: Text, count: Count = 20) -> Response:
    """Return the cosine of two words, and the neighbors and columns that they share or not."""
    return _json(queries.compare_words(*choice, (a, b), count))


@get("/map")
def describe_map(word_map: ChosenMap) -> Response:
    """Return the state of a map."""
    return _json(word_map.describe())


@get("/map/points")
def points(word_map: ChosenMap, layout: Literal["pca", "umap"] = "pca") -> Response:
    """Return the coordinates of all points as float32: x, y, x, y, ..."""
    return _bytes(word_map.points(layout), "<f4")


@get("/map/clusters")
def clusters(word_map: ChosenMap) -> Response:
    """Return the cluster of each point as uint16."""
    return _bytes(None if word_map.clusters is None else word_map.clusters.numbers, "<u2")


@get("/map/order")
def order(word_map: ChosenMap) -> Response:
    """Return the ids of the points as uint32, those with the most informative labels first."""
    return _bytes(None if word_map.clusters is None else word_map.clusters.order, "<u4")


@get("/map/counts")
def counts(word_map: ChosenMap) -> Response:
    """Return the count of the label of each point as float32."""
    return _bytes(word_map.vectors.vocabulary.counts[: len(word_map)], "<f4")


@get("/map/labels")
def labels(word_map: ChosenMap) -> Response:
    """Return the labels of the points as a stream of lines, each a JSON list."""
    return StreamingResponse(_label_lines(word_map), media_type="application/x-ndjson")


def _label_lines(word_map: Map) -> Iterator[str]:
    """Yield JSON lists of labels, common ones first; labels longer than a query may be are cut."""
    tokens = word_map.vectors.vocabulary.tokens
    for start in range(0, len(word_map), _LABELS_PER_LINE):
        part = tokens[start : min(start + _LABELS_PER_LINE, len(word_map))]
        yield json.dumps([token[:MAX_TEXT_LENGTH] for token in part]) + "\n"


class _AsciiJson(JSONResponse):
    """JSON in ASCII: labels and names of folders may have half a surrogate pair, which UTF-8 cannot store."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of the answer."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def _json(data: dict[str, Any]) -> Response:
    return _AsciiJson(data, headers={"cache-control": "no-store"})


def _bytes(array: np.ndarray[Any, Any] | None, dtype: str) -> Response:
    """Return the bytes of an array, or status 409 if it is None."""
    if array is None:
        return _AsciiJson({"error": "not computed yet; /api/map returns the state"}, 409)
    # Bytes and not JSON: 100,000 points are 800 KB instead of 2 MB of text to parse.
    data = np.ascontiguousarray(array, dtype).tobytes()
    return Response(data, media_type="application/octet-stream", headers={"cache-control": "no-store"})


def make_app(sets: Sequence[VectorSet], bound: str) -> FastAPI:
    """Return the ASGI application that shows one or two sets of vectors, for a server on the address `bound`."""
    # FastAPI's documentation pages are disabled because they load scripts from other sites.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.sets = sets

    # The files of the page are read into memory once, so that the path of a request never reaches the file system.
    for file in (files("swivel.explorer") / "page").iterdir():
        if PurePath(file.name).suffix in MEDIA_TYPES:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            serve = _serve_file(file.read_bytes(), MEDIA_TYPES[PurePath(file.name).suffix])
            app.add_api_route(path, serve, methods=["GET", "HEAD"], response_model=None)
    app.include_router(router)

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        fault = find_fault(request, bound)
        response = await answer(request) if fault is None else _AsciiJson({"error": fault[1]}, fault[0])
        response.headers.update(HEADERS)
        return response

    app.add_exception_handler(SwivelError, _respond_to_error)
    app.add_exception_handler(RequestValidationError, _respond_to_invalid)
    return app


def _serve_file(data: bytes, media_type: str) -> Callable[[], Response]:
    # Another version of Swivel may answer at the same address later: browsers must not keep the page.
    return lambda: Response(data, media_type=media_type, headers={"cache-control": "no-store"})


async def _respond_to_error(request: Request, error: Exception) -> Response:
    # A usual answer, with status 200: browsers log every other status as an error.
    if isinstance(error, queries.NoSuchWord):
        facts = {"word": error.token, "close": error.close, "can_guess": error.can_guess}
        return _AsciiJson({"error": str(error), **facts})
    return _AsciiJson({"error": str(error)}, 400)


async def _respond_to_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _AsciiJson({"error": f"{first['loc'][-1]}: {first['msg']}"}, 400)
