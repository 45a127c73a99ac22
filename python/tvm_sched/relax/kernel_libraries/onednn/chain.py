"""What can be computed together with a convolution or matrix product: the operators that follow it one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax

from ..rewrite import Rewriter, constant_value, is_float32, operation, shape_of

ELEMENTWISE = {
    "nn.relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "nn.gelu": "gelu",
    "nn.gelu_tanh": "gelu_tanh",
    "nn.silu": "silu",
    "clip": "clip",
    "abs": "abs",
}
COMMUTATIVE = ("add", "multiply", "maximum", "minimum")
BINARY = (*COMMUTATIVE, "subtract", "divide")
LIMIT = 8
"""Most operations after one product."""


@dataclass(frozen=True)
class Post:
    """An operation on the result.

    Attributes
    ----------
    description : dict
        Name and numbers.
    operand : relax expression or None
        The other argument of a binary operation (an old value).
    channels : bool
        Whether that has an element for each channel; else it has the result's shape.
    """

    description: dict[str, Any]
    operand: Any = None
    channels: bool = False


@dataclass
class Chain:
    """What follows a product.

    Attributes
    ----------
    end : relax.Var
        The last value: what the kernel returns.
    inside : list of relax.Var
        All values before it.
    scale : numpy.ndarray or None
        The weights with the multiplications that follow them folded in.
    bias : numpy.ndarray or None
        Of each output channel.
    post : list of Post
        What is computed after that, in order.
    """

    end: Any
    inside: list[Any] = field(default_factory=list)
    scale: Any = None
    bias: Any = None
    post: list[Post] = field(default_factory=list)


class ChainFinder:
    """Follows a value as long as one operator alone uses it and oneDNN can compute that operator on the way out.

    ``taken`` says of a variable whether another chain computes it: both sides of an addition may end in it.
    """

    def __init__(self, rewriter: Rewriter, taken: Callable[[Any], bool]) -> None:
        self.rewriter, self.taken = rewriter, taken

    def find(self, start: Any, weights: Any) -> Chain:
        """The longest chain.

        Parameters
        ----------
        start : relax.Var
            The product.
        weights : numpy.ndarray or None
            Its constant weights, whose output channels are first (four dimensions) or last (two).
        """
        self.chain, self.weights = Chain(start), weights
        self.channels = (shape_of(start) or ())[-1]
        while len(self.chain.post) < LIMIT:
            users = self.rewriter.uses[self.chain.end]
            if len(users) != 1 or users[0] is None or self.taken(users[0]):
                break
            call = self.rewriter.definitions[users[0]]
            if not is_float32(call) or not self._take(call):
                break
            self.chain.inside.append(self.chain.end)
            self.chain.end = users[0]
        return self.chain

    def _take(self, call: Any) -> bool:
        name = operation(call)
        if isinstance(call, relax.Var):
            return True
        if name == "reshape":
            return (shape_of(call) or (0,))[-1:] == (shape_of(self.chain.end) or ())[-1:]
        if name in ELEMENTWISE:
            numbers = self._numbers(call.args[1:])
            if numbers is None:
                return False
            description: dict[str, Any] = {
                "name": ELEMENTWISE[name],
                **dict(zip(("alpha", "beta"), numbers, strict=False)),
            }
            if name == "nn.silu":
                description["alpha"] = 1.0
            self.chain.post.append(Post(description))
            return True
        return name in BINARY and shape_of(call) == shape_of(self.chain.end) and self._take_binary(name, call)

    def _numbers(self, arguments: Any) -> list[float] | None:
        values = [getattr(argument, "value", None) for argument in arguments]
        numbers = [float(getattr(v, "value", v)) for v in values if v is not None]
        return numbers if len(numbers) == len(values) else None

    def _take_binary(self, name: str, call: Any) -> bool:
        resolve = self.rewriter.resolve
        left = resolve(call.args[0]).same_as(resolve(self.chain.end))
        if not left and name not in COMMUTATIVE:
            return False
        other = resolve(call.args[1 if left else 0])
        value = constant_value(other)
        if value is not None and value.dtype == np.float32 and self._take_constant(name, other, value):
            return True
        if shape_of(other) != shape_of(call) or not is_float32(other):
            return False
        self.chain.post.append(Post({"name": name}, other))
        return True

    def _take_constant(self, name: str, other: Any, value: Any) -> bool:
        each = value.size == self.channels and (value.ndim == 0 or value.shape[-1] == self.channels)
        if not each and value.size != 1:
            return False
        affine = not self.chain.post and name in ("add", "subtract", "multiply", "divide")
        if affine and (self.weights is not None or name in ("add", "subtract")) and self._foldable(value):
            self._fold(name, np.broadcast_to(value.reshape(-1), (self.channels,)))
            return True
        if value.size == 1 and name in ("add", "subtract", "multiply", "divide"):
            number = float(value.reshape(-1)[0])
            scale = {"multiply": number, "divide": 1 / number if number else np.inf}.get(name, 1.0)
            shift = {"add": number, "subtract": -number}.get(name, 0.0)
            if not np.isfinite(scale):
                return False
            self.chain.post.append(Post({"name": "linear", "alpha": scale, "beta": shift}))
            return True
        if each:
            self.chain.post.append(Post({"name": name}, other, channels=True))
        return each

    def _foldable(self, value: Any) -> bool:
        return bool(np.isfinite(value).all())

    def _fold(self, name: str, value: Any) -> None:
        """Fold an addition into the bias, a multiplication into weights and bias."""
        chain = self.chain
        if name in ("add", "subtract"):
            bias = np.zeros(self.channels, np.float32) if chain.bias is None else chain.bias
            chain.bias = (bias + value if name == "add" else bias - value).astype(np.float32)
            return
        factor = value if name == "multiply" else 1 / value.astype(np.float64)
        weights = self.weights if chain.scale is None else chain.scale
        along = factor.reshape(-1, 1, 1, 1) if weights.ndim == 4 else factor
        chain.scale = np.ascontiguousarray((weights * along).astype(np.float32))
        if chain.bias is not None:
            chain.bias = (chain.bias * factor).astype(np.float32)
