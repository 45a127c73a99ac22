"""Mixtures of experts: sizes, bytes that are read and operations by hand, and how llama.cpp is told where experts are."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from plan_cases import config_file, machine

from tvm_sched_plans import export_plan, get_runtime
from tvm_sched_plans.language import experts_read, language_model, read_architecture
from tvm_sched_plans.runtimes import PlanRequest, Split
from tvm_sched_plans.token_workload import TokenWorkload
from tvm_sched_runtime.errors import InputError

FOUR = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN = {"model_type": "qwen3_moe", "moe_intermediate_size": 64}
MIXTRAL_8X7B = {
    **FOUR, "num_local_experts": 8, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
}  # fmt: skip
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip


def test_experts_that_are_read_in_the_mean():
    # One of 8 is left by a token with chance 6/8.
    assert [experts_read(8, 2, tokens) for tokens in (1, 2, 3)] == pytest.approx([2, 3.5, 8 * (1 - 0.75**3)])
    assert experts_read(8, 2, 512) == pytest.approx(8)
    assert experts_read(4, 4, 1) == 4


@pytest.mark.parametrize(("fields", "published"), [(MIXTRAL_8X7B, 46_702_792_704), (QWEN3_30B_A3B, 30_532_122_624)])
def test_weights_in_16_bits_are_the_parameters(tmp_path, fields, published):
    phase = language_model(read_architecture(config_file(tmp_path, **fields)), TokenWorkload(context=64)).phases[0]
    parameters = (t for t in phase.graph.tensors if t.kind == "parameter" and not t.name.startswith("cache"))
    # Qwen's norms of queries and keys, 12,288 numbers, are not counted.
    assert sum(tensor.size for tensor in parameters) == pytest.approx(2 * published, rel=1e-6)


@pytest.mark.parametrize(("batch", "read"), [(1, 2), (2, 3)])
def test_bytes_and_operations_of_a_step_by_hand(tmp_path, batch, read):
    """Four experts of width 128, two for each token of 64 numbers of 2 bytes."""
    model = language_model(read_architecture(config_file(tmp_path, **FOUR)), TokenWorkload(context=32, batch=batch))
    decode = model.phases[1]
    held, moved = ({t.name: t.size for t in graph.tensors} for graph in (decode.graph, decode.timed))
    up, down, router, norm = 2 * 128 * 64 * 2, 64 * 128 * 2, 4 * 64 * 2, 64 * 2
    assert (held["0.up.weights"], held["0.down.weights"]) == (4 * up + router + norm, 4 * down)
    assert (moved["0.up.weights"], moved["0.down.weights"]) == (read * up + router + norm, read * down)
    assert held["0.inner"] == batch * 2 * 256 * 2
    flops = {operator.name: operator.flops for operator in decode.graph.operators}
    # An operation is half of what a product of two numbers and its sum take; a number has 2 bytes.
    assert flops["0.up"] == batch * (2 * up + router)
    assert flops["0.down"] == batch * 2 * down


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"num_experts_per_tok": 5}, "5 of 4 experts are chosen for a token"),
     ({"num_local_experts": 0}, "num_local_experts is 0"),
     ({**QWEN, "mlp_only_layers": [0]}, r"layers 0 have no experts \(mlp_only_layers"),
     ({**QWEN, "decoder_sparse_step": 2}, "layers 0, 2, 4 have no experts"),
     ({"model_type": "qwen3_moe"}, "moe_intermediate_size is None")],
)  # fmt: skip
def test_wrong_mixtures_are_refused(tmp_path, fields, said):
    path = config_file(tmp_path, **{**FOUR, **fields})
    with pytest.raises(InputError, match=f"{re.escape(str(path))}: .*{said}"):
        read_architecture(path)


@pytest.mark.parametrize("runtime", ["accelerate", "torch"])
def test_runtimes_that_are_not_planned_for_mixtures_say_so(tmp_path, runtime):
    with pytest.raises(InputError, match=rf"for which {runtime} is not planned; exo, llama\.cpp and vllm are"):
        export_plan(config_file(tmp_path, **FOUR), machine(24e9), runtime)


def request_of(tmp_path, *memory):
    architecture = read_architecture(config_file(tmp_path, **FOUR))
    return PlanRequest(architecture, machine(*memory), TokenWorkload(context=32), "roofline", overhead=0)


def test_llama_cpp_keeps_the_experts_of_the_first_layers_on_the_host(tmp_path):
    """A GPU that lacks memory for one and a half layers' experts: the experts of two layers are on the host."""
    runtime, request = get_runtime("llama.cpp"), request_of(tmp_path, 1e9)
    (case,) = runtime.cases(request)
    assert [split.label for split in runtime.defaults(request, [case])] == ["all layers, by free memory"]
    needed = case.chain.placement_bytes((0, *(1,) * 13))[1]
    request = request_of(tmp_path, needed - 1.5 * int(case.chain.weight[2]))
    (case,) = runtime.cases(request)
    splits = {split.label: split for split in runtime.defaults(request, [case])}
    assert list(splits) == ["all layers, by free memory", "-ngl 5, by free memory", "--n-cpu-moe 2"]
    split = splits["--n-cpu-moe 2"]
    assert split.placement == (0, 1, 0, 1, 0, *(1,) * 9)
    script = runtime.write(request, split)["llama.sh"]
    assert "-ngl 7 --device CUDA0 --split-mode layer --tensor-split 7 --n-cpu-moe 2 -c " in script


def test_patterns_of_llama_cpp_name_experts_alone(tmp_path):
    runtime, request = get_runtime("llama.cpp"), request_of(tmp_path, 1e9, 1e9)
    (case,) = runtime.cases(request)
    # Layers 0 and 1 on the first GPU with experts on the host, the others on the second; experts of layer 3 on the first.
    split = Split("ours", case, (0, 1, 0, 1, 0, 2, 2, 2, 1, *(2,) * 5))
    settings = runtime.settings(request, split)
    assert (settings["device"], settings["tensor_split"], settings["n_cpu_moe"]) == (["CUDA0", "CUDA1"], [2, 5], 2)
    (pattern,) = settings["override_tensor"]
    expression, _, device = pattern.partition("=")
    assert device == "CUDA0"
    experts = ["ffn_up_exps", "ffn_gate_exps", "ffn_down_exps", "ffn_gate_up_exps"]
    assert all(re.search(expression, f"blk.3.{name}.weight") for name in experts)
    others = ["ffn_gate_inp", "ffn_norm", "ffn_up_shexp", "attn_q"]
    assert not any(re.search(expression, f"blk.3.{name}.weight") for name in others)
    assert not re.search(expression, "blk.13.ffn_up_exps.weight")
    # The first layers wholly on the host need no option.
    whole = replace(split, placement=(0, 0, 0, *(1,) * 11))
    assert "--n-cpu-moe" not in runtime.write(request, whole)["llama.sh"]
