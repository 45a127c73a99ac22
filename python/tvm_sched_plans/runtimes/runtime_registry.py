"""Runtimes by name; packages add theirs through the entry points ``tvm_sched.plan_runtimes``."""

from __future__ import annotations

from tvm_sched.registry import Registry
from tvm_sched_runtime.errors import InputError

from .base import Runtime

RUNTIMES: Registry[type[Runtime]] = Registry(
    "runtime",
    "tvm_sched.plan_runtimes",
    {
        name: f"tvm_sched_plans.runtimes.{module}:{kind}"
        for name, module, kind in (
            ("accelerate", "accelerate", "Accelerate"),
            ("exo", "exo", "Exo"),
            ("vllm", "vllm", "Vllm"),
            ("llama.cpp", "llama_cpp", "LlamaCpp"),
            ("onnxruntime", "onnx_runtime", "OnnxRuntime"),
            ("openvino", "openvino", "OpenVino"),
            ("torch", "torch", "Torch"),
        )
    },
)


def get_runtime(name: str) -> Runtime:
    """Return the runtime of a name.

    Raises
    ------
    InputError
        The name is unknown, and the message lists the known ones; or a package registered an incomplete `Runtime`.

    Examples
    --------
    >>> from tvm_sched_plans import get_runtime
    >>> get_runtime("vllm").takes
    ('language',)
    """
    kind = RUNTIMES.get(name)
    if not (isinstance(kind, type) and issubclass(kind, Runtime)):
        raise InputError(
            f"runtime {name!r} is registered as {kind!r}, which is not a subclass of tvm_sched_plans.Runtime"
        )
    missing = sorted(kind.__abstractmethods__) + [each for each in Runtime.__annotations__ if not hasattr(kind, each)]
    if missing:
        raise InputError(
            f"runtime {name!r} ({kind.__module__}.{kind.__qualname__}) lacks {', '.join(missing)}, which "
            "every subclass of tvm_sched_plans.Runtime must define; update or remove the package that brings it"
        )
    return kind()


def runtime_names() -> list[str]:
    """Return the names of all runtimes, also of installed packages.

    Examples
    --------
    >>> from tvm_sched_plans import runtime_names
    >>> runtime_names()
    ['accelerate', 'exo', 'llama.cpp', 'onnxruntime', 'openvino', 'torch', 'vllm']
    """
    return RUNTIMES.names()
