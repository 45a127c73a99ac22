"""`NativeClusterSearch`: the C++ object of a cluster on which chains are placed.

Importing this module loads the C++ library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tvm_sched._library import load_library, without_torch

with without_torch():  # which a plain import brings along where it is installed
    import tvm_ffi

Integers = npt.NDArray[np.int64]

load_library()


@tvm_ffi.register_object("tvm_sched.ClusterSearch")
class NativeClusterSearch(tvm_ffi.Object):
    """A cluster in C++: ``ClusterSearchObj`` in ``cpp/ffi/cluster.cc``, whose methods these are.

    Times are nanoseconds, sizes bytes. What is returned as ``Any`` is a tensor.
    """

    if TYPE_CHECKING:

        @staticmethod
        def make(kinds: Integers, pools: Integers, switches: Integers, links: Integers) -> NativeClusterSearch:
            """A cluster.

            Rows: kinds (FLOP/s, bytes), pools (switch, kind, rack, delay, bytes/s), switch delays, links (switch, switch,
            delay, bytes/s).
            """

        def add_chain(self, times: Integers, memory: Integers, input: Integers, cycle: int, latency: int) -> int:
            """Keep a chain of blocks, with its limits; returns its number. ``times``: a row for each kind."""

        def mixes(self, chain: int, gpus: Integers, stages: int, most: int) -> Any:
            """A row for each mix: its GPUs of each kind, cycle, latency."""

        def embed(self, chain: int, mixes: Integers, gpus: Integers, fibres: Integers) -> Any:
            """Position of the first mix that can be embedded in what is free, then its embedding; else an empty row."""

        def ants(
            self,
            chain: int,
            gpus: Integers,
            fibres: Integers,
            counts: Integers,
            decrease: float,
            increase: float,
            pheromone_weight: float,
            cost_weight: float,
            initial: float,
        ) -> Any:
            """The embedding that ants find, or an empty row.

            ``counts``: agents, generations, least and most stages, seed.
            """
