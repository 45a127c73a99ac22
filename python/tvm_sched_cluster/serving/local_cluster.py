"""A Ray cluster whose nodes are processes of this machine, for tests, benchmarks and experiments."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import ray

_STORE_BYTES = 80 << 20
_SYSTEM = {  # a node that is killed refuses connections, so it is found dead after three periods; one that is slow is not
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
    # Ray's default lets every other process of a busy machine go before the stages.
    "worker_niceness": 0,
    # Without a head, nodes and their processes go on for as long as a test may take.
    "gcs_rpc_server_reconnect_timeout_s": 3600,
}


class LocalCluster:
    """A head without devices, and nodes that have the same resources each; ended with the context.

    Stands on ``ray.cluster_utils``, which Ray has for tests. Its processes listen on all interfaces.

    Parameters
    ----------
    count : int
        Nodes beside the head.
    resources : mapping
        Of each node, beside one CPU.

    Attributes
    ----------
    nodes, others : list
        Ray's handles on the nodes that are alike, and on those that `add_other` added.
    """

    def __init__(self, count: int, resources: Mapping[str, float]) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        self.resources = dict(resources)
        self.nodes: list[Any] = []
        self.others: list[Any] = []
        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": _SYSTEM})
        try:
            self.at_least(count)
        except BaseException:
            self._cluster.shutdown()
            raise

    @property
    def address(self) -> str:
        """The address for `connect` and ``--address``."""
        return str(self._cluster.address)

    def add(self) -> None:
        """Add a node like the others."""
        self.nodes.append(self._add(self.resources, {}))

    def add_other(self, resources: Mapping[str, float], labels: Mapping[str, str]) -> str:
        """Add a node with resources and labels of its own; returns its ID."""
        self.others.append(self._add(resources, labels))
        return str(self.others[-1].node_id)

    def _add(self, resources: Mapping[str, float], labels: Mapping[str, str]) -> Any:
        return self._cluster.add_node(
            num_cpus=1, resources=dict(resources), labels=dict(labels), object_store_memory=_STORE_BYTES
        )

    def at_least(self, count: int) -> None:
        """Add nodes until there are this many equal ones besides the head."""
        while len(self.nodes) < count:
            self.add()

    def kill(self, node_id: str) -> None:
        """End a node with all its processes, as a power failure does."""
        for nodes in (self.nodes, self.others):
            for node in [node for node in nodes if node.node_id == node_id]:
                nodes.remove(node)
                self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """End the head; what runs on the other nodes goes on, and the cluster takes no commands any more."""
        self._cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):  # a driver whose head was killed cannot leave; the processes end below
            ray.shutdown()
        self._cluster.shutdown()
