"""Place services on a cluster of unequal GPUs: assign GPUs and circuits so that as many services as possible fit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster import Cluster, Gpu, GpuKind, Link, Pool, Rack, Server, Switch
    from .cluster_file import format_cluster, parse_cluster, write_cluster
    from .files import DEMANDS, demand_of_services, load_cluster, load_services, preset_names
    from .lifecycle import Migration, Recovery, defragment, fail, recover
    from .placement import Allocation, Circuit, Hop, ServicePlacement, ServiceStage
    from .registry import get, names, place, register, try_place
    from .service import Edge, Request, Service, ServiceOperator, demand_of, operator_ns, requests_of
    from .services_file import format_services, parse_services, write_services
    from .state import ClusterState
    from .verifier import verify, violations

_WHERE = {
    "Allocation": "placement",
    "Circuit": "placement",
    "Cluster": "cluster",
    "ClusterState": "state",
    "DEMANDS": "files",
    "Edge": "service",
    "Gpu": "cluster",
    "GpuKind": "cluster",
    "Hop": "placement",
    "Link": "cluster",
    "Migration": "lifecycle",
    "Pool": "cluster",
    "Rack": "cluster",
    "Recovery": "lifecycle",
    "Request": "service",
    "Server": "cluster",
    "Service": "service",
    "ServiceOperator": "service",
    "ServicePlacement": "placement",
    "ServiceStage": "placement",
    "Switch": "cluster",
    "defragment": "lifecycle",
    "demand_of": "service",
    "demand_of_services": "files",
    "fail": "lifecycle",
    "format_cluster": "cluster_file",
    "format_services": "services_file",
    "get": "registry",
    "load_cluster": "files",
    "load_services": "files",
    "names": "registry",
    "operator_ns": "service",
    "parse_cluster": "cluster_file",
    "parse_services": "services_file",
    "place": "registry",
    "preset_names": "files",
    "recover": "lifecycle",
    "register": "registry",
    "requests_of": "service",
    "try_place": "registry",
    "verify": "verifier",
    "violations": "verifier",
    "write_cluster": "cluster_file",
    "write_services": "services_file",
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
    "Request",
    "Server",
    "Service",
    "ServiceOperator",
    "ServicePlacement",
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


def __getattr__(name: str) -> Any:
    """Import on first use: the command line imports this package for its help alone."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
