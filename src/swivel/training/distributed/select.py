"""Who trains: this process alone, the ranks that torchrun started, or the workers of a cluster that a job may use."""

from __future__ import annotations

from swivel.errors import ConfigError
from swivel.runtime.options import Means
from swivel.runtime.resources import find_rank
from swivel.training.executor import Alone, Workers


def choose_workers(means: Means) -> Workers:
    """Return the workers that a job may use, connected.

    >>> type(choose_workers(Means())).__name__
    'Alone'
    """
    if find_rank() is not None:
        if means.ray is not None:
            raise ConfigError("torchrun starts ranks and --ray takes the workers of a cluster: use one of them")
        from swivel.training.distributed.ring import Rotating

        return Rotating()
    if means.ray is None:
        return Alone()
    from swivel.training.distributed.async_executor import Asynchronous

    return Asynchronous(means.ray, means.cluster)
