"""Heads of attention, products of which one is cut by columns and the next by rows, channels: found, equal, cut to parts."""

import numpy as np
import pytest
from tvm import relax

from parallel_models import CONFIG, decoder, estimated, forced, given, offering, run_placed, two_convolutions
from tvm_sched.relax import compile, make_problem
from tvm_sched.relax.decoders import decoder_module
from tvm_sched.relax.ir.attributes import get_problem
from tvm_sched.relax.passes import Place
from tvm_sched.relax.problem.operator_graph import extract_variants
from tvm_sched.relax.variants import cut_products
from tvm_sched.schedulers import solve
from tvm_sched_runtime.problem.decoder_config import DecoderConfig
from tvm_sched_runtime.schedule import verify, with_choice


@pytest.fixture(autouse=True)
def small_weights(monkeypatch):
    """Weights of any size are worth cutting."""
    monkeypatch.setattr(cut_products, "LEAST_WEIGHTS", 0)


def groups_of(mod, pieces=(2, 4)):
    return extract_variants(offering(pieces)(mod)).groups


def test_a_block_is_two_regions_attention_by_heads_and_the_feed_forward_network():
    attention, feed_forward, head = groups_of(decoder())
    cuts = ("columns/2", "columns/4", "tensor/2", "tensor/4", "tensor-tree/4")
    assert attention.alternative_names == ("fused", *cuts)
    assert feed_forward.alternative_names == ("fused", "apart", *cuts)
    assert head.alternative_names == ("whole", "columns/2", "columns/4")
    assert len(attention.operators) == 11
    assert len(feed_forward.operators) == 3
    of = {alternative.name: alternative for alternative in feed_forward.alternatives}
    assert len(of["tensor/4"].operators) == 4 * 3 + 1  # no kernel puts anything together but the last
    sizes = {tensor.shape for tensor in of["tensor/4"].tensors if tensor.kind == "parameter"}
    assert sizes == {(16, 32), (32, 16)}


@pytest.mark.parametrize(("parts", "levels"), [(4, [2]), (8, [4, 2]), (5, [2, 1])])
def test_partial_sums_of_a_tree_are_added_in_pairs(parts, levels):
    """No kernel reads more than two partial sums, and each is added once; of an odd number one waits for the next level."""
    shape = DecoderConfig(name="wide", layers=1, hidden=40, heads=2, vocab=48, intermediate=80 * parts)
    groups = groups_of(decoder(shape), pieces=(parts,))  # two heads are not cut, only the feed-forward network is
    (tree,) = (each for group in groups for each in group.alternatives if each.name == f"tensor-tree/{parts}")
    assert len(tree.operators) == 3 * parts + sum(levels) + 1
    sums = [operator for operator in tree.operators if operator.kind == "add"]
    assert [len(each.inputs) for each in sums] == [2] * sum(levels)
    made_here = {name for operator in tree.operators for name in operator.outputs}
    assert len(made_here & set(tree.operators[-1].inputs)) == 2
    read = [name for operator in tree.operators for name in operator.inputs if name in made_here]
    assert len(read) == len(set(read))


def test_heads_that_cannot_be_divided_are_cut_no_further():
    attention = groups_of(decoder(DecoderConfig(name="odd", layers=1, hidden=30, heads=3, vocab=48, intermediate=64)))[
        0
    ]
    assert not any(way.startswith("tensor") for way in attention.alternative_names)


GPT = DecoderConfig(
    name="gpt", layers=1, hidden=40, heads=5, vocab=48, intermediate=64, positions=8, norm="layer", gated=False, bias=True,
    joint_qkv=True,
)  # fmt: skip


def test_one_product_for_queries_keys_and_values_is_cut_by_heads():
    """Five heads: two parts of two and three, and no four, of which one would have twice its share."""
    attention = groups_of(decoder(GPT))[0]
    assert "tensor/2" in attention.alternative_names
    assert "tensor/4" not in attention.alternative_names
    assert {"split", "softmax"} < set(attention.operators)
    (parts,) = (each for each in attention.alternatives if each.name == "tensor/2")
    assert not any(operator.kind in ("split", "strided_slice") for operator in parts.operators)
    sizes = sorted(tensor.shape for tensor in parts.tensors if tensor.kind == "parameter" and len(tensor.shape) == 2)
    assert sizes == sorted([*[(16, 40), (24, 40)] * 3, (40, 16), (40, 24)])


