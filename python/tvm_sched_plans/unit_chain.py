"""`Chain`: times, bytes and copies of a model's units on a machine as arrays, for searches and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.problem.topology import MOST_MEMORY

from .places import Machine
from .unit_model import CACHE, Phase, UnitModel

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Placement = tuple[int, ...]
"""The place of each unit."""


@dataclass(frozen=True)
class Chain:
    """Times and bytes of units at places, as arrays."""

    model: UnitModel
    machine: Machine
    problems: tuple[Problem, ...]
    """A problem for each phase, on `Machine.planned`."""
    time_ns: Integers
    """Time of each unit at each place: all phases with their repeats."""
    weight: Integers
    cache: Integers
    peak: Integers
    """Bytes of parameters that a unit is the first to read, of keys and values, and the most of activations while it
    runs."""
    again: dict[tuple[int, int], int]
    """Bytes of parameters that two units share, if they are at different places."""
    hop_ns: Floats
    """Copies where a unit and the one before it are at different places: of all that units before have made and units
    from here on read."""

    @staticmethod
    def of(model: UnitModel, machine: Machine, costs: str = "") -> Chain:
        """Estimate the latencies of a model's operators at the places, and add them up by units.

        Raises
        ------
        InputError
            There is no such cost model.
        """
        # Sizes are judged here, since a plan that does not fit is priced, too.
        roomy = tuple(msgspec.structs.replace(device, memory=MOST_MEMORY) for device in machine.planned.devices)
        planned = msgspec.structs.replace(machine.planned, devices=roomy)
        problems = []
        time_ns = np.zeros((len(model.units), len(machine.places)), dtype=np.int64)
        for phase in model.phases:
            problems.append(Problem(phase.graph, planned, machine.latencies(phase.timed, costs, phase.free)))
            for u, members in enumerate(phase.members):
                time_ns[u] += phase.repeats * problems[-1].costs.operator_ns[list(members)].sum(axis=0)
        weight, cache, again = _parameters(model)
        peak = np.max([_peaks(phase) for phase in model.phases], axis=0)
        hops = _hops(model, machine)
        return Chain(model, machine, tuple(problems), time_ns, weight, cache, peak, again, hops)

    @property
    def room(self) -> list[int]:
        """Bytes that the plan may use at each place."""
        return [place.device.memory for place in self.machine.places]

    @cached_property
    def computes(self) -> list[int]:
        """The place that computes for each place: another one where weights are offloaded."""
        names = [place.name for place in self.machine.places]
        return [p if x.load is None else names.index(x.members[0]) for p, x in enumerate(self.machine.places)]

    @cached_property
    def sums(self) -> tuple[Integers, Integers]:
        """Prefix sums of times, shape (units + 1, places), and of weights and cache, shape (units + 1,)."""
        time_ns = np.concatenate(
            [np.zeros((1, self.time_ns.shape[1]), dtype=np.int64), np.cumsum(self.time_ns, axis=0)]
        )
        held = np.concatenate([[0], np.cumsum(self.weight + self.cache)])
        return time_ns, held

    @cached_property
    def segment_bytes(self) -> Integers:
        """``[a, b]``: bytes that the units from a to b - 1 take at a place that computes them; 0 where there are none."""
        return self._segments(self.sums[1], self.peak)

    @cached_property
    def segment_weights(self) -> Integers:
        """``[a, b]``: bytes of the weights alone of the units from a to b - 1."""
        held = np.concatenate([[0], np.cumsum(self.weight)])
        return self._segments(held, np.zeros_like(self.peak))

    def _segments(self, held: Integers, peaks: Integers) -> Integers:
        count = len(self.model.units)
        peak = np.zeros((count + 1, count + 1), dtype=np.int64)
        for a in range(count):
            peak[a, a + 1 :] = np.maximum.accumulate(peaks[a:])
        size = held[None, :] - held[:, None] + peak
        for (first, second), extra in self.again.items():
            size[first + 1 : second + 1, second + 1 :] += extra
        return np.where(np.tri(count + 1, dtype=bool).T, size, 0)

    def placement_bytes(self, placement: Placement) -> list[int]:
        """Return the bytes at each place, with the offloaded weights that are copied there and their keys and values."""
        held = [0] * len(self.machine.places)
        peak = [0] * len(self.machine.places)
        brought = [0] * len(self.machine.places)
        for u, p in enumerate(placement):
            held[p] += int(self.weight[u])
            at = self.computes[p]
            held[at] += int(self.cache[u])
            peak[at] = max(peak[at], int(self.peak[u]))
            if at != p:
                brought[at] = max(brought[at], int(self.weight[u]))
        for (first, second), extra in self.again.items():
            if placement[first] != placement[second]:
                held[placement[second]] += extra
        return [sum(parts) for parts in zip(held, peak, brought, strict=True)]

    def fits(self, placement: Placement) -> bool:
        """Return whether the memory of every place suffices."""
        return all(used <= room for used, room in zip(self.placement_bytes(placement), self.room, strict=True))


def segments(placement: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the runs of units at one place: (place, first unit, unit after the last)."""
    runs: list[tuple[int, int, int]] = []
    for u, p in enumerate(placement):
        if runs and runs[-1][0] == p:
            runs[-1] = (p, runs[-1][1], u + 1)
        else:
            runs.append((p, u, u + 1))
    return runs


