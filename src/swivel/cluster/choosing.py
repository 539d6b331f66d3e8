"""Who trains: this process alone, the ranks that torchrun started, or the workers of a cluster that a job may use."""

from __future__ import annotations

from swivel.errors import ConfigError
from swivel.means import Means
from swivel.workers import Alone, Workers


def choose_workers(means: Means) -> Workers:
    """Return the workers that a job may use, connected.

    >>> type(choose_workers(Means())).__name__
    'Alone'
    """
    from swivel.cluster import rotation

    if rotation.is_started():
        if means.ray is not None:
            raise ConfigError("torchrun starts ranks and --ray takes the workers of a cluster: use one of them")
        return rotation.Rotating()
    if means.ray is None:
        return Alone()
    from swivel.cluster.asynchronous import Asynchronous

    return Asynchronous(means.ray, means.cluster)
