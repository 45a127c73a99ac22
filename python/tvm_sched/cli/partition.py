"""The command ``pipeline`` for graphs in files, which have no devices: docs/formats/pipeline.md, Graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import InputError
from ..files import UNREADABLE
from .interrupt import stoppable
from .output import Output

if TYPE_CHECKING:
    from ..pipeline import Partition, PartitionProblem


class _Head(msgspec.Struct):
    """Fields that problem files and saved Relax modules do not have."""

    nodes: Any = None
    edges: Any = None


def is_instance(path: Path) -> bool:
    """Whether a file is a CostGraphDef, or a JSON object with ``nodes`` or ``edges``, and so to be read as a graph."""
    if path.is_file() and path.name.endswith((".pbtxt", ".pbtxt.gz")):
        return True
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        head = msgspec.json.decode(path.read_bytes(), type=_Head)
    except (*UNREADABLE, OSError):
        return False  # the reader of problem files reports it
    return head.nodes is not None or head.edges is not None


def partition_graph(
    out: Output,
    sources: Sequence[Path],
    stages: str,
    partitioner: str,
    options: dict[str, Any],
    given: Mapping[str, Any],
) -> None:
    """Cut a graph, and show its stages and the bound on the most expensive one.

    Parameters
    ----------
    given : mapping
        Options that are for models and problems only, with their values.

    Raises
    ------
    InputError
        One of these is there, several files are, or the number of stages is not.
    """
    path = sources[0]
    if len(sources) > 1:
        raise InputError(f"{path} is a graph of nodes and edges: one at a time is allowed")
    if wrong := [name for name, value in given.items() if value is not None]:
        raise InputError(f"{path} is a graph of nodes and edges, without devices and tensors: {wrong[0]} is for models")
    if not stages.isdecimal() or int(stages) < 1:
        raise InputError(f"{path} is a graph of nodes and edges, which names no devices: give --stages a number from 1")
    from ..pipeline import get, partition
    from ..pipeline.instances import load_graph
    from ..schedulers.common.console import stdout_aside

    graph = load_graph(path)
    stopping = stoppable(out, get(partitioner).answers_interrupt)
    with stopping, stdout_aside(), out.step(f"Partitioning with {partitioner}") as step:
        found = partition(graph, int(stages), partitioner, options, step)
    _show(out, graph, found)
    lists = graph.stage_lists(found.stage_of, found.order)
    out.result(
        {
            "partitioner": partitioner, "options": options, "seconds": found.seconds, "cost": found.cost,
            "lower_bound": found.bound, "bound": found.bound_name, "status": found.status, "gap": found.gap,
            "stages": [{"cost": graph.stage_cost(v), "nodes": [graph.names[node] for node in v]} for v in lists],
        }
    )  # fmt: skip


def _show(out: Output, graph: PartitionProblem, found: Partition) -> None:
    from ..report.tables import table

    rows = [
        (str(s), f"{len(nodes):,}", f"{float(graph.work[nodes].sum()):.6g}", f"{graph.stage_cost(nodes):.6g}")
        for s, nodes in enumerate(graph.stage_lists(found.stage_of, found.order))
    ]
    known = f"No partition into as many stages is below {found.bound:.6g} (bound: {found.bound_name})"
    end = f" by more than {100 * found.gap:.1f}%" if found.gap > 0 else ""
    out.show(
        table(("stage", "nodes", "work", "cost"), rows),
        f"The bottleneck stage costs {found.cost:.6g}. {known}: this cannot be improved{end}.",
    )