def _parameters(model: UnitModel) -> tuple[Integers, Integers, dict[tuple[int, int], int]]:
    phase = model.phases[0]
    index, tensors = phase.graph.index, phase.graph.tensors
    weight = np.zeros(len(model.units), dtype=np.int64)
    cache = np.zeros(len(model.units), dtype=np.int64)
    first: dict[int, int] = {}
    again: dict[tuple[int, int], int] = {}
    for u, members in enumerate(phase.members):
        for t in dict.fromkeys(t for o in members for t in index.inputs[o] if tensors[t].kind == "parameter"):
            if t in first:
                pair = first[t], u
                again[pair] = again.get(pair, 0) + index.size[t]
                continue
            first[t] = u
            (cache if tensors[t].name.startswith(CACHE) else weight)[u] += index.size[t]
    return weight, cache, again


def _lives(phase: Phase) -> list[tuple[int, int, int, int]]:
    """Return, for each activation or input: tensor, position that makes it, last position that reads it, unit that makes it.

    Positions are in the order of the units' operators; an input is there from its first reader on.
    """
    index = phase.graph.index
    order = [o for members in phase.members for o in members]
    position = {o: at for at, o in enumerate(order)}
    unit = {o: u for u, members in enumerate(phase.members) for o in members}
    lives = []
    for t, tensor in enumerate(phase.graph.tensors):
        readers = sorted(position[o] for o in index.consumers[t])
        if tensor.kind == "parameter" or (index.producer[t] < 0 and not readers):
            continue
        start = position[index.producer[t]] if index.producer[t] >= 0 else readers[0]
        end = max([start, *readers])
        if t in index.graph_outputs:
            end = len(order) - 1
        lives.append((t, start, end, unit[index.producer[t]] if index.producer[t] >= 0 else -1))
    return lives


def _peaks(phase: Phase) -> Integers:
    """Most bytes of activations while each unit runs, of the whole model: no place has more of them."""
    count = sum(len(members) for members in phase.members)
    change = np.zeros(count + 1, dtype=np.int64)
    for t, start, end, _ in _lives(phase):
        change[start] += phase.graph.index.size[t]
        change[end + 1] -= phase.graph.index.size[t]
    level = np.cumsum(change)[:count]
    peaks, at = [], 0
    for members in phase.members:
        peaks.append(int(level[at : at + len(members)].max(initial=0)))
        at += len(members)
    return np.array(peaks, dtype=np.int64)


def _hops(model: UnitModel, machine: Machine) -> Floats:
    units, places = len(model.units), len(machine.places)
    head, each = np.zeros((2, places, places))
    for p in range(places):
        for q in range(places):
            if p != q:
                route = machine.route(p, q)
                head[p, q], each[p, q] = route.latency * 1e9, 1e9 / route.bandwidth
    every = np.zeros((units + 1, places, places))
    for phase in model.phases:
        index = phase.graph.index
        unit = {o: u for u, members in enumerate(phase.members) for o in members}
        for t, producer in enumerate(index.producer):
            readers = {unit[o] for o in index.consumers[t]}
            if producer < 0 or not readers:
                continue
            origin, last = unit[producer], max(readers)
            if last == origin:
                continue
            ns = phase.repeats * np.ceil(head + index.size[t] * each)
            every[origin + 1 : last + 1] += ns
    return every
