"""Reversed slices of reshaped tensors, whose indices TVM simplifies to wrong ones, and the pass that hides them."""

import numpy as np
import pytest
import tvm
from onnx import parser
from tvm import tirx

import tvm_sched.relax
from tvm_sched.relax.codegen.decreasing_indices import hide_decreasing


@pytest.mark.parametrize(("shape", "step"), [((3, 4, 5), -1), ((2, 3, 4, 5), -3), ((5, 2, 2, 3, 1), -1)])
def test_a_reversed_slice_of_a_flat_tensor(shape, step):
    x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    right = -x.reshape(-1)[::step]
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 16]> g (float[{",".join(map(str, shape))}] x) => (float[{len(right)}] y) '
        f"<int64[1] flat = {{-1}}, int64[1] end = {{-999}}, int64[1] axis = {{0}}, int64[1] step = {{{step}}}> "
        "{ f = Reshape(x, flat) n = Neg(f) y = Slice(n, flat, end, axis, step) }"
    )
    np.testing.assert_array_equal(tvm_sched.relax.compile(model, "cpu1", "single").run(x), right)


@pytest.mark.parametrize("first", [0, 19])
def test_only_decreasing_dividends_are_hidden(first):
    """A dividend that may be negative keeps its sign; one that cannot be is known to be small."""
    source, target = (tirx.decl_buffer((60,), "float32", name) for name in ("source", "target"))
    i = tirx.Var("i", "int64")
    body = tirx.BufferStore(target, tirx.BufferLoad(source, [(first - i) % 20 + i % 20]), [i])
    loop = tirx.For(i, tirx.IntImm("int64", 0), tirx.IntImm("int64", 20), tirx.ForKind.SERIAL, body)
    function = tirx.PrimFunc([source, target], loop)
    text = hide_decreasing(tvm.IRModule({"main": function}))["main"].script()
    assert text.count("% T.int64(20)") == 2
    assert ("& T.int64(31)" in text) == (first == 19)
    assert ("| T.int64(0)" in text) == (first == 0)