@pytest.mark.thorough
def test_uneven_heads_compute_the_same():
    ids = given(decoder)
    expected = compile(decoder(GPT), "v100-server", backend="emulated", scheduler="single").run(ids)
    problem = make_problem(decoder(GPT), "v100-server")
    made = compile(decoder(GPT), "v100-server", backend="emulated", schedule=forced(problem, "tensor/2"))
    np.testing.assert_allclose(made.run(ids), expected, rtol=1e-3, atol=1e-4)


def test_what_others_read_stays_whole():
    """The keys and values that a prefill returns are outputs, so heads are cut after them."""
    mod = decoder_module(CONFIG, 1, 5, phase="prefill")
    lower = offering((2,), unbound=True)
    found = extract_variants(lower(mod))
    inside = {name for group in found.groups for name in group.operators[:-1]}
    made = {name for operator in found.graph.operators if operator.name in inside for name in operator.outputs}
    assert made
    assert not made & set(found.graph.outputs)
    attention = next(group for group in found.groups if "softmax" in group.operators)
    of = {alternative.name: alternative for alternative in attention.alternatives}
    assert sum(operator.kind == "strided_slice" for operator in of["tensor/2"].operators) == 4  # keys and values, twice


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["tensor/4", "tensor-tree/4"])
def test_emulated_gpus_compute_the_same(way):
    ids = given(decoder)
    expected = compile(decoder(), "v100-server", backend="emulated", scheduler="single").run(ids)
    problem = make_problem(decoder(), "v100-server")
    made = compile(decoder(), "v100-server", backend="emulated", schedule=forced(problem, way))
    verify(made.problem, made.schedule)
    np.testing.assert_allclose(made.run(ids), expected, rtol=1e-3, atol=1e-4)
    shapes = {tuple(spec["shape"]) for spec in made.module.plans()[0]["parameters"]}
    parts = int(way.rpartition("/")[2])
    assert {(32 // parts, 32), (32, 32 // parts), (64 // parts, 32), (32, 64 // parts)} <= shapes
    assert not {(64, 32), (32, 64)} & shapes  # no device loads a whole matrix of the block


@pytest.mark.thorough
def test_convolutions_on_emulated_gpus():
    x = given(two_convolutions)
    expected = compile(two_convolutions(), "v100-server", backend="emulated", scheduler="single").run(x)
    problem = make_problem(two_convolutions(), "v100-server")
    for way in ("channels/4", "tensor/2"):
        made = compile(two_convolutions(), "v100-server", backend="emulated", schedule=forced(problem, way))
        np.testing.assert_allclose(made.run(x), expected, rtol=1e-4, atol=1e-4, err_msg=way)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "ways"),
    [(decoder, ("fused", "tensor/2")), (two_convolutions, ("whole", "tensor/2", "channels/2"))],
)
def test_cores_compute_the_same(make, ways):
    results = []
    for chosen in ways:
        mod = estimated(make(), "cpu2", offering((2,)))
        mod = Place(schedule=forced(get_problem(mod), chosen))(mod)
        results.append(run_placed(mod, given(make)).numpy())
    for way, result in zip(ways[1:], results[1:], strict=True):
        np.testing.assert_allclose(result, results[0], rtol=1e-3, atol=1e-4, err_msg=way)


def test_pieces_of_equal_shapes_are_put_together_along_axes_of_their_own():
    """Of a convolution by channels, of a product by columns: both in two parts of 1 x 4 x 4 x 4."""
    rng = np.random.default_rng(2)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            kernel = rng.standard_normal((8, 4, 3, 3)).astype("float32")
            channels = builder.emit(relax.op.nn.conv2d(x, relax.const(kernel), padding=1))
            columns = builder.emit(relax.op.matmul(x, relax.const(rng.standard_normal((4, 8)).astype("float32"))))
            result = builder.emit_output((channels, columns))
        builder.emit_func_output(result)
    mod = builder.get()
    image = rng.standard_normal((1, 4, 4, 4)).astype("float32")
    results = []
    for ways in ((), ("channels/2", "columns/2")):
        made = estimated(mod, "cpu2", offering((2,)))
        problem = get_problem(made)
        choice = {
            group.name: way for group in problem.variants.groups for way in ways if way in group.alternative_names
        }
        assert sorted(choice.values()) == sorted(ways)
        made = Place(schedule=with_choice(problem, solve(problem.resolve(choice), method="heft"), choice))(made)
        results.append([value.numpy() for value in run_placed(made, image)])
    for value, expected in zip(*results, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)
