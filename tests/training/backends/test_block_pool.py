"""Blocks that come and go on a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swivel.config import TrainConfig
from swivel.errors import TrainingError
from swivel.training.backends import BackendSettings, ParameterBlock, ZeroSampling
from swivel.training.schedule import block_starts

pytest.importorskip("triton")
from swivel.training.backends.triton.backend import TritonBackend

STARTS = block_starts(17, 4), block_starts(11, 3)
DIM = 5


def make_backend(capacity: tuple[int, int], memory: int | None = None) -> TritonBackend:
    backend = TritonBackend(BackendSettings(TrainConfig(), ZeroSampling(), memory=memory))
    backend.hold_some(STARTS, DIM, capacity)
    return backend


def make_block(side: int, block: int, seed: int = 0) -> ParameterBlock:
    rng = np.random.default_rng((side, block, seed))
    size = int(np.diff(STARTS[side])[block])
    vectors, (accumulators, offsets) = rng.random((size, DIM), np.float32), rng.random((2, size), np.float32)
    return ParameterBlock(vectors, accumulators, offsets)


def assert_same(found: ParameterBlock, expected: ParameterBlock) -> None:
    torch.testing.assert_close(found.vectors, torch.from_numpy(expected.vectors), rtol=0, atol=0)
    torch.testing.assert_close(found.state, torch.from_numpy(expected.state), rtol=0, atol=0)
    torch.testing.assert_close(found.offsets, torch.from_numpy(expected.offsets))


def test_blocks_are_found_again_after_others_were_dropped() -> None:
    backend = make_backend((2, 2))
    for side, block in ((0, 3), (0, 1), (1, 2), (1, 0)):
        backend.set_block(side, block, make_block(side, block))
    backend.drop_block(0, 3)
    backend.set_block(0, 0, make_block(0, 0))
    backend.set_block(1, 2, make_block(1, 2, seed=1))

    for side, block, seed in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 2, 1)):
        assert_same(backend.get_block(side, block), make_block(side, block, seed))
    assert backend.is_finite()


def test_a_block_too_many_is_refused() -> None:
    backend = make_backend((1, 2))
    backend.set_block(0, 2, make_block(0, 2))
    with pytest.raises(TrainingError, match="no place for another block, the device has 1 of this side"):
        backend.set_block(0, 1, make_block(0, 1))


def test_a_value_that_is_not_finite_is_found() -> None:
    backend = make_backend((1, 1))
    block = make_block(0, 0)
    block.state[1] = np.inf
    backend.set_block(0, 0, block)
    assert not backend.is_finite()


def test_more_blocks_than_fit_are_refused() -> None:
    with pytest.raises(TrainingError, match=r"4 row blocks and 3 column blocks need .* of device memory"):
        make_backend((4, 3), memory=100)
