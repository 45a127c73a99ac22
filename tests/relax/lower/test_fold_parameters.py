"""What is computed from parameters when a model is compiled: as TVM computes it, and without compiling."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.relax.lower.fold_parameters import fold_parameters

X = np.array([-np.inf, -2.5, -0.0, 0.25, 3.0, np.inf, np.nan], np.float32)
Y = np.array([-np.inf, 1.0, 0.0, 0.25, -3.0, 1.0, np.nan], np.float32)
UNARY = ["abs", "square", "floor", "ceil", "isnan", "isinf", "isfinite", "tanh", "log", "sin", "cos"]
BINARY = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


def constant(value):
    return relax.const(tvm.runtime.tensor(value))


def module_of(make, *arguments, params=()):
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(make(*arguments)))
        builder.emit_func_output(result)
    return builder.get()


def folded(make, *values):
    mod, constants = fold_parameters(module_of(make, *map(constant, values)), {})
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]
    assert not calls, "nothing is left to compile"
    assert constants
    return constants[-1].value.numpy()


def run_by_tvm(make, *values):
    params = [relax.Var(f"p{k}", relax.TensorType(v.shape, str(v.dtype))) for k, v in enumerate(values)]
    executable = tvm.compile(module_of(make, *params, params=params), "llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, values)).numpy()


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_constant(name):
    make = getattr(relax.op, name)
    found, expected = folded(make, X), run_by_tvm(make, X)
    assert found.dtype == expected.dtype
    finite = np.isfinite(X)  # TVM's own functions differ from numpy's in the last bits
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BINARY)
def test_comparisons(name):
    make = getattr(relax.op, name)
    found, expected = folded(make, X, Y), run_by_tvm(make, X, Y)
    assert found.dtype == expected.dtype == np.bool_
    numbers = ~np.isnan(X)  # TVM says that NaN and NaN are not different; IEEE 754 and ONNX say that they are
    np.testing.assert_array_equal(found[numbers], expected[numbers])
    assert found[~numbers].all() == (name == "not_equal")


def test_choice_and_logic():
    condition, other = np.array([True, False, True]), np.array([[True], [False]])
    make = relax.op.where
    values = (condition, np.array([[1.0], [2.0]], np.float32), np.zeros(3, np.float32))
    np.testing.assert_array_equal(folded(make, *values), run_by_tvm(make, *values))
    for name in ("logical_and", "logical_or"):
        make = getattr(relax.op, name)
        np.testing.assert_array_equal(folded(make, condition, other), run_by_tvm(make, condition, other))
    np.testing.assert_array_equal(folded(relax.op.logical_not, condition), ~condition)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min"])
@pytest.mark.parametrize(("axis", "keepdims"), [(None, False), ([0, 2], True), ([1], False)])
def test_reductions(name, axis, keepdims):
    x = (np.arange(60, dtype=np.float32).reshape(3, 4, 5) % 7 - 3.25) / 2
    make = lambda a: getattr(relax.op, name)(a, axis, keepdims)  # noqa: E731
    exact = getattr(np, name)(x.astype(np.float64), None if axis is None else tuple(axis), keepdims=keepdims)
    np.testing.assert_array_equal(folded(make, x), np.float32(exact))
    if name != "mean":
        whole = (x * 4).astype(np.int32)
        exact = getattr(np, name)(whole, None if axis is None else tuple(axis), keepdims=keepdims)
        np.testing.assert_array_equal(folded(make, whole), exact.astype(np.int32))  # as TVM, modulo 2 ** 32


def test_a_convolution_with_normalised_weights_has_them_as_a_parameter():
    """What `torch.nn.utils.parametrizations.weight_norm` exports: g * v / sqrt(sum(v * v))."""
    v, g = np.full((4, 2, 3), 2.0, np.float32), np.ones((1, 1, 3), np.float32)

    def make(v, g):
        return g * (v / relax.op.sqrt(relax.op.sum(v * v, [0, 1], True)))

    np.testing.assert_allclose(folded(make, v, g), np.full((4, 2, 3), 2 / np.sqrt(32), np.float32), rtol=1e-6)


def test_slices():
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    for steps in (None, (1, 1), (2, 3)):
        make = lambda a, s=steps: relax.op.strided_slice(a, (0, 1), (1, 2), (5, 7), s)  # noqa: E731
        np.testing.assert_array_equal(folded(make, x), x[1 : 5 : (steps or (1, 1))[0], 2 : 7 : (steps or (1, 1))[1]])
    for axis, (first, last, step) in ((0, (1, 5, 2)), (1, (0, 7, 3)), (1, (6, 7, 1))):
        part = -np.ones(
            (len(range(first, last, step)), 7) if axis == 0 else (5, len(range(first, last, step))), np.float32
        )
        make = lambda a, b, n=(first, last, step), k=axis: relax.op.slice_scatter(a, b, *n, axis=k)  # noqa: E731
        np.testing.assert_array_equal(folded(make, x, part), run_by_tvm(make, x, part))


def test_rows_at_positions_that_are_computed():
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            index = builder.emit(relax.op.add(constant(np.array([0, 1])), constant(np.array([1, 2]))))
            result = builder.emit_output(relax.op.take(constant(table), index, axis=0))
        builder.emit_func_output(result)
    _, constants = fold_parameters(builder.get(), {})
    np.testing.assert_array_equal(constants[-1].value.numpy(), table[[1, 3]])


def test_a_filled_tensor_is_there_once():
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            parts = [builder.emit(relax.op.full((2, 3), constant(np.float32(v)), "float32")) for v in (7, 7, 8)]
            result = builder.emit_output(relax.Tuple(parts))
        builder.emit_func_output(result)
    _, constants = fold_parameters(builder.get(), {})
    assert [c.value.numpy().tolist() for c in constants] == [[[7.0] * 3] * 2, [[8.0] * 3] * 2]


def test_lowering_compiles_nothing_for_constants(monkeypatch):
    """TVM's own folding builds each function; what stands in usual models' constants is not left to it."""
    import importlib

    from tvm_sched.relax.passes import LowerToKernels

    build, built = importlib.import_module("tvm.tirx.build"), []
    original = build.tir_to_runtime
    monkeypatch.setattr(build, "tir_to_runtime", lambda *given: built.append(given) or original(*given))
    x = relax.Var("x", relax.TensorType((7,), "float32"))
    limit = constant(X)
    clean = relax.op.where(relax.op.isnan(limit), constant(Y), limit)
    mod = module_of(lambda value: relax.op.minimum(value, clean), x, params=[x])
    LowerToKernels()(mod)
    assert not built
