"""What `schedule` says of several models that run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import Output
from .solving import solve_aloud

if TYPE_CHECKING:
    from ..problem import Problem
    from ..schedule import Request, Schedule

Alone = Annotated[
    bool,
    typer.Option(
        "--alone", help="Several models: schedule each by itself, too, and say how much slower it is among the others."
    ),
]


def describe_models(
    out: Output, made: Problem, chosen: Schedule, requests: tuple[Request, ...], options: dict[str, Any], alone: bool
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
    """
    from ..report.tables import table
    from ..report.units import format_ns
    from ..schedule import model_latencies

    known = model_latencies(made, chosen, requests)
    if not known:
        return {}
    if alone:
        known = _beside_alone(out, made, chosen, requests, options)
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
    return {"models": models, "largest_slowdown": max(slowdowns, default=None)}


def _columns(alone: int | None, slowdown: float | None, form: Any) -> tuple[str, str]:
    return ("-" if alone is None else form(alone), "-" if slowdown is None else f"{slowdown:.2f}×")


def _beside_alone(
    out: Output, made: Problem, chosen: Schedule, requests: tuple[Request, ...], options: dict[str, Any]
) -> list[Any]:
    """The models' latencies with those that each has where it is scheduled alone."""
    from ..problem import problems_of_models
    from ..schedule import model_latencies
    from .residency import requests_of_part

    found = []
    for each, part in zip(model_latencies(made, chosen, requests), problems_of_models(made), strict=True):
        solved = solve_aloud(out, part, chosen.scheduler, options, requests_of_part(part, requests))
        assert solved.certificate is not None
        found.append(each._replace(alone_ns=solved.certificate.latency_ns))
    return found
