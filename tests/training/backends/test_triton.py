"""The training step in Triton: the contract, memory behind the end of a block, several blocks in one launch.

The kernels run on a GPU if there is one, else in Triton's interpreter, which needs about 20 ms per program. The blocks
here are therefore tiny; `test_step_on_gpu.py` has larger ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from step_contract import (
    ARRAYS,
    HAS_GPU,
    OBJECTIVES,
    Maker,
    check_contract,
    check_loss,
    distance,
    make_block,
    parameters_of,
    run_step,
    take_blocks,
)
from swivel.config import TrainConfig
from swivel.counts import BlockCells
from swivel.errors import TrainingError
from swivel.training.backends import (
    Backend,
    BackendSettings,
    ParameterBlock,
    Step,
    ZeroSampling,
)
from swivel.training.objective import Loss
from swivel.training.schedule import block_starts
from swivel.training.training_plan import create_backend

pytest.importorskip("triton")
from swivel.training.backends.triton import backend as triton_backend
from swivel.training.backends.triton import memory_plan, slot_layout
from swivel.training.backends.triton.launch import StepLauncher
from swivel.training.backends.triton.slot_layout import KernelTile

float32 = pytest.mark.parametrize("kind", ["triton float32"])
both = pytest.mark.parametrize("kind", ["triton float32", "triton float16"])
either_way_round = pytest.mark.parametrize("mirrored", [False, True], ids=["as stored", "mirrored"])


def test_kernels_run_in_the_interpreter_without_a_gpu() -> None:
    assert HAS_GPU or os.environ["TRITON_INTERPRET"] == "1"


# Every dimension at one shape, and other shapes in both orientations.
CASES = [
    *(((6, 9), dim, False) for dim in (1, 50, 300)),
    *(((11, 12), 20, way) for way in (False, True)),
    *((shape, 50, way) for shape in [(1, 1), (1, 7)] for way in (False, True)),
]


@float32
@pytest.mark.parametrize(("shape", "dim", "mirrored"), CASES, ids=str)
def test_step_matches_the_reference(make: Maker, kind: str, shape: tuple[int, int], dim: int, mirrored: bool) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    check_contract(make, kind, make_block(shape, dim, settings.config, mirrored=mirrored), settings)


@pytest.mark.parametrize("kind", ["triton float16"])
@either_way_round
def test_step_matches_the_reference_in_half_precision(make: Maker, kind: str, mirrored: bool) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    check_contract(make, kind, make_block((9, 14), 50, settings.config, mirrored=mirrored), settings)


@float32
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_step_matches_the_reference_for_every_objective(make: Maker, kind: str, objective: TrainConfig) -> None:
    settings = BackendSettings(objective, ZeroSampling())
    check_contract(make, kind, make_block((6, 9), 5, objective), settings)


@both
@either_way_round
@pytest.mark.parametrize("shape", [(150, 200), (200, 150)], ids=str)
def test_blocks_of_several_tiles(make: Maker, kind: str, shape: tuple[int, int], mirrored: bool) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    check_contract(make, kind, make_block(shape, 20, settings.config, mirrored=mirrored), settings)


@float32
@either_way_round
@pytest.mark.skipif(HAS_GPU, reason="tensor cores have no tiles of 8 x 8")
def test_blocks_of_many_small_tiles(make: Maker, kind: str, mirrored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_layout, "choose_tile", lambda *_: KernelTile(8, 8, 32))
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    check_contract(make, kind, make_block((21, 19), 5, settings.config, mirrored=mirrored), settings)


@both
@pytest.mark.parametrize("density", [0.02, 1.0], ids=["few cells", "many cells"])
def test_cells_of_a_tile_are_processed_in_chunks(make: Maker, kind: str, density: float) -> None:
    settings = BackendSettings(TrainConfig(), ZeroSampling())
    check_contract(make, kind, make_block((64, 64), 5, settings.config, density=density), settings)


# Several blocks: 14 rows in blocks of 5, 5 and 4; 9 columns in blocks of 5 and 4.
ROWS, COLUMNS = 14, 9
STARTS = block_starts(ROWS, 3), block_starts(COLUMNS, 2)
DIAGONAL = [(0, 0), (1, 1)]


def make_sides(dim: int, shape: tuple[int, int] = (ROWS, COLUMNS)) -> tuple[ParameterBlock, ParameterBlock]:
    rng = np.random.default_rng(8)
    rows, columns = (
        ParameterBlock(
            rng.normal(0, 0.3, (n, dim)).astype(np.float32),
            np.full(n, 1e-6, np.float32),
            rng.normal(0, 1, n).astype(np.float32),
        )
        for n in shape
    )
    return rows, columns


def make_cells(height: int, width: int, key: tuple[int, int]) -> BlockCells:
    rng = np.random.default_rng((9, *key))
    places = np.flatnonzero(rng.random(height * width) < 0.4)
    positions = (places // width << 16 | places % width).astype(np.uint32)
    return BlockCells(positions, rng.lognormal(0, 1, len(positions)).astype(np.float32), mirrored=False)


def make_step(i: int, j: int) -> Step:
    return Step((i, j), 0.1, (1, i, j))


def take_all(backend: Backend, starts: tuple[Any, Any] = STARTS) -> None:
    """Give a backend all cells."""
    heights, widths = (np.diff(side).tolist() for side in starts)
    keys = [(i, j) for i in range(len(heights)) for j in range(len(widths))]
    blocks = {(i, j): make_cells(heights[i], widths[j], (i, j)) for i, j in keys}
    take_blocks(backend, blocks, (len(heights), len(widths)))


def hold_all(backend: Backend, dim: int = 5) -> None:
    """Give a backend all parameters and cells."""
    backend.hold(*make_sides(dim), STARTS)
    take_all(backend)


def hold_square(backend: Backend, size: int) -> None:
    """Give a backend 3 x 3 blocks."""
    starts = block_starts(size, 3), block_starts(size, 3)
    backend.hold(*make_sides(5, (size, size)), starts)
    take_all(backend, starts)


def run_blocks(backend: Backend, rounds: list[list[tuple[int, int]]], dim: int = 5) -> list[Loss]:
    hold_all(backend, dim)
    return [loss for blocks in rounds for loss in backend.run([make_step(*block) for block in blocks], lambda: False)()]


ONE_EPOCH = [[(n % 3, n % 2) for n in turn] for turn in ((0, 1), (2, 3), (4, 5))]


@float32
def test_uneven_blocks_of_a_rectangle_match_the_reference(make: Maker, kind: str) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    backend, reference = make(settings), create_backend("reference", settings)
    losses, truths = run_blocks(backend, ONE_EPOCH), run_blocks(reference, ONE_EPOCH)
    assert sorted(block for blocks in ONE_EPOCH for block in blocks) == [(i, j) for i in range(3) for j in range(2)]
    for loss, truth in zip(losses, truths, strict=True):
        check_loss(loss, truth, 1e-4)

    actual = parameters_of(backend)
    expected = parameters_of(reference)
    for name in ARRAYS:
        assert distance(actual[name], expected[name]) < 1e-5


@both
def test_steps_do_not_change_other_blocks(make: Maker, kind: str) -> None:
    backend = make(BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling()))
    run_blocks(backend, [[(1, 1)]])
    for side, before, changed in zip(backend.fetch(), make_sides(5), (slice(5, 10), slice(5, 9)), strict=True):
        others = np.setdiff1d(np.arange(len(before.vectors)), np.arange(changed.start, changed.stop))
        np.testing.assert_array_equal(side.vectors[others], before.vectors[others])
        np.testing.assert_array_equal(side.state[others], before.state[others])
        assert np.all(side.vectors[changed] != before.vectors[changed])


@both
def test_blocks_that_come_and_go_train_as_those_that_stay(make: Maker, kind: str) -> None:
    """A rank has some of the blocks; a worker gets the vectors of one block of each side with every step."""
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    whole, some, single = make(settings), make(settings), make(settings)
    hold_all(whole)
    some.hold_some(STARTS, 5, (2, 2))
    single.hold_some(STARTS, 5, (1, 1))
    take_all(some)
    take_all(single)
    for side, block in ((0, 2), (1, 1), (1, 0)):
        some.set_block(side, block, whole.get_block(side, block))
    some.drop_block(1, 1)
    some.set_block(0, 1, whole.get_block(0, 1))

    sides = [make_sides(5)[side].part(*STARTS[side][block : block + 2]) for side, block in ((0, 1), (1, 0))]
    gradients = [backend.gradients(make_step(1, 0), *sides) for backend in (whole, single, single)]
    for found in gradients[1:]:
        assert found[0] == gradients[0][0]
        np.testing.assert_array_equal(found[1], gradients[0][1])
        np.testing.assert_array_equal(found[2], gradients[0][2])

    hold_all(whole)
    for backend in (whole, some):
        backend.run([make_step(2, 0)], lambda: False)()
        backend.run([make_step(1, 0)], lambda: False)()
    for side, block in ((0, 1), (0, 2), (1, 0)):
        stayed, came = whole.get_block(side, block), some.get_block(side, block)
        assert torch.equal(came.vectors, stayed.vectors)
        assert torch.equal(came.state, stayed.state)


@both
def test_blocks_copied_to_another_backend_train_to_the_same_bits(make: Maker, kind: str) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    first, second, whole = make(settings), make(settings), make(settings)
    run_blocks(first, [DIAGONAL])
    rows, columns = (ParameterBlock(side.vectors * 0, side.state + 1, side.offsets) for side in make_sides(5))
    second.hold(rows, columns, STARTS)
    take_all(second)
    for side, starts in enumerate(STARTS):
        for block in range(len(starts) - 1):
            second.set_block(side, block, first.get_block(side, block))
    assert bits(second) == bits(first)

    second.run([make_step(*block) for block in DIAGONAL], lambda: False)()
    run_blocks(whole, [DIAGONAL, DIAGONAL])
    assert bits(second) == bits(whole)


@float32
def test_memory_between_blocks_and_behind_vectors_has_no_effect(make: Maker, kind: str) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    plain, disturbed = make(settings), make(settings)
    losses = run_blocks(plain, [[(0, 0)]], dim=50)
    hold_all(disturbed, 50)
    inside = fill_between_blocks(disturbed, 7.0)
    assert disturbed.run([make_step(0, 0)], lambda: False)() == losses
    assert bits(disturbed) == bits(plain)

    # The padding of a vector must stay zero, or the products would be wrong.
    mirror = disturbed._store.parameters.mirror  # type: ignore[attr-defined]
    assert mirror.shape[1] == 64
    assert torch.all(mirror[inside, 50:] == 0)


def fill_between_blocks(backend: Any, value: float) -> torch.Tensor:
    """Fill the rows of the mirror and the offsets that are not in a block; return a mask of those that are."""
    parameters = backend._store.parameters
    inside = torch.zeros(len(parameters.mirror), dtype=torch.bool, device=parameters.mirror.device)
    for side, starts in enumerate(STARTS):
        for block, size in enumerate(np.diff(starts).tolist()):
            first = backend._store.slot_of(side, block) * backend._estimate.layout.pitch
            inside[first : first + size] = True
    parameters.mirror[~inside] = value
    parameters.offsets[~inside] = value
    return inside


def bits(backend: Backend) -> list[bytes]:
    return [array.tobytes() for side in backend.fetch() for array in (side.vectors, side.state)]


def check_same(one: Backend, other: Backend) -> None:
    """Compare up to rounding: torch may multiply one block with another algorithm than several."""
    actual = parameters_of(one)
    expected = parameters_of(other)
    for name in ARRAYS:
        assert distance(actual[name], expected[name]) < 1e-5


def poison(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.bool:
        return tensor
    return tensor.fill_(torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)


@float32
def test_every_buffer_is_written_before_it_is_read(make: Maker, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    clean, poisoned = make(settings), make(settings)
    expected = run_blocks(clean, [DIAGONAL, [(2, 0)]])

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoning(getattr(torch, name)))
    losses = run_blocks(poisoned, [DIAGONAL])
    buffers = poisoned._launcher._buffers  # type: ignore[attr-defined]
    assert buffers
    for buffer in buffers.values():
        poison(buffer)
    losses += poisoned.run([make_step(2, 0)], lambda: False)()

    assert losses == expected
    assert bits(poisoned) == bits(clean)


def poisoning(make_tensor: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make_poisoned(*arguments: Any, **keywords: Any) -> torch.Tensor:
        tensor = make_tensor(*arguments, **keywords)
        return tensor if tensor.device.type == "meta" else poison(tensor)

    return make_poisoned


@float32
def test_a_round_equals_its_blocks_one_by_one(make: Maker, kind: str) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    together, alone = make(settings), make(settings)
    losses = run_blocks(together, [DIAGONAL])
    one_by_one = run_blocks(alone, [[block] for block in DIAGONAL])
    for loss, truth in zip(one_by_one, losses, strict=True):
        check_loss(loss, truth, 1e-6)
    check_same(alone, together)


def count_launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the number of blocks of each launch is appended."""
    launches: list[int] = []
    run = StepLauncher.run

    def note(self: Any, batch: Any, *arguments: Any) -> Any:
        launches.append(len(batch.shards))
        return run(self, batch, *arguments)

    monkeypatch.setattr(StepLauncher, "run", note)
    return launches


