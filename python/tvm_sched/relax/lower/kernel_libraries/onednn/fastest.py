"""Choose oneDNN's fastest implementation of each kernel, by measurement when a model is compiled.

oneDNN's default does not depend on shapes. For depthwise convolutions and convolutions with few channels, another
implementation for the same layout can take half the time. Implementations that compute wrong values are not among the
measured ones, nor is one taken that an earlier measurement chose (cpp/kernels/onednn/value_check.h).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tvm_sched_runtime.core_library import function as library_function

from .....blob_cache import choice_cache
from .....cost_model.profile import this_machine
from .....progress import report_progress
from ....toolchain.compile_target import CompileTarget
from ..kernel_library import KernelSet
from .products import VERSION

PRIMITIVES = frozenset({"convolution", "deconvolution", "matmul"})
"""Primitives with several implementations in oneDNN."""
LEAST_FLOPS = 1 << 20
"""Fewest operations of a measured kernel; smaller kernels take a few microseconds, so little can be gained."""


def choose_implementations(kernels: KernelSet, target: CompileTarget) -> None:
    """Set the fastest implementation in the descriptions of large kernels, unless it is oneDNN's default.

    Choices are cached on disk by machine, number of threads and description, even if other work disturbed the measurement:
    a model that is compiled again gets the same kernels, which round in the same places.
    """
    machine = this_machine()
    where = [machine.processor, machine.cores, machine.versions, target.in_artifact()]
    kernels_of: dict[str, list[str]] = {}  # names of kernels, by the key of their description
    described: dict[str, dict[str, Any]] = {}
    for name, document in kernels.documents.items():
        content = json.loads(document)
        kernel = content["kernel"]
        large = content["flops"] >= LEAST_FLOPS and "symbols" not in kernel
        if kernel["primitive"] in PRIMITIVES and large and _is_float32(kernel):
            key = _key(kernel, where)
            kernels_of.setdefault(key, []).append(name)
            described[key] = kernel
    cache = choice_cache(target.cache)
    known = {key: content.decode() for key, content in cache.find(list(kernels_of)).items()}
    new = [key for key in kernels_of if key not in known]
    if new:
        report_progress("measuring implementations of oneDNN's kernels", len(kernels_of) - len(new), len(kernels_of))
        # The results come in the order of the kernels' names.
        numbered = {f"{place:06d}": described[key] for place, key in enumerate(new)}
        document = json.dumps({"version": VERSION, "kernels": numbered, **target.in_artifact()})
        fastest = [str(name) for name in library_function("tvm_sched.onednn_fastest_implementations")(document)]
        cache.keep({key: name.encode() for key, name in zip(new, fastest, strict=True)})
        known |= dict(zip(new, fastest, strict=True))
    for key, names in kernels_of.items():
        if known[key]:
            for name in names:
                kernels.describe(name, implementation=known[key])


def _is_float32(kernel: dict[str, Any]) -> bool:
    """Whether all operands are float32: implementations for integers may saturate in different places."""
    return all(operand.get("type", "float32") == "float32" for operand in kernel["operands"])


def _key(kernel: dict[str, Any], where: list[Any]) -> str:
    text = json.dumps([VERSION, kernel, where], sort_keys=True)
    return "implementation by processor time " + hashlib.sha256(text.encode()).hexdigest()
