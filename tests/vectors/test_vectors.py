"""Lookup, nearest neighbors, word arithmetic, analogies and scores."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, FolderExists, UnknownToken
from swivel.vectors import Vectors, VectorTable, parse_expression
from swivel.vectors.search import Query, best_ids, scale_to_unit

WORDS = ["king", "man", "woman", "queen", "nothing", "vice-king"]
TABLE = np.array([[1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 2, 2], [0, 0, 0], [1, 0, 0.9]], np.float32)


def make_vectors(table: NDArray[np.float32] = TABLE, words: list[str] = WORDS) -> Vectors:
    return Vectors(VectorTable(Vocabulary(words), table))


def make_model(rows: int = 6, parts: int = 2, *, shift: float = 0.0, seed: int = 0) -> Vectors:
    """Return a model with several columns per word, in which the vectors of the last word are zero."""
    rng = np.random.default_rng(seed)
    words = [f"word{n}" for n in range(rows)]
    w = rng.standard_normal((rows, 4)).astype(np.float32)
    c = rng.standard_normal((rows * parts, 4)).astype(np.float32)
    w[-1] = 0
    c[-parts:] = 0
    labels = [f"part{part}:{word}" for word in words for part in range(parts)]
    rows_table = VectorTable(Vocabulary(words), w, rng.random(rows))
    columns_table = VectorTable(Vocabulary(labels), c, rng.random(rows * parts))
    return Vectors(rows_table, columns_table, vectors=w * 2, shift=shift, columns_per_row=parts)


def test_a_token_gives_its_vector() -> None:
    vectors = make_vectors()
    assert vectors["queen"].tolist() == [0, 2, 2]
    assert (len(vectors), vectors.dim, list(vectors)) == (6, 3, WORDS)
    assert "king" in vectors and "prince" not in vectors
    assert "6 tokens" in repr(vectors) and "12 columns" in repr(make_model())


def test_an_unknown_token_error_suggests_similar_spellings() -> None:
    with pytest.raises(UnknownToken, match=r"'quen' is not in .*'queen'"):
        make_vectors()["quen"]


def test_the_vectors_cannot_be_changed_by_accident() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make_vectors()["king"][0] = 3


def test_the_vector_of_a_query_may_be_changed_and_is_a_copy() -> None:
    vectors = make_vectors()
    for query in ("man", ["man", "king"], vectors["man"]):
        vectors.vector(query)[:] = 9
        assert vectors.vector("man").tolist() == [1, 0, 0]


def test_a_query_may_be_a_generator_of_tokens() -> None:
    vectors = make_vectors()
    assert vectors.nearest(iter(["king", "woman"]), minus=iter(["man"])) == vectors.nearest("king - man + woman")
    assert vectors[iter(["king", "man"])].tolist() == vectors[["king", "man"]].tolist()
    numbers: Any = (number for number in (1.0, 2.0, 3.0))
    assert vectors.nearest(numbers) == vectors.nearest(np.array([1.0, 2.0, 3.0]))


def test_an_empty_array_is_a_vector_of_wrong_shape() -> None:
    with pytest.raises(ConfigError, match=r"a query vector must have shape \(3,\), got \(0,\)"):
        make_vectors().nearest(np.zeros(0))


def test_nearest_puts_the_highest_cosine_first_and_never_the_query() -> None:
    answers = make_vectors().nearest("king")
    assert [answer.token for answer in answers] == ["vice-king", "man", "queen", "woman"]
    assert answers[1].similarity == pytest.approx(0.5**0.5)


@given(st.integers(2, 30), st.integers(1, 12), st.integers(0, 10_000))
def test_nearest_equals_a_full_sort(size: int, count: int, seed: int) -> None:
    # Small integers give many equal cosines, up to rounding.
    table = np.random.default_rng(seed).integers(-1, 2, (size, 3)).astype(np.float32)
    table[0] = [1, 0, 0]
    vectors = make_vectors(table, [str(n) for n in range(size)])
    lengths = np.linalg.norm(table, axis=1)
    cosines = sorted((table[n, 0] / lengths[n] for n in range(1, size) if lengths[n]), reverse=True)
    answers = [answer.similarity for answer in vectors.nearest("0", count=count)]
    assert answers == pytest.approx(cosines[:count])


@given(st.lists(st.sampled_from([-np.inf, 0.0, 1.0, 2.0]), max_size=30), st.integers(1, 40))
def test_best_ids_are_the_first_of_a_stable_sort(scores: list[float], count: int) -> None:
    expected = [n for n in sorted(range(len(scores)), key=lambda n: -scores[n]) if scores[n] > -np.inf][:count]
    assert best_ids(np.array(scores, np.float32), count).tolist() == expected


def test_arithmetic_on_words_finds_the_planted_answer() -> None:
    vectors = make_vectors()
    assert vectors.nearest(["king", "woman"], minus="man", count=1)[0].token == "queen"
    assert vectors.nearest(("king", "woman"), minus=["man"], count=1)[0].token == "queen"
    assert vectors.nearest(vectors["king"] * 9, count=1)[0].token == "king"
    assert vectors.nearest([1.0, 0.0, 1.0], count=1)[0].token == "king"  # type: ignore[list-item]


def test_expressions_mean_the_same_as_lists_of_tokens() -> None:
    words = ["king", "man", "woman", "queen", "red wine", "a - b"]
    vectors = make_vectors(np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32), words)
    expected = vectors.nearest(["king", "woman"], minus="man")

    assert vectors.nearest("king - man + woman") == vectors.nearest("king + woman", minus=["man"]) == expected
    assert [near.token for near in vectors.nearest_each(["king - man + woman"])[0]] == [near.token for near in expected]
    assert "man" not in {neighbor.token for neighbor in expected}
    assert vectors.vector("king - man").tolist() == vectors.vector("king", minus="man").tolist()
    assert vectors.similarity("king - man", "queen") == vectors.similarity(vectors.vector("king - man"), "queen")
    assert vectors.vector("a - b").tolist() == vectors.unit_vectors[5].tolist()  # a token of the vocabulary
    assert vectors.vector("red wine - king").tolist() == vectors.vector("red wine", minus="king").tolist()
    with pytest.raises(UnknownToken, match="'wine' is not in"):
        vectors.nearest("king - wine")


def test_words_have_equal_weight_in_a_sum() -> None:
    vectors = make_vectors()
    assert vectors.vector(["man", "queen"]) == pytest.approx([1, 0.5**0.5, 0.5**0.5])
    assert vectors.vector("queen", minus="queen") == pytest.approx([0, 0, 0])


def test_the_error_says_why_a_query_of_zeros_has_no_neighbors() -> None:
    vectors = make_vectors()
    message = "'nothing' has no neighbors: it has no co-occurrences, so its vector is zero"
    with pytest.raises(ConfigError, match=message):
        vectors.nearest("nothing")
    zeros: list[Query] = [np.zeros(3), "king - king", []]
    for query in zeros:
        with pytest.raises(ConfigError, match="the query has no neighbors: its vector is zero"):
            vectors.nearest(query)
    assert vectors.nearest_each(["nothing", np.zeros(3)]) == [[], []]  # One word does not stop a search for many.


def test_a_vector_of_zeros_is_never_a_neighbor_and_has_similarity_zero() -> None:
    vectors = make_vectors()
    tokens = {answer.token for answers in vectors.nearest_each(WORDS, 100) for answer in answers}
    assert "nothing" not in tokens
    assert all(vectors.similarity("nothing", word) == 0 for word in WORDS)
    for method in ("3cosadd", "3cosmul"):
        assert "nothing" not in {answer.token for answer in vectors.analogy("man", "king", "woman", method=method)}


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_unit_vectors_of_extreme_lengths_neither_overflow_nor_underflow(scale: float) -> None:
    unit = scale_to_unit(np.array([[3, 4]], np.float32) * np.float32(scale))
    assert unit[0] == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_error_names_the_vector_that_is_not_finite(bad: float) -> None:
    table = TABLE.copy()
    table[2, 1] = bad
    with pytest.raises(ConfigError, match="vector of 'woman' is not finite"):
        make_vectors(table).nearest("king")


def test_similarity_is_the_cosine() -> None:
    vectors = make_vectors()
    assert vectors.similarity("queen", "woman") == pytest.approx(0.5**0.5)
    assert vectors.similarity("queen", "queen") <= 1
    assert vectors.similarity("king", np.array([0, 0, 5])) == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("method", ["3cosadd", "3cosmul"])
def test_analogy_equals_a_naive_loop(method: str) -> None:
    rng = np.random.default_rng(3)
    table = rng.standard_normal((40, 5)).astype(np.float32)
    vectors = make_vectors(table, [str(n) for n in range(40)])
    unit = table.astype(float) / np.linalg.norm(table.astype(float), axis=1, keepdims=True)

    for a, b, c in rng.integers(0, 40, (20, 3)).tolist():
        direction = unit[b] - unit[a] + unit[c]
        scores = {}
        for n in set(range(40)) - {a, b, c}:
            to_a, to_b, to_c = ((unit[n] @ unit[i] + 1) / 2 for i in (a, b, c))
            cosine = unit[n] @ direction / np.linalg.norm(direction)
            scores[str(n)] = cosine if method == "3cosadd" else to_b * to_c / (to_a + 0.001)
        answers = vectors.analogy(str(a), str(b), str(c), method=method, count=3)
        assert [answer.token for answer in answers] == sorted(scores, key=lambda n: -scores[n])[:3]
        assert answers[0].similarity == pytest.approx(scores[answers[0].token], rel=1e-4)


def test_a_number_is_a_label_such_as_a_node_of_networkx() -> None:
    values = np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)
    vectors = Vectors(VectorTable(Vocabulary(["0", "33", "7"]), values))
    node: Any = np.int64(0)

    assert vectors.nearest(0, 1)[0].token == vectors.nearest(node, 1)[0].token == "33"
    assert vectors.similarity(0, 33) == pytest.approx(0.8)
    assert vectors.similarity(0, 33) == vectors.similarity("0", "33")
    with pytest.raises(UnknownToken, match="'8' is not in the vocabulary"):
        vectors.nearest(8)


def test_invalid_queries_raise_errors() -> None:
    vectors = make_vectors()

    with pytest.raises(ConfigError, match="count must be a positive integer, got 0"):
        vectors.nearest("king", count=0)
    with pytest.raises(ConfigError, match="count must be a positive integer"):
        vectors.analogy("man", "king", "woman", method="3cosmul", count=-1)
    with pytest.raises(ConfigError, match="method must be one of 3cosadd, 3cosmul, got 'add'"):
        vectors.analogy("man", "king", "woman", method="add")
    with pytest.raises(ConfigError, match="among must be 'rows' or 'columns', got 'all'"):
        vectors.nearest("king", among="all")
    with pytest.raises(ConfigError, match=r"shape \(3,\), got \(2,\)"):
        vectors.nearest(np.ones(2))
    with pytest.raises(ConfigError, match="finite"):
        vectors.nearest(np.array([np.nan, 0, 0]))
    for query in (["king", 1.0], ["king", object()], 3.5, True):
        with pytest.raises(ConfigError, match="a query must be a token, a vector, or a list of them"):
            vectors.nearest(query)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="restrict_vocab must be a positive integer, got 0"):
        vectors.nearest("king", restrict_vocab=0)
    with pytest.raises(ConfigError, match="positive must have a token or a vector"):
        vectors.most_similar_cosmul(negative=["king"])


def test_signs_of_expressions_need_spaces_around_them() -> None:
    assert parse_expression("king - man + woman") == (("king", "woman"), ("man",))
    assert parse_expression("  vice-king ") == (("vice-king",), ())
    assert parse_expression("- man + c++") == (("c++",), ("man",))
    assert parse_expression("red wine\t-  wine + beer") == (("red wine", "beer"), ("wine",))
    assert parse_expression("king -man") == (("king -man",), ())


@pytest.mark.parametrize("text", ["", "king -", "king - + man", "+"])
def test_an_expression_with_a_missing_token_raises_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an expression"):
        parse_expression(text)


def test_a_score_is_the_product_plus_the_shift() -> None:
    vectors = make_model(shift=0.7)
    assert vectors.columns is not None
    expected = float(vectors.rows[2] @ vectors.columns[3]) + 0.7
    assert vectors.score("word2", "part1:word1") == pytest.approx(expected)


def test_the_score_with_a_word_of_several_columns_is_the_pmi_of_their_summed_counts() -> None:
    """Scores that equal the exact PMI of each column give the exact PMI of the summed columns."""
    counts = np.array([[4.0, 1, 2, 3], [2, 2, 1, 5]])
    total, row_sums, column_sums = counts.sum(), counts.sum(1), counts.sum(0)
    pmi = np.log(counts * total / np.outer(row_sums, column_sums)).astype(np.float32)
    rows = VectorTable(Vocabulary(["a", "b"]), np.eye(2, dtype=np.float32), row_sums)
    labels = Vocabulary(["left:a", "right:a", "left:b", "right:b"])
    vectors = Vectors(rows, VectorTable(labels, np.ascontiguousarray(pmi.T), column_sums), columns_per_row=2)
    expected = np.log((counts[0, 2] + counts[0, 3]) * total / (row_sums[0] * (column_sums[2] + column_sums[3])))

    assert vectors.score("a", "b") == pytest.approx(expected, rel=1e-5)
    assert vectors.score("b", "left:a") == pytest.approx(pmi[1, 0])


def test_the_score_with_a_word_without_counts_is_finite() -> None:
    rows = VectorTable(Vocabulary(["a"]), np.zeros((1, 2), np.float32))
    columns = VectorTable(Vocabulary(["l:a", "r:a"]), np.zeros((2, 2), np.float32), np.zeros(2))
    assert Vectors(rows, columns, columns_per_row=2).score("a", "a") == 0
    assert Vectors(rows, VectorTable(columns.vocabulary, columns.values), columns_per_row=2).score("a", "a") == 0


def test_the_score_of_an_unknown_row_or_column_raises_an_error() -> None:
    for row, column in (("wordX", "part0:word1"), ("word1", "part0:wordX"), ("word1", "wordX")):
        with pytest.raises(UnknownToken):
            make_model().score(row, column)


def test_the_nearest_columns_are_those_of_the_highest_score() -> None:
    vectors = make_model(shift=-0.5)

    assert vectors.column_vocabulary is not None

    labels = [label for label in vectors.column_vocabulary if not label.endswith("word5")]
    expected = sorted(labels, key=lambda label: -vectors.score("word1", label))
    answers = vectors.nearest("word1", among="columns", count=50)

    assert [answer.token for answer in answers] == expected
    assert answers[0].similarity == pytest.approx(vectors.score("word1", expected[0]))
    with pytest.raises(ConfigError, match="'word5' has no neighbors: it has no co-occurrences"):
        vectors.nearest("word5", among="columns")


def test_columns_may_be_other_things_than_rows() -> None:
    rows = VectorTable(Vocabulary(["anna", "ben"]), np.eye(2, dtype=np.float32))
    columns = VectorTable(Vocabulary(["tea", "jam", "rye"]), np.array([[1, 5], [2, 4], [3, 3]], np.float32))
    vectors = Vectors(rows, columns)
    assert [answer.token for answer in vectors.nearest("ben", among="columns")] == ["tea", "jam", "rye"]
    assert vectors.score("anna", "rye") == 3
    with pytest.raises(UnknownToken):
        vectors.score("anna", "ben")


def test_searching_columns_needs_columns_and_one_row_token() -> None:
    with pytest.raises(ConfigError, match="no columns"):
        make_vectors().nearest("king", among="columns")
    with pytest.raises(ConfigError, match="no columns"):
        make_vectors().score("king", "man")
    for query, minus in ((["word1", "word2"], ()), ("word1", "word2"), (np.ones(4), ()), ("- word1", ())):
        with pytest.raises(ConfigError, match="one row token"):
            make_model().nearest(query, minus=minus, among="columns")


def test_arrays_of_wrong_shape_raise_errors() -> None:
    words = Vocabulary(["a", "b"])
    table = np.ones((2, 3), np.float32)

    for build, message in (
        (lambda: VectorTable(words, table[:1]), r"needs vectors of shape \(2, dim\), got \(1, 3\)"),
        (lambda: VectorTable(words, table, np.ones(3)), "needs 2 sums"),
        (lambda: Vectors(VectorTable(words, table), vectors=table[:1]), "2 rows need as many vectors"),
        (
            lambda: Vectors(VectorTable(words, table), VectorTable(words, table[:, :2])),
            "of the same model",
        ),
        (
            lambda: Vectors(VectorTable(words, table), VectorTable(words, table), columns_per_row=2),
            "need 4 columns, got 2",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            build()


def test_a_list_of_tokens_gives_a_matrix() -> None:
    vectors = make_vectors()
    for tokens in (["queen", "king"], ("queen", "king"), np.array(["queen", "king"])):
        assert vectors[tokens].tolist() == [[0, 2, 2], [1, 0, 1]]
    assert vectors[[]].shape == (0, 3)
    with pytest.raises(UnknownToken, match="'quen'"):
        vectors[["king", "quen"]]


@pytest.mark.parametrize("index", [0, np.int64(1), slice(2), np.arange(2), ["king", 1], None])
def test_an_index_that_is_no_token_raises_an_error_with_a_hint(index: Any) -> None:
    with pytest.raises(UnknownToken, match=r"got \w+: the vector of row n is vectors\.vectors\[n\], its token"):
        make_vectors()[index]


def test_get_returns_a_default_for_an_unknown_token() -> None:
    vectors = make_vectors()
    assert vectors.get("queen").tolist() == [0, 2, 2]
    assert vectors.get("quen") is None
    assert vectors.get("quen", 7) == 7


def test_numpy_takes_vectors_as_a_matrix() -> None:
    vectors = make_vectors()
    assert np.asarray(vectors) is vectors.vectors  # no copy
    assert vectors.shape == np.shape(vectors) == (6, 3)
    assert np.array(vectors).flags.writeable
    assert np.asarray(vectors, np.float64).dtype == np.float64
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # Before, NumPy copied without being asked.
        with pytest.raises(ValueError, match="copy"):
            np.asarray(vectors, np.float64, copy=False)


def test_scikit_learn_takes_vectors_as_a_matrix() -> None:
    from sklearn.decomposition import PCA

    assert np.allclose(PCA(2).fit_transform(make_vectors()), PCA(2).fit_transform(TABLE))


def make_pair() -> tuple[list[str], Vectors, Any]:
    """Return 50 words with random vectors, and the same in gensim."""
    from swivel.vectors.formats import to_gensim

    words = [f"w{n}" for n in range(50)]
    vectors = make_vectors(np.random.default_rng(5).standard_normal((50, 8)).astype(np.float32), words)
    return words, vectors, to_gensim(vectors)


def test_most_similar_doesnt_match_and_distance_answer_as_gensim_does() -> None:
    words, vectors, keyed = make_pair()

    def check(*query: Any, **named: Any) -> None:
        ours, theirs = vectors.most_similar(*query, **named), keyed.most_similar(*query, **named)
        assert [token for token, _ in ours] == [token for token, _ in theirs]
        assert [cosine for _, cosine in ours] == pytest.approx([cosine for _, cosine in theirs], abs=1e-6)

    check("w3")
    check(["w1", "w2"], ["w3"], 4)
    check(positive=["w1"], negative=["w2", "w9"], topn=3)
    check(negative=["w4"])
    check(vectors["w7"], topn=5)
    check(["w1", vectors["w7"]], ["w3", vectors["w9"]])
    check("w3", restrict_vocab=10)
    for start in range(20):
        assert vectors.doesnt_match(words[start : start + 5]) == keyed.doesnt_match(words[start : start + 5])
    assert vectors.distance("w1", "w2") == pytest.approx(keyed.distance("w1", "w2"), abs=1e-6)


@pytest.mark.filterwarnings("ignore:Call to deprecated")  # in gensim's most_similar_cosmul
def test_other_methods_of_gensim_give_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    words, vectors, keyed = make_pair()
    monkeypatch.setattr("swivel.vectors.search.EPSILON", np.float32(1e-6))  # gensim's; Levy and Goldberg add 0.001

    def check(ours: Any, theirs: Any) -> None:
        assert [token for token, _ in ours] == [token for token, _ in theirs]
        assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], rel=1e-5)

    for model in (vectors, keyed):
        assert list(model.index_to_key) == words
        assert dict(model.key_to_index) == {word: row for row, word in enumerate(words)}
        assert model.vector_size == 8
    check(vectors.similar_by_word("w3", 4), keyed.similar_by_word("w3", 4))
    check(vectors.similar_by_word("w3", 4, 9), keyed.similar_by_word("w3", 4, 9))
    check(vectors.similar_by_vector(vectors["w8"], 4, 9), keyed.similar_by_vector(vectors["w8"], 4, 9))
    queries: list[Any] = [
        (["w3"], ["w9"]),
        (["w1", "w2"], "w9"),
        (["w1", vectors.vector("w4")], ["w2", "w7"]),
        ("w5", None),
    ]
    for plus, minus in queries:
        check(vectors.most_similar_cosmul(plus, minus, 5), keyed.most_similar_cosmul(plus, minus, 5))
    # gensim's method ignores restrict_vocab.
    everything = vectors.most_similar_cosmul(["w1", "w2"], "w9", 50)
    first = [near for near in everything if near.token in words[:20]]
    assert vectors.most_similar_cosmul(["w1", "w2"], "w9", 5, 20) == first[:5]

    some, others = words[3:6], words[8:13]
    assert vectors.n_similarity(some, others) == pytest.approx(keyed.n_similarity(some, others), abs=1e-6)
    for word in words[:10]:
        assert vectors.get_vector(word).tolist() == keyed.get_vector(word).tolist()
        assert vectors.get_vector(word, norm=True) == pytest.approx(keyed.get_vector(word, norm=True), abs=1e-6)
        assert vectors.rank("w20", word) == keyed.rank("w20", word)
    assert vectors.rank("w20", "w20") == keyed.rank("w20", "w20") == 1
    assert vectors.n_similarity("w1", others) == vectors.n_similarity(["w1"], others)


def test_words_without_a_vector_have_no_rank_among_the_neighbors() -> None:
    values = np.array([[1, 0], [-1, 0.1], [0, 0], [0.5, 1]], np.float32)
    vectors = Vectors(VectorTable(Vocabulary(["tea", "war", "none", "cup"]), values))
    nearest = [neighbor.token for neighbor in vectors.nearest("tea")]
    assert nearest == ["cup", "war"]
    assert [vectors.rank("tea", word) for word in nearest] == [1, 2]


@pytest.mark.parametrize("kind", [set, iter, tuple, np.array])
def test_doesnt_match_takes_any_collection_of_words(kind: Any) -> None:
    assert make_vectors().doesnt_match(kind(["king", "vice-king", "woman"])) == "woman"


@pytest.mark.parametrize("words", [[], ["king"], "king queen", {"king"}, np.zeros(3), 5])
def test_doesnt_match_needs_a_list_of_words(words: Any) -> None:
    with pytest.raises(ConfigError, match="words must be a list of two words or more, got"):
        make_vectors().doesnt_match(words)


def test_html_is_short_and_escaped() -> None:
    words = ["<script>", "x" * 1000, *map(str, range(1000))]
    table = Vectors(VectorTable(Vocabulary(words, range(5000, 3998, -1)), np.ones((1002, 2), np.float32)))._repr_html_()
    assert "Vectors of 1,002 tokens, 2 dimensions, no columns" in table
    assert "<td>&lt;script&gt;</td><td>5,000</td>" in table
    assert "<script>" not in table and len(table) < 1000


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda vectors: pickle.loads(pickle.dumps(vectors))])
def test_copies_and_pickles_are_equal_and_read_only(tmp_path: Path, duplicate: Callable[[Vectors], Vectors]) -> None:
    make_model(shift=0.3).save(tmp_path / "model")
    for vectors in (make_model(shift=0.3), Vectors.load(tmp_path / "model"), make_vectors()):
        made = duplicate(vectors)
        assert np.shares_memory(made.vectors, vectors.vectors) is (duplicate in (copy.copy, copy.deepcopy))
        assert made.vocabulary == vectors.vocabulary
        assert made.vectors.tobytes() == vectors.vectors.tobytes()
        assert made.path == vectors.path
        assert not made.vectors.flags.writeable and not made.vocabulary.counts.flags.writeable
        assert (made.vectors is made.row_table.values) is (vectors.column_vocabulary is None)
        if vectors.column_vocabulary is not None:
            assert made.score("word1", "word2") == vectors.score("word1", "word2")


def test_saving_to_the_folder_of_a_run_raises_an_error(tmp_path: Path) -> None:
    make_vectors().save(tmp_path / "run" / "vectors")
    for overwrite in (False, True):
        with pytest.raises(FolderExists, match=r"run: the folder of a run, with a result in .*vectors; choose another"):
            make_model().save(tmp_path / "run", overwrite=overwrite)
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["vectors"]
