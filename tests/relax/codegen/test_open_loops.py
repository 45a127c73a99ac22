"""Kernels with open extents are scheduled and vectorised like others, and right at every size."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import tirx as script

from tvm_sched.relax.codegen.cpu.kernels import compile_kernels
from tvm_sched.relax.codegen.cpu.open_loops import cut_open_loops, prepare_open_kernel
from tvm_sched.relax.emit.any_shape import sizes_last
from tvm_sched.relax.passes import LowerToKernels

HOST = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"}) if tvm.target.codegen.llvm_version_major() else None
SIZES = [(1, 1), (2, 7), (3, 33), (2, 300), (1, 1100), (0, 5), (3, 0)]


def _shape(x, sizes):
    return relax.ShapeExpr(sizes(*x.ty.shape.values))


OPERATORS = {
    "sum_of_rows": (lambda x: relax.op.sum(x, [1]), lambda x: x.sum(1)),
    "sum_of_columns": (lambda x: relax.op.sum(x, [0]), lambda x: x.sum(0)),
    "maximum": (lambda x: relax.op.max(x, [0], keepdims=True),
                lambda x: x.max(0, initial=np.finfo("f4").min, keepdims=True)),
    "chain": (lambda x: relax.op.add(relax.op.exp(relax.op.negative(relax.op.abs(x))), relax.op.tanh(x)),
              lambda x: np.exp(-np.abs(x)) + np.tanh(x)),
    "flat": (lambda x: relax.op.reshape(x, [-1]), lambda x: x.reshape(-1)),
    "regrouped": (lambda x: relax.op.reshape(relax.op.stack([x, x, x, x], 2), _shape(x, lambda n, m: [n, 2 * m, 2])),
                  lambda x: np.repeat(x, 4, 1).reshape(len(x), 2 * x.shape[1], 2)),
    "turned": (lambda x: relax.op.multiply(relax.op.permute_dims(x), relax.const(2.0)), lambda x: x.T * 2),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels():
    """Return the compiled kernel of each operator and its loops."""
    functions = {}
    for name, (operator, _) in OPERATORS.items():
        x = relax.Var("x", relax.TensorType([tirx.Var("n", "int64"), tirx.Var("m", "int64")], "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                result = builder.emit_output(builder.normalize(operator(x)))
            builder.emit_func_output(result)
        lowered = LowerToKernels(libraries=())(builder.get())
        [functions[name]] = [f for f in lowered.functions.values() if isinstance(f, tirx.PrimFunc)]
    prepared = {name: prepare_open_kernel(sizes_last(function))[0] for name, function in functions.items()}
    return compile_kernels(prepared, HOST), prepared


@pytest.mark.parametrize("name", OPERATORS)
def test_values_are_right_at_every_size(kernels, name):
    for sizes in SIZES:
        x = np.random.default_rng(0).integers(-3, 4, sizes).astype("float32")
        expected = OPERATORS[name][1](x.astype("float64"))
        result = tvm.runtime.tensor(np.full(expected.shape, 7, "float32"))
        given = [sizes["nm".index(param.name)] for param in kernels[1][name].params[2:]]
        kernels[0][name](tvm.runtime.tensor(x), result, *given)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


def test_rows_are_shared_by_threads_and_steps_are_joined(kernels):
    chain = kernels[1]["chain"].script()
    assert "T.parallel" in chain
    assert chain.count("T.sblock(") <= 2, chain


def test_a_loop_of_negative_extent_does_not_run():
    """Rows get their first ``row - 2`` elements; the first row has an extent of -2."""

    @script.prim_func
    def triangle(out: script.Buffer((8, 300), "float32")):
        for row in range(8):
            for column in range(row - 2):
                out[row, column] = script.float32(1)

    cut = cut_open_loops(triangle)
    module = tvm.compile(tvm.IRModule({"main": cut}), target="llvm")
    found = tvm.runtime.tensor(np.zeros((8, 300), "float32"))
    module["main"](found)
    expected = np.arange(300) < (np.arange(8) - 2)[:, None]
    np.testing.assert_array_equal(found.numpy(), expected.astype("float32"))
