"""Data larger than the device: streamed cells and swapped parameters give the same bits as resident ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from swivel.errors import TrainingError
from swivel.training.backends import Step
from swivel.training.schedule import block_starts, group_starts, rounds_in_groups, rounds_without_conflict

pytest.importorskip("triton")
from streaming_runs import (
    DEVICE,
    DIM,
    PlainLauncher,
    bits,
    each_kind,
    hand_over,
    make_backend,
    make_matrix,
    make_needs,
    make_sides,
    make_starts,
    run_epochs,
    run_resident,
    with_plain_steps,
)
from swivel.training.backends.triton import backend as triton_backend
from swivel.training.backends.triton import cuda_streams, device_cells, parameter_swap
from swivel.training.backends.triton.device_cells import DeviceCells, plan_copies
from swivel.training.backends.triton.slot_layout import KernelTile, SlotLayout

UNEVEN = 100  # bytes: the largest block of such a small matrix has a few entries more than estimated


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the kernels, which are slow in the interpreter, by simple steps: only the data movement is tested."""
    if DEVICE == "cpu":
        monkeypatch.setattr(triton_backend, "StepLauncher", PlainLauncher)


def cells_bytes(kind: str) -> int:
    """Return the bytes of the entries of a matrix on the device."""
    backend = make_backend()
    hand_over(backend, kind)
    assert backend._feed is not None
    return len(backend._feed.cells.counts) * backend._feed.cells.entry_bytes


@with_plain_steps
@each_kind
def test_streamed_cells_give_the_same_bits(kind: str) -> None:
    needs = make_needs(kind)
    max_blocks = needs.max_blocks(None)
    slots = sum(side.slots for side in needs.banks(None, (1, 1)))
    resident = needs.parameters(slots) + needs.work(max_blocks)
    backend = make_backend(resident + cells_bytes(kind) - 1)
    hand_over(backend, kind)

    assert backend.is_streaming
    assert not backend.is_swapping
    assert "cells streamed from host memory" in backend.describe()
    groups = make_matrix(kind)[1]
    assert run_epochs(backend, kind, groups) == run_resident(kind, groups)


@with_plain_steps
@each_kind
@pytest.mark.parametrize("banks", [1, 2], ids=["one group at a time", "one ahead"])
@pytest.mark.parametrize("groups", [(2, 2), (1, 1), (1, 9), (9, 1)], ids=str)
def test_swapped_parameters_give_the_same_bits(kind: str, banks: int, groups: tuple[int, int]) -> None:
    count = make_matrix(kind)[1]
    groups = min(groups[0], count[0]), min(groups[1], count[1])
    needs = make_needs(kind)
    memory = needs.min_bytes(groups, (banks, banks))
    backend = make_backend(memory + UNEVEN, groups)
    hand_over(backend, kind)

    assert isinstance(backend._store, parameter_swap.ParameterStore)
    assert [side.banks for side in backend._store.banks] == [side.banks for side in needs.banks(groups, (banks,) * 2)]
    assert ("parameters swapped between device and host memory" in backend.describe()) is backend.is_swapping
    assert run_epochs(backend, kind, groups) == run_resident(kind, groups)


def test_kernels_give_the_same_bits_with_swapped_parameters() -> None:
    kind, groups = "tiny", (1, 1)
    needs = make_needs(kind)
    runs = []
    for memory in (None, needs.min_bytes(groups, (1, 1))):
        backend = make_backend(memory, groups)
        hand_over(backend, kind)
        assert backend.is_swapping is (memory is not None)
        runs.append(run_epochs(backend, kind, groups, epochs=1))
    assert runs[0] == runs[1]


@with_plain_steps
@each_kind
@pytest.mark.parametrize("array", ["vectors", "state"])
def test_a_value_that_is_not_finite_is_detected_after_its_block_was_swapped_out(kind: str, array: str) -> None:
    groups = (1, 1)
    needs = make_needs(kind)
    memory = needs.min_bytes(groups, (1, 1))
    backend = make_backend(memory + UNEVEN, groups)
    rows, columns = make_sides(kind)
    getattr(rows, array).flat[0] = np.inf

    backend.hold(rows, columns, make_starts(kind))
    backend.take(make_matrix(kind)[0])  # type: ignore[arg-type]
    assert backend.is_swapping
    assert backend.is_finite(), "no block is on the device yet"
    run_epochs(backend, kind, groups, epochs=1)
    assert not backend.is_finite()


