"""Output of `schedule` for several models that run at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .interrupt import stoppable
from .output import Output
from .solving import solve_with_progress

if TYPE_CHECKING:
    from ..problem import Problem, Request
    from ..schedule import ModelLatency, Schedule
    from ..schedulers.fairness import Fairness

Alone = Annotated[
    bool,
    typer.Option("--alone", help="Several models: also schedule each alone, and show its slowdown among the others."),
]


Objective = Annotated[
    str,
    typer.Option(
        "--objective",
        metavar="latency|slowdown",
        help="Several models: minimise the end of the last one (latency), or the largest weighted slowdown: a model's "
        "latency among the others, divided by its latency alone (anytime, heft, peft).",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights", metavar="W,W,...", help="How much each model's slowdown counts, for --objective slowdown."
    ),
]


def solve_models(
    out: Output,
    made: Problem,
    scheduler: str,
    options: dict[str, Any],
    requests: tuple[Request, ...],
    objective: str,
    weights: str | None,
) -> tuple[Schedule, Fairness | None]:
    """Schedule a problem for an objective; how its models share the machine, where that is the objective.

    Raises
    ------
    InputError
        There is no such objective, or weights are no numbers or for another one.
    """
    if objective == "slowdown":
        from ..problem import Workload
        from ..schedulers import get
        from ..schedulers.fairness import solve_fairly

        with stoppable(out, get(scheduler).answers_interrupt), out.step(f"Scheduling with {scheduler}") as step:
            workload = Workload(requests, objective="slowdown", model_weights=tuple(_numbers(weights)))
            return solve_fairly(made, workload, scheduler, options, progress=step)
    if objective != "latency":
        raise InputError(f"--objective {objective!r}: latency and slowdown are allowed")
    if weights is not None:
        raise InputError(
            "--weights is for --objective slowdown; --scheduler sortinghat has an option weights of its own"
        )
    return solve_with_progress(out, made, scheduler, options, requests), None


def _numbers(weights: str | None) -> list[float]:
    try:
        return [float(weight) for weight in weights.split(",")] if weights else []
    except ValueError:
        raise InputError(f"--weights {weights}: numbers separated by commas are allowed, such as 2,1") from None


def describe_models(
    out: Output,
    made: Problem,
    chosen: Schedule,
    requests: tuple[Request, ...],
    options: dict[str, Any],
    alone: bool,
    fairness: Fairness | None = None,
) -> dict[str, Any]:
    """Show when each model ends; the same for programs. Nothing of one model.

    Parameters
    ----------
    requests
        The runs that the schedule is for.
    options
        Those of the schedule's method, by which each model is scheduled alone.
    alone
        Whether to do that.
    fairness
        What is known of the models alone, where slowdowns are the objective.
    """
    from ..problem import Workload
    from ..report.tables import table
    from ..report.units import format_ns
    from ..schedule import model_latencies

    known = model_latencies(made, chosen, Workload(requests))
    if not known:
        return {}
    if fairness is not None:
        known = [each._replace(alone_ns=ns) for each, ns in zip(known, fairness.alone_ns, strict=True)]
    elif alone:
        known = _compare_with_alone(out, made, chosen, requests, options)
    models = [{**each._asdict(), "slowdown": each.slowdown, "takes_ns": None} for each in known]
    if made.graph.models_in_turn:
        ends = [each.latency_ns for each in known]
        for model, before in zip(models, [0, *ends], strict=False):
            model["takes_ns"] = model["latency_ns"] - before
        ended = [(each["model"], format_ns(each["latency_ns"]), format_ns(each["takes_ns"])) for each in models]
        out.show(table(("part", "ends", "takes"), ended))
        return {"models": models}
    rows = [
        (each.model, format_ns(each.latency_ns), *_columns(each.alone_ns, each.slowdown, format_ns)) for each in known
    ]
    out.show(table(("model", "latency", "alone", "times as long"), rows))
    slowdowns = [each.slowdown for each in known if each.slowdown is not None]
    return {"models": models, "largest_slowdown": max(slowdowns, default=None), **_fairness(out, fairness, known)}


def _fairness(out: Output, fairness: Fairness | None, known: list[ModelLatency]) -> dict[str, Any]:
    """What slowdowns as the objective came to, in the schedule as it is now, whose streams may be others."""
    if fairness is None:
        return {}
    now = replace(fairness, latency_ns=[each.latency_ns for each in known])
    what = "slowdown" if set(now.weights) == {1.0} else "weighted slowdown"
    out.say(
        f"largest {what} {now.largest:.3f}; no schedule has less than {now.lower_bound:.3f} by these latencies alone"
    )
    return {"weights": now.weights, "objective": now.largest, "objective_lower_bound": now.lower_bound}


def _columns(alone: int | None, slowdown: float | None, form: Any) -> tuple[str, str]:
    return ("-" if alone is None else form(alone), "-" if slowdown is None else f"{slowdown:.2f}×")


def _compare_with_alone(
    out: Output, made: Problem, chosen: Schedule, requests: tuple[Request, ...], options: dict[str, Any]
) -> list[Any]:
    """The models' latencies together and alone."""
    from ..problem import Workload, problems_of_models
    from ..schedule import model_latencies, requests_of_part

    found = []
    for each, part in zip(model_latencies(made, chosen, Workload(requests)), problems_of_models(made), strict=True):
        solved = solve_with_progress(out, part, chosen.scheduler, options, requests_of_part(part, requests))
        assert solved.certificate is not None
        found.append(each._replace(alone_ns=solved.certificate.latency_ns))
    return found
