"""Variants behind one bus or storage: a combined tensor stands for all loads of a group; it is checked, and no more is."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from checker.cases import certified, files_of
from checker.variants_cases import with_any_choice
from schedulers.exhaustive import TooLarge, least_latency
from strategies import SEEDS, problems
from thorough import examples
from tvm_sched.bounds import all_bounds, lower_bound
from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched.bounds.variant_relaxation import relaxed
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem, random_variants
from tvm_sched_check import Refused
from tvm_sched_check.alternative_bound import Relaxed
from tvm_sched_runtime.problem import (
    Alternative,
    Bus,
    Costs,
    Device,
    Group,
    Operator,
    OpGraph,
    Problem,
    Storage,
    Tensor,
    Topology,
    Variants,
)


def behind_a_disk(weight=40, disk=True, copies=1, devices=2):
    """An operator of 100 ns with parameters of ``weight``, 1 and 1 byte; the next one takes 100 ns and reads nothing.

    Halves of 49 ns read a half of the first parameter each, and a tail of 2 ns the others. A disk reads a byte a nanosecond
    after 50 ns, into devices on one bus; without it the bus loads at the same speed. ``copies`` of the group follow each
    other.
    """
    members = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus="pcie") for i in range(devices))
    bus = Bus("pcie", 1e12) if disk else Bus("pcie", 1e9, 50e-9)
    topology = Topology("even", members, (bus,), storage=Storage("disk", 1e9, 50e-9) if disk else msgspec.UNSET)
    operators, tensors, groups = [], [], []
    for k in range(copies):
        name, before = f"whole{k}", [f"y{k - 1}"] if k else []
        operators.append(Operator(name, "", (*before, f"w{k}", f"b{k}", f"c{k}"), (f"y{k}",)))
        tensors += [Tensor(f"w{k}", weight, "parameter"), *(Tensor(f"{n}{k}", 1, "parameter") for n in "bc")]
        tensors.append(Tensor(f"y{k}", 1))
        own = [Tensor(f"{name}/w{i}", weight // 2, "parameter") for i in range(2)]
        own += [Tensor(f"{name}/h{i}", 1) for i in range(2)]
        heads = [Operator(f"{name}/head{i}", "", (*before, f"{name}/w{i}"), (f"{name}/h{i}",)) for i in range(2)]
        tail = Operator(f"{name}/tail", "", (f"{name}/h0", f"{name}/h1", f"b{k}", f"c{k}"), (f"y{k}",))
        groups.append(Group(f"group{k}", (name,), (Alternative("halves", (*heads, tail), tuple(own)),)))
    operators.append(Operator("next", "", (f"y{copies - 1}",), ("z",)))
    graph = OpGraph("loads", tuple(operators), (*tensors, Tensor("z", 1)), ("z",))
    times = Costs(np.tile([[49], [49], [2]], (copies, devices)))
    return Problem(graph, topology, Costs(np.full((copies + 1, devices), 100)), Variants(groups, times))


def optimum(problem):
    """The least latency over all choices, by trying every sequence of events of each."""
    choices = [{}]
    for group in problem.variants.groups:
        choices = [{**choice, group.name: name} for choice in choices for name in group.alternative_names]
    found = [
        least_latency(problem.resolve({g: a for g, a in choice.items() if a != "fused"}), most_states=3000)
        for choice in choices
    ]
    return min(ns for ns in found if ns is not None)


@pytest.mark.parametrize("disk", [True, False])
def test_a_combined_tensor_by_hand(folder, disk):
    """Loads of 90, 51 and 51 ns, or 70, 70, 51 and 51; then a tail of 2 ns and the next operator."""
    problem = behind_a_disk(disk=disk)
    assert relaxed(problem).combined == {"group0": "whole0/loads"}
    assert [bound.ns for bound in all_bounds(problem) if bound.name == "bus"] == [192 + 2 + 100]
    assert optimum(behind_a_disk(disk=disk, devices=1)) == min(192 + 100, 242 + 2) + 100
    schedule = solve(problem, method="single")
    verdict = files_of(problem, certified(problem, schedule)).check(folder)
    assert verdict.all_proved
    assert verdict.proved_ns == lower_bound(problem).ns


def test_parts_stay_where_heads_can_read_them():
    """Two parts take 75 ns each, together as long as the parameter of 100 bytes; the others are combined."""
    no_harder = relaxed(behind_a_disk(weight=100))
    sizes = {t.name: t.size for t in no_harder.problem.graph.tensors if t.kind == "parameter"}
    assert sizes == {"whole0/head0/host": 25, "whole0/head1/host": 25, "whole0/loads": 51 + 51 - 50}


def test_several_buses_have_no_combined_tensor():
    """Loads then go on at the same time, and end earlier than one after another."""
    problem = behind_a_disk(disk=False)
    buses = tuple(Bus(f"pcie{i}", 1e9, 50e-9) for i in range(2))
    devices = tuple(
        msgspec.structs.replace(device, bus=f"pcie{i}") for i, device in enumerate(problem.topology.devices)
    )
    topology = msgspec.structs.replace(problem.topology, devices=devices, buses=buses)
    assert relaxed(Problem(problem.graph, topology, problem.costs, problem.variants)).combined == {}


def test_a_chain_of_groups_waits_for_all_loads():
    """Three groups load for 192 ns each, one after another; the last one is followed by 102 ns."""
    assert lower_bound(behind_a_disk(copies=3)).ns == 3 * 192 + 2 + 100


def test_a_set_of_loads_has_a_latency_with_variants_too(folder):
    """A set takes 50 ns, the halves' parameters 2 · 19 at least, and a half, the tail and the next operator follow."""
    problem = behind_a_disk()
    problem = Problem(problem.graph, problem.topology, problem.costs, problem.variants, joinable=True)
    assert [bound.ns for bound in all_bounds(problem) if bound.name == "bus"] == [50 + 2 * 19 + 49 + 2 + 100]
    verdict = files_of(problem, certified(problem, solve(problem, method="single"))).check(folder)
    assert verdict.all_proved
    assert verdict.proved_ns == lower_bound(problem).ns


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 100_000), style=st.sampled_from(["disk", None]), devices=st.integers(1, 2))
def test_no_bound_exceeds_the_optimum_of_any_choice_with_all_parameters_joined(seed, style, devices):
    problem = random_variants(random_problem(seed, 2, devices, "generous", style), seed, groups=1)
    assume(problem.variants is not None and problem.topology.most_joined > 1)
    problem = Problem(problem.graph, problem.topology, problem.costs, problem.variants, joinable=True)
    bound = lower_bound(problem).ns
    for group in problem.variants.groups:
        for name in group.alternative_names:
            choice = {} if name == group.graph_alternative else {group.name: name}
            names = sorted(problem.resolve(choice).parameters - {*problem.graph.outputs})
            joined = (tuple(names),) if 1 < len(names) <= problem.topology.most_joined else ()
            try:
                assert bound <= least_latency(problem.resolve(choice, joined), most_states=3000)
            except TooLarge:
                continue


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(1, 3), devices=st.integers(1, 2))
def test_no_bound_exceeds_the_optimum_of_any_choice_behind_a_disk(seed, operators, devices):
    problem = random_variants(random_problem(seed, operators, devices, "generous", "disk"), seed, groups=1)
    assume(problem.variants is not None)
    try:
        least = optimum(problem)
    except TooLarge:
        return
    assert all(bound.ns <= least for bound in all_bounds(problem))


