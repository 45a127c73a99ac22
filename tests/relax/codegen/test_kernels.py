"""Kernels: rearranged loops give the same values, and nothing runs in TVM's thread pool."""

from functools import reduce

import numpy as np
import pytest
import tvm
from tvm import relax

from relax import cases
from relax.codegen.kernels_cases import call, single_kernel
from relax.codegen.random_moves import random_moves
from relax.compare import assert_same, run
from tvm_sched.relax import compile as compile_model
from tvm_sched.relax import passes
from tvm_sched.relax.codegen.cpu.cpu_loop_schedule import schedule_for_cpu
from tvm_sched.relax.codegen.cpu.kernels import prepare_kernel
from tvm_sched.relax.ir.flops import count_flops
from tvm_sched_runtime.errors import ExecutionError

op = relax.op
KERNELS = {
    "matmul": (lambda a, b: op.matmul(a, b), (12, 20), (20, 40)),
    "matmul of odd sizes": (lambda a, b: op.matmul(a, b), (7, 13), (13, 37)),
    "matmul, long rows": (lambda a, b: op.matmul(a, b), (5, 8), (8, 66)),
    "batched matmul": (lambda a, b: op.matmul(a, b), (3, 9, 16), (3, 16, 24)),
    "matmul with a vector": (lambda a, b: op.matmul(a, b), (1, 64), (64, 48)),
    "conv2d": (lambda a, b: op.nn.conv2d(a, b, padding=1), (1, 6, 15, 15), (8, 6, 3, 3)),
    "conv2d, stride 2": (lambda a, b: op.nn.conv2d(a, b, strides=2, padding=3), (2, 3, 29, 29), (4, 3, 7, 7)),
    "conv2d, groups": (lambda a, b: op.nn.conv2d(a, b, padding=1, groups=8), (1, 8, 14, 14), (8, 1, 3, 3)),
    "conv2d, 1x1 image": (lambda a, b: op.nn.conv2d(a, b), (1, 8, 1, 1), (16, 8, 1, 1)),
    "conv2d and relu": (lambda a, b: op.nn.relu(op.nn.conv2d(a, b)), (1, 8, 56, 56), (12, 8, 1, 1)),
    "max_pool2d": (lambda a: op.nn.max_pool2d(a, (3, 3), (2, 2), (1, 1, 1, 1)), (1, 4, 28, 28)),
    "softmax": (lambda a: op.nn.softmax(a), (6, 33)),
    "sum over rows": (lambda a: op.sum(a, axis=0), (17, 40)),
    "sum over columns": (lambda a: op.sum(a, axis=1), (17, 40)),
    "sum of all": (lambda a: op.sum(a), (17, 40)),
    "concat": (lambda a, b, c: op.concat([a, b, c], axis=1), (2, 3, 5, 4), (2, 7, 5, 4), (2, 1, 5, 4)),
    "concat of rows": (lambda a, b: op.concat([a, b], axis=0), (3, 16), (5, 16)),
    "normalisation": (lambda a, b, c: op.nn.relu(op.add(op.multiply(op.concat([a, a]), b), c)), (4, 16), (16,), (8, 1)),
    "used twice": (lambda a: op.multiply(op.abs(a), op.negative(op.abs(a))), (6, 33)),
    "broadcast": (lambda a, b: op.add(op.negative(a), b), (1, 33), (6, 33)),
    "pad": (lambda a: op.nn.pad(a, (1, 2, 0, 3)), (5, 7)),
    "cumsum": (lambda a: op.cumsum(a, axis=1), (17, 40)),
    "transpose": (lambda a: op.permute_dims(a, (1, 0)), (66, 51)),
    "transpose of channels": (lambda a: op.permute_dims(a, (0, 2, 3, 1)), (2, 24, 9, 20)),
    "transpose of a long odd side": (lambda a: op.permute_dims(a, (0, 2, 1)), (2, 263, 48)),
    "transpose of 82 channels": (lambda a: op.permute_dims(a, (0, 3, 1, 2)), (2, 6, 20, 82)),
    "two transposes": (lambda a, b: op.add(op.permute_dims(a, (1, 0)), op.permute_dims(b, (1, 0))), (40, 23), (40, 23)),
    "transpose and itself": (lambda a: op.multiply(a, op.abs(op.permute_dims(a, (0, 2, 1)))), (3, 32, 32)),
}


UNOPTIMISED = tvm.target.Target({"kind": "llvm", "opt-level": 0})
WHOLE_NUMBERS = ("matmul", "conv2d, stride 2", "max_pool2d", "sum over rows", "sum of all", "concat", "transpose")
"""What is computed in int64, too; of the others in `make test-thorough`."""


def kernels_and_types():
    for name in KERNELS:
        yield name, "float32"
        if name != "softmax":  # of floating-point numbers alone
            yield pytest.param(name, "int64", marks=() if name in WHOLE_NUMBERS else pytest.mark.thorough)


@pytest.mark.parametrize(("name", "dtype"), kernels_and_types())
@pytest.mark.sampled(9)
def test_schedule_keeps_values(name, dtype):
    emit, *shapes = KERNELS[name]
    function, shape, result = single_kernel(emit, *shapes, dtype=dtype)
    rng = np.random.default_rng(0)
    inputs = [(rng.standard_normal(s) * 10).astype(dtype) for s in shapes]
    expected = call(function, inputs, shape, result, UNOPTIMISED)
    assert_same(call(prepare_kernel(function), inputs, shape, result), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["matmul", "conv2d", "conv2d and relu", "max_pool2d", "batched matmul"])
