"""Decoders from configurations: what they compute, what they weigh, and what is refused."""

import json

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.relax.decoders import decoder_graph, decoder_module
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem.decoder_config import PRESETS, DecoderConfig
from tvm_sched_runtime.problem.decoder_config_file import read_config

TINY = DecoderConfig(name="tiny", layers=2, hidden=32, heads=4, vocab=50, intermediate=48)
SHARED_KEYS = DecoderConfig(name="shared", layers=2, hidden=32, heads=4, kv_heads=2, vocab=50, intermediate=48)
GPT2 = DecoderConfig(
    name="gpt", layers=2, hidden=32, heads=4, vocab=50, intermediate=128, positions=16, norm="layer", gated=False,
    bias=True, joint_qkv=True, tied=True,
)  # fmt: skip


def parameter_count(config):
    """How many numbers the model's weights have, by its configuration."""
    queries, keys = config.heads * config.head_width, config.key_heads * config.head_width
    linear = [(config.hidden, queries), (config.hidden, keys), (config.hidden, keys), (queries, config.hidden)]
    linear += [(config.hidden, config.intermediate)] * (2 if config.gated else 1)
    linear += [(config.intermediate, config.hidden)]
    norm = config.hidden * (2 if config.norm == "layer" else 1)
    block = sum(rows * columns + (columns if config.bias else 0) for rows, columns in linear) + 2 * norm
    tables = config.vocab * config.hidden * (1 if config.tied else 2) + config.positions * config.hidden
    return config.layers * block + norm + tables


def parameter_bytes(graph):
    return sum(tensor.size for tensor in graph.tensors if tensor.kind == "parameter")


@pytest.mark.parametrize(
    ("name", "millions"), [("gpt2-large", 774), ("gpt2-xl", 1558), ("openllama-3b", 3426), ("openllama-7b", 6738)]
)
def test_presets_have_the_published_number_of_parameters(name, millions):
    assert round(parameter_count(PRESETS[name]) / 1e6) == millions


@pytest.mark.parametrize("name", [pytest.param("gpt2-large", marks=pytest.mark.thorough), "openllama-3b"])
def test_the_graph_of_a_preset_has_all_parameters(name):
    assert parameter_bytes(decoder_graph(PRESETS[name], 1, 32)) == 4 * parameter_count(PRESETS[name])


@pytest.mark.parametrize("config", [TINY, SHARED_KEYS, GPT2], ids=lambda c: c.name)
def test_counted_parameters_are_those_of_the_graph(config):
    for dtype, width in (("float32", 4), ("float16", 2)):
        assert parameter_bytes(decoder_graph(config, 2, 3, dtype=dtype)) == width * parameter_count(config)


def test_operations_of_the_matrix_products_by_hand():
    """A token passes each weight once, 2 operations each; scores and mixing take 2 * width * heads for a pair of tokens."""
    graph = decoder_graph(TINY, 1, 5)
    products = sum(o.flops for o in graph.operators if "matmul" in o.kind)
    weights = parameter_count(TINY) - 50 * 32 - (2 * 2 + 1) * 32  # neither the table nor normalisations
    pairs = 2 * TINY.layers * 2 * 32 * 5 * 5
    assert 0 <= products - (2 * 5 * weights + pairs) < 0.05 * products  # the rest is fused: additions, activations


def arguments(mod, ids, seed=0):
    """The inputs and random parameters of a module, by name, the cache left out."""
    rng, values = np.random.default_rng(seed), {"input_ids": ids}
    for variable in mod["main"].params[1:]:
        if "cached" not in variable.name:
            shape = [int(d) for d in variable.ty.shape]
            values[variable.name] = rng.normal(size=shape, scale=0.2).astype("float32")
    return values


def run(mod, values):
    unoptimised = tvm.target.Target({"kind": "llvm", "opt-level": 0})  # a seventh of the time
    machine = relax.VirtualMachine(tvm.compile(mod, target=unoptimised), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(values[v.name]) for v in mod["main"].params))
    return [part.numpy() for part in result] if hasattr(result, "__len__") else [result.numpy()]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [pytest.param(TINY, marks=pytest.mark.thorough), SHARED_KEYS, GPT2], ids=lambda c: c.name
)
def test_one_more_token_on_the_cache_is_the_last_of_all_at_once(config):
    ids = np.random.default_rng(1).integers(0, config.vocab, (2, 6)).astype("int32")
    full = decoder_module(config, 2, 6)
    values = arguments(full, ids)
    expected = run(full, values)[0][:, -1:]
    cache = run(decoder_module(config, 2, 5, phase="prefill"), {**values, "input_ids": ids[:, :5]})[1:]
    decode = decoder_module(config, 2, 5, phase="decode")
    cached = [v.name for v in decode["main"].params if "cached" in v.name]
    assert len(cached) == len(cache) == 2 * config.layers
    logits, *new = run(decode, {**values, "input_ids": ids[:, 5:], **dict(zip(cached, cache, strict=True))})
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert [part.shape for part in new] == [(2, config.key_heads, 1, 8)] * len(cached)


