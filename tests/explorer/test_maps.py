"""Tests of maps: coordinates, clusters and background computation."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from numpy.typing import NDArray

from explorer_data import GROUPS, HTML, WORDS, make_table_set, make_vectors, spread
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, MissingExtra, SwivelError
from swivel.explorer import maps
from swivel.explorer.maps import MAX_POINTS, Map, WordMap, compute_in_process, find_clusters, make_map
from swivel.reports.plots import plot_map
from swivel.vectors import Vectors, VectorTable, projection, vector_kernels
from swivel.vectors.projection import fit_to_frame, reduce_vectors, take_plane, weigh_labels
from swivel.vectors.search import Floats


def make_test_map(max_points: int = MAX_POINTS) -> Map:
    return Map(lambda: make_vectors(columns=False), max_points)


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited for two minutes"
        time.sleep(0.01)


def wait_until_made(made: Map) -> None:
    wait_for(lambda: made.umap is not None or made.problem)


def test_principal_components_are_those_of_an_svd() -> None:
    unit = make_vectors(columns=False).unit_vectors
    centered = unit - unit.mean(axis=0)
    left, strengths, _ = np.linalg.svd(centered, full_matrices=False)
    points = take_plane(reduce_vectors(unit))
    assert np.abs(points) == pytest.approx(np.abs(left[:, :2] * strengths[:2]), abs=1e-4)


def test_vectors_of_one_dimension_have_a_map() -> None:
    assert take_plane(reduce_vectors(np.ones((3, 1), np.float32))).shape == (3, 2)


def test_clusters_find_the_planted_groups() -> None:
    components = reduce_vectors(make_vectors(columns=False).unit_vectors)
    clusters = find_clusters(components, count=GROUPS)
    sizes = np.bincount(clusters.numbers)

    assert (sizes.sum(), len(clusters.typical)) == (WORDS, GROUPS)
    assert (np.diff(sizes) <= 0).all()

    groups = np.arange(8, WORDS) % GROUPS
    pure = sum(np.bincount(groups[clusters.numbers[8:] == number]).max() for number in range(GROUPS))

    assert pure / len(groups) > 0.9
    for number, typical in enumerate(clusters.typical):
        assert (clusters.numbers[list(typical)] == number).all()


def test_the_number_of_clusters_follows_the_vectors() -> None:
    rng = np.random.default_rng(5)
    for groups in (2, 3, 5, 9):
        centers = rng.standard_normal((groups, 20))
        values = centers[np.arange(600) % groups] + 0.2 * rng.standard_normal((600, 20))
        clusters = find_clusters(reduce_vectors(values.astype(np.float32)))
        assert len(clusters.typical) == groups
    noise = rng.standard_normal((600, 20)).astype(np.float32)
    assert len(find_clusters(noise).typical) == 12  # a color for each


def test_classes_are_shown_in_place_of_clusters() -> None:
    vectors = make_vectors(columns=False)
    classes = {f"word{number}": f"group {number % GROUPS}" for number in range(100, WORDS)}
    shown = make_map(vectors, layout="pca", color_by=classes, progress=False).clusters
    assert (len(shown.names), shown.names[-1]) == (GROUPS + 1, "no class")
    for label, number in zip(vectors.vocabulary, shown.numbers.tolist(), strict=True):
        assert shown.names[number] == classes.get(label, "no class")
    for number, typical in enumerate(shown.typical):
        assert (shown.numbers[list(typical)] == number).all()


def test_classes_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "classes.tsv").write_text("rock - roll\tmusic\nking\tperson\n\nno such word\tperson\n")
    vectors = make_vectors(columns=False)
    page = make_map(vectors, layout="pca", color_by=tmp_path / "classes.tsv", progress=False).to_html()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert (data["names"], data["kind"]) == ([["music"], ["person"], ["no class"]], "Classes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("king person of rank\n", "line 1: expected a label, a tab and its class, got 'king person of rank'"),
        ("nobody\tperson\n", "none of its labels is one of these vectors"),
        ("".join(f"word{n}\tclass{n}\n" for n in range(1_001)), "has 1,001 classes, more than 1,000"),
    ],
)
def test_a_file_of_classes_that_do_not_fit_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "classes.tsv").write_text(text)
    with pytest.raises(SwivelError, match=message):
        make_map(make_vectors(columns=False), color_by=tmp_path / "classes.tsv")


def test_classes_may_be_numbers_and_wrong_arguments_are_refused() -> None:
    vectors = make_vectors(columns=False)
    classes = make_map(vectors, layout="pca", color_by={"word20": 7, "word30": "b"}, progress=False).clusters
    assert sorted(classes.names) == ["7", "b", "no class"]

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"color_by": ["word20"]}, r"color_by must be a mapping from labels to classes, or a file, got \['word20'\]"),
        ({"color_by": {f"word{n}": n for n in range(1_001)}}, "color_by: has 1,001 classes, more than 1,000"),
        ({"clusters": True}, "clusters must be an integer from 1 to 1,000, got True"),
        ({"vectors": 3}, "expected vectors or their folder, got int"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ConfigError, match=message):
            make_map(**{"vectors": vectors, "layout": "pca", **arguments})


def test_a_map_of_a_table_shows_rows() -> None:
    shown = make_map(make_table_set().vectors, layout="pca", progress=False)
    assert (shown.title, repr(shown)) == ("Map of rows", "<WordMap of 40 rows>")
    assert '"noun":"row"' in shown.to_html()


def test_a_few_equal_vectors_have_clusters() -> None:
    clusters = find_clusters(np.zeros((3, 2), np.float32))
    assert clusters.numbers.shape == (3,)


def test_a_map_is_computed_once() -> None:
    calls = []

    def count_and_spread(components: Floats) -> Floats:
        calls.append(len(components))
        return spread(components)

    made = make_test_map()
    made.compute = count_and_spread
    for _ in range(2):
        made.start()
        wait_until_made(made)
    assert calls == [WORDS]
    assert made.describe()["umap"] == "ready"


@pytest.mark.parametrize(
    ("error", "shown"), [(SwivelError("no memory"), "no memory"), (ValueError("odd"), "ValueError: odd")]
)
def test_an_error_is_shown_and_the_components_stay_available(error: Exception, shown: str) -> None:
    def fail(components: Floats) -> Floats:
        raise error

    made = make_test_map()
    made.compute = fail
    made.start()
    wait_until_made(made)
    assert (made.describe()["umap"], made.describe()["problem"]) == ("missing", shown)
    assert made.points("pca") is not None and made.points("umap") is None


def test_maps_have_a_maximum_number_of_points() -> None:
    made = make_test_map(50)
    assert (len(made), len(made.components), made.describe()["total"]) == (50, 50, WORDS)


def test_an_error_of_the_process_is_raised() -> None:
    with pytest.raises(IndexError, match="too many indices"):
        compute_in_process(np.zeros(3, np.float32))


def test_without_processes_the_map_is_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "can_start_processes", lambda: False)
    assert compute_in_process(np.ones((3, 2), np.float32)).tolist() == [[1, 1]] * 3


@pytest.mark.slow
def test_umap_in_a_process_keeps_groups_together() -> None:
    components = reduce_vectors(make_vectors(columns=False).unit_vectors)
    points = compute_in_process(components)
    assert points.shape == (WORDS, 2)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1)[8:, :5]
    assert (nearest % GROUPS == (np.arange(8, WORDS) % GROUPS)[:, None]).mean() > 0.8


# What labels say


def test_words_that_occur_with_everything_say_least() -> None:
    tokens = ["of", "and", *(f"word{number}" for number in range(98))]
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((100, 8)).astype(np.float32)
    rows[:2] *= 0.05  # w . c is about 0: as often as by chance
    vectors = Vectors(VectorTable(Vocabulary(tokens, range(1000, 900, -1)), rows))

    weights = weigh_labels(vectors, slice(100))
    assert set(np.argsort(weights)[:2].tolist()) == {0, 1}

    clusters = find_clusters(reduce_vectors(vectors.unit_vectors), weights, count=4)
    assert sorted(clusters.order.tolist()) == list(range(100))
    assert not {0, 1} & {number for typical in clusters.typical for number in typical}
    assert {0, 1} <= set(clusters.order[-20:].tolist())


def test_without_counts_the_rank_counts() -> None:
    rows = np.ones((3, 2), np.float32)
    weights = weigh_labels(Vectors(VectorTable(Vocabulary(["a", "b", "c"]), rows)), slice(3))
    assert (np.diff(weights) < 0).all()


def test_islands_far_out_are_drawn_nearer_and_nothing_is_lost() -> None:
    rng = np.random.default_rng(2)
    points = np.concatenate([rng.standard_normal((95, 2)), 1000 + rng.standard_normal((5, 2))]).astype(np.float32)
    fitted = fit_to_frame(points)
    assert np.abs(fitted).max() < 1.3
    assert np.linalg.norm(fitted[:95], axis=1).max() > 0.1
    angles = np.arctan2(*(fitted[95:] - fitted[:95].mean(axis=0)).T)
    assert angles == pytest.approx(np.full(5, np.pi / 4), abs=0.1)


def test_equal_points_have_a_frame() -> None:
    assert (fit_to_frame(np.ones((3, 2), np.float32)) == 0).all()


# Maps in files


@pytest.fixture(scope="module")
def word_map() -> WordMap:
    return make_map(make_vectors(columns=False), words=200, layout="pca", title="<b>words", progress=False)


def test_a_map_has_the_most_common_words(word_map: WordMap) -> None:
    assert word_map.labels == make_vectors(columns=False).vocabulary.tokens[:200]
    assert word_map.points.shape == (200, 2)


@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("html", b"<!doctype html>")]
)
def test_a_map_is_written_in_every_format(word_map: WordMap, tmp_path: Path, suffix: str, start: bytes) -> None:
    for name in ("one", "two"):
        word_map.save(tmp_path / f"{name}.{suffix}")
    one, two = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
    assert one.startswith(start)
    assert one == two


def test_the_page_of_a_map_is_self_contained_and_escaped(word_map: WordMap) -> None:
    page = word_map.to_html()
    assert not re.search(r"@[A-Z]+@|<[^>]+ (src|href)=|^(im|ex)port ", page, re.MULTILINE)
    assert HTML not in page
    assert "<title>&lt;b&gt;words</title>" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert tuple(data["labels"]) == word_map.labels
    points = np.array(data["points"]).reshape(-1, 2) / data["precision"]
    assert points == pytest.approx(word_map.points, abs=1e-4)


def test_a_title_is_not_replaced_by_other_parts_of_the_page(word_map: WordMap) -> None:
    page = dataclasses.replace(word_map, title="@DATA@ and @SCRIPTS@").to_html()
    assert "<title>@DATA@ and @SCRIPTS@</title>" in page


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"words": 0}, "words must be an integer from 1 to 100,000, got 0"),
        ({"clusters": 0}, "clusters must be an integer from 1 to 1,000, got 0"),
        ({"words": 3.5}, "words must be an integer from 1 to 100,000, got 3.5"),
        ({"layout": "tsne"}, "layout must be one of"),
    ],
)
def test_wrong_settings_of_a_map_are_errors(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        make_map(make_vectors(columns=False), **settings)


def test_a_map_of_another_format_is_an_error(word_map: WordMap) -> None:
    with pytest.raises(ConfigError, match=r"maps are written as \.png, \.svg, \.pdf, \.html"):
        word_map.save("map.txt")


def test_a_map_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"swivel-embeddings\[explore\]"):
        make_map(make_vectors(columns=False))


def test_labels_on_a_picture_do_not_overlap() -> None:
    rng = np.random.default_rng(3)
    labels = [f"a rather long label {number} $x$" for number in range(300)]
    figure = plot_map(labels, rng.uniform(-1, 1, (300, 2)).astype(np.float32))
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert 10 < len(boxes) < 200
    assert not [1 for one, two in itertools.combinations(boxes, 2) if one.overlaps(two)]
    assert all(len(text.get_text()) <= 28 for text in figure.axes[0].texts)


def test_exact_neighbors_are_those_of_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "_QUERIES", 32)
    values = np.random.default_rng(4).standard_normal((150, 6), dtype=np.float32)
    distances = np.linalg.norm(values[:, None].astype(np.float64) - values, axis=2)

    ids, found = projection.find_neighbors(values, 5)

    assert (ids == np.argsort(distances, axis=1)[:, 1:6]).all()
    np.testing.assert_allclose(found, np.sort(distances, axis=1)[:, 1:6], rtol=1e-5)


def test_a_vector_is_not_its_own_neighbor_even_if_others_are_equal() -> None:
    ids, distances = projection.find_neighbors(np.ones((40, 3), np.float32), 15)
    assert (ids != np.arange(40)[:, None]).all()
    assert (np.sort(ids, axis=1)[:, 1:] > np.sort(ids, axis=1)[:, :-1]).all()  # no id twice
    assert not distances.any()


def test_weights_of_neighbors_are_those_of_the_paper() -> None:
    values = np.random.default_rng(6).standard_normal((60, 5), dtype=np.float32)
    values[1] = values[0]  # A distance of 0 has the weight 1.
    ids, distances = projection.find_neighbors(values, 9)

    expected = np.zeros((60, 60))
    for row, (others, apart) in enumerate(zip(ids, distances.astype(np.float64), strict=True)):
        above = np.maximum(apart - apart[apart > 0].min(), 0)
        sigma = scipy.optimize.brentq(lambda s, above=above: np.exp(-above / s).sum() - np.log2(10), 1e-3, 1e3)
        expected[row, others] = np.exp(-above / sigma)
    expected = expected + expected.T - expected * expected.T

    graph = projection.connect_neighbors(ids, distances)
    np.testing.assert_allclose(graph.toarray(), expected, atol=1e-4)


CURVE = 1.5769, 0.8951  # a and b that umap-learn fits to min_dist=0.1


def move_in_float64(points: NDArray[np.float64], graph: NDArray[np.float64], step: float) -> NDArray[np.float64]:
    """Return the places after an epoch in which every neighbor pulls and no point pushes."""
    a, b = CURVE
    moved = points.copy()
    for point in range(len(points)):
        for other in np.flatnonzero(graph[point]):
            apart = moved[point] - points[other]
            square = apart @ apart
            pull = 2 * a * b * square ** (b - 1) / (1 + a * square**b)
            moved[point] -= min(step * pull, 1) * apart
    return moved


def test_an_epoch_without_pushes_is_that_of_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    graph = np.triu(rng.random((30, 30)) < 0.2, 1).astype(float)
    graph += graph.T
    points = rng.standard_normal((30, 2)).astype(np.float32)
    monkeypatch.setattr(vector_kernels, "PUSHES", 0)
    move_points = vector_kernels.move_points.py_func

    moved = np.empty_like(points)
    sparse = scipy.sparse.csr_array(graph.astype(np.float32))
    curve = tuple(map(np.float32, projection.CURVE))
    move_points(points, moved, 0, 30, (sparse.indptr, sparse.indices, sparse.data), 0, np.float32(0.7), curve)

    np.testing.assert_allclose(moved, move_in_float64(points.astype(np.float64), graph, 0.7), atol=1e-5)


def test_pushes_move_equal_groups_apart_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    components = reduce_vectors(make_vectors(columns=False).unit_vectors)
    points = projection.compute_umap(components)

    monkeypatch.setattr(projection, "count_cores", lambda: 3)
    assert np.array_equal(projection.compute_umap(components), points)


@pytest.mark.parametrize("values", [np.eye(1, 8), np.eye(2, 8), np.eye(3, 8), np.ones((60, 8)), np.ones((5, 8))])
def test_few_or_equal_vectors_have_a_map(values: NDArray[np.float64]) -> None:
    points = projection.compute_umap(projection.reduce_vectors(values.astype(np.float32)))
    assert points.shape == (len(values), 2)
    assert np.isfinite(points).all()


def test_umap_with_exact_neighbors_keeps_groups_together() -> None:
    rng = np.random.default_rng(5)
    centers = 8 * rng.standard_normal((3, 10))
    groups = np.repeat(np.arange(3), 40)
    values = (centers[groups] + rng.standard_normal((120, 10))).astype(np.float32)

    points = projection.compute_umap(projection.reduce_vectors(values))

    means = np.array([points[groups == group].mean(axis=0) for group in range(3)])
    nearest = np.linalg.norm(points[:, None] - means, axis=2).argmin(axis=1)
    assert (nearest == groups).all()
