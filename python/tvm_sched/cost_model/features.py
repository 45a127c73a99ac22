"""Operators and devices as numbers: what the learned cost model looks at.

Everything here is an array with a row for each operator, so that 10,000 operators take milliseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from ..problem import OpGraph, Tensor
from .devices import DeviceProperties

Floats = npt.NDArray[np.float64]

FAMILIES = (
    "elementwise", "move", "gather", "reduce", "pool", "normalise", "softmax", "matmul", "conv2d", "attention",
    "decode_attention",
)  # fmt: skip
"""What kinds of work there are; the position is the feature. Files of models name them, so new ones go to the end."""

_WORDS = {
    "conv2d": "conv2d", "conv1d": "conv2d", "conv3d": "conv2d", "matmul": "matmul", "dense": "matmul",
    "attention": "attention", "softmax": "softmax", "norm": "normalise", "lrn": "normalise", "pool": "pool",
    "pool2d": "pool", "mean": "reduce", "sum": "reduce", "max": "reduce", "min": "reduce", "argmax": "reduce",
    "prod": "reduce", "take": "gather", "gather": "gather", "index": "gather", "concat": "move", "concatenate": "move",
    "transpose": "move", "reshape": "move", "split": "move", "slice": "move", "pad": "move", "strided": "move",
    "copy": "move", "tile": "move", "broadcast": "move", "squeeze": "move",
}  # fmt: skip
_HEAVIEST_FIRST = (
    "conv2d", "attention", "matmul", "softmax", "normalise", "pool", "reduce", "gather", "elementwise", "move",
)  # fmt: skip
_COSTLY = frozenset({"tanh", "exp", "gelu", "silu", "sigmoid", "power", "erf", "sqrt", "rsqrt", "log", "sin", "cos"})
_WITH_WEIGHTS = ("conv2d", "matmul", "attention", "decode_attention")
TILES = ((64, 64), (128, 128), (256, 128))
"""Rows and columns of the output that one thread block of a matrix product computes, as libraries choose them."""

FLOOR_SECONDS = {"cuda": 2e-6, "cpu": 0.5e-6}
"""What the least of kernels takes; the physics that the model falls back to is the roofline on top of this."""


@dataclass(frozen=True)
class Workload:
    """Operators as numbers; each field is an array with one entry for each of them.

    Matrix products are ``batch`` products of (m, k) and (k, n). A convolution is one with ``m`` pixels, ``n`` output
    channels of each of ``batch`` groups, and ``k`` products for each output; attention is one with ``m`` queries,
    ``n`` keys and ``k`` of the head's size. Other operators have ``m`` rows of ``n`` numbers and ``k`` 1.

    Attributes
    ----------
    family : array of int
        Positions in `FAMILIES`.
    dtype : array of str
        Of the first output, which says with what rate it is computed.
    flops : array of float
    read, parameters, written : array of float
        Bytes of activations and inputs read, of parameters, of results.
    batch, m, n, k : array of float
    window : array of float
        Weights of a convolution for each pair of channels, 1 for other operators.
    fused : array of float
        Further operations that are computed on the way out.
    costly : array of float
        Functions such as tanh among them, which count for no floating-point operation.
    library : array of float
        1 for the kernel of a library, 0 for one that a compiler made.
    """

    family: npt.NDArray[np.int64]
    dtype: npt.NDArray[np.str_]
    flops: Floats
    read: Floats
    parameters: Floats
    written: Floats
    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    window: Floats
    fused: Floats
    costly: Floats
    library: Floats

    def __len__(self) -> int:
        return len(self.family)

    @property
    def bytes(self) -> Floats:
        """All bytes that are read and written."""
        return self.read + self.parameters + self.written

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Workload:
        """Some of the operators."""
        return Workload(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    @staticmethod
    def concatenate(parts: Sequence[Workload]) -> Workload:
        """All operators of several workloads."""
        names = [field.name for field in dataclasses.fields(Workload)]
        return Workload(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def matrix_products(m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, dtype: str, bits: int) -> Workload:
    """Products of an activation (m, k) with a parameter (k, n) of a dtype, the result of at least 16 bits."""
    m, n, k = (np.asarray(each, dtype=np.float64) for each in (m, n, k))
    one, zero, size, result = np.ones(len(m)), np.zeros(len(m)), bits / 8, max(bits, 16) / 8
    family, dtypes = np.full(len(m), FAMILIES.index("matmul")), np.full(len(m), dtype)
    return Workload(
        family, dtypes, 2 * m * n * k, size * m * k, size * k * n, result * m * n, one, m, n, k, one, zero, zero, one
    )  # fmt: skip


def describe(graph: OpGraph) -> Workload:
    """The operators of a graph, in its order.

    Shapes are read off the tensors, as the importers and kernel libraries leave them: of an operator with weights the
    second input holds them, and the last dimension of a result is the fastest. Where a graph has sizes and no shapes
    (a problem file made by hand), an operator is a vector of its bytes.
    """
    seen: dict[tuple[object, ...], int] = {}
    rows: list[tuple[object, ...]] = []
    position = np.empty(len(graph.operators), dtype=np.int64)
    tensors, index = graph.tensors, graph.index
    for o, operator in enumerate(graph.operators):
        read = [tensors[index.tensor_id[name]] for name in operator.inputs]
        made = [tensors[t] for t in index.outputs[o]]
        key = (operator.kind, operator.flops, *((t.shape, t.dtype, t.size, t.kind) for t in (*read, *made)), len(made))
        if key not in seen:
            seen[key] = len(rows)
            rows.append(_row(operator.kind, operator.flops, read, made))
        position[o] = seen[key]
    if not rows:
        empty = np.zeros(0)
        return Workload(np.zeros(0, np.int64), np.zeros(0, np.str_), *[empty] * 12)
    columns = list(zip(*rows, strict=True))
    distinct = Workload(
        np.array(columns[0], np.int64), np.array(columns[1], np.str_), *(np.array(c, np.float64) for c in columns[2:])
    )
    return distinct.take(position)


@lru_cache(maxsize=4096)
def family_of(kind: str) -> tuple[str, int]:
    """Family of an operator's kind, and how many operations are fused with it.

    >>> family_of("onednn.conv2d_bias_relu")
    ('conv2d', 2)
    """
    words = [word for word in kind.rpartition(".")[2].split("_") if word]
    found = [_WORDS.get(word, "elementwise") for word in words] or ["elementwise"]
    if "pool" in found:
        return "pool", 0  # max_pool2d is one operation
    best = min(found, key=_HEAVIEST_FIRST.index)
    return best, len(found) - 1


def _row(kind: str, flops: int, read: Sequence[Tensor], made: Sequence[Tensor]) -> tuple[object, ...]:
    family, fused = family_of(kind)
    distinct = {tensor.name: tensor for tensor in read}.values()
    parameters = sum(t.size for t in distinct if t.kind == "parameter")
    others = sum(t.size for t in distinct) - parameters
    written = sum(t.size for t in made)
    dtype = made[0].dtype if made else ""
    batch, m, n, k, window = _extents(family, flops, read, made)
    position = FAMILIES.index(family)
    if family == "gather":  # reads as many rows of its table as it writes, not the table
        table = max((t.size for t in distinct), default=0)
        rows_read = min(table, written)
        parameters, others = (rows_read, others) if parameters >= table else (parameters, others - table + rows_read)
    costly = sum(word in _COSTLY for word in kind.rpartition(".")[2].split("_"))
    library = float("." in kind)
    return (position, dtype, float(flops), others, parameters, written, batch, m, n, k, window, fused, costly, library)


def _extents(
    family: str, flops: int, read: Sequence[Tensor], made: Sequence[Tensor]
) -> tuple[float, float, float, float, float]:
    """``batch, m, n, k, window`` of one operator."""
    out = made[0].shape if made else ()
    elements = float(prod(out)) if out else float(max(made[0].size, 1) if made else 1)
    n = float(out[-1]) if out else elements
    weights = read[1].shape if family in _WITH_WEIGHTS and len(read) > 1 else ()
    if not weights or not elements or flops < elements:
        return 1.0, elements / max(n, 1.0), n, 1.0, 1.0
    if family == "conv2d" and len(weights) > 2:
        k = float(prod(weights[1:]))
        groups = max(round(read[0].shape[-1] / weights[1]), 1) if read[0].shape and weights[1] else 1
        groups = groups if weights[0] % groups == 0 else 1
        return float(groups), elements / weights[0], weights[0] / groups, k, float(prod(weights[2:]))
    k = max(float(round(flops / (2 * elements))), 1.0)
    batch = float(prod(weights[:-2])) if len(weights) > 2 else 1.0
    return batch, elements / max(batch * n, 1.0), n, k, 1.0


def roofline_seconds(work: Workload, device: DeviceProperties) -> Floats:
    """Physics: arithmetic or bytes at the device's rates, whichever takes longer, and what the least of kernels takes."""
    compute, memory = _parts(work, device)
    return np.maximum(compute, memory) + FLOOR_SECONDS[device.kind]


