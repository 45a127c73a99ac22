"""Place services on a cluster of unequal GPUs: assign GPUs and circuits so that as many services as possible fit."""

from . import ants, anytime, mixes
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
    "ants",
    "anytime",
    "defragment",
    "demand_of",
    "demand_of_services",
    "fail",
    "format_cluster",
    "format_services",
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
    "write_services",
]