@with_plain_steps
@each_kind
def test_nothing_is_swapped_if_all_groups_fit(kind: str) -> None:
    backend = make_backend(groups=(2, 2))
    hand_over(backend, kind)
    assert not backend.is_swapping
    assert run_epochs(backend, kind, (2, 2)) == run_resident(kind, (2, 2))


@with_plain_steps
def test_rounds_that_were_not_announced_give_the_same_bits() -> None:
    """An order across groups is slow, but correct."""
    kind, groups = "symmetric", (2, 2)
    count = make_matrix(kind)[1]
    needs = make_needs(kind)
    small = make_backend(needs.min_bytes(groups, (1, 1)) + UNEVEN, groups)

    results = []
    for backend in (small, make_backend(groups=groups)):
        hand_over(backend, kind)
        for round in rounds_without_conflict(*count, (2,)):
            backend.run([Step(block, 0.1, block) for block in round], lambda: False)
        results.append(bits(backend))
    assert results[0] == results[1]


class LateQueue(cuda_streams.CopyQueue):
    """Delays every copy until its mark, or that of a later copy in the same queue, is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.done = 0

    def submit(self, job: Callable[[], None], after: Iterable[Any]) -> Any:
        waited = [mark for mark in after if mark is not None]

        def run() -> None:
            for mark in waited:
                mark()
            job()

        self.jobs.append(run)
        number = len(self.jobs)

        def mark() -> None:
            while self.done < number:
                self.done += 1
                self.jobs[self.done - 1]()

        return mark


def wait_for_late_copy(mark: Callable[[], None] | None) -> None:
    if mark is not None:
        mark()
    if DEVICE == "cuda":
        torch.cuda.synchronize()  # the late copy was only submitted


@with_plain_steps
def test_every_use_of_copied_data_waits_for_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, groups = "rectangular", (2, 1)
    expected = run_resident(kind, groups)
    for module in (parameter_swap, device_cells):
        monkeypatch.setattr(module, "CopyQueue", LateQueue)
        monkeypatch.setattr(module, "wait_on_device", lambda device, mark: mark() if mark else None)
        monkeypatch.setattr(module, "record_mark", lambda device: None)
    monkeypatch.setattr(parameter_swap, "wait_on_host", wait_for_late_copy)

    needs = make_needs(kind)
    for banks in ((1, 1), (2, 2)):
        memory = needs.min_bytes(groups, banks) + UNEVEN
        backend = make_backend(memory, groups)
        hand_over(backend, kind)
        assert backend.is_swapping
        assert run_epochs(backend, kind, groups) == expected


class NumberedMark:
    """A mark that knows when it was made: after how many events. On a GPU it has a CUDA event."""

    def __init__(self, number: int, event: Any) -> None:
        self.number = number
        self.event = event

    def wait(self, stream: Any) -> None:
        """Make a stream wait for the event; `Stream.wait_event` calls this."""
        self.event.wait(stream)

    def synchronize(self) -> None:
        self.event.synchronize()


@with_plain_steps
def test_a_group_leaves_the_device_after_its_values_were_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, groups = "symmetric", (1, 1)
    events: list[int | None] = []  # the first row of a bank that was checked; None: a mark
    saves = []
    find_largest, save = parameter_swap.find_largest, parameter_swap.ParameterStore._save

    def note_check(parameters: Any, rows: slice = slice(None)) -> Any:
        events.append(rows.start)
        return find_largest(parameters, rows)

    def make_mark(device: torch.device) -> NumberedMark:
        events.append(None)
        return NumberedMark(len(events), cuda_streams.record_mark(device))

    def note_save(self: Any, side: int, blocks: range, number: int, after: Any) -> Any:
        first = self._bank_rows(side, number).start
        last_check = max((n for n, event in enumerate(events, 1) if event == first), default=0)
        waited = [mark.number for mark in after if isinstance(mark, NumberedMark)]
        saves.append((last_check, max(waited, default=None)))
        return save(self, side, blocks, number, after)

    monkeypatch.setattr(parameter_swap, "find_largest", note_check)
    monkeypatch.setattr(parameter_swap, "record_mark", make_mark)
    monkeypatch.setattr(parameter_swap.ParameterStore, "_save", note_save)
    if DEVICE == "cpu":  # A mark is None there, and nothing waits for it.
        monkeypatch.setattr(parameter_swap, "wait_on_host", lambda mark: None)
        monkeypatch.setattr(parameter_swap, "wait_on_device", lambda device, mark: None)
    backend = make_backend(make_needs(kind).min_bytes(groups, (2, 2)) + UNEVEN, groups)
    hand_over(backend, kind)
    run_epochs(backend, kind, groups)
    # The last saves are those of `fetch`, of groups that stay.
    leaving = [(checked, waited) for checked, waited in saves if checked and waited is not None]
    assert len(leaving) > 4
    assert all(waited > checked for checked, waited in leaving)


def test_batches_are_prepared_once_and_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of different sizes share buffers, which grow: batches must not keep the old ones."""
    kind = "symmetric"
    sizes = np.diff(make_starts(kind)[0])
    alike = np.flatnonzero(sizes == sizes[-1])[-3:].tolist()
    small, large = [(alike[0], alike[0])], [(block, block) for block in alike]
    assert len(large) > 1
    runs: dict[bool, list[list[bytes]]] = {}
    for is_kept in (True, False):
        backend = make_backend()
        hand_over(backend, kind)
        runs[is_kept] = []
        references: list[weakref.ref[torch.Tensor]] = []
        for number, blocks in enumerate((small, large, small, large)):
            if not is_kept:
                backend._prepared = {}
            backend.run([Step(block, 0.1, (number, *block)) for block in blocks], lambda: False)()
            runs[is_kept].append(bits(backend))
            if number == 0:
                references = [weakref.ref(backend._launcher._buffers[name]) for name in ("gradient", "gradients")]
        assert len(backend._prepared) == (2 if is_kept else 1)
        assert [reference() for reference in references] == [None, None]
    assert runs[True] == runs[False]


