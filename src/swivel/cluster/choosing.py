"""Who trains: nobody but this process, or the workers of a cluster that a job may use."""

from __future__ import annotations

from swivel.means import Means
from swivel.workers import Workers


def choose_workers(means: Means) -> Workers | None:
    """Return the workers that a job may use, connected; None: this process alone.

    >>> choose_workers(Means()) is None
    True
    """
    if means.ray is None:
        return None
    from swivel.cluster.asynchronous import Asynchronous

    return Asynchronous(means.ray, means.cluster)
