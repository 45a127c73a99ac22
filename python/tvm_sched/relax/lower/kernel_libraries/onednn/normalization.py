"""Group and instance normalisation: a kernel computes a factor and a summand per channel.

The tensor is read twice: once for its moments, and once by the elementwise scaling, into which TVM fuses following
activations and residual additions.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from ....ir.sizes import sizes_of
from ..rewrite import Rewriter, is_float32, operation

OPERATORS = ("nn.group_norm", "nn.instance_norm")


class Normalization(NamedTuple):
    """Normalisation over groups of channels of (N, C, ...)."""

    source: Any
    groups: int
    epsilon: float
    shape: tuple[int, ...]
    """Shape of the result in the graph: the source's, or (N, groups, elements of a group)."""


def groups_of(call: Any) -> int | None:
    """Return the number of groups of an operator of `OPERATORS`; None if the kernel cannot compute it."""
    if not all(is_float32(argument) for argument in call.args):
        return None
    shape, attrs = sizes_of(call) or (), call.attrs
    rank, channels = len(shape), shape[1]
    if not isinstance(channels, int):
        return None
    axes = {int(a) % rank for a in attrs.axes}
    if shape[0] == 1:
        axes.discard(0)
    fits = rank > 2 and int(attrs.channel_axis) % rank == 1 and axes == set(range(2, rank))
    if not fits or not (attrs.center and attrs.scale) or any(sizes_of(a) != (channels,) for a in call.args[1:]):
        return None
    groups = int(attrs.num_groups) if operation(call) == "nn.group_norm" else channels
    return groups if channels % groups == 0 else None


def find_normalization(rewriter: Rewriter, call: Any) -> Normalization | None:
    """Return the normalisation without scale and shift whose last operator is a division or multiplication, or None."""
    for factor, centred in ((1, 0), (0, 1)) if operation(call) == "multiply" else ((1, 0),):
        root = _deviation(rewriter, call.args[factor], operation(call) == "divide")
        normalization = root and _of_centred(rewriter, call.args[centred], *root)
        # An epsilon of higher rank would change the shape of the result.
        if normalization and normalization.shape == sizes_of(call):
            return normalization
    return None


def _deviation(rewriter: Rewriter, expr: Any, divisor: bool) -> tuple[Any, float] | None:
    """Return variance and epsilon of ``sqrt(variance + epsilon)``; of its reciprocal if it is not a divisor."""
    call: Any = rewriter.defined(expr)
    if not divisor and operation(call) == "divide" and rewriter.number(call.args[0]) == 1.0:
        call, divisor = rewriter.defined(call.args[1]), True
    if operation(call) != ("sqrt" if divisor else "rsqrt"):
        return None
    total: Any = rewriter.defined(call.args[0])
    epsilon = rewriter.number(total.args[1]) if operation(total) == "add" else None
    return None if epsilon is None else (total.args[0], epsilon)


def _of_centred(rewriter: Rewriter, expr: Any, variance: Any, epsilon: float) -> Normalization | None:
    """Return the normalisation of ``x - mean(x)`` with a variance, or None."""
    expr = rewriter.resolve(expr)
    centred: Any = rewriter.defined(expr)
    if operation(centred) != "subtract" or not is_float32(centred):
        return None
    x, mean = rewriter.resolve(centred.args[0]), rewriter.defined(centred.args[1])
    axes = _axes(mean) if operation(mean) == "mean" and rewriter.resolve(mean.args[0]).same_as(x) else None
    spread: Any = rewriter.defined(variance)
    if axes is None or _axes(spread) != axes:
        return None
    if operation(spread) == "mean":
        if not _is_square(rewriter, spread.args[0], expr):
            return None
    elif operation(spread) != "variance" or not rewriter.resolve(spread.args[0]).same_as(x):
        return None
    return _of_source(rewriter, x, axes, epsilon)


def _of_source(rewriter: Rewriter, x: Any, axes: list[int], epsilon: float) -> Normalization | None:
    shape = sizes_of(x) or ()
    if len(shape) < 3 or not isinstance(shape[1], int) or axes != list(range(2, len(shape))) or prod(shape[2:]) == 1:
        return None
    inner: Any = rewriter.defined(x)
    source = rewriter.resolve(inner.args[0]) if operation(inner) == "reshape" else x
    full = sizes_of(source) or ()
    grouped = len(shape) == 3 and len(full) > 2 and full[0] == shape[0] and full[1] % shape[1] == 0
    return Normalization(source if grouped else x, shape[1], epsilon, shape)


def _axes(call: Any) -> list[int] | None:
    """Return the axes of a reduction that keeps its dimensions, or None."""
    if operation(call) not in ("mean", "variance") or not call.attrs.keepdims or call.attrs.axis is None:
        return None
    rank = len(sizes_of(call) or ())
    return sorted(int(a) % rank for a in call.attrs.axis)


def _is_square(rewriter: Rewriter, expr: Any, of: Any) -> bool:
    call: Any = rewriter.defined(expr)
    if operation(call) == "multiply":
        return all(rewriter.resolve(a).same_as(of) for a in call.args)
    square = operation(call) == "square" or (operation(call) == "power" and rewriter.number(call.args[1]) == 2.0)
    return square and rewriter.resolve(call.args[0]).same_as(of)
