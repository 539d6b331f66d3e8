"""The questions that the page may ask: addresses to answers, and nothing else.

Each route takes arguments whose sizes FastAPI has checked, hands over to `answers` or `maps`, and returns JSON or
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse

from swivel.explorer import queries as answers
from swivel.explorer.app import Exploration
from swivel.explorer.limits import LONGEST_TEXT, MOST_ANSWERS, MOST_TERMS
from swivel.explorer.maps import Map
from swivel.explorer.models import VectorSet, View
from swivel.vectors import Expression

Text = Annotated[str, Query(max_length=LONGEST_TEXT)]
Texts = Annotated[list[Text] | None, Query(max_length=MOST_TERMS)]
Count = Annotated[int, Query(ge=1, le=MOST_ANSWERS)]
Number = Annotated[int, Query(ge=0, le=9, alias="set")]

_LABELS_A_LINE = 2_000

router = APIRouter(prefix="/api")


def find_exploration(request: Request) -> Exploration:
    """Return what this server shows."""
    found: Exploration = request.app.state.exploration
    return found


def choose(request: Request, number: Number = 0, view: Text = "") -> tuple[VectorSet, View]:
    """Return the set and the view that a request names."""
    return find_exploration(request).choose(number, view)


def find_map(request: Request, number: Number = 0, view: Text = "") -> Map:
    """Return the map of the view that a request names."""
    exploration = find_exploration(request)
    return exploration.maps.map_of(exploration.choose(number, view)[1])


class Turn:
    """As many products of all words at a time as there are cores: more would only take turns."""

    def __init__(self, request: Request) -> None:
        self._turn = request.app.state.turn

    async def answer(self, question: Callable[..., dict[str, Any]], *arguments: Any) -> Response:
        """Return what a question gives, as soon as it is its turn; who waits holds no thread."""
        async with self._turn:
            return _json(await run_in_threadpool(question, *arguments))


MyTurn = Annotated[Turn, Depends(Turn)]
Chosen = Annotated[tuple[VectorSet, View], Depends(choose)]
ChosenMap = Annotated[Map, Depends(find_map)]


def read_question(chosen: Chosen, q: Text = "", plus: Texts = None, minus: Texts = None) -> Expression:
    """Return what is asked: a typed text, or words that are added and taken away."""
    return answers.read_expression(chosen[1], q) if q else Expression(tuple(plus or ()), tuple(minus or ()))


Asked = Annotated[Expression, Depends(read_question)]


@router.api_route("/sets", methods=["GET", "HEAD"], response_model=None)
def sets(request: Request) -> Response:
    """Return what is shown."""
    described = [each.describe() for each in find_exploration(request).sets]
    return _json({"sets": described, "most": MOST_ANSWERS})


@router.api_route("/suggest", methods=["GET", "HEAD"], response_model=None)
def suggest(chosen: Chosen, q: Text = "", count: Count = 8) -> Response:
    """Return completions and close spellings of a text."""
    return _json(answers.suggest(chosen[1], q, count))


@router.api_route("/nearest", methods=["GET", "HEAD"], response_model=None)
async def nearest(chosen: Chosen, asked: Asked, turn: MyTurn, count: Count = 20) -> Response:
    """Return the neighbours of a typed expression, or of words that are added and taken away."""
    return await turn.answer(answers.find_nearest, chosen[1], asked, count)


@router.api_route("/columns", methods=["GET", "HEAD"], response_model=None)
async def columns(chosen: Chosen, turn: MyTurn, q: Text, count: Count = 20) -> Response:
    """Return the columns that a word goes with."""
    return await turn.answer(answers.find_columns, chosen[0], (q,), count)


@router.api_route("/analogy", methods=["GET", "HEAD"], response_model=None)
async def analogy(
    chosen: Chosen,
    turn: MyTurn,
    words: Annotated[list[Text], Query(min_length=3, max_length=3, alias="word")],
    method: Literal["3cosadd", "3cosmul"] = "3cosadd",
    count: Count = 10,
) -> Response:
    """Return what completes an analogy; `word` is given three times: a is to b as c is to ?"""
    return await turn.answer(answers.solve_analogy, chosen[1], (words[0], words[1], words[2]), method, count)


@router.api_route("/compare", methods=["GET", "HEAD"], response_model=None)
async def compare(chosen: Chosen, turn: MyTurn, a: Text, b: Text, count: Count = 20) -> Response:
    """Return what two words share and what is each one's own."""
    return await turn.answer(answers.compare_words, *chosen, (a, b), count)


@router.api_route("/map", methods=["GET", "HEAD"], response_model=None)
def describe_map(made: ChosenMap) -> Response:
    """Return how far a map is."""
    return _json(made.describe())


@router.api_route("/map/points", methods=["GET", "HEAD"], response_model=None)
def points(made: ChosenMap, layout: Literal["pca", "umap"] = "pca") -> Response:
    """Return places: float32, x and y in turn."""
    return _bytes(made.points(layout), "<f4")


@router.api_route("/map/clusters", methods=["GET", "HEAD"], response_model=None)
def clusters(made: ChosenMap) -> Response:
    """Return the cluster of each point: uint16."""
    return _bytes(None if made.clusters is None else made.clusters.numbers, "<u2")


@router.api_route("/map/counts", methods=["GET", "HEAD"], response_model=None)
def counts(made: ChosenMap) -> Response:
    """Return how often each point's label was seen: float32."""
    return _bytes(made.view.vectors.vocabulary.counts[: len(made)], "<f4")


@router.api_route("/map/labels", methods=["GET", "HEAD"], response_model=None)
def labels(made: ChosenMap) -> Response:
    """Return the labels of the points, streamed: lines that are JSON lists."""
    return StreamingResponse(_label_lines(made), media_type="application/x-ndjson")


def _label_lines(made: Map) -> Iterator[str]:
    """Yield many labels a line, common ones first; what is too long to be asked for is cut."""
    tokens = made.view.vectors.vocabulary.tokens
    for start in range(0, len(made), _LABELS_A_LINE):
        part = tokens[start : min(start + _LABELS_A_LINE, len(made))]
        yield json.dumps([token[:LONGEST_TEXT] for token in part]) + "\n"


def _json(data: dict[str, Any]) -> Response:
    return JSONResponse(data, headers={"cache-control": "no-store"})


def _bytes(array: np.ndarray[Any, Any] | None, dtype: str) -> Response:
    """Return an array as it lies in memory; 409 where it is not there yet."""
    if array is None:
        return JSONResponse({"error": "not computed yet: ask /api/map how far it is"}, 409)
    data = np.ascontiguousarray(array, dtype).tobytes()
    return Response(data, media_type="application/octet-stream", headers={"cache-control": "no-store"})
