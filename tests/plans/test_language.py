"""Sizes of language models: weights by format, keys and values, activations."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from plan_cases import config_file, machine

from tvm_sched_plans.language import Serving, by_layer, language_model, read_architecture
from tvm_sched_plans.places import Machine, device_place
from tvm_sched_plans.token_workload import FORMATS, TokenWorkload
from tvm_sched_plans.unit_chain import Chain
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem.decoder_config import PRESETS, DecoderConfig


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


ONE_LAYER = DecoderConfig(layers=1, hidden=64, heads=4, kv_heads=2, vocab=100, intermediate=128)


def attention_of(workload, serving=None, **fields):
    """Operators of the only layer's attention by the ends of their names, in each phase, with the bytes that they move."""
    model = language_model(msgspec.structs.replace(ONE_LAYER, **fields), TokenWorkload(**workload), serving)
    found = {}
    for phase in model.phases:
        size = {t.name: t.size for t in phase.timed.tensors}
        found[phase.name] = {
            o.name.rpartition(".")[2]: (
                o.kind,
                o.flops,
                sum(size[t] for t in o.inputs),
                sum(size[t] for t in o.outputs),
            )
            for o in phase.graph.operators
        }
    return found


def test_attention_of_an_encoder_by_hand():
    # Two sequences of 10 tokens: each token sees all 10. 4 operations for each of 64 numbers of a query, 2 bytes a number,
    # and keys and values of 2 heads of 16 numbers.
    work = {"context": 10, "batch": 2}
    encoder = attention_of(work, causal=False)
    assert list(encoder) == ["run"]
    assert encoder["run"]["attention"] == ("library.attention", 4 * 20 * 10 * 64, 20 * (64 + 64) * 2, 20 * 64 * 2)
    apart = attention_of(work, Serving(fused_attention=False), causal=False)["run"]
    scores = 2 * 4 * 10 * 10
    assert apart["scores"] == ("library.matmul", 2 * 20 * 10 * 64, 20 * (64 + 32) * 2, scores * 2)
    assert apart["softmax"] == ("softmax", scores, scores * 2, scores * 2)
    assert apart["attention"] == ("library.matmul", 2 * 20 * 10 * 64, scores * 2 + 20 * 32 * 2, 20 * 64 * 2)


@pytest.mark.parametrize(
    ("windows", "seen", "decoded"),
    [((), sum(range(1, 11)), 11), ((4,), 1 + 2 + 3 + 7 * 4, 4), ((0, 4), sum(range(1, 11)), 11)],
)
def test_attention_of_a_decoder_by_hand(windows, seen, decoded):
    # A prompt of 10 tokens, of which token i sees i or as many as the window has, then one that sees 11.
    work = {"context": 11, "new_tokens": 1}
    both = attention_of(work, windows=windows)
    assert both["prefill"]["attention"][1] == 4 * seen * 64
    cache = decoded * 2 * 32 * 2
    assert both["decode"]["attention"] == ("library.attention", 4 * decoded * 64, (64 + 64) * 2 + cache, 64 * 2)
    if not windows:  # without a fused kernel, all scores are computed, those of later tokens, too
        apart = attention_of(work, Serving(fused_attention=False))["prefill"]
        assert apart["scores"][1] == apart["attention"][1] == 2 * 10 * 10 * 64


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"model_type": "mistral", "sliding_window": 4096}, [4096] * 6), ({"model_type": "mistral"}, [4096] * 6),
     ({"model_type": "mixtral", "sliding_window": 9, "num_local_experts": 2, "num_experts_per_tok": 1}, [9] * 6),
     ({"model_type": "mistral", "sliding_window": None}, [0] * 6), ({"sliding_window": 4096}, [0] * 6),
     ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, [0] * 6),
     ({"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 4}, [0] * 4 + [9] * 2),
     ({"model_type": "gemma2", "sliding_window": 9}, [9, 0] * 3),
     ({"model_type": "gemma3_text", "sliding_window": 9}, [9] * 5 + [0]),
     ({"model_type": "mistral", "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"] * 3},
      [9, 0] * 3)],
)  # fmt: skip
def test_windows_of_the_layers_are_those_of_the_file(tmp_path, fields, expected):
    read = read_architecture(config_file(tmp_path, **fields))
    assert [read.layer(i).window for i in range(6)] == expected


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
    assert not plain.qkv_bias
    assert qwen.qkv_bias
    assert qwen.context == 256


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
