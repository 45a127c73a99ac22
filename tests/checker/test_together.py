"""Operators that run together on a device: the checker replays stages and verifies bounds by occupancy."""

import numpy as np
import pytest
from hypothesis import given, settings

from checker.cases import Files, certified, fan, files_of, placed
from checker.together_cases import staged_fan, staged_problems, together
from thorough import examples
from tvm_sched.bounds import lower_bound
from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched.schedulers import solve
from tvm_sched_check import Refused
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.schedule.simulator import simulate


def test_a_stage_takes_what_the_formula_says(folder):
    """0.5 · 200 + 0.5 · max(100 · 0.5 + 100 · 0.5, 100) = 150 for the stage; 100 each for source and join."""
    problem, schedule = staged_fan(150)
    files = files_of(problem, certified(problem, schedule))
    assert files.check(folder).latency_ns == 350
    files.schedule["certificate"]["latency_ns"] = 349
    with pytest.raises(Refused, match="replayed, it takes 350 ns"):
        files.check(folder)


def test_the_bound_of_a_device_is_the_part_that_operators_occupy(folder):
    """Each of the four occupies 0.5 · 100 + 0.5 · 100 · 0.9 = 95 of a device, less 0.001; a copy costs more than all."""
    problem = together(fan(10**5), np.full((4, 2, 1), 0.9))
    schedule = solve(problem, method="single")
    files = files_of(problem, schedule)
    work = {"rule": "turns", "operators": ["a", "b", "join"], "ns": 290}
    for claimed, proved in ((290, True), (291, False)):  # 100 for the source, 189.998 for two of the three in turn
        files.evidence["lemmas"] = [work | {"ns": claimed}]
        if proved:
            assert files.check(folder).proved_ns == claimed
        else:
            with pytest.raises(Refused, match="claims 291 ns"):
                files.check(folder)


@settings(max_examples=examples(30), deadline=None)
@given(case=staged_problems())
def test_stages_of_any_problem_are_replayed_and_their_bounds_verified(folder, case):
    problem, schedule = case
    files = files_of(problem, certified(problem, schedule))
    verdict = files.check(folder)
    assert verdict.latency_ns == simulate(problem, schedule).latency_ns
    assert verdict.proved_ns == files.evidence["proved_ns"] <= lower_bound(problem).ns
    # A bound just above a whole number is claimed as that number, since floats may err; the checker rounds it up.
    if files.evidence["lemmas"][-1]["rule"] == "bisection":
        return  # it verifies the claim by its weights, which may prove a little more
    files.evidence["lemmas"][-1]["ns"] += 2
    with pytest.raises(Refused, match="claims"):
        files.check(folder)


CHANGES = {
    "a stage in two parts": lambda p: (p[0].update(stage=1), p[1].update(stage=0)),
    "a stage of a negative number": lambda p: p[1].update(stage=-1),
    "a stage that its reader is in": lambda p: p[3].update(stage=1),
    "streams outside of stages": lambda p: [each.update(stage=0) for each in p],
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_stage_that_breaks_a_rule_is_refused(folder, what):
    problem, schedule = staged_fan(150)
    files = files_of(problem, certified(problem, schedule))
    CHANGES[what](files.schedule["placements"])
    with pytest.raises(Refused):
        files.check(folder)


def test_rules_of_devices_that_run_one_operator_at_a_time_do_not_apply(folder):
    problem, schedule = staged_fan(150)
    files = files_of(problem, certified(problem, schedule))
    for lemma in (placed(1), {"rule": "work", "by": "end", "operators": ["a"], "multipliers": [1, 1], "ns": 1}):
        changed = Files(files.problem, files.schedule, files.evidence | {"lemmas": [lemma, *files.evidence["lemmas"]]})
        with pytest.raises(Refused, match="one operator at a time"):
            changed.check(folder)


UNCOVERED = {
    "pairs": {"pairs": [(0, 1, 2, 150)]},
    "threads": {"threads": [2, 2]},
    "excess": {"excess": [0.1]},
    "crowding": {"crowding": np.full((4, 2), 0.1)},
    "factor": {"factor": 1.5},
}


@pytest.mark.parametrize("what", UNCOVERED)
def test_costs_that_are_not_covered_are_named(folder, what):
    problem = together(fan(1000), np.full((4, 2, 1), 0.5), **UNCOVERED[what])
    with pytest.raises(InputError, match=what):
        evidence(problem)
    plain, schedule = staged_fan(150)
    files = files_of(plain, certified(plain, schedule))
    files.schedule["problem"] = files.evidence["problem"] = problem.digest
    with pytest.raises(Refused, match=rf"costs\.concurrency\.{what}"):
        Files(problem.to_json(), files.schedule, files.evidence).check(folder)
