"""Latency, throughput, bound and cost of a model over variants of a machine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tvm_sched_runtime.checks import require_positive
from tvm_sched_runtime.errors import InputError, TvmSchedError
from tvm_sched_runtime.problem import Problem, Topology, Workload, load_topology
from tvm_sched_runtime.problem.quantity import parse_quantity
from tvm_sched_runtime.problem.topology_changes import LINKS, with_bandwidth, with_devices, with_disk, with_link
from tvm_sched_runtime.schedule import Schedule, Timeline, resolved
from tvm_sched_runtime.schedule.simulator import simulate

from .cost_model import default_cost_model
from .cost_model.uncertainty import latency_interval
from .problem_sources import SourceOptions, decoder_config, is_problem, load_problem, on_machine
from .progress import Progress
from .schedulers.solver import solve_or_error

KEYS = ("topology", "gpus", "link", "bandwidth", "disk", "batch")
"""Properties that may vary, in the order of their application."""
MOST_ROWS = 2000
WORTH = 0.05
"""Another GPU pays if it saves at least this fraction of the latency."""
MOST_WAITING = 64
"""Largest number of problems that wait for a worker; each may have megabytes."""
_POLL = 0.2
"""Seconds between checks for Ctrl-C while other processes work."""

Value: TypeAlias = "int | float | str"
Point: TypeAlias = "dict[str, Value]"


def parse_vary(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Read ``gpus=1..8``, ``link=pcie3,nvlink``, ``bandwidth=0.5,1,2``, ``disk=3.5GB/s``, ``batch=1,8``, ``topology=a,b``.

    Raises
    ------
    InputError
        A key is unknown or occurs twice, or a value is missing or not allowed.
    """
    varied: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        key, mark, values = text.partition("=")
        if not mark or key not in KEYS:
            raise InputError(
                f"--vary {text}: expected KEY=VALUES with a key among {', '.join(KEYS)}, such as gpus=1..8"
            )
        if key in varied:
            raise InputError(f"--vary {text}: {key} is varied already; give all its values at once, with commas")
        pieces = [piece.strip() for piece in values.split(",")]
        varied[key] = tuple(dict.fromkeys(value for piece in pieces for value in _values(text, key, piece)))
    return {key: varied[key] for key in KEYS if key in varied}


def _values(text: str, key: str, piece: str) -> list[Value]:
    if key in ("gpus", "batch"):
        low, mark, high = piece.partition("..")
        ends = (low, high) if mark else (low, low)
        if not all(end.isdecimal() and int(end) >= 1 for end in ends) or int(ends[0]) > int(ends[1]):
            raise InputError(f"--vary {text}: {piece!r} is no whole number from 1 and no range such as 1..8")
        return list(range(int(ends[0]), int(ends[1]) + 1))
    if key == "bandwidth":
        try:
            factor = float(piece.removesuffix("x"))
        except ValueError:
            factor = 0.0
        if not 0 < factor < float("inf"):
            raise InputError(f"--vary {text}: {piece!r} is no factor above 0 of the bandwidths, such as 0.5 or 2")
        return [factor]
    if key == "disk":
        if piece != "none":
            require_positive(f"--vary {text}", parse_quantity(piece, "bandwidth", f"--vary {text}"), InputError)
        return [piece]
    if key == "link" and piece not in LINKS:
        raise InputError(f"--vary {text}: {piece!r} is no link; {', '.join(LINKS)} are allowed")
    if not piece:
        raise InputError(f"--vary {text}: a value is empty")
    return [piece]


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """Read ``2.5`` (each device) and ``NAME=2.5`` (devices whose model contains the name, or a link): prices an hour.

    Raises
    ------
    InputError
        A price is not a number from 0, or a name occurs twice.
    """
    prices: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not 0 <= price < float("inf") or name in prices:
            raise InputError(f"--price {text}: expected NUMBER or NAME=NUMBER, each name once, such as 2.5 or H200=4")
        prices[name] = price
    return prices


