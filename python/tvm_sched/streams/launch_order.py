"""The order in which kernels are launched; the algorithms are in ``cpp/search/launches.cc``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import MULTIPROCESSORS, Demand, KernelResources, Multiprocessor, Problem
from tvm_sched_runtime.schedule import Schedule, Transfer
from tvm_sched_runtime.schedule.native_objects import native_problem, operator_bytes

from .stream_allocation import priced_anew

Amounts = npt.NDArray[np.int64]
LAUNCH_ORDERS = ("depth-first", "breadth-first", "critical-path", "opara", "opara-program")
"""Names of the launch orders."""


def order_launches(
    problem: Problem, schedule: Schedule, method: str = "opara", demands: Mapping[str, Demand] | None = None
) -> Schedule:
    """Change the launch order of a schedule, and sort its transfers by first need.

    Parameters
    ----------
    schedule : Schedule
        A schedule without stages. Devices and streams stay.
    method : str
        ``"depth-first"``, ``"breadth-first"``, ``"critical-path"``, ``"opara"`` (Algorithm 2 of Opara: memory- and
        compute-bound operators alternate, each the free one of its kind with the least demand), or ``"opara-program"`` (as
        in its authors' program: a compute-bound one is first, a kind without free operators is skipped, and the demand is
        the shared memory of a block of the operator's first kernel).
    demands : mapping of str to Demand, optional
        By operator; default: `Operator.demand`. As in Opara's Model Profiler, the demand is the largest share of threads,
        registers or shared memory of a multiprocessor that a block of the operator's kernels takes; on a tie the operator
        with fewer blocks goes first. If some operators have no demand, it is the bytes read and written, and operators with
        fewer than ten floating-point operations per byte are memory-bound.

    Raises
    ------
    InputError
        The method is unknown, an operator has no demand, or the schedule has stages.

    Examples
    --------
    >>> from tvm_sched.streams import order_launches
    >>> [placement.operator for placement in order_launches(problem, solve(problem, method="single")).placements]
    ['right', 'left', 'join']
    """
    if method not in LAUNCH_ORDERS:
        raise InputError(f"there is no launch order {method!r}; there are {', '.join(LAUNCH_ORDERS)}")
    if any(placement.stage for placement in schedule.placements):
        raise InputError(
            "the schedule has stages, which fix what starts together; their launch order cannot be changed"
        )
    operators = problem.graph.operators
    amount, memory_bound = _amounts(problem, demands, shared_memory=method == "opara-program")
    order = np.from_dlpack(native_problem(problem).order_launches(method, amount, memory_bound))
    where = {placement.operator: placement for placement in schedule.placements}
    placements = tuple(where[operators[o].name] for o in order.tolist())
    transfers = _by_need(problem, schedule, {placement.operator: i for i, placement in enumerate(placements)})
    return priced_anew(problem, schedule.replace(placements=placements, transfers=transfers))


def _amounts(problem: Problem, demands: Mapping[str, Demand] | None, shared_memory: bool) -> tuple[Amounts, Amounts]:
    """Return the demand of each operator, in any unit, and whether it is memory-bound.

    With ``shared_memory`` the demand is that of the operator's first kernel alone, if demands are known.
    """
    operators = problem.graph.operators
    if demands is None:
        demands = {operator.name: operator.demand for operator in operators if operator.demand}
        if len(demands) < len(operators):
            moved = np.array(operator_bytes(problem), dtype=np.int64)
            flops = np.array([operator.flops for operator in operators], dtype=np.float64)
            return moved, (flops < 10.0 * moved).astype(np.int64)
    missing = [operator.name for operator in operators if operator.name not in demands]
    if missing:
        raise InputError(f"demands has no {missing[0]!r}; it has one for each operator of the problem")
    memory_bound = np.array([demands[operator.name].memory_bound for operator in operators], dtype=np.int64)
    if shared_memory:
        first = [demands[operator.name].launches[0].shared_memory for operator in operators]
        return np.array(first, dtype=np.int64), memory_bound
    archs = [device.arch for device in problem.topology.devices]
    processor = next((MULTIPROCESSORS[arch] for arch in archs if arch in MULTIPROCESSORS), MULTIPROCESSORS["sm_80"])
    demanded = [demands[operator.name] for operator in operators]
    shares = [max((_share(processor, each), each.blocks) for each in demand.launches) for demand in demanded]
    rank = {share: n for n, share in enumerate(sorted(set(shares)))}
    amount = np.array([rank[share] for share in shares], dtype=np.int64)
    return amount, memory_bound


def _share(processor: Multiprocessor, kernel: KernelResources) -> float:
    """Return the largest share of a multiprocessor's resources that a block takes."""
    return max(
        kernel.threads / processor.threads,
        kernel.threads * kernel.registers / processor.registers,
        kernel.shared_memory / processor.shared_memory,
    )


def _by_need(problem: Problem, schedule: Schedule, place: Mapping[str, int]) -> tuple[Transfer, ...]:
    """Sort transfers by the first operator that needs them, directly or after further copies, to avoid deadlocks."""
    device = {placement.operator: placement.device for placement in schedule.placements}
    last = len(schedule.placements)
    needed: dict[tuple[str, str], int] = {}
    for operator in problem.graph.operators:
        for tensor in operator.inputs:
            key = tensor, device[operator.name]
            needed[key] = min(needed.get(key, last), place[operator.name])
    moves = [transfer for transfer in schedule.transfers if transfer.kind == "copy"]
    for _ in range(len(problem.topology.devices)):  # a chain of copies is no longer than that
        for move in moves:
            key = move.tensor, move.source
            needed[key] = min(needed.get(key, last), needed.get((move.tensor, move.device), last))
    arrived = {(transfer.tensor, transfer.device): transfer for transfer in schedule.transfers}

    def key_of(transfer: Transfer) -> tuple[int, int]:
        if transfer.operator:
            return place[transfer.operator], last + 1  # it is its operator, which waits for all other transfers
        hops, source = 0, transfer.source
        while source and (before := arrived.get((transfer.tensor, source))) is not None:
            hops, source = hops + 1, before.source
        return needed.get((transfer.tensor, transfer.device), last), hops

    return tuple(sorted(schedule.transfers, key=key_of))
