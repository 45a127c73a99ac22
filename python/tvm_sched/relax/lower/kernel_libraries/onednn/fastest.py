"""Choose the fastest of oneDNN's implementations for each kernel, by measurement when a model is compiled.

oneDNN's own order does not know the shapes: of depthwise convolutions, and of those with few channels, another of its
implementations for the same layout can take half of the time.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ....._library import function as library_function
from .....blob_cache import choice_cache
from .....cost_model.profile import this_machine
from ....toolchain.compile_target import CompileTarget
from ..kernel_library import KernelSet
from .products import VERSION

PRIMITIVES = frozenset({"convolution", "deconvolution", "matmul"})
"""Those that oneDNN has several implementations of."""
LEAST_FLOPS = 1 << 20
"""Kernels with fewer operations take some microseconds, of which a better implementation saves too few to try."""


def choose_implementations(kernels: KernelSet, target: CompileTarget) -> None:
    """Write into the descriptions of large kernels which implementation is fastest, where that is not oneDNN's first.

    What was found on this machine with as many threads is kept on disk, by the description: also what was found beside other
    work, so that a model that is compiled again has the same kernels, which round in the same places.
    """
    machine = this_machine()
    where = [machine.processor, machine.cores, machine.versions, target.in_artifact()]
    wanted: dict[str, list[str]] = {}  # names of kernels by the key of their description
    described: dict[str, dict[str, Any]] = {}
    for name, document in kernels.documents.items():
        content = json.loads(document)
        kernel = content["kernel"]
        if kernel["primitive"] in PRIMITIVES and content["flops"] >= LEAST_FLOPS and _is_float32(kernel):
            key = _key(kernel, where)
            wanted.setdefault(key, []).append(name)
            described[key] = kernel
    kept = choice_cache(target.cache)
    known = {key: content.decode() for key, content in kept.find(list(wanted)).items()}
    new = [key for key in wanted if key not in known]
    if new:
        # Names of kernels in a document come in their order.
        numbered = {f"{place:06d}": described[key] for place, key in enumerate(new)}
        document = json.dumps({"version": VERSION, "kernels": numbered, **target.in_artifact()})
        found = [str(name) for name in library_function("tvm_sched.onednn_fastest_implementations")(document)]
        kept.keep({key: name.encode() for key, name in zip(new, found, strict=True)})
        known |= dict(zip(new, found, strict=True))
    for key, names in wanted.items():
        if known[key]:
            for name in names:
                kernels.describe(name, implementation=known[key])


def _is_float32(kernel: dict[str, Any]) -> bool:
    """Whether implementations differ in their time and the last bits only; those of integers may saturate elsewhere."""
    return all(operand.get("type", "float32") == "float32" for operand in kernel["operands"])


def _key(kernel: dict[str, Any], where: list[Any]) -> str:
    text = json.dumps([VERSION, kernel, where], sort_keys=True)
    return "implementation " + hashlib.sha256(text.encode()).hexdigest()
