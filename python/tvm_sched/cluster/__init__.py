"""Many services on a cluster of unequal GPUs: which GPUs and circuits each of them gets, so that the most fit."""

from . import ants, exact, mixes
from .cluster import Cluster, Gpu, GpuKind, Link, Pool, Rack, Server, Switch
from .files import (
    DEMANDS,
    demand_of_services,
    format_cluster,
    load_cluster,
    load_services,
    parse_cluster,
    parse_services,
    preset_names,
    write_cluster,
)
from .lifecycle import Move, Recovery, defragment, fail, recover
from .placement import Allocation, Circuit, Hop, Placement, Stage
from .registry import get, names, place, register, try_place
from .service import Edge, Request, Service, ServiceOperator, demand_of, operator_ns, requests_of
from .state import ClusterState
from .verify import verify, violations

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
    "Move",
    "Placement",
    "Pool",
    "Rack",
    "Recovery",
    "Request",
    "Server",
    "Service",
    "ServiceOperator",
    "Stage",
    "Switch",
    "ants",
    "defragment",
    "demand_of",
    "demand_of_services",
    "exact",
    "fail",
    "format_cluster",
    "get",
    "load_cluster",
    "load_services",
    "mixes",
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
]
