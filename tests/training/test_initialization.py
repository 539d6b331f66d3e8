"""Initial parameters: random vectors, old vectors by label, rejected input, and the benefit of a warm start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from swivel.cli import cli
from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, open_matrix
from swivel.errors import ConfigError, FolderExists
from swivel.pipeline import train_job
from swivel.pipeline.add import add
from swivel.pipeline.count import count
from swivel.pipeline.run import run
from swivel.pipeline.train import train
from swivel.runtime.options import RunOptions
from swivel.storage.manifest import MANIFEST, read_manifest
from swivel.training.initialization import add_new_words, find_start, make_arrays
from swivel.training.objective import confidence, loss_and_gradient
from swivel.training.schedule import default_epochs
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.vector_table import fingerprint_vectors
from training_runs import RunRecorder

DIM = 8
QUICK: dict[str, Any] = {"backend": "cpu", "dtype": "float32", "zeros": "all", "block_size": 16}


def make_text(seed: int, lines: int, words: int = 60) -> list[str]:
    """Return lines of words, each line about one of four topics."""
    rng = np.random.default_rng(seed)
    ids = rng.geometric(0.15, (lines, 12)) % (words // 4) * 4 + rng.integers(0, 4, (lines, 1))
    return [" ".join(f"w{number}" for number in line) for line in ids]


@pytest.fixture(scope="module", params=["fast", "default"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the matrix and vectors of a text, and the matrix of that text and more, with more words."""
    folder, recipe = tmp_path_factory.mktemp(request.param), request.param
    old = count(make_text(1, 300, 40), folder / "old", recipe=recipe, min_count=1)
    new = count(make_text(2, 90, 60), recipe=recipe, min_count=1)
    add(old, new, out=folder / "both")
    train(old, folder / "vectors", recipe=recipe, dim=DIM, **QUICK)
    (folder / "recipe").write_text(recipe)
    return folder


def make_vectors(words: str, *, dim: int = 4, seed: int = 1, **keywords: Any) -> Vectors:
    vocabulary, rng = Vocabulary(words.split()), np.random.default_rng(seed)
    rows, columns = (
        VectorTable(vocabulary, rng.normal(size=(len(vocabulary), dim)).astype(np.float32)) for _ in range(2)
    )
    return Vectors(rows, columns, **{"columns_per_row": 1, **keywords})


def make_labels(words: str, columns_per_row: int = 1) -> Any:
    vocabulary = Vocabulary(words.split())
    return SimpleNamespace(rows=vocabulary, columns=vocabulary, columns_per_row=columns_per_row)


def mean_cosine(now: NDArray[np.float32], then: NDArray[np.float32]) -> float:
    return float(((now * then).sum(1) / np.linalg.norm(now, axis=1) / np.linalg.norm(then, axis=1)).mean())


def losses_of(folder: Path) -> list[float]:
    return [loss["mean"] for loss in read_manifest(folder).facts["losses"]]


# Arrays


def test_random_vectors_do_not_depend_on_threads_and_are_zero_without_counts() -> None:
    sums, orders = [np.arange(9_000.0), np.ones(5)], [np.arange(9_000)[::-1], np.arange(5)]
    one, four = (make_arrays(sums, orders, TrainConfig(dim=DIM), threads=threads) for threads in (1, 4))
    assert all((one[name] == four[name]).all() for name in one)
    assert not one["rows"][-1].any()
    assert one["rows"][:-1].std() == pytest.approx(1 / np.sqrt(DIM), rel=0.02)
    assert (one["rows_accumulators"] == np.float32(1e-6)).all()


def test_old_words_start_from_their_old_vectors_and_new_ones_from_random_ones() -> None:
    vectors, config = make_vectors("tea milk rum"), TrainConfig(dim=4)
    start = find_start(make_labels("milk sugar tea"), vectors, config)
    sums, orders = [np.ones(3), np.ones(3)], [np.array([2, 0, 1]), np.arange(3)]
    warm, cold = (make_arrays(sums, orders, config, start=given) for given in (start, None))

    assert (warm["rows"][[0, 1]] == vectors.rows[[0, 1]]).all()  # in block order: tea, milk, sugar
    assert vectors.columns is not None
    assert (warm["columns"][[2, 0]] == vectors.columns[[0, 1]]).all()
    assert (warm["rows"][2] == cold["rows"][2]).all()
    assert warm["rows_accumulators"].tolist() == pytest.approx([1e-4, 1e-4, 1e-6])


