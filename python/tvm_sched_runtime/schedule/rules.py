"""Names of the rules that a schedule must obey, and the messages for violations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from ..problem import HOST, Problem

if TYPE_CHECKING:
    from .native_problem import BrokenRule

Array = npt.NDArray[np.int64]

COMPILED_RULES = (
    "operator-missing",
    "operator-twice",
    "operator-forbidden",
    "load-activation",
    "load-shared",
    "copy-self",
    "copy-route",
    "copy-source",
    "tensor-twice",
    "tensor-missing",
    "host-read-missing",
    "host-read-twice",
    "host-read-device",
    "host-read-spurious",
    "stage-unknown",
    "stage-split",
    "stage-direct",
    "stage-streams",
    "deadlock",
)
"""Rules that C++ checks: ``RuleName`` in ``cpp/simulate/rules.cc``."""

RULES = ("problem", *COMPILED_RULES, "evict", "memory", "certificate", "contiguity")
"""All rules that `verify` knows."""


class Violation(msgspec.Struct, frozen=True):
    """A broken rule.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import violations
    >>> missing = schedule.replace(placements=schedule.placements[:2])
    >>> [violation.rule for violation in violations(problem, missing)]
    ['operator-missing']
    """

    rule: str
    """One of `RULES`."""
    message: str
    """Description with the names of the operators, tensors and devices."""
    operator: str = ""
    device: str = ""
    """The operator and device at fault; empty if unknown."""


def describe(problem: Problem, placements: Array, transfers: Array, broken: BrokenRule) -> Violation:
    """Describe the rule of the C++ simulator that a schedule breaks.

    The schedule's tables are those of `ScheduleIndex`.
    """
    # msgspec does not encode tvm_ffi's subclass of str.
    name = str(broken.rule)
    o, t, d, other = broken.operator, broken.tensor, broken.device, broken.other
    operator = problem.graph.operators[o].name if o >= 0 else ""
    tensor = problem.graph.tensors[t].name if t >= 0 else ""
    device = problem.topology.devices[d].name if d >= 0 else ""
    if name == "deadlock":
        return _deadlock(problem, placements, transfers, broken.cycle)
    if name == "load-shared":
        return loaded_in_place(tensor, device)
    is_device = other >= 0 and name != "operator-forbidden" and not name.startswith("stage")
    source = problem.topology.devices[other].name if is_device else ""
    producer = problem.graph.index.producer[t] if t >= 0 else -1
    made_by = f"made by operator {problem.graph.operators[producer].name!r}" if producer >= 0 else "from host memory"
    mode = "with direct host access" if other == 1 else "with its tensors on the device"
    sentence = {
        "operator-missing": f"operator {operator!r} is placed on no device; each operator is placed once",
        "operator-twice": f"operator {operator!r} is placed again on {device!r}; each operator is placed once",
        "operator-forbidden": f"operator {operator!r} cannot run on {device!r} {mode}: its latency there is null",
        "load-activation": f"tensor {tensor!r}, {made_by}, is loaded into {device!r}; "
        "only graph inputs and parameters lie in host memory, others need a copy",
        "copy-self": f"tensor {tensor!r} is copied from {device!r} to itself",
        "copy-route": f"tensor {tensor!r} is copied from {source!r} to {device!r}, but nothing joins the two",
        "copy-source": f"tensor {tensor!r}, {made_by}, is copied from {source!r} to {device!r}, "
        f"but it never gets to {source!r}",
        "tensor-twice": f"tensor {tensor!r}, {made_by}, gets to {device!r} twice; once is enough",
        "tensor-missing": f"operator {operator!r} on {device!r} reads tensor {tensor!r}, {made_by}, "
        "but nothing brings that tensor there",
        "host-read-missing": f"operator {operator!r} on {device!r} has direct host access, but no host_read "
        "gives it a turn on the bus",
        "host-read-twice": f"operator {operator!r} on {device!r} has a second host_read; one is enough",
        "host-read-device": f"the host_read of operator {operator!r} is for {device!r}, but it runs on {source!r}",
        "host-read-spurious": f"a host_read for {device!r} names operator {operator!r}, which is placed "
        "without direct host access",
        "stage-unknown": f"operator {operator!r} is in stage {other} of {device!r}, but the problem's costs do not say how "
        "long operators take together (costs.concurrency)",
        "stage-split": f"operator {operator!r} is in stage {other} of {device!r}, whose operators do not follow each other "
        "in the launch order",
        "stage-direct": f"operator {operator!r} is in stage {other} of {device!r} and has direct host access; "
        "operators of a stage have their tensors on the device",
        "stage-streams": f"device {device!r} has stages and several streams outside of them; it can have one or the other",
    }[name]
    return Violation(name, f"rule {name!r}: {sentence}", operator, device)


def loaded_in_place(tensor: str, device: str) -> Violation:
    """Say that a tensor is brought to a device which has it from the start."""
    sentence = f"tensor {tensor!r} is loaded into {device!r}, which has it in host memory from the start"
    return Violation("load-shared", f"rule 'load-shared': {sentence}", "", device)


def _deadlock(problem: Problem, placements: Array, transfers: Array, cycle: Sequence[int]) -> Violation:
    """Name the nodes of a cycle; operator and device are those of its first kernel, or of its first transfer."""
    events, count = [int(event) for event in cycle], placements.shape[1]
    names = [_event(problem, placements, transfers, event) for event in (*events, events[0])]
    kernels = [event for event in events if event < count]
    if kernels:
        o, d = placements[:2, kernels[0]]
        operator = problem.graph.operators[o].name
    else:
        operator, d = "", transfers[3, events[0] - count]
    device = problem.topology.devices[d].name
    shown = names if len(names) <= 12 else [*names[:6], f"({len(names) - 11} more)", *names[-5:]]
    message = f"rule 'deadlock': each of these waits for the one before it: {' -> '.join(shown)}"
    return Violation("deadlock", message, operator, device)


def _event(problem: Problem, placements: Array, transfers: Array, event: int) -> str:
    operators, tensors, devices = problem.graph.operators, problem.graph.tensors, problem.topology.devices
    if event < placements.shape[1]:
        o, d = placements[:2, event]
        return f"operator {operators[o].name!r} on {devices[d].name!r}"
    _, t, source, target, _ = transfers[:, event - placements.shape[1]]
    if source == HOST:
        return f"load of {tensors[t].name!r} into {devices[target].name!r}"
    return f"copy of {tensors[t].name!r} from {devices[source].name!r} to {devices[target].name!r}"
