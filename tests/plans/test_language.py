"""Sizes of language models: weights by format, keys and values, activations."""

from __future__ import annotations

import numpy as np
import pytest
from plan_cases import config_file, machine

from tvm_sched.errors import InputError
from tvm_sched.problem.decoder_config import PRESETS
from tvm_sched_plans.architecture import read_architecture
from tvm_sched_plans.language import Serving, by_layer, language_model
from tvm_sched_plans.places import Machine, device_place
from tvm_sched_plans.token_workload import FORMATS, TokenWorkload
from tvm_sched_plans.unit_chain import Chain


def chain(name, serving=None, **workload):
    topology = machine(1 << 40)
    place = device_place(topology.devices[0], 1 << 40)
    return Chain.of(
        language_model(read_architecture(name), TokenWorkload(**workload), serving), Machine(topology, (place,))
    )


@pytest.mark.parametrize(
    ("name", "published"), [("gpt2-xl", 1_557_611_200), ("llama-2-7b", 6_738_415_616), ("llama-3-8b", 8_030_261_248)]
)
def test_weights_in_16_bits_are_the_parameters(name, published):
    made = chain(name)
    # GPT-2 ties its last layer to the table, which is counted once and noted for when the two part.
    assert made.weight.sum() == pytest.approx(2 * published, rel=1e-5)
    assert bool(made.again) == PRESETS[name].tied


def test_keys_and_values_follow_context_batch_and_key_heads():
    assert chain("llama-2-7b", context=4096).cache.sum() == 2 * 32 * 4096 * 4096 * 2  # layers, hidden, tokens, bytes
    assert chain("llama-3-8b", context=4096, batch=3).cache.sum() == 3 * 2 * 32 * (8 * 128) * 4096 * 2
    assert chain("llama-3-8b", context=4096, cache_dtype="q8_0").cache.sum() == 2 * 32 * (8 * 128 // 32 * 34) * 4096
    assert chain("llama-3-8b", Serving(cache_block=256), context=1000).cache.sum() == 2 * 32 * 1024 * 1024 * 2


def test_blocks_of_llama_cpp_have_its_sizes():
    constants = pytest.importorskip("gguf.constants", reason="the package gguf is not installed")
    for name, (block, size) in {t.name.lower(): v for t, v in constants.GGML_QUANT_SIZES.items()}.items():
        if name in FORMATS:
            assert (FORMATS[name].block, FORMATS[name].block_bytes) == (block, size), name
    quantised = [name for name in FORMATS if name.startswith("q")]
    assert set(quantised) <= {t.name.lower() for t in constants.GGML_QUANT_SIZES}


def test_a_llama_in_4_bit_blocks_has_the_size_of_its_published_file():
    # llama-2-7b.Q4_0.gguf: 3,825,807,040 bytes with 700 KB of tokens.
    assert chain("llama-2-7b", dtype="q4_0").weight.sum() == pytest.approx(3_825_807_040, rel=2e-3)


def test_activations_grow_with_the_chunk_and_not_with_the_prompt():
    small, large = (chain("llama-2-7b", Serving(chunk=c), context=8192).peak.max() for c in (512, 2048))
    assert 3.9 < large / small < 4.1
    assert chain("llama-2-7b", Serving(chunk=512), context=2048).peak.max() == small


def test_units_are_the_same_merged_or_not():
    model = language_model(read_architecture("openllama-3b"), TokenWorkload())
    topology = machine(1 << 40)
    here = Machine(topology, (device_place(topology.devices[0], 1 << 40),))
    chains = [Chain.of(each, here) for each in (model, by_layer(model), by_layer(model, ends=True))]
    assert [len(c.model.units) for c in chains] == [2 + 52, 2 + 26, 26]
    for field in ("time_ns", "weight", "cache"):
        assert len({int(getattr(c, field).sum()) for c in chains}) == 1
    assert len({int(np.max(c.peak)) for c in chains}) == 1


def test_configurations_of_qwen_have_a_bias(tmp_path):
    plain = read_architecture(config_file(tmp_path))
    qwen = read_architecture(config_file(tmp_path, model_type="qwen2"))
    assert not plain.bias_of_queries
    assert qwen.bias_of_queries
    assert qwen.positions == 256


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"context": 1}, "context is 1"), ({"batch": 0}, "batch is 0"), ({"dtype": "q4"}, "did you mean 'q4_k'"),
     ({"cache_dtype": "int3"}, "there are fp32"), ({"new_tokens": 4096}, "a prompt of 1 must fit")],
)  # fmt: skip
def test_wrong_workloads_are_refused(changes, said):
    with pytest.raises(InputError, match=said):
        TokenWorkload(**changes)


def test_wrong_configurations_are_refused(tmp_path):
    with pytest.raises(InputError, match="model_type is 'mamba'; allowed are llama"):
        read_architecture(config_file(tmp_path, model_type="mamba"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"not a config\.json"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match=r"without config\.json"):
        read_architecture(tmp_path)


def test_a_plan_has_the_intervals_of_its_prices(tmp_path):
    from tvm_sched_plans import export_plan

    sure = export_plan("gpt2-xl", "a6000-server", "llama.cpp", costs="roofline")
    made = export_plan("gpt2-xl", "a6000-server", "llama.cpp", costs="learned")
    assert sure.ours.intervals_ns == {}
    for name, latency in (("", made.ours.total_ns), *made.ours.phase_ns.items()):
        low, high = made.ours.intervals_ns[name]
        assert low < latency < high
