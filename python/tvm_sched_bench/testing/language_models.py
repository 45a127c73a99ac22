"""Small random language models as Hugging Face folders, with a tokenizer of bytes. They need PyTorch and transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCAB = 128
"""Size of the vocabulary of `configurations`."""


def configurations() -> dict[str, Any]:
    """Return by name the configuration of a small model of each family."""
    import transformers as t

    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    common = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "max_position_embeddings": 256, "initializer_range": 0.3, **tokens,
    }  # fmt: skip
    grouped = common | {"num_key_value_heads": 2}
    heads = {"head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": 24}
    mixture = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    llama3 = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    return {
        "gpt2": t.GPT2Config(
            vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3, **tokens
        ),
        "llama": t.LlamaConfig(**grouped),
        "llama3": t.LlamaConfig(**grouped, rope_parameters=llama3),
        "qwen2": t.Qwen2Config(**grouped),
        "qwen3": t.Qwen3Config(**grouped, head_dim=16),
        "mistral": t.MistralConfig(**grouped, sliding_window=24),
        "gemma": t.GemmaConfig(**common, num_key_value_heads=1, head_dim=16),
        "gemma2": t.Gemma2Config(**grouped, **heads),
        "gemma3_text": t.Gemma3TextConfig(**grouped, **heads, layer_types=["sliding_attention", "full_attention"]),
        "phi": t.PhiConfig(**common),
        "phi3": t.Phi3Config(**grouped),
        "opt": t.OPTConfig(
            vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48,
            max_position_embeddings=256, word_embed_proj_dim=32, init_std=0.3, **tokens,
        ),
        "gpt_neox": t.GPTNeoXConfig(**common),
        "gpt_neox_serial": t.GPTNeoXConfig(**common, use_parallel_residual=False),
        "mixtral": t.MixtralConfig(**grouped, num_local_experts=4, sliding_window=24),
        "qwen2_moe": t.Qwen2MoeConfig(**grouped, **mixture, shared_expert_intermediate_size=40),
        "qwen3_moe": t.Qwen3MoeConfig(**grouped, **mixture, head_dim=16, norm_topk_prob=True, mlp_only_layers=[0]),
    }  # fmt: skip


def save_model(name: str, folder: str | Path, seed: int = 0, **changes: Any) -> Path:
    """Write the folder of a random model of a family, with changed fields of its configuration."""
    import torch
    import transformers

    config = configurations()[name]
    for field, value in changes.items():
        setattr(config, field, value)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # norms are 1 and biases 0 at first, so that mixing them up would not be seen
        for key, value in model.named_parameters():
            if "norm" in key or "ln_" in key or key.endswith("bias"):
                value += 0.2 * torch.randn_like(value)
    model.save_pretrained(folder)
    return Path(folder)


def save_tokenizer(folder: str | Path, chat_template: str | None = None) -> Any:
    """Add a tokenizer whose tokens are bytes, with the token 2 for the end of a text; it needs a vocabulary of 259."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2}
    vocab |= {letter: 3 + k for k, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    tokenizer.save(str(Path(folder) / "tokenizer.json"))
    if chat_template:
        (Path(folder) / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": chat_template, "bos_token": "<s>"})
        )
    return tokenizer
