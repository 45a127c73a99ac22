"""Output of commands on uncertain latencies: intervals, and which kernels to measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .interrupt import interruptible
from .output import Output

if TYPE_CHECKING:
    from ..problem import Problem
    from ..schedule import Schedule


def show_uncertainty(out: Output, made: Problem, chosen: Schedule, samples: int, seed: int) -> dict[str, Any]:
    """The uncertainty of the latency, for people and for programs."""
    import numpy as np

    from ..cost_model.uncertainty import sample_latencies
    from ..report.tables import table
    from ..report.units import format_ns

    with interruptible(out), out.step("Sampling") as step:
        latencies = sample_latencies(made, chosen, samples, seed, step)
    levels = {"5 %": 5, "25 %": 25, "median": 50, "75 %": 75, "95 %": 95}
    found = {name: int(np.percentile(latencies, level)) for name, level in levels.items()}
    out.show(table(("latency", f"{samples} samples"), [(name, format_ns(ns)) for name, ns in found.items()]))
    return {"percentiles_ns": found, "samples": samples, "seed": seed}


def most_useful_of(made: Problem, chosen: Schedule) -> list[dict[str, Any]]:
    """The kernels whose measurement would help most, for programs."""
    from dataclasses import asdict

    from ..cost_model.uncertainty import most_useful

    return [asdict(each) for each in most_useful(made, chosen)]


def show_useful(out: Output, made: Problem, chosen: Schedule) -> None:
    """The same for people."""
    from ..report.tables import table
    from ..report.units import format_ns

    rows = [
        (each["signature"].partition("|")[0], str(len(each["operators"])), each["operators"][0], each["device"],
         format_ns(each["uncertain_ns"]), "far from the data" if each["far"] else "")
        for each in most_useful_of(made, chosen)
    ]  # fmt: skip
    if rows:
        head = ("most useful to measure", "operators", "such as", "on", "uncertain by", "")
        out.show(table(head, rows, text_columns=1))
