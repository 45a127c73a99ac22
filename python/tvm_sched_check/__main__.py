"""The command: ``python -m tvm_sched_check problem.json schedule.json evidence.json``; see `main`."""

from __future__ import annotations

import sys
from typing import Any

from .derivation import bound_of
from .document import Problem, Refused, read
from .replay import replay


def check(problem_file: str, schedule_file: str, evidence_file: str) -> dict[str, Any]:
    """Replay the schedule and prove the bound; raises `Refused` where one of the files is wrong."""
    try:
        problem_document, digest = read(problem_file, "tvm_sched.problem", (1, 2, 3))
        schedule, _ = read(schedule_file, "tvm_sched.schedule", (1,))
        evidence, _ = read(evidence_file, "tvm_sched.evidence", (1,))
        problem = Problem(problem_document, digest, schedule.get("choice") or {})
        latency, bound = replay(problem, schedule), bound_of(problem, evidence)
        claimed = (schedule.get("certificate") or {}).get("latency_ns", latency)
        certified = (schedule.get("certificate") or {}).get("lower_bound_ns", bound)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Refused(f"a file is not as its format says: {type(error).__name__} {error}") from None
    if claimed != latency:
        raise Refused(f"the certificate says {claimed} ns; replayed, the schedule takes {latency} ns")
    if bound > latency:
        raise Refused(f"the evidence proves {bound} ns, the schedule takes {latency} ns: one of the two rules is wrong")
    return {
        "latency_ns": latency,
        "proved_ns": bound,
        "certified_ns": certified,
        "gap": 1 - bound / latency if latency else 0.0,
    }


def main(arguments: list[str]) -> int:
    """Status 0: the latency is true and the certificate's bound proved; 1: a lower one is proved; 2: refused."""
    if len(arguments) != 3:
        print("usage: python -m tvm_sched_check problem.json schedule.json evidence.json", file=sys.stderr)
        return 2
    try:
        found = check(*arguments)
    except Refused as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    print(f"latency {found['latency_ns']} ns, replayed")
    print(
        f"the certificate claims that no schedule is below {found['certified_ns']} ns; the evidence proves {found['proved_ns']} ns"
    )
    print(f"gap {found['gap']:.2%}")
    return 0 if found["proved_ns"] >= found["certified_ns"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
