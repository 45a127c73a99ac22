"""The executor through Python: values, types, choice of plan, errors, options, serialisation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from runtime_plans import PlanBuilder, add_and_double, in_threads

from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.runtime import LatencyStatistics, ScheduledModule, make_module, to_numpy, to_tensor

ONES = np.ones(4, "float32")
X = np.arange(4, dtype="float32")


def test_run_over_two_devices():
    module = add_and_double().module({"w": ONES}, scheduler="by hand")
    (out,) = module.run(X)
    np.testing.assert_array_equal(out, 2 * (X + 1))
    assert module.info() == {"scheduler": "by hand"}
    assert module.plans()[0]["name"] == "plan"
    assert module.latency() > 0


def test_results_of_earlier_runs_stay():
    module = add_and_double().module({"w": ONES})
    first = module.run(X)[0]
    second = module.run(10 * X)[0]
    np.testing.assert_array_equal(first, 2 * (X + 1))
    np.testing.assert_array_equal(second, 2 * (10 * X + 1))


def test_inputs_by_name():
    module = add_and_double().module({"w": ONES})
    np.testing.assert_array_equal(module.run(x=X)[0], module.run(X)[0])
    with pytest.raises(InputError, match=r"not known: \['z'\]; missing: \['x'\]"):
        module.run(z=X)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bfloat16"])
@pytest.mark.parametrize("shape", [[], [1], [0, 3], [2, 3, 5]])
def test_types_and_shapes(dtype, shape):
    builder = PlanBuilder()
    x, here, out = builder.argument("x", shape, dtype), builder.arena(1, shape, dtype), builder.output(shape, dtype)
    first = builder.copy(x, here)
    builder.kernel(1, "tvm_sched.test.add", [here, here], [out], [first])
    values = np.asarray(np.random.default_rng(0).integers(0, 9, shape)).astype(
        np.dtype(getattr(ml_dtypes, dtype, dtype))
    )
    (result,) = builder.module().run(values)
    assert result.dtype == values.dtype
    assert result.shape == tuple(shape)
    np.testing.assert_array_equal(result, values + values)


def test_booleans():
    builder = PlanBuilder()
    x, out = builder.argument("x", [3], "bool"), builder.output([3], "bool")
    builder.kernel(0, "tvm_sched.test.not", [x], [out])
    (result,) = builder.module().run(np.array([True, False, True]))
    assert result.dtype == bool
    assert result.tolist() == [False, True, False]


def test_inputs_need_not_be_compact_or_aligned():
    builder = PlanBuilder()
    x, out = builder.argument("x", [3, 4]), builder.output([3, 4])
    builder.kernel(0, "tvm_sched.test.negate", [x], [out])
    module = builder.module()
    base = np.random.default_rng(0).standard_normal((8, 9, 7)).astype("float32")
    misaligned = np.frombuffer(base.tobytes(), "float32", 12, 4 * 3).reshape(3, 4)
    for view in (
        base[1, :3, :4],
        base[:3, 2, ::-2][:, :4],
        base[:4, :3, 1].T,
        misaligned,
        base[::2, ::3, 1][:3].repeat(2, 1)[:, :4],
    ):
        np.testing.assert_array_equal(module.run(view)[0], -view)


def test_several_outputs_and_an_input_that_is_an_output():
    builder = PlanBuilder()
    x = builder.argument("x", [4])
    passed, negated, again = builder.output([4]), builder.output([4]), builder.output([4])
    builder.copy(x, passed)
    first = builder.kernel(0, "tvm_sched.test.negate", [x], [negated])
    builder.copy(negated, again, [first])
    outputs = builder.module().run(X)
    assert len(outputs) == 3
    for result, expected in zip(outputs, (X, -X, -X), strict=True):
        np.testing.assert_array_equal(result, expected)
    outputs[0][0] = 7
    assert X[0] == 0


def test_no_outputs():
    builder = PlanBuilder()
    builder.argument("x", [4])
    assert builder.module().run(X) == []


def test_packed_functions_return_their_results():
    builder = PlanBuilder()
    x = builder.argument("x", [2, 3])
    one, two = builder.output([2, 3]), builder.output([3, 2])
    builder.kernel(0, "tvm_sched.test.packed", [x], [one, two], calling="packed")
    values = np.arange(6, dtype="float32").reshape(2, 3)
    first, second = builder.module().run(values)
    np.testing.assert_array_equal(first, values + 1)
    np.testing.assert_array_equal(second, values.T * 2)


def test_packed_functions_must_return_what_the_plan_says():
    builder = PlanBuilder()
    x, out = builder.argument("x", [2, 3]), builder.output([2, 3])
    builder.kernel(0, "tvm_sched.test.packed", [x], [out], calling="packed")
    with pytest.raises(ExecutionError, match=r'operator "op0".*returned 2 tensors, expected 1'):
        builder.module().run(np.zeros((2, 3), "float32"))


def test_plan_is_chosen_by_shape():
    small, large = add_and_double(name="small", size=4).plan, PlanBuilder("large")
    x, out = large.argument("x", [8]), large.output([8])
    large.kernel(0, "tvm_sched.test.negate", [x], [out])
    module = ScheduledModule(make_module([small, large.plan], {}, {"w": ONES}))
    np.testing.assert_array_equal(module.run(X)[0], 2 * (X + 1))
    wide = np.arange(8, dtype="float32")
    np.testing.assert_array_equal(module.run(wide)[0], -wide)
    with pytest.raises(InputError) as error:
        module.run(np.zeros(5, "float32"))
    for part in ("(float32[5])", 'plan "small": (x: float32[4])', 'plan "large": (x: float32[8])'):
        assert part in str(error.value)
    with pytest.raises(InputError, match="float64"):
        module.run(np.zeros(4))
    with pytest.raises(InputError, match="no plan of this module"):
        module.run()


def test_a_plan_is_called_by_its_name():
    small, large = add_and_double(name="small", size=4).plan, PlanBuilder("large one")
    x, out = large.argument("x", [8]), large.output([8])
    large.kernel(0, "tvm_sched.test.negate", [x], [out])
    module = make_module([small, large.plan], {}, {"w": ONES})
    wide = to_tensor(np.arange(8, dtype="float32"))
    np.testing.assert_array_equal(to_numpy(module["tvm_sched.main:large one"](wide)), -to_numpy(wide))
    with pytest.raises(ValueError, match='it has\n  plan "small"') as error:
        module["tvm_sched.main:small"](wide)
    assert "large one" not in str(error.value)
    with pytest.raises(AttributeError, match=r"tvm_sched\.main:none"):
        module["tvm_sched.main:none"]


def test_error_in_a_kernel_names_operator_and_device_and_the_next_run_works():
    builder = add_and_double(function="tvm_sched.test.sometimes")
    broken = True

    def sometimes(a, b, out):
        if broken:
            raise ValueError("no luck")
        np.from_dlpack(out)[...] = np.from_dlpack(a) + np.from_dlpack(b)

    tvm_ffi.register_global_func("tvm_sched.test.sometimes", sometimes, override=True)
    module = builder.module({"w": ONES})
    for _ in range(5):
        broken = True
        with pytest.raises(
            ExecutionError, match=r'operator "op0" \(step 0, queue "cpu0", device "cpu0"\) failed: no luck'
        ):
            module.run(X)
        # Those who call the module without the handle get the kernel's own kind of error.
        with pytest.raises(ValueError, match='operator "op0"'):
            module.module["main"](tvm_ffi.from_dlpack(X))
        with pytest.raises(RuntimeError, match="the last run failed"):
            module.latency()
        broken = False
        np.testing.assert_array_equal(module.run(X)[0], 2 * (X + 1))


def test_missing_function_names_operator_and_function():
    module = add_and_double(function="tvm_sched.test.not_there").module({"w": ONES})
    with pytest.raises(ExecutionError, match=r'operator "op0".*calls the function "tvm_sched.test.not_there"'):
        module.run(X)


def test_wrong_arguments():
    module = add_and_double().module({"w": ONES})
    with pytest.raises(TypeError, match="argument 0 of main is int"):
        module.module["main"](3)
    with pytest.raises(TypeError, match=r"set_parameter\(name, tensor\) takes 2 arguments, got 0"):
        module.module["set_parameter"]()


def test_wrong_plans():
    with pytest.raises(ValueError, match=r"\$\[0\]: field \"format\" is missing"):
        make_module([{}], {})
    builder = add_and_double()
    with pytest.raises(ValueError, match='there is no parameter "v"; this module has "w"'):
        builder.module({"v": ONES})
    with pytest.raises(ValueError, match=r'parameter "w" is float32\[5\], expected float32\[4\]'):
        builder.module({"w": np.ones(5, "float32")})


def test_options():
    module = add_and_double().module({"w": ONES})
    with pytest.raises(InputError, match=r"options.emulation_scale: found -1, expected a number above 0"):
        module.configure(emulation_scale=-1)
    module.configure(in_turn=True)
    with pytest.raises(InputError, match=r"options.graph and options.in_turn are set: .* one of them is allowed"):
        module.configure(graph=True)
    with pytest.raises(ExecutionError, match="no run was traced"):
        module.timeline()
    module.configure(trace=True)
    module.run(X)
    timeline = module.timeline()
    assert timeline["plan"] == "plan"
    assert timeline["backend"] == "cpu"
    events = timeline["events"]
    assert [event["queue"] for event in events] == ["cpu0", "bus", "cpu1"]
    assert events[0]["event"] == {"kind": "kernel", "name": "sum"}
    times = [time for event in events for time in (event["start_ns"], event["end_ns"])]
    assert times == sorted(times)
    assert timeline["latency_ns"] == times[-1]
    module.configure(trace=False)
    module.run(X)
    with pytest.raises(ExecutionError, match="no run was traced"):
        module.timeline()


def test_emulated_devices_compute_values_by_default():
    module = add_and_double("emulated").module()
    with pytest.raises(ExecutionError, match='parameters have no values: "w"'):
        module.run(X)
    module.set_parameter("w", ONES)
    module.configure(emulation_scale=1)
    np.testing.assert_array_equal(module.run(X)[0], 2 * (X + 1))


def test_times_of_emulated_devices_alone_and_no_outputs():
    module = add_and_double("emulated").module()
    module.configure(trace=True, emulation_scale=1000, times_only=True)
    assert module.run_times(X) >= 3e-6
    with pytest.raises(
        ExecutionError, match=r"only times are asked for .* so that there are no outputs: call run_times"
    ):
        module.run(X)
    assert module.benchmark(X, warmup=0, repeat=1).repeat == 1
    timeline = module.timeline()
    assert timeline["backend"] == "emulated"
    assert timeline["scale"] == 1000
    assert timeline["latency_ns"] >= 3000
    assert module.latency() == pytest.approx(timeline["latency_ns"] * 1e-9)
    for event in timeline["events"]:
        assert event["end_ns"] - event["start_ns"] >= 999  # rounded after the scale is divided out
    module.configure(emulation_scale="auto", times_only=False)


def test_values_after_times_are_loaded_anew():
    """A run for its times brings no parameter to where a warm run would look for it."""
    module = add_and_double("emulated").module({"w": ONES})
    module.configure(emulation_scale=1, resident=1.0)
    module.run_times(X)
    np.testing.assert_array_equal(module.run(X)[0], 2 * (X + 1))


def test_real_devices_take_their_times_by_computing():
    module = add_and_double().module({"w": ONES})
    assert module.run_times(X) > 0
    with pytest.raises(InputError, match="times_only is set, which is for emulated devices"):
        module.configure(times_only=True)


def test_threads_may_call_at_once():
    module = add_and_double().module({"w": ONES})

    def caller(factor: int) -> None:
        for _ in range(30):
            (out,) = module.run(factor * X)
            np.testing.assert_array_equal(out, 2 * (factor * X + 1))

    assert not in_threads(caller)


def test_benchmark():
    module = add_and_double().module({"w": ONES})
    statistics = module.benchmark(X, warmup=1, repeat=10)
    assert statistics.repeat == 10
    assert 0 < statistics.min <= statistics.median <= statistics.p90 <= statistics.p99 <= statistics.max
    with pytest.raises(InputError, match="repeat is 0"):
        module.benchmark(X, repeat=0)
    assert LatencyStatistics.of([3.0, 1.0, 2.0]).median == 2.0


def test_a_module_of_another_kind_is_refused():
    class Other:
        kind = "library"
        imports = ()

    with pytest.raises(InputError, match=r"only \['library'\]"):
        ScheduledModule(Other())


@pytest.mark.parametrize("name", ["self", "inputs", "named", "repeat", "class", "a/b:0", "", "x y", "ä" * 3000])
def test_an_input_may_have_any_name(name):
    builder = PlanBuilder()
    x, out = builder.argument(name, [4], "float32"), builder.output([4], "float32")
    builder.kernel(0, "tvm_sched.test.add", [x, x], [out], [])
    module = builder.module()
    np.testing.assert_array_equal(module.run(**{name: X})[0], 2 * X)
    np.testing.assert_array_equal(to_numpy(module.run_tensors(**{name: X})[0]), 2 * X)
    assert module.run_times(**{name: X}) > 0
    assert module.benchmark(X, warmup=0, repeat=1).repeat == 1
