"""In which order kernels are launched; the work is done in ``cpp/search/streams.cc``."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from ..errors import InputError
from ..problem import Problem
from ..schedule import Schedule, Transfer
from ..schedule._compiled import compiled, operator_bytes
from .allocation import priced_anew

LAUNCH_ORDERS = ("depth-first", "breadth-first", "critical-path", "opara")
"""Names of the launch orders, in the order of ``LaunchOrder`` in C++."""


class Demand(msgspec.Struct, frozen=True):
    """What an operator asks of its device.

    Parameters
    ----------
    amount : int
        Any measure by which operators can be compared, 0 or more; `tvm_sched.cost_model.occupancy` has one of kernels.
    memory_bound : bool
        Whether its time goes by the bytes that it moves, not by its arithmetic.
    """

    amount: int
    memory_bound: bool


def order_launches(
    problem: Problem, schedule: Schedule, method: str = "opara", demands: Mapping[str, Demand] | None = None
) -> Schedule:
    """The schedule with another launch order, and its transfers in the order in which they are then needed.

    Parameters
    ----------
    problem : Problem
    schedule : Schedule
        Without stages. Devices and streams stay.
    method : str
        ``"depth-first"``, ``"breadth-first"``, ``"critical-path"``, or ``"opara"`` (Algorithm 2 of Opara: memory- and
        compute-bound operators in turn, of each kind the free one with the least demand).
    demands : mapping of str to Demand, optional
        By operator. Default: of bytes that an operator reads and writes, memory-bound where it has fewer than ten
        floating-point operations for each.

    Raises
    ------
    InputError
        There is no such method, an operator has no demand, or the schedule has stages.
    """
    if method not in LAUNCH_ORDERS:
        raise InputError(f"there is no launch order {method!r}; there are {', '.join(LAUNCH_ORDERS)}")
    if any(placement.stage for placement in schedule.placements):
        raise InputError("the schedule has stages, which say what starts together; their launch order stays")
    operators = problem.graph.operators
    demands = demands if demands is not None else demands_of_bytes(problem)
    missing = [operator.name for operator in operators if operator.name not in demands]
    if missing:
        raise InputError(f"demands has no {missing[0]!r}; it has one for each operator of the problem")
    amount = np.array([demands[operator.name].amount for operator in operators], dtype=np.int64)
    memory_bound = np.array([demands[operator.name].memory_bound for operator in operators], dtype=np.int64)
    order = np.empty(len(operators), dtype=np.int64)
    compiled(problem).order_launches(LAUNCH_ORDERS.index(method), amount, memory_bound, order)
    where = {placement.operator: placement for placement in schedule.placements}
    placements = tuple(where[operators[o].name] for o in order.tolist())
    transfers = _by_need(problem, schedule, {placement.operator: i for i, placement in enumerate(placements)})
    return priced_anew(problem, schedule.replace(placements=placements, transfers=transfers))


def demands_of_bytes(problem: Problem) -> dict[str, Demand]:
    """Demands where nothing is known of the kernels: bytes read and written."""
    total = operator_bytes(problem)
    return {
        operator.name: Demand(total[o], operator.flops < 10 * total[o])
        for o, operator in enumerate(problem.graph.operators)
    }


def _by_need(problem: Problem, schedule: Schedule, place: Mapping[str, int]) -> tuple[Transfer, ...]:
    """Transfers by the first operator that needs them, here or where they are copied on: then no order can be a deadlock."""
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
