"""Random torch modules as a hypothesis strategy, and their comparison with torch itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import strategies as st

from .torch_builder import ModuleBuilder, Value
from .torch_data_movement import MOVES
from .torch_layers import LAYERS
from .torch_steps import STEPS

TOLERANCE = 3e-5
"""Largest difference of float32 values, relative to the largest magnitude in the whole module."""
TOLERANCE_OF_HALF = 2e-2
"""The same if any value has 8 or 11 bits of precision, which the frontend may compute in float32."""
_SIZES = st.sampled_from([2, 3, 1, 4, 5, 8, 0])


@dataclass(frozen=True)
class RandomModule:
    """A module, the values of its inputs, and its outputs in torch."""

    source: str
    module: torch.nn.Module
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    scale: float
    tolerance: float

    def __repr__(self) -> str:
        inputs = "\n".join(f"# {value.name}: {value.dtype}{list(value.shape)}" for value in self.inputs)
        return f"{inputs}\n{self.source}"

    def export(self) -> Any:
        """Return the module as a program of torch.export."""
        return torch.export.export(self.module, tuple(value.tensor for value in self.inputs))

    def feeds(self) -> list[npt.NDArray[Any]]:
        """Return the values of the inputs."""
        return [value.tensor.numpy() for value in self.inputs]


@st.composite
def torch_modules(draw: Any, steps: int = 5) -> RandomModule:
    """Random modules of up to ``steps`` steps: several inputs, unused ones too, and several outputs of different types.

    Shapes have up to four dimensions, and may be empty.
    """
    builder = ModuleBuilder(draw(st.integers(0, 999)))
    for _ in range(draw(st.integers(1, 3))):
        dtype = draw(
            st.sampled_from(["float32", "float32", "float32", "int64", "bool", "uint8", "int32", "float64", "float16"])
        )
        builder.input(dtype, draw(st.lists(_SIZES, min_size=0, max_size=4)))
    for _ in range(draw(st.integers(1, steps))):
        family = draw(st.sampled_from([STEPS, MOVES, LAYERS]))
        draw(st.sampled_from(family))(builder, draw)
    inner = [value for value in builder.values if value not in builder.inputs]
    if not inner:
        inner = [value for value in [builder.emit(f"{builder.inputs[0].name} * 1", [], exact=True)] if value]
    outputs = [inner[-1], *(value for value in inner[:-1] if draw(st.booleans()))]
    tensors = [value.tensor for value in builder.values if value.is_float and value.tensor.numel()]
    scale = max([1.0, *(float(tensor.abs().max()) for tensor in tensors)])
    half = any(value.dtype in ("float16", "bfloat16") for value in builder.values)
    return RandomModule(
        builder.source(outputs),
        builder.module(outputs),
        tuple(builder.inputs),
        tuple(outputs),
        scale,
        TOLERANCE_OF_HALF if half else TOLERANCE,
    )


def difference(module: RandomModule, run: Callable[[Any, list[npt.NDArray[Any]]], list[npt.NDArray[Any]]]) -> str:
    """Return the first error in the outputs that ``run`` computes for the exported module; empty if there is none."""
    for wanted, value in zip(module.outputs, run(module.export(), module.feeds()), strict=True):
        if value.dtype.name != wanted.dtype or value.shape != wanted.shape:
            return f"{wanted.name} is {value.dtype}{list(value.shape)}, not {wanted.dtype}{list(wanted.shape)}"
        if not wanted.is_float:
            right = wanted.tensor.numpy()
            if not np.array_equal(value, right):
                return f"{wanted.name} differs in {int((value != right).sum())} of {right.size} elements"
            continue
        right = wanted.tensor.to(torch.float64).numpy()
        value = value.astype(np.float64)
        if not np.allclose(value, right, rtol=0, atol=module.tolerance * module.scale, equal_nan=True):
            with np.errstate(invalid="ignore"):
                worst = float(np.nanmax(np.abs(value - right)))
            return f"{wanted.name} differs by {worst:.3g} at a scale of {module.scale:.3g}"
    return ""


__all__ = ["TOLERANCE", "ModuleBuilder", "RandomModule", "difference", "torch_modules"]
