"""The cells of the grid of `sortinghat.py`: one model, shape, machine and method each, kept in a file as they are done."""

from __future__ import annotations

import lzma
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from _checked import verdict

from tvm_sched.cost_model import get_cost_model
from tvm_sched.execution_plan import emit_plan
from tvm_sched.schedulers import REFERENCES, get, names, solve
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_runtime.errors import InfeasibleError, TvmSchedError
from tvm_sched_runtime.problem import Problem, load_topology, problem_of
from tvm_sched_runtime.problem.decoder_config import PRESETS
from tvm_sched_runtime.runtime import ScheduledModule, make_module
from tvm_sched_runtime.schedule import Schedule, resolved, simulate

WARM = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Parts of the parameters that remain, as on the axis of Figure 14."""


class Method(msgspec.Struct, frozen=True):
    """A scheduler with options, under the name that the pictures give it."""

    label: str
    scheduler: str
    options: dict[str, Any] = {}
    servers: tuple[str, ...] = ()
    """Only on these; empty: on all."""
    limit: str = ""
    """Which time limits it gets: `anytime`'s, those of the papers' methods, `sortinghat.SHORT`, `sortinghat.ABLATION`,
    or a third of these."""
    variants: str = ""
    """How groups of operators are computed: as fused kernels; by its own choice; by HEFT's choice; all operators apart.
    """
    square: bool = False
    """Only on cells of one Latin square (`sortinghat.square_of` 0)."""
    models: tuple[str, ...] = ()
    """Only for these; empty: for all."""

    def why_not(self) -> str:
        """Reason why the method cannot run here; empty if it can."""
        if self.scheduler not in names():
            return f"there is no scheduler {self.scheduler!r}"
        known = {field.name for field in msgspec.structs.fields(get(self.scheduler).options)}
        unknown = [option for option in self.options if option not in known]
        return f"scheduler {self.scheduler!r} has no option {', '.join(unknown)}" if unknown else ""


class Case(msgspec.Struct, frozen=True):
    """A problem and the method that schedules it."""

    server: str
    model: str
    batch: int
    tokens: int
    method: Method
    costs: str = "roofline"
    """Name of the cost model."""

    @property
    def shape(self) -> str:
        return f"{self.batch}x{self.tokens}"

    def key(self) -> str:
        """Key of the case in the file of finished cells; other options are another case."""
        options = msgspec.json.encode(self.method.options, order="sorted").decode()
        ways = {"": "", "all": " variants"}.get(self.method.variants, f" variants={self.method.variants}")
        priced = "" if self.costs == "roofline" else f" costs={self.costs}"
        return f"{self.server} {self.model} {self.shape} {self.method.scheduler}{ways} {options}{priced}"


class Cell(msgspec.Struct):
    """The result of a case; times in seconds, None if there is none."""

    error: str = ""
    """Why there is no schedule: memory that does not suffice, say."""
    latency: float | None = None
    bound: float | None = None
    bound_name: str = ""
    """By the simulator; no schedule is faster than the bound."""
    critical_path: float | None = None
    """The papers' Critical Path, see `tvm_sched.schedulers.REFERENCES`."""
    record: float | None = None
    wall: float | None = None
    """Latency of the emulated run (`emulate`); None until it was run."""
    found_in: float = 0.0
    """Time that the scheduler took."""
    warm: list[float] = []
    """Latency where a part of the parameters (`WARM`) remains from a run before."""
    spans: list[tuple[str, str, float, float]] = []
    """The timeline, where it was asked for."""
    schedule: Schedule | None = None
    """What is run, now or in a later, quieter hour."""
    checked: str = "made before pages were checked"
    """What `tvm_sched_check` said of it."""
    made: str = ""
    """The commit and the date of the sources that computed it."""


class Cells:
    """Finished cells by key; each is written to the file at once, if there is one. A file ``*.xz`` is compressed."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.done = path, dict[str, Cell]()
        if path is not None and path.is_file():
            text = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
            self.done = msgspec.json.decode(text, type=dict[str, Cell])

    def add(self, case: Case, cell: Cell) -> None:
        self.done[case.key()] = cell
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self.path.with_suffix(".tmp")
            text = msgspec.json.encode(self.done)
            beside.write_bytes(lzma.compress(text, preset=2) if self.path.suffix == ".xz" else text)
            os.replace(beside, self.path)

    def get(self, case: Case) -> Cell | None:
        return self.done.get(case.key())


def make_problem(
    model: str, batch: int, tokens: int, server: str, variants: str = "", costs: str = "roofline"
) -> Problem:
    """The problem of a preset's graph on a machine, with variants as `Method.variants` says; a second is what it takes."""
    from tvm_sched.relax.decoders import decoder_variants
    from tvm_sched.relax.variants.offer_variants import pieces_for

    topology = load_topology(server)
    graph, groups = decoder_variants(PRESETS[model], batch, tokens, pieces=pieces_for(topology) if variants else ())
    problem = problem_of(graph, groups if variants else (), topology, get_cost_model(costs))
    if variants == "heft":
        return problem.resolve(solve(problem, method="heft").choice)
    if variants == "apart":
        return problem.resolve({group.name: "apart" for group in groups if "apart" in group.alternative_names})
    return problem