def test_old_zero_vectors_are_replaced_and_words_without_counts_are_zero() -> None:
    vocabulary = Vocabulary(["tea", "milk", "sugar"])
    values = np.array([[0, 0], [1, 2], [3, 4]], np.float32)
    vectors = Vectors(VectorTable(vocabulary, values), VectorTable(vocabulary, values), columns_per_row=1)
    start = find_start(make_labels("tea milk sugar"), vectors, TrainConfig(dim=2))
    arrays = make_arrays([np.array([1.0, 0, 1])] * 2, [np.arange(3)] * 2, TrainConfig(dim=2), start=start)
    assert arrays["rows"][0].any()
    assert arrays["rows"][1:].tolist() == [[0, 0], [3, 4]]


def test_fingerprint_depends_on_labels_rows_and_columns() -> None:
    vectors = make_vectors("tea milk")
    assert vectors.fingerprint == make_vectors("tea milk").fingerprint
    others = [make_vectors("tea rum"), make_vectors("tea milk", seed=2)]
    others.append(Vectors(vectors.row_table, make_vectors("tea milk", seed=2).column_table, columns_per_row=1))
    assert len({each.fingerprint for each in (vectors, *others)}) == 4


# New words


def make_sum(path: Path, recipe: str) -> tuple[Matrix, Vectors]:
    """Return a matrix, and vectors of only some of its words."""
    old = count(make_text(1, 200, 40), recipe=recipe, min_count=1)
    vectors = train(old, recipe=recipe, dim=4, epochs=5, **QUICK)
    return add(old, count(make_text(2, 60, 60), recipe=recipe, min_count=1), out=path), vectors


@pytest.mark.parametrize("transform", ["none", "log"])
@pytest.mark.parametrize("recipe", ["fast", "default"])
@pytest.mark.parametrize(("decay", "power"), [(0.0, 0.0), (1e-3, 0.5)])
def test_new_words_solve_their_least_squares_problem(
    recipe: str, transform: str, decay: float, power: float, tmp_path: Path
) -> None:
    matrix, vectors = make_sum(tmp_path / "sum", recipe)
    matrix = matrix.transformed(transform)
    config = TrainConfig(dim=4, weight_decay=decay, decay_power=power)
    start = find_start(matrix, vectors, config)
    joined = add_new_words(matrix, start, config, threads=2)
    table, objective = matrix.to_scipy().toarray(), TrainConfig()
    row, known = joined.ids[0][len(start.ids[0])], start.ids[1]
    C, x = start.vectors[1].astype(np.float64), table[row, known]
    seen = x > 0
    pmi = np.log(x[seen] * matrix.total / matrix.row_sums[row] / matrix.column_sums[known][seen])
    weights = np.where(seen, confidence(x, objective), 0.02)
    targets = np.zeros(len(known))
    targets[seen] = pmi
    ridge = max(decay * matrix.row_sums[row] ** power, 5e-5) * len(C)
    left = (C.T * weights) @ C + ridge * np.eye(4)
    expected = np.linalg.solve(left, C.T @ (weights * targets))

    assert joined.vectors[0][len(start.ids[0])] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert sorted(joined.ids[0].tolist()) == list(range(len(matrix.rows)))
    assert len(joined.ids[1]) > len(start.ids[1])
    assert joined.fingerprint == start.fingerprint


def test_joined_words_start_with_a_lower_loss_than_random_ones(tmp_path: Path) -> None:
    matrix, vectors = make_sum(tmp_path / "sum", "fast")
    config = TrainConfig(dim=4)
    start = find_start(matrix, vectors, config)
    joined = add_new_words(matrix, start, config)
    table, sums, orders = matrix.to_scipy().toarray(), [matrix.row_sums] * 2, [np.arange(len(matrix.rows))] * 2
    offsets = np.log(matrix.total) - np.add.outer(np.log(matrix.row_sums), np.log(matrix.row_sums))
    losses = []
    for each in (joined, start):
        arrays = make_arrays(sums, orders, config, start=each)
        products = arrays["rows"].astype(np.float64) @ arrays["columns"].T
        losses.append(loss_and_gradient(products, table, offsets, TrainConfig())[0].mean)

    assert losses[0] < losses[1]


