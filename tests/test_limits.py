"""Memory and disk that are not there: said before anything begins; sizes past 2^24, 2^31 and 2^32, with faked data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import swivel
from swivel.config import CountConfig, TrainConfig
from swivel.corpus.vocabulary import BREAK, Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.counts.block_layout import Layout, choose_layout
from swivel.counts.cooccurrence.corpus_count import CountPlan, Survey, forecast_count, make_spec
from swivel.counts.cooccurrence.corpus_count import make_plan as make_count_plan
from swivel.counts.cooccurrence.rows import ChunkCounter
from swivel.counts.matrix_cells import MatrixCells
from swivel.counts.shards import CellArrays
from swivel.errors import MemoryBudgetError, StorageError
from swivel.runtime import resources
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress
from swivel.runtime.resources import NUMBA_MEMORY, TORCH_MEMORY, ResourceEstimate, check_libraries, free_memory
from swivel.training.loop import train_matrix
from swivel.training.schedule import block_order, block_starts
from swivel.training.training_plan import estimate_needs, make_plan
from swivel.vectors import VectorTable
from swivel.vectors.comparison import compare
from swivel.vectors.formats import export

MIB, GIB = 2**20, 2**30
linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of a process are Linux's")


class Heard(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


def run_limited(limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process that may have so many bytes of address space."""
    import resource

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    command = [sys.executable, "-m", "swivel", *arguments]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    return subprocess.run(
        command, preexec_fn=set_limit, capture_output=True, text=True, timeout=60, env=environment, check=False
    )


@linux
@pytest.mark.parametrize("verb", ["count", "import", "train"])
def test_a_limit_below_the_libraries_is_one_line_before_anything_begins(
    verb: str, planted: Matrix, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("tea milk tea\n")
    (tmp_path / "counts.tsv").write_text("tea\tmilk\t2\n")
    source = {"count": "text.txt", "import": "counts.tsv"}.get(verb, str(planted.path))
    done = run_limited(400 * MIB, verb, str(tmp_path / source), "-o", str(tmp_path / "out"))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert "of address space, including libraries" in done.stderr
    assert not (tmp_path / "out").exists()


@linux
def test_extending_below_its_libraries_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("tea milk tea\n")
    done = run_limited(1_000 * MIB, "extend", "vectors", str(tmp_path / "text.txt"), "-o", str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: extending needs at least 1.4 GiB of address space")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@linux
def test_a_limit_below_the_need_of_training_stops_it_with_the_figure(planted: Matrix, tmp_path: Path) -> None:
    done = run_limited(
        8 * GIB, "train", str(planted.path), "-o", str(tmp_path / "out"), "--dim", "2000000", "--dtype", "float32"
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: training needs about ")
    assert not any(line.startswith("Traceback") for line in done.stderr.splitlines())
    assert not (tmp_path / "out").exists()


@linux
def test_memory_left_of_the_own_limit_is_all_that_is_free() -> None:
    code = "from swivel.runtime.resources import free_memory; print(free_memory())"
    limited = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)); {code}",
        f"import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30)); {code}",
    )
    for program, most in zip(limited, (3 * GIB, 1 * GIB), strict=True):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert 0 < int(done.stdout) < min(most, free_memory())


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 100 GiB, without groups so far."""
    monkeypatch.setattr(resources, "_CGROUP", tmp_path / "fs")
    monkeypatch.setattr(resources, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(resources, "_free_machine_memory", lambda: 100 * GIB)
    return tmp_path


def limit_group(folder: Path, files: tuple[str, str], limit: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in zip(files, (limit, GIB), strict=True):
        (folder / name).write_text(f"{size}\n")


@pytest.mark.parametrize(
    ("own", "top", "files"),
    [
        ("0::/user/job\n", "", ("memory.max", "memory.current")),
        (
            "9:name=systemd:/\n4:cpu,memory:/user/job\n0::/\n",
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_limits_of_the_own_group_and_those_above_it_count(
    cgroups: Path, own: str, top: str, files: tuple[str, str]
) -> None:
    (cgroups / "own").write_text(own)
    assert free_memory() == 100 * GIB
    limit_group(cgroups / "fs" / top / "user", files, 9 * GIB)
    assert free_memory() == 8 * GIB
    limit_group(cgroups / "fs" / top / "user/job", files, 3 * GIB)
    assert free_memory() == 2 * GIB
    limit_group(cgroups / "fs" / top, files, 2 * GIB)
    assert free_memory() == 1 * GIB


def load_modules(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make it look as if this process had loaded these modules and no others."""
    monkeypatch.setattr("swivel.runtime.resources.sys", SimpleNamespace(modules=dict.fromkeys(names)))


