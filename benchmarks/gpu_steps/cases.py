"""Single kernels as Relax and PyTorch write them, and the chains of products of the cold start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .weights import Array, numbers

TYPES = ("float32", "float16", "bfloat16")
LIBRARIES, ALONE = "handwritten_cuda,nvidia", "handwritten_cuda"
Shapes = Sequence[tuple[int, ...]]
COLD = {
    "rehearsal": (64, 4, 1),
    "0.1 GB": (2048, 6, 1),
    "0.5 GB": (4096, 8, 1),
    "2 GB": (8192, 8, 1),
}
"""Width, layers and rows of the chains of products, by the bytes of their weights in float32."""


def cold_weight(layer: int, width: int) -> Array:
    """Return a weight of a chain of products with ReLU."""
    return numbers(f"w{layer}", (width, width), (6 / width) ** 0.5)


@dataclass(frozen=True)
class Chain:
    """Equal kernels one after another, which fill some of a GPU for long enough to be timed beside others.

    ``weight`` is the shape of the weight that all share, empty without one; ``emit`` takes the builder, a value and it.
    """

    shape: tuple[int, ...]
    weight: tuple[int, ...]
    emit: Callable[..., Any]
    length: int = 32


def _chains() -> dict[str, Chain]:
    def product(e: Any, x: Any, w: Any) -> Any:
        from tvm import relax

        return e(relax.op.nn.relu(e(relax.op.matmul(x, w))))

    def convolution(e: Any, x: Any, w: Any) -> Any:
        from tvm import relax

        return e(relax.op.nn.relu(e(relax.op.nn.conv2d(x, w, padding=1))))

    def softmax(e: Any, x: Any, _: Any) -> Any:
        from tvm import relax

        return e(relax.op.nn.softmax(x))

    def pool(e: Any, x: Any, _: Any) -> Any:
        from tvm import relax

        return e(relax.op.nn.max_pool2d(x, (3, 3), padding=(1, 1)))

    return {
        "rehearsal product": Chain((4, 8), (8, 8), product, 2),
        "rehearsal softmax": Chain((4, 8), (), softmax, 2),
        "product 64x1024": Chain((64, 1024), (1024, 1024), product),
        "product 512x1024": Chain((512, 1024), (1024, 1024), product),
        "product 2048x2048": Chain((2048, 2048), (2048, 2048), product, 8),
        "conv 64 56x56": Chain((1, 64, 56, 56), (64, 64, 3, 3), convolution),
        "conv 256 14x14": Chain((1, 256, 14, 14), (256, 256, 3, 3), convolution),
        "softmax 4096x1024": Chain((4096, 1024), (), softmax),
        "max pool 64 112x112": Chain((8, 64, 112, 112), (), pool, 16),
    }


CHAINS = _chains()
STATE_SHAPE, STATE_STEPS = (4, 32), 12
"""Of the model with a state, and how many steps it is run."""


def chain_weight(name: str, shape: Sequence[int]) -> Array:
    """Return the weight of a chain, with which ReLU leaves values as large as they were."""
    inner = prod(shape[1:]) if len(shape) == 4 else shape[0]
    return numbers(f"chain {name}", tuple(shape), (6 / inner) ** 0.5)


def state_weight() -> Array:
    """Return the weight of the model with a state."""
    width = STATE_SHAPE[1]
    return numbers("state w", (width, width), (3 / width) ** 0.5)


@dataclass(frozen=True)
class KernelCase:
    """A kernel: how Relax and PyTorch write it, and the shapes of its inputs and constants."""

    name: str
    dtype: str
    emit: Callable[..., Any]
    peer: Callable[..., Any]
    inputs: Shapes
    constants: Shapes = ()
    precision: str = "float32"
    libraries: str = LIBRARIES

    @property
    def title(self) -> str:
        """The name that a person asks for."""
        kind = "tf32" if self.precision == "tf32" else self.dtype
        return f"{self.name} {kind}{'' if self.libraries == LIBRARIES else ', without cuBLASLt and cuDNN'}"

    def weight(self, k: int) -> Array:
        """Return a constant."""
        shape = self.constants[k]
        inner = prod(shape[1:]) if len(shape) == 4 else shape[0]
        return numbers(f"{self.name} w{k}", tuple(shape), (3 / max(inner, 1)) ** 0.5, self.dtype)

    def input(self, k: int) -> Array:
        """Return an input."""
        return numbers(f"{self.name} x{k}", tuple(self.inputs[k]), 1.7, self.dtype)


def functional() -> Any:
    """Import what PyTorch writes kernels with."""
    import torch.nn.functional

    return torch.nn.functional


def products(dtype: str) -> Iterator[KernelCase]:
    """Products with weights, of one row to thousands."""

    def emit(e: Any, x: Any, w: Any) -> Any:
        from tvm import relax

        return relax.op.matmul(x, w)

    for m, n, k in ((4096, 4096, 4096), (512, 4096, 4096), (32, 4096, 4096), (1, 4096, 4096), (384, 768, 3072)):
        shapes = [(m, k)], [(k, n)]
        yield KernelCase(f"product {m}x{n}x{k}", dtype, emit, lambda x, w: x @ w, *shapes)
        if dtype == "float32" and m > 32:
            yield KernelCase(f"product {m}x{n}x{k}", dtype, emit, lambda x, w: x @ w, *shapes, "tf32")


def convolutions(dtype: str) -> Iterator[KernelCase]:
    """With bias and ReLU: (batch, channels, size, outputs, window, stride, padding, groups)."""
    cases = {
        "conv 3x3 64>64 56x56": (8, 64, 56, 64, 3, 1, 1, 1),
        "conv 1x1 64>256 56x56": (8, 64, 56, 256, 1, 1, 0, 1),
        "conv 1x1 256>64 56x56, batch 1": (1, 256, 56, 64, 1, 1, 0, 1),
        "conv 3x3 256>256 14x14, batch 1": (1, 256, 14, 256, 3, 1, 1, 1),
        "conv 7x7/2 stem": (8, 3, 224, 64, 7, 2, 3, 1),
        "conv 3x3 32 groups": (8, 128, 56, 128, 3, 1, 1, 32),
        "conv 3x3 depthwise": (8, 96, 56, 96, 3, 1, 1, 96),
        "conv 5x5 depthwise, batch 1": (1, 240, 28, 240, 5, 1, 2, 240),
    }
    for name, (batch, channels, size, outputs, window, stride, padding, groups) in cases.items():

        def emit(e: Any, x: Any, w: Any, b: Any, s: int = stride, p: int = padding, g: int = groups) -> Any:
            from tvm.relax import op

            y = e(op.nn.conv2d(x, w, strides=s, padding=p, groups=g))
            return op.nn.relu(e(op.add(y, e(op.reshape(b, (1, -1, 1, 1))))))

        def peer(x: Any, w: Any, b: Any, s: int = stride, p: int = padding, g: int = groups) -> Any:
            return functional().relu(functional().conv2d(x, w, b, s, p, 1, g))

        weights = (outputs, channels // groups, window, window)
        yield KernelCase(name, dtype, emit, peer, [(batch, channels, size, size)], [weights, (outputs,)])


def attention(dtype: str) -> Iterator[KernelCase]:
    """Of (batch, rows, heads, width): encoders, a prompt, and one token that follows 2048."""
    sizes = {
        "8x12x384x64": ((8, 384, 12, 64), 384),
        "causal 1x32x2048x128": ((1, 2048, 32, 128), 2048),
        "decode 8x32x1x128, 2048 keys": ((8, 1, 32, 128), 2048),
    }
    for name, (shape, keys) in sizes.items():
        causal = name.startswith("causal")

        def emit(e: Any, q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
            from tvm.relax import op

            return op.nn.attention(q, k, v, causal_mask="TopLeft" if causal else None)

        def peer(*given: Any, causal: bool = causal) -> Any:
            call = functional().scaled_dot_product_attention
            return call(*(x.transpose(1, 2) for x in given), is_causal=causal).transpose(1, 2)

        other = (shape[0], keys, *shape[2:])
        yield KernelCase(f"attention {name}", dtype, emit, peer, [shape, other, other])


def others(dtype: str) -> Iterator[KernelCase]:
    """Epilogues, batches, and what is bound by memory."""
    try:
        F = functional()  # noqa: N806
    except ImportError:  # then nothing is compared
        F = None  # noqa: N806

    class Lazy:
        """TVM's operators; the machine with the GPU has none, and never emits."""

        def __getattr__(self, name: str) -> Any:
            from tvm.relax import op

            return getattr(op, name)

    op, rows, width, pairs = Lazy(), [(4096, 1024)], [(1024,)], [(96, 384, 64)] * 2
    yield KernelCase(
        "product+bias+gelu 512x3072x768", dtype,
        lambda e, x, w, b: op.nn.gelu_tanh(e(op.add(e(op.matmul(x, w)), b))),
        lambda x, w, b: F.gelu(functional_addmm(b, x, w), approximate="tanh"),
        [(512, 768)], [(768, 3072), (3072,)],
    )  # fmt: skip
    yield KernelCase(
        "batched 96x384x384x64 transposed", dtype,
        lambda e, x, y: op.matmul(x, e(op.permute_dims(y, [0, 2, 1]))), lambda x, y: x @ y.mT, pairs,
    )  # fmt: skip
    yield KernelCase(
        "layer norm 4096x1024", dtype, lambda e, x, w, b: op.nn.layer_norm(x, w, b, axes=[-1]),
        lambda x, w, b: F.layer_norm(x, (1024,), w, b), rows, width * 2,
    )  # fmt: skip
    yield KernelCase(
        "rms norm 4096x1024", dtype, lambda e, x, w: op.nn.rms_norm(x, w, axes=[-1], epsilon=1e-5),
        lambda x, w: F.rms_norm(x, (1024,), w, 1e-5), rows, width,
    )  # fmt: skip
    yield KernelCase("softmax 4096x1024", dtype, lambda e, x: op.nn.softmax(x), lambda x: x.softmax(-1), rows)
    yield KernelCase(
        "silu x up 512x11008", dtype, lambda e, x, y: op.multiply(e(op.nn.silu(x)), y), lambda x, y: F.silu(x) * y,
        [(512, 11008)] * 2,
    )  # fmt: skip
    yield KernelCase("running sum 512x4096", dtype, lambda e, x: op.cumsum(x, 1), lambda x: x.cumsum(1), [(512, 4096)])
    yield KernelCase("sort 512x1024", dtype, lambda e, x: op.sort(x, 1), lambda x: x.sort(1).values, [(512, 1024)])
    yield KernelCase(
        "max pool 3x3/2 64 112x112", dtype, lambda e, x: op.nn.max_pool2d(x, (3, 3), strides=(2, 2)),
        lambda x: F.max_pool2d(x, 3, 2), [(8, 64, 112, 112)],
    )  # fmt: skip


def functional_addmm(b: Any, x: Any, w: Any) -> Any:
    """Add a bias to a product."""
    import torch

    return torch.addmm(b, x, w)


def kernel_cases() -> list[KernelCase]:
    """Return all cases, half precision of attention first."""

    def tiny(e: Any, x: Any, w: Any) -> Any:
        from tvm import relax

        return relax.op.matmul(x, w)

    rehearsal = KernelCase("rehearsal", "float32", tiny, lambda x, w: x @ w, [(4, 8)], [(8, 12)])
    parts = (attention, convolutions, products, others)
    return [
        rehearsal,
        *(case for dtype in ("float16", "float32", "bfloat16") for part in parts for case in part(dtype)),
    ]
