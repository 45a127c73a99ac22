"""The bound ``bus``: host tensors must cross the buses before the operators that follow them can run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .host_traffic import HostTraffic
from .relaxation import Relaxation

Array = npt.NDArray[np.float64]


class Crossing(NamedTuple):
    """A bound: the time in which host tensors of ``readers`` cross the buses, plus the time ``least`` that follows.

    Readers are in the order in which tensors are assigned to them.
    """

    ns: float
    least: float
    readers: list[int]


class BusTraffic:
    """Least weighted bus time for some operators; each loads its tensors or reads them directly.

    A tensor with several readers is assigned to the one that cannot read directly or reads most bytes directly; among equal
    readers to the first one added. Proof: Lemma 1 of ``docs/proofs/bus.md``.

    Attributes
    ----------
    loads : array, (operators,)
        Nanoseconds of bus time for loads of the tensors that are assigned to each operator.
    total : float
        Nanoseconds of bus time of all operators, each in the mode that takes less.
    """

    def __init__(self, relaxation: Relaxation) -> None:
        self._index, self._host = relaxation.problem.graph.index, relaxation.host
        self.loads = np.zeros(len(relaxation.shortest))
        self.total = 0.0
        self._reader: dict[int, tuple[float, int]] = {}

    def add(self, o: int) -> None:
        """Add the traffic of an operator."""
        for t, size in zip(self._index.host_inputs[o], self._index.host_bytes[o], strict=True):
            takes = size if self._host.direct[o] else np.inf
            most, reader = self._reader.get(t, (-1.0, o))
            if takes > most:
                self._reader[t] = takes, o
                if most >= 0:
                    self._charge(reader, -self._host.loading[t])
                self._charge(o, self._host.loading[t])

    def _charge(self, o: int, load: float) -> None:
        read = self._host.least_read[o]
        before = min(self.loads[o], read)
        self.loads[o] = max(self.loads[o] + load, 0.0)  # rounding may leave less than nothing
        self.total += min(self.loads[o], read) - before


def bus_traffic(relaxation: Relaxation, operators: Iterable[int]) -> BusTraffic:
    """Return the least bus time for some operators, added in this order."""
    carried = BusTraffic(relaxation)
    for o in operators:
        carried.add(o)
    return carried


def bus_bound(relaxation: Relaxation) -> Crossing:
    """Bound the latency by the bus time of some operators and the time that must follow each of them.

    The operators are a prefix of those bound to the bus, sorted by that time, longest first. O(readers log readers). Proof:
    Theorem 2 of ``docs/proofs/bus.md``.
    """
    follows, order = readers_by_tail(relaxation)
    carried, best, count = BusTraffic(relaxation), Crossing(0.0, 0.0, []), 0
    for k, o in enumerate(order):
        carried.add(o)
        last = k + 1 == len(order) or follows[order[k + 1]] < follows[o]
        ns = relaxation.host.set_latency + carried.total + follows[o]
        if last and ns > best.ns:
            best, count = Crossing(ns, float(follows[o]), []), k + 1
    return best._replace(readers=order[:count])


def readers_by_tail(relaxation: Relaxation) -> tuple[Array, list[int]]:
    """Return the least time after the last byte of each operator, and the operators bound to the bus, longest time first."""
    host: HostTraffic = relaxation.host
    follows = host.residual + relaxation.after
    readers = [o for o, read in enumerate(relaxation.problem.graph.index.host_inputs) if read and host.must_cross[o]]
    return follows, sorted(readers, key=lambda o: (-follows[o], o))
