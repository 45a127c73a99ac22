"""Small machines and models for the tests of plans."""

from __future__ import annotations

import json
from pathlib import Path

from tvm_sched_runtime.problem import Bus, Device, Topology

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip


def config_file(folder: Path, **changes: object) -> Path:
    """A tiny Llama's ``config.json``."""
    path = folder / "config.json"
    path.write_text(json.dumps({**TINY, **changes}))
    return path


def machine(*memory: float, speed: tuple[float, ...] = (), bandwidth: float = 25e9) -> Topology:
    """GPUs with that many bytes, each on a bus of its own; ``speed`` scales their rates."""
    rates = speed or (1.0,) * len(memory)
    devices = tuple(
        Device(
            f"gpu{n}",
            int(size),
            1e12 * rate,
            {"float32": 20e12 * rate, "float16": 100e12 * rate},
            bus=f"pcie{n}",
            launch_overhead=5e-6,
        )
        for n, (size, rate) in enumerate(zip(memory, rates, strict=True))
    )
    buses = tuple(Bus(f"pcie{n}", bandwidth, 1e-5) for n in range(len(memory)))
    return Topology("test", devices, buses, host_memory=64 << 30)
