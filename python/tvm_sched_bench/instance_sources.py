"""Sources of instances: seeded generators, and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sched.cost_model import roofline
from tvm_sched.pipeline.graph_files import load_graph
from tvm_sched.pipeline.partition_relaxation import relax
from tvm_sched.registry import Registry
from tvm_sched.schedulers.efficient_mip import Instance, read_workload
from tvm_sched_runtime.errors import InputError, did_you_mean
from tvm_sched_runtime.problem import Problem, Scenario, load_topology, problem_of

from .kinds.throughput_kind import Pipeline
from .moirai_files import read_moirai
from .tarnawski_files import read_throughput
from .task_files import read_auckland, read_estee, read_unrelated
from .testing.hios_problems import random_layered
from .testing.regal import regal_like
from .testing.task_graphs import FAMILIES, task_graph


def _tasks(graph: str, topology: str, seed: int = 0) -> Scenario:
    """Return a graph of `task_graphs.FAMILIES` on a preset topology, with times by the roofline."""
    if graph not in FAMILIES:
        raise InputError(
            f"there is no task graph {graph!r}{did_you_mean(graph, FAMILIES)}; there are {', '.join(FAMILIES)}"
        )
    machine = load_topology(topology)
    return Scenario(problem_of(task_graph(graph, seed), (), machine, roofline))


def _hios(devices: int, seed: int, stages: bool = False) -> Scenario:
    """HIOS's random layered graphs on equal devices; ``stages``: operators may run together."""
    return Scenario(random_layered(seed).problem(devices, concurrency=stages))


def _problem(path: Path, run: str = "cold") -> Scenario:
    """Return the problem of a file; in a ``warm`` run all parameters are resident."""
    problem = Problem.load(path)
    if run not in ("cold", "warm"):
        raise InputError(f"run is {run!r}; 'cold' and 'warm' are allowed")
    if run == "cold":
        return Scenario(problem)
    return Scenario(problem, frozenset(tensor.name for tensor in problem.graph.tensors if tensor.kind == "parameter"))


def _decoder(model: str, shape: str, topology: str) -> Scenario:
    """Return a language model on a preset topology, as SortingHat's grid has it: fused kernels, no variants."""
    from tvm_sched_runtime.problem.decoder_config import PRESETS

    batch, _, tokens = shape.partition("x")
    if model not in PRESETS:
        raise InputError(
            f"there is no language model {model!r}{did_you_mean(model, PRESETS)}; there are {', '.join(PRESETS)}"
        )
    if not batch.isdecimal() or not tokens.isdecimal():
        raise InputError(f"shape is {shape!r}; BATCHxTOKENS is allowed, e.g. 1x32")
    from tvm_sched.relax.decoders import decoder_graph  # imports tvm

    machine = load_topology(topology)
    graph = decoder_graph(PRESETS[model], int(batch), int(tokens))
    return Scenario(problem_of(graph, (), machine, roofline))


def _moirai(path: Path) -> Scenario:
    """Return a sample graph of Moirai on its devices."""
    return Scenario(read_moirai(path))


def _auckland(path: Path) -> Scenario:
    """Return a task graph of the University of Auckland on equal processors."""
    return Scenario(read_auckland(path).problem)


def _unrelated(path: Path) -> Scenario:
    """Return a task graph of Santiago et al. on unrelated machines."""
    return Scenario(read_unrelated(path))


def _estee(
    path: Path, graph: int = 0, workers: int = 8, bandwidth: float = 100e6, one_at_a_time: bool = False
) -> Scenario:
    """Return a workflow of Estee on workers that run one task at a time."""
    return Scenario(read_estee(path, graph, workers, bandwidth, one_at_a_time))


def _regal(seed: int, stages: int) -> Pipeline:
    """Return a random graph by the parameters of REGAL's set."""
    return Pipeline(regal_like(seed), stages)


def _graph(path: Path, stages: int) -> Pipeline:
    """Return a graph of nodes and edges in JSON, or a CostGraphDef in text (``.pbtxt``)."""
    return Pipeline(load_graph(path), stages)


def _throughput(path: Path, stages: int) -> Pipeline:
    """Return a throughput workload of Tarnawski et al."""
    return Pipeline(read_throughput(path), stages)


def _model(path: Path, stages: int) -> Pipeline:
    """Return the model of a problem file as a pipeline on the equal devices of its machine; costs in nanoseconds."""
    problem = Problem.load(path).resolve({})
    return Pipeline(relax(problem, np.arange(len(problem.topology.devices)).tolist()), stages)


def _workload(path: Path) -> Instance:
    """Return a latency workload of Tarnawski et al."""
    return read_workload(path)


SOURCES: Registry[Callable[..., Any]] = Registry(
    "source",
    "tvm_sched.benchmark_sources",
    entries={
        "tasks": _tasks,
        "hios": _hios,
        "problem": _problem,
        "decoder": _decoder,
        "moirai": _moirai,
        "auckland": _auckland,
        "unrelated": _unrelated,
        "estee": _estee,
        "regal": _regal,
        "graph": _graph,
        "throughput": _throughput,
        "model": _model,
        "workload": _workload,
    },
    elsewhere={"requests": "tvm-sched-cluster"},
)
"""What makes an instance of its arguments, by name; entry points of other distributions name further ones."""