def test_rule_fits(name):
    emit, *shapes = KERNELS[name]
    function, _, _ = single_kernel(emit, *shapes)
    assert not schedule_for_cpu(function).same_as(function)


@pytest.mark.parametrize("name", ["concat", "normalisation"])
def test_elementwise_steps_are_one_pass_without_conditions(name):
    emit, *shapes = KERNELS[name]
    text = schedule_for_cpu(single_kernel(emit, *shapes)[0]).script()
    assert "sblock_alloc_buffer" not in text
    assert text.count(" in range(") >= 2


def test_nothing_is_computed_twice():
    emit, *shapes = KERNELS["broadcast"]
    assert "sblock_alloc_buffer" in schedule_for_cpu(single_kernel(emit, *shapes)[0]).script()


def test_chain_of_steps_that_read_an_element_several_times_grows_linearly():
    def size(count):
        function, _, _ = single_kernel(lambda a: reduce(lambda x, _: op.nn.softplus(x), range(count), a), (6, 32))
        return len(schedule_for_cpu(function).script())

    assert size(8) < 4 * size(4)  # 70 times as long if all are written into the last one
    assert size(16) < 3 * size(8)


def test_rule_leaves_alone():
    emit, *shapes = KERNELS["cumsum"]
    function, _, _ = single_kernel(emit, *shapes)
    assert schedule_for_cpu(function).same_as(function)


def test_flops():
    matmul, _, _ = single_kernel(KERNELS["matmul"][0], (12, 20), (20, 40))
    assert count_flops(matmul) == 2 * 12 * 20 * 40
    assert count_flops(prepare_kernel(matmul)) == 2 * 12 * 20 * 40
    convolution, _, _ = single_kernel(lambda a, b: op.nn.conv2d(a, b), (1, 8, 16, 16), (4, 8, 3, 3))
    assert count_flops(convolution) == 2 * 14 * 14 * 4 * 8 * 9


def test_no_parallel_loops():
    for schedule in (True, False):
        mod = passes.PrepareKernels(schedule)(passes.LowerToKernels(libraries=())(cases.Operators))
        for function in mod.functions.values():
            if isinstance(function, tvm.tirx.PrimFunc):
                assert "T.parallel" not in function.script()


@pytest.mark.parametrize("seed", [14, 56, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(40))])
def test_random_moves_equal_numpy(seed):
    """Large enough for several threads: no parallel loop may be in another, which TVM would refuse."""
    rng = np.random.default_rng(seed)
    model, shape, right = random_moves(rng, 4)
    x = rng.integers(-1, 2, shape).astype("float32")
    for found, expected in zip(compile_model(model, "cpu2", "single").run(x), right(x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_no_parallel_loop_is_in_another():
    """torchcrepe's pads of several axes had such loops."""
    shape, pads = (8, 32, 128, 128), (0, 0, 1, 2, 3, 0, 1, 1)
    x, builder = relax.Var("x", relax.TensorType(shape, "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.pad(x, pads, pad_value=1.0))
        builder.emit_func_output(result)
    value = np.random.default_rng(0).standard_normal(shape).astype("float32")
    expected = np.pad(value, list(zip(pads[::2], pads[1::2], strict=True)), constant_values=1)
    np.testing.assert_array_equal(compile_model(builder.get(), "cpu2", "single").run(value), expected)


def test_booleans():
    """TVM 0.27 cannot compare or add booleans; torch and numpy add them as whole numbers."""
    builder = relax.BlockBuilder()
    ty = relax.TensorType((6,), "bool")
    x, y = relax.Var("x", ty), relax.Var("y", ty)
    with builder.function("main", [x, y]):
        with builder.dataflow():
            result = builder.emit_output(relax.Tuple([op.equal(x, y), op.cumsum(x, 0), op.less(x, y)]))
        builder.emit_func_output(result)
    a, b = np.array([1, 0, 1, 1, 0, 0], bool), np.array([1, 1, 0, 1, 0, 1], bool)
    found = run(tvm.compile(builder.get(), "tvm_sched/cpu2"), a, b)
    assert_same(found, [a == b, np.cumsum(a), a < b])


ASSERTED = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def kernel(x: T.Buffer((8,), "int32"), y: T.Buffer((8,), "int32")):
        assert x[0] >= 0, "x begins with a negative number"
        for i in range(8):
            y[i] = x[i] + 1

    @R.function
    def main(x: R.Tensor((8,), "int32")) -> R.Tensor((8,), "int32"):
        with R.dataflow():
            y = R.call_tir(Module.kernel, (x,), R.Tensor((8,), "int32"))
            R.output(y)
        return y
"""


def test_what_a_kernel_asserts_itself_is_checked():
    module = compile_model(tvm.script.from_source(ASSERTED), "cpu1", "single").module
    x = np.arange(8, dtype="int32")
    np.testing.assert_array_equal(module.run(x)[0], x + 1)
    with pytest.raises(ExecutionError, match="x begins with a negative number"):
        module.run(x - 1)
