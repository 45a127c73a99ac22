"""Text of language models on emulated GPUs, token by token what transformers computes; `test_emulated_gpu` runs this."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from language_truth import check_greedy, round_weights
from thorough import repeated_here
from tvm_sched.schedulers import register as register_scheduler
from tvm_sched_bench.testing import random_schedule
from tvm_sched_bench.testing.language_models import VOCAB, configurations, save_model
from tvm_sched_language import GenerationOptions, Generator, Sampling, compile_language_model, compile_stages

pytestmark = pytest.mark.gpu
QUICK = ("gemma2", "qwen2_moe", "gpt2")
"""Caps, windows and norms behind the layers; experts, a shared one, and a bias; learned positions and no gate."""


@register_scheduler("scattered")
def scattered(problem, workload, options):
    """Operators on any of the devices, with transfers between them."""
    return random_schedule(problem, 5)


FAMILIES = tuple(configurations())
SMALL = ("bfloat16", "int8", "int4", "int4-zeros")


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        *(pytest.param(n, "float32", marks=[] if n in QUICK else pytest.mark.thorough) for n in FAMILIES),
        # Each family with one of the small formats, of which the mixtures have all.
        *(pytest.param(n, SMALL[k % 4], marks=pytest.mark.thorough) for k, n in enumerate(FAMILIES)),
        *(
            pytest.param("mixtral", each, marks=pytest.mark.thorough)
            for each in SMALL
            if each != SMALL[list(FAMILIES).index("mixtral") % 4]
        ),
    ],
)
def test_greedy_tokens_are_those_of_transformers(name, weights, tmp_path):
    several = os.environ["FAKE_CUDA_DEVICES"] == "4"
    folder = round_weights(save_model(name, tmp_path), weights)
    options = GenerationOptions(context=128, pieces=(16,), sequences=2, weights=weights, tensor_parallel=1)
    scheduler = "scattered" if several else "single"
    model = compile_language_model(folder, "a40x2", options, backend="cuda", scheduler=scheduler, variants=False)
    model.module.configure(devices=[0, 1] if several else [0, 0])
    check(folder, model.module, 40 if repeated_here() else 8)


WIDE = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 64}
"""Sizes of which a half is whole tiles of weights in all formats, and a quarter in float32."""
CUT = {
    "llama": ("int4", WIDE),
    "gpt2": ("bfloat16", {"n_embd": 64}),
    "gemma2": ("int8", WIDE | {"intermediate_size": 128}),
    "phi": ("float32", WIDE),
    "gpt_neox_serial": ("int8", {"hidden_size": 64, "intermediate_size": 128}),
    "opt": ("float32", {"hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 64}),
    "qwen3": ("float32", WIDE),
}


@pytest.mark.parametrize("name", [n if n == "llama" else pytest.param(n, marks=pytest.mark.thorough) for n in CUT])
def test_tokens_of_layers_that_gpus_compute_together(name, tmp_path):
    """Each GPU has half of the heads, or with four a quarter, and adds what all of them give."""
    several = os.environ["FAKE_CUDA_DEVICES"] == "4"
    (weights, sizes), parts = CUT[name], 4 if several else 2
    if several:
        weights, sizes = "float32", sizes | ({"num_key_value_heads": 4} if name in ("llama", "gemma2", "qwen3") else {})
    folder = round_weights(save_model(name, tmp_path, **sizes), weights)
    options = GenerationOptions(context=64, pieces=(16,), sequences=2, weights=weights, tensor_parallel=parts)
    topology = "v100-server" if several else "a40x2"
    model = compile_language_model(folder, topology, options, backend="cuda", scheduler="heft", resident=1.0)
    model.module.configure(devices=[0, 1, 2, 3] if several else [0, 0])
    assert all({s["device"] for s in plan["states"]} == set(range(parts)) for plan in model.module.plans())
    check(folder, model.module, 20 if repeated_here() else 6)


def test_sampled_tokens_are_those_of_the_cpu(tmp_path):
    """They are chosen on the GPU with the host's random numbers; weights are float32, since CPUs round rows for others."""
    folder = save_model("llama", tmp_path)
    options = GenerationOptions(context=64, pieces=(16,), sequences=2)
    prompts, how = [[7, 3, 60, 11, 5], [9]], {"max_tokens": 12, "stop": (), "sampling": Sampling(0.9, 30, 0.95, seed=3)}
    texts = []
    for topology, backend in (("cpu1", None), ("a40x2", "cuda")):
        model = compile_language_model(folder, topology, options, backend=backend, scheduler="single", variants=False)
        model.module.configure(**({"devices": [0, 0]} if backend else {}))
        generator = Generator(model.module)
        texts.append([text.tokens for text in generator.generate(prompts, **how)])
    assert texts[0] == texts[1]
    (chosen, *_), *_ = (plan["outputs"] for plan in model.module.plans())
    assert chosen["dtype"] == "int32", "no logits leave the GPU"
    assert all(0 < plan.memory_share < 1 for plan in generator.times())


@pytest.mark.thorough
def test_stages_on_gpus_of_their_own(tmp_path):
    folder = save_model("llama3", tmp_path)
    options = GenerationOptions(context=96, pieces=(16,), sequences=2, stages=2)
    model = compile_stages(folder, "a40x2", options, backend="cuda", scheduler="single", variants=False)
    for module in model.modules:
        module.configure(devices=[0, 1] if os.environ["FAKE_CUDA_DEVICES"] == "4" else [0, 0])
    check(folder, model.modules, 8)


def check(folder, modules, tokens):
    prompts = [np.random.default_rng(seed).integers(3, VOCAB, length).tolist() for seed, length in ((1, 20), (2, 3))]
    texts = Generator(modules).generate(prompts, max_tokens=tokens, stop=())
    for prompt, text in zip(prompts, texts, strict=True):
        check_greedy(folder, prompt, text.tokens, decisive=0.75)
