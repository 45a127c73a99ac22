"""Lower bounds from the buses: host tensors must cross a bus before the operators behind them can run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .host_traffic import HostTraffic
from .relaxation import Relaxation

Array = npt.NDArray[np.float64]


class Crossing(NamedTuple):
    """A bound: time for the host tensors of ``readers`` to cross the buses, and the time ``least`` that follows.

    Readers stand in the order in which tensors count for them, those first that most follows.
    """

    ns: float
    least: float
    readers: list[int]


class BusTraffic:
    """Traffic of the buses for some operators, as a share of the run: each loads its tensors or reads them directly.

    A tensor that several of them read is counted once, for the one that reads most of it directly, or cannot; of equal ones
    the first that was added. That holds for any one of them: either it has the tensor loaded, and no other load is counted
    for this one, or it reads directly what the bus then carries for it alone.

    Attributes
    ----------
    loads : array, (operators,)
        For how long loads of the tensors counted for each operator keep the buses busy.
    total : float
        Of all operators, each in the way that takes the buses least.
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
    """The traffic of the buses for some operators."""
    carried = BusTraffic(relaxation)
    for o in operators:
        carried.add(o)
    return carried


def bus_bound(relaxation: Relaxation) -> Crossing:
    """Operators sorted by what must follow the last byte of their host tensors; what a prefix needs crosses before that."""
    follows, order = readers_by_tail(relaxation)
    carried, best, count = BusTraffic(relaxation), Crossing(0.0, 0.0, []), 0
    for k, o in enumerate(order):
        carried.add(o)
        last = k + 1 == len(order) or follows[order[k + 1]] < follows[o]
        if last and carried.total + follows[o] > best.ns:
            best, count = Crossing(carried.total + follows[o], float(follows[o]), []), k + 1
    return best._replace(readers=order[:count])


def readers_by_tail(relaxation: Relaxation) -> tuple[Array, list[int]]:
    """Least time after the last byte of each operator; operators whose tensors must cross a bus, longest time first."""
    host: HostTraffic = relaxation.host
    follows = host.residual + relaxation.after
    readers = [o for o, read in enumerate(relaxation.problem.graph.index.host_inputs) if read and host.must_cross[o]]
    return follows, sorted(readers, key=lambda o: (-follows[o], o))