def test_memory_that_is_not_named_stays_inside_what_is_free(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_modules(monkeypatch, "numba")
    for free, taken in ((100 * GIB, 50 * GIB), (300 * MIB, 225 * MIB), (400 * MIB, 256 * MIB), (0, 1)):
        monkeypatch.setattr(resources, "_free_machine_memory", lambda free=free: free)
        assert RunOptions().memory_bytes == taken


def test_the_budget_leaves_room_for_the_libraries(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_free_machine_memory", lambda: NUMBA_MEMORY + 80 * MIB)
    load_modules(monkeypatch)
    assert RunOptions().memory_bytes == 60 * MIB
    assert RunOptions(memory="1GiB").memory_bytes == GIB
    assert RunOptions(memory="1GiB").fix_memory().memory_bytes == 80 * MIB
    assert RunOptions(memory="50MiB").fix_memory().memory_bytes == 50 * MIB


@pytest.mark.parametrize(("what", "needed"), [("counting", NUMBA_MEMORY), ("training", TORCH_MEMORY)])
def test_libraries_are_not_loaded_into_too_little_memory(
    what: str, needed: int, cgroups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_modules(monkeypatch)
    monkeypatch.setattr(resources, "_free_machine_memory", lambda: needed)
    check_libraries(what, needs_torch=what == "training")
    monkeypatch.setattr(resources, "_free_machine_memory", lambda: needed - 1)
    with pytest.raises(MemoryBudgetError, match=rf"^loading the libraries for {what} needs about .* MiB of memory"):
        check_libraries(what, needs_torch=what == "training")
    load_modules(monkeypatch, "numba", "torch")
    check_libraries(what, needs_torch=what == "training")


def test_a_long_text_is_counted_in_more_chunks_where_memory_is_short() -> None:
    """A text of 900 MB within 100 MB: no block of a chunk has as many cells as the matrix."""
    layout = choose_layout(98_304, 4 * 98_304, parts=4)
    survey = Survey(136_000_000, 130_000_000, 2_500_000, 500, 400_000_000)
    plan = make_count_plan(layout, CountConfig(), survey, threads=2, memory=100_000_000)
    assert plan.threads == 2
    assert 136_000_000 / 256 <= plan.chunk_places < 10_000_000
    assert forecast_count(layout, survey, plan)[1] <= 100_000_000
    with pytest.raises(MemoryBudgetError, match=r"needs at least [\d.]+ MiB of memory, got 9\.5 MiB"):
        make_count_plan(layout, CountConfig(), survey, threads=2, memory=10_000_000)


def with_zeros(vectors: swivel.Vectors) -> swivel.Vectors:
    """The same words, the first of which has a vector of zeros."""
    return swivel.Vectors(VectorTable(vectors.vocabulary, np.eye(2, k=-1, dtype=np.float32)))


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda vectors, path: vectors.nearest("a"), "searching"),
        (lambda vectors, path: compare(vectors, vectors), "comparing"),
        (lambda vectors, path: export(vectors, path / "a.parquet"), "writing a table"),
        (lambda vectors, path: export(vectors, path / "a.kv"), "converting to KeyedVectors"),
        (lambda vectors, path: export(with_zeros(vectors), path / "a.vec"), "leaving out vectors of zeros"),
        (lambda vectors, path: swivel.load(path / "a.bin"), r"reading .*a\.bin"),
    ],
)
def test_vectors_that_do_not_fit_in_memory_are_one_line(
    use: Callable[[swivel.Vectors, Path], Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = swivel.Vectors(VectorTable(Vocabulary(["a", "b"]), np.eye(2, dtype=np.float32)))
    export(vectors, tmp_path / "a.bin")
    monkeypatch.setattr("swivel.runtime.resources.free_memory", lambda: 100)
    load_modules(monkeypatch, "numba")
    with pytest.raises(MemoryBudgetError, match=rf"{words} needs about [\d.]+ B of memory, but 100 B are free"):
        use(vectors, tmp_path)


def test_needs_are_held_against_disk_memory_and_address_space(
    cgroups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = ResourceEstimate("counting", 10 * GIB, 5 * GIB, 3 * GIB, "take less text")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=20 * GIB))
    needs.check(tmp_path / "new" / "folder")
    monkeypatch.setattr("swivel.runtime.resources.free_address_space", lambda: 7 * GIB)
    with pytest.raises(MemoryBudgetError, match=r"about 8\.0 GiB of address space, but 7\.0 GiB remain .* less text"):
        needs.check(tmp_path)
    monkeypatch.setattr("swivel.runtime.resources.free_address_space", lambda: None)
    monkeypatch.setattr(resources, "_free_machine_memory", lambda: 3 * GIB)
    with pytest.raises(MemoryBudgetError, match=r"needs about 5\.0 GiB of memory .*, but 3\.0 GiB of memory are free"):
        needs.check(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=GIB))
    with pytest.raises(StorageError, match=r"needs about 10\.0 GiB of disk, but 1\.0 GiB are free"):
        needs.check(tmp_path)