def price_of(machine: Topology, link: str | None, prices: Mapping[str, float]) -> float | None:
    """Return the price of a machine an hour; None if a device has none."""
    total = 0.0
    for device in machine.devices:
        named = [name for name in prices if name and name in f"{device.model} {device.name}"]
        if not named and "" not in prices:
            return None
        total += prices[max(named, key=len)] if named else prices[""]
        total += prices.get(link or "", 0.0) if link else 0.0
    return total


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One variant of the machine.

    Parameters
    ----------
    values : dict
        Value of each key that varies.
    devices : int
        Devices of the machine. The schedule uses ``used`` of them: fewer if a smaller machine's schedule, which also fits
        this machine, is faster.
    batch : int
        Inferences of one run.
    latency, lower_bound : float, optional
        Seconds of one run: the prediction, and the lower bound for all schedules of these kernels; None without one.
    interval : tuple of float, optional
        Seconds between which 80 % of the latencies lie by the errors of the prices; None if these have none.
    throughput, most_throughput : float, optional
        Inferences a second if runs follow one another, and the upper bound for all schedules.
    price : float, optional
        Price of the machine an hour.
    cost, least_cost : float, optional
        Price of 1,000 inferences.
    bound : str
        Name of the lower bound.
    error : str
        Why there is no schedule; empty if there is one.
    """

    values: dict[str, Value]
    devices: int
    batch: int
    used: int = 0
    latency: float | None = None
    interval: tuple[float, float] | None = None
    lower_bound: float | None = None
    throughput: float | None = None
    most_throughput: float | None = None
    price: float | None = None
    cost: float | None = None
    least_cost: float | None = None
    bound: str = ""
    error: str = ""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A finished or interrupted sweep: the computed `rows` in the order of the grid."""

    model: str
    scheduler: str
    options: dict[str, Any]
    keys: dict[str, list[Value]]
    rows: list[Row]
    wanted: int
    target: float | None = None
    answers: list[str] = []


@dataclass(frozen=True)
class Solved:
    """A row with its problem and the timeline of its schedule."""

    row: Row
    timeline: Timeline | None = None
    problem: Problem | None = None


@dataclass
class Grid:
    """All variants of a machine for one model.

    Parameters
    ----------
    source : Path
        A model or a problem file.
    base : str, optional
        The machine to vary; default: the one of the problem file.
    keys : dict
        Values of each key, see `parse_vary`.
    options : SourceOptions
    prices : dict
        See `parse_prices`.
    """

    source: Path
    base: str | None
    keys: dict[str, tuple[Value, ...]]
    options: SourceOptions
    prices: Mapping[str, float]
    _loaded: dict[tuple[Any, ...], Problem] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = 1
        for values in self.keys.values():
            rows *= len(values)
        if rows > MOST_ROWS:
            raise InputError(f"--vary asks for {rows:,} variants; {MOST_ROWS:,} are allowed")
        if "batch" in self.keys and is_problem(self.source) and decoder_config(self.source) is None:
            raise InputError(f"{self.source} is a problem file, whose batch is fixed: --vary batch is for models")
        if "topology" in self.keys and self.base is not None:
            raise InputError("--vary topology=... names the machines; leave --topology away")

    def points(self) -> list[Point]:
        """Return the variants, the last key fastest."""
        return [dict(zip(self.keys, values, strict=True)) for values in itertools.product(*self.keys.values())]

    def machine(self, point: Point) -> Topology:
        """Return the machine of a variant."""
        named = point.get("topology", self.base)
        if named is None:
            if not is_problem(self.source):
                raise InputError(f"{self.source} is a model, so it needs a machine: --topology NAME|FILE")
            machine = self._load((), None, point).topology
        else:
            machine = load_topology(str(named))
        if "gpus" in point:
            machine = with_devices(machine, int(point["gpus"]))
        if "link" in point:
            machine = with_link(machine, str(point["link"]))
        if "bandwidth" in point:
            machine = with_bandwidth(machine, float(point["bandwidth"]))
        if "disk" in point:
            machine = with_disk(machine, str(point["disk"]))
        changed = [f"{key}={value}" for key, value in point.items() if key not in ("topology", "batch")]
        return msgspec.structs.replace(machine, name=" ".join([machine.name, *changed]))

    def problem(self, point: Point, progress: Progress) -> Problem:
        """Return the problem of a variant; a model is imported once for each batch and number of pieces to split into."""
        machine = self.machine(point)
        pieces = min(len(machine.devices).bit_length(), 4)  # 8 pieces at most (`pieces_for`)
        key = (point.get("batch"), point.get("topology"), pieces)
        known = key in self._loaded
        loaded = self._load(key, machine, point, progress)
        if not known:
            return loaded
        return on_machine(loaded, machine, self.options.costs or default_cost_model(machine), progress)

    def _load(
        self, key: tuple[Any, ...], machine: Topology | None, point: Point, progress: Progress = lambda *_: None
    ) -> Problem:
        if key not in self._loaded:
            options = replace(self.options, shape=self._shape(point))
            self._loaded[key] = load_problem([self.source], machine, options, progress)
        return self._loaded[key]

    def _shape(self, point: Point) -> list[str] | None:
        """Return ``--shape`` with the batch of a variant."""
        texts = list(self.options.shape or ())
        if "batch" not in point:
            return texts or None
        batch = point["batch"]
        changed = [_with_batch(text, batch) for text in texts]
        if changed == texts and not any("x" in text for text in texts):
            changed.append(f"batch={batch}")
        return changed

    def batch(self, point: Point) -> int:
        """Return how many inferences a run of a variant makes: its batch, 1 if that does not vary."""
        return int(point.get("batch", 1))


