"""Schedules of result pages, checked by `tvm_sched_check`, which shares no code with the package.

A script calls `checked` for each schedule whose latency stands on its page; the page then says how many were
(`_result_page.circumstances`). If a schedule is refused, the script ends and writes no page.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvm_sched.pipeline import Partition
    from tvm_sched_cluster import Allocation, Service, ServiceRequest
    from tvm_sched_cluster.search.cluster_search import ClusterSearch
    from tvm_sched_runtime.pipeline import PartitionProblem
    from tvm_sched_runtime.problem import Problem
    from tvm_sched_runtime.schedule import Schedule

_found: Counter[str] = Counter()
REPLAYED, PROVED = "replayed", "proved"


@lru_cache(maxsize=8)
def _files(problem: Problem) -> tuple[bytes, bytes]:
    """Return problem and evidence as JSON; all methods of a case share them."""
    from tvm_sched.bounds.schedule_evidence import evidence

    return problem.to_json(), evidence(problem).to_json()


def verdict(problem: Problem, schedule: Schedule) -> str:
    """Return `PROVED`, `REPLAYED` if the bound is not proved, or the reason why the checker does not apply.

    Raises
    ------
    tvm_sched_check.Refused
        The schedule breaks a rule, or takes another time than its certificate says.
    """
    from tvm_sched.bounds.schedule_evidence import uncovered
    from tvm_sched_check import check

    if (more := uncovered(problem)) is not None:
        return f"costs of operators that run together, with {more}"
    if schedule.certificate and schedule.certificate.requests:
        return "warm runs"
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("problem.json", "schedule.json", "evidence.json")]
        document, evidence = _files(problem)
        for file, content in zip(files, (document, schedule.to_json(), evidence), strict=True):
            file.write_bytes(content)
        return PROVED if check(*files).all_proved else REPLAYED


def allocation_verdict(
    search: ClusterSearch, services: Sequence[Service], requests: Sequence[ServiceRequest], allocation: Allocation
) -> str:
    """Return the verdict on an allocation of the first requests, by `tvm_sched_check.clusters`."""
    from tvm_sched_check.clusters import check
    from tvm_sched_cluster.bounds.mix_bound_evidence import evidence

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("allocation.json", "evidence.json")]
        for file, content in zip(files, (allocation, evidence(search, services, requests)), strict=True):
            file.write_bytes(content.to_json())
        return PROVED if check(*files).all_proved else REPLAYED


def partition_verdict(problem: PartitionProblem, stages: int, found: Partition) -> str:
    """Return the verdict on a partition, by `tvm_sched_check.partitions`, which knows only the simple bound."""
    from tvm_sched_bench.kinds.throughput_kind import Pipeline, ThroughputKind
    from tvm_sched_check.partitions import check

    kind, task = ThroughputKind(), Pipeline(problem, stages)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("instance.json", "partition.json")]
        for file, content in zip(files, (kind.document(task), kind.solution(task, found)), strict=True):
            file.write_bytes(content)
        priced = check(*files)
    if not math.isclose(priced.cost, found.cost, rel_tol=1e-9):
        raise SystemExit(f"a partition costs {float(priced.cost)} by tvm_sched_check, {found.cost} by its certificate")
    return PROVED if priced.proved >= found.bound * (1 - 1e-12) else REPLAYED


def checked(problem: Problem, schedule: Schedule) -> Schedule:
    """Return the schedule after `tvm_sched_check` has replayed it and verified the evidence of its bound."""
    tally(verdict(problem, schedule))
    return schedule


def tally(found: str) -> None:
    """Count a verdict, of this run or of an earlier one."""
    _found[found] += 1


def sentence() -> str:
    """Return the page's sentence on what was checked; empty if the script checks nothing."""
    if not _found:
        return ""
    replayed = _found[REPLAYED] + _found[PROVED]
    left = {why: number for why, number in _found.items() if why not in (REPLAYED, PROVED)}
    rest = "".join(f"; {number} are not covered by it ({why})" for why, number in left.items())
    return (
        f"`tvm_sched_check` replayed {replayed} of {_found.total()} schedules and proved the bounds of {_found[PROVED]} "
        f"of them{rest}."
    )
