"""`CompileOptions`: what is allowed, how a target carries them, what the artifact starts with, who decides streams."""

import dataclasses

import msgspec
import numpy as np
import pytest
import tvm

from relax import cases
from relax.onnx_models import small_model
from tvm_sched.relax import CompileOptions, compile, make_problem, passes, target
from tvm_sched.relax.ir.attributes import PROBLEM, SCHEDULE, get_problem, get_schedule, leave
from tvm_sched.relax.passes import decision_passes, emit_passes, problem_passes
from tvm_sched.relax.targets import read_target
from tvm_sched.schedulers import solve
from tvm_sched.streams import allocate_streams, best_launch_order, best_streams, order_launches
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Concurrency, Costs, Problem, Workload, load_topology

CHANGED = {
    "scheduler": "single", "options": {"device": "cpu1"}, "cost_model": "roofline", "backend": "emulated",
    "streams": "opara", "launch_order": "critical-path", "processor": "native", "threads": 2, "resident": 0.5,
    "instances": 2,
}  # fmt: skip


def test_defaults():
    options = CompileOptions.of("cpu2")
    assert options.topology == load_topology("cpu2")
    assert (options.scheduler, options.measuring, options.run_options) == ("anytime", False, {})
    assert CompileOptions.of("cpu").measuring
    assert not CompileOptions.of("cpu", backend="emulated").measuring
    assert not CompileOptions.of("cpu", objective="throughput").measuring
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.scheduler = "single"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"streams": "two"}, "streams is 'two'; allowed are one, opara, nimble, wavefront, fewest, best"),
        ({"streams": "oprara"}, "streams is 'oprara'; did you mean 'opara'"),
        (
            {"launch_order": "x"},
            "launch_order is 'x'; allowed are depth-first, breadth-first, critical-path, opara, opara-program, best",
        ),
        ({"backend": "tpu"}, "backend is 'tpu'; allowed are 'cpu', 'emulated', 'cuda'"),
        ({"objective": "energy"}, "objective is 'energy'"),
        ({"instances": 0}, "instances is 0; 1 to 1024"),
        ({"anchors": 0}, "anchors is 0; 1 to 64"),
        ({"resident": 1.5}, "resident is 1.5; a fraction from 0 to 1"),
        ({"graph": True}, "graph is for GPUs"),
        ({"rows": True, "variants": False}, "rows are variants"),
        ({"stages": 2}, "stages is for a pipeline: give objective='throughput', too"),
        ({"objective": "throughput", "streams": "opara"}, "streams is for objective='latency'"),
        ({"objective": "throughput", "stages": 0}, "stages is 0; a number from 1"),
        ({"measure": True, "backend": "emulated"}, "measured where they run on this machine's cores"),
        ({"objective": "throughput", "measure": True}, "measure is for objective='latency'"),
        ({"objective": "throughput", "stages": True}, "stages is True; a number from 1"),
        ({"instances": True}, "instances is True; 1 to 1024"),
        ({"resident": True}, "resident is True; a fraction from 0 to 1"),
        ({"objective": "throughput", "devices": "cpu0"}, "devices is 'cpu0'; a list of names"),
        ({"schedulr": "single"}, "no option 'schedulr' of compilation; there are anchors"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        CompileOptions.of("cpu2", **given)


def test_a_target_carries_all_of_them():
    assert read_target(target("cpu2", **CHANGED)) == CompileOptions.of("cpu2", **CHANGED)
    pipeline = {"objective": "throughput", "stages": 2, "partitioner": "equal-split", "throughput_floor": 10.0}
    assert read_target(target("cpu2", **pipeline)) == CompileOptions.of("cpu2", **pipeline)
    assert read_target(target(CompileOptions.of("cpu3"))) == CompileOptions.of("cpu3")
    with pytest.raises(InputError, match="cost_model is a function"):
        target("cpu2", cost_model=lambda graph, topology: None)
    with pytest.raises(InputError, match="parameters='external' is for"):
        target("cpu2", parameters="external")


def test_a_targets_name_takes_options_as_on_the_command_line():
    given = "--streams=opara --launch-order=opara --resident=0.5 --instances=2 --variants=false --cost-model=roofline"
    chosen = read_target(tvm.target.Target(f"tvm_sched/v100-server {given}"))
    assert chosen == CompileOptions.of(
        "v100-server",
        streams="opara",
        launch_order="opara",
        resident=0.5,
        instances=2,
        variants=False,
        cost_model="roofline",
    )
    assert read_target(tvm.target.Target("tvm_sched/v100-server --backend=cuda --graph")).graph is True
    assert read_target(tvm.target.Target("tvm_sched/cpu2/throughput --stages=2")).stages == 2
    paper = read_target(tvm.target.Target("tvm_sched/p4d/sortinghat"))
    assert (paper.scheduler, paper.cost_model, paper.streams, paper.variants) == ("sortinghat", "learned", "one", False)
    changed = tvm.target.Target('tvm_sched/p4d/sortinghat --options={"solver":"scip"} --launch-order=opara')
    assert read_target(changed) == CompileOptions.of(paper, options={"solver": "scip"}, launch_order="opara")
    for wrong, message in (
        ("cpu2 --streams=two", "streams is 'two'; allowed are one"),
        ("cpu2 --stream=one", "no option 'stream' of compilation"),
        ("cpu2 --topology=cpu3", "no option 'topology' of compilation"),
        ("cpu2 --measure=no", "measure is 'no'; true and false are allowed"),
        ("cpu2 --threads=two", "threads is 'two'; allowed are 1 to"),
        ("cpu2 --threads", "threads is True; allowed are 1 to"),
        ("", "there is no target 'tvm_sched/'"),
        ("cpu2/sorting", "there are tvm_sched/NAME and tvm_sched/NAME/throughput and tvm_sched/NAME/sortinghat for"),
        ("cpu2 opara", "'opara' in a target is not an option; options are written --name=value"),
        ("cpu2 --scheduler=fastest", "fastest"),
        ("cpu2 --parameters=external", "an executable of tvm.compile holds its parameters"),
    ):
        with pytest.raises(InputError, match=message):
            tvm.target.Target(f"tvm_sched/{wrong}")


def test_a_given_schedule_changes_as_far_as_is_asked():
    schedule = solve(overlapping(), method="single")
    for settings, expected in (
        ({}, []),
        ({"streams": "opara"}, [passes.AllocateStreams]),
        ({"launch_order": "opara"}, [passes.OrderLaunches]),
        ({"measure": True}, [passes.MeasureSchedules]),
    ):
        found = decision_passes(CompileOptions.of("cpu1", **settings), schedule=schedule)
        assert [type(each) for each in found] == [type(each) for each in (passes.Place(), *(e() for e in expected))]


def test_a_launch_order_of_no_streams_is_refused_where_schedules_are_measured():
    assert CompileOptions.of("cpu", streams="best", launch_order="opara").measuring
    with pytest.raises(InputError, match=r"launch_order 'opara' would have no effect.*name streams"):
        CompileOptions.of("cpu", launch_order="opara")


def test_passes_take_their_methods_from_the_options_of_the_target():
    problem = overlapping()
    schedule = solve(problem, method="single")
    mod = leave(tvm.IRModule({}), PROBLEM, problem)
    for streams, order in (("wavefront", "breadth-first"), ("one", "depth-first")):
        chosen = read_target(target("cpu2", streams=streams, launch_order=order))
        made = get_schedule(tvm.transform.Sequential(decision_passes(chosen, schedule=schedule))(mod))
        mod = leave(mod, SCHEDULE, schedule)
        expected = order_launches(problem, allocate_streams(problem, get_schedule(mod), streams), order)
        assert made.placements == expected.placements
        assert get_schedule(passes.AllocateStreams("opara")(mod)).placements != made.placements


def test_streams_of_a_name_need_costs_that_know_operators_together(monkeypatch):
    monkeypatch.delenv("TVM_SCHED_COSTS")
    problem = compile(small_model(batch=2), "v100-server", "single", streams="opara").problem
    assert problem.costs.source == "occupancy", "the default where streams are asked for"
    assert make_problem(small_model(batch=2), "v100-server").costs.source == "learned"
    for topology in ("cpu2", "v100-server"):
        with pytest.raises(
            InputError, match=r"streams of 'opara' would have no effect: the costs .* do not say how long"
        ):
            compile(small_model(batch=2), topology, "single", cost_model="roofline", streams="opara")
    assert compile(small_model(batch=2), "cpu2", "single", cost_model="roofline", streams="one").schedule


def test_options_change_options():
    options = CompileOptions.of("cpu2", scheduler="single")
    assert CompileOptions.of(options) is options
    measured = CompileOptions.of("cpu")
    assert CompileOptions.of(measured, threads=1).measuring, "its topology is still that of the name 'cpu'"
    assert not CompileOptions.of(measured, backend="emulated").measuring, "nobody asked for it"
    assert not dataclasses.replace(measured, topology="cpu2").measuring
    assert read_target(target(measured)).measuring
    assert CompileOptions.of(options, threads=1) == CompileOptions.of("cpu2", scheduler="single", threads=1)


def test_an_artifact_starts_with_its_run_options():
    options = CompileOptions.of("v100-server", scheduler="single", backend="emulated", resident=1.0)
    module = compile(small_model(batch=2), options).module
    assert module.info()["run"] == {"resident": 1.0}
    module.configure(trace=True)
    events = []
    for _ in range(2):
        module.run(np.zeros([int(d) for d in module.plans()[0]["arguments"][0]["shape"]], "float32"))
        events.append(len(module.timeline()["events"]))
    assert events[1] < events[0]  # its parameters are there


def test_a_wrong_run_option_in_a_module_is_refused():
    wrong = CompileOptions.of("cpu2", scheduler="single", resident=["nosuch"])
    with pytest.raises(ValueError, match='there is no parameter "nosuch"'):
        compile(small_model(batch=2), wrong)


def test_the_submodels_of_the_pass_are_those_that_a_scheduler_solves(monkeypatch):
    from tvm_sched.schedulers.common import submodels

    mod = tvm.transform.Sequential(problem_passes(CompileOptions.of("cpu2")))(cases.Branches)
    mod = passes.SplitByDominators(dominators=1, operators=3)(mod)
    monkeypatch.setattr(submodels, "split", lambda *_: pytest.fail("the scheduler split the graph anew"))
    mod = passes.Place("sortinghat", {"time_limit": 0.1})(mod)
    assert get_schedule(mod).options["operators"] == 3


def test_the_target_of_sortinghat_has_each_step_of_the_paper():
    options = read_target(tvm.target.Target('tvm_sched/v100-server/sortinghat --options={"time_limit":0.2}'))
    mod = tvm.transform.Sequential(problem_passes(options))(cases.Branches)
    assert get_problem(mod).costs.source == "learned"
    steps = decision_passes(options)
    assert [type(each) for each in steps] == [
        passes.SplitByDominators, passes.Place, passes.AllocateStreams, passes.OrderLaunches,
    ]  # fmt: skip
    assert (steps[0].dominators, steps[0].operators) == (passes.SplitByDominators().dominators, 48) == (1, 48)
    placed = tvm.transform.Sequential(steps[:2])(mod)
    schedule = get_schedule(placed)
    assert schedule.scheduler == "sortinghat"
    assert schedule.options["direct_contention"] is schedule.options["link_contention"] is True
    # One stream a device: the order is that of the programs.
    assert get_schedule(tvm.transform.Sequential(steps[2:])(placed)).placements == schedule.placements


def test_submodels_must_hold_each_operator_once():
    problem = random_problem(3, operators=6, devices=2, memory="generous")
    names = [problem.graph.operators[o].name for o in problem.graph.index.order]
    for wrong, message in (([names[:-1]], "each operator"), ([["x"]], "'x', which the problem does not have")):
        with pytest.raises(InputError, match=message):
            solve(problem, method="single", workload=Workload(submodels=wrong))


def overlapping():
    """Two independent kernels that a device runs at once without loss."""
    problem = random_problem(5, operators=8, devices=1, memory="generous")
    together = Concurrency(np.full((len(problem.graph.operators), 1, 1), 0.2))
    return Problem(
        problem.graph, problem.topology, Costs(problem.costs.operator_ns, problem.costs.direct_ns, concurrency=together)
    )


def test_streams_are_decided_in_their_pass_and_never_lose():
    problem = overlapping()
    placed = solve(problem, method="heft")
    chosen = best_launch_order(problem, best_streams(problem, placed))
    assert chosen.certificate.latency_ns <= placed.certificate.latency_ns
    mod = leave(leave(tvm.IRModule({}), PROBLEM, problem), SCHEDULE, placed)
    mod = tvm.transform.Sequential([passes.AllocateStreams(), passes.OrderLaunches()])(mod)
    assert get_schedule(mod) == chosen
    mod = passes.AllocateStreams("wavefront")(mod)
    assert len({placement.stream for placement in get_schedule(mod).placements}) > 1


def test_where_streams_have_no_effect_the_schedule_stays():
    problem = random_problem(5, operators=8, devices=2, memory="generous")
    placed = solve(problem, method="heft")
    assert best_streams(problem, placed) is placed
    assert best_launch_order(problem, placed) is placed


def test_a_schedule_that_breaks_a_rule_is_not_emitted():
    options = CompileOptions.of("cpu2", scheduler="single")
    mod = tvm.transform.Sequential([*problem_passes(options), *decision_passes(options)])(cases.Branches)
    schedule = get_schedule(mod)
    short = msgspec.structs.replace(schedule, placements=schedule.placements[:-1], certificate=None)
    broken = leave(mod, SCHEDULE, short)
    for first, others in ((broken, []), (mod, [broken])):  # the second of two input shapes is verified, too
        with pytest.raises(InputError, match="rule"):
            emit_passes(options, others)[0](first)
