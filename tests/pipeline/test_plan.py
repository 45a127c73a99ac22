"""Plans of problems: costs by hand, rules, bounds against all plans, devices, limits, simulation, files."""

import itertools

import msgspec
import pytest
from chain_cases import chain_problem
from hypothesis import assume, given, settings

from strategies import SEEDS, problems
from thorough import examples
from tvm_sched.pipeline import plan_pipeline
from tvm_sched_runtime.errors import FormatError, InfeasibleError, InputError, ProblemError, ScheduleError
from tvm_sched_runtime.pipeline import PipelinePlan, verify, violations
from tvm_sched_runtime.pipeline.pipeline_simulator import simulate
from tvm_sched_runtime.pipeline.stage_pricing import price
from tvm_sched_runtime.pipeline.wiring import wire
from tvm_sched_runtime.problem import FORBIDDEN

FAST = {"evaluations": 100}


def test_costs_of_a_chain_by_hand():
    problem = chain_problem()
    stages = price(problem, [(0, [0, 1]), (2, [2])])
    first, second = stages
    assert (first.input_ns, first.work_ns, first.overflow_ns, first.output_ns) == (500, 3000, 0, 500)
    assert (second.input_ns, second.work_ns, second.output_ns) == (500, 3000, 500)
    assert first.parameter_bytes == 4000
    assert first.peak_bytes == 1000  # x and a0, then a0 and a1
    plan = plan_pipeline(problem, 2, "tarnawski-dp")
    assert plan.cost_ns == 4000
    assert [stage.operators for stage in plan.stages] == [("op0", "op1"), ("op2",)]
    assert plan.latency_ns == 8000


def test_parameters_that_do_not_fit_are_streamed():
    problem = chain_problem(memory=4500)
    (stage,) = price(problem, [(0, [0, 1, 2])])
    assert stage.overflow_ns == 6000 + 1000 - 4500


def test_the_faster_device_gets_the_longer_stage():
    problem = chain_problem(work=(1000, 1000, 1000, 1000, 1000, 1000), devices=2, speeds=[1, 5])
    plan = plan_pipeline(problem, 2, "slicegraph", FAST)
    assert plan.cost_ns == min(
        max(stage.cost_ns for stage in price(problem, [(first, range(k)), (1 - first, range(k, 6))]))
        for k in range(1, 6)
        for first in (0, 1)
    )
    assert plan.stages[0].device == "gpu0"


def test_limits_on_latency_and_throughput():
    problem = chain_problem(work=(1000,) * 6, devices=3, memory=20_000)
    fast = plan_pipeline(problem, 3, "slicegraph", FAST)
    assert (fast.cost_ns, fast.latency_ns) == (3000, 9000)
    low = plan_pipeline(problem, 3, "slicegraph", FAST, latency_ceiling=7500e-9)
    assert low.latency_ns == 7000
    calm = plan_pipeline(problem, 3, "slicegraph", FAST, throughput_floor=1e9 / 4000)
    assert calm.cost_ns <= 4000
    assert calm.latency_ns == 8000
    with pytest.raises(InfeasibleError, match="no plan of the search meets the limit"):
        plan_pipeline(problem, 3, "slicegraph", FAST, throughput_floor=1e9 / 1000)
    with pytest.raises(InputError, match="one of them is allowed"):
        plan_pipeline(problem, 3, "slicegraph", FAST, throughput_floor=1.0, latency_ceiling=1.0)


@pytest.mark.slow
@given(problems(max_operators=5, max_devices=3, min_operators=1, memory=("generous",)))
@settings(max_examples=examples(40), deadline=None)
def test_no_plan_of_all_is_below_the_bound(problem):
    """Exhaustive search over stages in order and devices, priced by the model."""
    try:
        plan = plan_pipeline(problem, "auto", "anytime", {"time_limit": 0.6, "moves": 500})
    except (InfeasibleError, InputError):
        assume(False)
    verify(problem, plan)
    count, devices = len(problem.graph.operators), range(len(problem.topology.devices))
    order = problem.graph.index.order
    for stage_of in itertools.product(devices, repeat=count):
        before = problem.graph.index.predecessors
        if any(stage_of[u] > stage_of[o] for o in range(count) for u in before[o]):
            continue
        for sequence in itertools.permutations(devices):
            parts = [(d, [o for o in order if stage_of[o] == s]) for s, d in enumerate(sequence)]
            parts = [(d, operators) for d, operators in parts if operators]
            if any(problem.costs.operator_ns[o, d] == FORBIDDEN for d, operators in parts for o in operators):
                continue
            try:
                cost = max(stage.cost_ns for stage in price(problem, parts))
            except ProblemError:
                continue
            assert cost >= plan.certificate.lower_bound_ns


