"""Parts of large machines on which `anytime` searches."""

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.anytime.machine_parts import promising_machines
from tvm_sched.schedulers.common.native_methods import list_order
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.variant_problems import random_variants
from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Bus,
    Costs,
    Device,
    Operator,
    OpGraph,
    Problem,
    Storage,
    Switch,
    Tensor,
    Topology,
    as_scenario,
)
from tvm_sched_runtime.problem.topology_changes import part_of
from tvm_sched_runtime.schedule import ScheduleIndex, verify
from tvm_sched_runtime.search_budget import Budget


def servers(count, size, memory=1 << 30, storage=msgspec.UNSET):
    """Servers of ``size`` GPUs; two of them share a bus, a switch joins all of a server."""
    names = [f"gpu{d}" for d in range(count * size)]
    return Topology(
        "servers",
        tuple(Device(name, memory, 1e12, {"float32": 1e13}, bus=f"pcie{d // 2}") for d, name in enumerate(names)),
        tuple(Bus(f"pcie{b}", 1e10, 1e-5) for b in range(-(-len(names) // 2))),
        switches=tuple(
            Switch(f"nvswitch{n}", tuple(names[n * size : (n + 1) * size]), 1e11, 1e-6) for n in range(count)
        ),
        storage=storage,
    )


def chains(topology, width, length, ns=20_000, seed=0):
    """``width`` chains of operators of about ``ns`` with small tensors between."""
    random, operators, tensors, rows = Random(seed), [], [], []
    for chain in range(width):
        for k in range(length):
            name = f"{chain}.{k}"
            operators.append(Operator(name, inputs=(f"{chain}.{k - 1}",) if k else (), outputs=(name,)))
            tensors.append(Tensor(name, 1000))
            rows.append([ns + random.randrange(100)] * len(topology.devices))
    return Problem(OpGraph("chains", tuple(operators), tuple(tensors)), topology, Costs(rows))


def sizes(problem):
    return [len(machine.topology.devices) for machine in promising_machines(as_scenario(problem), Budget())]


def test_machines_of_up_to_16_devices_stay_whole():
    assert sizes(chains(servers(2, 8), 4, 3)) == [16]


def test_a_graph_that_fills_one_server_is_searched_there():
    problem = chains(servers(4, 8), 8, 6)
    assert sizes(problem)[0] == 8
    schedule = solve(problem, method="anytime", options={"work": 0.05})
    verify(problem, schedule)
    # Eight equal chains on eight devices: each chain on its own, 6 operators of 20.0 to 20.1 us.
    assert schedule.certificate.latency_ns < 6 * 20_100
    assert len({placement.device for placement in schedule.placements}) == 8


def test_a_wide_graph_is_searched_on_the_whole_machine():
    problem = chains(servers(4, 8), 32, 2)
    assert sizes(problem)[0] == 32
    assert solve(problem, method="anytime", options={"work": 0.05}).certificate.latency_ns < 2 * 20_100


def test_pricing_ends_at_the_deadline_with_the_parts_that_have_a_price():
    scenario = as_scenario(chains(servers(8, 8), 64, 2))
    assert len(promising_machines(scenario, Budget())[0].topology.devices) == 64
    answers = iter([False, True])

    class EndsAfterTwo(Budget):
        late = property(lambda self: next(answers))

    (best, *_) = promising_machines(scenario, EndsAfterTwo())
    assert len(best.topology.devices) == 16  # parts of 8 and 16 were priced


def test_pricing_counts_as_work():
    small, large = (chains(servers(8, 8), 64, length) for length in (2, 6))
    spent = []
    for problem in (small, large, large):
        budget = Budget(10.0)
        promising_machines(as_scenario(problem), budget)
        spent.append(budget.spent)
    assert 0 < spent[0] < spent[1] == spent[2]
    assert spent[1] == pytest.approx(3 * spent[0])  # in proportion to operators times devices
    budget = Budget(10.0)
    promising_machines(as_scenario(chains(servers(2, 8), 4, 3)), budget)
    assert budget.spent == 0  # a small machine stays whole


def test_small_servers_are_not_cut_and_the_first_device_of_each_bus_leads():
    scenario = as_scenario(chains(servers(5, 6), 1, 4))
    (first, *_) = promising_machines(scenario, Budget())
    assert len(first.topology.devices) == 12  # of 30; the servers have 6
    one = as_scenario(chains(servers(1, 32), 1, 4))
    names = [device.name for device in promising_machines(one, Budget())[0].topology.devices]
    assert names == [f"gpu{d}" for d in range(0, 16, 2)]


def test_fast_devices_come_first():
    problem = chains(servers(3, 8), 2, 4)
    slow = np.array([4] * 16 + [1] * 8)
    slower = Problem(problem.graph, problem.topology, Costs(problem.costs.operator_ns * slow))
    names = [device.name for device in promising_machines(as_scenario(slower), Budget())[0].topology.devices]
    assert names == [f"gpu{d}" for d in range(16, 24)]


def test_parts_have_the_devices_without_which_an_operator_cannot_run():
    problem = chains(servers(3, 8), 2, 4)
    times = problem.costs.operator_ns.copy()
    times[3, [d for d in range(24) if d != 23]] = FORBIDDEN
    apart = Problem(problem.graph, problem.topology, Costs(times))
    assert all("gpu23" in machine.topology.device_id for machine in promising_machines(as_scenario(apart), Budget()))
    times[6, [d for d in range(24) if d not in (0, 1)]] = FORBIDDEN
    times[5, [d for d in range(24) if d != 8]] = FORBIDDEN
    far = Problem(problem.graph, problem.topology, Costs(times))
    assert sizes(far) == [24]
    schedule = solve(far, method="anytime", options={"work": 0.02})
    devices = {placement.operator: placement.device for placement in schedule.placements}
    assert (devices["0.3"], devices["1.1"]) == ("gpu23", "gpu8")


def test_memory_that_a_part_lacks_is_found_on_the_whole():
    topology = servers(3, 8, memory=3000)
    heads = [Operator(f"a{k}", outputs=(f"a{k}",)) for k in range(20)]
    last = [Operator(f"b{k}", inputs=(f"a{k}",), outputs=(f"b{k}",)) for k in range(20)]
    tensors = [Tensor(f"{kind}{k}", 1400) for kind in "ab" for k in range(20)]
    # Every tensor "a" is kept until its reader has run, and the readers' results stay: two tensors fill a device.
    problem = Problem(OpGraph("full", (*heads, *last), tuple(tensors)), topology, Costs(np.full((40, 24), 1000)))
    schedule = solve(problem, method="anytime", options={"work": 0.02})
    verify(problem, schedule)
    assert len({placement.device for placement in schedule.placements}) > 16


@settings(max_examples=examples(5), deadline=None)
@given(seed=st.integers(0, 10_000), devices=st.integers(17, 24), varied=st.booleans())
def test_schedules_of_parts_obey_the_rules_of_the_whole_machine(seed, devices, varied):
    problem = random_problem(seed, 8, devices, memory="generous")
    problem = random_variants(problem, seed) if varied else problem
    try:
        schedule = solve(problem, method="anytime", options={"work": 0.02})
    except InfeasibleError:
        return
    verify(problem, schedule)
    assert schedule.certificate.lower_bound_ns <= schedule.certificate.latency_ns
    again = solve(problem, method="anytime", options={"work": 0.02})
    assert (again.placements, again.transfers) == (schedule.placements, schedule.transfers)


def reading(topology, operators=8):
    """Operators of 1 ms that read one parameter of 40 MB: 4 ms on a bus."""
    made = tuple(Operator(f"o{k}", inputs=("w",), outputs=(f"y{k}",)) for k in range(operators))
    tensors = (Tensor("w", 40_000_000, kind="parameter"), *(Tensor(f"y{k}", 1000) for k in range(operators)))
    costs = Costs([[1_000_000] * len(topology.devices)] * operators)
    return Problem(OpGraph("reading", made, tensors), topology, costs)


@pytest.mark.parametrize("bandwidth", [1e9, 1e11, 1e13])
def test_no_answer_is_worse_than_a_quick_method_behind_storage(bandwidth):
    """A disk of 100 GB/s feeds the 4 buses of a part at once, not the 16 of the machine."""
    problem = reading(servers(4, 8, storage=Storage("disk", bandwidth)))
    best = solve(problem, method="anytime", options={"work": 0.05})
    verify(problem, best)
    for method in ("single", "heft", "peft"):
        assert best.certificate.latency_ns <= solve(problem, method=method).certificate.latency_ns


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 10_000), bandwidth=st.sampled_from([0, 1e9, 3e10, 1e11, 1e12]))
def test_a_schedule_takes_the_same_time_on_a_part_and_on_the_machine(seed, bandwidth):
    topology = servers(3, 8, storage=Storage("disk", bandwidth) if bandwidth else msgspec.UNSET)
    whole = as_scenario(reading(topology, 1 + seed % 12))
    for part in promising_machines(whole, Budget()):
        index = list_order(part, "heft")
        schedule = index.to_schedule().replace(problem=whole.problem.digest)
        assert ScheduleIndex.of(whole, schedule).times.latency_ns == index.times.latency_ns


@pytest.mark.parametrize("kept", [["gpu1", "gpu0"], ["gpu9"]])
def test_a_part_keeps_the_routes_of_its_devices(kept):
    whole = servers(2, 8)
    part = part_of(whole, kept)
    assert {device.name for device in part.devices} == set(kept)
    for a in kept:
        for b in kept:
            one, other = (t.route(t.device_id[a], t.device_id[b]) for t in (whole, part))
            assert (one and (one.bandwidth, one.latency)) == (other and (other.bandwidth, other.latency))
