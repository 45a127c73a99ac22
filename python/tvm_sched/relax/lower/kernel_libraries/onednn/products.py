"""Kernels for convolutions, transposed convolutions and matrix products, to which a chain of operators can be fused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tvm_sched_runtime.core_library import function as library_function

from ....ir.sizes import example_for, example_of, sizes_of
from ....toolchain.compile_target import BFLOAT16
from ..rewrite import constant_value, is_float32, operation
from .describe import channels_last, dense, permuted, transposed_window, window
from .operator_chain import Chain

VERSION = 10
CONVOLUTIONS = tuple(f"nn.conv{n}d" for n in (1, 2, 3))
TRANSPOSED = tuple(f"nn.conv{n}d_transpose" for n in (1, 2, 3))
LAYOUTS = {3: ("NCW", "NWC"), 4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}
"""By number of dimensions: the layout that importers write, and the layout that kernels compute on."""
LEAST_REUSE = 64
"""Fewest operations per element of the source for which rounding the source to bfloat16 pays."""
FEWEST_PLACES, FEWEST_OUTPUTS = 128, 256
"""Fewest positions and output channels for which `_line` is faster than a convolution."""
ALIASED = 1024
"""Floats in 4 KiB."""


MOST_TERMS = 1 << 14
"""Most terms of a sum that oneDNN adds to one float32 accumulator: with more, the rounding errors of positive terms exceed
3e-6. Pools, convolutions and products of one row have one accumulator, other products add blocks of some hundred terms."""


@dataclass(frozen=True)
class Product:
    """A kernel with weights, before operators are fused to it."""

    kind: str
    """Name of the operator."""
    kernel: dict[str, Any]
    """Description of the kernel without its operands."""
    operands: list[dict[str, Any]]
    """Source and weights."""
    result: dict[str, Any]
    bias: dict[str, Any]
    """Operand for a bias with one number per output channel."""
    view: Callable[[tuple[int, ...]], dict[str, Any] | None]
    """Takes the shape of an operand, which is the result's shape or 1 along some dimensions, and returns its
    description; None if the kernel cannot read it."""
    flops: int
    axis: int | None
    """Axis of the output channels in the weights; None if nothing can be folded into the weights."""
    arrange: Callable[[Any], Any] | None = None
    """Converts constant weights, after folding, to the layout that the kernel reads."""

    def description(self, chain: Chain) -> dict[str, Any] | None:
        """Describe the kernel with a chain fused to it; None if it cannot read an operand.

        The kernel's arguments are the source, the weights, the bias if there is one, and the chain's operands in order.
        """
        operands = list(self.operands)
        kernel: dict[str, Any] = {**self.kernel, "post": []}
        if chain.bias is not None:
            kernel["bias"] = len(operands)
            operands.append(self.bias)
        for post in chain.post:
            entry = dict(post.description)
            if post.operand is not None:
                view = self.result if post.shape is None else self.view(post.shape)
                if view is None:
                    return None
                entry["input"] = len(operands)
                operands.append(view)
            kernel["post"].append(entry)
        return {**kernel, "operands": [*operands, self.result]}


def implementation(kernel: dict[str, Any]) -> str:
    """Return the name of oneDNN's default implementation of a kernel on this machine; empty if it has none, or no answer."""
    sizes = [size for operand in kernel["operands"] for size in operand["dims"]]
    number = example_for(sizes)
    if number is None:
        return ""
    document = {"version": VERSION, "kernels": {"kernel": kernel}}
    text = json.dumps(document, default=partial(example_of, number=number))
    try:
        return str(library_function("tvm_sched.onednn_implementation")(text))
    except (RuntimeError, ValueError):
        if all(isinstance(size, int) for size in sizes):
            raise
        return ""  # oneDNN does not take the example sizes


def is_fast(kernel: dict[str, Any] | None) -> bool:
    """Whether oneDNN has an implementation other than its reference code, which is slower than TVM's."""
    if kernel is None:
        return False
    name = implementation(kernel)
    return bool(name) and "ref" not in name and name != "simple:any"


