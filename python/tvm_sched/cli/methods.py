"""Options of commands that run a method: a scheduler, a partitioner or an allocator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_sched_runtime.errors import InputError

from .interrupt import stoppable
from .output import Output

if TYPE_CHECKING:
    from tvm_sched_runtime.problem import Problem, Request
    from tvm_sched_runtime.schedule import Schedule

    from ..registry import Method

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="Option of the method, such as `work=10`; for a wrong key the error lists all keys. May be repeated.",
    ),
]


@dataclass(frozen=True)
class MethodOptions:
    """``--option``, ``--time-limit`` and ``--seed``."""

    option: Options = None
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            help="Time limit of the method in all, with its bound and certificate. Default: the method's own; of "
            "schedulers, anytime searches for at most 20 s, small problems less.",
        ),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Random seed of the method.")] = None

    def of(self, method: Method[Any], out: Output | None = None) -> dict[str, Any]:
        """Return the options of a method; with ``out``, print a message if the method has no time limit or seed."""
        return {**self.limits(method, out), **parse_options(self.option)}

    def limits(self, method: Method[Any], out: Output | None = None) -> dict[str, Any]:
        """Return ``--time-limit`` and ``--seed`` if they are set and the method has them.

        The time limit is that of the whole run: ``total_time_limit`` if the method also has one for each submodel.
        """
        if self.time_limit is not None and not 0 < self.time_limit < float("inf"):
            raise InputError(f"--time-limit {self.time_limit}: a number of seconds above 0 is allowed")
        known = method.option_names
        whole = "total_time_limit" if "total_time_limit" in known else "time_limit"
        values = {key: value for key, value in ((whole, self.time_limit), ("seed", self.seed)) if value is not None}
        if out is not None:
            for key in sorted(values.keys() - set(known)):
                out.say(f"{method.what} {method.name!r} has no option {key}; --{key.replace('_', '-')} is ignored")
        return {key: value for key, value in values.items() if key in known}


class Statistic(Enum):
    """What is least over draws of latencies."""

    MEAN = "mean"
    P80 = "p80"


@dataclass(frozen=True)
class SchedulerOptions(MethodOptions):
    """A scheduler and its options."""

    scheduler: Annotated[str, typer.Option("--scheduler", "-s", metavar="NAME", help="See `tvm-sched schedulers`.")] = (
        "anytime"
    )
    robust: Annotated[
        Statistic | None,
        typer.Option(
            "--robust",
            metavar="STATISTIC",
            help="Take the schedule that is best over draws of the uncertain latencies, by their mean or by p80, their "
            "80th percentile: the scheduler robust.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.robust is None:
            return
        if self.scheduler not in ("anytime", "robust"):
            raise InputError(f"--robust is a scheduler of its own; leave --scheduler {self.scheduler} out")
        object.__setattr__(self, "scheduler", "robust")
        object.__setattr__(self, "option", [f"statistic={self.robust.value}", *(self.option or ())])


def solve_with_progress(
    out: Output,
    problem: Problem,
    scheduler: str,
    options: Mapping[str, Any],
    requests: tuple[Request, ...] = (),
) -> Schedule:
    """Schedule a problem with progress on standard error; after Ctrl-C, return the best schedule so far."""
    from tvm_sched_runtime.problem import Workload

    from ..schedulers import get, solve

    with stoppable(out, get(scheduler).answers_interrupt), out.step(f"Scheduling with {scheduler}") as step:
        return solve(problem, Workload(requests), scheduler, options, progress=step)


def parse_options(texts: Iterable[str] | None) -> dict[str, str]:
    """Return ``KEY=VALUE`` texts as a dictionary; ``-`` in a key becomes ``_``."""
    options = {}
    for text in texts or ():
        key, mark, value = text.partition("=")
        if not mark or not key.strip():
            raise InputError(f"--option {text}: expected KEY=VALUE, e.g. --option time_limit=60")
        options[key.strip().replace("-", "_")] = value.strip()
    return options
