"""`NativeProblem`: the C++ object of a problem, which prices its schedules and searches for better ones.

Importing this module loads the C++ library. ``make stubs`` generates the text between the marks of ``tvm-ffi-stubgen``.
``cpp/ffi`` documents the methods and names their arguments.
"""

# tvm-ffi-stubgen(begin): import-section
# fmt: off
# isort: off
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from tvm_ffi import Tensor
    from typing import Any, Callable
# isort: on
# fmt: on
# tvm-ffi-stubgen(end)
# tvm-ffi-stubgen(ty-map): tvm_sched.Integers -> Integers
# tvm-ffi-stubgen(ty-map): tvm_sched.Floats -> Floats
# tvm-ffi-stubgen(ty-map): tvm_sched.Problem -> NativeProblem
# tvm-ffi-stubgen(ty-map): tvm_sched.Schedule -> NativeSchedule
# tvm-ffi-stubgen(ty-map): tvm_sched.PartialSchedule -> NativePartialSchedule
# tvm-ffi-stubgen(ty-map): tvm_sched.Extension -> NativeExtension
# tvm-ffi-stubgen(ty-map): tvm_sched.LocalSearch -> NativeLocalSearch

import numpy as np
import numpy.typing as npt

from ..core_library import load_library
from ..problem import HOST, Problem, Route, Scenario
from ..startup import without_torch

with without_torch():  # tvm_ffi imports it if it is installed
    import tvm_ffi
    import tvm_ffi.dataclasses

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

load_library()


@tvm_ffi.register_object("tvm_sched.BrokenRule")
class BrokenRule(tvm_ffi.Object):
    """A rule that a schedule breaks, with the indices of operator, tensor and device; -1: none."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.BrokenRule
    # fmt: off
    rule: str
    operator: int
    tensor: int
    device: int
    other: int
    cycle: Sequence[int]
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.Simulation")
class Simulation(tvm_ffi.Object):
    """Times of a schedule's events, placements first, and the peak bytes on each device."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.Simulation
    # fmt: off
    start_ns: Tensor
    end_ns: Tensor
    peak_memory: Tensor
    latency_ns: int
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.Schedule")
class NativeSchedule(tvm_ffi.Object):
    """A schedule on its problem, simulated once: ``ScheduleObj`` in ``cpp/ffi/schedule.h``; see `ScheduleIndex`."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.Schedule
    # fmt: off
    if TYPE_CHECKING:
        def placements(self, /) -> Tensor: ...
        def transfers(self, /) -> Tensor: ...
        def simulate(self, /) -> Simulation: ...
        def violations(self, _1: int, /) -> Sequence[BrokenRule]: ...
        def holdings(self, /) -> Tensor: ...
        def memory_profile(self, /) -> Tensor: ...
        def threads(self, /) -> Tensor: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.Extension")
class NativeExtension(tvm_ffi.Object):
    """A possible next operator: its end, and the moves before it as rows of tensor, source, device."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.Extension
    # fmt: off
    end_ns: int
    moves: Tensor
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.PartialSchedule")
class NativePartialSchedule(tvm_ffi.Object):
    """A schedule under construction: ``PartialScheduleObj`` in ``cpp/ffi/partial_schedule.h``."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.PartialSchedule
    # fmt: off
    if TYPE_CHECKING:
        def append_run(self, _1: int, _2: int, _3: bool, /) -> int: ...
        def append_move(self, _1: int, _2: int, _3: int, /) -> int: ...
        def extension(self, _1: int, _2: int, _3: bool, /) -> NativeExtension | None: ...
        def can_move(self, _1: int, _2: int, _3: int, /) -> bool: ...
        def shortfall(self, _1: int, _2: int, _3: bool, /) -> int: ...
        def at(self, _1: int, _2: int, /) -> int: ...
        def holders(self, _1: int, /) -> Tensor: ...
        def device_free(self, /) -> Tensor: ...
        def channel_free(self, /) -> Tensor: ...
        def placed(self, /) -> Tensor: ...
        def events(self, /) -> Tensor: ...
        def starts(self, /) -> Tensor: ...
        def ends(self, /) -> Tensor: ...
        def latency_ns(self, /) -> int: ...
        def fits(self, /) -> bool: ...
        def schedule(self, /) -> NativeSchedule: ...
        def transits(self, _1: int, /) -> Tensor: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.LocalSearch")
class NativeLocalSearch(tvm_ffi.Object):
    """A local search over sequences of events: ``LocalSearchObj`` in ``cpp/ffi/local_search.h``."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.LocalSearch
    # fmt: off
    if TYPE_CHECKING:
        def step(self, _1: int, /) -> bool: ...
        def latency_ns(self, /) -> int: ...
        def best(self, /) -> Tensor: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.dataclasses.c_class("tvm_sched.WeightedRun")
