"""Pipelines of stages that are plain functions: order, failures, ends; no sleeps, no timing."""

import dataclasses
import itertools
import os
import signal
import threading

import numpy as np
import pytest
from chain_cases import chain_problem
from execute_cases import executor, plus_one

from tvm_sched.pipeline import plan_pipeline
from tvm_sched.pipeline.stage_problem import stage_problem
from tvm_sched.schedulers import solve
from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.pipeline.pipeline_executor import PipelineExecutor, StageProgram
from tvm_sched_runtime.schedule import simulate


@pytest.mark.parametrize("emulated", [False, True])
def test_batches_come_out_in_order(emulated):
    pipeline = executor(emulated=emulated)
    results = pipeline.run(np.array([float(b)]) for b in range(30))
    assert [result.batch for result in results] == list(range(30))
    assert [result.value()[0][0] for result in results] == [b + len(pipeline.programs) for b in range(30)]


def test_a_stage_with_several_ways_has_as_many_batches_at_once_and_sends_them_in_order():
    pipeline = executor()
    three = threading.Barrier(3)  # goes on when three batches are there
    under_way, most, lock = set(), [0], threading.Lock()

    def run(values):
        with lock:
            under_way.add(values[0][0])
            most[0] = max(most[0], len(under_way))
        three.wait(20)
        with lock:
            under_way.remove(values[0][0])
        return [values[0] + 1]

    pipeline.programs[1] = dataclasses.replace(pipeline.programs[1], run=run, instances=3)
    results = pipeline.run([np.array([float(b)]) for b in range(12)])
    assert [result.value()[0][0] for result in results] == [b + len(pipeline.programs) for b in range(12)]
    assert most == [3]


def test_an_error_fails_its_batch_alone():
    pipeline = executor(fail_at=4.0)  # stage 1 sees batch 3 as 4
    results = pipeline.run([np.array([float(b)]) for b in range(8)])
    assert [result.batch for result in results if result.error] == [3]
    with pytest.raises(ExecutionError, match="batch 3, stage 1 on gpu1: operator on gpu1 cannot add"):
        results[3].value()
    assert results[4].value()[0][0] == 4 + len(pipeline.programs)


def test_wrong_inputs_fail_their_batch_alone():
    results = executor().run([{"x": np.zeros(1)}, {"y": np.zeros(1)}, [np.zeros(1)], [np.zeros(1)] * 2])
    assert [result.error is None for result in results] == [True, False, True, False]
    assert "batch 1: a batch has the inputs x; found y" in str(results[1].error)


def test_an_endless_stream_is_pulled_no_further_than_there_is_room():
    pulled = itertools.count()
    pipeline = executor()
    stream = pipeline.stream(np.array([float(next(pulled))]) for _ in itertools.repeat(None))
    first = [next(stream).value()[0][0] for _ in range(5)]
    stream.close()
    assert first == [b + len(pipeline.programs) for b in range(5)]
    assert not [t for t in threading.enumerate() if t.name.startswith(("stage ", "hop "))]
    assert next(pulled) <= 5 + sum(hop.room + 1 for hop in pipeline.wiring.hops) + len(pipeline.programs)


def test_ctrl_c_stops_all_threads():
    pipeline = executor()
    calls = itertools.count()

    def interrupted(values):
        if next(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return plus_one("")(values)

    pipeline.programs[1] = dataclasses.replace(pipeline.programs[1], run=interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(itertools.repeat(np.zeros(1)))
    assert not [t for t in threading.enumerate() if t.name.startswith(("stage ", "hop "))]


def test_what_the_callers_iterable_raises_comes_after_the_results_before():
    def batches():
        yield np.zeros(1)
        raise RuntimeError("no more data")

    stream = executor().stream(batches())
    assert next(stream).error is None
    with pytest.raises(RuntimeError, match="no more data"):
        next(stream)


def test_a_trace_has_every_stage_of_every_batch():
    pipeline = executor()
    results, run = pipeline.trace([np.zeros(1)] * 4)
    assert len(results) == len(run.done_ns) == 4
    assert sorted(event.name for event in run.timeline.events if event.kind == "kernel") == sorted(
        f"stage {s}, batch {b}" for s in range(len(pipeline.programs)) for b in range(4)
    )


def test_a_model_that_returns_nothing_is_refused():
    problem = chain_problem()
    graph = type(problem.graph)("nothing", problem.graph.operators, problem.graph.tensors)
    problem = type(problem)(graph, problem.topology, problem.costs)
    plan = plan_pipeline(problem, 2, "equal-split")
    with pytest.raises(InputError, match="returns nothing"):
        PipelineExecutor(problem, plan, [StageProgram((), (), plus_one(""))] * len(plan.stages))


def test_a_stage_is_a_problem_that_takes_its_work():
    problem = chain_problem()
    plan = plan_pipeline(problem, 2, "tarnawski-dp")
    stage = stage_problem(problem, plan, 0)
    assert [operator.name for operator in stage.graph.operators] == ["op0", "op1"]
    assert stage.graph.outputs == ("a1",)
    schedule = solve(stage, method="single", options={"device": plan.stages[0].device})
    assert simulate(stage, schedule).latency_ns == plan.stages[0].work_ns