TWO_ROUNDS = [[(0, 0), (1, 1), (2, 2)], [(0, 1), (1, 2), (2, 0)]]


@float32
@pytest.mark.parametrize("size", [6, 14], ids=["equal sizes", "different sizes"])
def test_blocks_of_a_round_share_a_launch_and_equal_single_launches(
    make: Maker, kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    together, alone = make(settings), make(settings)
    launches = count_launches(monkeypatch)
    for which, rounds in ((together, TWO_ROUNDS), (alone, [[block] for blocks in TWO_ROUNDS for block in blocks])):
        hold_square(which, size)
        for blocks in rounds:
            which.run([make_step(*block) for block in blocks], lambda: False)()

    # The second diagonal wraps around: its blocks are two runs of neighbors, but still one launch.
    assert launches == [3, 3, *[1] * 6]
    check_same(alone, together)


@float32
def test_launches_have_at_most_the_allowed_number_of_blocks(
    make: Maker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan, "MAX_SHARDS_PER_LAUNCH", 2)
    launches = count_launches(monkeypatch)
    backend = make(BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling()))
    hold_square(backend, 6)
    assert len(backend.run([make_step(n, n) for n in range(3)], lambda: False)()) == 3
    assert launches == [2, 1]


@float32
def test_stop_request_before_a_round_runs_no_step(make: Maker, kind: str) -> None:
    backend = make(BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling()))
    hold_all(backend)
    before = bits(backend)
    running = backend.run([make_step(*block) for block in DIAGONAL], lambda: True)
    assert running() == []
    assert bits(backend) == before


@float32
def test_losses_can_be_requested_after_later_steps(make: Maker, kind: str) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    backend, again = make(settings), make(settings)
    hold_all(backend)
    first = backend.run([make_step(*block) for block in DIAGONAL], lambda: False)
    second = backend.run([make_step(*block) for block in DIAGONAL], lambda: False)
    late = [*second(), *first()]
    assert [*late[2:], *late[:2]] == run_blocks(again, [DIAGONAL, DIAGONAL])


@float32
def test_backend_can_be_closed_twice_and_describes_itself(make: Maker, kind: str) -> None:
    backend = make(BackendSettings(TrainConfig(), ZeroSampling()))
    run_step(backend, make_block((1, 7), 2, TrainConfig()))
    assert backend.builds_layout
    assert "triton on" in backend.describe()
    backend.close()
    backend.close()


def test_out_of_memory_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = triton_backend.TritonBackend(BackendSettings(TrainConfig(), ZeroSampling()))

    def run_out(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nand a page more")

    monkeypatch.setattr(backend, "_allocate", run_out)
    with pytest.raises(TrainingError, match=r"cpu: out of memory .CUDA out of memory.*set device_memory"):
        backend.hold(*make_sides(5), STARTS)
