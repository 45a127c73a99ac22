"""VIPR certificates: derivations follow, constraints hold in every schedule at hand, and changed files prove nothing."""

import json
import os
import re
import shutil
import subprocess
from random import Random

import pytest
import vipr
from hypothesis import example, given, settings
from vipr.integer_program import IntegerProgram
from vipr.schedule_program import ScheduleProgram

from checker.cases import bus_problem, chain_of_readers, fan, placed
from checker.together_cases import staged_fan, staged_problems
from checker.vipr_rules import Wrong, proved
from strategies import SEEDS, problems
from thorough import examples
from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_bench.testing.hios_problems import random_layered
from tvm_sched_check import Refused
from tvm_sched_check.document import HOST, Problem
from tvm_sched_check.replay import Replay

STYLES = ("bus", "shared", "mixed", "storage", "disk")
VIPRCHK = os.environ.get("VIPRCHK") or shutil.which("viprchk")
CASES = {
    "placement": (fan(10), 310),  # 100 for the source, 210 by cases: which of the branches share a device
    "path": (fan(0), 300),
    "bus": (bus_problem(), 160),
    "path and bus": (chain_of_readers(), 618),
    "device work": (random_layered(0, operators=40, layers=5, edges=80).problem(4, concurrency=False), None),
}


def written(problem, folder):
    """The summary and the text of the certificate of a problem's evidence."""
    files = folder / "problem.json", folder / "evidence.json", folder / "bound.vipr"
    problem.save(files[0])
    evidence(problem).save(files[1])
    return vipr.write(*files), files[2].read_text()


@pytest.mark.parametrize("case", CASES)
def test_a_certificate_proves_the_bound_that_it_states(folder, case):
    problem, by_hand = CASES[case]
    summary, text = written(problem, folder)
    assert proved(text) == summary.proved_ns <= summary.evidence_ns
    assert by_hand is None or summary.proved_ns == by_hand
    assert summary.all_proved


