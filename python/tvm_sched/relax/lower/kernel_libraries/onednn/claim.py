"""Claim operators for oneDNN, fused with the following operators that oneDNN can apply to their results."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax

from tvm_frontends.imported_model import data_address
from tvm_sched_runtime.runtime.tensors import numpy_dtype

from ....ir.attributes import get_compile_target
from ....ir.sizes import Size, sizes_of
from ....toolchain.compile_target import BFLOAT16
from ..kernel_library import KernelSet, Names
from ..rewrite import Rewriter, constant_value, is_float32, operation
from .describe import channels_last, dense, window
from .exact_products import EpilogueFinder, ExactProduct, emit_exact, exact_product
from .integer_products import emit_product, find_integers, integer_product
from .operator_chain import Chain, ChainFinder
from .products import CONVOLUTIONS, LAYOUTS, MOST_TERMS, TRANSPOSED, Product, in_bfloat16, is_fast, product_of

Describe = Callable[[tuple[int, ...]], dict[str, Any]]
POOLS = tuple(f"nn.{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3))
GLOBAL_POOLS = tuple(f"nn.adaptive_avg_pool{n}d" for n in (1, 2, 3))
PRODUCTS = ("matmul", *CONVOLUTIONS, *TRANSPOSED)


class Claimer(Rewriter):
    """Replaces operators by calls of kernels.

    Bias, activation, residual additions and similar operators are fused into convolutions and matrix products. The call
    takes the place of the last fused operator, where all its operands are defined.
    """

    def __init__(self, mod: Any, kernels: KernelSet, names: Names) -> None:
        super().__init__(mod)
        self.kernels, self.names = kernels, names
        self.inside: set[Any] = set()  # intermediate values of kernels
        self.rounded: dict[int, Any] = {}  # bfloat16 constants, by the address of the float32 constant
        self.ends: dict[Any, Callable[[], Any]] = {}  # emits the call of a chain, by its last value
        self.rules: dict[str, Callable[[Any], Any]] = {
            **dict.fromkeys(POOLS, self._pool),
            **dict.fromkeys(("mean", *GLOBAL_POOLS), self._mean),
            "nn.softmax": self._softmax,
            "nn.log_softmax": self._softmax,
            "nn.layer_norm": self._layer_norm,
            "concat": self._concatenation,
            "take": self._take,
        }

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding; None for intermediate values of kernels."""
        name = operation(value)
        integers = find_integers(self, value) if name in PRODUCTS and not self._is_claimed(variable) else None
        if integers is not None:
            exact = exact_product(self, value, integers)
            if exact is not None:
                self._begin_exact(variable, value, exact)
            elif (product := integer_product(self, value, integers)) is not None:
                return emit_product(self, value, product)
        if variable not in self.ends and variable not in self.inside and name in PRODUCTS:
            self._begin(variable, value)
        if variable in self.ends:
            return self.emit(self.ends[variable]())
        if variable in self.inside:
            return None
        if name in self.rules and is_float32(value):
            kernel = self.rules[name](value)
            if kernel is not None:
                return self.emit(kernel)
        return super().visit(variable, value)

    def _begin(self, variable: Any, call: Any) -> None:
        """Fuse to a product the longest chain that oneDNN has a fast implementation for."""
        weights = self.resolve(call.args[1])
        product = product_of(call, weights)
        if product is None:
            return
        scalable = constant_value(weights) if product.axis is not None else None
        finder = ChainFinder(self, self._is_claimed, variable, scalable, product.axis or 0)
        chain = finder.find()
        kernel = product.description(chain)
        while not is_fast(kernel):
            if not chain.post:
                return
            chain = finder.find(len(chain.post) - 1)
            kernel = product.description(chain)
        assert kernel is not None
        self.ends[chain.end] = lambda: self._product(call, product, chain, kernel)
        self.inside.update(chain.inside)

    def _begin_exact(self, variable: Any, call: Any, product: ExactProduct) -> None:
        """Fuse to a product of integers all that its kernel can compute."""
        epilogue = EpilogueFinder(self, self._is_claimed, variable, product.scale).find()
        self.ends[epilogue.end] = lambda: emit_exact(self, call, product, epilogue)
        self.inside.update(epilogue.inside)

    def _is_claimed(self, variable: Any) -> bool:
        return variable in self.ends or variable in self.inside

    def _product(self, call: Any, product: Product, chain: Chain, kernel: dict[str, Any]) -> Any:
        """Call the kernel of a product with its bias and chain."""
        weights = self.resolve(call.args[1])
        source, kind = weights, product.kind
        if chain.scale is not None:
            weights = self.folded(chain.scale, source)
        if product.arrange is not None:
            weights = self.folded(product.arrange(constant_value(weights)), source)
        half = in_bfloat16(kernel, product.flops) if self._rounds(weights) else None
        if half is not None:
            kernel, kind, weights = half, f"{kind}_{BFLOAT16}", self._rounded(weights)
        arguments = [self.value(call.args[0]), self.value(weights)]
        if chain.bias is not None:
            arguments.append(self.folded(chain.bias, source))
        arguments += [self.value(post.operand) for post in chain.post if post.operand is not None]
        flops = product.flops + prod(sizes_of(call) or ()) * (len(chain.post) + (chain.bias is not None))
        steps = [*(["bias"] if chain.bias is not None else []), *(p.description["name"] for p in chain.post)]
        return self.kernels.call("_".join([kind, *steps]), kernel, arguments, chain.end.ty, flops)

    def _rounds(self, weights: Any) -> bool:
        return get_compile_target(self.mod).precision == BFLOAT16 and constant_value(weights) is not None

    def _rounded(self, weights: Any) -> Any:
        """Return a constant rounded to bfloat16, one for all readers."""
        address = data_address(weights)
        if address not in self.rounded:
            value = constant_value(weights).astype(numpy_dtype(BFLOAT16))
            self.rounded[address] = self.kernels.derived_constant(value, weights, self.names, f".{BFLOAT16}")
        return self.rounded[address]

    def _take(self, call: Any) -> Any:
        """Read rows of a table that is stored in bfloat16."""
        table = self.resolve(call.args[0])
        if len(sizes_of(table) or ()) != 2 or not self._rounds(table):
            return None
        rows = relax.op.take(self._rounded(table), self.value(call.args[1]), call.attrs.axis, call.attrs.mode)
        return relax.op.astype(self.emit(rows), "float32")

    def folded(self, value: Any, source: Any) -> Any:
        """Make a constant, named after the weights that it was computed from; ``source`` may be an activation."""
        return self.kernels.derived_constant(value, source, self.names, ".folded")

    def _pool(self, call: Any) -> Any:
        attrs, name = call.attrs, operation(call).removeprefix("nn.")
        shape, out = sizes_of(call.args[0]) or (), sizes_of(call) or ()
        size = tuple(int(s) for s in attrs.pool_size)
        describe, image = _layout(call, len(shape))
        if describe is None:
            return None
        geometry = window(attrs.strides, attrs.padding, attrs.dilation, size, shape[image], out[image])
        average = name.startswith("avg")
        low, high = geometry["padding_low"], geometry["padding_high"]
        if any(max(low[k], high[k]) >= size[k] for k in range(len(size))) or any(geometry["dilation"]):
            return None
        if average and prod(size) > MOST_TERMS:
            return None
        padded = any(low) or any(high)
        open_size = any(isinstance(each, Size) for each in shape[image])
        rounds_up = high != [int(p) for p in attrs.padding[len(size) :]] or (open_size and attrs.ceil_mode)
        if average and attrs.count_include_pad and rounds_up:
            return None  # ceil mode: oneDNN counts windows beyond the padding differently from TVM
        algorithm = "average_with_padding" if attrs.count_include_pad and padded else "average"
        kernel = {
            **({"primitive": "pooling", "algorithm": algorithm} if average else {"primitive": "max_pool"}),
            "kernel": list(size),
            **geometry,
            "operands": [describe(shape), describe(out)],
        }
        return self._plain(name, kernel, call, prod(out) * prod(size)) if is_fast(kernel) else None

    def _mean(self, call: Any) -> Any:
        """Compute the mean over an image by average pooling."""
        shape = sizes_of(call.args[0]) or ()
        rank = len(shape)
        if rank not in LAYOUTS:
            return None
        if operation(call) == "mean":
            axes = sorted(int(a) % rank for a in call.attrs.axis or [])
            known: dict[int, Describe] = {1: channels_last, **({2: dense} if rank > 3 else {})}
            describe = known.get(axes[0]) if axes else None
            if describe is None or axes != list(range(axes[0], axes[0] + rank - 2)):
                return None
        else:
            describe, _ = _layout(call, rank)
            if describe is None or prod(sizes_of(call) or ()) != shape[0] * shape[1 if describe is dense else -1]:
                return None
        first, zeros = describe is dense, [0] * (rank - 2)
        image = list(shape[2:] if first else shape[1:-1])
        if prod(image) > MOST_TERMS:
            return None
        one = (*shape[:2], *(1,) * (rank - 2)) if first else (shape[0], *(1,) * (rank - 2), shape[-1])
        kernel = {
            "primitive": "pooling", "algorithm": "average", "kernel": image, "strides": [1] * (rank - 2),
            "dilation": zeros, "padding_low": zeros, "padding_high": zeros,
            "operands": [describe(shape), describe(one)],
        }  # fmt: skip
        return self._plain("mean", kernel, call, prod(shape)) if is_fast(kernel) else None

    def _softmax(self, call: Any) -> Any:
        shape = sizes_of(call) or ()
        name = operation(call).removeprefix("nn.")
        kernel = {
            "primitive": "softmax",
            "algorithm": "log" if name == "log_softmax" else "accurate",
            "axis": int(call.attrs.axis) % len(shape),
            "operands": [dense(shape), dense(shape)],
        }
        return self._plain(name, kernel, call, 4 * prod(shape))

    def _layer_norm(self, call: Any) -> Any:
        shape, attrs = sizes_of(call) or (), call.attrs
        if [int(a) % len(shape) for a in attrs.axes] != [len(shape) - 1] or not (attrs.center and attrs.scale):
            return None
        if not all(is_float32(a) and sizes_of(a) == shape[-1:] for a in call.args[1:]):
            return None
        if shape[-1] > 64 * MOST_TERMS:  # its error of a million terms is 1.5e-6
            return None
        rows = dense((prod(shape[:-1]), shape[-1]))
        kernel = {
            "primitive": "layer_normalization",
            "numbers": [float(attrs.epsilon)],
            "operands": [rows, dense(shape[-1:]), dense(shape[-1:]), rows],
        }
        return self._plain("layer_norm", kernel, call, 8 * prod(shape))

    def _concatenation(self, call: Any) -> Any:
        parts = self.resolve(call.args[0])
        parts = self.definitions.get(parts, parts)
        if not isinstance(parts, relax.Tuple) or not 2 <= len(parts.fields) <= 64:
            return None
        if not all(is_float32(part) for part in parts.fields):
            return None
        shape = sizes_of(call) or ()
        axis = int(call.attrs.axis or 0) % len(shape)
        outer, inner = prod(shape[:axis]), prod(shape[axis + 1 :])
        sizes = [(outer, (sizes_of(part) or ())[axis] * inner) for part in parts.fields]
        kernel = {
            "primitive": "concatenation",
            "operands": [*(dense(size) for size in sizes), dense((outer, shape[axis] * inner))],
        }
        arguments = [self.value(part) for part in parts.fields]
        return self.kernels.call("concat", kernel, arguments, call.ty, 0)

    def _plain(self, kind: str, kernel: dict[str, Any], call: Any, flops: int) -> Any:
        return self.kernels.call(kind, kernel, [self.value(a) for a in call.args], call.ty, flops)


def _layout(call: Any, rank: int) -> tuple[Describe | None, slice]:
    """Return the function that describes a pool's tensors, and their image axes; None for an unknown layout."""
    plain, last = LAYOUTS[rank]
    layout = str(call.attrs.layout)
    if layout not in (plain, last) or str(call.attrs.out_layout) not in ("", layout):
        return None, slice(0)
    return (dense, slice(2, rank)) if layout == plain else (channels_last, slice(1, rank - 1))
