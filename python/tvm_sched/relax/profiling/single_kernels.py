"""Kernels of a lowered model, each with tensors of its own, so that it can be called alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from tvm_sched_runtime.runtime.tensors import random_value

from ...cost_model.signature import signatures
from ..codegen.cpu.kernel_objects import load_kernels
from ..ir.attributes import get_compile_target
from ..lower.kernel_libraries import claimed_functions, make_modules
from ..problem.operator_graph import Extraction


@dataclass(frozen=True)
class SingleKernel:
    """A kernel on the CPU, with its arguments."""

    module: Any  # tvm.runtime.Module
    function: str
    values: list[Any]  # tensors: random inputs, and outputs

    def seconds(self, repeat: int = 5, **options: Any) -> float:
        """Measure the median over ``repeat`` of the mean seconds of a call; options of TVM's ``time_evaluator``."""
        timed = self.module.time_evaluator(self.function, tvm.cpu(), repeat=repeat, **options)
        return float(np.median(timed(*self.values).results))


def single_kernels(
    mod: tvm.IRModule, extraction: Extraction, texts: Collection[str], devices: int
) -> dict[str, SingleKernel]:
    """Compile the kernels with the signatures ``texts`` for one of ``devices`` devices on this machine's cores.

    Kernels that need an executor have no entry.
    """
    first = {text: o for o, text in reversed(list(enumerate(signatures(extraction.graph)))) if text in texts}
    calls = {text: extraction.calls[o] for text, o in first.items() if not extraction.calls[o].packed}
    claimed = claimed_functions(mod)
    libraries = {call.function: call.function for call in calls.values() if call.function in claimed}
    own = {call.function: mod[call.function] for call in calls.values() if not call.external}
    target = get_compile_target(mod)
    modules = make_modules(mod, libraries, dict.fromkeys(libraries, (1, devices))) + (
        [load_kernels(own, target.host_here, target.cache)] if own else []
    )
    rng, result = np.random.default_rng(0), {}
    for text, call in calls.items():
        module = next((each for each in modules if each.implements_function(call.function)), None)
        if module is not None:
            values = [_value(rng, extraction, name) for name in (*call.inputs, *call.outputs)]
            result[text] = SingleKernel(module, call.function, values)
    return result


def _value(rng: np.random.Generator, extraction: Extraction, name: str) -> Any:
    tensor = extraction.graph.tensors[extraction.graph.index.tensor_id[name]]
    return tvm.runtime.tensor(random_value(rng, {"shape": tensor.shape, "dtype": tensor.dtype}))