def in_bfloat16(kernel: dict[str, Any], flops: int) -> dict[str, Any] | None:
    """Return the kernel with bfloat16 weights and a source that it rounds to bfloat16; None if that is not faster.

    Sums and fused operators stay in float32.
    """
    source, weights, *others = kernel["operands"]
    if kernel["primitive"] == "line_convolution" or flops < LEAST_REUSE * prod(source["dims"]):
        return None
    changed = {**kernel, "operands": [source, {**weights, "type": BFLOAT16}, *others]}
    name = implementation(changed)
    return changed if is_fast(changed) and ("bf16" in name or "amx" in name) else None


def product_of(call: Any, weights: Any) -> Product | None:
    """Return the kernel for a call; None if oneDNN has none. ``weights`` is the call's second argument, resolved."""
    if not all(is_float32(expr) for expr in (*call.args, call)):
        return None
    name = operation(call)
    parameter = constant_value(weights) is not None
    if name == "matmul":
        return _matmul(call, parameter)
    if name in CONVOLUTIONS or name in TRANSPOSED:
        return _convolution(call, parameter, name in TRANSPOSED)
    return None


def layouts(call: Any) -> tuple[str, str, str]:
    """Return the layouts of a convolution's images, weights and result."""
    attrs = call.attrs
    return str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout) or str(attrs.data_layout)


def known_layouts(call: Any, last: bool) -> tuple[str, str, str] | None:
    """Return the supported layouts of data, weights ((O, I / groups, ...) or (I, O / groups, ...)) and result."""
    rank = len(sizes_of(call) or ())
    if rank not in LAYOUTS:
        return None
    data = LAYOUTS[rank][last]
    return data, ("IO" if operation(call) in TRANSPOSED else "OI") + LAYOUTS[rank][0][2:], data


def _convolution(call: Any, parameter: bool, transposed: bool) -> Product | None:
    attrs, shape, filters, out = call.attrs, *((sizes_of(e) or ()) for e in (*call.args, call))
    if layouts(call) != known_layouts(call, last=True):
        return None
    groups, kernel, rank = int(attrs.groups), filters[2:], len(shape)
    if not all(isinstance(size, int) for size in (shape[-1], *filters)):
        return None
    if prod(kernel) * shape[-1] // groups > MOST_TERMS * 2:
        return None
    turn = _turn(shape[1:-1], out[1:-1], kernel)
    weights = _filters((*filters[:2], *(kernel[k] for k in turn)), groups, transposed, parameter)
    if parameter and not transposed and _is_line(call):
        return _line(call)
    if not transposed and groups == 1 and prod(shape[1:-1]) == prod(out[1:-1]) == prod(kernel) == 1:
        return _point(shape[0], filters[:2], rank, parameter)
    describe = transposed_window if transposed else window
    geometry = describe(attrs.strides, attrs.padding, attrs.dilation, kernel, shape[1:-1], out[1:-1])

    def turned(image: tuple[int, ...]) -> tuple[int, ...]:
        return (image[0], *(image[1 + k] for k in turn), image[-1])

    # Each element of the smaller channel dimension is multiplied once per position of the window.
    flops = 2 * prod(kernel) * filters[1] * (prod(shape) if transposed else prod(out))
    return Product(
        kind=operation(call).removeprefix("nn."),
        kernel={
            "primitive": "deconvolution" if transposed else "convolution",
            **{name: [numbers[k] for k in turn] for name, numbers in geometry.items()},
        },
        operands=[channels_last(turned(shape)), weights],
        result=channels_last(turned(out)),
        bias=dense(out[-1:], parameter=True),
        view=lambda other: channels_last(turned(other)),
        flops=flops,
        axis=None if not parameter or (transposed and groups > 1) else 1 if transposed else 0,
    )


def _turn(image: tuple[int, ...], out: tuple[int, ...], kernel: tuple[int, ...]) -> list[int]:
    """Return the order of image dimensions for oneDNN: dimensions of extent 1 first.

    oneDNN vectorises along the last dimension, so an image with one column is described as one row.
    """
    return sorted(range(len(image)), key=lambda k: not image[k] == out[k] == kernel[k] == 1)


def _point(batch: int, filters: tuple[int, ...], rank: int, parameter: bool) -> Product:
    """Describe a convolution of 1 x 1 images (squeeze-and-excitation, say) as a matrix product."""
    channels, terms = filters
    return Product(
        kind=f"conv{rank - 2}d",
        kernel={"primitive": "matmul"},
        operands=[
            dense((batch, terms)),
            {"dims": [terms, channels], "strides": [1, terms], **({"parameter": True} if parameter else {})},
        ],
        result=dense((batch, channels)),
        bias=dense((1, channels), parameter=True),
        view=lambda other: dense((other[0], other[-1])) if len(other) == rank else None,
        flops=2 * batch * channels * terms,
        axis=0 if parameter else None,
    )


