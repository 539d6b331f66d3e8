"""Training on several processes or machines: a ring of ranks (torch.distributed) and parameter servers (Ray).

`open_executor` chooses between these and this process alone. Ray and torch.distributed are imported only when they are
used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from swivel.errors import ConfigError
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import find_rank
from swivel.training.executor import Executor, LocalExecutor


@contextlib.contextmanager
def open_executor(options: RunOptions) -> Iterator[Executor]:
    """Yield the executor for a job and close it at the end, when all ranks have arrived there."""
    with contextlib.closing(make_executor(options)) as executor:
        yield executor
        executor.any_rank(True)  # Other ranks wait here until the leading one has written everything.


def make_executor(options: RunOptions) -> Executor:
    """Return the executor for a job, connected to its ranks or cluster."""
    if find_rank() is not None:
        if options.ray is not None:
            raise ConfigError(
                "torchrun and ray cannot be combined: start ranks with torchrun, or pass ray", argument="ray"
            )
        from swivel.training.distributed.ring import RingExecutor

        return RingExecutor()

    if options.ray is None:
        return LocalExecutor()
    from swivel.training.distributed.async_executor import AsyncExecutor

    return AsyncExecutor(options.ray, options.cluster)
