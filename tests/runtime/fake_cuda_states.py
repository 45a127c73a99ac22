"""Further cases of `test_fake_cuda`: states that stay on the GPUs from run to run."""

from __future__ import annotations

import gc
from dataclasses import replace

import fake_cuda_cases
import msgspec
import numpy as np
import pytest
from fake_cuda_cases import driver, expect, main, register, same
from runtime_plans import PlanBuilder

from tvm_sched.cost_model import costs
from tvm_sched.execution_plan import KernelCall, check_states, emit_plan
from tvm_sched_bench.testing import random_concurrency, random_problem, random_schedule, random_stages, random_streams
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.problem import FORBIDDEN, Costs, Operator, OpGraph, Problem, Tensor, load_topology
from tvm_sched_runtime.runtime import ScheduledModule, make_module
from tvm_sched_runtime.schedule import Placement, Schedule, Transfer

SIZE = 64


def alike(seed: int) -> Problem:
    """A random problem whose tensors have one size, so that each result can be the next value of each input."""
    problem = random_problem(seed, 5 + seed % 20, 4, memory="generous", style="bus")
    tensors = tuple(msgspec.structs.replace(t, shape=(SIZE,), dtype="uint8", size=SIZE) for t in problem.graph.tensors)
    direct = problem.costs.direct_ns  # long enough for the bytes that there are now
    costs = Costs(problem.costs.operator_ns, np.where(direct == FORBIDDEN, direct, 10**6))
    operators = tuple(msgspec.structs.replace(o, read_bytes=msgspec.UNSET) for o in problem.graph.operators)
    graph = msgspec.structs.replace(problem.graph, tensors=tensors, operators=operators)
    return Problem(graph, problem.topology, costs)


def modules(seed: int) -> tuple[ScheduledModule, ScheduledModule, ScheduledModule, dict[str, str]] | None:
    """A random schedule for the CPU without states, and for the CPU and GPUs with some; None where no result can be one."""
    problem = random_concurrency(alike(seed), seed)
    made = {name for operator in problem.graph.operators for name in operator.outputs}
    inputs = ShapesOnly(problem.graph).arguments
    results = list(problem.graph.outputs)
    places = [k for k, name in enumerate(results) if name in made][1:]  # the first one remains a result
    states = dict(zip((name for name in inputs if name not in results), places, strict=False))
    if not states:
        return None
    schedule = random_schedule(problem, seed)
    if seed % 3:
        schedule = (random_streams if seed % 3 == 1 else random_stages)(problem, schedule, seed)
    for operator in problem.graph.operators:
        register(operator.name, len(operator.inputs))
    random = np.random.default_rng(seed)
    graph = ShapesOnly(problem.graph)
    values = {name: random.integers(0, 256, SIZE, "uint8") for name in graph.parameters}
    kept = check_states(problem.graph, inputs, results, states)

    def module(backend: str, kept: dict[str, str]) -> ScheduledModule:
        plan = emit_plan(
            problem, schedule, graph, name="p", backend=backend, functions={}, values=tuple(values), states=kept
        )
        used = {spec["name"] for spec in plan["parameters"]}
        return ScheduledModule(make_module([plan], {}, {k: v for k, v in values.items() if k in used}))

    return module("cpu", {}), module("cpu", kept), module("cuda", kept), kept


def states_pass_from_run_to_run() -> None:
    """What a plan without states gives where its results are handed back is what states give, issued and as graphs."""
    several = 0
    for seed in range(14):
        found = modules(seed)
        if found is None:
            continue
        plain, cpu, gpu, states = found
        homes = {state["device"] for state in gpu.plans()[0]["states"]}
        several += len(homes) > 1
        results = [output["name"] for output in plain.plans()[0]["outputs"]]
        arguments, random = plain.plans()[0]["arguments"], np.random.default_rng(seed)
        kept = {name: np.zeros(SIZE, "uint8") for name in states}
        for turn in range(8):
            gpu.configure(graph=turn > 1, resident=1.0 if turn % 2 else 0.0)
            values = {a["name"]: kept.get(a["name"], random.integers(0, 256, SIZE, "uint8")) for a in arguments}
            expected = dict(zip(results, plain.run(*values.values()), strict=True))
            given = [value for name, value in values.items() if name not in states]
            left = [value for name, value in expected.items() if name not in states.values()]
            same(cpu.run(*given), left)
            same(gpu.run(*given), left)
            kept = {name: expected[after] for name, after in states.items()}
            if turn == 5:
                for module in (cpu, gpu):
                    module.sleep()
                    module.wake()
            if turn == 4:
                for name in states:
                    same([gpu.get_state(name)], [kept[name]])
                    kept[name] = kept[name] ^ 7
                    cpu.set_state(name, kept[name])
                    gpu.set_state(name, kept[name])
    assert several > 2, "states lie on several GPUs"


