"""Instances of latency: a `Scenario`, a problem in a cold run or with resident parameters; methods are schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm_sched.bounds import lower_bound
from tvm_sched.bounds.schedule_evidence import evidence, uncovered
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.scheduler_registry import SCHEDULERS
from tvm_sched.schedulers.solve_latency import certificate
from tvm_sched_check import check as independent_check
from tvm_sched_runtime.errors import InputError, SchedulerError
from tvm_sched_runtime.problem import Scenario
from tvm_sched_runtime.schedule import Schedule

from .kind import NO_FILES, Answer, Checked, Kind, Proof, checked_in_files, has_seed, limited


class LatencyKind(Kind[Scenario]):
    """Schedules of least latency."""

    name, unit, measure = "latency", "ns", "latency"

    def methods(self) -> Sequence[str]:
        """Return the registered schedulers."""
        return SCHEDULERS.names()

    def is_random(self, method: str) -> bool:
        """Return whether the method has a seed."""
        return has_seed(SCHEDULERS, method)

    def digest(self, task: Scenario) -> str:
        """Return the problem's digest and, unless the run is cold, the workload's."""
        return f"{task.problem.digest}-{task.workload.digest}" if task.resident else task.problem.digest

    def solve(self, task: Scenario, method: str, seconds: float, seed: int) -> Answer:
        """`tvm_sched.schedulers.solve` in this time."""
        _, options = limited(SCHEDULERS, method, seconds, seed)
        schedule = solve(task.problem, task.workload, method, options)
        assert schedule.certificate is not None
        return Answer(schedule.certificate.latency_ns, schedule.to_json(), schedule.seconds)

    def worth(self, task: Scenario, solution: bytes, where: str) -> float:
        """Verify all rules and return the simulated latency in nanoseconds."""
        schedule = Schedule.from_json(solution, where)
        if schedule.problem != task.problem.digest:
            raise InputError(
                f"{where}: a schedule of problem {schedule.problem!r}; this one is {task.problem.digest!r}"
            )
        return certificate(task.problem, schedule.replace(certificate=None), task.workload).latency_ns

    def proof(self, task: Scenario) -> Proof:
        """Return the lower bound, with evidence if lemmas cover the problem."""
        known = lower_bound(task)
        if uncovered(task.problem) is not None:
            return Proof(known.ns, known.name)
        document = evidence(task)
        return Proof(document.proved_ns, document.argument, document.to_json())

    def check(
        self, task: Scenario, solution: bytes, proof: Proof, where: str, files: Mapping[str, str] = NO_FILES
    ) -> Checked:
        """Replay and proof by `tvm_sched_check`, for problems that it covers."""
        if proof.evidence is None:
            return Checked()
        contents = {"instance": task.problem.to_json(), "solution": solution, "evidence": proof.evidence}
        verdict = checked_in_files(independent_check, contents, where, files)
        if verdict.latency_ns != self.worth(task, solution, where):
            raise SchedulerError(f"{where}: simulator and tvm_sched_check differ: please report this")
        return Checked("tvm_sched_check", verdict.proved_ns)

    def document(self, task: Scenario) -> bytes:
        """Return the problem file."""
        return task.problem.to_json()
