"""Cases of `test_runtimes.py` that other tests use, too."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from plan_cases import config_file


def layer_devices(settings, layers):
    """`llama_model::load_tensors`: the device of each layer and of the output, in the arithmetic of float32."""
    count, split = settings["n_gpu_layers"], settings["tensor_split"]
    start = max(layers + 1 - count, 0)
    active = min(count, layers + 1)
    sums = np.cumsum(np.array(split, dtype=np.float32), dtype=np.float32)
    sums /= sums[-1] if len(sums) else 1
    found = []
    for layer in range(layers + 1):
        if layer < start or layer - start >= active:
            found.append("CPU")
        else:
            part = np.float32(np.float32(layer - start) / np.float32(active))
            found.append(settings["device"][int(np.searchsorted(sums, part, side="right"))])
    return found


def tiny_model(folder, **changes):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(config_file(folder, **changes).parent)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def load_script(path):
    """As users do, who have the plan and torch alone."""
    assert "from tvm_sched" not in path.read_text()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