def test_tables_of_batches_stay_within_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "tiny"
    monkeypatch.setattr("swivel.training.backends.triton.memory_plan.MAX_PREPARED", 1)
    backend = make_backend()
    hand_over(backend, kind)
    for blocks in ([(0, 0), (1, 1)], [(0, 1), (1, 0)], [(0, 0), (1, 1)]):
        backend.run([Step(block, 0.1, block) for block in blocks], lambda: False)()
        assert sum(map(len, backend._prepared.values())) <= 1


@with_plain_steps
def test_with_two_banks_the_next_group_is_prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, groups = "symmetric", (1, 1)
    needs = make_needs(kind)
    memory = needs.min_bytes(groups, (2, 2)) + UNEVEN
    backend = make_backend(memory, groups)
    hand_over(backend, kind)
    late: list[tuple[int, int]] = []
    load = parameter_swap.ParameterStore._load
    ensure_loaded = parameter_swap.ParameterStore.ensure_loaded
    is_waiting = False

    def note(self: Any, side: int, group: int, number: int) -> None:
        if is_waiting:
            late.append((side, group))
        load(self, side, group, number)

    def watched(self: Any, pair: tuple[int, int]) -> None:
        nonlocal is_waiting
        is_waiting = True
        ensure_loaded(self, pair)
        is_waiting = False

    monkeypatch.setattr(parameter_swap.ParameterStore, "_load", note)
    monkeypatch.setattr(parameter_swap.ParameterStore, "ensure_loaded", watched)
    run_epochs(backend, kind, groups)
    assert len(late) == 2  # those of the first pair


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the bytes of all live tensors, except those in host memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live, self.peak = 0, 0
        self._seen: set[int] = set()

    def ignore(self, tensor: torch.Tensor) -> torch.Tensor:
        self._seen.add(tensor.untyped_storage()._cdata)
        return tensor

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage(), given)
        return result

    def _note(self, storage: Any, given: set[int]) -> None:
        key = storage._cdata
        if key in self._seen or key in given:
            return
        self._seen.add(key)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


