"""Rounds of steps: threads, stopping, and the choice of backend and dtype."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.counts import BlockCells
from swivel.errors import ConfigError, TrainingError
from swivel.runtime import parallel
from swivel.training import training_plan as planning
from swivel.training.backends import (
    Backend,
    BackendSettings,
    ParameterBlock,
    Step,
    ZeroSampling,
)
from swivel.training.objective import Loss
from swivel.training.training_plan import BACKENDS, choose_backend, choose_dtype, create_backend
from tolerances import assert_equal_but_for_rounding

SAMPLED = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling(common=0.1, middle=0.4, share=0.05))
BLOCKS, SIZE, DIM = 7, 60, 16


def make_cells(number: int) -> BlockCells:
    rng = np.random.default_rng((9, number))
    places = np.flatnonzero(rng.random(SIZE * SIZE) < 0.3)
    positions = (places // SIZE << 16 | places % SIZE).astype(np.uint32)
    return BlockCells(positions, rng.lognormal(0, 1, len(positions)).astype(np.float32), number % 2 == 1)


def make_round(backend: Backend) -> list[Step]:
    """Return the steps of a diagonal of blocks, whose parameters the backend gets."""
    rng = np.random.default_rng(8)
    shape = BLOCKS * SIZE, DIM
    sides = [
        ParameterBlock(
            rng.normal(0, 0.3, shape).astype(np.float32),
            np.full(shape[0], 1e-6, np.float32),
            rng.normal(0, 1, shape[0]).astype(np.float32),
        )
        for _ in range(2)
    ]
    starts = [n * SIZE for n in range(BLOCKS + 1)]
    backend.hold(sides[0], sides[1], (starts, starts))
    backend.take(SimpleNamespace(cells=lambda i, _: make_cells(i)))  # type: ignore[arg-type]
    return [Step((n, n), 0.1, (1, n)) for n in range(BLOCKS)]


def arrays_of(backend: Backend) -> list[NDArray[Any]]:
    """Return the parameters of each block: row vectors and accumulators, column vectors and accumulators."""
    arrays = [array for side in backend.fetch() for array in (side.vectors, side.state)]
    return [array[n * SIZE : (n + 1) * SIZE].copy() for n in range(BLOCKS) for array in arrays]


def bits(arrays: list[NDArray[Any]]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def state(backend: Backend) -> list[bytes]:
    return bits(arrays_of(backend))


def run_rounds(name: str, threads: int, rounds: int) -> tuple[list[bytes], list[Loss]]:
    arrays, losses = run_rounds_to_arrays(name, threads, rounds)
    return bits(arrays), losses


def run_rounds_to_arrays(name: str, threads: int, rounds: int) -> tuple[list[NDArray[Any]], list[Loss]]:
    backend = create_backend(name, replace(SAMPLED, threads=threads))
    steps, losses = make_round(backend), []
    for _ in range(rounds):
        losses += backend.run(steps, lambda: False)()
    arrays = arrays_of(backend)
    backend.close()
    return arrays, losses


def check_other_threads(name: str, found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> None:
    """Compare results of different numbers of threads: bit by bit, except for torch, whose threads share a product."""
    if name != "torch":
        assert bits(found) == bits(expected)
        return
    for array, truth in zip(found, expected, strict=True):
        assert_equal_but_for_rounding(array, truth, terms=SIZE)


def losses_of(losses: list[Loss]) -> NDArray[np.float64]:
    return np.array([astuple(loss) for loss in losses]).reshape(-1, 4)


@pytest.mark.parametrize(
    "machine, has_one, lacks", [("x86_64", True, False), ("AMD64", False, True), ("arm64", False, False)]
)
def test_a_cpu_lacks_bfloat16_only_if_torch_says_so(
    machine: str, has_one: bool, lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_one)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert planning.lacks_bfloat16() == lacks


def test_threads_do_not_change_a_bit() -> None:
    one, three = run_rounds("cpu", 1, 3), run_rounds("cpu", 3, 3)
    assert one == three


def test_threads_of_torch_change_only_the_rounding() -> None:
    (one, losses), (three, other_losses) = (run_rounds_to_arrays("torch", threads, 1) for threads in (1, 3))
    check_other_threads("torch", three, one)
    np.testing.assert_allclose(losses_of(other_losses), losses_of(losses), rtol=SIZE * float(np.finfo(np.float32).eps))


@pytest.mark.parametrize("name", ["cpu", "torch", "reference"])
def test_repeated_steps_give_the_same_bits(name: str) -> None:
    assert run_rounds(name, 2, 2) == run_rounds(name, 2, 2)


@pytest.mark.parametrize("name", ["cpu", "torch", "reference"])
def test_blocks_copied_to_another_backend_train_to_the_same_bits(name: str) -> None:
    """Copy all blocks to a second backend after one round; it runs the next round."""
    first, second = (create_backend(name, SAMPLED) for _ in range(2))
    steps = make_round(first)
    make_round(second)
    first.run(steps, lambda: False)()
    for side in (0, 1):
        for block in range(BLOCKS):
            second.set_block(side, block, first.get_block(side, block))
    assert state(second) == state(first)
    second.run(steps, lambda: False)()
    assert state(second) == run_rounds(name, 1, 2)[0]
    assert state(first) == run_rounds(name, 1, 1)[0], "set_block must copy"


def run_until(name: str, should_stop: Callable[[], bool], threads: int = 3) -> int:
    """Return how many steps were run, after checking that they are the first ones and are complete."""
    backend = create_backend(name, replace(SAMPLED, threads=threads))
    steps = make_round(backend)
    before = arrays_of(backend)
    losses = backend.run(steps, should_stop)()
    after = arrays_of(backend)
    backend.close()
    whole, all_losses = run_rounds_to_arrays(name, 1, 1)
    done = 4 * len(losses)
    check_other_threads(name, after[:done], whole[:done])
    assert bits(after[done:]) == bits(before[done:])

    expected = losses_of(all_losses[: len(losses)])
    tolerance = SIZE * float(np.finfo(np.float32).eps) if name == "torch" else 0
    np.testing.assert_allclose(losses_of(losses), expected, rtol=tolerance)
    return len(losses)


@pytest.mark.parametrize("name", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("calls", [0, 1, 4, 100])
def test_stopped_backend_has_run_the_first_steps(name: str, calls: int) -> None:
    asked = itertools.count()
    ran = run_until(name, lambda: next(asked) >= calls, threads=1)
    assert ran == min(calls, BLOCKS)

    # With several threads, a step may be skipped while a later one runs; it is run after all.
    asked_again = itertools.count()
    ran = run_until(name, lambda: next(asked_again) >= calls, threads=3)
    assert min(calls, BLOCKS) <= ran <= min(calls + 2, BLOCKS)


def test_error_while_loading_a_block_is_not_swallowed() -> None:
    backend = create_backend("cpu", replace(SAMPLED, threads=2))

    def fail(*_: int) -> Any:
        raise OSError("the disk is gone")

    steps = make_round(backend)
    backend.take(SimpleNamespace(cells=fail))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="the disk is gone"):
        backend.run(steps[:1], lambda: False)
    backend.close()


@pytest.fixture
def no_open_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget backends that other tests left open: the threads of torch are restored when the last one closes."""
    monkeypatch.setattr(parallel, "_open_blocks", {})


