"""Host tensors cross the buses before what reads them can go on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .relaxation import Relaxation


class Crossing(NamedTuple):
    """A time that host tensors need to cross the buses and what follows: those of ``readers``, which ``least`` follows."""

    ns: float
    least: float
    readers: list[int]


def bus_bound(relaxation: Relaxation) -> Crossing:
    """Host tensors sorted by what must follow their arrival; each prefix crosses the buses before that.

    What must cross of a tensor is what the reader takes that is followed by most work: all of it, or the part that a direct
    read takes. Each transfer takes the bus's latency, too. A tensor travels alone to a reader that must load it; those that
    one reader may fetch in a single direct read have one latency together.
    """
    index = relaxation.problem.graph.index
    follows = np.full(len(index.size), -1.0)
    reader = [-1] * len(index.size)
    for o, read in enumerate(index.host_inputs):
        if relaxation.host.must_cross[o]:
            for t in read:
                if relaxation.host.residual[o] + relaxation.after[o] > follows[t]:
                    follows[t], reader[t] = relaxation.host.residual[o] + relaxation.after[o], o
    hosts = np.flatnonzero(follows >= 0)
    if not len(hosts):
        return Crossing(0.0, 0.0, [])
    busy = np.zeros(len(index.size))
    for o in {reader[t] for t in hosts.tolist()}:
        for t, share in zip(index.host_inputs[o], relaxation.host.carried(o), strict=True):
            if reader[t] == o:
                busy[t] = share
    in_one_read: set[int] = set()
    for t in hosts.tolist():
        if not relaxation.host.direct[reader[t]] or reader[t] not in in_one_read:
            busy[t] += relaxation.host.transfer_latency
            in_one_read.add(reader[t])
    order = hosts[np.argsort(-follows[hosts], kind="stable")]
    bound = np.cumsum(busy[order]) + follows[order]
    last = int(bound.argmax())
    return Crossing(
        float(bound[last]), float(follows[order[last]]), sorted({reader[t] for t in order[: last + 1].tolist()})
    )
