"""TVM's annotations of devices: schedules keep them, and the copies between them cost nothing but the transfer."""

from contextlib import nullcontext

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.relax import compile, get_problem, run_passes
from tvm_sched_runtime.errors import InputError

WEIGHTS = (np.arange(32 * 32) % 7 - 3).reshape(32, 32).astype("float32")
X = (np.arange(4 * 32) % 5 - 2).reshape(4, 32).astype("float32")


def module(body, devices=("llvm", "llvm"), rows=4):
    """Return a module with the virtual devices ``0, 1, ...`` of target kinds; ``body`` gets builder, input, devices."""
    vdevices = [relax.VDevice(kind, devices[:k].count(kind)) for k, kind in enumerate(devices)]
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((rows, 32), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, x, vdevices))
        builder.emit_func_output(result)
    mod = builder.get()
    if vdevices:
        mod.update_global_info("vdevice", vdevices)
    return mod


def two_parts(emit, x, devices):
    """Compute a product, and its difference to the maximum of each row, on the second device, the rest on the first."""
    weights = emit(relax.op.to_vdevice(relax.const(WEIGHTS), devices[1]))
    product = emit(relax.op.matmul(emit(relax.op.to_vdevice(x, devices[1])), weights))
    there = emit(relax.op.subtract(product, emit(relax.op.max(product, 1, keepdims=True))))
    here = emit(relax.op.to_vdevice(there, devices[0]))
    return emit(relax.op.add(emit(relax.op.matmul(here, relax.const(WEIGHTS))), relax.const(np.float32(1))))


def expected(x):
    product = x @ WEIGHTS
    return (product - product.max(1, keepdims=True)) @ WEIGHTS + 1


def placed(compiled):
    return {placement.operator: placement.device for placement in compiled.schedule.placements}


@pytest.mark.filterwarnings("ignore:.*open dimensions")
@pytest.mark.parametrize("rows", [4, tvm.tirx.Var("n", "int64")], ids=["static", "any size"])
def test_operators_run_where_the_module_places_them(rows):
    compiled = compile(module(two_parts, rows=rows), "cpu2", cost_model="roofline")
    devices = placed(compiled)
    assert set(devices.values()) == {"cpu0", "cpu1"}
    assert {devices[name] for name in ("onednn.matmul", "max", "subtract")} == {"cpu1"}
    np.testing.assert_array_equal(compiled.run(X), expected(X))


def test_targets_of_gpus_are_the_topologys_gpus():
    compiled = compile(module(two_parts, ["cuda"] * 4), "v100-server", cost_model="roofline", backend="emulated")
    assert set(placed(compiled).values()) == {"gpu1", "gpu2"}
    np.testing.assert_array_equal(compiled.run(X), expected(X))


def test_hints_place_all_operators_between_copies():
    def hinted(emit, x, devices):
        sums = emit(relax.op.cumsum(emit(relax.op.hint_on_device(x, tvm.cpu(1))), 0))
        return emit(relax.op.nn.softmax(emit(relax.op.matmul(sums, relax.const(WEIGHTS)))))

    assert set(placed(compile(module(hinted), "cpu4", cost_model="roofline")).values()) == {"cpu1"}


def test_operators_without_annotation_stay_free():
    def half(emit, x, devices):
        return emit(relax.op.cumsum(emit(relax.op.to_vdevice(emit(relax.op.cumsum(x, 0)), devices[1])), 0))

    costs = run_passes(module(half), "cpu2", "EstimateLatencies", cost_model="roofline")
    assert (get_problem(costs).costs.operator_ns < 2**62).tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize("measure", [False, True])
def test_measuring_does_not_move_operators(measure):
    with pytest.warns(RuntimeWarning, match="places operators itself") if measure else nullcontext():
        compiled = compile(module(two_parts), "cpu2", cost_model="roofline", measure=measure)
    assert set(placed(compiled).values()) == {"cpu0", "cpu1"}


@pytest.mark.parametrize(
    ("devices", "topology", "message"),
    [
        (("llvm", "llvm"), "cpu1",
         r"operator 'onednn.matmul' is on the VDevice llvm:1, which the topology 'cpu1' lacks"),
        (("cuda", "cuda"), "cpu2", r"VDevice cuda:1, which .* lacks; it has cpu0 \(cpu\), cpu1 \(cpu\)"),
        (("llvm", "rocm"), "cpu2", r"VDevice rocm:0"),
    ],
)  # fmt: skip
def test_a_device_that_the_topology_lacks_is_refused(devices, topology, message):
    with pytest.raises(InputError, match=message):
        compile(module(two_parts, devices), topology, cost_model="roofline")


def test_a_hint_of_an_unknown_device_is_refused():
    def hinted(emit, x, devices):
        return emit(relax.op.exp(emit(relax.op.hint_on_device(x, tvm.cpu(1)))))

    with pytest.raises(InputError, match=r"hint_on_device: .*module_global_infos"):
        compile(module(hinted, ()), "cpu2", cost_model="roofline")
