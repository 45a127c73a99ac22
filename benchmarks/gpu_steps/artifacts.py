"""Load prepared artifacts on the machine with the GPU: parameters made by their recipes, inputs, expected values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import weights
from .record import NotAvailable, Step


def arrays(file: Path) -> dict[str, Any]:
    """Read an artifact's arrays; bits of bfloat16 become bfloat16."""
    with np.load(file.with_suffix(".npz")) as stored:
        found = {}
        for name in stored.files:
            plain = name.removeprefix("bfloat16:")
            found[plain] = stored[name] if plain == name else stored[name].view(weights.type_of("bfloat16"))
        return found


def write_parameters(
    step: Step, file: Path, about: Mapping[str, Any], tensor: Callable[[str], Any], name: str | None = None
) -> Path:
    """Write an artifact's parameters to a file of this machine, and return it; artifacts of a name may share the file."""
    stored = arrays(file)
    values = {k.removeprefix("value:"): v for k, v in stored.items() if k.startswith("value:")}
    told = hashlib.sha1(json.dumps(about["recipes"], sort_keys=True).encode()).hexdigest()[:12]
    target = step.work / f"{name or about['file']}-{told}.safetensors"
    if not target.exists():
        weights.write(target, about["recipes"], tensor, values)
    return target


def load(file: Path, parameters: Path, **options: Any) -> Any:
    """Load an artifact with its parameters and configure it."""
    from tvm_sched_runtime.runtime import load as load_artifact

    loaded = load_artifact(file, parameters)
    if options:
        loaded.configure(**options)
    return loaded


def network_tensors(about: Mapping[str, Any]) -> tuple[Any, Callable[[str], Any], Any]:
    """Return a network's module in float32, a function that gives its tensors by name, and its input."""
    try:
        from . import networks
    except ImportError as error:
        raise NotAvailable(f"PyTorch is missing ({error})") from None

    module, x = networks.build(about["network"], about["dtype"])
    found = networks.tensors(module, about["dtype"])
    return module, found.__getitem__, x


def difference(found: Any, expected: Any, largest: float) -> float:
    """Return the largest difference of the sampled values over the largest expected one; infinite if one is not finite."""
    values = weights.sample(host(found))
    if values.shape != expected.shape or not np.isfinite(values).all():
        return float("inf")
    return float(np.abs(values - expected).max() / largest)


def host(value: Any) -> Any:
    """Return an output as an array on the host."""
    if hasattr(value, "detach"):
        from .networks import to_numpy

        return to_numpy(value)
    return np.asarray(value)
