"""A random torch module under construction: its layers, its lines of Python, and the values that torch computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

LARGEST = 4096
"""Most elements of a tensor."""
MAGNITUDE = 1e4
"""Largest magnitude of a float; lines with larger results are dropped."""
REFUSALS = (RuntimeError, IndexError, ValueError)
"""What torch raises for types (NotImplementedError is a RuntimeError), sizes and dimensions that an operator refuses.

A line that is wrong in itself raises NameError, AttributeError, SyntaxError or TypeError, which end the run.
"""

Draw = Callable[[Any], Any]


@dataclass(frozen=True)
class Value:
    """A tensor of the module."""

    name: str
    """Its variable in ``forward``."""
    tensor: torch.Tensor
    """Its value in torch."""
    exact: bool
    """Whether every correct implementation computes the same bits, as rounding, comparisons and sorting need."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.tensor.shape)

    @property
    def rank(self) -> int:
        """Number of its dimensions."""
        return self.tensor.dim()

    @property
    def is_float(self) -> bool:
        """Whether its numbers are floats, of any width."""
        return self.tensor.is_floating_point()

    @property
    def dtype(self) -> str:
        """For instance ``float32``."""
        return str(self.tensor.dtype).removeprefix("torch.")


@dataclass
class ModuleBuilder:
    """Collects layers, inputs and lines; ``seed`` determines the numbers in weights and inputs."""

    seed: int
    layers: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = torch.Generator().manual_seed(self.seed)
        self._layers = nn.ModuleDict()

    def numbers(self, dtype: str, shape: Sequence[int]) -> torch.Tensor:
        """Return random numbers of a type, in magnitude up to 4, or 255 for bytes."""
        kind = getattr(torch, dtype)
        if kind.is_floating_point:
            return torch.randn(tuple(shape), generator=self.random).clamp(-4, 4).to(kind)
        if dtype == "bool":
            return torch.rand(tuple(shape), generator=self.random) < 0.5
        low, high = (0, 256) if dtype == "uint8" else (-4, 5)
        return torch.randint(low, high, tuple(shape), generator=self.random).to(kind)

    def add_input(self, tensor: torch.Tensor) -> Value:
        """Add an input."""
        value = Value(f"x{len(self.inputs)}", tensor, True)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def input(self, dtype: str, shape: Sequence[int]) -> Value:
        """Add an input with random numbers."""
        return self.add_input(self.numbers(dtype, shape))

    def layer(self, constructor: str) -> str:
        """Add a submodule in evaluation mode with random statistics; return its name in ``forward``."""
        name = f"l{len(self.layers)}"
        self.layers[name] = constructor
        self._layers[name] = make_layer(constructor, self.seed + len(self.layers))
        return f"self.{name}"

    def pick(self, draw: Draw, fits: Callable[[Value], bool]) -> Value | None:
        """Draw one of the values that fit; hypothesis prefers later ones."""
        from hypothesis import strategies as st

        candidates = [value for value in reversed(self.values) if fits(value)]
        return draw(st.sampled_from(candidates)) if candidates else None

    def emit(
        self, expression: str, inputs: Sequence[Value], *, exact: bool = False, steep: bool = False
    ) -> Value | None:
        """Add ``v = expression``, unless torch refuses it or its value is too large.

        Parameters
        ----------
        exact : bool
            Whether the result is exact if the inputs are.
        steep : bool
            Whether a small difference of inputs may become a large one; inputs must then be exact.
        """
        known = all(value.exact for value in inputs)
        if steep and not known:
            return None
        try:
            result = self.evaluate(expression)
        except REFUSALS:
            return None
        return self._keep(expression, result, known and (exact or steep))

    def evaluate(self, expression: str) -> Any:
        """Return torch's value of an expression over the module's variables."""
        variables = {value.name: value.tensor for value in self.values}
        with torch.no_grad():
            return eval(expression, {"torch": torch, "nn": nn, "F": nn.functional, "self": self._layers, **variables})

    def emit_all(self, expression: str, inputs: Sequence[Value], *, exact: bool = False, steep: bool = False) -> None:
        """Add several results of one expression: ``v = expression``, ``w = v[0]`` and so on."""
        known = all(value.exact for value in inputs)
        if steep and not known:
            return
        try:
            results = self.evaluate(expression)
        except REFUSALS:
            return
        name = f"v{len(self.lines)}"
        line = f"{name} = {expression}"
        before = len(self.lines)
        self.lines.append(line)
        kept = [self._keep(f"{name}[{k}]", result, known and (exact or steep)) for k, result in enumerate(results)]
        if not any(kept):
            del self.lines[before]

    def _keep(self, expression: str, result: Any, exact: bool) -> Value | None:
        if not isinstance(result, torch.Tensor) or result.numel() > LARGEST or result.dim() > 6 or result.is_complex():
            return None
        if not result.is_floating_point() and not exact:
            return None
        if result.is_floating_point() and not bool((result.abs() <= MAGNITUDE).all()):
            return None
        value = Value(f"v{len(self.lines)}", result, exact)
        self.lines.append(f"{value.name} = {expression}")
        self.values.append(value)
        return value

    def source(self, outputs: Sequence[Value]) -> str:
        """Return the module as Python source."""
        layers = [f"        self.{name} = {text}" for name, text in self.layers.items()]
        arguments = "".join(f", {value.name}" for value in self.inputs)
        returned = ", ".join(value.name for value in outputs)
        return "\n".join(
            [
                "class Model(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *layers,
                f"    def forward(self{arguments}):",
                *(f"        {line}" for line in self.lines),
                f"        return {returned}",
            ]
        )

    def module(self, outputs: Sequence[Value]) -> nn.Module:
        """Return the module."""
        namespace: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional}
        exec(self.source(outputs), namespace)
        model = namespace["Model"]()
        for name in self.layers:
            setattr(model, name, self._layers[name])
        return model.eval()


def make_layer(constructor: str, seed: int) -> nn.Module:
    """Return a submodule in evaluation mode, with random weights and statistics."""
    torch.manual_seed(seed)
    layer = eval(constructor, {"nn": nn, "torch": torch}).eval()
    for name, tensor in layer.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif tensor.is_floating_point() and tensor.dim() == 1:
            tensor.normal_()
    return layer