# A table, of which an operator reads rows, is its largest host tensor.
@example(
    problem=random_problem(794, operators=3, devices=2, memory="generous", style="disk", all_joined=False), seed=185345
)
@settings(max_examples=examples(20), deadline=None)
@given(
    problem=problems(max_operators=8, max_devices=3, min_operators=1, memory=("generous",), styles=("disk",)),
    seed=SEEDS,
)
def test_evidence_of_variants_behind_a_disk_is_accepted(folder, problem, seed):
    problem = random_variants(problem, seed, groups=4)
    assume(problem.variants is not None and relaxed(problem).combined)
    verdict = files_of(problem, with_any_choice(problem, seed)).check(folder)
    assert verdict.all_proved
    assert verdict.proved_ns == lower_bound(problem).ns


def operator(document, name):
    return next(o for o in document["graph"]["operators"] if o["name"] == name)


def tensor(document, name):
    return next(t for t in document["graph"]["tensors"] if t["name"] == name)


def two_buses(problem, claim):
    topology = problem["topology"]
    topology["buses"].append({**topology["buses"][0], "name": "other"})
    topology["devices"][1]["bus"] = "other"
    del topology["storage"]


def another_reader(problem, claim):
    """A parameter is loaded once for the group and the next operator, which has it as a tensor of its own."""
    operator(problem, "next")["inputs"].append("b0")
    operator(claim, "next")["inputs"].append("b0")
    claim["graph"]["tensors"].append(tensor(problem, "b0"))


