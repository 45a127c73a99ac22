"""Kernels that are measured when a model is compiled: with times of the test's own, so that no timing decides."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from tvm_sched.cost_model import CostWarning, calibrated, default_cost_model, roofline
from tvm_sched.cost_model.calibrated_model import CALL_SECONDS, call_seconds, calls_key
from tvm_sched.cost_model.database import Database
from tvm_sched.cost_model.profile import Measurement, this_machine
from tvm_sched.problem_sources import SourceOptions, load_problem
from tvm_sched.relax import compile, first_use, make_problem
from tvm_sched.relax.codegen.cpu import kernel_objects
from tvm_sched.relax.profiling import calibration
from tvm_sched.relax.profiling.other_load import OtherLoad
from tvm_sched.relax.profiling.random_networks import random_networks
from tvm_sched.relax.profiling.typical_layers import typical_layers
from tvm_sched.relax.toolchain.compile_target import CompileTarget
from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.problem import load_topology


@pytest.fixture(scope="module")
def networks():
    return random_networks(2)


@pytest.fixture
def timer(monkeypatch, tmp_path):
    """Each operator takes twice its position in microseconds, times a factor, and in one run more; counts its calls."""

    class Timer:
        asked = 0
        factor = 1.0
        call = 10e-6
        load = 0.0

        def __call__(self, module, operators, seconds, samples):
            self.asked += 1
            once = np.arange(1, len(operators) + 1) * 1e-6 * self.factor
            kernels, calls = once * np.array([[1.9], [2.0], [2.0], [9.0], [2.1]]), np.full(5, self.call)
            return calibration.RunTimes(kernels, calls, kernels.sum(axis=1) + calls)

    found = Timer()
    monkeypatch.setattr(calibration, "kernel_times", found)
    monkeypatch.setattr(OtherLoad, "share", lambda self: found.load)
    kernels = kernel_objects.kernel_cache()  # compiled ones are the session's; the database of times is the test's own
    monkeypatch.setattr(kernel_objects, "kernel_cache", lambda used: kernels)
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path))
    monkeypatch.delenv("TVM_SCHED_COSTS")
    return found


def problem_of(network, topology="cpu1", **options):
    return make_problem(network, topology, name="net", **options)


def test_the_median_of_each_kernel_and_equal_kernels_alike(networks, timer):
    problem = problem_of(networks["convolutional0"])
    assert problem.costs.source == "calibrated"
    count = len(problem.graph.operators)
    found = problem.costs.operator_ns[:, 0]
    own = 2000 * np.arange(1, count + 1)
    own[problem.graph.index.order[0]] += 10_000  # the call
    assert (found == own).sum() > count // 2, "most kernels occur once"
    assert found.sum() == pytest.approx(own.sum(), abs=count), "the others have the mean of their calls, in whole ns"


def test_kernels_add_up_to_the_median_run_although_each_run_has_another_slow_kernel():
    runs = calibration.RunTimes(np.ones((4, 4)) + 2 * np.eye(4), np.zeros(4), np.full(4, 6.0))
    assert np.median(runs.kernels, axis=0).sum() == 4
    assert runs.medians().tolist() == [1.5] * 4


def test_interruptions_of_one_thread_do_not_count():
    least, long = np.array([0.1e-3, 0.2e-3, 6.5e-3]), calibration.SLICE
    interrupted = least + np.array([[0.0, 0.9e-3, 0.0], [0.4e-3, 0.0, 0.0]])
    busy = np.array([6.9e-3, 6.9e-3])

    def found(more):
        runs = calibration.RunTimes(interrupted + np.array([0.0, 0.0, more]), np.array([0.1e-3, 0.3e-3]), busy)
        return runs.without_interruptions()

    for more in (
        0.0,
        4e-3,
    ):  # 6.9 ms are 6.8 of kernels and 0.1 of the call, though every run interrupted the long kernel
        kernels, call = found(more)
        assert kernels == pytest.approx(least)
        assert call == pytest.approx(0.1e-3)
    kernels, call = found(-5e-3)
    assert kernels.sum() + call == pytest.approx(6.9e-3)
    assert call > 0.1e-3, "the call is longer, too, where processor time is"
    assert found(long - 6.5e-3)[0][0] > least[0], "all are longer where processor time is"


def test_times_of_a_short_model_are_those_without_a_trace():
    runs = calibration.RunTimes(np.array([[20e-6, 30e-6], [60e-6, 60e-6]]), np.array([10e-6, 20e-6]), np.zeros(2))
    found = runs.without_trace(np.array([50e-6, 48e-6, 90e-6]), np.array([45e-6, 46e-6, 47e-6]))
    assert found.kernels[0].tolist() == pytest.approx([16e-6, 24e-6]), "48 us in place of 60"
    assert found.calls[0] == pytest.approx(8e-6)
    assert found.busy.tolist() == [45e-6, 46e-6]
    slower = runs.without_trace(np.full(2, 1.0), np.full(2, 1.0))
    assert slower.kernels.tolist() == runs.kernels.tolist(), "a trace makes no run shorter"


def test_the_call_is_part_of_the_first_kernel_and_serves_models_of_other_shapes(networks, timer):
    without = problem_of(networks["convolutional0"])
    first = without.graph.index.order[0]
    Database().clear()
    timer.call = 40e-6
    found = problem_of(networks["convolutional0"])
    more = (found.costs.operator_ns - without.costs.operator_ns)[:, 0]
    assert more[first] == 30_000
    assert more.sum() == 30_000
    assert problem_of(networks["convolutional0"]).costs == found.costs, "the call's time is kept, too"
    calls = Database().read(this_machine(), calls_key(default_threads("cpu1")))
    assert [row.seconds for row in calls.values()] == [40e-6]
    other = make_problem(networks["transformer1"], "cpu1", cost_model="roofline", name="net").graph
    assert call_seconds(other, {}) == CALL_SECONDS
    one, pair = "call|0|a float32[1]|float32[1]", "call|0|a float32[1];a float32[1]|float32[1]"
    for seconds in (20e-6, 40e-6):
        assert call_seconds(other, {one: Measurement(one, in_run=seconds)}) == seconds
    assert call_seconds(other, {pair: Measurement(pair, in_run=20e-6)}) == CALL_SECONDS, (
        "one with more tensors does not"
    )
    large = "call|0|a float32[1000000]|float32[1000000]"
    moved = sum(tensor.size for tensor in other.tensors if tensor.kind == "input" or tensor.name in other.outputs)
    assert call_seconds(other, {large: Measurement(large, in_run=825e-6)}) == pytest.approx(
        CALL_SECONDS + moved * 1e-10
    )


@pytest.mark.thorough
def test_nothing_is_measured_twice_and_times_stay(networks, timer):
    first = problem_of(networks["convolutional0"])
    timer.factor = 5.0
    assert problem_of(networks["convolutional0"]).costs == first.costs
    assert timer.asked == 1
    problem_of(networks["convolutional0"], "cpu2")
    assert timer.asked == 2 or default_threads("cpu2") == default_threads("cpu1")
    problem_of(networks["transformer1"])
    assert timer.asked >= 2, "another model's kernels"


def default_threads(name):
    return max(this_machine().cores // len(load_topology(name).devices), 1)


def test_what_is_measured_beside_other_work_is_measured_again_when_it_is_quiet(networks, timer):
    timer.load = 1.5
    busy = problem_of(networks["convolutional0"])
    once = 1000 * np.arange(1, len(busy.graph.operators) + 1).sum()
    factor = 2.0 if default_threads("cpu1") == 1 else 1.9  # processor time of the median run, or the least times
    assert busy.costs.operator_ns.sum() == pytest.approx(factor * once + 10_000, rel=1e-3)
    assert problem_of(networks["convolutional0"]).costs == busy.costs
    assert timer.asked == 1, "as long as the machine is busy, the times stay"
    timer.load, timer.factor, timer.call = 0.0, 0.5, 5e-6
    quiet = problem_of(networks["convolutional0"])
    assert timer.asked == 2
    assert quiet.costs.operator_ns.sum() == pytest.approx(2.0 * once / 2 + 5000, rel=1e-3), "the median"
    assert problem_of(networks["convolutional0"]).costs == quiet.costs


def test_a_kernel_that_computes_otherwise_is_another(networks, timer, monkeypatch):
    problem_of(networks["convolutional0"])
    monkeypatch.setattr(calibration, "compiler_digest", lambda: "another version")
    problem_of(networks["convolutional0"])
    assert timer.asked == 2


def test_intervals_hold_the_times(networks, timer):
    costs = problem_of(networks["convolutional0"]).costs
    assert (costs.uncertainty.low_ns <= costs.operator_ns).all()
    assert (costs.operator_ns < costs.uncertainty.high_ns).all()
    assert not costs.uncertainty.far.any()


def test_typical_layers_are_measured_once_for_a_processor(networks, timer, monkeypatch):
    monkeypatch.setattr(first_use, "typical_layers", lambda: iter(networks.items()))
    topology = load_topology("cpu1")
    first_use.calibrate_once(topology)
    assert timer.asked == 2
    rows = Database().read(this_machine(), f"cpu, {default_threads('cpu1')} threads")
    assert len(rows) > 20
    first_use.calibrate_once(topology)
    assert timer.asked == 2, "they are kept"
    Database().clear()
    monkeypatch.setattr(first_use, "SECONDS", -1.0)
    first_use.calibrate_once(topology)
    assert timer.asked == 2, "no network is begun after the time is spent"


def test_without_a_database_nothing_is_calibrated(networks, timer, tmp_path):
    with closing(sqlite3.connect(tmp_path / "measurements.sqlite")) as connection:
        connection.execute("create table measurement (foreign_column text)")
    with pytest.warns(CostWarning, match="cannot be used.*; this processor is not calibrated"):
        first_use.calibrate_once(load_topology("cpu1"))
    assert timer.asked == 0, "since the times could not be kept"


@pytest.mark.thorough
def test_a_graph_without_kernels_is_predicted_from_typical_layers(networks, timer, monkeypatch, tmp_path):
    monkeypatch.setattr(first_use, "typical_layers", lambda: iter([("transformer", networks["transformer1"])]))
    file = tmp_path / "net.problem.json"
    make_problem(networks["convolutional0"], "v100-server", cost_model="roofline", name="net").save(file)
    with pytest.warns(CostWarning, match="distinct kernels of 'net' were not measured"):
        found = load_problem([file], "cpu1", SourceOptions(), lambda *_: None)
    assert timer.asked == 1
    assert found.costs.source == "calibrated"


def test_typical_layers_compile():
    mods = dict(typical_layers())
    assert list(mods)[:3] == ["small images", "products", "large images"]
    kinds = " ".join(str(mods[name]) for name in ("small images", "recurrent"))
    assert "conv2d" in kinds
    assert "lstm_layer" in kinds


@pytest.mark.slow
def test_without_kernels_the_measured_ones_serve(networks, timer):
    problem = problem_of(networks["convolutional0"])
    with pytest.warns(CostWarning, match="distinct kernels of 'net' were not measured"):
        other = make_problem(networks["transformer1"], "cpu1", cost_model=calibrated, name="net")
    assert (other.costs.operator_ns > 0).all()
    again = calibrated(problem.graph, problem.topology)
    assert np.array_equal(again.operator_ns, problem.costs.operator_ns)


def test_a_model_that_fails_on_random_values_is_predicted(networks, timer, monkeypatch):
    def fails(*_):
        raise ExecutionError("index 7 is out of range")

    monkeypatch.setattr(calibration, "kernel_times", fails)
    with pytest.warns(CostWarning, match="could not be measured and are predicted: index 7"):
        problem = problem_of(networks["convolutional0"])
    assert (problem.costs.operator_ns > 0).all()


def test_instructions_that_are_not_here_are_not_run(networks, timer, monkeypatch):
    monkeypatch.setattr(CompileTarget, "runs_here", lambda _: False)
    with pytest.warns(CostWarning, match="this machine lacks instructions"):
        problem_of(networks["convolutional0"])
    assert timer.asked == 0


def test_code_for_another_processor_is_measured_by_itself(networks, timer):
    problem_of(networks["convolutional0"])
    problem_of(networks["convolutional0"], processor="x86-64-v2")
    assert timer.asked == 2


def test_a_database_that_cannot_be_used_is_said_and_does_no_harm(networks, timer, tmp_path):
    with closing(sqlite3.connect(tmp_path / "measurements.sqlite")) as connection:
        connection.execute("create table measurement (foreign_column text)")
    with pytest.warns(CostWarning, match="cannot be used"):
        problem = problem_of(networks["convolutional0"])
    assert problem.costs.operator_ns.sum() > 0


def test_which_topologies_are_measured(timer, monkeypatch):
    assert [default_cost_model(load_topology(name)) for name in ("cpu", "cpu1", "cpu4", "v100-server")] == [
        "calibrated", "calibrated", "calibrated", "learned",
    ]  # fmt: skip
    monkeypatch.setenv("TVM_SCHED_COSTS", "learned")
    assert default_cost_model(load_topology("cpu2")) == "learned"


def test_gpus_are_refused(networks, timer):
    with pytest.raises(InputError, match="measures this machine's cores only"):
        make_problem(networks["convolutional0"], "v100-server", cost_model="calibrated")


def test_the_roofline_is_there_by_name(networks, timer):
    problem = make_problem(networks["convolutional0"], "cpu1", cost_model="roofline")
    assert problem.costs == roofline(problem.graph, problem.topology)
    assert timer.asked == 0


def test_times_of_a_run_make_up_its_latency(networks, tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "SECONDS", 0.05)
    compiled = compile(networks["convolutional0"], "cpu1", "single", cost_model="calibrated")
    rows = Database().read(this_machine(), f"cpu, {default_threads('cpu1')} threads").values()
    assert rows
    assert all(row.content and row.in_run > 0 for row in rows)
    names = [operator.name for operator in compiled.problem.graph.operators]
    monkeypatch.setattr(calibration, "SHORT", 0.0)  # times of short runs are scaled to runs without a trace
    times = calibration.kernel_times(compiled.module, names, 0.05)
    timeline = compiled.module.timeline()
    begin = min(row["start_ns"] for row in timeline["events"])
    end = max(row["end_ns"] for row in timeline["events"])
    assert times.kernels.shape == (len(times.calls), len(names))
    assert (times.calls > 0).all()
    assert times.kernels[-1].sum() == pytest.approx((end - begin) / 1e9, rel=0.05), "the last run is the timeline's"