def test_libraries_are_not_loaded_into_too_little_space(monkeypatch: pytest.MonkeyPatch) -> None:
    check_libraries("training", needs_torch=True)
    monkeypatch.setattr("swivel.runtime.resources.address_limit", lambda: GIB)
    check_libraries("counting")
    with pytest.raises(MemoryBudgetError, match=r"training needs at least 1\.4 GiB .* is 1\.0 GiB; raise the limit"):
        check_libraries("training", needs_torch=True)


def test_every_verb_says_first_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("tea milk tea sugar\n" * 50)
    (tmp_path / "counts.tsv").write_text("tea\tmilk\t2\n" * 50)
    heard = Heard()
    swivel.run(
        tmp_path / "text.txt", tmp_path / "run", min_count=1, dim=2, epochs=1, options=RunOptions(progress=heard)
    )
    told = [line for line in heard.lines if "of disk" in line or "on disk" in line]
    assert [line.split(" ")[0] for line in told] == ["reading", "about", "about"]
    assert told[-1].endswith("of disk for training")
    heard = Heard()
    swivel.import_counts(tmp_path / "counts.tsv", tmp_path / "imported", options=RunOptions(progress=heard))
    assert heard.lines[0].endswith("of disk for importing")
    assert " of memory and " in heard.lines[0]


