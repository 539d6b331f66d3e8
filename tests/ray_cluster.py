"""A Ray cluster of two nodes on this machine, started once per test session.

Test files that use it set `pytestmark = pytest.mark.xdist_group("ray")`, so that one process runs them all. Tests that
break the cluster have another group, and with it another cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

STORE_BYTES = 100 << 20
NODE = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_log_monitor": False}
# A lost node is detected after about two seconds instead of fifteen; a slow one gets more time.
NOTICED = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}


class TwoNodes:
    """A head node, and a second node that can be killed and replaced."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.second: Any = None
        self.replace_node()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def lose_node(self) -> None:
        """Kill the second node and all its processes, like a power failure."""
        if self.second is not None:
            self._check_driver()
            self.cluster.remove_node(self.second, allow_graceful=False)
            self.second = None

    def _check_driver(self) -> None:
        """Skip the test if its own process is on the second node: before Ray 2.54 it joins either node of a machine."""
        import ray

        if ray.is_initialized() and ray.get_runtime_context().get_node_id() == self.second.node_id:
            pytest.skip("Ray connected the test to the node that it loses")

    def replace_node(self) -> None:
        if self.second is None:
            self.second = self.cluster.add_node(**NODE)


@contextmanager
def start_nodes() -> Iterator[TwoNodes]:
    os.environ.update(NOTICED, RAY_USAGE_STATS_ENABLED="0")
    from ray.cluster_utils import Cluster

    head = {**NODE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)  # Other node addresses than the default hang.
    try:
        yield TwoNodes(cluster)
    finally:
        cluster.shutdown()
