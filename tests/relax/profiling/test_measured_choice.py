"""The choice of a schedule by measurement: what is tried, what is kept, when it is done at all."""

import json

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.blob_cache import choice_cache
from tvm_sched.execution_plan.steps import overlapping_devices
from tvm_sched.relax import compile, target
from tvm_sched.relax.options import CompileOptions
from tvm_sched.relax.profiling import measured_choice
from tvm_sched.relax.profiling.paired_runs import MARGIN, Comparison
from tvm_sched.relax.targets import read_target
from tvm_sched.report.compilation import BesideOneDevice
from tvm_sched.streams import allocate_streams, order_launches
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import load
from tvm_sched_runtime.schedule import ScheduleIndex

op = relax.op


def branches(width=4):
    """Branches of products that meet in a sum."""
    x = relax.Var("x", relax.TensorType((32, 64), "float32"))
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((64, 64)).astype("float32") / 8 for _ in range(2 * width)]
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = []
            for k in range(width):
                first = builder.emit(op.tanh(builder.emit(op.matmul(x, relax.const(weights[2 * k])))))
                parts.append(builder.emit(op.matmul(first, relax.const(weights[2 * k + 1]))))
            total = parts[0]
            for part in parts[1:]:
                total = builder.emit(op.add(total, part))
            result = builder.emit_output(op.nn.softmax(total))
        builder.emit_func_output(result)

    def expected(value):
        scores = sum(np.tanh(value @ weights[2 * k]) @ weights[2 * k + 1] for k in range(width))
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)

    return builder.get(), np.linspace(-1, 1, 32 * 64, dtype="float32").reshape(32, 64), expected


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setenv("TVM_SCHED_NUM_THREADS", "2")


def decide(monkeypatch, times, quiet=True, close=0.0):
    """Comparisons come out as ``times`` say: seconds of the schedule that is held, and of the next.

    Those that took up to ``close`` times as long as the fastest are compared again. Kernels have given times, too, since
    on a busy machine measured ones may say that nothing gains by running in parallel, and then there is no such candidate.
    """
    left = iter(times)

    measure = measured_choice.MeasuredChoice.times_of_kernels

    def kernel_times(choice, problem, schedule, share):
        times, _ = measure(choice, problem, schedule, share)  # they run
        return np.full_like(times, 10_000.0 if share == (1, 1) else 12_000.0), 1_000.0

    monkeypatch.setattr(measured_choice.MeasuredChoice, "times_of_kernels", kernel_times)
    monkeypatch.setattr(measured_choice, "CLOSE", close)
    monkeypatch.setattr(measured_choice, "OPEN", np.inf)

    def compare(first, second, seconds):
        assert first(0.0)  # they run
        assert second(0.0)
        held, found = next(left)
        return Comparison(held, found, found < held * (1 - MARGIN), quiet)

    monkeypatch.setattr(measured_choice, "compare", compare)
    monkeypatch.setattr(measured_choice, "SECONDS", 0.01)
    monkeypatch.setattr(measured_choice, "MOST_COMPARING", np.inf)  # a busy machine prepares the candidates slowly


