"""Text of language models on emulated GPUs, token by token what transformers computes; `test_emulated_gpu` runs this."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from language_truth import check_greedy
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


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in configurations()]
)
def test_greedy_tokens_are_those_of_transformers(name, tmp_path):
    several = os.environ["FAKE_CUDA_DEVICES"] == "4"
    folder = save_model(name, tmp_path)
    options = GenerationOptions(context=128, pieces=(16,), sequences=2)
    scheduler = "scattered" if several else "single"
    model = compile_language_model(folder, "a40x2", options, backend="cuda", scheduler=scheduler, variants=False)
    model.module.configure(devices=[0, 1] if several else [0, 0])
    check(folder, model.module, 40 if repeated_here() else 8)


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
