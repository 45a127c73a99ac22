"""Kernels of libraries as TVM's patterns: FuseOpsByPattern, RunCodegen and a build of TVM's own."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.backend import get_patterns_with_prefix

from tvm_sched.relax.lower.kernel_libraries import OffloadKernels, register_patterns
from tvm_sched_runtime.errors import InputError

RNG = np.random.default_rng(0)
VALUES = {"x": (4, 8), "c": (1, 3, 8, 8), "w": (8, 6), "k": (4, 3, 3, 3), "b": (6,), "s": (1, 4, 1, 1)}
VALUES = {name: RNG.integers(-2, 3, shape).astype("float32") for name, shape in VALUES.items()}


def module(body, *constants):
    """Return a module with the variables of ``VALUES`` that are no constants as arguments; ``body`` gets all of them."""
    builder = relax.BlockBuilder()
    values = {name: relax.const(value) for name, value in VALUES.items() if name in constants}
    arguments = {n: relax.Var(n, relax.TensorType(v.shape, "float32")) for n, v in VALUES.items() if n not in constants}
    with builder.function("main", list(arguments.values())):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, **values, **arguments))
        builder.emit_func_output(result)
    return builder.get()


def layers(emit, x, c, w, k, b, s):
    product = emit(relax.op.nn.relu(emit(relax.op.add(emit(relax.op.matmul(x, w)), b))))
    image = emit(relax.op.nn.relu(emit(relax.op.add(emit(relax.op.nn.conv2d(c, k, padding=1)), s))))
    square = emit(relax.op.matmul(product, emit(relax.op.permute_dims(product))))
    return emit(relax.Tuple([square, emit(relax.op.nn.max_pool2d(image, (2, 2), (2, 2)))]))


def generated(mod, codegen):
    """Return the module with the kernels of a code generator, and the names of its functions."""
    register_patterns()
    patterns = get_patterns_with_prefix(codegen)
    mod = relax.transform.FuseOpsByPattern(patterns, bind_constants=False, annotate_codegen=True)(mod)
    mod = relax.transform.RunCodegen()(mod)
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    calls = [v for v in values if isinstance(v, relax.Call) and v.op.name == "relax.call_dps_packed"]
    return mod, [str(call.args[0].global_symbol) for call in calls]


@pytest.mark.parametrize("constants", ["", "wkbs"], ids=["arguments", "constants"])
def test_a_plain_build_runs_patterns_of_onednn(constants):
    mod, functions = generated(module(layers, *constants), "tvm_sched_onednn")
    assert [name.removesuffix("_tvm_sched_onednn") for name in functions] == [
        "fused_relax_matmul_relax_add_relax_nn_relu", "fused_relax_matmul", "fused_relax_nn_max_pool2d",
    ]  # fmt: skip
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    given = [tvm.runtime.tensor(value) for name, value in VALUES.items() if name not in constants]
    square, pooled = machine["main"](*given)
    x, c, w, k, b, s = VALUES.values()
    product = np.maximum(x @ w + b, 0)
    np.testing.assert_array_equal(square.numpy(), product @ product.T)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(c[0], ((0, 0), (1, 1), (1, 1))), (3, 3), axis=(1, 2))
    image = np.maximum(np.einsum("cijkl,ockl->oij", windows, k) + s[0], 0)
    np.testing.assert_array_equal(pooled.numpy()[0], image.reshape(4, 4, 2, 4, 2).max((2, 4)))


def test_patterns_of_nvidia_fuse_biases_that_are_arguments():
    mod, functions = generated(module(layers), "tvm_sched_nvidia")
    assert [name.removesuffix("_tvm_sched_nvidia").rstrip("1") for name in functions] == [
        "fused_relax_matmul_relax_add_relax_nn_relu", "fused_relax_nn_conv2d_relax_add_relax_nn_relu",
        "fused_relax_matmul",
    ]  # fmt: skip
    assert [each.kind for each in mod.attrs["external_mods"]] == ["tvm_sched_nvidia"]


def test_a_tensor_that_is_read_twice_is_left_to_tvm():
    def square(emit, **tensors):
        both = emit(relax.op.matmul(tensors["w"], emit(relax.op.permute_dims(tensors["w"]))))
        return emit(relax.op.matmul(both, both))

    assert len(generated(module(square), "tvm_sched_nvidia")[1]) == 1


def test_bound_constants_are_refused():
    register_patterns()
    patterns = get_patterns_with_prefix("tvm_sched_onednn")
    fused = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=True)(module(layers, "w"))
    with pytest.raises(InputError, match="bind_constants=False"):
        relax.transform.RunCodegen()(fused)


def test_kernels_for_gpus_are_offloaded_without_the_libraries():
    offloaded = OffloadKernels("nvidia")(module(layers, "w", "k", "b", "s"))
    assert [each.kind for each in offloaded.attrs["external_mods"]] == ["tvm_sched_nvidia"]