NAMES = ["one stream", "in parallel", "one of N devices", "logical devices"]


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ([(1.0, 0.99), (1.0, 1.5), (1.0, 0.985)], "one stream"),  # not faster by more than the margin
        ([(1.0, 0.9), (0.9, 1.5), (0.9, 1.0)], "in parallel"),
        ([(1.0, 0.9), (0.9, 0.8), (0.8, 0.9)], "one of N devices"),
        ([(1.0, 1.2), (1.0, 1.1), (1.0, 0.7)], "logical devices"),
    ],
)
def test_the_fastest_is_kept_and_one_stream_where_nothing_is_faster(monkeypatch, two_cores, times, chosen):
    decide(monkeypatch, times)
    mod, x, expected = branches()
    compiled = compile(mod, "cpu", "single")
    said = compiled.schedule.notes["measured"]
    assert said["chosen"] == chosen
    assert [row["schedule"] for row in said["measured"]] == NAMES
    assert said["measured"][0]["seconds"] == 1.0
    assert compiled.schedule.problem == compiled.problem.digest
    assert len(compiled.problem.topology.devices) == (2 if "devices" in chosen else 1)
    assert any(placement.stage for placement in compiled.schedule.placements) == (chosen == "in parallel")
    np.testing.assert_allclose(compiled.run(x), expected(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("again", "chosen"),
    [
        ([(0.96, 1.0), (0.96, 1.1)], "in parallel"),
        ([(1.2, 1.0), (1.2, 1.3)], "one stream"),  # slower than it by 1.2 then, and faster by 4 % before
        ([(0.96, 1.0), (1.0, 0.7)], "logical devices"),
    ],
)
def test_what_came_close_is_looked_at_again(monkeypatch, two_cores, again, chosen):
    decide(monkeypatch, [(1.0, 0.96), (0.96, 1.5), (0.96, 1.0), *again], close=1.5)
    said = compile(branches()[0], "cpu", "single").schedule.notes["measured"]
    assert said["chosen"] == chosen
    assert [row["schedule"] for row in said["measured"]] == [*NAMES, "one stream", "logical devices"]
    assert said["measured"][-1]["beside"] == "in parallel, again"


def test_what_is_predicted_to_be_far_slower_is_not_run(monkeypatch, two_cores):
    decide(monkeypatch, [(1.0, 1.2)])
    monkeypatch.setattr(measured_choice, "OPEN", 0.0)
    said = compile(branches()[0], "cpu", "single").schedule.notes["measured"]
    assert [row["schedule"] for row in said["measured"]] == NAMES[:2]


def test_no_comparison_begins_after_the_limit(monkeypatch, two_cores):
    decide(monkeypatch, [(1.0, 1.01)], close=1.5)
    monkeypatch.setattr(measured_choice, "MOST_COMPARING", -1.0)
    said = compile(branches()[0], "cpu", "single").schedule.notes["measured"]
    assert said["chosen"] == "one stream"
    assert [row["schedule"] for row in said["measured"]] == NAMES[:2]


def test_the_artifact_says_what_was_measured(monkeypatch, two_cores, tmp_path):
    decide(monkeypatch, [(1.0, 0.9), (0.9, 1.5), (0.9, 1.0)])
    mod, x, expected = branches()
    compile(mod, "cpu1", "single", measure=True).export(tmp_path / "m.so")
    loaded = load(tmp_path / "m.so")
    (plan,) = loaded.info()["plans"]
    assert plan["measured"]["chosen"] == "in parallel"
    assert plan["measured"]["cores"] == 2
    np.testing.assert_allclose(loaded.run(x)[0], expected(x), rtol=1e-4, atol=1e-6)


def test_the_schedule_that_was_asked_for_is_tried_too(monkeypatch, two_cores):
    decide(monkeypatch, [(1.0, 1.1), (1.0, 1.1), (1.0, 1.1), (1.0, 0.5)])
    compiled = compile(branches()[0], "cpu2", "heft", measure=True)
    said = compiled.schedule.notes["measured"]
    assert said["chosen"] == "heft on cpu2"
    assert compiled.schedule.scheduler == "heft"


def test_an_option_that_ios_does_not_have_is_no_reason_to_leave_it_out(monkeypatch, two_cores):
    decide(monkeypatch, [(1.0, 1.1)] * 3)
    right = measured_choice.solve
    monkeypatch.setattr(
        measured_choice,
        "solve",
        lambda p, method, options=None: right(p, method=method, options=options and {**options, "blocc": 0}),
    )
    with pytest.raises(InputError, match="blocc"):
        compile(branches()[0], "cpu", "single")


def test_streams_of_the_allocators_are_tried_where_the_best_are_asked_for(monkeypatch, two_cores):
    decide(monkeypatch, [(1.0, 1.1), (1.0, 1.1), (1.0, 1.1), (1.0, 0.5), (0.5, 0.6), (0.5, 0.6)])
    mod, x, expected = branches()
    compiled = compile(mod, "cpu", "single", streams="best")
    said = compiled.schedule.notes["measured"]
    assert said["chosen"] == "streams of opara"
    assert [row["schedule"] for row in said["measured"]][:5] == [*NAMES, "streams of opara"]
    assert len({placement.stream for placement in compiled.schedule.placements}) > 1
    np.testing.assert_allclose(compiled.run(x), expected(x), rtol=1e-4, atol=1e-6)


def test_streams_of_a_name_are_taken_with_measured_latencies(monkeypatch, two_cores):
    decide(monkeypatch, [])
    mod, x, expected = branches()
    compiled = compile(mod, "cpu", "single", streams="wavefront", launch_order="breadth-first")
    problem, schedule = compiled.problem, compiled.schedule
    assert schedule.notes["measured"]["chosen"] == "streams of wavefront"
    assert schedule.notes["measured"]["measured"] == []
    assert problem.costs.source == "measured"
    expected_streams = allocate_streams(problem, schedule, "wavefront")
    assert schedule.placements == order_launches(problem, expected_streams, "breadth-first").placements
    assert overlapping_devices(problem, ScheduleIndex.of(problem, schedule)) == {0}, "they are queues of the executor"
    np.testing.assert_allclose(compiled.run(x), expected(x), rtol=1e-4, atol=1e-6)


def test_one_core_leaves_nothing_to_choose(monkeypatch):
    monkeypatch.setenv("TVM_SCHED_NUM_THREADS", "1")
    mod, x, expected = branches()
    compiled = compile(mod, "cpu", "single")
    assert compiled.schedule.notes["measured"]["chosen"] == "one stream"
    np.testing.assert_allclose(compiled.run(x), expected(x), rtol=1e-4, atol=1e-6)


def test_running_concurrently_gives_each_stream_a_share_of_the_cores(monkeypatch, two_cores):
    described = []
    made = measured_choice.make_runnable

    def spy(*arguments):
        module = made(*arguments)
        described.append(module)
        return module

    monkeypatch.setattr(measured_choice, "make_runnable", spy)
    decide(monkeypatch, [(1.0, 0.9), (0.9, 1.5), (0.9, 1.0)])
    compile(branches()[0], "cpu", "single")
    queues = [module.plans()[0]["queues"] for module in described]
    assert [len(q) for q in queues[:3]] == [1, 1, 1], "kernels are measured one after another"
    assert len(queues[3]) > 1


@pytest.mark.parametrize(
    ("topology", "backend", "asked", "expected"),
    [
        ("cpu", None, None, True), ("cpu", "cpu", None, True), ("cpu", "emulated", None, False),
        ("cpu", None, False, False), ("cpu2", None, None, False), ("cpu2", None, True, True),
        ("v100-server", None, None, False),
    ],
)  # fmt: skip
def test_by_default_only_the_topology_cpu_is_measured(topology, backend, asked, expected):
    assert CompileOptions.of(topology, backend=backend, measure=asked).measuring is expected


def test_what_cannot_be_measured_is_refused():
    mod, _, _ = branches(1)
    with pytest.raises(InputError, match="'gpu1' of topology 'v100-server' is not a CPU"):
        compile(mod, "v100-server", "single", measure=True)
    with pytest.raises(InputError, match="backend is 'emulated'"):
        compile(mod, "cpu2", "single", backend="emulated", measure=True)


def test_targets_say_whether_to_measure(monkeypatch, two_cores):
    assert read_target(target("cpu")).measuring is True
    assert read_target(target("cpu", measure=False)).measuring is False
    assert read_target(target("cpu2")).measuring is False
    assert read_target(tvm.target.Target("tvm_sched/cpu")).measuring is True
    decide(monkeypatch, [(1.0, 0.9), (0.9, 1.5), (0.9, 1.0)])
    mod, x, expected = branches()
    executable = tvm.compile(mod, target=target("cpu", "single"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(x)).numpy(), expected(x), rtol=1e-4, atol=1e-6)
    (found,) = [m for m in executable.mod.imports if m.kind == "tvm_sched"]
    assert json.loads(found["info"]())["plans"][0]["measured"]["chosen"] == "in parallel"


def test_a_busy_machine_gives_no_word_for_what_leaves_cores_idle(monkeypatch, two_cores):
    decide(monkeypatch, [(1.0, 1.1), (1.0, 0.5), (1.0, 1.1)], quiet=False)
    assert compile(branches()[0], "cpu", "single").schedule.notes["measured"]["chosen"] == "one stream"


def test_a_choice_is_kept_for_the_same_kernels_in_the_same_graph(monkeypatch, two_cores, tmp_path):
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path))
    monkeypatch.setattr(measured_choice.OtherLoad, "share", lambda self: 0.0)
    mod, value, expected = branches()
    decide(monkeypatch, [(1.0, 0.5), (1.0, 2.0), (1.0, 2.0), (1.0, 2.0)])
    first = compile(mod, "cpu", name="first")
    decide(monkeypatch, [])
    second = compile(mod, "cpu", name="second")
    assert second.problem.graph.name == "second"
    assert second.schedule.notes["measured"] == first.schedule.notes["measured"]
    assert second.schedule.placements == first.schedule.placements
    assert np.allclose(second.run(value), expected(value), atol=1e-5)
    decide(monkeypatch, [(1.0, 2.0)] * 4)
    other = compile(branches(width=3)[0], "cpu")
    assert other.schedule.notes["measured"] != first.schedule.notes["measured"]


