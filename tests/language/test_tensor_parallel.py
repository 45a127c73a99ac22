"""Layers that several devices compute together: cut weights are those of cut matrices, and tokens are transformers'."""

from dataclasses import replace

import numpy as np
import pytest

from language_truth import check_greedy
from tvm_sched.cost_model import get_cost_model
from tvm_sched.relax.api import model_with_name
from tvm_sched.relax.options import CompileOptions
from tvm_sched.relax.passes import ToSchedule, homes_of, schedule_modules
from tvm_sched_bench.testing.language_models import VOCAB, save_model
from tvm_sched_language import GenerationOptions, Generator, compile_language_model, open_language_model
from tvm_sched_language.decoder import state_names
from tvm_sched_language.generation_options import FORMATS
from tvm_sched_language.language_model import in_best_parts
from tvm_sched_language.packing import pack
from tvm_sched_language.tensor_parallel import cut_columns, cut_terms, in_parts, why_not
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import FORBIDDEN

pytest.importorskip("torch")
pytest.importorskip("transformers")
WIDE = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 64}
"""Sizes whose halves are whole tiles in all formats."""


def scattered_costs(graph, topology):
    """Each operator is fast on one device only, drawn by chance, another one for each problem."""
    costs = get_cost_model("roofline")(graph, topology)
    shape, seed = costs.operator_ns.shape, sum(operator.flops for operator in graph.operators)
    slow = np.random.default_rng(seed).integers(0, shape[1], shape[0])[:, None] != np.arange(shape[1])
    return costs.replace(operator_ns=np.where(slow, 1000, 1) * costs.operator_ns, direct_ns=np.full(shape, FORBIDDEN))


@pytest.mark.parametrize("number_format", FORMATS)
def test_cut_weights_are_those_of_a_cut_matrix(number_format):
    matrix = np.random.default_rng(1).standard_normal((96, 128)).astype(np.float32)
    whole = pack(matrix, number_format)
    for part in range(2):
        rows = np.r_[16 * part : 16 * part + 16, 32 + 32 * part : 64 + 32 * part]  # of blocks of 32 and 64 columns
        for found, expected in zip(
            cut_columns(whole, (32, 64), part, 2, False), pack(matrix[rows], number_format), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
        half = matrix[:, 64 * part : 64 * part + 64]
        for found, expected in zip(cut_terms(whole, part, 2), pack(half, number_format), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_devices_compute_each_layer_and_give_the_same_tokens(tmp_path):
    folder = save_model("llama", tmp_path, **WIDE, vocab_size=VOCAB - 9)  # the last tile of the head is not full
    options = GenerationOptions(context=64, pieces=(16,), tensor_parallel=2)
    model = compile_language_model(folder, "cpu2", options, cost_model="roofline", scheduler="heft")
    for plan in model.module.plans():
        homes = {state["name"]: state["device"] for state in plan["states"]}
        assert homes == {f"{kind}.{n}.part{p}": p for kind in ("keys", "values") for n in (0, 1) for p in (0, 1)}
        assert {state["shape"][1] for state in plan["states"]} == {1}, "each has half of the two heads of keys"
    prompt = np.random.default_rng(1).integers(3, VOCAB - 9, 21).tolist()
    (text,) = Generator(model.module).generate([prompt], max_tokens=20, stop=())
    check_greedy(folder, prompt, text.tokens)
    assert model.module.info()["generation"]["tensor_parallel"] == 2


def test_the_schedule_decides_between_one_gpu_and_several(tmp_path, monkeypatch):
    """Small layers wait longer for their sums than they are computed; layers of a thousand times the work do not."""
    monkeypatch.setattr("tvm_sched.relax.passes.has_nvcc", lambda: False)  # nothing is compiled
    model = open_language_model(save_model("llama", tmp_path, **WIDE), GenerationOptions(context=64, pieces=(16,)))

    def heavy(graph, topology):
        costs = get_cost_model("roofline")(graph, topology)
        work = np.array([1 + 1000 * (operator.kind == "language.linear") for operator in graph.operators])
        return costs.replace(
            operator_ns=costs.operator_ns * work[:, None], direct_ns=np.full_like(costs.operator_ns, FORBIDDEN)
        )

    for cost_model, parts in (("roofline", 1), (heavy, 2)):
        options = CompileOptions.of("a40x2", scheduler="heft", backend="cuda", cost_model=cost_model, resident=1.0)
        assert in_best_parts(model, options, lambda *_: None).parts == parts
    one = replace(model, decode_devices=("gpu1",))
    assert in_best_parts(one, options, lambda *_: None).parts == 1, "decode steps may use one GPU only"


def test_models_that_cannot_be_cut_say_why(tmp_path):
    def cut(name, parts, number_format="float32", **changes):
        folder = save_model(name, tmp_path / name, **changes)
        return open_language_model(folder, GenerationOptions(weights=number_format, tensor_parallel=parts))

    for model, devices, message in (
        (cut("mixtral", 2), 2, "cannot be cut so: its layers have experts"),
        (cut("gemma", 2), 2, "1 of keys and a feed-forward network of 48 columns, not all of which are multiples of 2"),
        (cut("llama", 2), 2, "a part of the keys has 8 columns, and float32 needs multiples of 16"),
        (
            cut("llama", 2, "int8", **WIDE | {"intermediate_size": 96}),
            2,
            "has 48 columns, and int8 needs multiples of 32",
        ),
        (cut("llama", 2, **WIDE), 1, r"tensor_parallel is 2, and there are only 1 devices \(cpu0\)"),
    ):
        with pytest.raises(InputError, match=message):
            compile_language_model(model, f"cpu{devices}")
    with pytest.raises(InputError, match="stages and tensor_parallel are set"):
        GenerationOptions(stages=2, tensor_parallel=2)


def test_a_part_has_its_own_weights_and_the_small_ones(tmp_path):
    packed = in_parts(open_language_model(save_model("gpt2", tmp_path, n_embd=64, n_head=4)).packed, 2)
    assert not why_not(packed.architecture, "float32", 2)
    first = {name for name in packed.arrays if name.startswith("0.")}
    assert {"0.attention_norm.weight", "0.part0.output.bias", "0.part1.qkv.bias", "0.part1.down.weight"} <= first
    assert "0.part1.output.bias" not in first, "it is added once"
    assert {"table", "part0.head.weight", "part1.head.weight"} <= packed.arrays.keys(), "the tied head is cut, too"


def test_later_plans_compute_where_the_first_one_keeps_parameters(tmp_path, monkeypatch):
    """Each plan alone would have its operators elsewhere, so that weights and caches lay on several GPUs."""
    monkeypatch.setattr("tvm_sched.relax.passes.has_nvcc", lambda: False)  # nothing is compiled
    model = open_language_model(save_model("llama", tmp_path), GenerationOptions(context=64, pieces=(16,)))
    options = CompileOptions.of(
        "p4d", scheduler="heft", backend="cuda", cost_model=scattered_costs, states=state_names(range(2))
    )
    plans = [ToSchedule(model_with_name(model.import_with(shapes, None))) for shapes, _ in model.combinations()]
    first, second = map(homes_of, schedule_modules(plans, options))
    assert len({home for homes in first.values() for home in homes}) > 1
    assert all(second[name] <= homes for name, homes in first.items())
    alone = homes_of(schedule_modules(plans[1:], options)[0])
    assert not all(alone[name] <= homes for name, homes in first.items())
