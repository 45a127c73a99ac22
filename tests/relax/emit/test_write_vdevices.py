"""WriteVDevices: TVM's virtual machine runs our schedules over several devices, with the same values."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_frontends.imported_model import PARAMETERS
from tvm_sched.relax import get_schedule, run_passes
from tvm_sched.relax.passes import WriteVDevices
from tvm_sched_runtime.problem import Costs

RNG = np.random.default_rng(0)
WEIGHTS = RNG.integers(-2, 3, (32, 32)).astype("float32")
X = RNG.integers(-2, 3, (4, 32)).astype("float32")


def alternating(graph, topology):
    """Return costs by which operators are on the two devices in turn."""
    return Costs([[10**6, 10**9] if k % 2 else [10**9, 10**6] for k in range(len(graph.operators))])


@pytest.fixture(scope="module", params=["onednn", ""], ids=["oneDNN", "TVM's kernels"])
def placed(request):
    """Branches on two devices read the same weights; a kernel has two results; an input and a constant are results."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4, 32), "float32"))
    emit, weights = builder.emit, relax.const(WEIGHTS)
    with builder.function("main", [x]):
        with builder.dataflow():
            left = emit(relax.op.nn.relu(emit(relax.op.matmul(x, weights))))
            right = emit(relax.op.negative(emit(relax.op.matmul(emit(relax.op.negative(x)), weights))))
            best = emit(relax.op.topk(emit(relax.op.add(left, right)), 2))
            both = relax.Tuple([emit(relax.TupleGetItem(best, 0)), emit(relax.TupleGetItem(best, 1))])
            result = builder.emit_output(relax.Tuple([both, x, relax.const(WEIGHTS[:2])]))
        builder.emit_func_output(result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_SCHED_KERNEL_LIBRARIES", request.param)
        options = {"scheduler": "heft", "cost_model": alternating, "variants": False}
        yield run_passes(builder.get(), "cpu2", "Place", **options)


def test_the_virtual_machine_runs_the_schedule(placed):
    mod = WriteVDevices()(placed)
    parameters = mod["main"].params[1:]
    values = mod.attrs[PARAMETERS]
    on = [tvm.cpu(int(variable.ty.vdevice.vdevice_id)) for variable in parameters]
    given = [tvm.runtime.tensor(values[v.name].numpy(), device) for v, device in zip(parameters, on, strict=True)]
    machine = relax.VirtualMachine(relax.build(mod, "llvm"), [tvm.cpu(0), tvm.cpu(1)])
    (best, positions), same, rows = machine["main"](tvm.runtime.tensor(X), *given)
    product = X @ WEIGHTS
    truth = np.maximum(product, 0) + product
    np.testing.assert_array_equal(best.numpy(), -np.sort(-truth, axis=1)[:, :2])
    np.testing.assert_array_equal(np.take_along_axis(truth, positions.numpy().astype("int64"), 1), best.numpy())
    np.testing.assert_array_equal(same.numpy(), X)
    np.testing.assert_array_equal(rows.numpy(), WEIGHTS[:2])
    assert {str(each.device) for each in (best, positions, same, rows)} == {"cpu:0"}


def test_kernels_are_on_the_devices_of_the_schedule(placed):
    calls = [binding.value for block in WriteVDevices()(placed)["main"].body.blocks for binding in block.bindings]
    names = ("relax.call_tir", "relax.call_dps_packed")
    types = [call.ty for call in calls if isinstance(call, relax.Call) and call.op.name in names]
    first = [ty.fields[0] if isinstance(ty, relax.TupleType) else ty for ty in types]
    written = sorted(int(ty.vdevice.vdevice_id) for ty in first)
    assert set(written) == {0, 1}
    assert written == sorted(int(each.device.removeprefix("cpu")) for each in get_schedule(placed).placements)


def test_the_written_module_is_read_as_it_was_placed(placed):
    read = run_passes(WriteVDevices()(placed), "cpu2", "Place", scheduler="heft", cost_model="roofline")
    devices = [[placement.device for placement in get_schedule(mod).placements] for mod in (placed, read)]
    assert sorted(devices[0]) == sorted(devices[1]), "a given placement was not kept"


def test_gpus_have_the_host_behind_them():
    x = relax.Var("x", relax.TensorType((4, 32), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.exp(builder.emit(relax.op.cumsum(x, 0))))
        builder.emit_func_output(result)
    mod = run_passes(builder.get(), "v100-server", "WriteVDevices", scheduler="single", cost_model="roofline")
    devices = [device.target.kind.name for device in mod.global_infos["vdevice"]]
    assert devices == ["cuda"] * 4 + ["llvm"]
    assert mod["main"].params[0].ty.vdevice.target.kind.name == mod["main"].ret_ty.vdevice.target.kind.name == "llvm"
    targets = [f.attrs["target"].kind.name for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert targets == ["cuda"] * 2