def states_move_between_plans_that_store_them_on_other_gpus() -> None:
    """As a prompt's plan and a token's may: which one runs is seen by the size of the argument."""

    def module(backend: str) -> ScheduledModule:
        plans = []
        for home, size in enumerate((8, 16)):
            builder = PlanBuilder(f"on {home}", backend)
            state = {"name": "s", "shape": [SIZE], "dtype": "uint8"}
            builder.plan["states"] = [{**state, "device": home}]
            builder.plan["queues"].append({"name": "results"})
            x, out = builder.argument("x", [size], "uint8"), builder.output([SIZE], "uint8")
            here, result = builder.arena(home, [size], "uint8"), builder.arena(home, [SIZE], "uint8")
            read, written = (builder.buffer(state, {"kind": kind, "index": 0}) for kind in ("state", "next_state"))
            loaded = builder.copy(x, here, name="x")
            done = builder.kernel(home, "step_of_state", [read, here], [written, result], [loaded])
            builder.copy(result, out, [done], name="out")
            plans.append(builder.plan)
        return ScheduledModule(make_module(plans, {}))

    register("step_of_state", 2)
    cpu, gpu = module("cpu"), module("cuda")
    random = np.random.default_rng(0)
    for size in (8, 16, 16, 8, 16, 8, 8):
        x = random.integers(0, 256, size, "uint8")
        same(gpu.run(x), cpu.run(x))
        same([gpu.get_state("s")], [cpu.get_state("s")])
    memory = []
    for size in (8, 16):
        gpu.run(np.zeros(size, "uint8"))
        memory.append([driver.fake_cuda_allocated(d) for d in range(2)])
    assert memory[0][0] - memory[1][0] == memory[1][1] - memory[0][1] == 2 * SIZE, "the state and the next one"


def plans_of_states_share_what_stays_on_the_gpu() -> None:
    """A prompt between two tokens neither loads parameters again nor costs the graph of the tokens' plan."""

    def module(backend: str) -> ScheduledModule:
        plans = []
        for size in (8, 16):
            builder = PlanBuilder(f"of {size}", backend)
            state = {"name": "s", "shape": [SIZE], "dtype": "uint8"}
            builder.plan["states"] = [{**state, "device": 0}]
            x, w, out = builder.argument("x", [size], "uint8"), builder.parameter("w", [SIZE], "uint8"), None
            out = builder.output([SIZE], "uint8")
            here, weight, result = (builder.arena(0, [n], "uint8") for n in (size, SIZE, SIZE))
            read, written = (builder.buffer(state, {"kind": kind, "index": 0}) for kind in ("state", "next_state"))
            loads = [builder.copy(x, here, name="x"), builder.copy(w, weight, name="w")]
            done = builder.kernel(0, "step_with_weight", [read, here, weight], [written, result], loads)
            builder.copy(result, out, [done], name="out")
            plans.append(builder.plan)
        return ScheduledModule(make_module(plans, {}, {"w": np.arange(SIZE, dtype="uint8")}))

    register("step_with_weight", 2)
    cpu, gpu = module("cpu"), module("cuda")
    random = np.random.default_rng(0)

    def run(*sizes: int) -> None:
        for size in sizes:
            x = random.integers(0, 256, size, "uint8")
            same(gpu.run(x), cpu.run(x))

    gpu.configure(resident=1.0, trace=True)
    for size in (8, 16, 8):
        run(size)
        steps = gpu.plans()[size == 16]["steps"]
        names = {steps[event["step"]]["name"] for event in gpu.timeline()["events"]}
        assert {"x", "out"} < names
        assert "w" not in names
    gpu.configure(trace=False, graph=True)
    run(8, 8, 8, 16, 16, 16)
    made = driver.fake_cuda_calls(b"cuGraphInstantiateWithFlags")
    assert made >= 2
    run(8, 8, 16, 16, 8, 8)
    assert driver.fake_cuda_calls(b"cuGraphInstantiateWithFlags") == made
    gpu.set_parameter("w", np.full(SIZE, 3, "uint8"))
    cpu.set_parameter("w", np.full(SIZE, 3, "uint8"))
    run(8, 8, 16, 16, 8)


