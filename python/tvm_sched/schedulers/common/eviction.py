"""Parameters that leave a device after their last reader, where its memory is too small for all of them."""

from __future__ import annotations

from ...schedule import ScheduleIndex
from .compiled_methods import shortfalls


def with_eviction(index: ScheduleIndex) -> ScheduleIndex:
    """The schedule with the parameters evicted from those devices that are too small for it, and from no other.

    Times stay as they are, and memory can still be short: see `shortfalls`. Evicted parameters are loaded again in every
    run, so a device with room for all keeps them.
    """
    short, graph = shortfalls(index), index.scenario.graph
    tensors, kept = graph.tensors, set(graph.index.graph_outputs)
    evicted = {
        (t, d)
        for kind, t, d in zip(index.transfer_kind, index.transfer_item, index.transfer_device, strict=True)
        if kind != ScheduleIndex.HOST_READ and short[d] > 0 and tensors[t].kind == "parameter" and t not in kept
    }
    return index.with_evicted(evicted)
