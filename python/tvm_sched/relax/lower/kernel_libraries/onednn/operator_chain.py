"""Find the chain of operators that can be fused to a product: each operator is the only reader of the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax

from ....ir.sizes import sizes_of
from ..rewrite import Rewriter, constant_value, is_float32, operation
from .regions import UnaryRegion, find_region

COMMUTATIVE = ("add", "multiply", "maximum", "minimum")
BINARY = (*COMMUTATIVE, "subtract", "divide")
AFFINE = ("add", "subtract", "multiply", "divide")
LIMIT = 8
"""Most operations fused to one product."""


@dataclass(frozen=True)
class Post:
    """An operation fused to a product."""

    description: dict[str, Any]
    """Name and numbers."""
    operand: Any = None
    """The other argument of a binary operation (an old value)."""
    shape: tuple[int, ...] | None = None
    """Shape of the operand, with the rank of the product's result and 1 along broadcast dimensions. None if the operand
    has the shape of the result."""


@dataclass
class Chain:
    """The operators fused to a product."""

    end: Any
    """The value that the kernel returns."""
    inside: list[Any] = field(default_factory=list)
    """All values before it."""
    scale: Any = None
    """The weights with the following multiplications folded in."""
    bias: Any = None
    """One number per output channel."""
    post: list[Post] = field(default_factory=list)
    """Operations after scale and bias, in order."""


class ChainFinder:
    """Follows a value while oneDNN can compute the operators that read it as part of the product's kernel.

    Parameters
    ----------
    rewriter : Rewriter
    is_claimed : callable
        Whether another chain computes a variable. Both operands of an addition may be chains that could end in it.
    start : relax.Var
        The product, whose last dimension is the channels.
    weights : numpy.ndarray or None
        The product's constant weights, if multiplications may be folded into them.
    axis : int
        Axis of the output channels in the weights.
    """

    def __init__(
        self, rewriter: Rewriter, is_claimed: Callable[[Any], bool], start: Any, weights: Any = None, axis: int = 0
    ) -> None:
        self.rewriter, self.is_claimed, self.start = rewriter, is_claimed, start
        self.weights, self.axis = weights, axis
        self.shape = sizes_of(start) or ()
        self.channels = self.shape[-1]

    def find(self, limit: int = LIMIT) -> Chain:
        """Return the longest chain with at most ``limit`` operations after bias and scale."""
        self.chain, self.limit = Chain(self.start), limit
        while self._step():
            pass
        return self.chain

    def _step(self) -> bool:
        """Add the next operator, or the next few operators that form one function; False at the end of the chain."""
        chain = self.chain
        region = find_region(self.rewriter, chain.end, self.is_claimed)
        if region is not None and not self._folds(region):
            if len(chain.post) + len(region.steps) > self.limit:
                return False
            for name, alpha, beta in region.steps:
                chain.post.append(Post({"name": name, "alpha": alpha, "beta": beta}))
            chain.inside += [chain.end, *region.inside]
            chain.end = region.end
            return True
        users = self.rewriter.uses[chain.end]
        if len(users) != 1 or users[0] is None or self.is_claimed(users[0]):
            return False
        call = self.rewriter.definitions[users[0]]
        if not is_float32(call) or not self._take(call):
            return False
        chain.inside.append(chain.end)
        chain.end = users[0]
        return True

    def _folds(self, region: UnaryRegion) -> bool:
        """Whether a region is an addition or multiplication that can be folded into bias or weights."""
        if self.chain.post or region.inside or any(name != "linear" for name, _, _ in region.steps):
            return False
        name = operation(self.rewriter.definitions[region.end])
        return name in AFFINE and (self.weights is not None or name in ("add", "subtract"))

    def _take(self, call: Any) -> bool:
        name = operation(call)
        if isinstance(call, relax.Var):
            return True
        if name == "reshape":
            return (sizes_of(call) or (0,))[-1:] == (sizes_of(self.chain.end) or ())[-1:]
        if sizes_of(call) != sizes_of(self.chain.end):
            return False
        if name == "nn.prelu":
            return self._take_prelu(call)
        return name in BINARY and self._take_binary(name, call)

    def _take_prelu(self, call: Any) -> bool:
        rank = len(sizes_of(call) or ())
        slope = self.rewriter.resolve(call.args[1])
        value = constant_value(slope)
        if value is None or value.size != self.channels or int(call.attrs.axis) % rank != rank - 1:
            return False
        return self._append({"name": "prelu"}, slope, self._of_channels())

    def _take_binary(self, name: str, call: Any) -> bool:
        resolve = self.rewriter.resolve
        left = resolve(call.args[0]).same_as(resolve(self.chain.end))
        if not left and name not in COMMUTATIVE:
            return False
        other = resolve(call.args[1 if left else 0])
        value = constant_value(other)
        if value is not None and value.dtype == np.float32 and self._take_constant(name, value):
            return True
        if not is_float32(other):
            return False
        if sizes_of(other) == sizes_of(call):
            return self._append({"name": name}, other)
        return self._append({"name": name}, other, self._broadcast(other))

    def _of_channels(self) -> tuple[int, ...]:
        return (*(1,) * (len(self.shape) - 1), self.channels)

    def _broadcast(self, other: Any) -> tuple[int, ...] | None:
        """Return the shape of an operand that is smaller than the result; None if the kernel cannot read it."""
        shape = sizes_of(other) or ()
        rank = len(self.shape)
        if not any(size > 1 for size in shape[:-1]) and shape[-1:] in ((), (1,), (self.channels,)):
            return (*(1,) * (rank - 1), shape[-1] if shape else 1)
        now = sizes_of(self.chain.end)
        return (*(1,) * (rank - len(shape)), *shape) if now == self.shape and len(shape) <= rank else None

    def _append(self, description: dict[str, Any], operand: Any, shape: tuple[int, ...] | None = ()) -> bool:
        """Add an operation with an operand of a shape: ``()`` stands for the result's shape, None refuses the operation."""
        if shape is None or len(self.chain.post) >= self.limit:
            return False
        self.chain.post.append(Post(description, operand, shape or None))
        return True

    def _take_constant(self, name: str, value: Any) -> bool:
        each = value.size == self.channels and (value.ndim == 0 or value.shape[-1] == self.channels)
        if not each and value.size != 1:
            return False
        usable = bool(np.isfinite(value).all() and (name != "divide" or value.all()))
        foldable = not self.chain.post and name in AFFINE and usable
        if foldable and (self.weights is not None or name in ("add", "subtract")):
            self._fold(name, np.broadcast_to(value.reshape(-1), (self.channels,)))
            return True
        return False

    def _fold(self, name: str, value: Any) -> None:
        """Fold an addition into the bias, or a multiplication into weights and bias."""
        chain = self.chain
        if name in ("add", "subtract"):
            bias = np.zeros(self.channels, np.float32) if chain.bias is None else chain.bias
            chain.bias = (bias + value if name == "add" else bias - value).astype(np.float32)
            return
        factor = value if name == "multiply" else 1 / value.astype(np.float64)
        weights = self.weights if chain.scale is None else chain.scale
        along = [1] * weights.ndim
        along[self.axis] = self.channels
        chain.scale = np.ascontiguousarray((weights * factor.reshape(along)).astype(np.float32))
        if chain.bias is not None:
            chain.bias = (chain.bias * factor).astype(np.float32)
