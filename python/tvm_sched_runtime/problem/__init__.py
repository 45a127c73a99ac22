"""The input of schedulers: operator graph, topology and latencies, as plain data without TVM or a solver."""

from .concurrency import Concurrency
from .costs import FORBIDDEN, Costs, Uncertainty
from .cpu_presets import MEASURED, cpu_topology
from .decoder_config import DecoderConfig
from .demand import MULTIPROCESSORS, Demand, KernelResources, Multiprocessor, multiprocessors_of
from .generation import generation_problem, restrict_to_devices
from .graph import GraphIndex, Operator, OpGraph, Tensor
from .merge import merge_graphs, merge_problems, merge_scenarios, problems_of_models
from .problem import Problem, graph_on, problem_of
from .topology import HOST, STREAM_OVERHEAD, WAIT_OVERHEAD, Bus, Device, Link, Route, Storage, Switch, Topology
from .topology_file import format_topology, load_topology, parse_topology, preset_names, read_topology, write_topology
from .variants import Alternative, Group, Variants, all_alternatives, choose_graph
from .workload import COLD, Objective, Request, Scenario, Workload, as_scenario, check_resident

__all__ = [
    "COLD",
    "FORBIDDEN",
    "HOST",
    "MEASURED",
    "MULTIPROCESSORS",
    "STREAM_OVERHEAD",
    "WAIT_OVERHEAD",
    "Alternative",
    "Bus",
    "Concurrency",
    "Costs",
    "DecoderConfig",
    "Demand",
    "Device",
    "GraphIndex",
    "Group",
    "KernelResources",
    "Link",
    "Multiprocessor",
    "Objective",
    "OpGraph",
    "Operator",
    "Problem",
    "Request",
    "Route",
    "Scenario",
    "Storage",
    "Switch",
    "Tensor",
    "Topology",
    "Uncertainty",
    "Variants",
    "Workload",
    "all_alternatives",
    "as_scenario",
    "check_resident",
    "choose_graph",
    "cpu_topology",
    "format_topology",
    "generation_problem",
    "graph_on",
    "load_topology",
    "merge_graphs",
    "merge_problems",
    "merge_scenarios",
    "multiprocessors_of",
    "parse_topology",
    "preset_names",
    "problem_of",
    "problems_of_models",
    "read_topology",
    "restrict_to_devices",
    "write_topology",
]
