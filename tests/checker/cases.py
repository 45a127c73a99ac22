"""Problems that are checked by hand, and the three files of a check."""

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from schedule.cases import gpus, wired
from tvm_sched.bounds import lower_bound
from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched_check import check
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Bus,
    Costs,
    Device,
    Link,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
    as_scenario,
)
from tvm_sched_runtime.schedule import Certificate
from tvm_sched_runtime.schedule.schedule import RequestLatency
from tvm_sched_runtime.schedule.simulator import simulate


@dataclass
class Files:
    """The three documents, each to be changed before they are checked."""

    problem: dict
    schedule: dict
    evidence: dict

    def check(self, folder, proved_ns=None):
        """Check them; ``proved_ns`` of the evidence is what its last lemma says, if not given."""
        if isinstance(self.evidence, dict) and self.evidence.get("lemmas"):
            last = self.evidence["lemmas"][-1]["ns"]
            self.evidence["proved_ns"] = last if proved_ns is None else proved_ns
        paths = [Path(folder) / f"{name}.json" for name in ("problem", "schedule", "evidence")]
        for path, document in zip(paths, (self.problem, self.schedule, self.evidence), strict=True):
            path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
        return check(*paths)


def files_of(problem, schedule):
    """The files of a problem, or of a scenario: a warm run."""
    scenario = as_scenario(problem)
    documents = schedule.to_json(), evidence(scenario).to_json()
    return Files(scenario.problem.to_json(), *map(json.loads, documents))


def certified(problem, schedule):
    """With a certificate, whatever the schedule's memory."""
    scenario = as_scenario(problem)
    runs = simulate(scenario.problem, schedule, resident=scenario.resident), lower_bound(scenario)
    latency, bound = runs[0].latency_ns, runs[1].ns
    requests = [RequestLatency(r.resident, r.weight, latency, bound) for r in scenario.workload.requests]
    known = Certificate(latency, bound, "", "no better found", tuple(requests))
    return msgspec.structs.replace(schedule, certificate=known)


def fan(copy_ns):
    """A source, two branches, a join; each takes 100; tensors take ``copy_ns`` from device to device."""
    graph = wired({"source": "", "a": "source", "b": "source", "join": "a b"}, copy_ns)
    return Problem(graph, gpus(), Costs(np.full((4, 2), 100)))


def bus_problem(copies=(100, 50), direct=None):
    """Two operators that read a parameter each, of these many ns on the one bus; the second reads the first's result."""
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus="pcie") for i in range(2))
    topology = Topology("two", devices, (Bus("pcie", 1e9),))
    graph = OpGraph(
        "pair",
        (Operator("first", "", ("v",), ("x",)), Operator("second", "", ("w", "x"), ("y",))),
        (Tensor("v", copies[0], "parameter"), Tensor("w", copies[1], "parameter"), Tensor("x", 1), Tensor("y", 1)),
        ("y",),
    )
    return Problem(graph, topology, Costs(np.full((2, 2), 10), direct))


def placed(ns):
    """A lemma on the branches of `fan`."""
    return {"rule": "placement", "first": "source", "last": "join", "operators": ["a", "b", "join"], "ns": ns}


def chain_of_readers(count=4):
    """Operators after each other: 10 each, and 200 on the bus, where two tensors are loaded; read directly 160 and 150."""
    device = Device("gpu", 10**6, 1e12, {"float32": 1e12}, bus="pcie")
    topology = Topology("one", (device,), (Bus("pcie", 1e9, 50e-9),))
    names = [f"o{i}" for i in range(count)]
    tensors = [Tensor(f"{name} {part}", 50, "parameter") for name in names for part in "ab"]
    operators = tuple(
        Operator(name, "", (f"{name} a", f"{name} b", *names[max(0, i - 1) : i]), (name,))
        for i, name in enumerate(names)
    )
    graph = OpGraph("chain", operators, (*tensors, *(Tensor(name, 1) for name in names)), (names[-1],))
    return Problem(graph, topology, Costs(np.full((count, 1), 10), np.full((count, 1), 160)))


def readers_between(branches, copy_ns, time=10, direct=160, load=50, devices=2):
    """A source, branches, a join, on linked devices of one bus; each branch reads two parameters.

    A parameter takes ``load`` and a latency of 50 on the bus. A copy of what an operator makes takes ``copy_ns``.
    """
    members = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus="pcie") for i in range(devices))
    pairs = [(f"gpu{a}", f"gpu{b}") for b in range(devices) for a in range(b)]
    topology = Topology("even", members, (Bus("pcie", 1e9, 50e-9),), tuple(Link(pair, 1e9) for pair in pairs))
    names = [f"b{i}" for i in range(branches)]
    operators = [Operator("source", "", (), ("x",))]
    operators += [Operator(name, "", ("x", f"{name} a", f"{name} b"), (name,)) for name in names]
    operators.append(Operator("join", "", tuple(names), ("y",)))
    tensors = [Tensor(f"{name} {part}", load, "parameter") for name in names for part in "ab"]
    tensors += [Tensor(name, copy_ns) for name in ("x", *names, "y")]
    direct_ns = np.full((branches + 2, devices), FORBIDDEN)
    direct_ns[1:-1] = direct
    graph = OpGraph("branches", tuple(operators), tuple(tensors), ("y",))
    return Problem(graph, topology, Costs(np.full((branches + 2, devices), time), direct_ns))
