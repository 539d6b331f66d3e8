"""Tests of the explorer over HTTP: answers, limits, and rejected requests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from explorer_data import (
    DIM,
    GROUPS,
    HTML,
    PLANTED,
    WORDS,
    build_matrix,
    make_guessing_set,
    make_sets,
    make_table_set,
    make_vectors,
)
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.errors import ConfigError
from swivel.explorer import app, queries
from swivel.explorer.app import MEDIA_TYPES, make_app
from swivel.explorer.queries import VectorSet, open_set
from swivel.explorer.server import allows_host, is_loopback
from swivel.explorer.speller import Speller
from swivel.vectors import Vectors, VectorTable


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return build_matrix(tmp_path_factory.mktemp("explorer") / "matrix")


@pytest.fixture(scope="module")
def sets(matrix: Matrix) -> list[VectorSet]:
    return make_sets(matrix, two=True)


@pytest.fixture(scope="module")
def client(sets: list[VectorSet]) -> Iterator[TestClient]:
    with TestClient(make_app(sets, "127.0.0.1"), base_url="http://127.0.0.1:8707") as client:
        yield client


def ask(client: TestClient, path: str, **parameters: Any) -> Any:
    answer = client.get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_sets_are_described(client: TestClient) -> None:
    first, second = ask(client, "sets")["sets"]
    assert [view["key"] for view in first["views"]] == ["w+c", "w", "c"]
    assert (first["tokens"], first["dim"], first["columns"], first["has_matrix"]) == (WORDS, DIM, WORDS, True)
    assert [view["key"] for view in second["views"]] == ["saved"]
    assert (second["columns"], second["has_counts"], second["has_matrix"]) == (0, False, False)
    assert first["expressions"] == ["king - man + woman"]


@pytest.mark.parametrize("view", ["", "w", "c", "w+c"])
def test_neighbors_are_those_of_the_vectors(client: TestClient, sets: list[VectorSet], view: str) -> None:
    result = ask(client, "nearest", q="word20", count=12, view=view)
    vectors = sets[0].view(view).vectors
    expected = vectors.nearest("word20", count=12)

    assert [row["token"] for row in result["answers"]] == [neighbor.token for neighbor in expected]
    assert [row["similarity"] for row in result["answers"]] == pytest.approx(
        [neighbor.similarity for neighbor in expected], abs=1e-4
    )
    assert all(row["rank"] == vectors.vocabulary.id(row["token"]) + 1 for row in result["answers"])
    assert all(row["count"] == 10_000 // row["rank"] for row in result["answers"])


def test_the_parts_of_an_answer_add_up_to_its_cosine(client: TestClient) -> None:
    result = ask(client, "nearest", q="king - man + woman", count=20)
    signs = [term["sign"] for term in result["terms"]]
    assert result["answers"][0]["token"] == "queen"
    for row in result["answers"]:
        assert np.dot(signs, row["parts"]) / result["length"] == pytest.approx(row["similarity"], abs=2e-3)


def test_words_may_contain_signs_and_spaces(client: TestClient) -> None:
    assert [term["token"] for term in ask(client, "nearest", q="rock - roll")["terms"]] == ["rock - roll"]
    terms = ask(client, "nearest", plus=["rock - roll", "king"], minus=["man"])["terms"]
    assert [(term["token"], term["sign"]) for term in terms] == [("rock - roll", 1), ("king", 1), ("man", -1)]


@pytest.mark.parametrize("method", ["3cosadd", "3cosmul"])
def test_analogies_are_those_of_the_vectors(client: TestClient, sets: list[VectorSet], method: str) -> None:
    result = ask(client, "analogy", word=["man", "king", "woman"], method=method, count=5)
    expected = sets[0].view("").vectors.analogy("man", "king", "woman", method=method, count=5)
    assert [row["token"] for row in result["answers"]] == [neighbor.token for neighbor in expected]
    assert [term["token"] for term in result["terms"]] == ["king", "woman", "man"]


@pytest.mark.parametrize("path", ["nearest", "analogy"])
def test_answers_may_be_restricted_to_frequent_words(client: TestClient, path: str) -> None:
    query = {"q": "word20"} if path == "nearest" else {"word": ["man", "king", "woman"]}
    restricted = ask(client, path, **query, restrict_vocab=30, count=200)["answers"]
    everything = ask(client, path, **query, count=200)["answers"]
    kept = [each for each in everything if each["rank"] <= 30]
    assert restricted[: len(kept)] == kept and all(each["rank"] <= 30 for each in restricted)
    assert 15 < len(kept) <= len(restricted) < 30 < len(everything)


def test_columns_are_ranked_by_score_and_have_counts(client: TestClient, sets: list[VectorSet]) -> None:
    vectors = sets[0].vectors
    result = ask(client, "columns", q="king", count=30)["columns"]
    expected = vectors.nearest("king", count=30, among="columns")
    assert [row["token"] for row in result] == [neighbor.token for neighbor in expected]
    assert {row["token"]: row["counts"][0] for row in result}["queen"] == 7
    response = client.get("/api/columns", params={"q": "king", "set": 1})
    assert (response.status_code, "has no columns" in response.json()["error"]) == (400, True)


def test_a_comparison_separates_shared_and_other_neighbors(client: TestClient, sets: list[VectorSet]) -> None:
    result = ask(client, "compare", a="word6", b="word12", count=200)
    vectors = sets[0].view("").vectors
    near = [{n.token for n in vectors.nearest(word, count=result["reach"])} for word in ("word6", "word12")]

    assert {row["token"] for row in result["shared"]} == near[0] & near[1]
    assert [{row["token"] for row in own} for own in result["own"]] == [
        near[0] - near[1] - {"word12"},
        near[1] - near[0] - {"word6"},
    ]
    assert result["similarity"] == pytest.approx(vectors.similarity("word6", "word12"), abs=1e-4)
    assert all(len(row["scores"]) == len(row["counts"]) == 2 for row in result["columns"])
    assert "columns" not in ask(client, "compare", a="word6", b="word12", set=1)


def test_suggestions_are_completions_and_similar_spellings(client: TestClient) -> None:
    completed = [row["token"] for row in ask(client, "suggest", q="gui")["completions"]]
    assert completed == ["Guitar", "guitars"]
    assert ask(client, "suggest", q="giutar")["close"][0]["token"] == "Guitar"
    assert ask(client, "suggest", q="king")["close"] == []
    assert [row["token"] for row in ask(client, "suggest", q="ROLL")["completions"]] == ["rock - roll"]


def test_an_unknown_word_gives_similar_spellings(client: TestClient) -> None:
    answer = ask(client, "nearest", q="giutar")
    assert (answer["word"], answer["close"][0]) == ("giutar", "Guitar")
    assert "not among the 300 words" in answer["error"]


def test_a_word_may_be_in_another_normal_form_of_unicode() -> None:
    words = Vocabulary(["caf\u00e9", "tea"])
    view = VectorSet("drinks", Vectors(VectorTable(words, np.eye(2, dtype=np.float32)))).view("")
    expression = queries.read_expression(view, "cafe\u0301")
    assert [term["token"] for term in queries.find_nearest(view, expression, 2)["terms"]] == ["caf\u00e9"]


def test_labels_are_not_changed(client: TestClient) -> None:
    assert ask(client, "nearest", q=HTML)["terms"][0]["token"] == HTML
    lines = client.get("/api/map/labels").text.splitlines()
    assert [token for line in lines for token in json.loads(line)][:5][-1] == HTML


def test_maps_are_binary_and_as_long_as_the_words(client: TestClient) -> None:
    points = np.frombuffer(client.get("/api/map/points").content, "<f4").reshape(-1, 2)
    counts = np.frombuffer(client.get("/api/map/counts").content, "<f4")
    assert (points.shape, counts[0], np.isfinite(points).all()) == ((WORDS, 2), 10_000, True)
    same_group = np.linalg.norm(points[20] - points[20 + GROUPS :: GROUPS], axis=1).mean()
    assert same_group < np.linalg.norm(points[20] - points[21:], axis=1).mean()


@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        (f"nearest?q={'x' * 1_001}", 400, "at most 1000 characters"),
        ("nearest?q=king&count=201", 400, "less than or equal to 200"),
        ("nearest?q=king&count=0", 400, "greater than or equal to 1"),
        ("nearest?q=" + "%20%2B%20".join(["king"] * 11), 400, "at most 10 words"),
        ("nearest?" + "&".join(["plus=king"] * 11), 400, "at most 10 items"),
        ("nearest?q=king&set=2", 400, "set must be below 2"),
        ("nearest?q=king&view=x", 400, "view must be one of w+c, w, c"),
        ("nearest?q=king%20%2B", 400, "is not an expression"),
        ("analogy?word=a&word=b", 400, "at least 3"),
        ("analogy?word=man&word=king&word=woman&method=x", 400, "3cosadd"),
        ("map/points?layout=x", 400, "pca"),
        ("nowhere", 404, "Not Found"),
    ],
)
def test_wrong_requests_are_rejected_in_one_line(client: TestClient, path: str, status: int, part: str) -> None:
    answer = client.get(f"/api/{path}")
    assert answer.status_code == status
    assert part in answer.text and "\n" not in answer.text


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8707",
        "10.0.0.7",
        "",
        "[::1].evil.com",
        "[::1]evil.com",
        "[localhost]",
        "[127.0.0.1]",
        "::1",
        "[::1",
        "[2001:db8::1]",
        "127.0.0.1:80@evil.com",
        "evil.com@127.0.0.1",
        "localhost:80:80",
        "localhost:evil",
        "localhost/evil.com",
        "127.0.0.1 evil.com",
    ],
)
def test_other_hosts_are_rejected(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:9000", "LOCALHOST", "localhost.", "[::1]", "[::1]:8707", "127.0.0.9"]
)
def test_loopback_hosts_are_allowed_with_any_port(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


def test_a_public_server_allows_addresses_but_not_unknown_names() -> None:
    assert not is_loopback("0.0.0.0") and is_loopback("localhost") and is_loopback("::1")
    assert all(allows_host("0.0.0.0", host) for host in ("192.168.0.7:8707", "[2001:DB8::1]:8707", "localhost"))
    assert not any(allows_host("0.0.0.0", host) for host in ("evil.example", "[evil.example]", "[::1].evil.com"))
    assert allows_host("box.lan", "box.lan:80")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_only_get_and_head_are_allowed(client: TestClient, method: str) -> None:
    assert client.request(method, "/api/sets").status_code == 405
    assert client.head("/api/sets").status_code == 200


def test_other_sites_are_rejected(client: TestClient) -> None:
    assert client.get("/api/sets", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # following a link is allowed


SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@pytest.mark.parametrize("path", ["/", "/api/sets", "/nowhere", "/main.js"])
def test_every_answer_has_the_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"].split("; ")
    assert {name: headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert sorted(policy) == [
        "base-uri 'none'",
        "default-src 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "img-src 'self' data:",
        "object-src 'none'",
    ]
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/%2e%2e/%2e%2e/etc/passwd", "/app.py", "/page/main.js", "//etc/passwd", "/docs"]
)
def test_no_path_reaches_the_file_system(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_page_is_complete_small_and_makes_no_other_requests(client: TestClient) -> None:
    table = {path.name: path.read_bytes() for path in (Path(app.__file__).parent / "page").iterdir()}

    assert {"index.html", "style.css", "icon.svg", "main.js", "api.js", "map_view.js"} <= set(table)
    assert sum(map(len, table.values())) < 500_000
    for name, data in table.items():
        served = client.get("/" if name == "index.html" else f"/{name}")
        assert (served.content, served.headers["content-type"]) == (data, MEDIA_TYPES[Path(name).suffix])
        text = data.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text
        assert "innerHTML" not in text.replace("never innerHTML", "")
        assert len(text.splitlines()) <= 400


def test_saved_vectors_that_are_neither_w_nor_w_plus_c_are_a_separate_view() -> None:
    vectors = make_vectors()
    rows = vectors.row_table
    columns = vectors.column_table
    other = type(vectors)(rows, columns, vectors=rows.values * 2, columns_per_row=1)
    assert list(VectorSet("x", other).views) == ["saved", "w", "c", "w+c"]
    rows_alone = type(vectors)(rows, columns)
    assert list(VectorSet("x", rows_alone).views) == ["w", "c"]


def test_columns_that_are_not_words_are_marked() -> None:
    vectors = make_vectors()

    assert vectors.columns is not None

    parts = Vocabulary([f"right 2-10:{token}" for token in vectors.vocabulary.tokens[:-1]] + ["king"])
    other = Vectors(
        VectorTable(vectors.vocabulary, vectors.rows), VectorTable(parts, vectors.columns), columns_per_row=1
    )
    result = queries.find_columns(VectorSet("other", other), ("king",), len(parts))["columns"]

    assert [column["word"] for column in result if column["token"] == "king"] == ["king"]
    places = {(column["token"], column["word"], column["place"]) for column in result}
    assert ("right 2-10:man", "man", "2 to 10 words after") in places
    assert VectorSet("other", other).view("c").facts(3)["of"] == len(parts)


def test_a_matrix_of_other_words_is_rejected(tmp_path: Path) -> None:
    make_vectors().save(tmp_path / "vectors")
    spec = MatrixSpec(rows=Vocabulary([f"w{n}" for n in range(len(make_vectors()))]))
    with MatrixBuilder(tmp_path / "matrix", spec, memory_bytes=1 << 20) as builder:
        builder.add(np.arange(9), np.arange(9), np.ones(9, np.int64))
        builder.finish()
    with pytest.raises(ConfigError, match="its rows are not those of"):
        open_set(tmp_path / "vectors", tmp_path / "matrix")


@pytest.mark.parametrize(
    ("text", "plus", "minus"),
    [
        ("king-man+woman", ["king", "woman"], ["man"]),
        ("king -man + woman", ["king", "woman"], ["man"]),
        ("-man+king", ["king"], ["man"]),
        ("rock - roll-king", ["rock - roll"], ["king"]),
    ],
)
def test_signs_need_no_spaces(client: TestClient, text: str, plus: list[str], minus: list[str]) -> None:
    terms = ask(client, "nearest", q=text)["terms"]
    assert [term["token"] for term in terms if term["sign"] > 0] == plus
    assert [term["token"] for term in terms if term["sign"] < 0] == minus


def test_many_signs_are_an_error_at_once(client: TestClient) -> None:
    answer = ask(client, "nearest", q="-" * 999)
    assert "is not among the 300 words" in answer["error"]


def test_examples_are_neither_function_words_nor_junk() -> None:
    rng = np.random.default_rng(4)
    tokens = [
        f"{kind}{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(200) for kind in ("and", "plain", "x20junk")
    ]
    # A row is short if its word occurs with everything, and long if it occurs with little else.
    lengths = {"and": 1, "plain": 2, "x20junk": 8}
    values = rng.standard_normal((len(tokens), 8)).astype(np.float32)
    values *= np.array([[lengths[token[:-2]]] for token in tokens]) / np.linalg.norm(values, axis=1, keepdims=True)
    examples = VectorSet("x", Vectors(VectorTable(Vocabulary(tokens), values))).describe()["examples"]
    assert len(examples) == 7
    assert {example[:-2] for example in examples} == {"plain"}


def test_pairs_to_compare_are_examples_with_their_nearest_neighbors(client: TestClient, sets: list[VectorSet]) -> None:
    described = ask(client, "sets")["sets"][0]
    vectors = sets[0].view("").vectors
    assert described["pairs"] == [[word, vectors.nearest(word, 1)[0].token] for word in described["examples"][:4]]


# Guesses


@pytest.fixture(scope="module")
def guessing() -> TestClient:
    return open_client([make_guessing_set()])


def test_an_unknown_word_can_be_guessed_from_its_spelling(guessing: TestClient) -> None:
    assert ask(guessing, "nearest", q="balazzzz")["can_guess"]
    result = ask(guessing, "nearest", q="balazzzz", guess=1, count=10)
    assert result["terms"][0]["token"] == "balazzzz"
    assert {row["token"][:4] for row in result["answers"]} == {"bala"}
    known = result["answers"][0]["token"]
    assert ask(guessing, "nearest", q=known, guess=1) == ask(guessing, "nearest", q=known)


def test_without_ngrams_nothing_is_guessed(client: TestClient) -> None:
    assert not ask(client, "nearest", q="giutar", guess=1)["can_guess"]


# Tables


@pytest.fixture(scope="module")
def table() -> TestClient:
    return open_client([make_table_set(), *make_sets()])


def test_a_table_has_rows_and_columns_and_no_english(table: TestClient) -> None:
    described, text = ask(table, "sets")["sets"]
    assert [(view["label"], view["noun"]) for view in described["views"]] == [("rows", "row"), ("columns", "column")]
    assert (described["is_table"], described["expressions"], described["analogies"]) == (True, [], [])
    assert all(example.startswith("item") for example in described["column_examples"])
    assert (text["is_table"], text["column_examples"], {view["noun"] for view in text["views"]}) == (
        False,
        [],
        {"word"},
    )

    assert "is not among the 40 rows" in ask(table, "nearest", q="item3")["error"]
    assert "is not among the 20 columns" in ask(table, "nearest", q="king", view="c")["error"]
    even = {row["token"] for row in ask(table, "nearest", q="item2", view="c", count=9)["answers"]}
    assert even == {f"item{number}" for number in range(0, 20, 2)} - {"item2"}


def test_a_row_is_recommended_the_column_that_it_lacks(table: TestClient) -> None:
    for number, row in enumerate([*PLANTED, "row4", "row5"]):
        best = ask(table, "recommend", row=row, count=1)["answers"][0]
        assert best["token"] == f"item{number}"
        assert {int(column.removeprefix("item")) % 2 for column in best["because_of"]} == {number % 2}


def test_a_basket_of_columns_is_recommended_others(table: TestClient) -> None:
    result = ask(table, "recommend", column=["item1", "item3"], count=8)
    assert {row["token"] for row in result["answers"]} == {f"item{number}" for number in range(5, 20, 2)}
    assert {column for row in result["answers"] for column in row["because_of"]} == {"item1", "item3"}
    unknown = ask(table, "recommend", column=["itm1"])
    assert (unknown["word"], "item1" in unknown["close"]) == ("itm1", True)
    assert ask(table, "recommend", row="row44")["word"] == "row44"


def test_without_the_matrix_the_columns_of_a_row_are_not_left_out() -> None:
    alone = VectorSet("alone", make_table_set().vectors)
    result = ask(open_client([alone]), "recommend", row="row4", count=20)
    assert (result["excludes_seen"], len(result["answers"])) == (False, 20)


def test_texts_have_no_recommendations(table: TestClient) -> None:
    response = table.get("/api/recommend", params={"row": "king", "set": 1})
    assert (response.status_code, "is no table" in response.json()["error"]) == (400, True)


def test_spellings_are_found_in_any_script_and_length() -> None:
    labels = ["straße", "STRASSE 7", "日本語", "日本", "", "a", "x" * 500, "line\nend", "\ud800"]
    speller = Speller(labels)
    assert speller.complete("strasse", 3) == [0, 1]
    assert speller.find_close("日本誤", 2) == [3, 2]
    assert speller.complete("", 2) == [4, 0]
    assert speller.find_close("", 3) == []
    assert Speller(["way", "was", "war"]).find_close("War", 1) == [2]
    assert speller.complete("no such label", 5) == []
    assert speller.complete("line\nend", 1) == [7]


def test_a_folder_name_that_is_not_utf_8_is_shown_escaped(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xffun\x07"))
    try:
        make_vectors().save(folder)
    except OSError:
        pytest.skip("this file system has no such names")
    client = open_client([open_set(folder)])
    assert client.get("/api/sets").json()["sets"][0]["name"] == "r\\xffun\\x07"


def test_labels_with_half_a_surrogate_pair_are_answered() -> None:
    words = ["tea", "half\ud800", "milk"]
    values = np.array([[1, 0], [0.9, 0.1], [0, 1]], np.float32)
    client = open_client([VectorSet("odd", Vectors(VectorTable(Vocabulary(words), values)))])
    answers = client.get("/api/nearest", params={"q": "tea"}).json()["answers"]
    assert [answer["token"] for answer in answers] == ["half\ud800", "milk"]
    assert client.get("/api/suggest", params={"q": "half"}).json()["completions"][0]["token"] == "half\ud800"
    assert client.get("/api/map/labels").status_code == 200


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("is_row", [False, True])
def test_values_that_are_not_finite_are_an_error_in_one_line(value: float, is_row: bool) -> None:
    words = Vocabulary(["tea", "milk", "jam"])
    rows, columns = 3 * np.eye(3, dtype=np.float32), 3 * np.eye(3, dtype=np.float32)
    (rows if is_row else columns)[1, 1] = value
    saved = np.eye(3, dtype=np.float32)
    vectors = Vectors(VectorTable(words, rows), VectorTable(words, columns), vectors=saved, columns_per_row=1)
    client = open_client([VectorSet("diverged", vectors)])
    for path in (
        "columns?q=milk",
        "compare?a=tea&b=milk",
        "nearest?q=milk&view=c",
        "nearest?q=milk&view=w%2Bc",
        "sets",
    ):
        response = client.get(f"/api/{path}")
        assert response.status_code in (200, 400), path
        if response.status_code == 400:
            assert "finite: train again with a lower learning rate" in response.json()["error"]
    assert client.get("/api/columns", params={"q": "milk"}).status_code == 400
    with pytest.raises(ConfigError, match="not finite"):
        vectors.nearest("milk", among="columns")


def open_client(sets: list[VectorSet]) -> TestClient:
    return TestClient(make_app(sets, "127.0.0.1"), base_url="http://127.0.0.1")
