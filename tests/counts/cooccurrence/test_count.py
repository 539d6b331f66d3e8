"""Counting against the definition in every mode; the files do not depend on memory and threads."""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import re
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from count_strategies import configs, corpora, count_by_definition, read_counts
from stored import folder_of
from swivel.config import CountConfig
from swivel.corpus.vocabulary import BREAK, GAP, Vocabulary
from swivel.counts import Matrix, open_matrix
from swivel.counts import block_layout as matrix_layout
from swivel.counts.cooccurrence import column_vocabulary, count_tokens
from swivel.counts.cooccurrence import corpus_count as counting
from swivel.counts.cooccurrence.corpus_count import part_names, window_unit, window_weights
from swivel.errors import CountsError, FolderExists, MemoryBudgetError, StorageError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT, Progress, Task

WORDS = 7


def make_vocabulary(size: int = WORDS) -> Vocabulary:
    return Vocabulary([f"w{number}" for number in range(size)], range(size, 0, -1))


def digest(path: Path) -> dict[str, str]:
    files = sorted(file for file in Path(path).iterdir() if file.suffix != ".json")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def count(
    path: Path,
    ids: ArrayLike,
    config: CountConfig,
    *,
    chunk: int = 10**6,
    threads: int = 1,
    block_cells: int = 1,
    words: int = WORDS,
) -> Matrix:
    """Count in chunks of `chunk` places, with a small initial capacity for cells."""
    from swivel.counts.cooccurrence.rows import ChunkCounter

    ids = np.array(ids, np.uint32)
    spec = counting.make_spec(make_vocabulary(words), config)
    survey = counting.survey_corpus(ids, words, config, threads=threads)
    plan = counting.make_plan(spec.layout(), config, survey, threads=threads, memory=1 << 26)
    plan = dataclasses.replace(plan, chunk_places=chunk, block_cells=block_cells)
    counter = ChunkCounter(ids, spec.layout(), config, plan)
    options = RunOptions(threads=threads, memory=1 << 20)
    return counting.build_matrix(counter, spec, path, options, {"config": config}, SILENT.begin("", None, ""))


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.storage.files.flush", lambda path: None)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_layout, "BLOCK_SIZE", 3)


fixture_is_stateless = settings(
    max_examples=settings().max_examples * 3 // 5, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.oracle
@fixture_is_stateless
@given(ids=corpora(WORDS, 2), config=configs(), chunk=st.integers(1, 70), threads=st.integers(1, 3))
def test_counts_equal_those_of_the_definition(
    small_blocks: None,
    tmp_path_factory: pytest.TempPathFactory,
    ids: list[int],
    config: CountConfig,
    chunk: int,
    threads: int,
) -> None:
    expected = count_by_definition(ids, make_vocabulary(), config)
    path = tmp_path_factory.mktemp("counts") / "matrix"
    if not expected:
        with pytest.raises(CountsError, match="there are no counts"):
            count(path, ids, config, chunk=chunk, threads=threads)
        return

    matrix = count(path, ids, config, chunk=chunk, threads=threads)
    assert read_counts(matrix) == expected
    assert matrix.cell_count == len(expected)
    assert matrix.total == pytest.approx(float(sum(expected.values())), rel=1e-15)

    for row, token in enumerate(matrix.rows):
        sums = sum(value for (word, _), value in expected.items() if word == token)
        assert Fraction(int(matrix.row_sums_units[row]), matrix.unit) == sums

    for column, token in enumerate(matrix.columns):
        sums = sum(value for (_, label), value in expected.items() if label == token)
        assert Fraction(int(matrix.column_sums_units[column]), matrix.unit) == sums


@pytest.mark.parametrize("columns", ["symmetric", "directional"])
def test_files_do_not_depend_on_chunks_threads_and_capacity(tmp_path: Path, small_blocks: None, columns: str) -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, WORDS, 400).tolist()
    ids[50::60] = [BREAK] * len(ids[50::60])
    ids[9::11] = [GAP] * len(ids[9::11])
    config = CountConfig(window=4, columns=columns)
    digests = [
        digest(folder_of(count(tmp_path / f"{number}", ids, config, chunk=chunk, threads=threads, block_cells=cells)))
        for number, (chunk, threads, cells) in enumerate([(10**6, 1, 1), (100, 2, 500), (7, 3, 1), (1, 1, 10)])
    ]
    assert all(other == digests[0] for other in digests[1:])


@pytest.mark.parametrize("chunk", [10**6, 700])
def test_counts_past_32_bits_are_exact(tmp_path: Path, chunk: int) -> None:
    config = CountConfig(window=20)
    weights, _ = window_weights(config)
    length = 2_000
    matrix = count(tmp_path / "m", [0] * length, config, chunk=chunk, words=2)
    expected = 2 * sum(int(weight) * (length - distance) for distance, weight in enumerate(weights, 1))
    assert expected > 1 << 32
    assert matrix.units(0, 0)[1].tolist() == [expected]
    assert matrix.row_sums_units.tolist() == [expected, 0]


