"""Prediction of links and labels, against scikit-learn and by hand; what vectors of a planted graph are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

import swivel
from swivel.cli import cli
from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, EvaluationError
from swivel.evaluation import labels, links
from swivel.pipeline.train import _choose_recipe, resolve_configs
from swivel.runtime.progress import SILENT
from swivel.vectors import Vectors, VectorTable

GROUPS = 8
NODES = 480
WALK_FLOOR = 0.72  # of micro-F1, if a tenth of the nodes has a known label


def plant_graph(seed: int = 0) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
    """Return the edges of a block model with about 6 edges per node, 5 of them inside of groups, and the groups."""
    rng = np.random.default_rng(seed)
    group = np.arange(NODES) % GROUPS
    first, anyone = rng.integers(NODES, size=(2, 3 * NODES))
    member = rng.integers(NODES // GROUPS, size=first.size) * GROUPS + group[first]
    second = np.where(rng.random(first.size) < 0.8, member, anyone)
    pairs = np.unique(np.sort([first, second], axis=0)[:, first != second], axis=1)
    return [(str(a), str(b)) for a, b in pairs.T.tolist()], group


def make_vectors(values: Any) -> Vectors:
    rows = np.asarray(values, np.float32)
    return Vectors(VectorTable(Vocabulary(map(str, range(len(rows)))), rows))


def test_measures_of_links_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    edges, others = rng.integers(12, size=200) / 12, rng.integers(10, size=200) / 12  # with ties
    report = links._compare_scores(edges, others, 20)
    truth, scores = np.repeat([1, 0], 200), np.concatenate([edges, others])
    assert report.auc == pytest.approx(roc_auc_score(truth, scores))
    assert report.average_precision == pytest.approx(average_precision_score(truth, scores))
    assert report.hits == np.mean(edges > np.sort(others)[-20])


def test_pairs_without_an_edge_have_the_degrees_of_the_edges() -> None:
    rng = np.random.default_rng(1)
    pairs = np.array([(0, node) for node in range(1, 40)] + [(node, node + 1) for node in range(40, 99)]).T
    taken = {tuple(pair) for pair in pairs.T.tolist()} | {(0, node) for node in range(40, 60)}
    numbers = np.array(sorted(a * 100 + b for a, b in taken))
    others = links._find_pairs(pairs, numbers, 100, rng)
    assert not {tuple(sorted(pair)) for pair in others.T.tolist()} & taken
    assert (others[0] != others[1]).all()
    # The hub is in 39 of 98 edges; of the pairs of uniform nodes it would be in 2. Some of its pairs are edges already.
    assert (others == 0).any(axis=0).sum() > 10


def test_held_out_edges_are_ranked_above_other_pairs() -> None:
    # Two groups: nodes 0 to 4 and 5 to 9. All pairs of one group are edges, known or held out.
    vectors = make_vectors([[1, 0.1 * i] if i < 5 else [0.1 * i, -5] for i in range(10)])
    groups = [range(5), range(5, 10)]
    pairs = [(str(a), str(b)) for group in groups for a in group for b in group if a < b]
    report = links.evaluate_links(vectors, pairs[::2], swivel.import_counts(pairs[1::2], sides="undirected"))
    assert (report.edges, report.auc, report.average_precision, report.hits) == (10, 1, 1, 1)
    assert links.evaluate_links(vectors, [("0", "6"), ("1", "7")], None, k=1).auc < 1
    # A node of zeros had no edges in the training.
    empty = make_vectors(np.concatenate([vectors.vectors, np.zeros((1, 2))]))
    assert links.evaluate_links(empty, [*pairs[::2], ("0", "10")]).edges == 10
    with pytest.raises(EvaluationError, match="held_out has no edges of two known nodes"):
        links.evaluate_links(vectors, [("0", "zebra")])


def test_the_score_of_a_link_is_the_same_from_both_ends() -> None:
    words = Vocabulary(["a", "b", "c"])
    rows, columns = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    vectors = Vectors(VectorTable(words, rows), VectorTable(words, columns), columns_per_row=1)
    scores = links._score_pairs(vectors, np.array([[0, 2], [1, 0]]))
    expected = [rows[0] @ columns[1] + rows[1] @ columns[0], rows[2] @ columns[0] + rows[0] @ columns[2]]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_links_between_nodes_that_are_not_alike_are_scored_by_rows_and_columns() -> None:
    # Edges lead from even to odd nodes only, and nodes of the same kind are alike.
    rows = VectorTable(Vocabulary(map(str, range(10))), np.eye(2, dtype=np.float32)[np.arange(10) % 2])
    columns = VectorTable(rows.vocabulary, rows.values[:, ::-1].copy())
    trained = Vectors(rows, columns, columns_per_row=1)
    edges = [(str(a), str(b)) for a in range(0, 10, 2) for b in range(1, 10, 2)]
    assert links.evaluate_links(trained, edges).auc == 1
    assert links.evaluate_links(Vectors(rows), edges).auc == 0


def test_labels_that_the_vectors_know_are_predicted_and_others_are_not() -> None:
    rng = np.random.default_rng(3)
    group = rng.integers(3, size=300)
    vectors = make_vectors(np.eye(3)[group] + 0.1 * rng.standard_normal((300, 3)))
    known = [(str(node), f"group {label}") for node, label in enumerate(group.tolist())]
    # A fourth label takes the place of the others for every other node, whose vectors do not say so.
    mixed = [(node, "even" if int(node) % 2 == 0 else label) for node, label in known]

    report = labels.evaluate_labels(vectors, known, shares=(0.1, 0.5), splits=2)
    assert (report.rows, report.labels) == (300, 3)
    assert all(score.micro > 0.97 and score.macro > 0.97 for score in report.scores)
    half = labels.evaluate_labels(vectors, mixed, shares=(0.5,), splits=2).scores[0]
    assert 0.3 < half.micro < 0.7
    noise = labels.evaluate_labels(make_vectors(rng.standard_normal((300, 3))), known, shares=(0.5,), splits=2)
    assert noise.scores[0].micro < 0.5


def test_as_many_labels_are_predicted_as_a_row_has() -> None:
    group = np.arange(40) % 4
    truth = np.eye(4, dtype=bool)[group]
    truth[group == 1, 2] = True  # These rows have two labels.
    known, tested = np.arange(20), np.arange(20, 40)
    assert labels._classify(np.eye(4)[group], truth, known, tested, 100.0) == (1.0, 1.0)


def test_a_label_that_no_tested_row_has_is_left_out_of_the_mean() -> None:
    groups = np.arange(12) % 2
    # A third label, of one of the rows that are learned.
    truth = np.column_stack([groups == 0, groups == 1, np.arange(12) == 0])
    ids = np.arange(12)
    assert labels._classify(np.eye(2)[groups], truth, ids[:8], ids[8:], penalty=1.0) == (1, 1)


@pytest.mark.parametrize(("settings", "message"), [({"shares": (1.0,)}, "between 0 and 1"), ({"splits": 0}, "splits")])
def test_impossible_splits_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        labels.evaluate_labels(make_vectors(np.eye(3)), [("0", "a")], **settings)


def test_walks_of_a_planted_graph_find_its_groups_and_edges_alone_do_not() -> None:
    pairs, group = plant_graph()
    truth = [(str(node), str(label)) for node, label in enumerate(group.tolist())]
    walks = swivel.train(swivel.walk_counts(pairs))
    assert walks.settings["train"]["dim"] == 128  # the recipe for graphs was chosen

    def score(vectors: Vectors) -> float:
        return labels.evaluate_labels(vectors, truth, shares=(0.1,), splits=3).scores[0].micro

    edges = swivel.train(swivel.import_counts(pairs, format="edges"), recipe="graph")
    assert score(walks) > WALK_FLOOR > score(edges)


def test_edges_alone_are_trained_as_a_table() -> None:
    vectors = swivel.train(swivel.import_counts(plant_graph()[0], format="edges"), dim=16, epochs=2)
    assert vectors.settings["train"]["transform"] == "log"


def test_settings_of_the_recipe_graph_follow_from_the_counts() -> None:
    def ring(nodes: int, weight: float = 1, window: int = 2) -> swivel.Matrix:
        edges = [(str(node), str((node + 1) % nodes), weight) for node in range(nodes)]
        return swivel.walk_counts(edges, window=window)  # counts a node with itself and with four others

    def resolve(matrix: swivel.Matrix, **settings: Any) -> TrainConfig:
        return resolve_configs(matrix, "graph", settings)[0]

    # A step leads to one of two nodes: two of them lead to the next but one once in four times, from nodes of degree 2.
    assert resolve(ring(200)).unseen == 0.5
    assert resolve(ring(200, 12)).unseen == 1.0
    assert resolve(ring(200), unseen=0.1).unseen == 0.1
    # 2.5 % and 10 % of the cells are observed.
    assert [resolve(ring(nodes)).zeros for nodes in (200, 50)] == ["auto", "all"]
    assert resolve(ring(50), zeros="sampled").zeros == "sampled"
    # Walks of one step are the edges.
    assert [_choose_recipe(ring(50, window=window), SILENT) for window in (1, 2)] == ["table", "graph"]


def test_nodes_are_not_recommended_to_themselves_or_their_neighbors() -> None:
    pairs, _ = plant_graph()
    for matrix in (swivel.walk_counts(pairs, window=3), swivel.import_counts(pairs, format="edges")):
        recommender = swivel.Recommender(swivel.train(matrix, dim=16, epochs=2), matrix)
        neighbors = {b for a, b in pairs if a == "7"} | {a for a, b in pairs if b == "7"}
        found = {each.label for each in recommender.recommend("7", 30)}
        assert len(found) == 30 and not found & (neighbors | {"7"})
        everyone = {each.label for each in recommender.recommend("7", NODES, exclude_seen=False)}
        assert neighbors | {"7"} <= everyone


def test_the_commands_show_what_the_functions_return(tmp_path: Path) -> None:
    pairs, group = plant_graph()
    (tmp_path / "known.edges").write_text("".join(f"{a} {b}\n" for a, b in pairs[:-40]))
    (tmp_path / "held.edges").write_text("".join(f"{a} {b}\n" for a, b in pairs[-40:]))
    (tmp_path / "labels.tsv").write_text("".join(f"{node}\tgroup {label}\n" for node, label in enumerate(group)))
    run = ["import", str(tmp_path / "known.edges"), "--walks", "4", "-o", str(tmp_path / "work/matrix")]
    assert CliRunner().invoke(cli, run, catch_exceptions=False).exit_code == 0
    vectors = swivel.train(tmp_path / "work/matrix", tmp_path / "work/vectors", dim=16, epochs=4)

    def ask(*arguments: str) -> Any:
        command = ["evaluate", str(tmp_path / "work"), *arguments, "--json"]
        return json.loads(CliRunner().invoke(cli, command, catch_exceptions=False).stdout)

    assert ask("--links", str(tmp_path / "held.edges")) == links.evaluate_links(vectors, pairs[-40:]).to_dict()
    truth = [(str(node), f"group {label}") for node, label in enumerate(group.tolist())]
    expected = labels.evaluate_labels(vectors, truth, splits=2).to_dict()
    assert ask("--labels", str(tmp_path / "labels.tsv"), "--splits", "2") == json.loads(json.dumps(expected))
    refused = CliRunner().invoke(cli, ["evaluate", str(tmp_path / "work"), "--hits", "3"])
    assert "'--hits' has no effect" in str(refused.exception)