@pytest.mark.usefixtures("no_open_backends")
def test_cpu_backend_restores_the_threads_of_torch() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    backend = create_backend("cpu", replace(SAMPLED, threads=2))
    assert torch.get_num_threads() == 1
    backend.close()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.usefixtures("no_open_backends")
@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_backends_that_overlap_restore_the_threads_of_torch(name: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    first = create_backend(name, replace(SAMPLED, threads=1))
    second = create_backend(name, replace(SAMPLED, threads=1))
    first.close()
    second.close()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def forbid(*_: object) -> float:
    raise AssertionError("the speed must not be measured")


@pytest.mark.parametrize(
    ("backend", "device", "expected"),
    [
        ("cpu", "auto", ("cpu", "cpu")),
        ("reference", "auto", ("reference", "cpu")),
        ("torch", "cpu", ("torch", "cpu")),
        ("auto", "cpu", ("cpu", "cpu")),
    ],
)
def test_backend_and_device_follow_the_configuration(backend: str, device: str, expected: tuple[str, str]) -> None:
    assert choose_backend(TrainConfig(backend=backend, device=device)) == expected


@pytest.mark.parametrize(("best", "expected"), [("cpu", ("cpu", "cpu")), ("meta", ("torch", "meta"))])
def test_auto_uses_the_best_device(monkeypatch: pytest.MonkeyPatch, best: str, expected: tuple[str, str]) -> None:
    monkeypatch.setattr(planning, "_best_device", lambda: best)
    monkeypatch.setattr(planning, "_read_value", lambda device: 1.0)
    assert choose_backend(TrainConfig()) == expected


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch report a CUDA device of compute capability 8.0."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(planning, "_read_value", lambda device: 1.0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))


@pytest.mark.usefixtures("pretended_gpu")
@pytest.mark.parametrize(
    ("backend", "device", "has_triton", "expected"),
    [
        ("auto", "auto", True, ("triton", "cuda")),
        ("auto", "auto", False, ("torch", "cuda")),
        ("auto", "cuda:1", True, ("triton", "cuda:1")),
        ("auto", "cpu", True, ("cpu", "cpu")),
        ("triton", "auto", True, ("triton", "cuda")),
        ("torch", "auto", True, ("torch", "cuda")),
        ("cpu", "auto", True, ("cpu", "cpu")),
        ("reference", "auto", True, ("reference", "cpu")),
    ],
)
def test_gpu_uses_triton_if_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, backend: str, device: str, has_triton: bool, expected: tuple[str, str]
) -> None:
    monkeypatch.setattr(planning, "find_spec", lambda name: object() if name == "triton" and has_triton else None)
    assert choose_backend(TrainConfig(backend=backend, device=device)) == expected


