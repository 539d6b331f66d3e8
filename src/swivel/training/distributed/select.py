"""Who trains: this process alone, the ranks that torchrun started, or the workers of a cluster that a job may use."""

from __future__ import annotations

from swivel.errors import ConfigError
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import find_rank
from swivel.training.executor import Executor, LocalExecutor


def choose_workers(options: RunOptions) -> Executor:
    """Return the workers that a job may use, connected.

    >>> type(choose_workers(RunOptions())).__name__
    'Alone'
    """
    if find_rank() is not None:
        if options.ray is not None:
            raise ConfigError("torchrun starts ranks and --ray takes the workers of a cluster: use one of them")
        from swivel.training.distributed.ring import RingExecutor

        return RingExecutor()
    if options.ray is None:
        return LocalExecutor()
    from swivel.training.distributed.async_executor import AsyncExecutor

    return AsyncExecutor(options.ray, options.cluster)
