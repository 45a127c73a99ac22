"""What a scheduler may look at: the operator graph, the topology, the latencies. Plain data, no TVM, no solver."""

from .costs import FORBIDDEN, Costs, Uncertainty
from .graph import GraphIndex, Operator, OpGraph, Tensor
from .problem import Problem
from .topology import HOST, Bus, Device, Link, Route, Switch, Topology
from .topology_file import format_topology, load_topology, parse_topology, preset_names, read_topology, write_topology

__all__ = [
    "FORBIDDEN",
    "HOST",
    "Bus",
    "Costs",
    "Device",
    "GraphIndex",
    "Link",
    "OpGraph",
    "Operator",
    "Problem",
    "Route",
    "Switch",
    "Tensor",
    "Topology",
    "Uncertainty",
    "format_topology",
    "load_topology",
    "parse_topology",
    "preset_names",
    "read_topology",
    "write_topology",
]
