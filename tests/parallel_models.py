"""Small models that can be computed in parts, with inputs, and schedules that do so."""

import numpy as np
import tvm
from tvm import relax

from tvm_sched.relax.decoders import decoder_module
from tvm_sched.relax.passes import (
    EmitExecutor,
    EstimateLatencies,
    LowerToKernels,
    OfferVariants,
    PrepareKernels,
    build_functions,
)  # fmt: skip
from tvm_sched.schedulers import solve
from tvm_sched_runtime.problem.decoder_config import DecoderConfig
from tvm_sched_runtime.schedule import with_choice

CONFIG = DecoderConfig(name="tiny", layers=1, hidden=32, heads=4, vocab=48, intermediate=64)


def decoder(config=CONFIG, shape=(2, 5)):
    """A decoder with values for its parameters."""
    mod = decoder_module(config, *shape)
    rng = np.random.default_rng(0)
    values = {
        p: tvm.runtime.tensor((0.3 * rng.standard_normal([int(n) for n in p.ty.shape.values])).astype("float32"))
        for p in mod["main"].params[1:]
    }
    return relax.transform.BindParams("main", values)(mod).without_attr("tvm_frontends.parameters")


def two_convolutions():
    """A convolution, ReLU, and a second convolution, whose sum over channels can be cut with the first one's channels."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((8, n, 3, 3)).astype("float32") for n in (4, 8))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 6, 6), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(x, relax.const(first), padding=1))))
            result = builder.emit_output(relax.op.nn.conv2d(made, relax.const(second), padding=1, strides=2))
        builder.emit_func_output(result)
    return builder.get()


def pictures(batch=4, height=5):
    """A convolution, pooling, and two more around which a residual goes; then one by channel, and a sum over the picture."""
    rng = np.random.default_rng(0)
    weights = [
        relax.const(rng.standard_normal(s).astype("float32")) for s in ((4, 3, 3, 3), (4, 4, 3, 3), (4, 1, 3, 3))
    ]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, 3, height, 6), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(x, weights[0], padding=1))))
            made = builder.emit(relax.op.nn.max_pool2d(made, (3, 3), padding=1))
            inner = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(made, weights[1], padding=1))))
            inner = builder.emit(relax.op.nn.conv2d(inner, weights[1], padding=1))
            made = builder.emit(relax.op.add(inner, made))
            made = builder.emit(relax.op.nn.conv2d(made, weights[2], padding=1, groups=4))
            result = builder.emit_output(relax.op.sum(made, [2, 3]))
        builder.emit_func_output(result)
    return builder.get()


def forced(problem, way):
    """A schedule in which each group that can be is computed so, on all devices in turn."""
    choice = {group.name: way for group in problem.variants.groups if way in group.alternative_names}
    assert choice, (
        f"no group can be computed as {way!r}: {[group.alternative_names for group in problem.variants.groups]}"
    )
    return with_choice(problem, solve(problem.resolve(choice), method="heft"), choice)


def given(make):
    rng = np.random.default_rng(1)
    if make is decoder:
        return rng.integers(0, CONFIG.vocab, (2, 5)).astype("int32")
    if make is pictures:
        return rng.standard_normal((4, 3, 5, 6)).astype("float32")
    return rng.standard_normal((1, 4, 6, 6)).astype("float32")


def offering(*pieces, **options):
    """The lowering to TVM's kernels that offers variants."""
    return LowerToKernels(libraries=(), after_fusion=[OfferVariants(*pieces, **options)])


def estimated(mod, topology, lower):
    """The module up to the problem of its kernels."""
    return tvm.transform.Sequential([lower, PrepareKernels(), EstimateLatencies(topology, "roofline")])(mod)


def run_placed(mod, value):
    """What a module with a schedule computes on cores."""
    executable = tvm.relax.build(build_functions(EmitExecutor("cpu")(mod)), "llvm", relax_pipeline=None)
    return relax.VirtualMachine(executable.jit(), tvm.cpu())["main"](tvm.runtime.tensor(value))