def _with_batch(text: str, batch: Value) -> str:
    """Return a text of ``--shape`` with another batch: the first dimension of an input, or of BATCHxTOKENS."""
    name, colon, dims = text.rpartition(":")
    if colon:
        return f"{name}:{','.join([str(batch), *dims.split(',')[1:]])}"
    first, mark, tokens = text.partition("x")
    if mark and first.isdecimal() and tokens.isdecimal():
        return f"{batch}x{tokens}"
    return text


def run(
    grid: Grid, scheduler: str, options: Mapping[str, Any], executor: Executor, progress: Progress
) -> tuple[list[Solved], bool]:
    """Schedule every variant; return the rows in the order of the grid, and whether all were computed.

    After Ctrl-C it returns the finished rows.
    """
    points = grid.points()
    solved: dict[int, Solved] = {}
    waiting: dict[Future[Schedule | TvmSchedError], int] = {}
    problems: dict[int, Problem] = {}

    def take(seconds: float) -> None:
        done, _ = wait(waiting, timeout=seconds, return_when=FIRST_COMPLETED)
        for future in done:
            n = waiting.pop(future)
            solved[n] = _solved(grid, points[n], problems.pop(n), future.result())

    try:
        for n, point in enumerate(points):
            progress(f"problem of {_text(point)}", len(solved), len(points))
            try:
                problems[n] = grid.problem(point, lambda *_: None)
            except InputError:
                raise
            except TvmSchedError as error:  # for example, an operator fits on no device
                solved[n] = Solved(_row(grid, point, grid.machine(point), error=str(error)))
                continue
            requests = grid.options.requests(problems[n])
            waiting[executor.submit(solve_or_error, problems[n], Workload(requests), scheduler, dict(options))] = n
            take(0)
            while len(waiting) >= MOST_WAITING:
                take(_POLL)
        while waiting:
            progress("scheduling", len(solved), len(points))
            take(_POLL)
    except KeyboardInterrupt:
        for future in waiting:
            future.cancel()
    return _with_smaller_machines([solved[n] for n in sorted(solved)]), len(solved) == len(points)


def _text(point: Point) -> str:
    return ", ".join(f"{key} {shown(key, value)}" for key, value in point.items()) or "the machine"


def shown(key: str, value: Value) -> str:
    """Format a value for people."""
    return f"{value:g}x" if key == "bandwidth" else str(value)


def _solved(grid: Grid, point: Point, problem: Problem, answer: Schedule | TvmSchedError) -> Solved:
    if isinstance(answer, TvmSchedError):
        return Solved(_row(grid, point, problem.topology, error=str(answer)))
    plain, inner = resolved(problem, answer)
    certificate = answer.certificate
    resident = certificate.requests[0].resident if certificate and certificate.requests else ()
    timeline = simulate(plain, inner, resident)
    row = _row(grid, point, problem.topology, answer)
    spread = latency_interval(plain, inner)
    interval = None if spread is None else (spread[0] / 1e9, spread[1] / 1e9)
    return Solved(msgspec.structs.replace(row, interval=interval), timeline, plain)


def _row(grid: Grid, point: Point, machine: Topology, schedule: Schedule | None = None, error: str = "") -> Row:
    link = str(point["link"]) if "link" in point else None
    price = price_of(machine, link, grid.prices) if grid.prices else None
    row = Row(values=dict(point), devices=len(machine.devices), batch=grid.batch(point), price=price, error=error)
    if schedule is None or schedule.certificate is None:
        return row
    known = schedule.certificate
    row = msgspec.structs.replace(
        row, lower_bound=known.lower_bound, bound=known.bound, used=len({p.device for p in schedule.placements}),
        most_throughput=row.batch / known.lower_bound if known.lower_bound else None,
    )  # fmt: skip
    return _with_latency(row, known.latency, row.used)


def _with_latency(row: Row, latency: float, used: int, interval: tuple[float, float] | None = None) -> Row:
    """Return a row with a latency, and the throughput and cost by it."""

    def cost(seconds: float | None) -> float | None:
        return None if row.price is None or seconds is None else 1000 / row.batch * seconds * row.price / 3600

    return msgspec.structs.replace(
        row, latency=latency, interval=interval, used=used, throughput=row.batch / latency if latency else None,
        cost=cost(latency), least_cost=cost(row.lower_bound),
    )  # fmt: skip


