"""The max-throughput partitioning problem: a graph to cut into pipeline stages, and the cost of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import GraphError

Floats = npt.NDArray[np.float64]

if TYPE_CHECKING:
    from .native_partition import NativeGraph

Integers = npt.NDArray[np.int64]


MOST_TIME = 1e300
"""Largest total time of all nodes and tensors: bounds multiply it, and double precision ends at 1.8e308."""


@dataclass(frozen=True)
class StageTensor:
    """A tensor that may travel between stages.

    Examples
    --------
    >>> from tvm_sched.pipeline import StageTensor
    >>> StageTensor(producer=0, readers=(1, 2), transfer=100.0)
    StageTensor(producer=0, readers=(1, 2), transfer=100.0, size=0.0, leaves=False)
    """

    producer: int
    """Node that produces it; -1: it comes from outside, to each stage that reads it."""
    readers: tuple[int, ...]
    """Distinct nodes that read it."""
    transfer: float
    """Time to bring it into a stage or out of one."""
    size: float = 0.0
    """Bytes of fast memory that it takes."""
    leaves: bool = False
    """Whether the model returns it, so that its producer's stage sends it in any case."""


@dataclass(frozen=True)
class PartitionProblem:
    """Max-throughput partitioning (MTPP) on equal devices: nodes, tensors, fast memory.

    After Archer et al., "Practical Performance Guarantees for Pipelined DNN Inference" (ICML 2024), Section 2. The cost of
    a stage is the time of its nodes, of the transfers of tensors that it receives and sends, and of streaming parameters
    that do not fit beside its activations (equation 3). Times share one unit; ours is nanoseconds, so that sums are exact.

    Raises
    ------
    GraphError
        Lengths differ; a number is negative or missing; times add up to more than `MOST_TIME`; a tensor names an unknown
        node; the graph has a cycle.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched.pipeline import PartitionProblem, StageTensor
    >>> chain = PartitionProblem(["f", "g"], numpy.array([3.0, 4.0]), numpy.zeros(2), [StageTensor(0, (1,), 1.0)])
    >>> chain.bottleneck(numpy.array([0, 1])), chain.bottleneck(numpy.array([0, 0]))
    (5.0, 7.0)
    """

    names: Sequence[str]
    """Names of the nodes."""
    work: Floats
    """Running time of each node."""
    parameters: Floats
    """Bytes of the parameters of each node."""
    tensors: Sequence[StageTensor]
    memory: float = float("inf")
    """Bytes of fast memory of a device; infinite by default."""
    overflow_time: float = 0.0
    """Time to stream one byte of parameters from slow memory."""

    def __post_init__(self) -> None:
        n = len(self.names)
        for what, values in (("work", self.work), ("parameters", self.parameters)):
            if values.shape != (n,):
                raise GraphError(f"{what} has shape {values.shape}; there are {n} nodes")
            if not (values >= 0).all() or not np.isfinite(values).all():
                v = int(np.flatnonzero(~((values >= 0) & np.isfinite(values)))[0])
                raise GraphError(f"{what} of node {self.names[v]!r} is {values[v]}; 0 or more is allowed")
        for t, tensor in enumerate(self.tensors):
            for v in (tensor.producer, *tensor.readers):
                if not -1 <= v < n or (v < 0 and v != tensor.producer):
                    raise GraphError(f"tensor {t} names node {v}; nodes are 0 to {n - 1}")
            if not 0 <= tensor.transfer < float("inf") or not 0 <= tensor.size < float("inf"):
                raise GraphError(
                    f"tensor {t} has transfer {tensor.transfer} and size {tensor.size}; 0 or more is allowed"
                )
            if len(set(tensor.readers)) < len(tensor.readers):
                raise GraphError(f"tensor {t} names a reader twice")
            if tensor.producer in tensor.readers:
                raise GraphError(f"node {self.names[tensor.producer]!r} reads its own output")
        with np.errstate(over="ignore"):
            total = float(self.work.sum()) + sum(tensor.transfer for tensor in self.tensors)
        if total > MOST_TIME:
            raise GraphError(
                f"the times of all nodes and tensors add up to {total}; at most {MOST_TIME:g} is allowed: give them in a "
                "larger unit"
            )
        if not self.memory >= 0:
            raise GraphError(f"memory is {self.memory}; 0 or more bytes are allowed")
        if len(self.kahn(np.zeros(n))) < n:
            raise GraphError("the graph has a cycle")

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields alone, without the C++ graph."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @cached_property
    def fits_anywhere(self) -> bool:
        """Whether one device holds all parameters and tensors, so that no stage overflows."""
        return bool(self.parameters.sum() + sum(tensor.size for tensor in self.tensors) <= self.memory)

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """Distinct pairs of a node and a reader of its output, ascending."""
        return sorted({(t.producer, v) for t in self.tensors if t.producer >= 0 for v in t.readers})

    @cached_property
    def _native(self) -> NativeGraph:
        """The graph in C++."""
        from .native_partition import NativeGraph  # loads the library

        offsets = np.zeros(len(self.tensors) + 1, dtype=np.int64)
        np.cumsum([len(t.readers) for t in self.tensors], out=offsets[1:])
        return NativeGraph.make(
            {
                "work": _floats(self.work),
                "parameters": _floats(self.parameters),
                "producers": _integers([t.producer for t in self.tensors]),
                "transfers": _floats([t.transfer for t in self.tensors]),
                "sizes": _floats([t.size for t in self.tensors]),
                "leaves": _integers([t.leaves for t in self.tensors]),
                "reader_offsets": offsets,
                "readers": _integers([v for t in self.tensors for v in t.readers]),
                "memory": float(self.memory),
                "overflow_time": float(self.overflow_time),
            }
        )

    def slice(self, order: npt.ArrayLike, stages: int, limit: float = float("inf")) -> tuple[float, list[int]]:
        """Cut a topological order into at most ``stages`` segments with the cheapest bottleneck: SliceGraph.

        Parameters
        ----------
        order : sequence of int
            Nodes in a topological order.
        stages : int
            At least 1.
        limit : float
            Only cuts that cost less count; a low limit makes it faster.

        Returns
        -------
        (float, list of int)
            Cost of the bottleneck, and the position at which each segment ends; infinite and empty if no cut costs less
            than ``limit``.
        """
        cut = self._native.slice(_integers(order), stages, float(limit))
        return cut.bottleneck, np.from_dlpack(cut.ends).tolist()

    def stage_cost(self, nodes: npt.ArrayLike) -> float:
        """Return the cost of a stage that runs ``nodes`` in this order: equation (3)."""
        return float(self._native.stage_cost(_integers(nodes)))

    def kahn(self, keys: npt.ArrayLike) -> Integers:
        """Return Kahn's topological order: among free nodes the one with the largest key comes first."""
        return _integers(np.from_dlpack(self._native.kahn(_floats(keys))))

    def arrangement(self, order: npt.ArrayLike, weighted: bool) -> float:
        """Return the minimum-linear-arrangement objective: the sum of the edges' distances, ``weighted`` by transfers."""
        return float(self._native.arrangement(_integers(order), weighted))

    def evolve(
        self,
        stages: int,
        *,
        objective: str = "slice",
        population: int = 100,
        generations: int = 100,
        seed: int = 0,
        threads: int = 1,
        seconds: float = float("inf"),
        start: npt.ArrayLike = (),
    ) -> Integers:
        """Search for a good order by a biased random-key genetic algorithm; the answer does not depend on ``threads``.

        Parameters
        ----------
        objective : {"slice", "arrangement", "weighted-arrangement"}
            Objective of an order: the bottleneck of its best cut, or its linear arrangement.
        start : array of shape (rows, nodes)
            Keys that the first population contains.

        Returns
        -------
        array of int
            The best order of the search.
        """
        from .native_partition import GeneticSettings  # loads the library

        settings = GeneticSettings(
            objective=objective,
            stages=stages,
            population=population,
            generations=generations,
            seed=seed,
            threads=threads,
            seconds=float(seconds),
        )
        return self.kahn(np.from_dlpack(self._native.evolve(_floats(start).ravel(), settings)))

    def refine(
        self,
        stage_of: npt.ArrayLike,
        stages: int,
        *,
        seed: int = 0,
        moves: int = 1_000_000,
        seconds: float = float("inf"),
    ) -> Integers:
        """Improve an assignment of nodes to stages by simulated annealing; ignores peak memory."""
        from .native_partition import RefineSettings  # loads the library

        settings = RefineSettings(stages=stages, seed=seed, moves=moves, seconds=float(seconds))
        return _integers(np.from_dlpack(self._native.refine(_integers(stage_of), settings)))

    def segment_costs(self, order: npt.ArrayLike) -> Floats:
        """Return the costs of all stages that are segments of a topological order.

        Returns
        -------
        array of shape (nodes + 1, nodes + 1)
            ``[l, r]``: cost of the nodes at positions l to r - 1; 0 if l = r, infinite if l > r.
        """
        rows = np.from_dlpack(self._native.segment_costs(_integers(order)))
        costs = np.full((self.size + 1, self.size + 1), np.inf)
        first, last = np.triu_indices(self.size)
        costs[first, last + 1] = rows
        np.fill_diagonal(costs, 0)
        return costs

    def ideals(
        self, stages: int, *, most: int = 100_000, limit: float = float("inf"), seconds: float = float("inf")
    ) -> tuple[int, bool, Integers | None]:
        """Find the best partition by dynamic programming over ideals (Tarnawski et al., NeurIPS 2020); ignores peak memory.

        Proof: Theorem 3 of ``docs/proofs/partition_ideals.md``.

        Returns
        -------
        (int, bool, array of int or None)
            Number of ideals (above ``most``: too many), whether time ran out, and the stage of each node, or None if no
            partition costs less than ``limit``.
        """
        from .native_partition import IdealSettings  # loads the library

        settings = IdealSettings(stages=stages, most_ideals=most, limit=float(limit), seconds=float(seconds))
        result = self._native.ideals(settings)
        partition = None if result.stages is None else _integers(np.from_dlpack(result.stages))
        return result.ideals, result.stopped, partition

    def valuable_stages(
        self,
        values: npt.ArrayLike,
        target: int,
        limit: float,
        *,
        first: int = 0,
        steps: int = 1_000_000,
        most: int = 1 << 62,
        seconds: float = float("inf"),
    ) -> tuple[int, int, list[Integers]]:
        """Find stages that cost at most ``limit`` and have a value above ``target``, by branch and bound.

        For each node, the most costly first, the search looks for one such stage in which the node is the most costly. If
        no node has one, none exists, whatever the rounding. Overflow is not counted.

        Parameters
        ----------
        values : array of int, one a node
            Values of the nodes, 0 or more; at most 2³⁰ together.
        first : int
            Nodes that earlier calls have finished.
        steps : int
            Steps of the search trees after which no further node begins.
        most : int
            Steps after which the search ends at once.
        seconds : float
            Time after which the search ends at once.

        Returns
        -------
        (int, int, list of array of int)
            Number of finished nodes, including ``first``; the steps; and the nodes of each stage.
        """
        from .native_partition import StageValueSettings  # loads the library

        settings = StageValueSettings(
            target=target, limit=float(limit), first=first, steps=steps, most_steps=most, seconds=float(seconds)
        )
        result = self._native.valuable_stages(_integers(values), settings)
        return result.next, result.steps, [_integers(np.from_dlpack(stage)) for stage in result.stages]

    def stages_of(self, order: npt.ArrayLike, ends: Sequence[int]) -> Integers:
        """Return the stage of each node if an order is cut at ``ends``."""
        stage_of = np.zeros(self.size, dtype=np.int64)
        lengths = np.diff([0, *ends])
        stage_of[np.asarray(order, dtype=np.int64)] = np.repeat(np.arange(len(lengths)), lengths)
        return stage_of

    def stage_lists(self, stage_of: npt.ArrayLike, order: npt.ArrayLike | None = None) -> list[list[int]]:
        """Return the nodes of each non-empty stage in the order in which it runs them.

        Parameters
        ----------
        stage_of : sequence of int
            Stage of each node.
        order : sequence of int, optional
            All nodes, each after its predecessors within its stage; Kahn's order by default.

        Raises
        ------
        GraphError
            An edge leads to an earlier stage.
        """
        stages = np.asarray(stage_of, dtype=np.int64)
        for u, v in self.edges:
            if stages[u] > stages[v]:
                raise GraphError(
                    f"node {self.names[v]!r} is in an earlier stage than {self.names[u]!r}, which it reads"
                )
        run = self.kahn(-stages.astype(np.float64)) if order is None else self._checked(order, stages)
        return [[int(v) for v in run if stages[v] == s] for s in np.unique(stages)]

    def _checked(self, order: npt.ArrayLike, stages: Integers) -> Integers:
        """Return an order in which stages can run; raise `GraphError` for any other."""
        run = _integers(order)
        if not np.array_equal(np.sort(run), np.arange(self.size)):
            raise GraphError(f"the order of a partition does not list each of {self.size} nodes once")
        position = np.empty(self.size, dtype=np.int64)
        position[run] = np.arange(self.size)
        for u, v in self.edges:
            if stages[u] == stages[v] and position[u] > position[v]:
                raise GraphError(f"node {self.names[v]!r} runs before {self.names[u]!r}, which it reads")
        return run

    def bottleneck(self, stage_of: npt.ArrayLike, order: npt.ArrayLike | None = None) -> float:
        """Return the cost of a partition's bottleneck stage, equation (4). Parameters as in `stage_lists`."""
        return max((self.stage_cost(nodes) for nodes in self.stage_lists(stage_of, order)), default=0.0)


def _floats(values: npt.ArrayLike) -> Floats:
    return np.array(values, dtype=np.float64, order="C")


def _integers(values: npt.ArrayLike) -> Integers:
    return np.array(values, dtype=np.int64, order="C")