@pytest.mark.skipif(DEVICE != "cpu", reason="counts tensors on the CPU")
@pytest.mark.parametrize("groups", [None, (1, 1)], ids=["all", "in groups"])
def test_training_stays_within_the_memory_limit(
    groups: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = make_needs("tiny")
    memory = needs.min_bytes(groups, (1, 1)) + UNEVEN
    with Watch() as watch:
        empty = cuda_streams.HostMemory.empty
        monkeypatch.setattr(cuda_streams.HostMemory, "empty", lambda self, *a: watch.ignore(empty(self, *a)))
        backend = make_backend(memory, groups)
        hand_over(backend, "tiny")
        assert backend.is_swapping is (groups is not None)
        backend.run([Step((n, n), 0.1, (n,)) for n in (0, 1)], lambda: False)
        backend.fetch()
    assert 0.3 * memory < watch.peak <= memory


@pytest.mark.skipif(DEVICE != "cpu", reason="counts tensors on the CPU")
@with_plain_steps
@each_kind
@pytest.mark.parametrize("groups", [None, (2, 1)], ids=["all", "in groups"])
def test_laying_out_cells_stays_within_the_memory_limit(
    kind: str, groups: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = make_needs(kind)
    memory = needs.min_bytes(groups, (1, 1)) + UNEVEN
    with Watch() as watch:
        empty = cuda_streams.HostMemory.empty
        monkeypatch.setattr(cuda_streams.HostMemory, "empty", lambda self, *a: watch.ignore(empty(self, *a)))
        backend = make_backend(memory, groups)
        hand_over(backend, kind)
    assert 0.3 * memory < watch.peak <= memory
    backend.close()
    assert watch.live == 0


@pytest.mark.parametrize("is_symmetric", [True, False], ids=["symmetric", "rectangular"])
@pytest.mark.parametrize("groups", [(12, 12), (4, 4), (3, 5), (5, 2)], ids=str)
def test_the_cells_of_a_round_are_copied_in_few_pieces(groups: tuple[int, int], is_symmetric: bool) -> None:
    blocks = 12, 12 if is_symmetric else 10
    starts = [np.asarray(group_starts(count, group)) for count, group in zip(blocks, groups, strict=True)]
    sides = block_starts(120, blocks[0]), block_starts(100, blocks[1])
    cells = DeviceCells(
        SlotLayout(sides, DIM, KernelTile()),
        torch.device("cpu"),
        groups=(starts[0].tolist(), starts[1].tolist()),
    )
    lengths = np.random.default_rng(1).integers(1, 9, blocks)
    cells.symmetric = is_symmetric
    cells._begins = np.concatenate([[0], np.cumsum(np.triu(lengths) if is_symmetric else lengths)])
    cells._kept_at = cells._order_for_rounds()

    for round in rounds_in_groups(*blocks, *groups, (1, 1)):
        shards = [cells.find(block) for block in round]
        _, copies = plan_copies([(shard.begin, shard.end) for shard in shards])
        # A mirrored block is read from the other side of the diagonal; the groups of a pair may differ in size.
        assert len(copies) <= (2 if groups[0] == groups[1] or not is_symmetric else 4)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_planned_copies_cover_every_entry(shards: list[tuple[int, int]]) -> None:
    source = np.arange(60)
    begins, copies = plan_copies([(begin, begin + size) for begin, size in shards])
    buffer = np.full(sum(size for _, size in shards), -1)
    for begin, end, target in copies:
        buffer[target : target + end - begin] = source[begin:end]
    for (begin, size), target in zip(shards, begins, strict=True):
        np.testing.assert_array_equal(buffer[target : target + size], source[begin : begin + size])


@pytest.mark.parametrize(("resident", "temporary"), [(0, 10**9), (10**9, 0)], ids=["resident", "temporary"])
def test_blocks_too_large_for_the_device_are_refused(resident: int, temporary: int) -> None:
    cells = DeviceCells(
        SlotLayout(make_starts("symmetric"), DIM, KernelTile()),
        torch.device(DEVICE),
        resident_bytes=resident,
        temporary_bytes=temporary,
    )
    with pytest.raises(TrainingError, match=r"the largest block has \d+ observed cells, for .*; raise device_memory"):
        cells.take(make_matrix("symmetric")[0])


class Runtime:
    """Replaces CUDA: remembers the addresses of locked memory."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.locked: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802  (CUDA's name)
        self.locked.append(address)
        return self.error

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802  (CUDA's name)
        self.locked.remove(address)


def test_host_memory_that_cannot_be_locked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_streams, "_runtime", lambda: Runtime(error=2))
    with pytest.raises(TrainingError, match=r"64.0 KiB of host memory cannot be locked .*ulimit"):
        cuda_streams.HostMemory(torch.device("cuda")).empty((1 << 14,), np.float32)


def test_host_memory_is_unlocked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    monkeypatch.setattr(cuda_streams, "_runtime", lambda: runtime)
    memory = cuda_streams.HostMemory(torch.device("cuda"))
    tensors = [memory.empty((size,), np.float32) for size in (0, 3, 5)]
    assert [len(tensor) for tensor in tensors] == [0, 3, 5]
    assert len(runtime.locked) == 2
    memory.close()
    memory.close()
    assert not runtime.locked