def _with_smaller_machines(variants: list[Solved]) -> list[Solved]:
    """Give a machine the schedule of one with fewer GPUs, all else equal, if that is faster: it fits there, too."""
    best: dict[tuple[Any, ...], Solved] = {}
    improved = []
    for each in sorted(variants, key=lambda solved: solved.row.devices):
        row, key = each.row, tuple((k, v) for k, v in each.row.values.items() if k != "gpus")
        smaller = best.get(key)
        if smaller is not None and (row.latency is None or _latency(smaller) < row.latency):
            taken = _with_latency(
                msgspec.structs.replace(row, error=""), _latency(smaller), smaller.row.used, smaller.row.interval
            )
            each = replace(each, row=taken, timeline=smaller.timeline, problem=smaller.problem)
        if each.row.latency is not None:
            best[key] = each
        improved.append(each)
    order = {id(each.row.values): n for n, each in enumerate(variants)}
    return sorted(improved, key=lambda each: order[id(each.row.values)])


def spread(row: Row) -> str:
    """Return a row's latency in milliseconds, with its interval."""
    low, high = (f"{seconds * 1e3:.3g}" for seconds in row.interval or (0.0, 0.0))
    latency = f"{(row.latency or 0.0) * 1e3:.3g} ms"
    return latency if row.interval is None else f"{latency}, {low} to {high} with 80 %"


def _latency(solved: Solved) -> float:
    assert solved.row.latency is not None
    return solved.row.latency


def summarise(
    grid: Grid, variants: Sequence[Solved], scheduler: str, options: Mapping[str, Any], target: float | None
) -> Sweep:
    """Combine rows with the answers to the target and to further GPUs."""
    rows = [each.row for each in variants]
    return Sweep(
        model=grid.source.name, scheduler=scheduler, options=dict(options), rows=rows, wanted=len(grid.points()),
        keys={key: list(values) for key, values in grid.keys.items()}, target=target,
        answers=[*which_is_enough(rows, target), *where_gpus_stop_paying(rows, grid.keys)],
    )  # fmt: skip


def which_is_enough(rows: Sequence[Row], target: float | None) -> list[str]:
    """Say which machine meets a latency, and which cannot."""
    if target is None:
        return []
    aim = f"{target * 1e3:g} ms"
    solved = [row for row in rows if row.latency is not None]
    meets = [row for row in solved if row.latency is not None and row.latency <= target]
    never = [row for row in solved if row.lower_bound is not None and row.lower_bound > target]
    open_rows = len(solved) - len(meets) - len(never)
    order: Callable[[Row], tuple[float, ...]] = lambda row: (  # noqa: E731 - a key of two lines
        row.price if row.price is not None else 0.0, float(row.devices), row.latency or 0.0
    )  # fmt: skip
    best = min(meets, key=order, default=None)
    kind = "cheapest" if best is not None and best.price is not None else "smallest"
    first = f"{aim}: no variant reaches it"
    if best is not None and best.latency is not None:
        predicted = f"{spread(best)} predicted"
        first = f"{aim}: the {kind} variant that reaches it is {_text(best.values)} ({predicted})"
    return [
        f"{first}; of {len(solved)} variants {len(meets)} reach it, {len(never)} cannot by any schedule of these kernels "
        f"(bound), {open_rows} are open"
    ]


def where_gpus_stop_paying(rows: Sequence[Row], keys: Mapping[str, Sequence[Value]]) -> list[str]:
    """Say for each combination of the other keys where another GPU stops paying."""
    if "gpus" not in keys or len(keys["gpus"]) < 2:
        return []
    groups: dict[tuple[tuple[str, Value], ...], list[Row]] = {}
    for row in rows:
        if row.latency is not None:
            groups.setdefault(tuple((k, v) for k, v in row.values.items() if k != "gpus"), []).append(row)
    answers = []
    for key, group in groups.items():
        group = sorted(group, key=lambda row: row.devices)
        last = group[-1]
        enough = next(row for row in group if (row.latency or 0) * (1 - WORTH) <= (last.latency or 0))
        where = f"{_text(dict(key))}: " if key else ""
        if enough is last:
            answers.append(f"{where}every further GPU pays, up to {last.devices}")
            continue
        saved = 1 - (last.lower_bound or 0) / (enough.latency or 1)
        gpus = f"{enough.devices} GPU{'s' * (enough.devices > 1)}"
        answers.append(
            f"{where}beyond {gpus} the latency falls by less than {WORTH:.0%} in all (up to {last.devices}); "
            f"by the bound, no schedule on {last.devices} saves more than {max(saved, 0):.0%}"
        )
    return answers
