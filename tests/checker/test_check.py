"""The independent checker: evidence of random problems is accepted, whatever is changed in it is not."""

import json
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker.cases import bus_problem, certified, chain_of_readers, fan, files_of, placed, readers_between
from schedule.cases import gpus, wired
from strategies import SEEDS, problems, scheduled_problems
from thorough import examples
from tvm_sched.bounds import lower_bound
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_check import Refused
from tvm_sched_runtime.problem import (
    Bus,
    Costs,
    Device,
    Operator,
    OpGraph,
    Problem,
    Scenario,
    Switch,
    Tensor,
    Topology,
)
from tvm_sched_runtime.problem.merge import merge_problems
from tvm_sched_runtime.schedule.simulator import simulate
from tvm_sched_runtime.schedule.verifier import violations


@settings(max_examples=examples(80), deadline=None)
@given(case=scheduled_problems(max_operators=20, max_devices=5, min_operators=1, memory=("generous",)))
def test_evidence_of_any_problem_is_accepted(folder, case):
    problem, schedule = case
    files = files_of(problem, certified(problem, schedule))
    verdict = files.check(folder)
    assert verdict.latency_ns == simulate(problem, schedule).latency_ns
    assert verdict.proved_ns == files.evidence["proved_ns"]
    assert verdict.certified_ns == lower_bound(problem).ns
    assert verdict.all_proved


@settings(max_examples=examples(60), deadline=None)
@given(case=scheduled_problems(max_operators=20, max_devices=4, min_operators=1, memory=("generous",)), data=st.data())
def test_evidence_of_any_warm_run_is_accepted(folder, case, data):
    problem, schedule = case
    parameters = [tensor.name for tensor in problem.graph.tensors if tensor.kind == "parameter"]
    resident = data.draw(st.sets(st.sampled_from(parameters)) if parameters else st.just(set()))
    run = Scenario(problem, frozenset(resident))
    verdict = files_of(run, certified(run, schedule)).check(folder)
    assert verdict.latency_ns == simulate(problem, schedule, resident=resident).latency_ns
    assert verdict.certified_ns == lower_bound(run).ns
    assert verdict.all_proved


def test_a_warm_run_is_proved_by_what_is_left_to_load(folder):
    """`second` ends 20 after its own load of 50, or after `first` alone; the cold bound counts both loads, 160."""
    problem = bus_problem()
    schedule = solve(problem, method="heft")
    for resident, latency in ((), 160), (("v",), 60), (("w",), 120), (("v", "w"), 20):
        run = Scenario(problem, frozenset(resident))
        verdict = files_of(run, certified(run, schedule)).check(folder)
        assert (verdict.latency_ns, verdict.proved_ns) == (latency, latency)


def test_a_region_of_which_places_are_left_open_is_proved(folder):
    """Least times by way of operators left open depend on the order in which these are taken out."""
    problem = random_problem(5389, operators=80, devices=8, memory="generous", style="shared", all_joined=True)
    files = files_of(problem, certified(problem, random_schedule(problem, 0)))
    assert any(len(lemma.get("operators", ())) >= 10 for lemma in files.evidence["lemmas"])
    assert files.check(folder).all_proved


def test_each_argument_is_proved(folder):
    """The random problems at hand have bounds by all six arguments, and lemmas of all rules but one."""
    arguments, rules = set(), set()
    for seed in range(30):
        problem = random_problem(seed, operators=3 + seed % 20, devices=1 + seed % 5, memory="generous")
        files = files_of(problem, certified(problem, random_schedule(problem, seed)))
        assert files.check(folder).all_proved
        arguments.add(files.evidence["argument"])
        rules |= {lemma["rule"] + lemma.get("by", "") for lemma in files.evidence["lemmas"]}
    assert arguments == {"critical path", "bus", "device work", "path and bus", "assignment", "bisection"}
    assert rules >= {"path", "bus", "placement", "workstart"}


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems(max_operators=7, max_devices=3, min_operators=1), seed=SEEDS, cut=st.integers(0, 40))
def test_a_schedule_is_refused_where_the_verifier_refuses_it(folder, problem, seed, cut):
    """With a transfer dropped or doubled, transfers moved, parameters evicted, or the launch order turned round."""
    schedule = random_schedule(problem, seed)
    transfers, placements = list(schedule.transfers), list(schedule.placements)
    at = cut // 5 % max(1, len(transfers))
    if cut % 5 == 0:
        del transfers[at : at + 1]
    elif cut % 5 == 1:
        transfers += transfers[at : at + 1]
    elif cut % 5 == 2:
        transfers = transfers[at:] + transfers[:at]
    elif cut % 5 == 3:
        transfers = [
            msgspec.structs.replace(x, evict=x.kind != "host_read" and i % 2 == 0) for i, x in enumerate(transfers)
        ]
    else:
        placements = placements[::-1]
    changed = msgspec.structs.replace(schedule, transfers=tuple(transfers), placements=tuple(placements))
    wrong = violations(problem, changed)
    files = files_of(problem, changed)
    if wrong:
        with pytest.raises(Refused):
            files.check(folder)
    else:
        assert files.check(folder).latency_ns == simulate(problem, changed).latency_ns


