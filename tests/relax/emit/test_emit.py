"""Plans of random schedules on random machines: run on threads, they give what running in order gives."""

import json
import zlib

import msgspec
import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.execution_plan import KernelCall, StepMaker, emit_plan
from tvm_sched.relax.problem.operator_graph import Extraction
from tvm_sched_bench.testing import random_concurrency, random_problem, random_schedule, random_stages, random_streams
from tvm_sched_runtime.core_library import load_library
from tvm_sched_runtime.problem import Problem

CONCURRENCY = {"one after another": None, "streams": random_streams, "stages": random_stages}
"""What is done to a random schedule, so that operators of one device overlap."""


def random_case(seed, kind):
    """A problem of bytes, and a random schedule of it."""
    problem, change = byte_problem(seed), CONCURRENCY[kind]
    if change is None:
        return problem, random_schedule(problem, seed)
    problem = random_concurrency(problem, seed)
    return problem, change(problem, random_schedule(problem, seed), seed)


def byte_problem(seed):
    """A random problem whose tensors are arrays of bytes."""
    problem = random_problem(seed, operators=4 + seed % 40, devices=1 + seed % 5)
    tensors = tuple(msgspec.structs.replace(t, shape=(t.size,), dtype="uint8") for t in problem.graph.tensors)
    graph = msgspec.structs.replace(problem.graph, tensors=tensors)
    return Problem(graph, problem.topology, problem.costs)


def compute(operator, inputs, outputs):
    """Bytes that depend on all inputs, the operator, and the place of the output."""
    state = zlib.crc32(operator.encode())
    for value in inputs:
        state = zlib.crc32(np.ascontiguousarray(value).tobytes(), state)
    for k, size in enumerate(outputs):
        yield ((state + k + np.arange(size, dtype=np.uint64) * 7) % 251).astype("uint8")


def register_kernels(problem, prefix):
    for operator in problem.graph.operators:
        count = len(operator.inputs)

        def kernel(*tensors, name=operator.name, count=count):
            made = compute(name, [t.numpy() for t in tensors[:count]], [t.shape[0] for t in tensors[count:]])
            for tensor, value in zip(tensors[count:], made, strict=True):
                if value.size:
                    tensor.copyfrom(value)

        tvm.register_global_func(prefix + operator.name, kernel, override=True)


def in_order(problem, values):
    values = dict(values)
    graph = problem.graph
    for o in graph.index.order:
        operator = graph.operators[o]
        sizes = [graph.index.size[graph.index.tensor_id[t]] for t in operator.outputs]
        made = compute(operator.name, [values[t] for t in operator.inputs], sizes)
        values.update(zip(operator.outputs, made, strict=True))
    return values


def emit(problem, schedule, prefix):
    graph = problem.graph
    calls = [KernelCall(o.name, prefix + o.name, True, False, o.inputs, o.outputs) for o in graph.operators]
    arguments = {t.name: (None, ()) for t in graph.tensors if t.kind == "input"}
    parameters = {t.name: None for t in graph.tensors if t.kind == "parameter"}
    extraction = Extraction(graph, calls, arguments, parameters, graph.outputs)
    plan = emit_plan(problem, schedule, extraction, name="p", backend="cpu", functions={}, values=tuple(parameters))
    for device in plan["devices"]:
        del device["memory_bytes"]  # random schedules mind no limits
    return plan


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 100_000))
@pytest.mark.parametrize("kind", CONCURRENCY)
def test_random_schedules_compute_the_same(seed, kind):
    load_library()
    problem, schedule = random_case(seed, kind)
    prefix = f"test.emit.{seed}."
    register_kernels(problem, prefix)
    plan = emit(problem, schedule, prefix)
    rng = np.random.default_rng(seed)
    host = {
        t.name: rng.integers(0, 255, t.size).astype("uint8") for t in problem.graph.tensors if t.kind != "activation"
    }
    used = {spec["name"] for spec in plan["parameters"]}
    embedded = {name: tvm.runtime.tensor(value) for name, value in host.items() if name in used}
    module = tvm.get_global_func("tvm_sched.make_module")(json.dumps(plan), "{}", embedded)
    expected = in_order(problem, host)
    arguments = [tvm.runtime.tensor(host[spec["name"]]) for spec in plan["arguments"]]
    for _ in range(3):
        result = module["main"](*arguments)
        result = [result] if len(plan["outputs"]) == 1 else list(result)
        for spec, value in zip(plan["outputs"], result, strict=True):
            np.testing.assert_array_equal(value.numpy(), expected[spec["name"]])


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 100_000))
@pytest.mark.parametrize("kind", CONCURRENCY)
def test_waits_delay_nothing(seed, kind):
    """With the planned durations, queues and waits alone give the simulator's times."""
    problem, schedule = random_case(seed, kind)
    plan = emit(problem, schedule, "p.")
    end, queue_end = [], {}
    for step in plan["steps"]:
        start = max([queue_end.get(step["queue"], 0), *(end[w] for w in step["waits"])])
        end.append(start + step["duration_ns"])
        queue_end[step["queue"]] = end[-1]
    maker = StepMaker(problem, schedule)
    maker.make()
    simulated = sorted(step.end_ns for step in (*maker.kernels, *maker.transfers))
    planned = sorted(e for e, step in zip(end, plan["steps"], strict=True) if "event" in step)
    if any(p.stage for p in schedule.placements):
        # By the model all operators of a stage end with it; what others read may be there earlier.
        assert all(mine <= model for mine, model in zip(planned, simulated, strict=True))
    else:
        assert planned == simulated
