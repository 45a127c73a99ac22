"""Hand-written modules with the oddities that a graph can have."""
# ruff: noqa: N805 - TVMScript functions have no self

import numpy as np
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812
from tvm.script import tirx as T  # noqa: N812


@I.ir_module
class Operators:
    @R.function
    def main(
        x: R.Tensor((16, 32), "float32"),
        w: R.Tensor((32, 8), "float32"),
        i: R.Tensor((2, 3), "int64"),
        c: R.Tensor((1, 3, 8, 8), "float32"),
        k: R.Tensor((4, 3, 3, 3), "float32"),
    ):
        with R.dataflow():
            a = R.matmul(x, w)
            softmax = R.nn.softmax(a)
            cumsum = R.cumsum(x, axis=1)
            argmax = R.argmax(x, axis=1)
            f = R.nn.conv2d(c, k, padding=1)
            relu = R.nn.relu(f)
            sort = R.sort(x)
            pool = R.nn.max_pool2d(c, (2, 2))
            whole = R.add(i, i)
            less = R.less(x, R.const(0.5))
            topk = R.topk(x, 3)
            reshape = R.reshape(x, (32, 16))
            gv = (softmax, cumsum, argmax, relu, sort, pool, whole, less, topk, reshape, i)
            R.output(gv)
        return gv


def operators_inputs():
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal((16, 32)).astype("float32"),
        rng.standard_normal((32, 8)).astype("float32"),
        np.arange(6).reshape(2, 3),
        rng.standard_normal((1, 3, 8, 8)).astype("float32"),
        rng.standard_normal((4, 3, 3, 3)).astype("float32"),
    ]


@I.ir_module
class Branches:
    """Four branches of matrix products, so that devices have something to share."""

    @R.function
    def main(x: R.Tensor((64, 64), "float32")):
        with R.dataflow():
            a = R.nn.relu(R.matmul(x, x))
            b = R.tanh(R.matmul(x, x))
            c = R.sigmoid(R.matmul(a, b))
            d = R.matmul(b, a)
            e = R.matmul(d, x)
            f = R.matmul(c, x)
            gv = R.add(R.multiply(e, R.const(0.01)), f)
            R.output(gv)
        return gv


@I.ir_module
class SameTwice:
    """The same tensor twice among the results, and results of results."""

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        with R.dataflow():
            y = R.exp(x)
            pair = (y, (x, y))
            gv = (pair, y)
            R.output(gv)
        return gv


@I.ir_module
class OnlyInputs:
    @R.function
    def main(x: R.Tensor((4,), "float32"), y: R.Tensor((), "bool")):
        return (y, x)


@I.ir_module
class WithoutDataflow:
    """No dataflow block, a name for a name, a cast of the type, unused work."""

    @R.function
    def main(x: R.Tensor((4, 4), "float32")):
        y = R.add(x, x)
        z = y
        u = R.match_cast(z, R.Tensor((4, 4), "float32"))
        _unused = R.exp(u)
        v = R.multiply(u, z)
        return v


@I.ir_module
class TupleInput:
    @R.function
    def main(p: R.Tuple(R.Tensor((4,), "float32"), R.Tuple(R.Tensor((4,), "float32"))), q: R.Tensor((4,), "float32")):
        with R.dataflow():
            a = p[0]
            b = p[1]
            c = b[0]
            gv = R.add(R.subtract(a, c), q)
            R.output(gv)
        return gv


@I.ir_module
class OtherFunctions:
    """A private function that main calls, and a public one beside it."""

    @R.function(private=True)
    def double(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return R.add(x, x)

    @R.function
    def other(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return R.multiply(x, x)

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = OtherFunctions
        y = cls.double(x)
        return R.exp(y)


@I.ir_module
class Symbolic:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), y: R.Tensor(("n", "m"), "float32")):
        with R.dataflow():
            gv = (R.exp(x), R.add(y, y))
            R.output(gv)
        return gv


@I.ir_module
class Derived:
    """An input's size follows from another's."""

    @R.function
    def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("n * m + 1",), "float32")):
        with R.dataflow():
            gv = (R.exp(x), R.add(y, y))
            R.output(gv)
        return gv


@I.ir_module
class Nonzero:
    @R.function
    def main(x: R.Tensor((8,), "float32")):
        y = R.nonzero(x)
        return y


def constants_only():
    """A module without inputs: computed work on constants, and a constant that is a result."""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    value = np.arange(6, dtype="float32").reshape(2, 3)
    with builder.function("main", []):
        with builder.dataflow():
            constant = relax.const(tvm.runtime.tensor(value))
            summed = builder.emit(relax.op.nn.softmax(constant))
            result = builder.emit_output(relax.Tuple([summed, constant]))
        builder.emit_func_output(result)
    shifted = np.exp(value - value.max(axis=-1, keepdims=True))
    return builder.get(), [shifted / shifted.sum(axis=-1, keepdims=True), value]


@I.ir_module
class Take:
    """Rows of two tables by indices that may be anything."""

    @R.function
    def main(t: R.Tensor((4, 3), "float32"), n: R.Tensor((4, 3), "int32"), i: R.Tensor((5,), "int64")):
        with R.dataflow():
            a = R.take(t, i, axis=0)
            b = R.take(n, i, axis=0)
            gv = (a, b)
            R.output(gv)
        return gv


SQUARE = np.random.default_rng(1).standard_normal((64, 64)).astype("float32") * 0.1
VECTOR = np.linspace(-1, 1, 4, dtype="float32")
CASES = {
    "operators": (Operators, operators_inputs()),
    "branches": (Branches, [SQUARE]),
    "same twice": (SameTwice, [VECTOR]),
    "only inputs": (OnlyInputs, [VECTOR, np.array(True)]),
    "without dataflow": (WithoutDataflow, [SQUARE[:4, :4].copy()]),
    "other functions": (OtherFunctions, [VECTOR]),
}
"""Modules with inputs."""


@I.ir_module
class Squares:
    """TVM types it, and has no kernel of a power of whole numbers."""

    @R.function
    def main(x: R.Tensor((4,), "uint8")):
        with R.dataflow():
            y = R.power(x, x)
            R.output(y)
        return y


@I.ir_module
class OfAGpu:
    """A kernel with threads of a GPU, which a CPU has not."""

    @T.prim_func(private=True)
    def plus_one(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        for i in T.thread_binding(64, thread="threadIdx.x"):
            b[i] = a[i] + T.float32(1)

    @R.function
    def main(x: R.Tensor((64,), "float32")):
        cls = OfAGpu
        with R.dataflow():
            y = R.call_tir(cls.plus_one, (x,), out_ty=R.Tensor((64,), "float32"))
            R.output(y)
        return y


def scaled_batches(factors, least=2):
    """A torch program of (least to 64, 3) numbers times one factor, or times one for each column."""
    import torch

    class Scale(torch.nn.Module):
        def forward(self, x, factor):
            return x * factor

    batch = torch.export.Dim("batch", min=least, max=64)
    return torch.export.export(Scale(), (torch.ones(4, 3), factors), dynamic_shapes={"x": {0: batch}, "factor": None})
