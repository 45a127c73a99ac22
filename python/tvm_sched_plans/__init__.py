"""Plans for other runtimes: accelerate, vLLM, llama.cpp, ONNX Runtime, OpenVINO and PyTorch."""

from .planner import Row, RuntimePlan, export_plan
from .runtimes import RUNTIMES, Runtime, get_runtime, runtime_names
from .token_workload import TokenWorkload

__all__ = ["RUNTIMES", "Row", "Runtime", "RuntimePlan", "TokenWorkload", "export_plan", "get_runtime", "runtime_names"]