def _parts(work: Workload, device: DeviceProperties) -> tuple[Floats, Floats]:
    names, code = np.unique(work.dtype, return_inverse=True)
    peak = np.array([device.peak(str(name)) for name in names])[code]
    return work.flops / peak, work.bytes / device.bandwidth


NAMES = (
    "family", "bits", "flops", "read", "parameters", "written", "batch", "m", "n", "k", "window", "fused",
    "costly", "library", "intensity",
    "compute", "memory", "compute/memory", "roofline", "peak", "bandwidth", "balance", "processors", "cache",
    "bytes/cache", "parameters/cache", "alignment n", "alignment k", "narrow",
    *(f"{what} {rows}x{columns}" for rows, columns in TILES for what in ("waves", "wave share", "tile share")),
)  # fmt: skip
"""What the columns of `features` are."""


def features(work: Workload, device: DeviceProperties) -> npt.NDArray[np.float32]:
    """The numbers that the model learns from; logarithms to base 2 where sizes spread over powers.

    Returns
    -------
    array of float32, shape (operators, len(NAMES))
    """
    compute, memory = _parts(work, device)
    physics = np.maximum(compute, memory) + FLOOR_SECONDS[device.kind]
    tiny = 1e-12
    columns: list[npt.ArrayLike] = [work.family, _bits(work.dtype)]
    columns += [_log(getattr(work, n)) for n in ("flops", "read", "parameters", "written", "batch", "m", "n", "k")]
    columns += [work.window, work.fused, work.costly, work.library, _log(work.flops) - _log(work.bytes)]
    columns += [np.log2(compute + tiny), np.log2(memory + tiny), np.log2((compute + tiny) / (memory + tiny))]
    names, code = np.unique(work.dtype, return_inverse=True)
    peak = np.array([device.peak(str(name)) for name in names])[code]
    columns += [np.log2(physics), np.log2(peak), np.log2(device.bandwidth), np.log2(peak / device.bandwidth)]
    columns += [device.processors, np.log2(device.cache)]
    columns += [_log(work.bytes) - np.log2(device.cache), _log(work.parameters) - np.log2(device.cache)]
    columns += [_alignment(work.n), _alignment(work.k), np.minimum(work.m, work.n)]
    for rows, columns_of in TILES:
        columns += _tiles(work, rows, columns_of, device.processors)
    result = np.empty((len(work), len(NAMES)), dtype=np.float32)
    for position, column in enumerate(columns):
        result[:, position] = column
    return result


