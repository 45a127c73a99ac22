"""Kernels in several ways: where they are offered, what a schedule makes of them, and that the values stay the same."""

import numpy as np
import pytest
from tvm import relax

from parallel_models import estimated, forced, offering, run_placed
from tvm_sched.cost_model import get_cost_model
from tvm_sched.relax import compile, make_problem
from tvm_sched.relax.decoders import decoder_variants
from tvm_sched.relax.emit import executor
from tvm_sched.relax.ir.attributes import get_problem, get_schedule
from tvm_sched.relax.passes import EstimateLatencies, LowerToKernels, Place
from tvm_sched.relax.problem.operator_graph import extract, extract_variants
from tvm_sched.relax.variants import cut_products
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import load_topology, problem_of
from tvm_sched_runtime.problem.decoder_config import DecoderConfig
from tvm_sched_runtime.schedule import verify

SIZE = 32


def weights(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((SIZE, SIZE)).astype("float32") for _ in range(2)]


def gated_module():
    """``tanh(x @ w0) * (x @ w1)``: two products of one input, of which fusion makes one wait for the other."""
    first, second = weights()
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            up = builder.emit(relax.op.matmul(x, relax.const(first)))
            gate = builder.emit(relax.op.tanh(builder.emit(relax.op.matmul(x, relax.const(second)))))
            result = builder.emit_output(relax.op.multiply(gate, up))
        builder.emit_func_output(result)
    return builder.get()


def expected(x):
    first, second = weights()
    return np.tanh(x @ second) * (x @ first)


@pytest.fixture
def small_products(monkeypatch):
    """Products of any size are worth cutting."""
    monkeypatch.setattr(cut_products, "LEAST_WEIGHTS", 0)


def test_the_end_of_a_fused_kernel_that_waits_for_another_product_is_offered_apart():
    lowered = offering()(gated_module())
    found = extract_variants(lowered)
    (group,) = found.groups
    (apart,) = group.alternatives
    assert group.alternative_names == ("fused", "apart")
    heads = [operator.kind for operator in apart.operators]
    assert [kind.startswith("matmul") for kind in heads] == [True, False]
    assert extract(lowered).graph == found.graph
    assert extract(LowerToKernels(libraries=())(gated_module())).graph == found.graph
    resolved = found.resolve({group.name: "apart"})
    assert [call.operator for call in resolved.calls] == [operator.name for operator in resolved.graph.operators]


def test_a_sum_with_what_the_product_needs_is_not_offered():
    """The residual comes before the product anyway."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.matmul(x, relax.const(weights()[0])))
            second = builder.emit(relax.op.matmul(first, relax.const(weights()[1])))
            result = builder.emit_output(relax.op.add(second, first))
        builder.emit_func_output(result)
    assert not extract_variants(offering()(builder.get())).groups


def test_a_decoder_offers_its_gates():
    config = DecoderConfig(name="tiny", layers=2, hidden=32, heads=4, vocab=50, intermediate=64)
    graph, groups = decoder_variants(config, 1, 5)
    assert len(groups) == 2
    problem = problem_of(graph, groups, load_topology("p4d"), get_cost_model("roofline"))
    assert len(problem.resolve({group.name: "apart" for group in groups}).graph.operators) == len(graph.operators) + 2


KERNELS = {"fused": 2, "apart": 3, "columns/2": 6, "columns/4": 10}
"""Kernels of the gated module: of the columns of two products, of which one has the other's end fused to it."""


