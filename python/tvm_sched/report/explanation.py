"""Explain in words why no schedule of a problem can be much faster than this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import FORBIDDEN, Problem
from tvm_sched_runtime.schedule import Schedule
from tvm_sched_runtime.schedule.simulator import simulate

from ..bounds import Bound, all_bounds, lower_bound
from ..bounds.schedule_evidence import Evidence, evidence
from .figures import lane_figures, ordered_lanes
from .units import format_bytes, format_ns, format_percent

MOST_SHOWN = 8
"""Largest number of lemmas that are shown, the longest first."""


def explain(problem: Problem, schedule: Schedule) -> list[str]:
    """Return sentences on a schedule's latency, on each bound, and on the argument of the strongest bound.

    Raises
    ------
    ScheduleError
        The schedule breaks a rule.
    """
    timeline, bound = simulate(problem, schedule), lower_bound(problem)
    latency = timeline.latency_ns
    gap = 1 - bound.ns / latency if latency else 0.0
    lines = [
        f"{problem.graph.name} on {problem.topology.name}, latencies {problem.costs.source or 'of unknown source'}, "
        f"{len(problem.graph.operators):,} operators, fused as they stand in the problem"
        + (f"; groups of operators with alternatives: {len(problem.variants.groups)}" if problem.variants else ""),
        f"The schedule takes {format_ns(latency)}; no schedule takes less than {format_ns(bound.ns)} ({bound.name}), "
        f"so at most {format_percent(gap)} can be saved.",
    ]
    lines += [f"  by {each.name}: {format_ns(each.ns)}{_share(each, latency)}" for each in all_bounds(problem)]
    lines += _proof(problem, bound) if problem.graph.operators else []
    figures = lane_figures(timeline, ordered_lanes(problem.topology, [timeline]))
    if figures and latency:
        busiest = max(figures, key=lambda lane: lane.busy_ns)
        lines.append(
            f"In this schedule {busiest.lane} is busiest: for {format_percent(busiest.busy_ns / latency)} of the time."
        )
    return lines


def _share(bound: Bound, latency: int) -> str:
    return f", {format_percent(bound.ns / latency)} of the latency" if latency else ""


def _proof(problem: Problem, bound: Bound) -> list[str]:
    try:
        proof = evidence(problem)
    except InputError as error:
        return [f"What the bound rests on cannot be told: {error}"]
    of = f", for {format_ns(proof.proved_ns)} of it" if proof.proved_ns < bound.ns else ""
    if proof.relaxed:
        of += ", for operators that stand for all alternatives of a group (OPERATOR/head0 and others)"
    *before, last = proof.lemmas
    lemmas = [lemma for lemma in before if "last" in lemma]
    longest = sorted(lemmas, key=lambda lemma: -lemma["ns"])
    sentences = [f"Why{of}:", *(f"  {lemma_sentence(lemma)}" for lemma in longest[:MOST_SHOWN])]
    if len(lemmas) > MOST_SHOWN:
        sentences.append(f"  and {len(lemmas) - MOST_SHOWN} shorter ones between other operators")
    basis = problem if proof.relaxed is None else proof.relaxed.problem
    return [*sentences, *(f"  {sentence}" for sentence in _whole(basis, proof, last))]


def lemma_sentence(lemma: dict[str, Any]) -> str:
    """Return a sentence on a lemma about a part of the run."""
    if lemma["rule"] == "bus":
        return f"{lemma['last']} cannot end before {format_ns(lemma['ns'])}: the buses carry what it and all before it read."
    between = f"from the end of {lemma['first']} to that of {lemma['last']} {format_ns(lemma['ns'])} pass at least: "
    count = len(lemma.get("operators", ()))
    if lemma["rule"] == "alternatives":
        count = len(lemma["alternatives"])
        return f"{between}the group {lemma['group']} lies between, and none of its {count} alternatives is faster."
    return (
        between
        + {
            "placement": f"the {count} longest operators between share devices or pay for copies, wherever they run.",
            "ports": "operators between share devices or wait for copies; a device sends and receives one at a time.",
            "work": f"{count} operators between fill the devices.",
            "turns": f"of {count} operators between some run on the same device, one after another.",
            "path": "so long is the longest path between.",
        }[lemma["rule"]]
    )


def _whole(problem: Problem, proof: Evidence, last: dict[str, Any]) -> Iterator[str]:
    """Yield sentences on the last lemma: the argument about the whole run."""
    ns = format_ns(last["ns"])
    if last["rule"] == "path":
        names = proof.through
        shown = " -> ".join(names if len(names) <= 9 else [*names[:4], f"({len(names) - 8} more)", *names[-4:]])
        yield f"With these, the longest path takes {ns}, each operator on its best device: {shown}."
    elif last["rule"] == "bus":
        index, readers = problem.graph.index, [problem.graph.index.operator_id[name] for name in proof.through]
        direct = (problem.costs.direct_ns != FORBIDDEN).any(axis=1)
        read: dict[int, int] = {}  # bytes of each tensor for its largest reader: a lookup reads a few rows
        for o in readers:
            for t, size in zip(index.host_inputs[o], index.host_bytes[o], strict=True):
                read[t] = max(size if direct[o] else index.size[t], read.get(t, 0))
        crossed = ", ".join(last["multipliers"])
        if "steps" in last:
            yield (
                "An operator whose parameters are loaded keeps the buses busy, one that reads them directly takes longer. "
                + _weighed(last["steps"], last.get("devices", []), last["multipliers"], last["ns"])
            )
            yield from _heaviest([*last["steps"], *last.get("regions", [])])
            return
        yield (
            f"{len(read)} inputs and parameters, {format_bytes(sum(read.values()))}, have to cross {crossed} "
            f"to {len(readers)} operators, and after each of them at least {format_ns(last['least'])} of work follow: {ns}."
        )
    elif last["rule"] == "assignment":
        buses: dict[str, int] = {}
        for row in last["buses"]:
            buses[row["bus"]] = buses.get(row["bus"], 0) + row["multiplier"]
        yield (
            "On each device an operator takes its time there, its parameters cross that device's bus, and what operators "
            f"elsewhere make is copied to it. {_weighed(last['steps'], last['devices'], buses, last['ns'])}"
        )
        yield from _heaviest([*last["steps"], *last.get("regions", [])])
    elif last["rule"] == "bisection":
        yield (
            f"However the operators divide between {' and '.join(last['sides'])}, their parameters and the copies from "
            f"one side to the other take one of the buses longer than any shorter run has: {ns}."
        )
    elif last["rule"] == "enumeration":
        yield f"All ways to begin a schedule were looked at, and none ends earlier: {ns}."
    else:
        yield (
            f"{len(last['operators'])} operators fill the {len(last['multipliers'])} devices between what must be done "
            f"before them and after them: {ns}."
        )


def _weighed(steps: Sequence[dict[str, Any]], devices: Sequence[int], buses: Mapping[str, int], ns: int) -> str:
    """Return a sentence on a bound from paths, devices and buses together."""
    crossing, working = sum(buses.values()), sum(devices)
    along = sum(step["multiplier"] for step in steps if "first" not in step)
    total = crossing + working + along
    parts = [(along, "on the paths"), (working, "on the devices"), (crossing, f"on {', '.join(buses)}")]
    shares = " and ".join(
        f"{format_percent(part / total)} of its time {where}" for part, where in parts if part >= total / 2000
    )
    return f"Counted with {shares}, whichever is less, all operators take {format_ns(ns)}."


def _heaviest(steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    if path := heaviest_path(steps):
        shown = " -> ".join(path if len(path) <= 9 else [*path[:4], f"({len(path) - 8} more)", *path[-4:]])
        yield f"The path that counts most: {shown}."


def heaviest_path(steps: Sequence[dict[str, Any]]) -> list[str]:
    """Return the operators on a path along the steps of largest multiplier."""
    onward: dict[str | None, dict[str, Any]] = {}
    for step in sorted(steps, key=lambda step: int(step["multiplier"])):
        onward[step.get("first")] = step
    at, path = None, list[str]()
    while at in onward:
        at = onward[at]["last"]
        path.append(at)
    return path
