"""Counting by sorting on a device: the files equal those of the CPU, byte for byte, for any memory budget."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import swivel
from count_strategies import configs, corpora
from device_counts import (
    WORDS,
    count_on_cores,
    count_on_device,
    digest,
    make_corpus,
    make_counter,
    make_options,
    make_vocabulary,
)
from stored import folder_of
from swivel.config import CountConfig
from swivel.corpus.vocabulary import BREAK, GAP
from swivel.counts import block_layout as matrix_layout
from swivel.counts.block_layout import Layout
from swivel.counts.cooccurrence import choose_device, count_tokens, prepare_device
from swivel.counts.cooccurrence import corpus_count as count
from swivel.counts.cooccurrence.corpus_count import window_weights
from swivel.counts.cooccurrence.gpu import counter as device
from swivel.counts.cooccurrence.gpu.counter import estimate_pairs, make_rules, share_memory, split_shards, warm_up
from swivel.errors import ConfigError, CountsError, MemoryBudgetError
from swivel.runtime.progress import Progress, Task


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.storage.files.flush", lambda path: None)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_layout, "BLOCK_SIZE", 3)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=corpora(WORDS, 1), config=configs(), memory=st.integers(22_000, 60_000), piece_cells=st.integers(1, 30))
def test_files_equal_those_of_the_cpu(
    small_blocks: None,
    tmp_path_factory: pytest.TempPathFactory,
    ids: list[int],
    config: CountConfig,
    memory: int,
    piece_cells: int,
) -> None:
    folder = tmp_path_factory.mktemp("counts")
    options = {"device_memory": memory, "memory": 64 * piece_cells}

    try:
        expected = count_on_cores(folder / "cores", ids, config)
    except CountsError as error:
        with pytest.raises(CountsError, match=str(error)):
            count_on_device(folder / "device", ids, config, **options)
        return

    matrix = count_on_device(folder / "device", ids, config, **options)
    assert digest(folder_of(matrix)) == digest(folder_of(expected))
    assert matrix.fingerprint == expected.fingerprint


@pytest.mark.parametrize("columns", ["symmetric", "directional-bands"])
def test_files_do_not_depend_on_the_memory_of_the_device(tmp_path: Path, small_blocks: None, columns: str) -> None:
    ids = make_corpus(1, 1_000, words=9)
    config = CountConfig(window=2, columns=columns)
    expected = digest(folder_of(count_on_cores(tmp_path / "cores", ids, config, words=9)))
    runs = []

    for memory in (12_000, 40_000, 1 << 28):
        runs.append(len(make_counter(ids, config, words=9, device_memory=memory).chunks()))
        path = tmp_path / f"{memory}"
        assert digest(folder_of(count_on_device(path, ids, config, words=9, device_memory=memory))) == expected

    assert runs[0] == 2 and runs[-1] == 1


def test_groups_with_more_pairs_than_estimated_are_split(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make_corpus(2, 2_000, words=20)
    config = CountConfig(window=3)
    expected = digest(folder_of(count_on_cores(tmp_path / "cores", ids, config, words=20)))
    estimates = estimate_pairs(make_counter(ids, config, words=20).rules, np.ones(8, np.int64), places=ids.size)
    monkeypatch.setattr(device, "estimate_pairs", lambda *args, **named: estimates / 1_000)
    monkeypatch.setattr(device, "choose_capacity", lambda *args: 50)
    sizes: list[int] = []
    original = device.sum_pairs

    def sum_pairs(keys: torch.Tensor, counts: torch.Tensor, rules: device.PairRules) -> object:
        sizes.append(int(counts.sum()))
        return original(keys, counts, rules)

    monkeypatch.setattr(device, "sum_pairs", sum_pairs)
    assert digest(folder_of(count_on_device(tmp_path / "device", ids, config, words=20))) == expected
    assert len(sizes) > 100 and max(sizes) <= 50


@pytest.mark.parametrize("memory", [1 << 28, 300_000])
def test_counts_past_32_bits_are_exact(tmp_path: Path, small_blocks: None, memory: int) -> None:
    config = CountConfig(window=20)
    length = 2_000
    matrix = count_on_device(tmp_path / "m", [0] * length, config, words=2, device_memory=memory)
    weights, _ = window_weights(config)
    expected = 2 * sum(int(weight) * (length - distance) for distance, weight in enumerate(weights, 1))
    assert expected > 1 << 32
    assert matrix.units(0, 0)[1].tolist() == [expected]
    assert digest(folder_of(matrix)) == digest(
        folder_of(count_on_cores(tmp_path / "cores", [0] * length, config, words=2))
    )


def test_counts_between_31_and_32_bits_and_rows_above_32767_keep_their_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_layout, "BLOCK_SIZE", 1 << 16)
    words = 1 << 16
    config = CountConfig(window=1, weight="uniform")
    rng = np.random.default_rng(4)
    ids = rng.integers(32_000, words, 2_000).astype(np.uint32)
    matrix = count_on_device(tmp_path / "device", ids, config, words=words)
    assert digest(folder_of(matrix)) == digest(folder_of(count_on_cores(tmp_path / "cores", ids, config, words=words)))
    ids = np.zeros(430, np.uint32)
    matrix = count_on_device(tmp_path / "large", ids, CountConfig(window=20))
    assert 1 << 31 < matrix.units(0, 0)[1].item() < 1 << 32
    assert digest(folder_of(matrix)) == digest(folder_of(count_on_cores(tmp_path / "b", ids, CountConfig(window=20))))


@pytest.mark.parametrize("ids", [[], [0], [BREAK, GAP], [0, BREAK, 1]])
def test_a_corpus_without_pairs_is_refused(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(CountsError, match="there are no counts"):
        count_on_device(tmp_path / "m", ids, CountConfig())


def test_a_job_on_a_device_reports_progress_and_writes_the_same_files(tmp_path: Path) -> None:
    ids = make_corpus(3, 50_000, words=2_100)
    config = CountConfig(window=3, device="cpu:0", device_memory="80MiB")
    messages: list[str] = []
    advances: list[float] = []

    class DeviceListener(Progress, Task):
        def begin(self, job: str, total: float | None, unit: str) -> Task:
            assert (job, total, unit) == ("counting", int((ids < GAP).sum()), "tokens")
            return self

        def advance(self, amount: float = 1, note: str = "") -> None:
            assert amount >= 0
            advances.append(amount)

        def end(self, task: Task) -> None:
            assert sum(advances) == int((ids < GAP).sum())

        def message(self, text: str) -> None:
            messages.append(text)

    vocabulary = make_vocabulary(2_100)
    options = make_options(threads=2, memory=1 << 20, progress=DeviceListener())
    matrix = count_tokens(ids, vocabulary, config, tmp_path / "a", options)
    config = CountConfig(window=3)
    assert digest(folder_of(matrix)) == digest(folder_of(count_on_cores(tmp_path / "b", ids, config, words=2_100)))
    assert (
        messages[0].startswith("about ") and messages[1] == "counting on cpu:0 with torch, using 80.0 MiB of its memory"
    )
    assert len(advances) > 3


def test_wrong_ids_and_no_ids_are_refused_on_a_device_too(tmp_path: Path) -> None:
    config = CountConfig(device="cpu:0")
    with pytest.raises(CountsError, match="there are no counts"):
        count_tokens(np.empty(0, np.uint32), make_vocabulary(), config, tmp_path / "m", make_options())
    with pytest.raises(CountsError, match="id 7 at place 3 of the corpus: the vocabulary has 7 words"):
        count_tokens(np.array([0, 1, 2, 7], np.uint32), make_vocabulary(), config, tmp_path / "m", make_options())


@pytest.mark.parametrize("name", ["no-such-device", "cuda:99", "meta:x"])
def test_a_device_that_cannot_be_used_is_refused(tmp_path: Path, name: str) -> None:
    config = CountConfig(device=name)
    with pytest.raises(ConfigError, match=f"device '{name}' cannot be used for counting: .*; choose another, or cpu"):
        count_tokens(np.zeros(9, np.uint32), make_vocabulary(), config, tmp_path / "m", make_options())


def test_too_little_memory_of_the_device_is_refused_with_the_bytes_needed() -> None:
    rules = make_rules(Layout(4, 4, 2, 2, True), CountConfig(), longest=100)
    with pytest.raises(MemoryBudgetError, match=r"needs at least 10\.\d KiB of its memory, got 9\.8 KiB"):
        share_memory(10_000, 100, rules)
    share = share_memory(11_300, 100, rules)
    assert share.keys >= 2 * rules.reach and share.chunk_places >= 1


def test_a_corpus_of_billions_of_places_fits_on_a_large_gpu_at_once() -> None:
    rules = make_rules(Layout(397_312, 397_312, 388, 388, True), CountConfig(), longest=256)
    assert share_memory(127 * 10**9, 3_300_000_000, rules).chunk_places == 3_300_000_000


def test_a_group_has_no_more_shards_than_fit_in_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CountConfig(left=5_000, right=0, weight="linear")
    rules = make_rules(Layout(1 << 26, 1 << 26, 1 << 10, 1 << 10, False), config, longest=1 << 20)
    assert (rules.weight_bits, rules.max_shards) == (13, 1 << (62 - 32 - 13))
    monkeypatch.setattr(matrix_layout, "BLOCK_SIZE", 3)
    monkeypatch.setattr(device, "_KEY_BITS", 7)  # 4 bits for a position and 2 for a weight leave 1 for the shard
    ids = make_corpus(8, 500)
    config = CountConfig(window=3)
    assert make_counter(ids, config).rules.max_shards == 2
    matrix = count_on_device(tmp_path / "device", ids, config)
    assert digest(folder_of(matrix)) == digest(folder_of(count_on_cores(tmp_path / "cores", ids, config)))


def test_free_memory_is_the_default_budget() -> None:
    counter = make_counter([0, 1], CountConfig(), device_memory=None)
    assert 1 << 20 < counter.memory_bytes < 1 << 50


def test_ranges_of_shards_cover_all_shards_in_order() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        estimates = rng.random(rng.integers(1, 40)) * rng.integers(0, 2, 1)
        ranges = list(split_shards(estimates, max_pairs=int(rng.integers(1, 9)), max_shards=int(rng.integers(1, 9))))
        assert [shard for shards in ranges for shard in shards] == list(range(estimates.size))

    assert list(split_shards(np.array([5.0, 1, 1, 5]), max_pairs=8, max_shards=9)) == [range(2), range(2, 4)]


def test_the_estimate_of_pairs_is_close(small_blocks: None) -> None:
    ids = make_corpus(6, 20_000, words=30)
    counter = make_counter(ids, CountConfig(window=5, columns="directional"), words=30)
    rules = counter.rules
    slots = device.upload_slots(counter, 0, ids.size)
    write = device.make_writer("torch", slots, rules, tile=1 << 14)
    tallies = device._tally_blocks(slots, rules)
    keys = torch.empty(10**6, dtype=torch.int64)
    truth = [write(keys, range(shard, shard + 1), range(ids.size)) for shard in range(counter.layout.shards)]
    estimates = estimate_pairs(rules, tallies, places=ids.size)
    assert estimates.sum() == pytest.approx(sum(truth), rel=0.2)
    assert estimates == pytest.approx(np.array(truth), rel=0.5)


def test_a_small_corpus_is_counted_on_the_cpu_unless_a_device_is_given() -> None:
    assert choose_device("auto", 100) == "cpu"
    assert choose_device("cuda:1", 100) == "cuda:1"


def test_a_device_is_initialized_only_if_there_may_be_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name))
    monkeypatch.setattr(count, "_WAKING", {})
    monkeypatch.setattr("swivel.runtime.resources._CUDA_DEVICES", (str(tmp_path / "nothing"),))
    prepare_device(CountConfig(device="auto"))
    assert started == []
    monkeypatch.setattr("swivel.runtime.resources._CUDA_DEVICES", (str(tmp_path),))
    prepare_device(CountConfig(device="cpu"))
    assert started == []
    prepare_device(CountConfig(device="auto"))
    prepare_device(CountConfig(device="auto"))  # once for the same settings
    prepare_device(CountConfig(device="cuda"))
    assert started == ["swivel-wake", "swivel-wake"]


def test_only_a_device_that_was_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(count, "_WAKING", {})
    monkeypatch.setattr("swivel.runtime.resources._CUDA_DEVICES", (str(tmp_path),))
    monkeypatch.setattr(threading.Thread, "start", lambda thread: thread.run())
    prepare_device(CountConfig(device="auto"))()
    with pytest.raises(ConfigError, match="device 'nonsense' cannot be used for counting"):
        prepare_device(CountConfig(device="nonsense"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device can be used")
def test_a_broken_device_is_refused_before_all_the_text_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(count, "_WAKING", {})
    monkeypatch.setattr("swivel.runtime.resources._CUDA_DEVICES", (str(tmp_path),))
    monkeypatch.setattr(threading.Thread, "start", start_at_once(threading.Thread.start))
    numbers = iter(range(1000))
    with pytest.raises(ConfigError, match="device 'cuda' cannot be used for counting"):
        swivel.count(("tea milk " * 10_000 for _ in numbers), device="cuda", threads=1)
    assert next(numbers) < 200


def test_a_device_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    errors: list[ConfigError | None] = [ConfigError("busy"), None]

    def open_next(name: str) -> None:
        error = errors.pop(0)
        if error is not None:
            raise error

    monkeypatch.setattr(count, "_WAKING", {})
    monkeypatch.setattr("swivel.runtime.resources._CUDA_DEVICES", (str(tmp_path),))
    monkeypatch.setattr(threading.Thread, "start", start_at_once(threading.Thread.start))
    monkeypatch.setattr("swivel.counts.cooccurrence.gpu.counter.open_device", open_next)
    monkeypatch.setattr("swivel.counts.cooccurrence.gpu.counter.warm_up", lambda device, config: None)
    config = CountConfig(device="cuda")
    with pytest.raises(ConfigError, match="busy"):
        prepare_device(config)()
    prepare_device(config)()
    prepare_device(config)()
    assert errors == []


@pytest.mark.parametrize("columns", ["symmetric", "directional", "bands"])
@pytest.mark.parametrize("window", [2, 10, 1_000, 10**9])
def test_warming_up_counts_few_pairs(columns: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[int] = []
    write_tiles = device.write_tiles

    def record(*arguments: Any) -> int:
        pairs.append(write_tiles(*arguments))
        return pairs[-1]

    monkeypatch.setattr(device, "write_tiles", record)
    warm_up("cpu", CountConfig(window=window, columns=columns))
    assert bool(sum(pairs)) == (window <= 1_000)
    assert sum(pairs) <= 8


def start_at_once(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Return a `Thread.start` that waits until the thread that initializes the device has ended."""

    def start_and_wait(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "swivel-wake":
            thread.join()

    return start_and_wait
