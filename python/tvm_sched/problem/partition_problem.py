"""A graph to be cut into pipeline stages, and what a stage costs: the max-throughput partitioning problem."""

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
"""Of all nodes and tensors together: bounds multiply it, and double precision ends at 1.8e308."""


@dataclass(frozen=True)
class StageTensor:
    """A tensor that may travel between stages.

    Parameters
    ----------
    producer : int
        Node that makes it; -1: it comes from outside, to each stage that reads it.
    readers : tuple of int
        Distinct nodes that read it.
    transfer : float
        Time to bring it into a stage, or out of one.
    size : float
        Bytes of fast memory while it is held.
    leaves : bool
        Whether the model returns it, so that its producer's stage sends it in any case.
    """

    producer: int
    readers: tuple[int, ...]
    transfer: float
    size: float = 0.0
    leaves: bool = False


@dataclass(frozen=True)
class PartitionProblem:
    """Max-throughput partitioning (MTPP) on equal devices: nodes, tensors, fast memory.

    After Archer et al., "Practical Performance Guarantees for Pipelined DNN Inference" (ICML 2024), Section 2. A stage
    ``S`` costs the transfers of the tensors that it gets, the work of its nodes, the transfers of the tensors that it
    sends, and the streaming of parameters that do not fit beside its activations (equation 3). Times are in any one
    unit; problems of ours use nanoseconds, so that sums are exact.

    Parameters
    ----------
    names : sequence of str
        Of the nodes.
    work : array of float, one a node
        Running time.
    parameters : array of float, one a node
        Bytes of the parameters that it uses.
    tensors : sequence of StageTensor
    memory : float
        Bytes of fast memory of a device; infinite by default.
    overflow_time : float
        Time to stream one byte of parameters from slow memory.

    Raises
    ------
    GraphError
        Lengths that differ, a negative or missing number, times that add up to more than `MOST_TIME`, a tensor
        of an unknown node, a cycle.
    """

    names: Sequence[str]
    work: Floats
    parameters: Floats
    tensors: Sequence[StageTensor]
    memory: float = float("inf")
    overflow_time: float = 0.0

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
        """What travels to another process: the fields, not what was compiled from them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @cached_property
    def fits_anywhere(self) -> bool:
        """Whether all parameters and tensors fit into one device together, so that no stage overflows."""
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
            Only costs below it are of interest; a good one makes it faster.

        Returns
        -------
        (float, list of int)
            Cost of the bottleneck, and the position at which each segment ends. Infinite and empty where there is no
            such cut below ``limit``.
        """
        found = self._native.slice(_integers(order), stages, float(limit))
        return found.bottleneck, np.from_dlpack(found.ends).tolist()

    def stage_cost(self, nodes: npt.ArrayLike) -> float:
        """Cost of a stage that runs ``nodes`` in the order given: equation (3)."""
        return float(self._native.stage_cost(_integers(nodes)))

    def kahn(self, keys: npt.ArrayLike) -> Integers:
        """Kahn's topological order: among free nodes the one with the largest key comes first."""
        return _integers(np.from_dlpack(self._native.kahn(_floats(keys))))

    def arrangement(self, order: npt.ArrayLike, weighted: bool) -> float:
        """Minimum-linear-arrangement objective: distances over all edges, times the transfers where ``weighted``."""
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
            What an order is worth: the bottleneck of its best cut, or its linear arrangement.
        start : array of shape (rows, nodes)
            Keys that the first population contains.

        Returns
        -------
        array of int
            The best order found.
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
        """Improve an assignment of nodes to stages by simulated annealing; peak memory is not looked at."""
        from .native_partition import RefineSettings  # loads the library

        settings = RefineSettings(stages=stages, seed=seed, moves=moves, seconds=float(seconds))
        return _integers(np.from_dlpack(self._native.refine(_integers(stage_of), settings)))

    def segment_costs(self, order: npt.ArrayLike) -> Floats:
        """Costs of all stages that are segments of a topological order.

        Returns
        -------
        array of shape (nodes + 1, nodes + 1)
            ``[l, r]``: of the nodes at the positions from l to r - 1; 0 where l = r, infinite where l > r.
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
        """The best partition by dynamic programming over ideals (Tarnawski et al., NeurIPS 2020); no peak memory.

        Returns
        -------
        (int, bool, array of int or None)
            The number of ideals (more than ``most``: given up), whether time was over, and the stage of each node
            where there is a partition that costs less than ``limit``.
        """
        from .native_partition import IdealSettings  # loads the library

        settings = IdealSettings(stages=stages, most_ideals=most, limit=float(limit), seconds=float(seconds))
        found = self._native.ideals(settings)
        partition = None if found.stages is None else _integers(np.from_dlpack(found.stages))
        return found.ideals, found.stopped, partition

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
        """Stages that cost at most ``limit`` and are worth more than ``target``, by branch and bound.

        Nodes are looked at in turn, that which costs most alone first, and of the stages in which one is the dearest
        the search ends with one that is worth more. Where no node has such a stage, there is none, whatever the
        rounding. Overflow is not counted.

        Parameters
        ----------
        values : array of int, one a node
            What nodes are worth, 0 or more; at most 2³⁰ together.
        first : int
            Nodes that have been looked at before.
        steps : int
            Of the search trees; after as many no further node is looked at.
        most : int
            Steps after which the search ends, wherever it is.
        seconds : float
            After these the search ends, wherever it is.

        Returns
        -------
        (int, int, list of array of int)
            How many nodes have been looked at, with those before; the steps; and the nodes of each stage found.
        """
        from .native_partition import StageValueSettings  # loads the library

        settings = StageValueSettings(
            target=target, limit=float(limit), first=first, steps=steps, most_steps=most, seconds=float(seconds)
        )
        found = self._native.valuable_stages(_integers(values), settings)
        return found.next, found.steps, [_integers(np.from_dlpack(stage)) for stage in found.stages]

    def stages_of(self, order: npt.ArrayLike, ends: Sequence[int]) -> Integers:
        """The stage of each node where an order is cut at ``ends``."""
        stage_of = np.zeros(self.size, dtype=np.int64)
        lengths = np.diff([0, *ends])
        stage_of[np.asarray(order, dtype=np.int64)] = np.repeat(np.arange(len(lengths)), lengths)
        return stage_of

    def stage_lists(self, stage_of: npt.ArrayLike, order: npt.ArrayLike | None = None) -> list[list[int]]:
        """The nodes of each stage that has any, in the order in which it runs them.

        Parameters
        ----------
        stage_of : sequence of int
            Stage of each node.
        order : sequence of int, optional
            All nodes, each after what it reads within its stage; Kahn's order by default.

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
        """An order that stages can run in; raises `GraphError` for any other."""
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
        """Cost of the bottleneck stage of a partition: the objective, equation (4). Parameters as of `stage_lists`."""
        return max((self.stage_cost(nodes) for nodes in self.stage_lists(stage_of, order)), default=0.0)


def _floats(values: npt.ArrayLike) -> Floats:
    return np.array(values, dtype=np.float64, order="C")


def _integers(values: npt.ArrayLike) -> Integers:
    return np.array(values, dtype=np.int64, order="C")