def predict(case: Case, problem: Problem, spans: bool, progress: Any = None) -> Cell:
    """Schedule a case and price it; with ``spans``, keep the timeline."""
    critical_path = REFERENCES["critical-path"](problem) / 1e9
    try:
        schedule = solve(problem, method=case.method.scheduler, options=case.method.options, progress=progress)
    except InfeasibleError as error:
        return Cell(f"out of memory: {error}", critical_path=critical_path)
    except TvmSchedError as error:
        return Cell(f"{type(error).__name__}: {error}")
    known = schedule.certificate
    assert known is not None
    return Cell(
        "", known.latency, known.lower_bound, known.bound, critical_path, found_in=schedule.seconds,
        warm=warm_latencies(problem, schedule),
        spans=list(timeline_spans(problem, schedule)) if spans else [], schedule=schedule,
        checked=verdict(problem, schedule),
    )  # fmt: skip


def replay(problem: Problem, cell: Cell, made: str) -> Cell:
    """Price and check a cell's schedule again; unchanged if its latency is another now or its bound is not proved.

    So a schedule that a tree with changes made no longer depends on them, but for how long it took to find.
    """
    assert cell.schedule is not None
    checked, warm = verdict(problem, cell.schedule), warm_latencies(problem, cell.schedule)
    if warm[0] != cell.latency or checked != "proved":
        return cell
    then = cell.made.partition(",")[0]
    version = f"{then} by a tree with changes, priced and checked again {made}"
    return msgspec.structs.replace(cell, warm=warm, checked=checked, made=version)


def warm_latencies(problem: Problem, schedule: Schedule) -> list[float]:
    """Return the latency with each part of the parameters of `WARM` on the devices already, in seconds."""
    return [simulate(problem, schedule, resident=part).latency for part in WARM]


def measure(problem: Problem, cell: Cell) -> Cell:
    """Return the cell with the latency of an emulated run, or unchanged if it has no schedule."""
    if cell.schedule is None:
        return cell
    record, wall = emulate(problem, cell.schedule)
    return msgspec.structs.replace(cell, record=record, wall=wall)


def emulate(problem: Problem, schedule: Schedule) -> tuple[float, float]:
    """Run a schedule with emulated kernels and copies; return the latency by the record and by the wall clock.

    The wall clock goes from the start of the run's threads until the caller knew that all steps had ended, the dilation
    divided out. To make the output tensors and to hand them over is no part of it, as it is none of a latency
    (``docs/model.md``).
    """
    problem, schedule = resolved(problem, schedule)
    calls = ShapesOnly(problem.graph)
    plan = emit_plan(
        problem, schedule, calls, name="p", backend="emulated", functions={}, values=tuple(calls.parameters)
    )
    module = ScheduledModule(make_module([plan], {}))
    module.configure(trace=True)
    inputs = [np.zeros(spec["shape"], spec["dtype"]) for spec in plan["arguments"]]
    module.configure(emulation_scale=1)
    module.run_times(*inputs)  # makes threads and buffers; parameters do not remain, so the next run loads them, too
    module.configure(emulation_scale="auto")
    module.run_times(*inputs)
    return module.latency(), module.timeline()["wall_ns"] / 1e9


def timeline_spans(problem: Problem, schedule: Schedule) -> Iterator[tuple[str, str, float, float]]:
    """Return the spans of each lane; neighbours of one kind that a picture cannot separate are one span."""
    timeline = simulate(problem, schedule)
    least = timeline.latency_ns / 600
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for event in sorted(timeline.events, key=lambda event: event.start_ns):
        for lane in event.lanes:
            begin, end = last.get((lane, event.kind), (event.start_ns, event.start_ns))
            if event.start_ns - end > least:
                yield lane, event.kind, begin / 1e9, end / 1e9
                begin = event.start_ns
            last[lane, event.kind] = begin, max(end, event.end_ns)
    for (lane, kind), (begin, end) in last.items():
        yield lane, kind, begin / 1e9, end / 1e9