@pytest.mark.slow
def test_later_tokens_change_nothing_before_them():
    mod = decoder_module(TINY, 1, 4)
    values = arguments(mod, np.array([[1, 2, 3, 4]], "int32"))
    first = run(mod, values)[0]
    second = run(mod, {**values, "input_ids": np.array([[1, 2, 3, 9]], "int32")})[0]
    np.testing.assert_array_equal(first[:, :3], second[:, :3])
    assert not np.array_equal(first[:, 3], second[:, 3])


def hugging_face(kind):
    """A tiny model of transformers, and its weights under the names of ours."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, tie_word_embeddings=False,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        names = {
            "model.embed_tokens": "embedding", "model.layers": "blocks", "self_attn.q_proj": "attention.query",
            "self_attn.k_proj": "attention.key", "self_attn.v_proj": "attention.value",
            "self_attn.o_proj": "attention.output", "mlp.": "feed_forward.", "_proj": "",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "feed_forward_norm", "model.norm": "norm", "lm_head": "head",
        }  # fmt: skip
    else:
        config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=16)
        model = transformers.GPT2LMHeadModel(config)
        names = {
            "transformer.": "", "wte": "embedding", "wpe.weight": "positions", "h.": "blocks.", "ln_1": "attention_norm",
            "ln_2": "feed_forward_norm", "ln_f": "norm", "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.output",
            "mlp.c_fc": "feed_forward.up", "mlp.c_proj": "feed_forward.down",
        }  # fmt: skip
    weights = {}
    for name, value in model.eval().state_dict().items():
        ours = name
        for old, new in names.items():
            ours = ours.replace(old, new)
        transposed = kind == "gpt2" and value.ndim == 2 and "blocks" in ours
        weights[ours] = np.ascontiguousarray(value.T.numpy() if transposed else value.numpy())
    return config, model, weights


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_config_of_hugging_face_computes_what_transformers_does(kind, tmp_path):
    config, model, weights = hugging_face(kind)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    import torch

    ids = np.random.default_rng(2).integers(0, 50, (2, 7)).astype("int32")
    with torch.no_grad():
        expected = model(torch.tensor(ids.astype("int64"))).logits.numpy()
    mod = decoder_module(read_config(tmp_path / "config.json", "tiny"), 2, 7)
    np.testing.assert_allclose(run(mod, {**weights, "input_ids": ids})[0], expected, rtol=1e-3, atol=1e-4)


def test_rotary_embedding_is_read_as_transformers_4_and_5_write_it(tmp_path):
    path = tmp_path / "config.json"
    sizes = {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50,
        "intermediate_size": 48,
    }  # fmt: skip
    for fields in ({"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5}}):
        path.write_text(json.dumps({**sizes, **fields}))
        config = read_config(path)
        assert (config.rope_theta, config.rope.rope_type) == (5e5, "default")


def test_what_is_wrong_is_refused(tmp_path):
    with pytest.raises(InputError, match="heads do not divide"):
        DecoderConfig(layers=1, hidden=30, heads=4, vocab=5, intermediate=5)
    with pytest.raises(InputError, match="kv_heads do not divide"):
        DecoderConfig(layers=1, hidden=32, heads=4, kv_heads=3, vocab=5, intermediate=5)
    with pytest.raises(InputError, match="at most 16"):
        decoder_graph(GPT2, 1, 17)
    with pytest.raises(InputError, match="at most 15"):
        decoder_graph(GPT2, 1, 16, phase="decode")
    with pytest.raises(InputError, match="phase is 'train'"):
        decoder_graph(TINY, 1, 1, phase="train")
    with pytest.raises(InputError, match="tokens is 0"):
        decoder_graph(TINY, 1, 0)
    path = tmp_path / "config.json"
    for text, message in (
        ('{"model_type": "t5"}', "model_type is 't5'; allowed are gpt2"),
        ('{"model_type": "llama", "hidden_size": "big"}', "is None; a whole number"),
        ('{"model_type": "llama", "num_hidden_layers": 2}', "hidden_size is None; a whole number"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_config(path)
