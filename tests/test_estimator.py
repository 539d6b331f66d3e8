"""The scikit-learn estimator: the checks of scikit-learn, and tests of the results."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

import swivel
from swivel import SwivelEmbedding
from swivel.config import TrainConfig
from swivel.errors import ConfigError, CountsError

# Checks that do not apply, with the reason. (`check_array_api_input` is skipped unless SCIPY_ARRAY_API is set.)
EXPECTED_FAILURES: dict[str, str] = {}
GROUPS = 4
QUICK: dict[str, Any] = {"dim": 4, "device": "cpu"}


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [SwivelEmbedding(dim=3, epochs=3, device="cpu", threads=1)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_the_checks_of_scikit_learn_pass(estimator: Any, check: Any) -> None:
    check(estimator)


def planted_counts(seed: int, rows: int = 48, columns: int = 20) -> np.ndarray:
    """Return counts of rows that mostly occur with the columns of their group, n % 4; not ordered by frequency."""
    rng = np.random.default_rng(seed)
    same = np.arange(rows)[:, None] % GROUPS == np.arange(columns) % GROUPS
    return rng.poisson(np.where(same, 6.0, 0.15) * rng.uniform(0.5, 3, (rows, 1)))


@pytest.fixture(scope="module")
def fitted() -> SwivelEmbedding:
    return SwivelEmbedding(**QUICK).fit(planted_counts(1))


def nearest_groups(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(np.argmax(queries @ unit.T, axis=1) % GROUPS)


def test_new_rows_are_close_to_their_group(fitted: SwivelEmbedding) -> None:
    new = fitted.transform(planted_counts(2))
    assert (nearest_groups(new, fitted.row_vectors_) == np.arange(48) % GROUPS).mean() > 0.95


def test_results_have_the_order_of_the_table(fitted: SwivelEmbedding) -> None:
    counts = planted_counts(1)

    assert fitted.row_vectors_.shape == (48, 4) and fitted.column_vectors_.shape == (20, 4)

    logs = np.log1p(counts)  # of the recipe `table`
    np.testing.assert_allclose(fitted.row_sums_, logs.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(fitted.column_sums_, logs.sum(axis=0), rtol=1e-5)

    assert fitted.total_ == pytest.approx(logs.sum())

    scores = fitted.row_vectors_ @ fitted.column_vectors_.T + fitted.config_.shift
    same = np.arange(48)[:, None] % GROUPS == np.arange(20) % GROUPS

    assert scores[same].mean() > 1 + scores[~same].mean()


def test_transform_of_a_trained_row_is_close_to_its_trained_vector(fitted: SwivelEmbedding) -> None:
    folded = fitted.transform(planted_counts(1))
    trained = fitted.row_vectors_
    cosines = (folded * trained).sum(1) / np.linalg.norm(folded, axis=1) / np.linalg.norm(trained, axis=1)
    assert cosines.mean() > 0.95


def test_fit_transform_equals_fit_and_transform(fitted: SwivelEmbedding) -> None:
    counts = planted_counts(1)
    np.testing.assert_array_equal(clone(fitted).fit_transform(counts), fitted.transform(counts))


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_array"])
def test_sparse_and_dense_tables_give_the_same_bits(form: str, fitted: SwivelEmbedding) -> None:
    counts = getattr(scipy.sparse, form)(planted_counts(1))
    again = clone(fitted).fit(counts)
    assert again.row_vectors_.tobytes() == fitted.row_vectors_.tobytes()
    assert again.transform(counts).tobytes() == fitted.transform(planted_counts(1)).tobytes()


def test_rows_and_columns_without_counts_are_zero() -> None:
    counts = planted_counts(3)
    counts[5] = 0
    counts[:, 2] = 0
    embedding = SwivelEmbedding(**QUICK).fit(counts)
    assert not embedding.row_vectors_[5].any() and not embedding.column_vectors_[2].any()
    assert not embedding.transform(counts)[5].any()


def test_weights_are_used_without_rounding_to_integers() -> None:
    counts = planted_counts(4) / 7
    embedding = SwivelEmbedding(**QUICK, recipe="fast", unseen=0.1).fit(counts)
    np.testing.assert_allclose(embedding.row_sums_, counts.sum(axis=1), rtol=1e-8)
    assert embedding.config_.unseen == 0.1


def test_small_weights_stay_different_in_tables() -> None:
    counts = np.delete(planted_counts(4), 0, axis=1) * 1e-7
    embedding = SwivelEmbedding(**QUICK, epochs=1).fit(counts)
    assert embedding.config_.transform == "log"
    np.testing.assert_allclose(embedding.row_sums_, np.log1p(counts).sum(axis=1), rtol=1e-6)


AMOUNTS = np.array([[5e9 + 0.5, 0.25, 40], [0.01, 3.5, 0], [2.25, 0.02, 7]])


AMOUNT = st.one_of(
    st.sampled_from([0.0, 0.25, 5e9 + 0.5, 0.01, 3.5, 40.0, 1e-3]), st.integers(0, 10**12), st.floats(1e-6, 1e9)
)


@pytest.mark.oracle
@settings(max_examples=settings().max_examples // 4)
@given(
    st.lists(st.lists(AMOUNT, min_size=3, max_size=3), min_size=2, max_size=4),
    st.sampled_from([1.0, 1e-18, 1e-9, 1e6]),
)
@example(AMOUNTS.tolist(), 1.0)
@example(AMOUNTS.tolist(), 1e-9)
@example(AMOUNTS.tolist(), 1e-18)
@example([[0.0, 0.0, 0.0], [0.0, 0.0, 7.0]], 1e-18)  # the smallest unit is 2^-60
def test_amounts_are_those_of_an_import(amounts: list[list[float]], scale: float) -> None:
    """Counts are those of an import, at most one part in 8 off, or the table is refused with the same error."""
    counts = np.array(amounts, np.float64) * scale
    embedding = SwivelEmbedding(dim=2, device="cpu", threads=1, recipe="fast", epochs=1)
    try:
        matrix = swivel.import_counts(counts)
    except CountsError as error:
        with pytest.raises(CountsError, match=re.escape(str(error))):
            embedding.fit(counts)
        return

    embedding.fit(counts)
    rows, columns = ([int(label) for label in side] for side in (matrix.rows, matrix.columns))
    assert embedding.row_sums_[rows].tolist() == matrix.row_sums.tolist()
    assert embedding.column_sums_[columns].tolist() == matrix.column_sums.tolist()
    np.testing.assert_allclose(matrix.to_scipy().toarray(), counts[np.ix_(rows, columns)], rtol=1 / 8)
    np.testing.assert_allclose(matrix.total, counts.sum(), rtol=1 / 8)


def test_amounts_that_an_import_refuses_are_refused() -> None:
    with pytest.raises(CountsError, match="too small for an exact sum"):
        SwivelEmbedding(**QUICK).fit(AMOUNTS * 1e-28)


def test_fit_and_tune_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    changed = tmp_path.stat().st_mtime_ns
    SwivelEmbedding(**QUICK, epochs=2).fit(planted_counts(1) * 0.5)
    SwivelEmbedding(**QUICK, recipe="table", tune=True, epochs=2).fit(planted_counts(1))
    assert tmp_path.stat().st_mtime_ns == changed  # not even a temporary file


def test_equal_random_states_give_equal_vectors_and_different_ones_do_not() -> None:
    counts = planted_counts(5)
    one, two, three = (SwivelEmbedding(**QUICK, epochs=5, random_state=seed).fit(counts) for seed in (None, 1, 2))

    assert one.row_vectors_.tobytes() == two.row_vectors_.tobytes() != three.row_vectors_.tobytes()

    drawn = [
        SwivelEmbedding(**QUICK, epochs=5, random_state=np.random.RandomState(7)).fit(counts).config_.seed
        for _ in range(2)
    ]

    assert drawn[0] == drawn[1] != 1


def test_recipe_is_table_unless_rows_and_columns_may_be_of_one_kind() -> None:
    counts = planted_counts(6)
    assert SwivelEmbedding(**QUICK, epochs=1).fit(counts).recipe_ == "table"
    assert SwivelEmbedding(**QUICK, epochs=1).fit(counts[:20]).recipe_ == "fast"
    assert SwivelEmbedding(**QUICK, epochs=1, recipe="paper").fit(counts).recipe_ == "paper"


def test_every_setting_is_a_parameter_and_is_used_in_training() -> None:
    names = SwivelEmbedding().get_params()

    assert set(names) - {"recipe", "tune", "random_state", "threads", "memory"} < set(TrainConfig.__dataclass_fields__)

    embedding = SwivelEmbedding(**QUICK, recipe="default", learning_rate=0.05, epochs=3, shift=0.5).fit(
        planted_counts(6)
    )
    config = embedding.config_

    assert (config.weight_decay, config.learning_rate, config.shift, len(embedding.losses_)) == (5e-5, 0.05, 0.5, 3)
    assert embedding.losses_[0]["mean"] > 0


def test_parameters_set_after_fitting_do_not_change_what_was_fitted(fitted: SwivelEmbedding) -> None:
    changed = pickle.loads(pickle.dumps(fitted)).set_params(dim=2, weight_decay=0.5)
    np.testing.assert_array_equal(changed.transform(planted_counts(2)), fitted.transform(planted_counts(2)))
    assert len(changed.get_feature_names_out()) == 4


def test_pipelines_and_grid_searches_work() -> None:
    counts = planted_counts(7)
    groups = np.arange(48) % GROUPS
    steps = make_pipeline(SwivelEmbedding(**QUICK, epochs=60), Normalizer(), KNeighborsClassifier(3))
    search = GridSearchCV(steps, {"swivelembedding__dim": np.array([2, 4])}, cv=2).fit(counts, groups)
    assert search.best_score_ > 0.9


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_are_accepted_and_returned(library: str, fitted: SwivelEmbedding) -> None:
    frames = pytest.importorskip(library)
    counts = planted_counts(1)
    table = frames.DataFrame({f"c{n}": counts[:, n] for n in range(20)})
    embedding = clone(fitted).set_output(transform=library)
    vectors = embedding.fit_transform(table)

    assert list(vectors.columns) == list(embedding.get_feature_names_out()) == [f"swivelembedding{n}" for n in range(4)]
    assert list(embedding.feature_names_in_) == list(table.columns)

    np.testing.assert_array_equal(vectors.to_numpy(), fitted.transform(counts))


def test_temporary_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    SwivelEmbedding(**QUICK, epochs=1).fit(planted_counts(8))
    with pytest.raises(CountsError):
        SwivelEmbedding(**QUICK).fit(np.zeros((3, 3)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "counts", "message"),
    [
        ({"recipe": "glove"}, np.ones((2, 2)), "recipe must be one of paper, fast, default, table, graph, got 'glove'"),
        ({"dim": 0}, np.ones((2, 2)), "dim must be a positive integer, got 0"),
        ({"threads": 0}, np.ones((2, 2)), "threads must be a positive integer"),
        ({}, np.zeros((2, 2)), "there are no counts"),
        ({}, -np.ones((2, 2)), "Negative values in data passed to SwivelEmbedding"),
        ({}, np.full((2, 2), np.nan), "contains NaN"),
        ({}, np.full((2, 2), 1e30), "scale them"),
    ],
)
def test_invalid_settings_and_counts_raise_errors(settings: dict[str, Any], counts: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SwivelEmbedding(**{**QUICK, **settings}).fit(counts)


def test_config_errors_are_swivel_errors() -> None:
    with pytest.raises(ConfigError):
        SwivelEmbedding(recipe="glove").fit(np.ones((2, 2)))


def test_without_scikit_learn_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['sklearn'] = None\nimport swivel\nswivel.SwivelEmbedding"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtra: estimators need scikit-learn" in done.stderr
    assert "pip install 'swivel-embeddings[sklearn]'" in done.stderr


def test_score_is_the_recall_of_cells_that_are_left_out_so_that_a_search_needs_no_scoring() -> None:
    rng = np.random.default_rng(1)
    is_same = np.arange(200)[:, None] % 10 == np.arange(300) % 10
    counts = scipy.sparse.csr_array((rng.random((200, 300)) < np.where(is_same, 0.5, 0.01)).astype(float))
    search = GridSearchCV(SwivelEmbedding(8, recipe="table"), {"weight_decay": [1.0, 0.02]}, cv=2).fit(counts)
    assert search.best_params_ == {"weight_decay": 0.02}

    # 30 columns of the own group, half of which a row has: a random ranking of the others finds 20 of 285.
    assert search.best_score_ > 0.6
    assert search.best_estimator_.score(counts) == search.best_estimator_.score(counts.toarray())


def test_a_bare_estimator_is_searched_without_a_scoring() -> None:
    counts = planted_counts(3)
    search = GridSearchCV(SwivelEmbedding(), {"dim": [2, 4]}, cv=2).fit(counts)
    assert 0 < search.best_score_ <= 1
    assert search.best_params_["dim"] in (2, 4)