@pytest.mark.skipif(
    VIPRCHK is None, reason="no viprchk on PATH or in VIPRCHK (docs/proofs/vipr.md says how to build it)"
)
@pytest.mark.parametrize("case", CASES)
def test_viprchk_verifies_it(folder, case):
    problem, _ = CASES[case]
    summary, text = written(problem, folder)
    for bound, status in ((summary.proved_ns, 0), (summary.proved_ns + 1, 255)):
        (folder / "claim.vipr").write_text(text.replace(f"range {summary.proved_ns} inf", f"range {bound} inf"))
        done = subprocess.run([VIPRCHK, folder / "claim.vipr"], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout + done.stderr
    assert "Failed to derive lower bound" in done.stdout


@pytest.mark.parametrize("case", CASES)
def test_a_changed_certificate_is_refused(folder, case):
    summary, text = written(CASES[case][0], folder)
    with pytest.raises(Wrong, match="does not prove the bound"):
        proved(text.replace(f"range {summary.proved_ns} inf", f"range {summary.proved_ns + 1} inf"))
    random, lines = Random(0), text.splitlines()
    derived = [i for i, line in enumerate(lines) if re.search(r"\{ (lin|rnd|uns) ", line)]
    for i in random.sample(derived, min(10, len(derived))):
        label, sense, right, rest = lines[i].split(" ", 3)
        higher = [*lines[:i], f"{label} {sense} {int(right) + (1 if sense != 'L' else -1)} {rest}", *lines[i + 1 :]]
        with pytest.raises(Wrong):
            proved("\n".join(higher))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_file_that_cannot_be_finished_stays_as_it_was(folder, monkeypatch, error):
    def stopped(*arguments):
        yield "VER 1.0"
        raise error

    written(fan(10), folder)
    target = folder / "bound.vipr"
    target.write_text("before")
    monkeypatch.setattr(IntegerProgram, "lines", stopped)
    with pytest.raises((KeyboardInterrupt, Refused)):
        vipr.write(folder / "problem.json", folder / "evidence.json", target)
    assert target.read_text() == "before"
    assert not list(folder.glob("*.new"))


def test_operators_that_run_together_do_not_take_turns(folder):
    """A stage of both branches takes 150, and the run 350: no rule of devices that run one at a time may say 400."""
    problem, _ = staged_fan(150)
    document = json.loads(evidence(problem).to_json())
    files = folder / "problem.json", folder / "evidence.json", folder / "bound.vipr"
    problem.save(files[0])
    for lemma in (
        placed(300),
        {"rule": "turns", "operators": ["a", "b"], "ns": 400},
        {"rule": "work", "by": "end", "operators": ["source", "a", "b", "join"], "multipliers": [1, 1], "ns": 400},
    ):
        document |= {"lemmas": [lemma, {"rule": "path", "ns": 400}], "proved_ns": 400}
        files[1].write_text(json.dumps(document))
        summary = vipr.write(*files)
        assert (summary.left_out, proved(files[2].read_text())) == (1, 300)


def served_by(run, problem, o, d):
    """What brings each host tensor of an operator over a bus: to its device, or to the device it is copied from.

    A copy from a device that shares host memory crosses the bus as a load does.
    """
    loads = [
        (run.end[x], t, to)
        for x, (kind, t, source, to, _) in run.transfers
        if kind == "load" or (kind == "copy" and problem.shares[source] and not problem.shares[to])
    ]
    for t in problem.host_inputs[o]:
        there = [(end, to) for end, tensor, to in loads if tensor == t and to == d]
        yield t, *(there or [min((end, to) for end, tensor, to in loads if tensor == t)])[0]


def values_of(translated, run, lemmas):
    """The value of each variable in a schedule; docs/proofs/vipr.md says which operator defines an auxiliary time."""
    problem, program = translated.problem, translated.program
    where = {o: (p, d, direct) for p, (o, d, direct) in enumerate(run.placements)}
    start, end = ({o: times[p] for o, (p, _, _) in where.items()} for times in (run.start, run.end))
    for p, (o, d, direct) in enumerate(run.placements):  # a stage's streams run one operator after another
        before = [run.placements[q][0] for q in range(p) if run.stages[q] == run.stages[p]]
        start[o] += sum(problem.normal[other][d] for other in before)
        end[o] = start[o] + (problem.direct if direct else problem.normal)[o][d]
    value = dict.fromkeys(program.variables, 0) | {"L": run.latency} | {f"C_{o}": ns for o, ns in end.items()}
    value |= {f"y_{o}_{d}_{'direct' if direct else 'normal'}": 1 for o, (_, d, direct) in where.items()}
    for number, lemma in enumerate(lemmas, 1):
        name = f"{lemma['rule']}_{number}"
        if f"{name}_begin" in value:
            by_end = lemma["rule"] == "turns" or lemma["by"] == "end"
            begins = {
                o: end[o] - translated.duration(o)[0] if by_end else start[o]
                for o in map(problem.o.get, lemma["operators"])
            }
            first, last = min(begins, key=begins.get), max(begins, key=end.get)
            value |= {f"{name}_begin": begins[first], f"{name}_first_is_{first}": 1}
            value |= {f"{name}_end": end[last], f"{name}_last_is_{last}": 1}
        if f"{name}_end" in value and lemma["rule"] == "bus":
            counted = [int(each.rsplit("_", 1)[1]) for each in value if each.startswith(f"{name}_arrival_")]
            for o in counted:
                _, d, direct = where[o]
                if direct:
                    value[f"{name}_arrival_{o}"] = start[o] + problem.host_read(o, d)
                    continue
                for t, ns, to in served_by(run, problem, o, d):
                    value[f"{name}_arrival_{o}"] = max(value[f"{name}_arrival_{o}"], ns)
                    value[f"{name}_loaded_{t}_{to}"] = 1
            last = max(counted, key=lambda o: value[f"{name}_arrival_{o}"])
            value |= {f"{name}_end": value[f"{name}_arrival_{last}"], f"{name}_last_is_{last}": 1}
    for (a, b), variable in translated.cases.pairs.items():
        value[program.variables[variable]] = int(where[a][1] == where[b][1])
    for k, (_, *members) in enumerate(translated.cases.groups):
        first, last = min(members, key=start.get), max(members, key=end.get)
        value |= {f"group_{k}_begin": start[first], f"group_{k}_first_is_{first}": 1}
        value |= {f"group_{k}_end": end[last], f"group_{k}_last_is_{last}": 1}
    return [value[name] for name in program.variables]


def made_up(random, checked):
    """A lemma of the whole run by any rule that has a translation."""
    names = checked.operator_names
    chosen = [name for name in names if random.random() < 0.7] or names
    buses = {checked.bus[d]: random.randrange(1, 5) for d in range(len(checked.devices)) if (HOST, d) in checked.routes}
    rule = random.choice(["path", "work", "turns", *(["bus"] * bool(buses))])
    weights = buses if rule == "bus" else [random.choice([1, 1, 2, 5]) for _ in checked.devices]
    by = random.choice(["start", "end"])
    lemma = {"rule": rule, "operators": chosen, "multipliers": weights, "by": by, "least": random.randrange(100)}
    if rule == "bus":
        lemma.pop("operators")
    return lemma


COPIED_FROM_HOST_MEMORY = random_problem(
    2936, operators=6, devices=3, memory="generous", style="mixed", all_joined=False
)


@settings(max_examples=examples(40), deadline=None)
@example(problem=COPIED_FROM_HOST_MEMORY, seed=6)
@given(
    problem=problems(max_operators=8, max_devices=3, min_operators=1, memory=("generous",), styles=STYLES), seed=SEEDS
)
def test_constraints_and_what_is_derived_hold_in_every_schedule(problem, seed):
    holds_in(problem, random_schedule(problem, seed), seed)


@settings(max_examples=examples(40), deadline=None)
@given(case=staged_problems(), seed=SEEDS)
def test_they_hold_if_operators_run_together_in_stages(case, seed):
    holds_in(*case, seed)


def holds_in(problem, schedule, seed):
    """Assert that a schedule satisfies the constraints of the problem's evidence and of lemmas made up."""
    random, checked = Random(seed), Problem(json.loads(problem.to_json()))
    document = json.loads(schedule.to_json())
    try:
        run = Replay(checked, document["placements"], document["transfers"])
    except Refused:
        return  # more memory than there is
    translated = ScheduleProgram(checked, run.latency)
    lemmas = [*json.loads(evidence(problem).to_json())["lemmas"], *(made_up(random, checked) for _ in range(3))]
    lemmas = [lemma for lemma in lemmas if lemma["rule"] != "alternatives"]
    for lemma in lemmas:
        translated.prove(lemma)
    bound = translated.bound()
    values = values_of(translated, run, lemmas)
    for row in translated.program.constraints:
        total = sum(values[variable] * coefficient for variable, coefficient in row.coefficients.items())
        assert total == row.right if row.sense == 0 else row.sense * total >= row.sense * row.right, row.label
    assert bound <= run.latency
    text = "\n".join(translated.program.lines([], translated.latency, bound))
    assert proved(text) == bound