@pytest.mark.usefixtures("pretended_gpu")
def test_samples_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "find_spec", lambda name: object())
    assert choose_backend(TrainConfig(zeros="sampled")) == ("torch", "cuda")
    assert choose_backend(TrainConfig(zeros="auto", sample_rows=512)) == ("triton", "cuda")
    with pytest.raises(TrainingError, match=r"all unobserved cells; pass zeros='all' or backend='auto'$") as caught:
        choose_backend(TrainConfig(zeros="sampled", backend="triton"))
    assert caught.value.arguments == ("zeros",)


@pytest.mark.usefixtures("pretended_gpu")
def test_triton_backend_without_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "find_spec", lambda name: None)
    with pytest.raises(TrainingError, match=r"needs Triton 3.4 or newer, and an NVIDIA GPU .*; pass backend='auto'$"):
        choose_backend(TrainConfig(backend="triton"))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_triton_backend_without_a_cuda_device_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_read_value", lambda device: 1.0)
    with pytest.raises(
        TrainingError, match=rf"compute capability 8.0 or higher instead of '{device}'; pass backend='auto'$"
    ):
        choose_backend(TrainConfig(backend="triton", device=device))


@pytest.mark.usefixtures("pretended_gpu")
def test_gpus_that_triton_does_not_support_use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "version", lambda name: "3.3.1")
    assert choose_backend(TrainConfig()) == ("torch", "cuda")
    monkeypatch.setattr(planning, "version", lambda name: "3.10.1")
    assert choose_backend(TrainConfig()) == ("triton", "cuda")
    monkeypatch.setattr(torch.version, "hip", "6.2", raising=False)
    assert choose_backend(TrainConfig()) == ("torch", "cuda")
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_backend(TrainConfig()) == ("torch", "cuda")
    assert choose_dtype(TrainConfig(), "torch", "cuda", 1e6) == "float32"


@pytest.mark.usefixtures("pretended_gpu")
def test_accelerator_is_described_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A card")
    assert planning.describe_accelerator() == "A card, 3.0 GiB of 8.0 GiB free"