def test_a_repeated_word_counts_with_itself_but_not_at_distance_0(tmp_path: Path) -> None:
    matrix = count(tmp_path / "m", [0, 1, 0, int(BREAK), 2], CountConfig(window=5))
    assert matrix.count("w0", "w0") == 1.0
    assert matrix.count("w0", "w1") == matrix.count("w1", "w0") == 2.0
    assert matrix.count("w2", "w2") == 0.0
    assert matrix.row_sums[2] == 0.0


def test_a_gap_adds_to_the_distance_and_is_not_counted(tmp_path: Path) -> None:
    matrix = count(tmp_path / "m", [0, int(GAP), 1], CountConfig(window=2))
    assert matrix.count("w0", "w1") == 0.5
    assert matrix.total == 1.0


def test_a_small_memory_budget_gives_the_same_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    ids = np.minimum(rng.zipf(1.3, 200_000) - 1, 2_999).astype(np.uint32)
    ids[rng.random(ids.size) < 0.02] = BREAK
    vocabulary = make_vocabulary(3_000)
    config = CountConfig(window=5)
    messages: list[str] = []

    class Listener(Progress, Task):
        done = 0.0

        def begin(self, job: str, total: float | None, unit: str) -> Task:
            assert (job, total, unit) == ("counting", int((ids < GAP).sum()), "tokens")
            return self

        def advance(self, amount: float = 1, note: str = "") -> None:
            self.done += amount

        def end(self, task: Task) -> None:
            assert self.done == int((ids < GAP).sum())

        def message(self, text: str) -> None:
            messages.append(text)

    large = count_tokens(ids, vocabulary, config, tmp_path / "a", RunOptions(memory=1 << 30, threads=2))
    options = RunOptions(memory=18 << 20, threads=2, progress=Listener())
    small = count_tokens(ids, vocabulary, config, tmp_path / "b", options)
    assert digest(folder_of(large)) == digest(folder_of(small))
    assert large.fingerprint == small.fingerprint
    assert len(messages) == 1 and re.match(r"about [\d,]+ cells: .* on disk, .* of memory$", messages[0])


def test_the_forecast_is_close() -> None:
    rng = np.random.default_rng(3)
    ids = np.minimum(rng.zipf(1.3, 300_000) - 1, 2_999).astype(np.uint32)
    config = CountConfig(window=3, columns="directional")
    layout = counting.make_spec(make_vocabulary(3_000), config).layout()
    survey = counting.survey_corpus(ids, 3_000, config, threads=2)
    plan = counting.make_plan(layout, config, survey, threads=1, memory=1 << 30)
    disk, memory = counting.forecast_count(layout, survey, plan)
    cells = set()
    for distance in (1, 2, 3):
        cells.update((ids[:-distance].astype(np.int64) * 3_000 + ids[distance:]).tolist())

    assert survey.cells == pytest.approx(2 * len(cells), rel=0.35)
    assert 0 < memory < 1 << 30
    assert disk == 8 * survey.cells


def test_too_little_memory_is_refused_with_the_amount_needed(tmp_path: Path) -> None:
    ids = np.zeros(10_000, np.uint32)
    with pytest.raises(MemoryBudgetError, match=r"needs at least [\d.]+ MiB of memory, got 0\.1 MiB"):
        count_tokens(ids, make_vocabulary(), CountConfig(), tmp_path / "m", RunOptions(memory=100_000))
    assert not (tmp_path / "m").exists()


def plan_for(places: int, *, memory: int, threads: int = 1) -> counting.CountPlan:
    survey = counting.Survey(places, places, 0, places, 49)
    layout = counting.make_spec(make_vocabulary(), CountConfig()).layout()
    return counting.make_plan(layout, CountConfig(), survey, threads=threads, memory=memory)


def min_memory(places: int, threads: int) -> int:
    """Return the smallest number of KiB with which a plan keeps all threads."""

    def is_enough(kib: int) -> bool:
        try:
            return plan_for(places, memory=kib << 10, threads=threads).threads == threads
        except MemoryBudgetError:
            return False

    return bisect.bisect_left(range(1 << 20), True, key=is_enough)


def test_a_plan_has_at_most_256_runs() -> None:
    places = 65_000_000
    needed = min_memory(places, 1)
    assert 254 <= places / plan_for(places, memory=needed << 10).chunk_places <= 256
    with pytest.raises(MemoryBudgetError) as caught:
        plan_for(places, memory=(needed - 1) << 10)

    match = re.search(r"needs at least ([\d.]+) MiB", str(caught.value))
    assert match and float(match[1]) == pytest.approx(needed / 1024, abs=0.1)
    huge = plan_for(10**13, memory=1 << 40)  # places are uint32, so even with enough memory there are several runs
    assert huge.chunk_places < 1 << 32


