"""Heads of attention, products of which one is cut by columns and the next by rows, channels: found, equal, cut to parts."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.problem.decoder_config import DecoderConfig
from tvm_sched.relax import compile, make_problem, products
from tvm_sched.relax.attributes import get_problem
from tvm_sched.relax.decoders import decoder_module
from tvm_sched.relax.emit import executor  # noqa: F401 - as in a compile
from tvm_sched.relax.graph import extract_variants
from tvm_sched.relax.passes import EmitExecutor, EstimateLatencies, LowerToKernels, Place
from tvm_sched.relax.pipelines import build_rest
from tvm_sched.schedule import verify, with_choice
from tvm_sched.schedulers import solve

CONFIG = DecoderConfig(name="tiny", layers=1, hidden=32, heads=4, vocab=48, intermediate=64)


@pytest.fixture(autouse=True)
def small_weights(monkeypatch):
    """Weights of any size are worth cutting."""
    monkeypatch.setattr(products, "LEAST_WEIGHTS", 0)


def decoder(config=CONFIG):
    """A decoder with values for its parameters."""
    mod = decoder_module(config, 2, 5)
    rng = np.random.default_rng(0)
    values = {
        p: tvm.runtime.tensor((0.3 * rng.standard_normal([int(n) for n in p.ty.shape.values])).astype("float32"))
        for p in mod["main"].params[1:]
    }
    return relax.transform.BindParams("main", values)(mod).without_attr("tvm_sched.parameters")


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


def forced(problem, way):
    """A schedule in which each group that can be is computed so, on all devices in turn."""
    choice = {group.name: way for group in problem.variants.groups if way in group.ways}
    assert choice
    return with_choice(problem, solve(problem.resolve(choice), "heft"), choice)


def groups_of(mod, pieces=(2, 4)):
    return extract_variants(LowerToKernels(libraries=(), variants=True, pieces=pieces)(mod)).groups


def test_a_block_is_two_regions_attention_by_heads_and_the_feed_forward_network():
    attention, feed_forward, head = groups_of(decoder())
    assert attention.ways == ("fused", "columns/2", "columns/4", "tensor/2", "tensor/4")
    assert feed_forward.ways == ("fused", "apart", "columns/2", "columns/4", "tensor/2", "tensor/4")
    assert head.ways == ("whole", "columns/2", "columns/4")
    assert len(attention.operators) == 11 and len(feed_forward.operators) == 3
    of = {alternative.name: alternative for alternative in feed_forward.alternatives}
    assert len(of["tensor/4"].operators) == 4 * 3 + 1  # no kernel puts anything together but the last
    sizes = {tensor.shape for tensor in of["tensor/4"].tensors if tensor.kind == "parameter"}
    assert sizes == {(16, 32), (32, 16)}


def test_heads_that_cannot_be_divided_are_cut_no_further():
    attention = groups_of(decoder(DecoderConfig(name="odd", layers=1, hidden=30, heads=3, vocab=48, intermediate=64)))[0]
    assert not any(way.startswith("tensor") for way in attention.ways)


def test_what_others_read_stays_whole():
    """The keys and values that a prefill returns are outputs, so heads are cut after them."""
    mod = decoder_module(CONFIG, 1, 5, phase="prefill")
    lowered = LowerToKernels(libraries=(), variants=True, pieces=(2,), unbound=True)(mod)
    attention = extract_variants(lowered).groups
    outputs = set(extract_variants(lowered).graph.outputs)
    made = {name for group in attention for name in group.operators[:-1]}
    graph = extract_variants(lowered).graph
    assert not any(set(operator.outputs) & outputs for operator in graph.operators if operator.name in made)


@pytest.mark.parametrize("way", ["tensor/2", "tensor/4"])
def test_emulated_gpus_compute_the_same(way):
    ids = np.random.default_rng(1).integers(0, 48, (2, 5)).astype("int32")
    expected = compile(decoder(), "v100-server", backend="emulated", scheduler="single").run(ids)
    problem = make_problem(decoder(), "v100-server")
    made = compile(decoder(), "v100-server", backend="emulated", schedule=forced(problem, way))
    verify(made.problem, made.schedule)
    np.testing.assert_allclose(made.run(ids), expected, rtol=1e-3, atol=1e-4)
    shapes = {tuple(spec["shape"]) for spec in made.module.plans()[0]["parameters"]}
    parts = int(way[-1])
    assert {(32 // parts, 32), (32, 32 // parts), (64 // parts, 32), (32, 64 // parts)} <= shapes
    assert not {(64, 32), (32, 64)} & shapes  # no device loads a whole matrix of the block


@pytest.mark.parametrize("way", ["channels/2", "channels/4", "tensor/2"])
def test_convolutions_on_emulated_gpus(way):
    x = np.random.default_rng(1).standard_normal((1, 4, 6, 6)).astype("float32")
    expected = compile(two_convolutions(), "v100-server", backend="emulated", scheduler="single").run(x)
    problem = make_problem(two_convolutions(), "v100-server")
    made = compile(two_convolutions(), "v100-server", backend="emulated", schedule=forced(problem, way))
    np.testing.assert_allclose(made.run(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make, way", [(decoder, "tensor/2"), (two_convolutions, "tensor/2"), (two_convolutions, "channels/2")])
def test_cores_compute_the_same(make, way):
    results = []
    for chosen in ("", way):
        passes = [LowerToKernels(libraries=(), variants=True, pieces=(2,)), EstimateLatencies("cpu2", "roofline")]
        mod = tvm.transform.Sequential(passes)(make())
        problem = get_problem(mod)
        mod = Place(schedule=forced(problem, chosen) if chosen else solve(problem.resolve({}), "single"))(mod)
        executable = tvm.relax.build(build_rest(EmitExecutor("cpu")(mod)), "llvm", relax_pipeline=None)
        shape = [int(n) for n in mod["main"].params[0].ty.shape.values] if False else None
        rng = np.random.default_rng(1)
        given = rng.integers(0, 48, (2, 5)).astype("int32") if make is decoder else rng.standard_normal((1, 4, 6, 6)).astype("float32")
        del shape
        results.append(relax.VirtualMachine(executable.jit(), tvm.cpu())["main"](tvm.runtime.tensor(given)).numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-3, atol=1e-4)
