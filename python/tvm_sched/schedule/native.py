"""`NativeProblem`: the C++ object of a problem, which prices its schedules and searches for better ones.

Importing this module loads the C++ library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._library import load_library, without_torch
from ..problem import HOST, Problem, Route, Scenario

with without_torch():  # which a plain import brings along where it is installed
    import tvm_ffi

Array = npt.NDArray[np.int64]

load_library()


@tvm_ffi.register_object("tvm_sched.LocalSearch")
class NativeLocalSearch(tvm_ffi.Object):
    """A local search over sequences of events: ``LocalSearchObj`` in ``cpp/ffi/problem.h``."""

    if TYPE_CHECKING:

        def step(self, events: int) -> bool:
            """Replay about that many events more; False when it is of no use to go on."""

        def latency_ns(self) -> int:
            """Latency of the best schedule."""

        def best(self) -> Any:
            """Sequence of the best schedule: rows of kind, item, source, device."""


@tvm_ffi.register_object("tvm_sched.PartialSchedule")
class NativePartialSchedule(tvm_ffi.Object):
    """A schedule under construction: ``PartialScheduleObj`` in ``cpp/ffi/partial_schedule.h``.

    What is returned as ``Any`` is a tensor: of one row, but for `events`. Schedulers use it as
    `tvm_sched.schedulers.PartialSchedule`.
    """

    if TYPE_CHECKING:

        def append(self, kind: int, item: int, source: int, device: int) -> int:
            """Append an event; its end in nanoseconds."""

        def extension(self, operator: int, device: int, direct: bool) -> Any:
            """The end, then tensor, source, device of each move; empty where there is none."""

        def can_move(self, tensor: int, source: int, device: int) -> bool:
            """Whether the tensor is at its source and not yet at its device."""

        def shortfall(self, operator: int, device: int, direct: bool) -> int:
            """Bytes that the device lacks for an operator whose host tensors are loaded."""

        def at(self, tensor: int, device: int) -> int:
            """When a tensor is on a device; -1 where it was not brought."""

        def holders(self, tensor: int) -> Any:
            """Devices to which a tensor was brought, in the order in which it got there."""

        def device_free(self) -> Any:
            """When each device has done all that was given to it."""

        def channel_free(self) -> Any:
            """When each channel has done all that was given to it."""

        def placed(self) -> Any:
            """Device of each operator, or -1."""

        def events(self) -> Any:
            """Rows of kind, item, source, device."""

        def starts(self) -> Any:
            """When each event begins."""

        def ends(self) -> Any:
            """When each event ends."""

        def latency_ns(self) -> int:
            """End of the last operator."""

        def fits(self) -> bool:
            """Whether every device has room for what was brought to it."""

        def schedule(self) -> NativeSchedule:
            """The schedule in the order of the events."""

        def transits(self, device: int) -> Any:
            """Neighbours through which parameters may come to a device."""


@tvm_ffi.register_object("tvm_sched.Schedule")
class NativeSchedule(tvm_ffi.Object):
    """A schedule on its problem, simulated once: ``ScheduleObj`` in ``cpp/ffi/schedule.h``; see `ScheduleIndex`."""

    if TYPE_CHECKING:

        def placements(self) -> Any:
            """Rows of operators, devices, direct, streams, stages."""

        def transfers(self) -> Any:
            """Rows of kinds, items, sources, devices, evict."""

        def simulate(self, times: Array, peak: Array) -> int:
            """Fill start and end of each event and the peak memory of each device; return the latency in nanoseconds.

            Raises ``ValueError`` where a rule is broken.
            """

        def violations(self, limit: int) -> Sequence[Sequence[int]]:
            """A list for each broken rule.

            Position in `verify.RULES`, operator, tensor, device, other device, then the events of a cycle; -1 where a
            field says nothing.
            """

        def holdings(self) -> Any:
            """Rows of tensor, device, begin, end."""

        def memory_profile(self) -> Any:
            """Rows of device, time, bytes held."""

        def threads(self) -> Any:
            """By placement: how many threads compute it; 0 where its device has none."""


@tvm_ffi.register_object("tvm_sched.Problem")
class NativeProblem(tvm_ffi.Object):
    """A problem in C++: ``ProblemObj`` in ``cpp/ffi/problem.h``, whose methods these are.

    Searches return None where they find no schedule; ``progress(done, total)`` is called now and then.
    """

    @staticmethod
    def of(scenario: Scenario) -> NativeProblem:
        """Make the object of a problem in one run."""
        return NativeProblem.make(_arrays(scenario))

    if TYPE_CHECKING:

        @staticmethod
        def make(arrays: dict[str, Any]) -> NativeProblem:
            """Make a problem from arrays by name."""

        def schedule(self, placements: Array, transfers: Array) -> NativeSchedule:
            """A schedule from its two tables, see `ScheduleIndex`."""

        def schedule_of_sequence(self, sequence: Array) -> NativeSchedule:
            """A schedule from rows of kind, item, source, device."""

        def least_pair_ratio(self) -> float:
            """The least that a measured pair takes of what the formula says of it; at most 1."""

        def list_schedule(self, method: int) -> NativeSchedule | None:
            """HEFT or PEFT."""

        def hios(self, by_paths: bool, window: int, progress: Callable[[int, int], None]) -> NativeSchedule | None:
            """HIOS-LP, else HIOS-MR; a window below 2 leaves operators by themselves."""

        def ios(self, device: int, limits: Array, progress: Callable[[int, int], None]) -> NativeSchedule | None:
            """IOS within ``limits``: groups, operators of a group, operators of a block, states.

            Afterwards ``limits`` holds the largest block's operators and states and, where these are too many, the power of
            two that is about as many.
            """

        def anneal(
            self, sequence: Array, effort: Array, progress: Callable[[int, int], float]
        ) -> NativeSchedule | None:
            """Anneal from rows of operator, device, whether it starts with the one before it, in topological order.

            ``effort``: operators to time, seed, goal in nanoseconds, most operators of a stage. ``progress`` returns the
            part of the time limit that is over.
            """

        def allocate_streams(self, method: int, launches: Array) -> None:
            """Fill the third row of operators, devices, streams in a topological launch order."""

        def count_synchronizations(self, launches: Array) -> int:
            """How many waits between streams such launches need."""

        def order_launches(self, method: int, demand: Array, memory_bound: Array, order: Array) -> None:
            """Fill a launch order by the operators' demands."""

        def construct(self, choices: Array, choice: Array, memory_scale: float) -> tuple[Any, int]:
            """List scheduling: a sequence and its latency in nanoseconds.

            ``choices``: rows of direct, then 0 or 1 for each device; ``choice``: the row of each operator.
            """

        def improve(
            self, start: Array, memory_scale: float, seed: int, goal: int, others: Sequence[Any]
        ) -> NativeLocalSearch:
            """A local search from a sequence until a latency of ``goal`` nanoseconds.

            ``others``: problems of other runs, each followed by its share in the mean latency that counts then.
            """

        def partial_schedule(self, memory_scale: float) -> NativePartialSchedule:
            """A schedule without events; ``memory_scale`` is the share of each device's memory that may be used."""