def test_word_without_counts_with_old_words_starts_from_a_random_vector(tmp_path: Path) -> None:
    old = count(["tea milk"] * 5, recipe="fast", min_count=1)
    vectors = train(old, recipe="fast", dim=4, epochs=2, **QUICK)
    matrix = add(old, count(["rum gin"] * 2, recipe="fast", min_count=1))
    start = find_start(matrix, vectors, TrainConfig(dim=4))
    joined = add_new_words(matrix, start, TrainConfig(dim=4))
    assert joined.ids[0].tolist() == start.ids[0].tolist()
    assert len(train(matrix, recipe="fast", init=vectors, **QUICK)) == 4


# Rejected input


def test_vectors_without_columns_are_rejected() -> None:
    lone = Vectors(make_vectors("tea milk").row_table)
    with pytest.raises(ConfigError, match="init has no column vectors; pass a folder written by `swivel train`"):
        find_start(make_labels("tea"), lone, TrainConfig(dim=4))


def test_another_dim_is_rejected() -> None:
    with pytest.raises(ConfigError, match="dim must be 4 like init, got 300; omit dim"):
        find_start(make_labels("tea"), make_vectors("tea milk"), TrainConfig())


@pytest.mark.parametrize(("columns_per_row", "words"), [(4, "4 columns per row"), (0, "columns with separate labels")])
def test_other_columns_are_rejected(columns_per_row: int, words: str) -> None:
    with pytest.raises(ConfigError, match=f"init has 1 column per row, the matrix has {words}"):
        find_start(make_labels("tea", columns_per_row), make_vectors("tea milk"), TrainConfig(dim=4))


def test_vectors_without_common_words_are_rejected() -> None:
    message = "init has no words in common with the matrix: its first word is 'tea', that of the matrix is 'rum'"
    with pytest.raises(ConfigError, match=message):
        find_start(make_labels("rum"), make_vectors("tea milk"), TrainConfig(dim=4))


def test_vectors_that_are_not_finite_are_rejected() -> None:
    rows = VectorTable(Vocabulary(["tea", "milk"]), np.array([[1, 2], [np.nan, 1]], np.float32))
    with pytest.raises(ConfigError, match="init: the vector of 'milk' is not finite"):
        find_start(make_labels("milk tea"), Vectors(rows, rows, columns_per_row=1), TrainConfig(dim=2))


# Training


def test_old_words_stay_near_their_vectors_and_the_loss_is_lower_than_from_scratch(
    trained: Path, tmp_path: Path
) -> None:
    recipe, both, old = (
        (trained / "recipe").read_text(),
        open_matrix(trained / "both"),
        Vectors.load(trained / "vectors"),
    )
    train(both, tmp_path / "cold", recipe=recipe, dim=DIM, epochs=6, **QUICK)
    now = train(both, tmp_path / "warm", recipe=recipe, init=trained / "vectors", epochs=6, **QUICK)

    assert now.dim == DIM
    assert len(now) > len(old)
    assert losses_of(tmp_path / "warm")[-1] < losses_of(tmp_path / "cold")[-1]

    places = [now.vocabulary.id(word) for word in old]

    assert (
        mean_cosine(now.rows[places], old.rows) > 0.85
    )  # with 8 dimensions; benchmarks/more_data.py measures larger models
    assert mean_cosine(now.vectors[places], old.vectors) > 0.85


def test_warm_start_takes_fewer_epochs_by_default(trained: Path, tmp_path: Path) -> None:
    settings = {"recipe": (trained / "recipe").read_text(), **QUICK, "block_size": 5}
    train(trained / "both", tmp_path / "warm", init=trained / "vectors", **settings)
    plan = read_manifest(tmp_path / "warm").facts["plan"]
    usual = default_epochs(plan["row_blocks"], plan["column_blocks"], 480)
    assert usual // 3 == plan["epochs"] == len(losses_of(tmp_path / "warm"))


