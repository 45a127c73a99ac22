"""Instances of latency: a `Problem`, cold or with resident parameters; methods are schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm_sched_check import check as independent_check

from ...bounds import lower_bound
from ...bounds.schedule_evidence import evidence
from ...errors import InputError, SchedulerError
from ...problem import Problem
from ...schedule import Schedule
from ...schedulers.registry import SCHEDULERS, certificate, solve
from .base import NO_FILES, Answer, Checked, Kind, Proof, checked_in_files, has_seed, limited


class LatencyKind(Kind[Problem]):
    """Schedules of least latency."""

    name, unit, measure = "latency", "ns", "latency"

    def methods(self) -> Sequence[str]:
        """The registered schedulers."""
        return SCHEDULERS.names()

    def is_random(self, method: str) -> bool:
        """Whether it has a seed."""
        return has_seed(SCHEDULERS, method)

    def digest(self, task: Problem) -> str:
        """The problem's own, with a mark where parameters are resident."""
        return f"{task.digest}{'-warm' if task.resident else ''}"

    def solve(self, task: Problem, method: str, seconds: float, seed: int) -> Answer:
        """`tvm_sched.schedulers.solve` in this time."""
        _, options = limited(SCHEDULERS, method, seconds, seed)
        found = solve(task, method, options)
        assert found.certificate is not None
        return Answer(found.certificate.latency_ns, found.to_json(), found.seconds)

    def worth(self, task: Problem, solution: bytes, where: str) -> float:
        """Latency by the simulator, in nanoseconds, after all rules were verified."""
        schedule = Schedule.from_json(solution, where)
        if schedule.problem != task.digest:
            raise InputError(f"{where}: a schedule of problem {schedule.problem!r}; this one is {task.digest!r}")
        return certificate(task, schedule.replace(certificate=None)).latency_ns

    def proof(self, task: Problem) -> Proof:
        """The lower bound, with evidence where lemmas cover the problem and attain it."""
        known = lower_bound(task)
        if task.resident or task.costs.concurrency is not None:
            return Proof(known.ns, known.name)
        found = evidence(task)
        return Proof(found.proved_ns, found.argument, found.to_json())

    def check(
        self, task: Problem, solution: bytes, proof: Proof, where: str, files: Mapping[str, str] = NO_FILES
    ) -> Checked:
        """Replay and proof by `tvm_sched_check`, for problems that it covers."""
        if proof.evidence is None:
            return Checked()
        contents = {"instance": task.to_json(), "solution": solution, "evidence": proof.evidence}
        found = checked_in_files(independent_check, contents, where, files)
        if found.latency_ns != self.worth(task, solution, where):
            raise SchedulerError(f"{where}: simulator and tvm_sched_check differ: please report this")
        return Checked("tvm_sched_check", found.proved_ns)

    def document(self, task: Problem) -> bytes:
        """The problem file."""
        return task.to_json()
