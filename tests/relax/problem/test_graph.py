"""Operator graphs of modules: kinds, floating-point operations, bytes, and what is left out."""
# ruff: noqa: N805 - TVMScript functions have no self

import numpy as np
import pytest
import tvm
from tvm import relax

from relax import cases
from tvm_sched.relax import get_graph, passes
from tvm_sched.relax.ir.call_names import kernel_kind
from tvm_sched.relax.ir.tensor_types import bytes_of
from tvm_sched.relax.problem.operator_graph import extract
from tvm_sched_runtime.errors import InputError


def graph_of(mod):
    return get_graph(passes.LowerToKernels(libraries=())(mod))


def test_flops_and_kinds():
    graph = graph_of(cases.Operators)
    flops = {operator.kind: operator.flops for operator in graph.operators}
    assert flops["matmul"] == 2 * 16 * 32 * 8
    convolution = 2 * 8 * 8 * 4 * 3 * 3 * 3
    assert convolution <= flops["conv2d_relu"] <= convolution + 3 * 8 * 8 * 4
    assert flops["cumsum"] == 16 * 31
    assert flops["reshape"] == flops["sort"] == flops["less"] == 0


def test_tensors():
    graph = graph_of(cases.Operators)
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    assert tensors["x"].kind == "input"
    assert tensors["x"].size == 16 * 32 * 4
    assert tensors["less:0"].dtype == "bool"
    assert tensors["less:0"].size == 16 * 32
    assert tensors["argmax:0"].dtype == "int64"
    assert {"topk:0", "topk:1", "i"} <= set(graph.outputs)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("fused_conv2d3_add12_relu", "conv2d_add_relu"),
        ("matmul7", "matmul"),
        ("fused_max_pool2d_1", "max_pool2d"),
        ("add", "add"),
    ],
)
def test_kernel_kind(function, kind):
    assert kernel_kind(function) == kind


def test_bytes_of():
    assert bytes_of((3,), "bool") == 3
    assert bytes_of((3,), "int4") == 2
    assert bytes_of((), "float64") == 8
    assert bytes_of((0, 5), "float32") == 0


def test_aliases_and_casts_are_seen_through():
    graph = graph_of(cases.WithoutDataflow)
    assert "exp" not in [operator.kind for operator in graph.operators]  # nobody reads it
    assert len(graph.outputs) == 1


def test_same_tensor_twice():
    found = extract(passes.LowerToKernels(libraries=())(cases.SameTwice))
    assert found.result == (("exp:0", ("x", "exp:0")), "exp:0")
    assert found.graph.outputs == ("exp:0", "x")


def test_constants_become_parameters():
    mod, _ = cases.constants_only()
    lowered = passes.LowerToKernels(libraries=())(mod)
    graph = get_graph(lowered)
    assert {tensor.kind for tensor in graph.tensors} == {"parameter"}  # all work was done by the compiler
    assert len(lowered.attrs["tvm_frontends.parameters"]) == len(graph.tensors)


def test_same_module_same_graph():
    assert graph_of(cases.Operators) == graph_of(cases.Operators)


def test_constants_must_be_lifted_first():
    mod, _ = cases.constants_only()
    with pytest.raises(InputError, match="run LowerToKernels"):
        extract(mod)


def test_what_gives_no_tensor_is_named():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.shape_of(x)))
    with pytest.raises(InputError, match=r"R\.shape_of gives no tensor"):
        extract(builder.get())


def test_operators_that_are_not_lowered_are_named():
    with pytest.raises(InputError, match=r"binding 'a': R\.matmul cannot be scheduled.*run LowerToKernels"):
        extract(cases.Operators)


def test_folding_names_and_values():
    """A transposed weight is computed once and named after the weight; without folding it stays an operator."""
    from tvm.script import ir as I  # noqa: N812
    from tvm.script import relax as R  # noqa: N812

    @I.ir_module
    class Dense:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), weight: R.Tensor((3, 4), "float32")):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                t = R.permute_dims(weight)
                y = R.matmul(x, t)
                R.output(y)
            return y

    value = np.arange(12, dtype="float32").reshape(3, 4)
    mod = Dense.with_attr("tvm_frontends.parameters", {"weight": tvm.runtime.tensor(value)})
    folded = passes.LowerToKernels(libraries=())(mod)
    assert list(folded.attrs["tvm_frontends.parameters"]) == ["weight.permute_dims"]
    np.testing.assert_array_equal(folded.attrs["tvm_frontends.parameters"]["weight.permute_dims"].numpy(), value.T)
    assert [operator.kind for operator in get_graph(folded).operators] == ["matmul"]
    kept = passes.LowerToKernels(fold=False)(mod)
    assert list(kept.attrs["tvm_frontends.parameters"]) == ["weight"]
    assert len(get_graph(kept).operators) == 2
    assert [t.kind for t in get_graph(kept).tensors if t.name == "weight"] == ["parameter"]
