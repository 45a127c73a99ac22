"""Features of the learned cost model: operators and devices as numbers.

Everything here is an array with a row for each operator, so that 10,000 operators take milliseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..problem import OpGraph, Tensor
from .device_properties import DeviceProperties

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
FUNCTIONS = {
    "exponentials": ("exp", "sigmoid", "silu", "log", "softplus", "log2", "exp2", "log1p", "expm1", "elu", "selu", "mish"),
    "polynomials": ("tanh", "gelu", "erf", "hardswish", "hardsigmoid", "leakyrelu"),
    "powers": ("power", "sin", "cos", "tan", "atan", "asin", "acos", "sinh", "cosh", "floormod", "mod"),
    "roots": ("sqrt", "rsqrt", "divide", "floor", "ceil", "round"),
    "choices": ("where", "cast", "equal", "less", "greater", "not", "logical", "clip", "maximum", "minimum", "select"),
    "moves": (
        "transpose", "reshape", "strided", "slice", "concat", "concatenate", "split", "take", "pad", "expand", "tile",
        "broadcast", "stack", "flip", "layout",
    ),
}  # fmt: skip
"""Words of a kind that are counted together, for each takes about as long as the others for every element: a call of the
C library or a few terms of a series, a division, a choice, an index that has to be taken apart."""
_WITH_WEIGHTS = ("conv2d", "matmul", "attention", "decode_attention")
TILES = ((64, 64), (128, 128), (256, 128))
"""Rows and columns of the output that one thread block of a matrix product computes, as libraries choose them."""

FLOOR_SECONDS = {"cuda": 2e-6, "cpu": 0.5e-6}
"""What the least of kernels takes; the physics that the model falls back to is the roofline on top of this."""
JOIN_SECONDS = 45e-6
"""What a library's kernel with several threads of a CPU takes besides its work, to wake them and wait for the last.