CHANGES = {
    "a span that is longer than it is": lambda lemma: lemma.update(ns=2 * lemma["ns"] + 10),
    "another rule": lambda lemma: lemma.update(rule="because"),
    "an operator that is not there": lambda lemma: lemma.update(last="nobody"),
    "a time that is no integer": lambda lemma: lemma.update(ns=float(lemma["ns"])),
    "a time below nothing": lambda lemma: lemma.update(ns=-1),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.sampled(6)
def test_a_changed_lemma_is_refused(folder, what):
    """In each lemma in turn, of several problems that have lemmas of each rule."""
    rules = set()
    for seed in range(10):
        problem = random_problem(seed, operators=12 + seed % 8, devices=2 + seed % 3, memory="generous")
        files = files_of(problem, certified(problem, random_schedule(problem, seed)))
        lemmas = json.dumps(files.evidence["lemmas"])
        for number, lemma in enumerate(json.loads(lemmas)):
            files.evidence["lemmas"] = json.loads(lemmas)
            CHANGES[what](files.evidence["lemmas"][number])
            with pytest.raises(Refused):
                files.check(folder)
            rules.add(lemma["rule"])
    assert len(rules) >= 2


@pytest.mark.parametrize(("copy_ns", "least"), [(10, 210), (110, 300)])
def test_places_by_hand(folder, copy_ns, least):
    """Copies of 10: a branch elsewhere, its copy there and back; of 110: both branches in turn."""
    problem = fan(copy_ns)
    files = files_of(problem, solve(problem, method="single"))
    files.evidence["lemmas"] = [placed(least), {"rule": "path", "ns": least + 100}]
    assert files.check(folder).proved_ns == least + 100
    files.evidence["lemmas"] = [placed(least + 1), {"rule": "path", "ns": least + 100}]
    with pytest.raises(Refused, match=f"lemma 0 .placement. claims {least + 1} ns"):
        files.check(folder)
    files.evidence["lemmas"] = [placed(least), {"rule": "path", "ns": least + 101}]
    with pytest.raises(Refused, match=f"what it rests on proves {least + 100}"):
        files.check(folder)


def test_buses_by_hand(folder):
    """Both parameters cross the one bus, 150; then the second operator takes 10."""
    problem = bus_problem()
    files = files_of(problem, solve(problem, method="single"))
    lemma = {"rule": "bus", "least": 10, "multipliers": {"pcie": 7}, "ns": 160}
    files.evidence["lemmas"] = [lemma]
    assert files.check(folder).proved_ns == 160
    for wrong in ({"ns": 161}, {"multipliers": {"pcie": 0}}, {"multipliers": {}}, {"multipliers": {"pcie": -1}}):
        files.evidence["lemmas"] = [lemma | wrong]
        with pytest.raises(Refused):
            files.check(folder)
    # From 20 on only the first operator's counts: 100, then 20.
    files.evidence["lemmas"] = [lemma | {"least": 20, "ns": 120}]
    assert files.check(folder).proved_ns == 120


def readers_of(*reads, times, direct=None):
    """Operators that read parameters, of a GB each, on a GPU for each of them; the one bus carries a byte a nanosecond."""
    devices = tuple(Device(f"gpu{i}", 10**10, 1e12, {"float32": 1e12}, bus="pcie") for i in range(len(reads)))
    operators = tuple(Operator(f"o{i}", "", tuple(read), (f"x{i}",)) for i, read in enumerate(reads))
    tensors = [Tensor(name, 100, "parameter") for name in sorted(set("".join(reads)))]
    graph = OpGraph("readers", operators, (*tensors, *(Tensor(f"x{i}", 1) for i in range(len(reads)))), ("x0",))
    return Problem(graph, Topology("gpus", devices, (Bus("pcie", 1e9),)), Costs(np.repeat(times, len(reads), axis=1)))


def test_readers_that_less_follows_are_left_out_of_evidence(folder):
    """Two parameters cross in 200, then 20 follow; the one that a third operator reads, too, crosses before 19 follow."""
    problem = readers_of("v", "w", "w", times=[[20], [20], [19]])
    files = files_of(problem, certified(problem, random_schedule(problem, 0)))
    assert (files.evidence["argument"], files.evidence["proved_ns"]) == ("bus", 220)
    assert files.check(folder).all_proved
    lemma = files.evidence["lemmas"][-1]
    assert lemma["operators"] == ["o0", "o1"]
    del lemma["operators"]  # by all that 19 follow
    with pytest.raises(Refused, match="proves 219"):
        files.check(folder)
    for named in (["o0"], ["o0", "o2"], ["o0", "o1", "x0"]):
        lemma["operators"] = named
        with pytest.raises(Refused):
            files.check(folder)
    lemma |= {"operators": ["o1", "o2"], "least": 20, "ns": 120}
    with pytest.raises(Refused, match="less than `least` follows"):
        files.check(folder)


def test_path_and_bus_by_hand(folder):
    """An operator costs a quarter of its time and three of its bus time: 152.5 either way; 10 follow the last byte."""
    problem = chain_of_readers()
    files = files_of(problem, solve(problem, method="single"))
    steps = [{"first": f"o{i - 1}", "last": f"o{i}", "multiplier": 1} for i in range(1, 4)]
    steps.insert(0, {"last": "o0", "multiplier": 1})
    lemma = {"rule": "bus", "least": 10, "multipliers": {"pcie": 3}, "steps": steps, "ns": 618}
    files.evidence["lemmas"] = [lemma]
    assert files.check(folder).proved_ns == 618
    # The device is busy for as long as the path, here: its weight in the path's place says the same.
    files.evidence["lemmas"] = [{**lemma, "steps": [], "devices": [1]}]
    assert files.check(folder).proved_ns == 618
    # Without the last operator on the path it reads directly: (3 * 152.5 + 112.5) + 7.5.
    files.evidence["lemmas"] = [{**lemma, "steps": steps[:3], "ns": 578}]
    assert files.check(folder).proved_ns == 578
    wrong_steps = (
        [*steps[:3], {**steps[3], "multiplier": 2}],  # more goes on than arrives
        [*steps[1:]],
        [steps[0], {"first": "o0", "last": "o2", "multiplier": 1}],  # no edge, and no lemma
        [{**steps[0], "multiplier": -1}],
        steps[:3],
    )
    wrongs = [{"steps": wrong} for wrong in wrong_steps]
    wrongs += [{"ns": 619}, {"devices": [-1]}, {"multipliers": {"pcie": 0}, "steps": []}, {"last": "o3"}]
    for wrong in wrongs:
        files.evidence["lemmas"] = [lemma | wrong, {"rule": "path", "ns": 1}]
        with pytest.raises(Refused):
            files.check(folder)


def test_a_step_with_a_cost_is_no_region(folder):
    """A region is priced; a step that only has the field would join two branches for nothing, and prove 500 of 406."""
    graph = wired({"source": "", "a": "source", "aa": "a", "b": "source", "bb": "b", "join": "aa bb"}, 6)
    problem = Problem(graph, gpus(), Costs(np.full((6, 2), 100)))
    assert solve(problem, method="anytime", options={"work": 0.1}).certificate.latency_ns == 406
    files = files_of(problem, solve(problem, method="single"))
    path = ["source", "a", "aa", "b", "bb", "join"]
    steps = [{"first": first, "last": last, "multiplier": 1} for first, last in pairwise(path)]
    steps.insert(0, {"last": "source", "multiplier": 1})
    lemma = {"rule": "bus", "least": 0, "multipliers": {}, "operators": [], "steps": steps, "ns": 500}
    for wrong in ({}, {"cost": 0}, {"cost": 100}):
        files.evidence["lemmas"] = [lemma | {"steps": [*steps[:3], steps[3] | wrong, *steps[4:]]}]
        with pytest.raises(Refused):
            files.check(folder)
    files.evidence["lemmas"] = [lemma | {"steps": [*steps[:3], {**steps[5], "first": "aa"}], "ns": 400}]
    assert files.check(folder).proved_ns == 400


def test_regions_with_prices_by_hand(folder):
    """A quarter of the time and three of the bus time: 2.5 the source, 612.5 all branches, 15 behind the last byte."""
    problem = readers_between(branches=4, copy_ns=1000)
    files = files_of(problem, solve(problem, method="single"))
    region = {"first": "source", "last": "join", "multiplier": 2, "cost": 4900}
    steps = [{"last": "source", "multiplier": 2}]
    lemma = {"rule": "bus", "least": 20, "multipliers": {"pcie": 6}, "steps": steps, "regions": [region], "ns": 630}
    files.evidence["lemmas"] = [lemma]
    assert files.check(folder).proved_ns == 630
    wrongs = [
        {"ns": 631},
        {"regions": [{**region, "cost": 4901}]},
        {"regions": [{**region, "multiplier": 3}]},  # more goes on than arrives
        {"steps": []},
        {"regions": [region, {**region, "multiplier": 0, "cost": 0}]},  # in common
        {"regions": [{**region, "first": "join"}]},
        {"regions": [{**region, "cost": -1}]},
        {"last": "join"},
    ]
    for wrong in wrongs:
        files.evidence["lemmas"] = [lemma | wrong, {"rule": "path", "ns": 1}]
        with pytest.raises(Refused):
            files.check(folder)


@settings(max_examples=examples(25), deadline=None)
@given(branches=st.integers(2, 6), copy_ns=st.integers(0, 200), direct=st.integers(150, 400), devices=st.integers(1, 3))
def test_evidence_of_branches_with_prices_is_accepted(folder, branches, copy_ns, direct, devices):
    problem = readers_between(branches, copy_ns, direct=direct, devices=devices)
    verdict = files_of(problem, certified(problem, random_schedule(problem, branches))).check(folder)
    assert verdict.all_proved


def test_a_tensor_counts_for_the_reader_that_takes_most_of_it(folder):
    """A lookup that reads a row of a table directly does not spare the bus what another operator takes of it, 1000."""
    device = Device("gpu", 10**6, 1e12, {"float32": 1e12}, bus="pcie")
    lookup = Operator("lookup", "", ("table",), ("x",), read_bytes={"table": 1})
    graph = OpGraph(
        "tied",
        (lookup, Operator("head", "", ("table", "x"), ("y",))),
        (Tensor("table", 1000, "parameter"), Tensor("x", 1), Tensor("y", 1)),
        ("y",),
    )
    problem = Problem(
        graph, Topology("one", (device,), (Bus("pcie", 1e9),)), Costs(np.array([[10], [20]]), [[10], [1005]])
    )
    files = files_of(problem, solve(problem, method="single"))
    assert files.check(folder).proved_ns == lower_bound(problem).ns
    lemma = {"rule": "bus", "least": 5, "multipliers": {"pcie": 1}}
    files.evidence["lemmas"] = [{**lemma, "ns": 1005}]
    assert files.check(folder).proved_ns == 1005
    files.evidence["lemmas"] = [{**lemma, "ns": 1006}]
    with pytest.raises(Refused):
        files.check(folder)


def test_work_and_turns_by_hand(folder):
    """Three operators of 100 on two devices: 150 by work, 200 since two of them are on one device."""
    problem = Problem(wired(dict.fromkeys("abc", "")), gpus(), Costs(np.full((3, 2), 100)))
    files = files_of(problem, solve(problem, method="heft"))
    work = {"rule": "work", "by": "start", "operators": ["a", "b", "c"], "multipliers": [1, 1], "ns": 150}
    turns = {"rule": "turns", "operators": ["a", "b", "c"], "ns": 200}
    for lemma in (work, turns):
        files.evidence["lemmas"] = [lemma]
        assert files.check(folder).proved_ns == lemma["ns"]
        for wrong in ({"ns": lemma["ns"] + 1}, {"operators": ["a", "a", "a"]}, {"operators": []}):
            files.evidence["lemmas"] = [lemma | wrong]
            with pytest.raises(Refused):
                files.check(folder)


def test_devices_that_wait_for_copies_by_hand(folder):
    """One operator first, then two: the second device waits for the copy of 10 before it starts."""
    problem = Problem(wired({"first": "", "a": "first", "b": "first"}, 10), gpus(), Costs(np.full((3, 2), 100)))
    files = files_of(problem, solve(problem, method="heft"))
    work = {"rule": "work", "by": "ramp", "operators": ["first", "a", "b"], "multipliers": [1, 1]}
    # The first device starts at 0, the other one at 110; 300 in all: (0 + 110 + 300) / 2.
    files.evidence["lemmas"] = [work | {"ns": 205}]
    assert files.check(folder).proved_ns == 205
    for wrong in ({"ns": 206}, {"ns": 205, "by": "start"}, {"ns": 100, "by": "chance"}):
        files.evidence["lemmas"] = [work | wrong]
        with pytest.raises(Refused):
            files.check(folder)


def test_idle_devices_lift_no_bound(folder):
    """One operator is followed by 1000, another comes after 1000: 1001 on two of three devices, not (2 + 4 * 1000) / 3."""
    graph = wired({"early": "", "rest": "early", "start": "", "late": "start"})
    problem = Problem(graph, gpus(3), Costs(np.repeat([[1], [1000], [1000], [1]], 3, axis=1)))
    files = files_of(problem, solve(problem, method="heft"))
    assert files.check(folder).latency_ns == 1001
    work = {"rule": "work", "by": "start", "operators": ["early", "late"], "multipliers": [1, 1, 1], "ns": 1000}
    files.evidence["lemmas"] = [work]
    with pytest.raises(Refused, match="devices that may be idle"):
        files.check(folder)


@pytest.mark.parametrize(("first", "last"), [("a", "b"), ("join", "source"), ("a", "a")])
@pytest.mark.parametrize("rule", ["path", "placement", "turns", "work"])
def test_nothing_follows_between_operators_that_do_not_wait_for_each_other(folder, first, last, rule):
    """Not even that none of them ends before the other one has ended, which 0 ns would say."""
    problem = fan(10)
    files = files_of(problem, solve(problem, method="single"))
    lemma = {"rule": rule, "first": first, "last": last, "ns": 0, "by": "start", "multipliers": [1, 1]}
    for operators in ([], [last]):
        files.evidence["lemmas"] = [lemma | {"operators": operators}, {"rule": "path", "ns": 1}]
        with pytest.raises(Refused, match="no path leads"):
            files.check(folder)


def test_lemmas_may_not_use_those_behind_them(folder):
    problem = fan(10)
    files = files_of(problem, solve(problem, method="single"))
    files.evidence["lemmas"] = [{"rule": "path", "ns": 310}, placed(210)]
    with pytest.raises(Refused):
        files.check(folder)
    files.evidence["lemmas"] = [placed(210)]
    with pytest.raises(Refused, match="not about the whole run"):
        files.check(folder)


def test_several_models_are_one_problem(folder):
    merged = merge_problems([fan(10), fan(110)])
    schedule = solve(merged, method="heft")
    verdict = files_of(merged, schedule).check(folder)
    assert verdict.latency_ns == schedule.certificate.latency_ns
    assert verdict.all_proved


def test_a_weaker_proof_is_said_to_be_one(folder):
    problem = fan(10)
    files = files_of(problem, solve(problem, method="single"))
    files.evidence["lemmas"] = [{"rule": "path", "ns": 300}]
    verdict = files.check(folder)
    assert not verdict.all_proved
    assert "claims the bound 310 ns, the evidence proves 300 ns" in verdict.lines[1]


def test_more_devices_than_regions_are_searched_for(folder):
    names = tuple(f"gpu{i}" for i in range(20))
    devices = tuple(Device(name, 10**6, 1e12, {"float32": 1e12}) for name in names)
    topology = Topology("many", devices, switches=(Switch("switch", names, 1e9, contention=False),))
    problem = Problem(fan(10).graph, topology, Costs(np.full((4, 20), 100)))
    assert files_of(problem, certified(problem, solve(problem, method="heft"))).check(folder).proved_ns == 310
