"""Check a pipeline plan by the rules of ``docs/model.md``, and compute what its stages cost for a batch."""

from __future__ import annotations

import math
from typing import Any

from ..document import HOST, Problem, Refused, count

PARTS = ("input_ns", "work_ns", "overflow_ns", "output_ns")


class Plan:
    """A plan and the costs of its stages; raises `Refused` if a rule is broken or a stage claims a wrong cost."""

    def __init__(self, problem: Problem, stages: list[dict[str, Any]]) -> None:
        self.problem = problem
        self.device = [problem.d[stage["device"]] for stage in stages]
        self.operators = [[problem.o[name] for name in stage["operators"]] for stage in stages]
        self.place = {o: (s, i) for s, own in enumerate(self.operators) for i, o in enumerate(own)}
        if len(set(self.device)) < len(stages):
            raise Refused("two stages are on the same device")
        if sorted(o for own in self.operators for o in own) != list(range(len(problem.o))):
            raise Refused("the plan does not place each operator exactly once")
        for o, before in enumerate(problem.before):
            if any(self.place[p] >= self.place[o] for p in before):
                raise Refused(
                    f"operator {problem.operator_names[o]!r} reads what is made in a later stage, or after it"
                )
        self.maker = {t: self.place[o][0] for o, outputs in enumerate(problem.outputs) for t in outputs}
        self.readers: list[set[int]] = [set() for _ in problem.size]
        for o, inputs in enumerate(problem.inputs):
            for t in inputs:
                self.readers[t].add(self.place[o][0])
        self.costs = [self._cost(s, stage) for s, stage in enumerate(stages)]
        self.cost = max(self.costs, default=0)

    def _cost(self, s: int, claimed: dict[str, Any]) -> int:
        """Return the cost of a stage: input, work, overflow and output, in nanoseconds."""
        p, d, own = self.problem, self.device[s], self.operators[s]
        read = dict.fromkeys(t for o in own for t in p.inputs[o])
        work = [p.normal[o][d] for o in own]
        if None in work:
            raise Refused(f"an operator of stage {s} cannot run on {p.device_names[d]!r}")
        held = sum(p.size[t] for t in read if p.kind[t] == "parameter")
        peak = self._peak(s)
        if peak > p.memory[d]:
            raise Refused(f"the activations of stage {s} take {peak} bytes at once; its device has {p.memory[d]}")
        over, bus = min(max(held + peak - p.memory[d], 0), held), p.routes.get((HOST, d))
        true = {
            "input_ns": sum(self._input(t, s) for t in read),
            "work_ns": sum(ns or 0 for ns in work),
            "overflow_ns": 0 if bus is None else math.ceil(over * 1e9 / bus.bandwidth),
            "output_ns": sum(self._output(t, s) for o in own for t in p.outputs[o]),
        }
        for part in PARTS:
            if count(claimed[part]) != true[part]:
                raise Refused(f"stage {s} says {part} {claimed[part]}; it is {true[part]}")
        return sum(true.values())

    def _input(self, t: int, s: int) -> int:
        """Return the time to get a tensor: 0 for a parameter, a load for a graph input, a copy otherwise."""
        p, d = self.problem, self.device[s]
        if p.kind[t] == "parameter" or self.maker.get(t) == s:
            return 0
        if p.is_host(t):
            return p.routes[HOST, d].ns(p.size[t]) if (HOST, d) in p.routes else 0
        return self._copy(t, self.device[self.maker[t]], d)

    def _output(self, t: int, s: int) -> int:
        """Return the time to send a tensor: the slowest of its copies and of the transfer to host memory."""
        p, d = self.problem, self.device[s]
        times = [self._copy(t, d, self.device[r]) for r in self.readers[t] if r != s]
        if t in p.results and (HOST, d) in p.routes:
            times.append(p.routes[HOST, d].ns(p.size[t]))
        return max(times, default=0)

    def _copy(self, t: int, source: int, target: int) -> int:
        p = self.problem
        if (source, target) not in p.routes:
            raise Refused(f"nothing joins {p.device_names[source]!r} to {p.device_names[target]!r}")
        return p.routes[source, target].ns(p.size[t])

    def _peak(self, s: int) -> int:
        """Return the most bytes of activations that a stage holds at once.

        It holds inputs from the start to their last reader, and a tensor that it sends to the end.
        """
        p, own = self.problem, self.operators[s]
        last = {t: i for i, o in enumerate(own) for t in (*p.inputs[o], *p.outputs[o])}
        change = [0] * (len(own) + 1)
        for t, i in last.items():
            if p.kind[t] != "parameter":
                producers = [k for k, o in enumerate(own) if t in p.outputs[o]]
                sent = producers and (t in p.results or self.readers[t] - {s})
                change[producers[0] if producers else 0] += p.size[t]
                change[len(own) if sent else i + 1] -= p.size[t]
        return max((sum(change[: i + 1]) for i in range(len(own))), default=0)