class WeightedRun(tvm_ffi.Object):
    """A further run in the objective of a local search, with its weight."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.WeightedRun
    # fmt: off
    problem: NativeProblem
    share: float
    if TYPE_CHECKING:
        def __init__(self, *, problem: NativeProblem, share: float) -> None: ...
        def __ffi_init__(self, *, problem: NativeProblem, share: float) -> None: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.dataclasses.c_class("tvm_sched.LocalSearchSettings")
class LocalSearchSettings(tvm_ffi.Object):
    """Settings of a local search: ``cpp/ffi/local_search.h``."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.LocalSearchSettings
    # fmt: off
    memory_scale: float
    seed: int
    goal_ns: int
    other_runs: Sequence[WeightedRun]
    if TYPE_CHECKING:
        def __init__(self, *, memory_scale: float, seed: int, goal_ns: int, other_runs: Sequence[WeightedRun]) -> None: ...
        def __ffi_init__(self, *, memory_scale: float, seed: int, goal_ns: int, other_runs: Sequence[WeightedRun]) -> None: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.dataclasses.c_class("tvm_sched.IosLimits")
class IosLimits(tvm_ffi.Object):
    """Limits of IOS: ``cpp/ffi/problem.h``."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.IosLimits
    # fmt: off
    groups: int
    group_size: int
    block: int
    states: int
    if TYPE_CHECKING:
        def __init__(self, *, groups: int, group_size: int, block: int, states: int) -> None: ...
        def __ffi_init__(self, *, groups: int, group_size: int, block: int, states: int) -> None: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.IosResult")
class IosResult(tvm_ffi.Object):
    """Result of IOS, or why it refused: ``cpp/ffi/problem.h``."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.IosResult
    # fmt: off
    schedule: NativeSchedule | None
    too_many_states: bool
    block_operators: int
    log2_states: int
    profiled_stages: int
    profiled_ns: int
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.dataclasses.c_class("tvm_sched.AnnealingEffort")
class AnnealingEffort(tvm_ffi.Object):
    """Limits of annealing: ``cpp/ffi/problem.h``."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.AnnealingEffort
    # fmt: off
    operators: int
    seed: int
    goal_ns: int
    stage_operators: int
    if TYPE_CHECKING:
        def __init__(self, *, operators: int, seed: int, goal_ns: int, stage_operators: int) -> None: ...
        def __ffi_init__(self, *, operators: int, seed: int, goal_ns: int, stage_operators: int) -> None: ...
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.ConstructedSequence")
class ConstructedSequence(tvm_ffi.Object):
    """A sequence of list scheduling, and its latency."""

    # tvm-ffi-stubgen(begin): object/tvm_sched.ConstructedSequence
    # fmt: off
    events: Tensor
    latency_ns: int
    # fmt: on
    # tvm-ffi-stubgen(end)


@tvm_ffi.register_object("tvm_sched.Problem")
class NativeProblem(tvm_ffi.Object):
    """A problem in C++: ``ProblemObj`` in ``cpp/ffi/problem.h``.

    Searches return None without a schedule; they call ``progress(done, total)`` repeatedly.
    """

    # tvm-ffi-stubgen(begin): object/tvm_sched.Problem
    # fmt: off
    if TYPE_CHECKING:
        def schedule(self, _1: Integers, _2: Integers, /) -> NativeSchedule: ...
        def schedule_of_sequence(self, _1: Integers, /) -> NativeSchedule: ...
        def least_pair_ratio(self, /) -> float: ...
        def list_schedule(self, _1: str, /) -> NativeSchedule | None: ...
        def hios(self, _1: str, _2: int, _3: int, _4: Callable[..., Any], /) -> NativeSchedule | None: ...
        def ios(self, _1: int, _2: IosLimits, _3: Integers, _4: Callable[..., Any], /) -> IosResult: ...
        def anneal(self, _1: Integers, _2: Integers, _3: Integers, _4: AnnealingEffort, _5: Callable[..., Any], /) -> NativeSchedule | None: ...
        def allocate_streams(self, _1: str, _2: Integers, _3: Integers, /) -> Tensor: ...
        def count_synchronizations(self, _1: Integers, _2: Integers, _3: Integers, /) -> int: ...
        def order_launches(self, _1: str, _2: Integers, _3: Integers, /) -> Tensor: ...
        def construct(self, _1: Integers, _2: Integers, _3: Integers, _4: Integers, _5: float, _6: Integers, _7: Integers, /) -> ConstructedSequence | None: ...
        def improve(self, _1: Integers, _2: LocalSearchSettings, /) -> NativeLocalSearch: ...
        def partial_schedule(self, _1: float, /) -> NativePartialSchedule: ...
        @staticmethod
        def make(_0: Mapping[str, Any], /) -> NativeProblem: ...
    # fmt: on
    # tvm-ffi-stubgen(end)

    @staticmethod
    def of(scenario: Scenario) -> NativeProblem:
        """Make the object of a problem in one run."""
        return NativeProblem.make(_arrays(scenario))


def _arrays(scenario: Scenario) -> dict[str, Any]:
    """Return the arrays that ``ProblemOf`` in ``cpp/ffi/problem_arrays.cc`` reads."""
    problem = scenario.problem
    index = problem.graph.index
    stays = set(index.graph_outputs)
    stays.update(t for t, tensor in enumerate(problem.graph.tensors) if tensor.kind == "parameter")
    input_offsets, inputs = _rows(index.inputs)
    output_offsets, outputs = _rows(index.outputs)
    devices = problem.topology.devices
    return {
        "input_offsets": input_offsets,
        "inputs": inputs,
        "output_offsets": output_offsets,
        "outputs": outputs,
        "tensor_bytes": _array(index.size),
        "tensor_stays": _array([t in stays for t in range(len(index.size))]),
        "tensor_resident": _array([scenario.is_resident(t) for t in range(len(index.size))]),
        "device_memory": _array([d.memory for d in devices]),
        "device_shares_host_memory": _array([problem.reads_host_in_place(d) for d in range(len(devices))]),
        "device_stream_overhead_ns": _array([round(d.stream_overhead * 1e9) for d in devices]),
        "device_wait_overhead_ns": _array([round(d.wait_overhead * 1e9) for d in devices]),
        "operator_ns": _array(problem.costs.operator_ns),
        "direct_ns": _array(problem.costs.direct_ns),
        "host_read_ns": _array(problem.host_reads_ns),
        "number_of_channels": len(problem.topology.channels),
        "lag_ns": scenario.operator_lags_ns,
        **_routes(problem),
        **_concurrency(problem),
    }


def _array(values: Any) -> Integers:
    """Make a writable contiguous copy, as DLPack requires."""
    return np.array(values, dtype=np.int64, order="C")


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """Store rows of different lengths as offsets and elements."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets, np.fromiter((value for row in rows for value in row), dtype=np.int64)


