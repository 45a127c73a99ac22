"""Pipelines on several GPUs over a driver without a GPU: what `test_fake_cuda` runs beside ``fake_cuda_cases``."""

from __future__ import annotations

import os
import re
from typing import Any

import fake_cuda_cases
import numpy as np
from fake_cuda_cases import as_bytes, calls, driver, main, modules, same, trace

from tvm_sched.execution_plan import emit_plan
from tvm_sched.pipeline import plan_pipeline
from tvm_sched.pipeline.stage_problem import stage_problem
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_runtime.pipeline.compiled_pipeline import assemble
from tvm_sched_runtime.problem import Costs, Problem
from tvm_sched_runtime.runtime import ScheduledModule, make_module


def pipeline(
    seed: int, gpus: dict[str, int] | None = None, stages: Any = "auto"
) -> tuple[ScheduledModule, Any, list[Any]]:
    """A model for the CPU, its stages on GPUs, and inputs."""
    made = as_bytes(random_problem(seed, 4 + seed % 9, 4, memory="generous", style="bus"))
    anywhere = Costs(np.full_like(made.costs.operator_ns, 1000))
    problem = Problem(made.graph, made.topology, anywhere)
    cpu, _, inputs, parameters = modules(0, problem=problem)
    plan = plan_pipeline(problem, stages, "equal-split", place=False)
    modules_of_stages = []
    for s in range(len(plan.stages)):
        part = stage_problem(problem, plan, s, apart=True)
        graph = ShapesOnly(part.graph)
        schedule = solve(part, method="single")
        emitted = emit_plan(
            part, schedule, graph, name="stage", backend="cuda", functions={}, values=tuple(graph.parameters)
        )
        embedded = {spec["name"]: parameters[spec["name"]] for spec in emitted["parameters"]}
        modules_of_stages.append(ScheduledModule(make_module([emitted], {}, embedded)))
    return cpu, assemble(problem, plan, modules_of_stages, gpus=gpus), inputs


def pipelines_equal_the_cpus() -> None:
    stages = 0
    for seed in range(5):
        gpus = {f"d{d}": 0 for d in range(4)} if os.environ["FAKE_CUDA_DEVICES"] == "1" else None
        cpu, made, inputs = pipeline(seed, gpus)
        batches = [[value ^ turn for value in inputs] for turn in range(6)]
        results = made.run(batches)
        assert [result.batch for result in results] == list(range(6))
        names = [spec["name"] for spec in cpu.plans()[0]["outputs"]]  # else an input is among the results
        for batch, result in zip(batches, results, strict=True):
            values = dict(zip(made.executor.outputs, result.value(), strict=True))
            same([values[name] for name in names], cpu.run(*batch))
        stages += len(made.stages)
    assert stages > 10, "most models have several stages"


def batches_arrive_and_leave_while_others_are_computed() -> None:
    """Double buffers: beside a kernel there are copies of the batches before and after it, but never another kernel."""
    fake_cuda_cases.kernel_seconds = 0.005
    cpu, made, inputs = pipeline(7, stages=1)
    batches = [[value ^ turn for value in inputs] for turn in range(10)]
    for batch, result in zip(batches, made.run(batches), strict=True):
        same(result.value(), cpu.run(*batch))
    (plan,) = made.stages[0].plans()
    moved = [plan["buffers"][step["inputs"][0]] for step in plan["steps"] if step["kind"] == "copy"]
    kinds = [buffer["source"]["kind"] for buffer in moved if np.prod(buffer["shape"]) > 0]
    arguments, parameters = kinds.count("argument"), kinds.count("parameter")
    assert arguments * parameters > 0
    work = trace()
    assert work.count("H") == parameters + 10 * arguments, "parameters come once"
    assert re.fullmatch("(Kk)+", re.sub("[^Kk]", "", work)), "kernels follow each other"
    beside = "".join(re.findall("K([^k]*)k", work))
    assert beside.count("H") >= 4 * arguments, work
    assert beside.count("D") > 0, work


def a_fault_fails_one_batch_of_a_pipeline() -> None:
    cpu, made, inputs = pipeline(5)
    assert len(made.stages) > 1
    made.run([inputs])
    driver.fake_cuda_fail(b"cuStreamQuery", 3, 700)
    results = made.run([inputs] * 8)
    (failed,) = [result for result in results if result.error]
    assert re.match(rf"batch {failed.batch}, stage \d on d\d: .*CUDA_ERROR_ILLEGAL_ADDRESS", str(failed.error))
    for result in results:
        if result is not failed:
            same(result.value(), cpu.run(*inputs))


def a_run_that_cannot_mark_its_end_passes_its_turn() -> None:
    """Whichever event is refused, one batch fails, and those after it are not kept waiting."""
    cpu, made, inputs = pipeline(7, stages=1)
    made.run([inputs])
    before = calls("cuEventRecord")
    made.run([inputs])
    for skip in range(calls("cuEventRecord") - before):
        driver.fake_cuda_fail(b"cuEventRecord", skip, 999)
        first, second = made.run([inputs] * 2)
        assert "CUDA_ERROR_UNKNOWN" in str(first.error or second.error)
        (right,) = made.run([inputs])
        same(right.value(), cpu.run(*inputs))


if __name__ == "__main__":
    main(globals())
