"""Warm runs: the plan's queues and waits, the simulator and the executor agree on what is moved and when."""

import msgspec
import numpy as np
import pytest

from tvm_sched.errors import InputError
from tvm_sched.planning import ShapesOnly, emit_plan
from tvm_sched.problem import Problem
from tvm_sched.runtime import ScheduledModule, make_module
from tvm_sched.schedule import moved_parameters, resident_parameters, simulate
from tvm_sched.testing import random_problem, random_schedule

PARTS = (0.0, 0.3, 0.7, 1.0)


def as_bytes(problem):
    tensors = tuple(msgspec.structs.replace(t, shape=(t.size,), dtype="uint8") for t in problem.graph.tensors)
    # With plenty of memory: where there is little, buffers share it, and a warm run may wait for their readers.
    devices = tuple(msgspec.structs.replace(d, memory=1 << 40) for d in problem.topology.devices)
    topology = msgspec.structs.replace(problem.topology, devices=devices)
    return Problem(msgspec.structs.replace(problem.graph, tensors=tensors), topology, problem.costs)


def plan_of(problem, schedule):
    calls = ShapesOnly(problem.graph)
    return emit_plan(
        problem, schedule, calls, name="p", backend="emulated", functions={}, values=tuple(calls.parameters)
    )


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


@pytest.mark.parametrize("seed", range(80))
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
        module.run(*inputs)
        events = [event["event"] for event in module.timeline()["events"] if event["event"]]
        return sorted((event["kind"], event["name"]) for event in events)

    def expected(resident):
        return sorted((event.kind, event.name) for event in simulate(problem, schedule, resident=resident).events)

    assert events() == expected(0.0)  # the first run is cold
    assert events() == expected(part)
    module.configure(resident=[])
    assert events() == expected(0.0)
