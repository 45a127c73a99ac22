"""Match local response normalisation as the ONNX frontend decomposes it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ....ir.sizes import sizes_of
from ..rewrite import Rewriter, operation


@dataclass(frozen=True)
class LocalResponse:
    """``x / (k + alpha * mean of x * x over size neighbouring channels) ** beta``."""

    source: Any
    size: int
    alpha: float
    beta: float
    k: float

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return prod(sizes_of(self.source) or ()) * (self.size + 5)


def find_local_response(rewriter: Rewriter, call: Any) -> LocalResponse | None:
    """Return the local response normalisation whose last operator is a division; None for any other division."""
    source = rewriter.resolve(call.args[0])
    power = _step(rewriter, call.args[1], "power")
    added = power and _step(rewriter, power[0], "add")
    scaled = added and _step(rewriter, added[0], "multiply")
    squeezed: Any = rewriter.defined(scaled[0]) if scaled else None
    pooled: Any = rewriter.defined(squeezed.args[0]) if operation(squeezed) == "squeeze" else None
    if power is None or added is None or scaled is None or operation(pooled) != "nn.avg_pool3d":
        return None
    expanded: Any = rewriter.defined(pooled.args[0])
    square: Any = rewriter.defined(expanded.args[0]) if operation(expanded) == "expand_dims" else None
    window = [int(s) for s in pooled.attrs.pool_size]
    size, shape = window[0], sizes_of(source) or ()
    fits = (
        operation(square) == "multiply"
        and all(rewriter.resolve(a).same_as(source) for a in square.args)
        and len(shape) == 4
        and sizes_of(expanded) == (shape[0], 1, *shape[1:])
        and window == [size, 1, 1]
        and size % 2 == 1
        and [int(p) for p in pooled.attrs.padding] == [size // 2, 0, 0, size // 2, 0, 0]
        and [int(s) for s in pooled.attrs.strides] == [1, 1, 1]
        and bool(pooled.attrs.count_include_pad)
    )
    return LocalResponse(source, size, scaled[1], power[1], added[1]) if fits else None


def _step(rewriter: Rewriter, expr: Any, name: str) -> tuple[Any, float] | None:
    """Return the first argument of an operator and its second, a number; None for any other expression."""
    call = rewriter.defined(expr)
    number = rewriter.number(call.args[1]) if operation(call) == name else None
    return None if number is None else (call.args[0], number)