The median of what two threads take beyond half of one's time, of library kernels from 5 to 100 us in benchmarks/data."""


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
    exponentials, polynomials, powers, roots, choices, moves : array of float
        How many operations there are of each group of `FUNCTIONS`, which count for few floating-point operations or none.
    broadcast : array of float
        Inputs of more than one number and fewer than the result has.
    library : array of float
        1 for the kernel of a library, 0 for one that a compiler made.
    footprint : array of float
        Bytes of parameters that a run of the whole model reads: where they are more than a cache holds, a kernel finds
        its own in memory. 0 where a kernel is called again and again, or nothing is known.
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
    exponentials: Floats
    polynomials: Floats
    powers: Floats
    roots: Floats
    choices: Floats
    moves: Floats
    broadcast: Floats
    library: Floats
    footprint: Floats

    def __len__(self) -> int:
        return len(self.family)

    @cached_property
    def dtypes(self) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.int64]]:
        """Distinct dtypes, and the position of each operator's among them."""
        return np.unique(self.dtype, return_inverse=True)

    @cached_property
    def own_columns(self) -> _OwnColumns:
        """Columns of `features` that no device changes."""
        return _OwnColumns.of(self)

    @property
    def bytes(self) -> Floats:
        """All bytes that are read and written."""
        return self.read + self.parameters + self.written

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Workload:
        """Some of the operators."""
        return Workload(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    @staticmethod
    def of(family: str, dtype: str, **columns: npt.ArrayLike) -> Workload:
        """Operators of one family and dtype; of what is not given, sizes are 1 and the rest 0.

        Columns are arrays of one length, or numbers for all operators; at least ``flops`` is an array.
        """
        count = len(np.atleast_1d(columns["flops"]))
        names = [field.name for field in dataclasses.fields(Workload)][2:]
        given = {**dict.fromkeys(("batch", "m", "n", "k", "window"), 1.0), **columns}
        filled = [np.broadcast_to(np.asarray(given.get(name, 0.0), np.float64), (count,)) for name in names]
        return Workload(np.full(count, FAMILIES.index(family)), np.full(count, dtype), *filled)

    @staticmethod
    def concatenate(parts: Sequence[Workload]) -> Workload:
        """All operators of several workloads."""
        names = [field.name for field in dataclasses.fields(Workload)]
        return Workload(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def matrix_products(m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, dtype: str, bits: int) -> Workload:
    """Products of an activation (m, k) with a parameter (k, n) of a dtype, the result of at least 16 bits."""
    m, n, k = (np.asarray(each, dtype=np.float64) for each in (m, n, k))
    size, result = bits / 8, max(bits, 16) / 8
    sizes = {"m": m, "n": n, "k": k, "flops": 2 * m * n * k}
    moved = {"read": size * m * k, "parameters": size * k * n, "written": result * m * n}
    return Workload.of("matmul", dtype, **sizes, **moved, library=1)


def describe(graph: OpGraph, footprint: npt.ArrayLike | None = None) -> Workload:
    """The operators of a graph, in its order.

    Shapes are read off the tensors, as the importers and kernel libraries leave them: of an operator with weights the
    second input holds them, and the last dimension of a result is the fastest. Where a graph has sizes and no shapes
    (a problem file made by hand), an operator is a vector of its bytes.

    Parameters
    ----------
    graph : OpGraph
    footprint : array of float, shape (operators,), optional
        Of the model that each operator comes from; default: of the graph, all of whose parameters a run reads.
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
        return Workload.of("elementwise", "", flops=np.zeros(0))
    columns = list(zip(*rows, strict=True))
    numbers = [np.array(column, np.float64) for column in (*columns[2:], [0.0] * len(rows))]
    distinct = Workload(np.array(columns[0], np.int64), np.array(columns[1], np.str_), *numbers)
    work = distinct.take(position)
    total = footprint_of(graph, work) if footprint is None else np.asarray(footprint, np.float64)
    return dataclasses.replace(work, footprint=np.broadcast_to(total, position.shape))


def footprint_of(graph: OpGraph, work: Workload) -> float:
    """Bytes of parameters that a run of a graph reads; one that several operators read counts once.

    Of a table only the rows are read that a lookup takes, so that its operator's bytes count.
    """
    size = {tensor.name: tensor.size for tensor in graph.tensors if tensor.kind == "parameter"}
    total = 0.0
    for operator, read in zip(graph.operators, work.parameters.tolist(), strict=True):
        if read:
            total += min(read, sum([size.pop(name, 0) for name in operator.inputs]))
    return total


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
    family, position, fused, counts, library = _facts(kind)
    written, result = sum([t.size for t in made]), max([prod(t.shape) for t in made], default=1)
    parameters = others = table = broadcast = 0
    for tensor in {tensor.name: tensor for tensor in read}.values():
        if tensor.kind == "parameter":
            parameters += tensor.size
        else:
            others += tensor.size
        table = max(table, tensor.size)
        broadcast += 1 < prod(tensor.shape) < result
    if family == "gather":  # reads as many rows of its table as it writes, not the table
        rows_read = min(table, written)
        parameters, others = (rows_read, others) if parameters >= table else (parameters, others - table + rows_read)
    dtype, extents = made[0].dtype if made else "", _extents(family, flops, read, made)
    return (position, dtype, flops, others, parameters, written, *extents, fused, *counts, broadcast, library)


@lru_cache(maxsize=4096)
def _facts(kind: str) -> tuple[str, int, int, tuple[int, ...], float]:
    """Of a kind: its family and its position, operations fused, words in each group of `FUNCTIONS`, whether a library's."""
    family, fused = family_of(kind)
    words = kind.rpartition(".")[2].split("_")
    counts = tuple(sum(word in group for word in words) for group in FUNCTIONS.values())
    return family, FAMILIES.index(family), fused, counts, float("." in kind)


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
    """The roofline: the longer of arithmetic and memory traffic at the device's rates, plus the time of an empty kernel.

    Of a CPU's threads only kernels of libraries use more than one.
    """
    return np.maximum(*_parts(work, device)) + FLOOR_SECONDS[device.kind]


def join_seconds(work: Workload, device: DeviceProperties) -> Floats:
    """Overhead of operators because several threads of a CPU share their work."""
    shared = device.kind == "cpu" and device.processors > 1
    return JOIN_SECONDS * work.library if shared else np.zeros(len(work))


def _parts(work: Workload, device: DeviceProperties) -> tuple[Floats, Floats]:
    return work.flops / _peak(work, device), work.bytes / device.bandwidth


def _peak(work: Workload, device: DeviceProperties) -> Floats:
    names, code = work.dtypes
    rates = np.array([device.peak(str(name)) for name in names], np.float64)[code]
    return rates / np.where(work.library > 0, 1, device.processors) if device.kind == "cpu" else rates


NAMES = (
    "family", "bits", "flops", "read", "parameters", "written", "batch", "m", "n", "k", "window", "fused",
    *FUNCTIONS, "calls", "broadcast", "library", "intensity",
    "compute", "memory", "compute/memory", "roofline", "peak", "bandwidth", "balance", "processors", "cache",
    "bytes/cache", "parameters/cache", "footprint/cache", "alignment n", "alignment k", "narrow",
    *(f"{what} {rows}x{columns}" for rows, columns in TILES for what in ("waves", "wave share", "tile share")),
)  # fmt: skip
"""What the columns of `features` are."""


def features(work: Workload, device: DeviceProperties) -> npt.NDArray[np.float32]:
    """The numbers that the model learns from; logarithms to base 2 where sizes spread over powers.

    Bytes of which there are none, or of which nothing is known, are missing (NaN) beside the cache: as a number they would
    tell its size and so the device.

    Returns
    -------
    array of float32, shape (operators, len(NAMES))
    """
    compute, memory = _parts(work, device)
    physics = np.maximum(compute, memory) + FLOOR_SECONDS[device.kind]
    tiny, peak, cache = 1e-12, _peak(work, device), np.log2(device.cache)
    own = work.own_columns
    columns: list[npt.ArrayLike] = list(own.first.T)
    columns += [np.log2(compute + tiny), np.log2(memory + tiny), np.log2((compute + tiny) / (memory + tiny))]
    columns += [np.log2(physics), np.log2(peak), np.log2(device.bandwidth), np.log2(peak / device.bandwidth)]
    columns += [device.processors, cache, *(each - cache for each in own.moved.T), *own.last.T]
    for rows, columns_of in TILES:
        columns += _tiles(work, rows, columns_of, device.processors)
    result = np.empty((len(work), len(NAMES)), dtype=np.float32)
    for position, column in enumerate(columns):
        result[:, position] = column
    return result


class _OwnColumns(NamedTuple):
    """What `features` needs of operators that is the same on all devices, a row for each operator."""

    first: npt.NDArray[np.float32]
    moved: Floats
    last: Floats

    @staticmethod
    def of(work: Workload) -> _OwnColumns:
        names, code = work.dtypes
        first: list[npt.ArrayLike] = [work.family, np.array([dtype_bits(str(name)) for name in names])[code]]
        first += [_log(getattr(work, n)) for n in ("flops", "read", "parameters", "written", "batch", "m", "n", "k")]
        first += [work.window, work.fused, *(getattr(work, name) for name in FUNCTIONS)]
        first += [work.exponentials + work.polynomials + work.powers, work.broadcast, work.library]
        first += [_log(work.flops) - _log(work.bytes)]
        parameters, footprint = (np.where(each > 0, _log(each), np.nan) for each in (work.parameters, work.footprint))
        moved = [_log(work.bytes), parameters, footprint]
        last = [_alignment(work.n), _alignment(work.k), np.minimum(work.m, work.n)]
        return _OwnColumns(np.stack(first, axis=1).astype(np.float32), np.stack(moved, axis=1), np.stack(last, axis=1))


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
