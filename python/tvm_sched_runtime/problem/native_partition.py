"""`NativeGraph`: the C++ object of a graph that is cut into pipeline stages.

Importing this module loads the C++ library. ``make stubs`` generates the text between the marks of ``tvm-ffi-stubgen``.
``cpp/ffi/partition.cc`` documents the methods and names their arguments.
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
# tvm-ffi-stubgen(ty-map): tvm_sched.Floats -> Floats
# tvm-ffi-stubgen(ty-map): tvm_sched.PartitionGraph -> NativeGraph

import numpy as np
import numpy.typing as npt

from ..core_library import load_library
from ..startup import without_torch

with without_torch():  # tvm_ffi imports it if it is installed
    import tvm_ffi
    import tvm_ffi.dataclasses

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

load_library()


@tvm_ffi.register_object("tvm_sched.Slicing")
class Slicing(tvm_ffi.Object):
    """The best cut of an order: its bottleneck (infinite if none is below the limit) and the ends of stages."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.Slicing
    # fmt: off
    bottleneck: float
    ends: Tensor
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.dataclasses.c_class("tvm_sched.GeneticSettings")
class GeneticSettings(tvm_ffi.Object):
    """Settings of the genetic algorithm over orders."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.GeneticSettings
    # fmt: off
    objective: str
    stages: int
    population: int
    generations: int
    seed: int
    threads: int
    seconds: float
    if TYPE_CHECKING:
        def __init__(self, *, objective: str, stages: int, population: int, generations: int, seed: int, threads: int, seconds: float) -> None: ...
        def __ffi_init__(self, *, objective: str, stages: int, population: int, generations: int, seed: int, threads: int, seconds: float) -> None: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.dataclasses.c_class("tvm_sched.RefineSettings")
class RefineSettings(tvm_ffi.Object):
    """Settings of annealing over assignments."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.RefineSettings
    # fmt: off
    stages: int
    seed: int
    moves: int
    seconds: float
    if TYPE_CHECKING:
        def __init__(self, *, stages: int, seed: int, moves: int, seconds: float) -> None: ...
        def __ffi_init__(self, *, stages: int, seed: int, moves: int, seconds: float) -> None: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.dataclasses.c_class("tvm_sched.IdealSettings")
class IdealSettings(tvm_ffi.Object):
    """Settings of the dynamic program over ideals."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.IdealSettings
    # fmt: off
    stages: int
    most_ideals: int
    limit: float
    seconds: float
    if TYPE_CHECKING:
        def __init__(self, *, stages: int, most_ideals: int, limit: float, seconds: float) -> None: ...
        def __ffi_init__(self, *, stages: int, most_ideals: int, limit: float, seconds: float) -> None: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.IdealPartition")
class IdealPartition(tvm_ffi.Object):
    """Result of the dynamic program over ideals."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.IdealPartition
    # fmt: off
    ideals: int
    stopped: bool
    stages: Tensor | None
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.dataclasses.c_class("tvm_sched.StageValueSettings")
class StageValueSettings(tvm_ffi.Object):
    """Settings of the search for valuable stages."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.StageValueSettings
    # fmt: off
    target: int
    limit: float
    first: int
    steps: int
    most_steps: int
    seconds: float
    if TYPE_CHECKING:
        def __init__(self, *, target: int, limit: float, first: int, steps: int, most_steps: int, seconds: float) -> None: ...
        def __ffi_init__(self, *, target: int, limit: float, first: int, steps: int, most_steps: int, seconds: float) -> None: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.ValuableStages")
class ValuableStages(tvm_ffi.Object):
    """Stages that are worth more than a target, and how far the search came."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.ValuableStages
    # fmt: off
    next: int
    steps: int
    stages: Sequence[Tensor]
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.PartitionGraph")
class NativeGraph(tvm_ffi.Object):
    """A graph in C++: ``PartitionGraphObj`` in ``cpp/ffi/partition.cc``."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.PartitionGraph
    # fmt: off
    if TYPE_CHECKING:
        def slice(self, _1: Integers, _2: int, _3: float, /) -> Slicing: ...
        def stage_cost(self, _1: Integers, /) -> float: ...
        def kahn(self, _1: Floats, /) -> Tensor: ...
        def arrangement(self, _1: Integers, _2: bool, /) -> float: ...
        def evolve(self, _1: Floats, _2: GeneticSettings, /) -> Tensor: ...
        def refine(self, _1: Integers, _2: RefineSettings, /) -> Tensor: ...
        def segment_costs(self, _1: Integers, /) -> Tensor: ...
        def ideals(self, _1: IdealSettings, /) -> IdealPartition: ...
        def valuable_stages(self, _1: Integers, _2: StageValueSettings, /) -> ValuableStages: ...
        @staticmethod
        def make(_0: Mapping[str, Any], /) -> NativeGraph: ...
    # fmt: on
    # tvm-ffi-stubgen(end)
