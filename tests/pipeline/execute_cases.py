"""Cases of `test_execute.py` that other tests use, too."""

from chain_cases import chain_problem

from tvm_sched.pipeline import plan_pipeline
from tvm_sched.pipeline.stage_problem import stage_problem
from tvm_sched_runtime.pipeline.pipeline_executor import PipelineExecutor, StageProgram


def plus_one(device, fail_at=None):
    def run(values):
        if fail_at is not None and values[0][0] == fail_at:
            raise ValueError(f"operator on {device} cannot add")
        return [values[0] + 1]

    return run


def executor(fail_at=None, emulated=False):
    problem = chain_problem()
    plan = plan_pipeline(problem, 3, "equal-split")
    plan = plan_pipeline(problem, len(plan.stages), "equal-split")
    programs = []
    for s, stage in enumerate(plan.stages):
        graph = stage_problem(problem, plan, s).graph
        inputs = tuple(tensor.name for tensor in graph.tensors if tensor.kind == "input")
        programs.append(StageProgram(inputs, graph.outputs, plus_one(stage.device, fail_at if s == 1 else None)))
    return PipelineExecutor(problem, plan, programs, emulated)
