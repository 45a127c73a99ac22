"""Place services on a cluster of unequal GPUs: assign GPUs and circuits so that as many services as possible fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_sched_runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from .allocators.allocator_registry import get, names, place, register, try_place
    from .controller import Migration, Recovery, defragment, fail, recover
    from .files.cluster_file import format_cluster, parse_cluster, write_cluster
    from .files.named_files import DEMANDS, demand_of_services, load_cluster, load_services, preset_names
    from .files.services_file import format_services, parse_services, write_services
    from .problem.cluster import Cluster, Gpu, GpuKind, Link, Pool, Rack, Server, Switch
    from .problem.placement_rules import verify, violations
    from .problem.service import Edge, Service, ServiceOperator, ServiceRequest, demand_of, operator_ns, requests_of
    from .problem.service_placement import Allocation, Circuit, Hop, ServicePlacement, ServiceStage
    from .search.cluster_state import ClusterState

_WHERE = {
    "Allocation": "problem.service_placement",
    "Circuit": "problem.service_placement",
    "Cluster": "problem.cluster",
    "ClusterState": "search.cluster_state",
    "DEMANDS": "files.named_files",
    "Edge": "problem.service",
    "Gpu": "problem.cluster",
    "GpuKind": "problem.cluster",
    "Hop": "problem.service_placement",
    "Link": "problem.cluster",
    "Migration": "controller",
    "Pool": "problem.cluster",
    "Rack": "problem.cluster",
    "Recovery": "controller",
    "ServiceRequest": "problem.service",
    "Server": "problem.cluster",
    "Service": "problem.service",
    "ServiceOperator": "problem.service",
    "ServicePlacement": "problem.service_placement",
    "ServiceStage": "problem.service_placement",
    "Switch": "problem.cluster",
    "defragment": "controller",
    "demand_of": "problem.service",
    "demand_of_services": "files.named_files",
    "fail": "controller",
    "format_cluster": "files.cluster_file",
    "format_services": "files.services_file",
    "get": "allocators.allocator_registry",
    "load_cluster": "files.named_files",
    "load_services": "files.named_files",
    "names": "allocators.allocator_registry",
    "operator_ns": "problem.service",
    "parse_cluster": "files.cluster_file",
    "parse_services": "files.services_file",
    "place": "allocators.allocator_registry",
    "preset_names": "files.named_files",
    "recover": "controller",
    "register": "allocators.allocator_registry",
    "requests_of": "problem.service",
    "try_place": "allocators.allocator_registry",
    "verify": "problem.placement_rules",
    "violations": "problem.placement_rules",
    "write_cluster": "files.cluster_file",
    "write_services": "files.services_file",
}

__all__ = [
    "DEMANDS",
    "Allocation",
    "Circuit",
    "Cluster",
    "ClusterState",
    "Edge",
    "Gpu",
    "GpuKind",
    "Hop",
    "Link",
    "Migration",
    "Pool",
    "Rack",
    "Recovery",
    "Server",
    "Service",
    "ServiceOperator",
    "ServicePlacement",
    "ServiceRequest",
    "ServiceStage",
    "Switch",
    "defragment",
    "demand_of",
    "demand_of_services",
    "fail",
    "format_cluster",
    "format_services",
    "get",
    "load_cluster",
    "load_services",
    "names",
    "operator_ns",
    "parse_cluster",
    "parse_services",
    "place",
    "preset_names",
    "recover",
    "register",
    "requests_of",
    "try_place",
    "verify",
    "violations",
    "write_cluster",
    "write_services",
]


__getattr__ = lazy_names(__name__, _WHERE)
"""The command line imports this package for its help alone."""
