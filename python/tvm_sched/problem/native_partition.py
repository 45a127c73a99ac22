"""`NativeGraph`: the C++ object of a graph that is cut into pipeline stages.

Importing this module loads the C++ library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._library import load_library, without_torch

with without_torch():  # which a plain import brings along where it is installed
    import tvm_ffi

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

load_library()


@tvm_ffi.register_object("tvm_sched.PartitionGraph")
class NativeGraph(tvm_ffi.Object):
    """A graph in C++: ``PartitionGraphObj`` in ``cpp/ffi/partition.cc``, whose methods these are.

    What is returned as ``Any`` is a tensor of one row.
    """

    if TYPE_CHECKING:

        @staticmethod
        def make(
            work: Floats,
            parameters: Floats,
            producers: Integers,
            transfers: Floats,
            sizes: Floats,
            leaves: Integers,
            reader_offsets: Integers,
            readers: Integers,
            memory: float,
            overflow_time: float,
        ) -> NativeGraph:
            """A graph; ``producers`` has the node that makes each tensor, or -1, ``leaves`` is 0 or 1."""

        def slice(self, order: Integers, stages: int, limit: float) -> Any:
            """Cost of the bottleneck, then where each stage ends; infinity alone where none is below the limit."""

        def stage_cost(self, nodes: Integers) -> float:
            """Cost of a stage that runs ``nodes`` in this order."""

        def kahn(self, keys: Floats) -> Any:
            """Kahn's order with these keys."""

        def arrangement(self, order: Integers, weighted: bool) -> float:
            """Objective of the minimum linear arrangement."""

        def evolve(
            self,
            objective: int,
            stages: int,
            population: int,
            generations: int,
            seed: int,
            threads: int,
            seconds: float,
            start: Floats,
        ) -> Any:
            """The best keys found by the genetic algorithm, from rows of keys to start with."""

        def refine(self, stages: Integers, count: int, seed: int, moves: int, seconds: float) -> Any:
            """Stages of the nodes after annealing."""

        def segment_costs(self, order: Integers) -> Any:
            """Costs of all segments of an order."""

        def ideals(self, stages: int, most: int, limit: float, seconds: float) -> Any:
            """Number of ideals, whether time was over, cost, then the stage of each node if any."""

        def valuable_stages(
            self, values: Integers, target: int, limit: float, first: int, steps: int, most: int, seconds: float
        ) -> Any:
            """Nodes looked at, steps, then of each stage worth more than the target its length and nodes."""
