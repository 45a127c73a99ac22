"""The kernel call of each operator, which an execution plan needs besides the schedule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tvm_sched_runtime.problem import OpGraph


@dataclass(frozen=True)
class KernelCall:
    """The kernel call of an operator."""

    operator: str
    """Name of the operator."""
    function: str
    """Name of a PrimFunc of the module, or of a packed function."""
    external: bool
    """Whether ``function`` is a packed function that is looked up when the model runs."""
    packed: bool
    """Whether it returns its outputs instead of writing them into its last arguments."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Names of tensors, in the order of the call."""
    in_place: Mapping[int, int] = field(default_factory=dict)
    """By position of an output, the position of the input that it updates: the kernel writes the changes into the input's
    memory."""


class Calls(Protocol):
    """A graph with its kernels, such as `tvm_sched.relax.problem.operator_graph.Extraction`."""

    @property
    def graph(self) -> OpGraph:
        """The operators and tensors."""
        ...

    @property
    def calls(self) -> Sequence[KernelCall]:
        """One for each operator."""
        ...

    @property
    def arguments(self) -> Collection[str]:
        """Tensors that are inputs of the model, in their order."""
        ...

    @property
    def parameters(self) -> Collection[str]:
        """Tensors that are parameters."""
        ...
