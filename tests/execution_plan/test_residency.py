"""Warm runs: the plan's queues and waits, the simulator and the executor agree on what is moved and when."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execution_plan.residency_cases import as_bytes, plan_of
from thorough import examples
from tvm_sched.cost_model import costs
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import HOST, Operator, OpGraph, Problem, Tensor, load_topology
from tvm_sched_runtime.runtime import ScheduledModule, make_module
from tvm_sched_runtime.schedule import moved_parameters, resident_parameters, simulate, verify

PARTS = (0.0, 0.3, 0.7, 1.0)


def planned_latency(plan, skipped):
    """End of the last kernel by queues and waits alone, where some copies need not be done."""
    end, free, latency = {}, {}, 0
    for k, step in enumerate(plan["steps"]):
        if step["kind"] == "copy" and step["name"] in skipped and "event" in step:
            continue
        start = max([free.get(step["queue"], 0), *(end.get(w, 0) for w in step["waits"])])
        end[k] = free[step["queue"]] = start + step["duration_ns"]
        if step["kind"] == "kernel":
            latency = max(latency, end[k])
    return latency


@settings(max_examples=examples(80), deadline=None)
@given(seed=st.integers(0, 100_000))
def test_queues_and_waits_give_the_simulators_times_when_warm(seed):
    problem = as_bytes(random_problem(seed, operators=4 + seed % 40, devices=1 + seed % 5))
    schedule = random_schedule(problem, seed)
    plan = plan_of(problem, schedule)
    moved = moved_parameters(problem, schedule)
    for resident in (*PARTS, moved[::2], moved[1::2]):
        names = resident_parameters(problem, schedule, resident)
        timeline = simulate(problem, schedule, resident=resident)
        assert planned_latency(plan, names) == timeline.latency_ns
        assert not names & {event.name for event in timeline.events if event.kind in ("load", "copy")}


def test_a_warm_simulation_without_anything_is_the_cold_one():
    problem = random_problem(3)
    schedule = random_schedule(problem, 3)
    assert simulate(problem, schedule, resident=0.0) == simulate(problem, schedule)
    with pytest.raises(InputError, match="from 0 to 1"):
        simulate(problem, schedule, resident=1.5)
    with pytest.raises(InputError, match="nobody"):
        simulate(problem, schedule, resident=["nobody"])


def emulated_cases():
    """Schedules of which parameters are moved."""
    for seed in range(40):
        problem = as_bytes(random_problem(seed, operators=10, devices=3))
        schedule = random_schedule(problem, seed)
        if len(moved_parameters(problem, schedule)) > 3:
            yield seed, problem, schedule


@pytest.mark.parametrize("part", PARTS)
def test_the_executor_leaves_out_what_the_simulator_leaves_out(part):
    _, problem, schedule = next(emulated_cases())
    plan = plan_of(problem, schedule)
    module = ScheduledModule(make_module([plan], {}))
    module.configure(resident=part, trace=True, emulation_scale=1)
    inputs = [np.zeros(spec["shape"], "uint8") for spec in plan["arguments"]]

    def events():
        module.run_times(*inputs)
        events = [event["event"] for event in module.timeline()["events"] if event["event"]]
        return sorted((event["kind"], event["name"]) for event in events)

    def expected(resident):
        return sorted((event.kind, event.name) for event in simulate(problem, schedule, resident=resident).events)

    assert events() == expected(0.0)  # the first run is cold
    assert events() == expected(part)
    module.configure(resident=[])
    assert events() == expected(0.0)


def layers(count, megabytes):
    """Two branches of matmuls a layer, each with a parameter of its own, joined at the end of the layer."""
    size, tensors, operators, value = megabytes << 20, [Tensor("x", 4096, "input", (4096,), "uint8")], [], "x"

    def add(name, inputs, weight=0):
        tensors.append(Tensor(name, 4096, "activation", (4096,), "uint8"))
        if weight:
            tensors.append(Tensor(f"{name}.w", weight, "parameter", (weight,), "uint8"))
            inputs = (*inputs, f"{name}.w")
        operators.append(Operator(f"{name}.op", "matmul" if weight else "add", inputs, (name,), 2 * weight))
        return name

    for k in range(count):
        value = add(f"join{k}", tuple(add(f"{side}{k}", (value,), size) for side in ("left", "right")))
    return OpGraph("layers", tuple(operators), tuple(tensors), (value,))


def test_figure_14_ratios_of_remaining_parameters():
    """SortingHat's figure 14: the same schedule is run again with a part of its parameters left on the GPUs.

    The more remain, the shorter is the run, on one GPU and on several; the executor moves what the simulator says.
    """
    graph, topology = layers(6, 8), load_topology("v100-server")
    problem = Problem(graph, topology, costs(graph, topology))
    schedules = {
        name: solve(problem, method=name, options={"work": 0.2} if name == "anytime" else {})
        for name in ("single", "anytime")
    }
    latencies = {}
    for name, schedule in schedules.items():
        plan = plan_of(problem, schedule)
        module = ScheduledModule(make_module([plan], {}))
        module.configure(trace=True, emulation_scale=1)
        inputs = [np.zeros(spec["shape"], "uint8") for spec in plan["arguments"]]
        for ratio in (0.0, 0.25, 0.5, 0.75, 1.0):
            verify(problem, schedule, resident=ratio)
            predicted = simulate(problem, schedule, resident=ratio)
            assert planned_latency(plan, resident_parameters(problem, schedule, ratio)) == predicted.latency_ns
            module.configure(resident=ratio)
            module.run_times(*inputs)
            module.run_times(*inputs)
            events = [e["event"] for e in module.timeline()["events"] if e["event"]]
            assert sorted((e["kind"], e["name"]) for e in events) == sorted((e.kind, e.name) for e in predicted.events)
            assert module.timeline()["wall_ns"] >= predicted.latency_ns
            latencies.setdefault(name, []).append(predicted.latency_ns)
        assert latencies[name] == sorted(latencies[name], reverse=True)
        assert latencies[name][-1] < latencies[name][0]
    assert latencies["anytime"][0] < latencies["single"][0]  # two buses instead of one
    single = schedules["single"].placements[0].device
    device = next(d for d, found in enumerate(topology.devices) if found.name == single)
    load = problem.route(HOST, device).nanoseconds(4096)  # of the input, which does not remain
    assert latencies["single"][-1] == load + int(problem.costs.operator_ns[:, device].sum())