@pytest.mark.parametrize("way", ["apart", "columns/4"])
def test_emulated_gpus_compute_the_same_whatever_is_chosen(way, small_products):
    problem = make_problem(gated_module(), "v100-server")
    made = compile(gated_module(), "v100-server", backend="emulated", schedule=forced(problem, way))
    assert len(made.problem.graph.operators) == KERNELS[way]
    verify(made.problem, made.schedule)
    steps = [step for step in made.module.plans()[0]["steps"] if step["kind"] == "kernel"]
    assert [step["name"] for step in steps] == [p.operator for p in made.schedule.placements]
    x = np.random.default_rng(1).standard_normal((SIZE, SIZE)).astype("float32")
    np.testing.assert_allclose(made.run(x), expected(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [29, 5])
def test_columns_that_cannot_be_divided_evenly(columns, small_products):
    """As the vocabulary of GPT-2: pieces are of unequal widths, and make all columns."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((SIZE, columns)).astype("float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.tanh(builder.emit(relax.op.matmul(x, relax.const(w)))))
        builder.emit_func_output(result)
    problem = make_problem(builder.get(), "v100-server")
    made = compile(builder.get(), "v100-server", backend="emulated", schedule=forced(problem, "columns/4"))
    assert len(made.schedule.placements) == 5
    value = rng.standard_normal((SIZE, SIZE)).astype("float32")
    np.testing.assert_allclose(made.run(value), np.tanh(value @ w), rtol=1e-4, atol=1e-5)


def test_unequal_pieces_begin_at_aligned_columns():
    product = cut_products.Product(True, relax.TensorType((4, 8), "float32"), relax.TensorType((50257, 8), "float32"))
    assert product.pieces(4) == [(0, 12576), (12576, 25152), (25152, 37728), (37728, 50257)]
    even = cut_products.Product(True, relax.TensorType((4, 8), "float32"), relax.TensorType((32000, 8), "float32"))
    assert even.pieces(2) == [(0, 16000), (16000, 32000)]
    few = cut_products.Product(True, relax.TensorType((4, 8), "float32"), relax.TensorType((9, 8), "float32"))
    assert few.pieces(4) == [(0, 2), (2, 4), (4, 6), (6, 9)]


def test_each_device_loads_its_columns_alone(small_products):
    """The parameters of a product in pieces are parts, which have the size of their columns; the whole is not in the
    plan."""
    problem = make_problem(gated_module(), "v100-server")
    made = compile(gated_module(), "v100-server", backend="emulated", schedule=forced(problem, "columns/4"))
    specs = made.module.plans()[0]["parameters"]
    assert len(specs) == 8
    assert {tuple(spec["shape"]) for spec in specs} == {(SIZE, SIZE // 4)}


@pytest.mark.parametrize("way", ["apart", "columns/2"])
def test_cores_compute_the_same_whatever_is_chosen(way, small_products):
    mod = estimated(gated_module(), "cpu2", offering((2, 4)))
    mod = Place(schedule=forced(get_problem(mod), way))(mod)
    assert get_schedule(mod).problem == get_problem(mod).digest
    x = np.random.default_rng(1).standard_normal((SIZE, SIZE)).astype("float32")
    np.testing.assert_allclose(run_placed(mod, x).numpy(), expected(x), rtol=1e-4, atol=1e-4)


def test_only_the_kernels_that_were_chosen_are_compiled(small_products, monkeypatch):
    compiled = {}
    original = executor.compile_for

    def compile_for(backend, kernels, *rest):
        compiled.update(kernels)
        return original(backend, kernels, *rest)

    monkeypatch.setattr(executor, "compile_for", compile_for)
    problem = make_problem(gated_module(), "v100-server")
    made = compile(gated_module(), "v100-server", backend="emulated", schedule=forced(problem, "columns/4"))
    steps = made.module.plans()[0]["steps"]
    assert set(compiled) == {step["function"] for step in steps if step["kind"] == "kernel"}


def test_weights_without_values_are_cut_for_scheduling_alone(small_products):
    """A weight that each call brings stays whole, unless nothing is to be compiled."""
    builder = relax.BlockBuilder()
    x, weights_ = (relax.Var(name, relax.TensorType((SIZE, SIZE), "float32")) for name in ("x", "w"))
    with builder.function("main", [x, weights_], {"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, weights_))
        builder.emit_func_output(result)
    lower = {unbound: offering((2,), unbound=unbound) for unbound in (False, True)}
    assert not extract_variants(lower[False](builder.get())).groups
    mod = EstimateLatencies("v100-server", "roofline")(lower[True](builder.get()))
    with pytest.raises(InputError, match="cuts parameter 'w', which has no value"):
        Place(schedule=forced(get_problem(mod), "columns/2"))(mod)


def test_what_is_no_product_is_not_cut(small_products):
    """A kernel that TVM would not make of a product of these operands."""
    lowered = LowerToKernels(libraries=())(gated_module())
    (kernel,) = (f for v, f in lowered.functions_items() if "tanh" in v.name_hint)
    operand = relax.Var("x", relax.TensorType((SIZE, SIZE), "float32"))
    assert cut_products.as_product(kernel, operand, operand) is None
    assert cut_products.as_product(
        cut_products.Product(True, operand.ty, operand.ty).kernel(), operand, operand
    ).transposed
    places = relax.Var("places", relax.TensorType((SIZE, SIZE), "int64"))
    assert cut_products.as_product(kernel, operand, places) is None


def test_variants_can_be_left_out():
    assert make_problem(gated_module(), "v100-server", variants=False).variants is None
    assert make_problem(gated_module(), "v100-server").variants is not None


def test_emulated_gpus_have_the_graph_of_gpus():
    """No calls of this CPU's kernel libraries."""
    kinds = {operator.kind for operator in make_problem(gated_module(), "v100-server").graph.operators}
    assert not any("onednn" in kind for kind in kinds)
    assert not make_problem(gated_module(), "cpu2", cost_model="roofline").variants
