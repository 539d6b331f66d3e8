"""A real cluster of two nodes on this machine, for the tests that need Ray: started once a session.

Files of tests that use it say `pytestmark = pytest.mark.xdist_group("ray")`, so that one process has them all; those
that break it have a group, and a cluster, of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORE_BYTES = 100 << 20
NODE = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_log_monitor": False}
# A node that is gone is noticed after some two seconds, not fifteen; one that is slow has longer.
NOTICED = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}


class TwoNodes:
    """A head and a second node, which can be lost and replaced."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.second: Any = None
        self.replace_node()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def lose_node(self) -> None:
        """Kill the second node and all that runs on it, as a power cut would."""
        if self.second is not None:
            self.cluster.remove_node(self.second, allow_graceful=False)
            self.second = None

    def replace_node(self) -> None:
        if self.second is None:
            self.second = self.cluster.add_node(**NODE)


@contextmanager
def start_nodes() -> Iterator[TwoNodes]:
    os.environ.update(NOTICED, RAY_USAGE_STATS_ENABLED="0")
    from ray.cluster_utils import Cluster

    head = {**NODE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)  # The address of nodes is left alone: others hang.
    try:
        yield TwoNodes(cluster)
    finally:
        cluster.shutdown()
