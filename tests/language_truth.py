"""What transformers computes for a language model in float64, and whether tokens are its most likely ones."""

import contextlib

import numpy as np


def exact_logits(folder, tokens):
    """Logits of transformers in float64 behind each of the tokens: (tokens, vocab)."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    ).eval()
    if hasattr(model, "set_experts_implementation"):
        with contextlib.suppress(ValueError, AttributeError):
            model.set_experts_implementation("eager")
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def round_weights(folder, number_format):
    """Write the weights of products as the numbers that a format of `tvm_sched_language` makes of them."""
    from safetensors.numpy import load_file, save_file

    from tvm_sched_language.packing import dequantized

    def rounded(name, weight):
        exact = ("wpe", "embed_positions", "block_sparse_moe.gate.", "mlp.gate.", "shared_expert_gate")
        if weight.ndim == 3:
            return np.stack([rounded(name, one) for one in weight])
        if weight.ndim < 2 or any(part in name for part in exact):
            return weight
        turned = any(part in name for part in ("c_attn", "c_proj", "c_fc"))  # GPT-2 has (inputs, outputs)
        matrix = np.ascontiguousarray(weight.T if turned else weight, np.float32)
        for _ in range(3):  # until rounding changes nothing more
            matrix = dequantized(matrix, number_format)
        return np.ascontiguousarray(matrix.T if turned else matrix)

    file = folder / "model.safetensors"
    save_file({name: rounded(name, weight) for name, weight in load_file(file).items()}, file, {"format": "pt"})
    return folder


def check_greedy(folder, prompt, tokens, tolerance=2e-4, decisive=0.9):
    """Each token is the most likely one by transformers, unless two are as likely within the tolerance of float32.

    ``decisive`` is the part of the tokens for which this must not be so. The tolerance is relative to the largest logit.
    """
    logits = exact_logits(folder, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
    best = logits.max(1)
    limit = tolerance * np.abs(logits).max()
    runner_up = np.sort(logits, 1)[:, -2]
    clear = best - runner_up > limit
    assert clear.mean() >= decisive, f"only {clear.sum()} of {len(tokens)} tokens are clear: another seed is needed"
    chosen = logits[np.arange(len(tokens)), tokens]
    wrong = np.flatnonzero(best - chosen > np.where(clear, 0, limit))
    assert not wrong.size, f"token {wrong[0]} of {len(tokens)} is {tokens[wrong[0]]}, not {logits[wrong[0]].argmax()}"