def test_parts_are_rotated_to_the_old_axes_without_changing_cosines(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, both = (trained / "recipe").read_text(), open_matrix(trained / "both")
    settings: dict[str, Any] = {"recipe": recipe, "init": trained / "vectors", "epochs": 3, **QUICK}
    turned = train(both, tmp_path / "turned", **settings)
    monkeypatch.setattr(train_job, "_turn", lambda result, init: result)
    plain = train(both, tmp_path / "plain", **settings)

    assert (turned.rows == plain.rows).all()
    assert np.allclose(
        turned.unit_vectors @ turned.unit_vectors.T, plain.unit_vectors @ plain.unit_vectors.T, atol=1e-5
    )
    assert (recipe == "fast") == bool((turned.vectors == plain.vectors).all())


def test_init_is_part_of_the_provenance(trained: Path, tmp_path: Path) -> None:
    both, settings = open_matrix(trained / "both"), {"recipe": (trained / "recipe").read_text(), "epochs": 1, **QUICK}
    old = Vectors.load(trained / "vectors")
    first = train(both, tmp_path / "warm", init=old, **settings)
    before = (tmp_path / "warm" / "manifest.json").stat().st_mtime_ns
    again = train(both, tmp_path / "warm", init=str(trained / "vectors"), **settings)

    assert (tmp_path / "warm" / "manifest.json").stat().st_mtime_ns == before
    assert (again.vectors == first.vectors).all()
    assert read_manifest(tmp_path / "warm").inputs["init"] == fingerprint_vectors(old.row_table, old.column_table)

    cold: dict[str, Any] = settings | {"learning_rate": 0.1, "accumulator_decay": 1.0, "updates_per_vector": 480}
    with pytest.raises(FolderExists, match="finished already from other inputs"):
        train(both, tmp_path / "warm", dim=DIM, **cold)
    other = train(both, init=first, **settings)

    assert not (other.vectors == first.vectors).all()


def test_interrupted_warm_start_resumes_exactly(trained: Path, tmp_path: Path) -> None:
    both, old = open_matrix(trained / "both"), Vectors.load(trained / "vectors")
    settings = {"recipe": (trained / "recipe").read_text(), "epochs": 2, **QUICK}
    whole = train(both, init=old, **settings)
    with pytest.raises(KeyboardInterrupt):
        train(both, tmp_path / "cut", init=old, options=RunOptions(progress=RunRecorder(5)), **settings)

    assert not (tmp_path / "cut" / MANIFEST).exists()

    progress = RunRecorder(after=-1)
    resumed = train(both, tmp_path / "cut", init=old, options=RunOptions(progress=progress), **settings)

    assert any(line.startswith("resuming after") for line in progress.lines)
    assert (resumed.vectors == whole.vectors).all()


def test_checkpoint_of_a_run_with_another_init_is_not_resumed(trained: Path, tmp_path: Path) -> None:
    both, settings = open_matrix(trained / "both"), {"recipe": (trained / "recipe").read_text(), "epochs": 2, **QUICK}
    with pytest.raises(KeyboardInterrupt):
        train(both, tmp_path / "cut", dim=DIM, options=RunOptions(progress=RunRecorder(5)), **settings)
    warm = {"init": Vectors.load(trained / "vectors"), **settings}
    with pytest.raises(FolderExists, match="cut: holds an unfinished run without init; use the same settings"):
        train(both, tmp_path / "cut", **warm)
    progress = RunRecorder(after=-1)
    train(both, tmp_path / "cut", options=RunOptions(progress=progress, overwrite=True), **warm)
    assert not any(line.startswith("resuming after") for line in progress.lines)
    assert any("are new" in line for line in progress.lines)


def test_train_and_run_accept_init(trained: Path, tmp_path: Path) -> None:
    recipe, text = (trained / "recipe").read_text(), tmp_path / "text.txt"
    text.write_text("\n".join(make_text(3, 40, 60)))
    flags = ["--recipe", recipe, "--init", str(trained / "vectors"), "--epochs", "1", "--backend", "cpu", "--quiet"]
    done = CliRunner().invoke(cli, ["train", str(trained / "both"), "-o", str(tmp_path / "vectors"), *flags])
    assert done.exit_code == 0, done.output

    done = CliRunner().invoke(cli, ["run", str(text), "-o", str(tmp_path / "run"), "--min-count", "1", *flags])
    assert done.exit_code == 0, done.output
    assert {Vectors.load(tmp_path / name).dim for name in ("vectors", "run/vectors")} == {DIM}

    rejected = CliRunner().invoke(
        cli, ["train", str(trained / "both"), "-o", str(tmp_path / "no"), "--dim", "9", *flags]
    )
    assert isinstance(rejected.exception, ConfigError)
    assert not (tmp_path / "no").exists()


def test_run_accepts_vectors_in_memory(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"recipe": "fast", "min_count": 1, "epochs": 2, **QUICK}
    text = make_text(1, 40, 40)
    old = run(text, tmp_path / "old", dim=DIM, **settings)
    assert run(text, tmp_path / "new", init=old, **settings).dim == DIM
