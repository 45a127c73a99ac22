"""A graph without kernels, for plans that are emulated without values."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_sched.execution_plan import KernelCall
from tvm_sched_runtime.problem import OpGraph


@dataclass(frozen=True)
class ShapesOnly:
    """A graph without kernels: enough for a plan that is emulated without values."""

    graph: OpGraph

    @property
    def calls(self) -> list[KernelCall]:
        """Kernels named after their operators."""
        return [KernelCall(o.name, o.name, True, False, o.inputs, o.outputs) for o in self.graph.operators]

    @property
    def arguments(self) -> list[str]:
        """The graph's inputs."""
        return [tensor.name for tensor in self.graph.tensors if tensor.kind == "input"]

    @property
    def parameters(self) -> list[str]:
        """The graph's parameters."""
        return [tensor.name for tensor in self.graph.tensors if tensor.kind == "parameter"]
