"""A problem as the arrays that the C++ simulator keeps, made once for each problem."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._library import function
from ..problem import HOST, Problem, Route
from .schedule import ScheduleIndex

Array = npt.NDArray[np.int64]


class SearchFunctions(NamedTuple):
    """The search algorithms on one problem, in the order of ``cpp/ffi/search.cc``, where each says what it takes."""

    list_schedule: Callable[..., Any]
    hios: Callable[..., Any]
    ios: Callable[..., Any]
    anneal: Callable[..., Any]
    allocate_streams: Callable[..., Any]
    count_synchronizations: Callable[..., Any]
    order_launches: Callable[..., Any]


@dataclass(frozen=True)
class CompiledProblem:
    """The C++ simulator of one problem, and what its timelines say of events.

    Attributes
    ----------
    run : callable
        ``run(placements, transfers, times, peak)`` fills start and end of each event and the peak memory of each
        device, and returns the latency in nanoseconds. Raises ``ValueError`` where a rule is broken.
    violations : callable
        ``violations(placements, transfers, limit)``: a list for each broken rule: position in `verify.RULES`,
        operator, tensor, device, other device, then the events of a cycle; -1 where a field says nothing.
    holdings, profile : callable
        ``(placements, transfers)`` to rows of tensor, device, begin, end; to rows of device, time, bytes held.
    make_searches : callable
        Makes the functions that `tvm_sched.schedulers.search` calls.
    threads : callable
        ``threads(placements, threads)`` fills for each placement how many threads compute it; 0 where its device has none.
    search : SearchFunctions
    operator_bytes : list of int
        Bytes that each operator reads and writes.
    """

    run: Callable[[Array, Array, Array, Array], int]
    violations: Callable[[Array, Array, int], Sequence[Sequence[int]]]
    holdings: Callable[[Array, Array], Any]
    profile: Callable[[Array, Array], Any]
    make_searches: Callable[[], Any]
    threads: Callable[[Array, Array], None]
    search: SearchFunctions
    operator_bytes: list[int]


_compiled: weakref.WeakKeyDictionary[Problem, CompiledProblem] = weakref.WeakKeyDictionary()


def compiled(problem: Problem) -> CompiledProblem:
    """The simulator of a problem; the second call for the same problem costs nothing."""
    found = _compiled.get(problem)
    if found is None:
        found = _compiled[problem] = _compile(problem)
    return found


def _compile(problem: Problem) -> CompiledProblem:
    index = problem.graph.index
    stays = set(index.graph_outputs)
    stays.update(t for t, tensor in enumerate(problem.graph.tensors) if tensor.kind == "parameter")
    tensors = [(size, t in stays) for t, size in enumerate(index.size)]
    devices = [(device.memory, device.shares_host_memory) for device in problem.topology.devices]
    functions = function("tvm_sched.make_simulator")(
        *_rows(index.inputs),
        *_rows(index.outputs),
        _array(tensors),
        _array(devices),
        _array(problem.costs.operator_ns),
        _array(problem.costs.direct_ns),
        _array(problem.host_reads_ns),
        *_routes(problem),
        len(problem.topology.channels),
        *_concurrency(problem),
    )
    size = index.size
    operator_bytes = [
        sum(size[t] for t in (*read, *written)) for read, written in zip(index.inputs, index.outputs, strict=True)
    ]
    run, violations, holdings, profile, make_searches, threads, *search = functions
    return CompiledProblem(
        run, violations, holdings, profile, make_searches, threads, SearchFunctions(*search), operator_bytes
    )


def _array(values: Any) -> Array:
    """A writable contiguous copy, as DLPack wants it."""
    return np.array(values, dtype=np.int64, order="C")


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Rows of different lengths as offsets and elements."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets, np.fromiter((value for row in rows for value in row), dtype=np.int64)


def _routes(problem: Problem) -> tuple[Array, Array, Array, Array, Array]:
    """Route of each pair, channels of each route (two arrays), speed of each route, times by speed and tensor."""
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
    speed_of = np.array([row[route.bandwidth, route.latency] for route in routes], dtype=np.int64)
    return (pairs, *_rows([route.channels for route in routes]), speed_of, times.reshape(len(speeds), len(sizes)))


def _concurrency(problem: Problem) -> tuple[float, npt.NDArray[np.float64], Array, Array]:
    """Serial share, utilisation by operator, device and resource, measured pairs, threads of devices.

    There is no resource where nothing is known.
    """
    concurrency = problem.costs.concurrency
    if concurrency is None:
        return 0.0, np.empty(0), np.empty((0, 4), dtype=np.int64), np.empty(0, dtype=np.int64)
    pairs = np.array(concurrency.pairs, dtype=np.int64).reshape(-1, 4)
    return concurrency.serial_share, np.array(concurrency.utilisation, order="C"), pairs, _array(concurrency.threads)


def placements_array(index: ScheduleIndex) -> Array:
    """Rows: operator, device, with direct host access, stream, stage."""
    none = [0] * len(index.operator)
    return _stack((index.operator, index.device, index.direct, index.stream or none, index.stage or none))


def transfers_array(index: ScheduleIndex) -> Array:
    """Rows: kind, item, source, device, whether the tensor is evicted there."""
    evict = [key in index.evicted for key in zip(index.transfer_item, index.transfer_device, strict=True)]
    return _stack((index.transfer_kind, index.transfer_item, index.transfer_source, index.transfer_device, evict))


def _stack(columns: Iterable[Sequence[int]]) -> Array:
    return np.array([np.asarray(column, dtype=np.int64) for column in columns], dtype=np.int64)