def _tiles(work: Workload, rows: int, columns: int, processors: int) -> list[Floats]:
    """How often the output's tiles fill the processors, how full the last filling is, and how full the tiles are."""
    tiles = work.batch * np.ceil(work.m / rows) * np.ceil(work.n / columns)
    waves = tiles / processors
    return [
        np.log2(np.maximum(waves, 1e-6)), waves / np.ceil(waves),
        work.batch * work.m * work.n / np.maximum(tiles * rows * columns, 1),
    ]  # fmt: skip


def _alignment(values: Floats) -> Floats:
    """The largest power of two up to 64 that divides each, as its exponent."""
    whole = np.maximum(values, 1).astype(np.int64)
    return np.log2(np.minimum(whole & -whole, 64)).astype(np.float64)


def _log(values: Floats) -> Floats:
    return np.log2(np.maximum(values, 1.0))


_BITS = {"int4": 4, "float4": 4, "int8": 8, "uint8": 8, "bool": 8, "float16": 16, "bfloat16": 16, "int16": 16,
         "float64": 64, "int64": 64}  # fmt: skip


def dtype_bits(name: str) -> float:
    """Bits of a number of a dtype; 32 for those that are not known."""
    return 8.0 if name.startswith("float8") else float(_BITS.get(name, 32))


def _bits(dtypes: npt.NDArray[np.str_]) -> Floats:
    names, code = np.unique(dtypes, return_inverse=True)
    return np.array([dtype_bits(str(name)) for name in names])[code]
