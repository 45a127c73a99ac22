"""Targets and passes with the objective throughput: one batch through ``main``, many through the pipeline inside."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tvm

from relax import cases
from relax.cases import CASES, SQUARE
from relax.compare import assert_same, run
from tvm_sched.relax import get_pipeline_plan, get_problem, passes, target
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.pipeline import open_pipeline, verify
from tvm_sched_runtime.runtime import ScheduledModule


def throughput(topology="cpu3", **more):
    """Equal split uses as many devices as it can."""
    return target(topology, objective="throughput", **{"partitioner": "equal-split", **more})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_main_takes_a_batch_through_all_stages(case):
    mod, inputs = CASES[case]
    assert_same(run(tvm.compile(mod, throughput()), *inputs), run(tvm.compile(mod, "llvm"), *inputs))


def test_batches_run_through_the_stages_inside():
    mod, inputs = CASES["operators"]
    executable = tvm.compile(mod, throughput())
    pipeline = open_pipeline(executable)
    verify(pipeline.problem, pipeline.plan)
    assert len(pipeline.stages) == 3
    expected = [
        np.asarray(value) for value in ScheduledModule(tvm.compile(mod, target("cpu1", "single")).jit()).run(*inputs)
    ]
    for result in pipeline.stream([inputs] * 4):
        assert_same(result.value(), expected)  # a stage has fewer threads, which may add in another order


def test_a_tag_and_a_named_pipeline_say_the_same():
    for options in (
        {"target": "tvm_sched/cpu2/throughput"},
        {
            "target": "llvm",
            "relax_pipeline": tvm.relax.get_pipeline("tvm_sched", topology="cpu2", objective="throughput"),
        },
    ):
        pipeline = open_pipeline(tvm.compile(cases.Branches, **options))
        assert pipeline.plan.partitioner == "anytime"
        assert_same(pipeline.run([SQUARE])[0].value(), [run(tvm.compile(cases.Branches, "llvm"), SQUARE)])


@pytest.mark.thorough
@pytest.mark.slow
def test_an_emulated_pipeline_computes_values():
    mod, inputs = CASES["operators"]
    pipeline = open_pipeline(tvm.compile(mod, throughput("v100-server", stages=2)))
    assert pipeline.executor.emulated
    assert len(pipeline.plan.stages) == 2
    assert_same(pipeline.run([inputs])[0].value(), run(tvm.compile(mod, "llvm"), *inputs))


def test_passes_alone_leave_a_plan():
    chain = [passes.LowerToKernels(), passes.PrepareKernels(), passes.EstimateLatencies("cpu2", "roofline")]
    mod = tvm.transform.Sequential(chain)(cases.Operators)
    mod = tvm.transform.Sequential([passes.PartitionPipeline(2, "slicegraph", {"evaluations": 100})])(mod)
    plan = get_pipeline_plan(mod)
    verify(get_problem(mod), plan)
    with pytest.raises(InputError, match="run the pass PartitionPipeline"):
        tvm.transform.Sequential([passes.EmitPipeline()])(mod.without_attr("tvm_sched.pipeline"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "speed"}, "objective is 'speed'; allowed are 'latency', 'throughput'"),
        ({"stages": 2}, "give objective='throughput', too"),
        ({"partitioner": "slicegraph"}, "give objective='throughput', too"),
        ({"objective": "throughput", "scheduler": "single"}, "cut by a partitioner"),
        ({"objective": "throughput", "stages": 0}, "stages is 0; a number from 1"),
    ],
)
def test_what_does_not_go_together_is_told(options, message):
    with pytest.raises(InputError, match=message):
        target("cpu2", **options)


def test_a_pipeline_is_no_single_module_and_a_module_no_pipeline(tmp_path):
    executable = tvm.compile(cases.Operators, throughput())
    with pytest.raises(InputError, match="a pipeline of 3 stages"):
        ScheduledModule(executable)
    with pytest.raises(InputError, match="compile for throughput"):
        open_pipeline(tvm.compile(cases.Branches, target("cpu2", "single")))
    with pytest.raises(InputError, match="there is no such file"):
        open_pipeline(tmp_path / "nothing.so")


FRESH = """
import sys, numpy as np
sys.modules['torch'] = None  # tvm_ffi would import it, which takes longer than the rest
import tvm
from tvm_sched.pipeline import open_pipeline
inputs = [np.load(path) for path in sys.argv[3:]]
(result,) = open_pipeline(sys.argv[1]).run([inputs])
np.savez(sys.argv[2], *result.value())
assert tvm._RUNTIME_ONLY
"""


@pytest.mark.slow
def test_an_exported_pipeline_runs_in_another_process_without_the_compiler(tmp_path):
    mod, inputs = CASES["branches"]
    executable = tvm.compile(mod, throughput())
    pipeline = open_pipeline(executable)
    assert len(pipeline.stages) > 1
    expected = pipeline.run([inputs])[0].value()
    executable.export_library(str(tmp_path / "model.so"))
    names = [str(tmp_path / f"{k}.npy") for k in range(len(inputs))]
    for name, value in zip(names, inputs, strict=True):
        np.save(name, value)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TVM_USE_RUNTIME_LIB": "1"}
    script = [sys.executable, "-c", FRESH, str(tmp_path / "model.so"), str(tmp_path / "out.npz"), *names]
    subprocess.run(script, check=True, env=environment)
    with np.load(tmp_path / "out.npz") as found:
        for value, other in zip(found.values(), expected, strict=True):
            np.testing.assert_array_equal(value, other)