def parts_besides(problem, claim):
    """The first parameter is divided among the heads, and combined with the others."""
    problem["topology"]["storage"]["latency"] = 0  # else two parts take longer than the parameter
    tensor(claim, "whole0/loads")["size"] = 42
    Relaxed(problem, claim)
    for i in range(2):
        operator(claim, f"whole0/head{i}")["inputs"].append(f"part{i}")
        claim["graph"]["tensors"].append({"name": f"part{i}", "size": 20, "kind": "parameter"})
    tensor(claim, "whole0/loads")["size"] = 2
    Relaxed(problem, claim)
    tensor(claim, "whole0/loads")["size"] = 3


def at_a_head(problem, claim):
    """Nothing but the half of a parameter is loaded before a head of an alternative starts."""
    operator(claim, "whole0")["inputs"].remove("whole0/loads")
    operator(claim, "whole0/head0")["inputs"].append("whole0/loads")


def for_an_operator_in_no_group(problem, claim):
    operator(claim, "whole0")["inputs"].remove("whole0/loads")
    operator(claim, "next")["inputs"].append("whole0/loads")


def beside_another(problem, claim):
    """What stands for all loads is counted, and one of the parameters again."""
    operator(claim, "whole0")["inputs"].append("b0")
    claim["graph"]["tensors"].append(tensor(problem, "b0"))


def a_byte_more(problem, claim):
    tensor(claim, "whole0/loads")["size"] += 1


def fewer_loads(problem, claim):
    """The halves do without a parameter."""
    for name in ("w", "b"):  # what they still load takes less than the three
        for reader in problem["variants"]["groups"][0]["alternatives"][0]["operators"]:
            kept = [read for read in reader["inputs"] if not read.startswith((f"{name}0", f"whole0/{name}"))]
            reader["inputs"] = kept


def a_direct_read(problem, claim):
    """The tail of the halves may read two parameters directly, in 70 ns with the kernel."""
    problem["variants"]["costs"]["direct_ns"] = [[None] * 2, [None] * 2, [None, 70]]
    tensor(claim, "whole0/loads")["size"] = 90
    Relaxed(problem, claim)
    tensor(claim, "whole0/loads")["size"] = 91


LONGER, BUSES, ALONE = "takes longer on the bus", "not all devices are on one bus", "by another group, or beside"
HARDER = {
    a_byte_more: LONGER,
    two_buses: BUSES,
    fewer_loads: LONGER,
    a_direct_read: LONGER,
    another_reader: LONGER,
    parts_besides: LONGER,
    at_a_head: LONGER,
    for_an_operator_in_no_group: ALONE,
    beside_another: ALONE,
}


@pytest.mark.parametrize("change", HARDER)
def test_a_combined_tensor_that_is_harder_than_some_choice_is_refused(change):
    document, claim = (json.loads(each.to_json()) for each in (behind_a_disk(), evidence(behind_a_disk())))
    claim = claim["relaxed"]
    Relaxed(document, claim)
    change(document, claim)
    with pytest.raises(Refused, match=HARDER[change]):
        Relaxed(document, claim)


def test_a_combined_tensor_is_one_that_the_evidence_names():
    document, claim = (json.loads(each.to_json()) for each in (behind_a_disk(), evidence(behind_a_disk())))
    del claim["relaxed"]["combined"]
    with pytest.raises(Refused, match="cross a bus in more time than it"):
        Relaxed(document, claim["relaxed"])


def test_an_alternative_without_loads_has_no_combined_tensor(folder):
    """One operator of 50 ns on a bus of 100 ns a load, joinable parameters; an alternative of 10 ns that loads nothing."""
    device = Device("gpu", 10**6, 1e12, {"float32": 1e12}, bus="pcie")
    topology = Topology("one", (device,), (Bus("pcie", 1e9, 100e-9),))
    tensors = Tensor("w", 1000, "parameter"), Tensor("y", 1)
    graph = OpGraph("g", (Operator("whole", "", ("w",), ("y",)),), tensors, ("y",))
    plain = Group("group", ("whole",), (Alternative("plain", (Operator("p", "", (), ("y",)),), ()),))
    problem = Problem(graph, topology, Costs([[50]]), Variants((plain,), Costs([[10]])), joinable=True)
    assert relaxed(problem).combined == {}
    schedule = solve(problem, options={"work": 0.05})
    assert schedule.certificate.latency_ns == 10
    assert max(bound.ns for bound in all_bounds(problem)) <= 10
    files = files_of(problem, schedule)
    assert files.check(folder).proved_ns <= 10
    document, claim = json.loads(problem.to_json()), files.evidence["relaxed"]
    claim["graph"]["tensors"].append({"name": "loads", "size": 1, "kind": "parameter"})
    claim["graph"]["operators"][-1].setdefault("inputs", []).append("loads")
    with pytest.raises(Refused, match="an alternative has none"):
        Relaxed(document, claim | {"combined": {"group": "loads"}})
