"""Plans for other runtimes: accelerate, vLLM, llama.cpp, ONNX Runtime, OpenVINO and PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_sched_runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from .planner import Row, RuntimePlan, export_plan
    from .runtimes import RUNTIMES, Runtime, get_runtime, runtime_names
    from .token_workload import TokenWorkload

__all__ = ["RUNTIMES", "Row", "Runtime", "RuntimePlan", "TokenWorkload", "export_plan", "get_runtime", "runtime_names"]

__getattr__ = lazy_names(
    __name__,
    {
        "RUNTIMES": "runtimes",
        "Row": "planner",
        "Runtime": "runtimes",
        "RuntimePlan": "planner",
        "TokenWorkload": "token_workload",
        "export_plan": "planner",
        "get_runtime": "runtimes",
        "runtime_names": "runtimes",
    },
)
"""The command line imports this package for its help alone."""