class InPlace(ShapesOnly):
    """The kernel `new` updates its first input in place."""

    @property
    def calls(self) -> list[KernelCall]:
        return [replace(call, in_place={0: 0} if call.operator == "new" else {}) for call in super().calls]


def states_in_place_have_one_memory() -> None:
    """A state that its kernel updates in place gives what two buffers give: on one GPU, read on another, and as a graph."""
    kinds = {"s": "input", "x": "input", "t": "activation", "y": "activation"}
    tensors = tuple(Tensor(name, SIZE, kind, (SIZE,), "uint8") for name, kind in kinds.items())
    operators = (Operator("new", "k", ("s", "x"), ("t",)), Operator("out", "k", ("t",), ("y",)))
    graph = OpGraph("step", operators, tensors, ("y", "t"))
    register("new", 2)
    register("out", 1)
    topology = load_topology("v100-server")
    problem = Problem(graph, topology, costs(graph, topology))
    random = np.random.default_rng(0)
    for first, second in ((0, 0), (1, 3)):
        here, there = (topology.devices[d].name for d in (first, second))
        transfers = [Transfer("load", here, "s"), Transfer("load", here, "x")]
        transfers += [Transfer("copy", there, "t", here)] if here != there else []
        schedule = Schedule(problem.digest, (Placement("new", here), Placement("out", there)), tuple(transfers))
        made = []
        for calls in (ShapesOnly(graph), InPlace(graph)):
            plan = emit_plan(
                problem, schedule, calls, name="p", backend="cuda", functions={}, values=(), states={"s": "t"}
            )
            made.append(ScheduledModule(make_module([plan], {})))
        two, one = made
        assert one.plans()[0]["devices"][first]["extra_bytes"] == SIZE
        for turn in range(6):
            for module in made:
                module.configure(graph=turn > 1)
            given = random.integers(0, 256, SIZE, "uint8")
            same(one.run(given), two.run(given))
            same([one.get_state("s")], [two.get_state("s")])
            if turn == 3:
                for module in made:
                    module.set_state("s", given)


def a_failed_run_leaves_states_as_they_were() -> None:
    _, cpu, gpu, states = next(found for seed in range(20) if (found := modules(seed)))
    given = [np.ones(SIZE, "uint8") for _ in gpu.plans()[0]["arguments"]]
    gpu.run(*given)
    before = {name: gpu.get_state(name) for name in states}
    driver.fake_cuda_fail(b"cuMemcpyAsync", 1, 700)
    expect(ExecutionError, "CUDA_ERROR_ILLEGAL_ADDRESS", lambda: gpu.run(*given))
    for name, value in before.items():
        same([gpu.get_state(name)], [value])
    expect(InputError, "the model has states", lambda: gpu.configure(instances=2))
    gpu.configure(devices=[3, 2, 1, 0])  # other GPUs than before: states go with the plan
    for name, value in before.items():
        cpu.set_state(name, value)
    same(gpu.run(*given), cpu.run(*given))


def a_gpu_without_room_leaves_states_as_they_were() -> None:
    """Whichever allocation fails while states move to other GPUs, their values are still there."""
    _, cpu, gpu, states = next(found for seed in range(20) if (found := modules(seed)))
    given = [np.ones(SIZE, "uint8") for _ in gpu.plans()[0]["arguments"]]
    same(gpu.run(*given), cpu.run(*given))
    before = {name: gpu.get_state(name) for name in states}
    for turn in range(100):
        gpu.configure(devices=[[3, 2, 1, 0], [0, 1, 2, 3]][turn % 2])
        driver.fake_cuda_fail(b"cuMemAlloc_v2", turn, 2)
        try:
            found = gpu.run(*given)
        except ExecutionError:
            pass
        else:
            break
        for name, value in before.items():
            same([gpu.get_state(name)], [value])
    assert turn > 2 * len(states), "states need two allocations each"
    same(found, cpu.run(*given))


def a_module_goes_while_pythons_kernels_still_run() -> None:
    """What a failed run left on the streams is waited for, without the lock that these kernels need."""
    fake_cuda_cases.kernel_seconds = 0.02
    _, _, gpu, _ = next(found for seed in range(20) if (found := modules(seed)))
    given = [np.ones(SIZE, "uint8") for _ in gpu.plans()[0]["arguments"]]
    driver.fake_cuda_fail(b"cuStreamQuery", 2, 700)
    with pytest.raises(ExecutionError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        gpu.run(*given)
    del gpu
    gc.collect()


if __name__ == "__main__":
    main(globals())
