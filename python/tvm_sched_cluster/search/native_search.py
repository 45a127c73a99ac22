"""`NativeClusterSearch`: the C++ object of a cluster on which chains are placed.

Importing this module loads the C++ library. ``make stubs`` generates what stands between the marks of ``tvm-ffi-stubgen``;
``cpp/ffi/cluster.cc`` says what each method does and names its arguments.
"""

# tvm-ffi-stubgen(begin): import-section
# fmt: off
# isort: off
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from tvm_ffi import Tensor
    from typing import Any
# isort: on
# fmt: on
# tvm-ffi-stubgen(end)
# tvm-ffi-stubgen(ty-map): tvm_sched.Integers -> Integers
# tvm-ffi-stubgen(ty-map): tvm_sched.ClusterSearch -> NativeClusterSearch

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.core_library import load_library
from tvm_sched_runtime.startup import without_torch

with without_torch():  # which a plain import brings along where it is installed
    import tvm_ffi
    import tvm_ffi.dataclasses

Integers = npt.NDArray[np.int64]

load_library()


@tvm_ffi.dataclasses.c_class("tvm_sched.ChainLimits")
class ChainLimits(tvm_ffi.Object):
    """The longest cycle and latency that a chain may have."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.ChainLimits
    # fmt: off
    cycle_ns: int
    latency_ns: int
    if TYPE_CHECKING:
        def __init__(self, *, cycle_ns: int, latency_ns: int) -> None: ...
        def __ffi_init__(self, *, cycle_ns: int, latency_ns: int) -> None: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.MixTable")
class MixTable(tvm_ffi.Object):
    """Mixes of GPUs that can serve a chain: a row for each mix, a column for each kind."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.MixTable
    # fmt: off
    gpus: Tensor
    cycle_ns: Tensor
    latency_ns: Tensor
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.ChainEmbedding")
class ChainEmbedding(tvm_ffi.Object):
    """An embedding: GPUs and routes of the stages of a chain (``cpp/ffi/cluster.cc``)."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.ChainEmbedding
    # fmt: off
    mix: int
    pools: Sequence[int]
    ends: Sequence[int]
    routes: Sequence[Sequence[int]]
    cycle_ns: int
    latency_ns: int
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.dataclasses.c_class("tvm_sched.AntSettings")
class AntSettings(tvm_ffi.Object):
    """Settings of the ant colony."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.AntSettings
    # fmt: off
    agents: int
    generations: int
    least_stages: int
    most_stages: int
    seed: int
    decrease: float
    increase: float
    pheromone_weight: float
    cost_weight: float
    initial: float
    access_links: bool
    free_walks: bool
    sub_agents: bool
    pool_links: bool
    pool_choice: bool
    falling_costs: bool
    first_rise: bool
    fastest: bool
    if TYPE_CHECKING:
        def __init__(self, *, agents: int, generations: int, least_stages: int, most_stages: int, seed: int, decrease: float, increase: float, pheromone_weight: float, cost_weight: float, initial: float, access_links: bool, free_walks: bool, sub_agents: bool, pool_links: bool, pool_choice: bool, falling_costs: bool, first_rise: bool, fastest: bool) -> None: ...
        def __ffi_init__(self, *, agents: int, generations: int, least_stages: int, most_stages: int, seed: int, decrease: float, increase: float, pheromone_weight: float, cost_weight: float, initial: float, access_links: bool, free_walks: bool, sub_agents: bool, pool_links: bool, pool_choice: bool, falling_costs: bool, first_rise: bool, fastest: bool) -> None: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.ClusterSearch")
class NativeClusterSearch(tvm_ffi.Object):
    """A cluster in C++: ``ClusterSearchObj`` in ``cpp/ffi/cluster.cc``."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.ClusterSearch
    # fmt: off
    if TYPE_CHECKING:
        def add_chain(self, _1: Integers, _2: Integers, _3: Integers, _4: ChainLimits, /) -> int: ...
        def mixes(self, _1: int, _2: Integers, _3: int, _4: int, /) -> MixTable: ...
        def embed(self, _1: int, _2: Integers, _3: Integers, _4: Integers, /) -> ChainEmbedding | None: ...
        def ants(self, _1: int, _2: Integers, _3: Integers, _4: AntSettings, /) -> ChainEmbedding | None: ...
        @staticmethod
        def make(_0: Mapping[str, Any], /) -> NativeClusterSearch: ...
    # fmt: on
    # tvm-ffi-stubgen(end)
