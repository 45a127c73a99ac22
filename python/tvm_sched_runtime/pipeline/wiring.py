"""`Wiring`: the hops between the stages of a plan, with channels, times and room for batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..problem import HOST, Problem
from .pipeline_plan import PipelinePlan
from .pipeline_verifier import assignment_of
from .stage_pricing import is_parameter, readers_elsewhere


class Hop(NamedTuple):
    """The transfer from one stage to another for a batch."""

    source: int
    """A stage, or `HOST` for host memory."""
    target: int
    """A stage; the number of stages stands for host memory."""
    tensors: tuple[str, ...]
    duration_ns: int
    """Time of the transfers in sequence, and of the parameters that are streamed to the target for each batch."""
    channels: tuple[int, ...]
    """Positions in `Topology.channels`, all occupied from start to end; empty if memory is shared."""
    bytes: int
    room: int
    """Batches that may be in transfer or wait: two for each stage from source to target, so that one is used while the
    next arrives, and a tensor that skips stages never delays them."""


@dataclass(frozen=True)
class Wiring:
    """Stages and hops of a plan, for its executor and its simulator."""

    devices: tuple[str, ...]
    """Device of each stage."""
    work_ns: tuple[int, ...]
    """Work of each stage."""
    hops: tuple[Hop, ...]
    """By source, then by target."""

    def stage_event(self, stage: int, batch: int) -> str:
        """Return the name of a stage's event for a batch in timelines."""
        return _event(f"stage {stage}", batch)

    def hop_event(self, h: int, batch: int) -> str:
        """Return the name of a hop's event for a batch in timelines."""
        hop = self.hops[h]
        ends = ["host" if end in (HOST, len(self.devices)) else f"stage {end}" for end in (hop.source, hop.target)]
        return _event(" to ".join(ends), batch)

    def entering(self, stage: int) -> list[int]:
        """Return the positions of the hops to a stage."""
        return [h for h, hop in enumerate(self.hops) if hop.target == stage]

    def leaving(self, stage: int) -> list[int]:
        """Return the positions of the hops from a stage."""
        return [h for h, hop in enumerate(self.hops) if hop.source == stage]


def _event(what: str, batch: int) -> str:
    return f"{what}, batch {batch}"


def batch_of(event: str) -> int:
    """Return the batch in the name of a timeline's event."""
    return int(event.rpartition(" ")[2])


def wire(problem: Problem, plan: PipelinePlan) -> Wiring:
    """Find the hops of a plan that `verify` accepts.

    Every stage has a hop from host memory, which starts it, and the hops to host memory carry the model's outputs.
    """
    assignment = assignment_of(problem, plan)
    return Wiring(
        devices=tuple(stage.device for stage in plan.stages),
        work_ns=tuple(stage.work_ns for stage in plan.stages),
        hops=tuple(_hops(problem, plan, assignment)),
    )


def _hops(problem: Problem, plan: PipelinePlan, assignment: Sequence[tuple[int, Sequence[int]]]) -> Iterator[Hop]:
    index, last = problem.graph.index, len(assignment)
    stage_of = {o: s for s, (_, operators) in enumerate(assignment) for o in operators}
    carried: dict[tuple[int, int], list[int]] = {(HOST, s): [] for s in range(last)}
    for t in range(len(index.size)):
        if is_parameter(problem, t):
            continue
        source = stage_of.get(index.producer[t], HOST)
        targets = readers_elsewhere(problem, stage_of, t, source)
        if source != HOST and t in index.graph_outputs:
            targets.append(last)
        for target in targets:
            carried.setdefault((source, target), []).append(t)
    for (source, target), tensors in sorted(carried.items()):
        ends = [HOST if s in (HOST, last) else assignment[s][0] for s in (source, target)]
        route = problem.topology.route(ends[0], ends[1])
        streamed = plan.stages[target].overflow_ns if source == HOST else 0
        sizes = [index.size[t] for t in tensors]
        yield Hop(
            source=source,
            target=target,
            tensors=tuple(problem.graph.tensors[t].name for t in tensors),
            duration_ns=0 if route is None else streamed + sum(route.nanoseconds(size) for size in sizes),
            channels=() if route is None else route.channels,
            bytes=sum(sizes),
            room=2 * (target - source),
        )
