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