def _routes(problem: Problem) -> dict[str, Integers]:
    """Return the route of each pair, channels of each route, speed of each route, times by speed and tensor."""
    places = range(HOST, len(problem.topology.devices))
    sizes = np.array(problem.graph.index.size, dtype=np.float64)
    routes: dict[Route, int] = {}
    speeds: dict[tuple[float, float], Route] = {}
    pairs = np.full((len(places), len(places)), -1, dtype=np.int64)
    for source in places:
        for target in places:
            route = problem.topology.route(source, target)
            if route is not None:
                pairs[source + 1, target + 1] = routes.setdefault(route, len(routes))
                speeds.setdefault((route.bandwidth, route.latency), route)
    row = {speed: k for k, speed in enumerate(speeds)}
    times = np.array([route.nanoseconds_of(sizes) for route in speeds.values()], dtype=np.int64)
    channel_offsets, channels = _rows([route.channels for route in routes])
    return {
        "route": pairs,
        "channel_offsets": channel_offsets,
        "channels": channels,
        "route_speed": np.array([row[route.bandwidth, route.latency] for route in routes], dtype=np.int64),
        "transfer_ns": times.reshape(len(speeds), len(sizes)),
    }


def _concurrency(problem: Problem) -> dict[str, Any]:
    """Return serial share, utilisation (operator, device, resource), measured pairs, threads and contention.

    There are no resources without concurrency.
    """
    concurrency = problem.costs.concurrency
    if concurrency is None:
        none = np.empty(0, dtype=np.int64)
        return {
            "serial_share": 0.0, "utilisation": np.empty(0), "threads": none, "excess": np.empty(0), "crowding": np.empty(0),
            "factor": 1.0, "pair_device": none, "pair_first": none, "pair_second": none, "pair_ns": none,
        }  # fmt: skip
    device, first, second, time = np.array(concurrency.pairs, dtype=np.int64).reshape(-1, 4).T
    return {
        "serial_share": concurrency.serial_share,
        "utilisation": np.array(concurrency.utilisation, order="C"),
        "pair_device": _array(device),
        "pair_first": _array(first),
        "pair_second": _array(second),
        "pair_ns": _array(time),
        "threads": _array(concurrency.threads),
        "excess": np.array(concurrency.excess, dtype=np.float64),
        "crowding": np.array(concurrency.crowding, order="C"),
        "factor": concurrency.factor,
    }