def test_a_choice_on_a_busy_machine_is_not_kept(monkeypatch, two_cores, tmp_path):
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path))
    monkeypatch.setattr(measured_choice.OtherLoad, "share", lambda self: 1.0)
    decide(monkeypatch, [(1.0, 0.5), *[(1.0, 2.0)] * 3])
    compile(branches()[0], "cpu")
    assert choice_cache().contents() == (0, 0)


@pytest.mark.parametrize(
    ("found", "quiet", "said"),
    [
        (0.5, True, "500 ms measured, 1.00 s on one device"),
        (1.1, True, "no gain on this machine; the artifact runs the schedule over several devices; -t cpu measures"),
        (1.1, False, "does not tell which is faster; the artifact runs the schedule over several devices"),
    ],
)
def test_a_schedule_over_logical_devices_is_measured_beside_one(monkeypatch, two_cores, found, quiet, said):
    decide(monkeypatch, [(1.0, found)], quiet=quiet)
    compiled = compile(branches()[0], "cpu2", "heft", compare=True)
    assert len({placement.device for placement in compiled.schedule.placements}) == 2
    (comparison,) = compiled.comparisons
    assert (comparison.first, comparison.second, comparison.quiet) == (1.0, found, quiet)
    assert said in str(BesideOneDevice.of(comparison))


@pytest.mark.parametrize(
    ("topology", "scheduler", "measure"), [("cpu2", "single", None), ("cpu1", "single", None), ("cpu", "single", True)]
)
def test_what_uses_one_device_or_was_measured_is_not_compared(monkeypatch, two_cores, topology, scheduler, measure):
    decide(monkeypatch, [(1.0, 2.0)] * 4)
    compiled = compile(branches(1)[0], topology, scheduler, measure=measure, compare=True)
    assert compiled.comparisons == (None,)
    assert compile(branches(1)[0], "cpu2", "single").comparisons == ()


@pytest.mark.parametrize(("seconds_of_a_run", "runs"), [(3.0, 1), (0.01, 5)])
def test_a_turn_of_a_slow_model_is_one_run(monkeypatch, seconds_of_a_run, runs):
    class Module:
        now = count = 0.0

        def plans(self):
            return [{"arguments": []}]

        def run(self):
            self.now += seconds_of_a_run
            self.count += 1

    module = Module()
    monkeypatch.setattr(measured_choice.time, "perf_counter", lambda: module.now)
    runner = measured_choice.Runner(module)
    assert module.count == (1 if runs == 1 else 3)
    times = runner(0.045)
    assert times == pytest.approx([seconds_of_a_run] * runs)
