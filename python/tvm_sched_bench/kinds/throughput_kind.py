"""Instances of throughput: a `PartitionProblem` and a number of stages; methods are partitioners."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from tvm_sched.bounds.partitions.partition_evidence import partition_evidence
from tvm_sched.bounds.partitions.semidefinite_evidence import Effort
from tvm_sched.bounds.partitions.simple import simple_bound
from tvm_sched.pipeline import Partition
from tvm_sched.pipeline.partitioner_registry import PARTITIONERS, partition
from tvm_sched_check.partitions import check as independent_check
from tvm_sched_runtime.errors import FormatError, InputError, SchedulerError
from tvm_sched_runtime.files import content_digest, convert, decode_document, encode_document
from tvm_sched_runtime.pipeline import PartitionProblem

from .kind import NO_FILES, Answer, Checked, Kind, Proof, checked_in_files, has_seed, limited

FORMAT, VERSION = "tvm_sched.partition", 1

_NAMES = {"average": "simple", "operator": "node"}
"""Names of bounds by rule of evidence, where the two differ."""


@dataclass(frozen=True)
class Pipeline:
    """A graph, and the most stages that it may be cut into."""

    graph: PartitionProblem
    stages: int


class Partitioned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A solution: the instance's digest, and the nodes of each stage in the order in which it runs them."""

    instance: str
    stages: tuple[tuple[str, ...], ...]


class ThroughputKind(Kind[Pipeline]):
    """Partitions whose bottleneck stage is as cheap as possible, on equal devices."""

    name, unit = "throughput", "cost"

    def methods(self) -> Sequence[str]:
        """Return the registered partitioners."""
        return PARTITIONERS.names()

    def is_random(self, method: str) -> bool:
        """Return whether the method has a seed."""
        return has_seed(PARTITIONERS, method)

    def digest(self, task: Pipeline) -> str:
        """Return the digest of nodes, tensors, memory and stages."""
        return content_digest(self.document(task))

    def solve(self, task: Pipeline, method: str, seconds: float, seed: int) -> Answer:
        """`tvm_sched.pipeline.partition` in this time."""
        _, options = limited(PARTITIONERS, method, seconds, seed)
        cut = partition(task.graph, task.stages, method, options)
        return Answer(cut.cost, self.solution(task, cut), cut.seconds, Proof(cut.bound, cut.bound_name))

    def solution(self, task: Pipeline, cut: Partition) -> bytes:
        """Return the document of a partition."""
        lists = task.graph.stage_lists(cut.stage_of, cut.order)
        body = Partitioned(self.digest(task), tuple(tuple(task.graph.names[v] for v in nodes) for nodes in lists))
        return encode_document(body, FORMAT, VERSION)

    def worth(self, task: Pipeline, solution: bytes, where: str) -> float:
        """Check the stages and return the cost of the bottleneck stage."""
        partitioned = convert(decode_document(solution, FORMAT, VERSION, where), Partitioned, where)
        if partitioned.instance != self.digest(task):
            raise InputError(
                f"{where}: a partition of instance {partitioned.instance!r}; this one is {self.digest(task)!r}"
            )
        if len(partitioned.stages) > task.stages:
            raise InputError(f"{where}: {len(partitioned.stages)} stages; at most {task.stages} are allowed")
        number = {name: v for v, name in enumerate(task.graph.names)}
        listed = [name for stage in partitioned.stages for name in stage]
        if sorted(listed) != sorted(number):
            raise InputError(f"{where}: the stages do not hold each node of the graph once")
        stage_of = np.zeros(task.graph.size, dtype=np.int64)
        for s, stage in enumerate(partitioned.stages):
            stage_of[[number[name] for name in stage]] = s
        return task.graph.bottleneck(stage_of, [number[name] for name in listed])

    def proof(self, task: Pipeline) -> Proof:
        """Return the simple bound. Methods that prove more say so in their results."""
        return Proof(simple_bound(task.graph, task.stages), "simple")

    def prove(self, task: Pipeline, value: float, known: Proof, iterations: int) -> Proof:
        """Return the strongest argument to store: formula, node, ideals (if they gave the bound) or multipliers."""
        again = {known.by: known.bound} if known.by in ("ideals", "prices") else {}
        argument = partition_evidence(task.graph, task.stages, value, **again, multipliers=Effort(iterations))
        return Proof(argument.bound, _NAMES.get(argument.rule, argument.rule), argument.to_json(self.digest(task)))

    def check(
        self, task: Pipeline, solution: bytes, proof: Proof, where: str, files: Mapping[str, str] = NO_FILES
    ) -> Checked:
        """Check cost and evidence by `tvm_sched_check.partitions`; without evidence that proves the simple bound."""
        contents = {"instance": self.document(task), "solution": solution}
        contents |= {"evidence": proof.evidence} if proof.evidence is not None else {}
        verdict = checked_in_files(independent_check, contents, where, files)
        if not math.isclose(verdict.cost, self.worth(task, solution, where), rel_tol=1e-9):
            raise SchedulerError(f"{where}: package and tvm_sched_check.partitions differ: please report this")
        return Checked("tvm_sched_check.partitions", float(verdict.proved))

    def document(self, task: Pipeline) -> bytes:
        """Nodes and tensors, as `PartitionProblem` has them."""
        graph = task.graph
        if len(set(graph.names)) < graph.size:
            raise FormatError("names of the graph's nodes stand twice; solutions could not name them")
        body = {
            "stages": task.stages,
            "memory": None if np.isinf(graph.memory) else graph.memory,
            "overflow_time": graph.overflow_time,
            "nodes": [
                {"name": name, "work": work, "parameters": parameters}
                for name, work, parameters in zip(
                    graph.names, graph.work.tolist(), graph.parameters.tolist(), strict=True
                )
            ],
            "tensors": [
                [t.producer, list(t.readers), t.transfer, t.size, t.leaves] for t in graph.tensors
            ],
        }  # fmt: skip
        return encode_document(body, "tvm_sched.partition_problem", 1)