def test_threads_are_halved_if_memory_is_short() -> None:
    places = 65_000_000
    for threads, fewer in ((16, 8), (8, 4), (3, 1), (2, 1)):
        memory = (min_memory(places, threads) - 1) << 10
        assert plan_for(places, memory=memory, threads=threads).threads == fewer


def test_a_disk_that_is_too_small_is_refused_before_counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1))
    ids = np.zeros(10_000, np.uint32)
    with pytest.raises(
        StorageError, match=r"counting needs about \d+ B of disk, but 1 B are free; choose another disk"
    ):
        count_tokens(ids, make_vocabulary(), CountConfig(), tmp_path / "m", RunOptions())


def test_wrong_ids_are_refused(tmp_path: Path) -> None:
    options = RunOptions(threads=2)
    with pytest.raises(CountsError, match="id 7 at place 3 of the corpus: the vocabulary has 7 words"):
        count_tokens(np.array([0, 1, 2, 7], np.uint32), make_vocabulary(), CountConfig(), tmp_path / "m", options)
    with pytest.raises(CountsError, match="ids must be a one-dimensional uint32 array, got int64"):
        count_tokens(np.array([0, 1, 2]), make_vocabulary(), CountConfig(), tmp_path / "m", options)


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CountsError, match="there are no counts"):
        count_tokens(np.empty(0, np.uint32), make_vocabulary(), CountConfig(), tmp_path / "m", RunOptions())


def test_a_finished_matrix_is_not_overwritten_by_default(tmp_path: Path) -> None:
    ids = np.array([0, 1], np.uint32)
    count_tokens(ids, make_vocabulary(), CountConfig(), tmp_path / "m", RunOptions())
    with pytest.raises(FolderExists):
        count_tokens(ids, make_vocabulary(), CountConfig(), tmp_path / "m", RunOptions())
    count_tokens(ids, make_vocabulary(), CountConfig(), tmp_path / "m", RunOptions(overwrite=True))
    assert open_matrix(tmp_path / "m").config["window"] == 10


@pytest.mark.parametrize(
    ("config", "unit", "left"),
    [
        (CountConfig(window=10), 2_520, [2520, 1260, 840, 630, 504, 420, 360, 315, 280, 252]),
        (CountConfig(window=3, weight="linear"), 3, [3, 2, 1]),
        (CountConfig(left=2, right=3, weight="linear"), 6, [6, 3]),
        (CountConfig(window=3, weight="uniform"), 1, [1, 1, 1]),
        (CountConfig(left=0, right=2), 2, []),
    ],
)
def test_weights_are_integers_in_the_unit(config: CountConfig, unit: int, left: list[int]) -> None:
    assert (window_unit(config), window_weights(config)[0].tolist()) == (unit, left)


@pytest.mark.parametrize("weight", ["harmonic", "linear", "uniform"])
@pytest.mark.parametrize("window", [10**9, 10**20])
def test_a_window_that_is_wider_than_any_unit_needs_no_memory(tmp_path: Path, weight: str, window: int) -> None:
    config = CountConfig(window=window, weight=weight, columns="directional")
    matrix = count(tmp_path / "m", [0, 1, int(BREAK), 1, 1, 0], config)
    whole = 1 if weight == "uniform" else 1 << 20  # units
    far = whole // 2 if weight == "harmonic" else whole
    assert matrix.to_scipy().toarray()[:2, :4].tolist() == [
        [0.0, 0.0, (whole + far) / whole, 1.0],
        [1.0, (whole + far) / whole, 1.0, 1.0],
    ]


def test_a_window_without_a_small_common_unit_gets_a_binary_one() -> None:
    config = CountConfig(window=40)
    assert window_unit(config) == 1 << 20
    assert window_weights(config)[1].tolist() == [round((1 << 20) / distance) for distance in range(1, 41)]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("symmetric", ()),
        ("directional", ("left", "right")),
        ("bands", ("1", "2-10")),
        ("directional-bands", ("left 1", "left 2-10", "right 1", "right 2-10")),
    ],
)
def test_columns_are_named_after_their_parts(columns: str, names: tuple[str, ...]) -> None:
    config = CountConfig(columns=columns)
    assert part_names(config) == names
    labels = column_vocabulary(Vocabulary(["the", "of"], [5, 3]), config)

    if names:
        assert labels is not None
        assert labels.tokens[: len(names)] == tuple(f"{name}:the" for name in names)
        assert labels.counts.tolist() == [5] * len(names) + [3] * len(names)
    else:
        assert labels is None


def test_importing_counting_does_not_load_numba() -> None:
    code = "import sys, swivel.counts.cooccurrence, swivel.counts; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
