"""Strips of blocks for the tests of leases and workers."""

from __future__ import annotations

from collections.abc import Sequence

from swivel.training.backends import Step
from swivel.training.distributed.leases import Strip
from swivel.training.schedule import Block


def make_strip(
    number: int, epoch: int, blocks: Sequence[Block], rates: Sequence[float], shared: int | None = None
) -> Strip:
    """Return a strip of these blocks in an epoch, each with its learning rate."""
    steps = [Step(block, rate, (1, 2, epoch, *block)) for block, rate in zip(blocks, rates, strict=True)]
    return Strip(number, tuple(steps), shared)
