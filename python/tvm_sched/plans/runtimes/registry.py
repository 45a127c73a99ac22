"""Runtimes by name; packages add theirs through the entry points ``tvm_sched.plan_runtimes``."""

from __future__ import annotations

from ...registry import Registry
from .base import Runtime

RUNTIMES: Registry[type[Runtime]] = Registry(
    "runtime",
    "tvm_sched.plan_runtimes",
    {
        name: f"tvm_sched.plans.runtimes.{module}:{kind}"
        for name, module, kind in (
            ("accelerate", "accelerate", "Accelerate"),
            ("vllm", "vllm", "Vllm"),
            ("llama.cpp", "llama_cpp", "LlamaCpp"),
            ("onnxruntime", "onnx_runtime", "OnnxRuntime"),
            ("openvino", "openvino", "OpenVino"),
            ("torch", "torch", "Torch"),
        )
    },
)


def get_runtime(name: str) -> Runtime:
    """The runtime of a name.

    Raises
    ------
    InputError
        There is none; the message lists those there are.
    """
    return RUNTIMES.get(name)()


def runtime_names() -> list[str]:
    """Names of all runtimes, those of installed packages too."""
    return RUNTIMES.names()