def test_training_without_room_leaves_no_trace(
    planted: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(dim=8, epochs=1, backend="cpu", dtype="float32")
    needs = estimate_needs(planted, config, make_plan(planted, config), 1, tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needs.disk_bytes // 2))
    with pytest.raises(StorageError, match=r"training needs about [\d.]+ KiB of disk"):
        train_matrix(planted, config, folder=tmp_path / "run", threads=1)
    assert not list((tmp_path / "run").iterdir())


def test_need_of_training_grows_with_rows_columns_and_dimensions(planted: Matrix, tmp_path: Path) -> None:
    config = TrainConfig(dim=100, backend="cpu", dtype="float32")
    plan = make_plan(planted, config)
    vectors = 4 * 100 * sum(planted.shape)
    needs = estimate_needs(planted, config, plan, 1, tmp_path)
    assert needs.disk_bytes >= 2 * vectors + vectors  # two checkpoints, and the result
    assert needs.memory_bytes >= vectors


# Sizes that no test can have for real.


def sparse_array(path: Path, dtype: Any, size: int) -> np.ndarray[Any, Any]:
    """A mapped array with nothing in it, which takes no disk."""
    with path.open("wb") as file:
        file.truncate(size * np.dtype(dtype).itemsize)
    return np.memmap(path, dtype, "r+", shape=(size,))


@pytest.mark.parametrize("before", [2**31, 2**32 + 3], ids=["2^31 cells", "2^32 cells"])
def test_cells_past_32_bits_are_read_where_they_are(before: int, tmp_path: Path) -> None:
    positions, counts = (sparse_array(tmp_path / name, np.uint32, before + 3) for name in ("positions", "counts"))
    positions[before:], counts[before:] = [5, 6, 1 << 16], [7, (1 << 32) - 1, 9]
    offsets = np.array([[0, before, before + 3]])
    arrays = CellArrays(offsets, positions, counts, np.array([before + 1]), np.array([1 << 40]))
    stored = MatrixCells(Layout(2, 20, 1, 2, symmetric=False), arrays, 1)
    assert stored.counts_of(before, before + 3).tolist() == [7.0, 2.0**40, 9.0]
    assert arrays.units(before, before + 3).tolist() == [7, 1 << 40, 9]


def test_cells_of_matrices_past_31_bits_keep_their_rows_and_columns() -> None:
    rng = np.random.default_rng(4)
    for size in (1 << 16, 400_000, 10_000_000):
        layout = choose_layout(size, 2 * size, parts=2)
        rows, columns = rng.integers(0, size, 500), rng.integers(0, 2 * size, 500)
        rows[:2], columns[:2] = (0, size - 1), (2 * size - 1, 2 * size - 1)
        keys = layout.keys(rows, columns)
        found = layout.find_cells(*layout.split_keys(keys))
        assert layout.shards <= 1 << 20
        np.testing.assert_array_equal(found, (rows, columns))


def test_blocks_of_sides_past_32_bits_have_their_places() -> None:
    starts = block_starts(2**33 + 1, 4)
    assert starts.dtype == np.int64
    assert starts.tolist() == [0, 2**31 + 1, 2**32 + 1, 3 * 2**31 + 1, 2**33 + 1]
    assert block_order(10, 3).dtype == np.int64


def test_tokens_past_32_bits_are_counted_where_they_are(tmp_path: Path) -> None:
    """A chunk that begins after 2^32 tokens; those before are a hole in a file."""
    first = 2**32 + 5
    ids = sparse_array(tmp_path / "ids", np.uint32, first + 6)
    ids[first - 1 :] = [BREAK, 1, 0, 1, BREAK, 0, 1]
    config = CountConfig(window=2, columns="symmetric")
    layout = make_spec(Vocabulary(["a", "b"], [2, 2]), config).layout()
    counter = ChunkCounter(ids, layout, config, CountPlan(10, 2, 64, 2, 2))
    piece = counter.count_block(counter.make_index(first, first + 6), 0)
    units = dict(zip(piece.positions.tolist(), piece.counts.tolist(), strict=True))
    assert units == {1: 6, 1 << 16: 6, (1 << 16) + 1: 2}  # in halves: a b thrice at distance 1, b b at 2 both ways


def test_counts_past_24_bits_are_summed_exactly(tmp_path: Path) -> None:
    """Adding 1 to 16,777,216 is lost in float32; sums are integers here, and exact in float64 up to 2^53."""
    spec = MatrixSpec(rows=Vocabulary(["a", "b"]), columns=Vocabulary(["x", "y"]))
    with MatrixBuilder(tmp_path / "matrix", spec, memory_bytes=41_000) as builder:
        builder.add([0, 1], [0, 1], [1 << 24, (1 << 53) - 1 - (1 << 25)])
        for _ in range(5):
            builder.add(np.zeros(1000, int), np.zeros(1000, int), np.ones(1000, int))
        matrix = builder.finish()
    assert matrix.count("a", "x") == (1 << 24) + 5000
    assert matrix.row_sums.tolist() == [(1 << 24) + 5000, (1 << 53) - 1 - (1 << 25)]
    assert matrix.total_units == (1 << 53) - 1 - (1 << 24) + 5000
    assert matrix.total == matrix.total_units


def test_runs_are_read_shard_by_shard_while_they_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("swivel.counts.shards.read_ahead", lambda array, first, last: asked.append(last - first))
    spec = MatrixSpec(rows=Vocabulary(["a", "b"]), columns=Vocabulary(["x", "y"]))
    with MatrixBuilder(tmp_path / "matrix", spec, memory_bytes=41_000) as builder:
        for _ in range(3):
            builder.add(np.zeros(1000, int), np.zeros(1000, int), np.ones(1000, int))
        builder.finish()
    assert sum(asked) == 2 * 3  # positions and counts of one cell in each of three runs


def test_imported_counts_past_24_bits_are_summed_exactly() -> None:
    triples = [("a", "x", 16_777_216), *[("a", "x", 1)] * 3, ("b", "x", 1)]
    matrix = swivel.import_counts(triples)
    assert matrix.count("a", "x") == 16_777_219
    assert matrix.column_sums.tolist() == [16_777_220]