@pytest.mark.parametrize(("has_mps", "words"), [(True, "mps"), (False, "no CUDA device")])
def test_missing_accelerator_is_reported(monkeypatch: pytest.MonkeyPatch, has_mps: bool, words: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    assert words in planning.describe_accelerator()


@pytest.mark.parametrize(("has_cuda", "has_mps"), [(True, False), (False, True), (False, False)])
def test_best_device_is_the_one_torch_reports(monkeypatch: pytest.MonkeyPatch, has_cuda: bool, has_mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    assert planning._best_device() == ("cuda" if has_cuda else "mps" if has_mps else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_missing_device_raises_one_line_with_advice() -> None:
    with pytest.raises(TrainingError, match=r"device 'cuda' cannot be used: .*; pass device='auto'") as caught:
        choose_backend(TrainConfig(device="cuda"))
    assert "\n" not in str(caught.value)


def test_unknown_device_raises_one_line() -> None:
    with pytest.raises(
        TrainingError, match="device 'abacus' cannot be used: torch knows no device of this name;"
    ) as caught:
        choose_backend(TrainConfig(device="abacus"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_cpu_backends_refuse_another_device(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_read_value", lambda device: 1.0)
    with pytest.raises(TrainingError, match=f"the {backend} backend runs on the CPU, not on 'meta'"):
        choose_backend(TrainConfig(backend=backend, device="meta"))


@pytest.mark.parametrize(
    ("asked", "backend", "device", "cells", "expected"),
    [
        ("auto", "reference", "cpu", 1e15, "float64"),
        ("auto", "cpu", "cpu", 1e6, "float32"),
        ("auto", "torch", "cuda:1", 1e6, "bfloat16"),
        ("auto", "triton", "cuda", 1e6, "bfloat16"),
        ("float32", "triton", "cuda", 1e15, "float32"),
        ("auto", "torch", "mps", 1e15, "float32"),
        ("float32", "cpu", "cpu", 1e15, "float32"),
        ("bfloat16", "torch", "cuda", 1e6, "bfloat16"),
    ],
)
def test_dtype_is_chosen_without_measuring_if_nothing_depends_on_it(
    monkeypatch: pytest.MonkeyPatch, asked: str, backend: str, device: str, cells: float, expected: str
) -> None:
    monkeypatch.setattr(planning, "measure_products", forbid)
    monkeypatch.setattr(planning, "suits_triton", lambda device: device.startswith("cuda"))
    assert choose_dtype(TrainConfig(dtype=asked), backend, device, cells) == expected


@pytest.mark.parametrize(
    ("bfloat16", "expected"), [(2.0, "bfloat16"), (1.1, "float32"), (0.5, "float32"), (None, "float32")]
)
def test_long_runs_on_a_cpu_use_bfloat16_if_it_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, bfloat16: float | None, expected: str
) -> None:
    speeds = {"float32": 1.0} | ({"bfloat16": bfloat16} if bfloat16 else {})
    monkeypatch.setattr(planning, "measure_products", lambda *dtypes, **sizes: speeds)
    monkeypatch.setattr(planning, "lacks_bfloat16", lambda: False)
    assert choose_dtype(TrainConfig(), "cpu", "cpu", 1e12) == expected
    monkeypatch.setattr(planning, "lacks_bfloat16", lambda: True)
    assert choose_dtype(TrainConfig(), "cpu", "cpu", 1e12) == "float32"


def test_dtype_that_does_not_run_on_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "measure_products", lambda *dtypes: {})
    with pytest.raises(
        TrainingError, match="bfloat16 matrix products do not run on this machine; pass dtype='float32'"
    ):
        choose_dtype(TrainConfig(dtype="bfloat16"), "cpu", "cpu", 1e12)


def test_requested_dtype_is_used_if_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "measure_products", lambda *dtypes: dict.fromkeys(dtypes, 1.0))
    assert choose_dtype(TrainConfig(dtype="bfloat16"), "cpu", "cpu", 1e6) == "bfloat16"


@pytest.mark.parametrize(
    "probe",
    ["import os, signal; os.kill(os.getpid(), signal.SIGILL)", "import sys; sys.exit(3)", "raise RuntimeError"],
    ids=["illegal instruction", "exit status", "exception"],
)
def test_probe_that_dies_measures_nothing(monkeypatch: pytest.MonkeyPatch, probe: str) -> None:
    monkeypatch.setattr(planning, "_PROBE", probe)
    assert planning.measure_products("bfloat16") == {}


def test_probe_that_hangs_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(planning, "_PROBE_SECONDS", 0.2)
    assert planning.measure_products("bfloat16") == {}


def test_probe_measures_float32() -> None:
    assert planning.measure_products("float32")["float32"] > 1e5


def test_probe_that_dies_halfway_keeps_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_PROBE", "import os; print('float32 5.0', flush=True); os.abort()")
    assert planning.measure_products("float32", "bfloat16") == {"float32": 5.0}


def test_every_backend_of_the_settings_exists_and_no_other() -> None:
    for name in BACKENDS:
        assert TrainConfig(backend=name).backend == name
    with pytest.raises(ConfigError, match=r"^backend must be one of auto, cpu, triton, torch, reference, got 'tpu'$"):
        TrainConfig(backend="tpu")