def _is_line(call: Any) -> bool:
    """Whether a 1D convolution is faster as a product: its windows begin a multiple of 4 KiB apart.

    The rows that oneDNN's convolution reads then fall into the same sets of the first-level cache. On two cores it
    reached 53 to 170 GFLOP/s, and products of copied windows 195 to 217 (256 to 1024 channels, strides 2 and 4).
    wav2vec2's feature extractor has such convolutions.
    """
    shape, filters, out, attrs = *((sizes_of(e) or ()) for e in (*call.args, call)), call.attrs
    if len(shape) != 3 or int(attrs.groups) != 1 or [int(d) for d in attrs.dilation] != [1]:
        return False
    stride = int(attrs.strides[0])
    large = out[1] >= FEWEST_PLACES and filters[0] >= FEWEST_OUTPUTS
    return large and filters[2] > stride and stride * filters[1] % ALIASED == 0


def _line(call: Any) -> Product:
    """Describe a 1D convolution as a matrix product over copies of its windows."""
    attrs, shape, filters, out = call.attrs, *((sizes_of(e) or ()) for e in (*call.args, call))
    rows, terms, channels = prod(out[:-1]), prod(filters[1:]), (1, out[-1])
    return Product(
        kind=operation(call).removeprefix("nn."),
        kernel={
            "primitive": "line_convolution",
            "kernel": [filters[2]],
            "strides": [int(attrs.strides[0])],
            "padding_low": [int(attrs.padding[0])],
        },
        operands=[dense(shape), dense((terms, out[-1]), parameter=True)],
        result=dense((rows, out[-1])),
        bias=dense(channels, parameter=True),
        view=lambda other: dense((1, other[-1])) if prod(other) == other[-1] else None,
        flops=2 * rows * terms * out[-1],
        axis=0,
        arrange=lambda weights: np.ascontiguousarray(weights.transpose(2, 1, 0)).reshape(-1, weights.shape[0]),
    )


def _filters(shape: tuple[int, ...], groups: int, transposed: bool, parameter: bool) -> dict[str, Any]:
    """Describe weights (O, I / groups, ...) or (I, O / groups, ...) as oneDNN's (groups, O / groups, I / groups, ...)."""
    split = (groups, shape[0] // groups, *shape[1:])
    order = tuple(range(len(split)))
    result = permuted(split, (0, 2, 1, *order[3:]) if transposed else order)
    if groups == 1:
        result = {key: value[1:] for key, value in result.items()}
    return {**result, "parameter": True} if parameter else result


def _matmul(call: Any, parameter: bool) -> Product | None:
    a, b, out = sizes_of(call.args[0]) or (), sizes_of(call.args[1]) or (), sizes_of(call) or ()
    if len(a) < 2 or len(b) < 2 or len(out) > 6:
        return None
    if len(b) == 2:
        shapes: list[tuple[int, ...]] = [(prod(a[:-1]), a[-1]), b, (prod(out[:-1]), out[-1])]
    elif a[:-2] == b[:-2]:
        shapes = [(prod(s[:-2]), *s[-2:]) for s in (a, b, out)]
    else:
        shapes = [(1,) * (len(out) - len(s)) + s for s in (a, b, out)]
    rank = len(shapes[2])
    if not parameter and shapes[2][-2] == 1 and a[-1] > MOST_TERMS:
        return None

    def view(other: tuple[int, ...]) -> dict[str, Any] | None:
        if shapes[2] == out:
            return dense(other)
        whole = not any(size > 1 for size in other[:-1])
        if whole:
            return dense((*(1,) * (rank - 1), other[-1]))
        return dense((1, *other[-2:])) if rank == 3 and not any(size > 1 for size in other[:-2]) else None

    return Product(
        kind="matmul",
        kernel={"primitive": "matmul"},
        operands=[dense(shapes[0]), dense(shapes[1], parameter)],
        result=dense(shapes[2]),
        bias=dense((*(1,) * (rank - 1), out[-1]), parameter=True),
        view=view,
        flops=2 * prod(out) * a[-1],
        axis=1 if parameter and len(b) == 2 else None,
    )
