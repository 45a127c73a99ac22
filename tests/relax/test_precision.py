"""Products and convolutions in bfloat16."""

import numpy as np
import pytest
from tvm import relax

from tvm_sched.relax import compile, make_problem
from tvm_sched.relax.lower.kernel_libraries.kernel_library import VARIABLE
from tvm_sched.relax.toolchain import compile_target
from tvm_sched.relax.toolchain.compile_target import CompileTarget
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import load


def _here() -> bool:
    try:
        CompileTarget.of(precision="bfloat16")
    except InputError:
        return False
    return True


BFLOAT16 = pytest.mark.skipif(not _here(), reason="this processor has no instructions for bfloat16")
rng = np.random.default_rng(0)


def weights(*shape):
    return rng.standard_normal(shape).astype("float32") * 0.1


def rounded(value):
    """What bfloat16 keeps of it: 7 bits of the fraction, the nearest, ties to even."""
    bits = value.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def module(inputs, body):
    builder = relax.BlockBuilder()
    variables = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape, dtype in inputs]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(body(builder, *variables))
        builder.emit_func_output(result)
    return builder.get()


def types(compiled):
    return sorted(str(parameter["dtype"]) for parameter in compiled.module.parameters())


@BFLOAT16
def test_a_product_rounds_source_and_weights_and_adds_in_float32():
    w, bias, x = weights(256, 96), weights(96), weights(8, 256)

    def body(b, x):
        product = b.emit(relax.op.matmul(x, relax.const(w)))
        return b.emit(relax.op.nn.relu(b.emit(relax.op.add(product, relax.const(bias)))))

    mod = module([("x", (8, 256), "float32")], body)
    compiled = compile(mod, "cpu1", "single", cost_model="roofline", precision="bfloat16")
    assert types(compiled) == ["bfloat16", "float32"]
    expected = np.maximum(rounded(x).astype("float64") @ rounded(w) + bias, 0)
    np.testing.assert_allclose(compiled.run(x), expected, rtol=1e-5, atol=1e-6)
    assert abs(compiled.run(x) - np.maximum(x @ w + bias, 0)).max() > 1e-4  # of float32


@BFLOAT16
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(transposed, tmp_path):
    w, x = weights(64, 64, 3, 3), weights(1, 64, 14, 14)
    convolve = relax.op.nn.conv2d_transpose if transposed else relax.op.nn.conv2d
    mod = module([("x", (1, 64, 14, 14), "float32")], lambda b, x: b.emit(convolve(x, relax.const(w), padding=1)))
    found = {}
    for precision in ("float32", "bfloat16"):
        made = compile(mod, "cpu1", "single", cost_model="roofline", precision=precision, parameters="external")
        made.export(tmp_path / f"{precision}.so")
        found[precision] = load(tmp_path / f"{precision}.so").run(x)[0]
        assert types(made) == [precision]
    error = np.linalg.norm(found["bfloat16"] - found["float32"]) / np.linalg.norm(found["float32"])
    assert 1e-4 < error < 2**-8
    sizes = [(tmp_path / f"{precision}.safetensors").stat().st_size for precision in ("float32", "bfloat16")]
    assert sizes[1] < 0.51 * sizes[0]


@BFLOAT16
def test_tables_are_stored_in_bfloat16():
    table, ids = weights(256, 64), np.array([3, 0, 255], "int64")

    def body(b, ids):
        rows = b.emit(relax.op.take(relax.const(table), ids, axis=0))
        other = b.emit(relax.op.matmul(rows, relax.const(table[:64].copy())))
        return b.emit(relax.op.concat([rows, other], 1))

    compiled = compile(
        module([("ids", (3,), "int64")], body), "cpu1", "single", cost_model="roofline", precision="bfloat16"
    )
    assert set(types(compiled)) == {"bfloat16"}
    rows = rounded(table)[ids]
    np.testing.assert_allclose(
        compiled.run(ids), np.hstack([rows, rows @ rounded(table[:64].copy())]), rtol=1e-5, atol=1e-6
    )


@BFLOAT16
def test_a_problem_is_of_the_same_operators_as_the_artifact():
    mod = module([("x", (8, 256), "float32")], lambda b, x: b.emit(relax.op.matmul(x, relax.const(weights(256, 96)))))
    settings = {"cost_model": "roofline", "precision": "bfloat16"}
    problem = make_problem(mod, "cpu1", **settings)
    assert problem.graph.operators[0].name == "onednn.matmul_bfloat16"
    assert problem.digest == compile(mod, "cpu1", "single", **settings).problem.digest


@BFLOAT16
def test_what_gains_nothing_remains_float32():
    """Few operations for each number of the source, products of two inputs, depthwise convolutions."""
    w, depthwise = weights(256, 8), weights(32, 1, 3, 3)

    def body(b, x, y, image):
        few = b.emit(relax.op.matmul(x, relax.const(w)))
        inputs = b.emit(relax.op.matmul(x, y))
        image = b.emit(relax.op.nn.conv2d(image, relax.const(depthwise), padding=1, groups=32))
        return b.emit(relax.Tuple([few, inputs, image]))

    inputs = [("x", (8, 256), "float32"), ("y", (256, 64), "float32"), ("image", (1, 32, 8, 8), "float32")]
    compiled = compile(module(inputs, body), "cpu1", "single", cost_model="roofline", precision="bfloat16")
    assert set(types(compiled)) == {"float32"}


def test_what_cannot_be_is_refused(monkeypatch):
    mod = module([("x", (8, 256), "float32")], lambda b, x: b.emit(relax.op.matmul(x, relax.const(weights(256, 96)))))
    with pytest.raises(InputError, match=r"precision is 'float16'; allowed are 'float32', 'bfloat16'"):
        compile(mod, "cpu1", "single", precision="float16")
    with pytest.raises(InputError, match="'bfloat16' is for topologies of CPUs"):
        compile(mod, "v100-server", "single", precision="bfloat16")
    with monkeypatch.context() as patch:
        patch.setattr(compile_target, "WITH_BFLOAT16", frozenset({"bfloat2040"}))
        with pytest.raises(InputError, match=r"no instructions for it \(AVX512-BF16 or AMX\): oneDNN would emulate"):
            compile(mod, "cpu1", "single", precision="bfloat16")
    if _here():
        monkeypatch.setenv(VARIABLE, "")
        with pytest.raises(InputError, match="takes the kernel library 'onednn', which is not used here"):
            compile(mod, "cpu1", "single", precision="bfloat16")