def _arrays(scenario: Scenario) -> dict[str, Any]:
    """What ``ProblemOf`` in ``cpp/ffi/problem.cc`` reads."""
    problem = scenario.problem
    index = problem.graph.index
    stays = set(index.graph_outputs)
    stays.update(t for t, tensor in enumerate(problem.graph.tensors) if tensor.kind == "parameter")
    input_offsets, inputs = _rows(index.inputs)
    output_offsets, outputs = _rows(index.outputs)
    return {
        "input_offsets": input_offsets,
        "inputs": inputs,
        "output_offsets": output_offsets,
        "outputs": outputs,
        "tensors": _array([(size, t in stays, scenario.is_resident(t)) for t, size in enumerate(index.size)]),
        "devices": _array(
            [
                (d.memory, d.shares_host_memory, round(d.stream_overhead * 1e9), round(d.wait_overhead * 1e9))
                for d in problem.topology.devices
            ]
        ),
        "operator_ns": _array(problem.costs.operator_ns),
        "direct_ns": _array(problem.costs.direct_ns),
        "host_read_ns": _array(problem.host_reads_ns),
        "number_of_channels": len(problem.topology.channels),
        "lag_ns": scenario.operator_lags_ns,
        **_routes(problem),
        **_concurrency(problem),
    }


def _array(values: Any) -> Array:
    """A writable contiguous copy, as DLPack wants it."""
    return np.array(values, dtype=np.int64, order="C")


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Rows of different lengths as offsets and elements."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets, np.fromiter((value for row in rows for value in row), dtype=np.int64)


def _routes(problem: Problem) -> dict[str, Array]:
    """Route of each pair, channels of each route, speed of each route, times by speed and tensor."""
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
    """Serial share, utilisation by operator, device and resource, measured pairs, threads of devices, contention.

    There is no resource where nothing is known.
    """
    concurrency = problem.costs.concurrency
    if concurrency is None:
        none = np.empty(0, dtype=np.int64)
        return {
            "serial_share": 0.0, "utilisation": np.empty(0), "pairs": none.reshape(0, 4), "threads": none,
            "excess": np.empty(0), "crowding": np.empty(0), "factor": 1.0,
        }  # fmt: skip
    return {
        "serial_share": concurrency.serial_share,
        "utilisation": np.array(concurrency.utilisation, order="C"),
        "pairs": np.array(concurrency.pairs, dtype=np.int64).reshape(-1, 4),
        "threads": _array(concurrency.threads),
        "excess": np.array(concurrency.excess, dtype=np.float64),
        "crowding": np.array(concurrency.crowding, order="C"),
        "factor": concurrency.factor,
    }
