"""Reading of ``config.json``: what a file lacks is what transformers takes for it."""

import json

import msgspec
import pytest

from tvm_sched_runtime.problem.decoder_config_file import FAMILIES, read_config

transformers = pytest.importorskip("transformers")
SIZES = (
    *("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "n_embd", "n_layer", "n_head", "ffn_dim"),
    *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "shared_expert_intermediate_size",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_fields_that_a_file_lacks_have_the_values_of_transformers(family, tmp_path):
    whole = transformers.AutoConfig.for_model(family).to_dict()
    read = []
    for fields in (whole, {name: whole[name] for name in SIZES if name in whole}):
        (tmp_path / "config.json").write_text(json.dumps(fields))
        found = read_config(tmp_path / "config.json", families=FAMILIES, exact=True)
        read.append(msgspec.structs.replace(found, kv_heads=found.key_heads, head_dim=found.head_width))
    assert read[1] == read[0]


def test_what_is_null_is_switched_off(tmp_path):
    """Gemma 3 has no bounds of scores and logits, but computes them where a file has them."""
    whole = transformers.AutoConfig.for_model("gemma2").to_dict()
    for family, bound, scores, logits in (("gemma2", None, 0, 0), ("gemma3_text", 20.0, 20, 20)):
        fields = {"model_type": family, "attn_logit_softcapping": bound, "final_logit_softcapping": bound}
        (tmp_path / "config.json").write_text(json.dumps({k: whole[k] for k in SIZES if k in whole} | fields))
        found = read_config(tmp_path / "config.json", families=FAMILIES, exact=True)
        assert (found.attention_cap, found.logit_cap) == (scores, logits)