@given(problems(max_operators=8, max_devices=4, min_operators=1), SEEDS)
@settings(max_examples=examples(40), deadline=None)
def test_simulated_pipelines_keep_order_and_reach_the_cost(problem, seed):
    try:
        plan = plan_pipeline(problem, "auto", "slicegraph", {"evaluations": 25, "seed": seed}, place=False)
    except (InfeasibleError, InputError):
        assume(False)
    serial = simulate(problem, plan, 12, overlap=False)
    assert serial.done_ns[-1] >= 12 * plan.cost_ns
    # Another stage may end last while the pipeline fills, at its own shorter pace; never at a longer one.
    assert serial.steady_ns <= plan.cost_ns + 1
    run = simulate(problem, plan, 12)
    assert list(run.done_ns) == sorted(run.done_ns)
    wiring = wire(problem, plan)
    loads = dict.fromkeys((c for hop in wiring.hops for c in hop.channels), 0)
    for hop in wiring.hops:
        for c in hop.channels:
            loads[c] += hop.duration_ns
    assert run.done_ns[-1] >= 12 * max([*wiring.work_ns, *loads.values()])
    assert simulate(problem, plan, 12) == run


def test_transfers_overlap_the_kernels():
    problem = chain_problem()
    plan = plan_pipeline(problem, 3, "tarnawski-dp")
    assert simulate(problem, plan, 20).steady_ns == 3000  # the longest work; transfers of 500 run beside it
    assert simulate(problem, plan, 20, overlap=False).steady_ns == 4000


def change(plan, s, **fields):
    stages = list(plan.stages)
    stages[s] = msgspec.structs.replace(stages[s], **fields)
    return msgspec.structs.replace(plan, stages=tuple(stages))


@pytest.mark.parametrize(
    ("rule", "damage"),
    [
        ("problem", lambda plan: msgspec.structs.replace(plan, problem="another")),
        ("problem", lambda plan: change(plan, 0, operators=("nobody",))),
        ("device-twice", lambda plan: change(plan, 1, device=plan.stages[0].device)),
        ("operator-missing", lambda plan: change(plan, 1, operators=())),
        ("operator-twice", lambda plan: change(plan, 1, operators=("op2", "op0"))),
        ("stage-order", lambda plan: msgspec.structs.replace(plan, stages=plan.stages[::-1])),
        ("operator-order", lambda plan: change(plan, 0, operators=("op1", "op0"))),
        ("costs", lambda plan: change(plan, 0, work_ns=1)),
        ("certificate", lambda plan: certify(plan, cost_ns=1)),
        ("certificate", lambda plan: certify(plan, lower_bound_ns=10**9)),
    ],
)
def test_broken_rules_are_named(rule, damage):
    problem = chain_problem()
    plan = plan_pipeline(problem, 2, "tarnawski-dp")
    assert violations(problem, plan) == []
    broken = damage(plan)
    assert rule in [violation.rule for violation in violations(problem, broken)]
    with pytest.raises(ScheduleError, match="rule"):
        verify(problem, broken)


def certify(plan, **fields):
    return msgspec.structs.replace(plan, certificate=msgspec.structs.replace(plan.certificate, **fields))


def test_files_are_read_back_and_newer_ones_refused(tmp_path):
    plan = plan_pipeline(chain_problem(), "auto", "slicegraph", FAST)
    plan.save(tmp_path / "plan.json")
    assert PipelinePlan.load(tmp_path / "plan.json") == plan
    newer = plan.to_json().replace(b'"version": 1', b'"version": 2')
    with pytest.raises(FormatError, match="newer than this tvm_sched reads"):
        PipelinePlan.from_json(newer)


def test_more_stages_than_devices_are_refused():
    with pytest.raises(InputError, match="stages is 4; 1 to 3 are allowed"):
        plan_pipeline(chain_problem(), 4)
    with pytest.raises(InputError, match="no device 'gpu9'"):
        plan_pipeline(chain_problem(), devices=["gpu9"])
