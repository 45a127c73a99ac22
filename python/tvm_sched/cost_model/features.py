"""Features of the learned cost model: operators and devices as numbers.

Everything here is an array with a row for each operator, so that 10,000 operators take milliseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import OpGraph, Tensor

from .device_properties import DeviceProperties

Floats = npt.NDArray[np.float64]

FAMILIES = (
    "elementwise", "move", "gather", "reduce", "pool", "normalise", "softmax", "matmul", "conv2d", "attention",
    "decode_attention", "recurrent",
)  # fmt: skip
"""Families of operators; the position is the feature. Files of models name them, so add new ones at the end."""

_WORDS = {
    "conv2d": "conv2d", "conv1d": "conv2d", "conv3d": "conv2d", "matmul": "matmul", "dense": "matmul",
    "attention": "attention", "softmax": "softmax", "norm": "normalise", "lrn": "normalise", "pool": "pool",
    "pool2d": "pool", "mean": "reduce", "sum": "reduce", "max": "reduce", "min": "reduce", "argmax": "reduce",
    "prod": "reduce", "take": "gather", "gather": "gather", "index": "gather", "concat": "move", "concatenate": "move",
    "transpose": "move", "reshape": "move", "split": "move", "slice": "move", "pad": "move", "strided": "move",
    "copy": "move", "tile": "move", "broadcast": "move", "squeeze": "move", "lstm": "recurrent", "gru": "recurrent",
    "rnn": "recurrent",
}  # fmt: skip
_HEAVIEST_FIRST = (
    "recurrent", "conv2d", "attention", "matmul", "softmax", "normalise", "pool", "reduce", "gather", "elementwise", "move",
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
"""Words of a kind that are counted together, since they take about equally long for an element: a call of the C library, a
few terms of a series, a division, a choice, the computation of an index."""
_WITH_WEIGHTS = ("conv2d", "matmul", "attention", "decode_attention")
TILES = ((64, 64), (128, 128), (256, 128))
"""Rows and columns of the output of one thread block of a matrix product, as libraries choose them."""

FLOOR_SECONDS = {"cuda": 2e-6, "cpu": 0.5e-6}
"""Time of an empty kernel; the model falls back to this plus the roofline."""
JOIN_SECONDS = 18e-6
"""Overhead of a library's kernel with several CPU threads, which wakes them and waits for the last.

It is the median excess of two threads' time over half of one's, of 24 library kernels of 5 to 100 us in inception_v1 and an
LSTM on an AMD EPYC (family 25)."""


@dataclass(frozen=True)
class KernelWork:
    """Operators as numbers; each field is an array with one entry for each operator.

    Matrix products are ``batch`` products of (m, k) and (k, n). A convolution counts as one with ``m`` pixels, ``n``
    output channels in each of ``batch`` groups, and ``k`` products for each output; attention as one with ``m`` queries,
    ``n`` keys and head size ``k``. Other operators have ``m`` rows of ``n`` numbers and ``k`` 1.
    """

    family: npt.NDArray[np.int64]
    """Positions in `FAMILIES`."""
    dtype: npt.NDArray[np.str_]
    """Type of the first output, which decides the rate of computation."""
    flops: Floats
    read: Floats
    parameters: Floats
    written: Floats
    """Bytes of activations and inputs read, of parameters, of results."""
    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    window: Floats
    """Weights of a convolution for each pair of channels, 1 for other operators."""
    fused: Floats
    """Number of further operations that are fused."""
    exponentials: Floats
    polynomials: Floats
    powers: Floats
    roots: Floats
    choices: Floats
    moves: Floats
    """Number of operations of each group of `FUNCTIONS`, which count for few or no floating-point operations."""
    library: Floats
    """1 for a library's kernel, 0 for a compiled one."""
    footprint: Floats
    """Bytes of parameters that a run of the whole model reads. If they exceed the cache, a kernel finds its parameters
    in memory. 0 if a kernel is called repeatedly, or nothing is known."""

    def __len__(self) -> int:
        return len(self.family)

    @cached_property
    def dtypes(self) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.int64]]:
        """Distinct dtypes, and each operator's position among them."""
        return np.unique(self.dtype, return_inverse=True)

    @cached_property
    def own_columns(self) -> _OwnColumns:
        """Columns of `features` that do not depend on the device."""
        return _OwnColumns.of(self)

    @property
    def bytes(self) -> Floats:
        """Bytes read and written."""
        return self.read + self.parameters + self.written

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> KernelWork:
        """Return some of the operators."""
        return KernelWork(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    @staticmethod
    def of(family: str, dtype: str, **columns: npt.ArrayLike) -> KernelWork:
        """Return operators of one family and dtype; missing sizes are 1, other missing columns 0.

        Columns are arrays of one length, or numbers for all operators; at least ``flops`` is an array.
        """
        count = len(np.atleast_1d(columns["flops"]))
        names = [field.name for field in dataclasses.fields(KernelWork)][2:]
        known = {**dict.fromkeys(("batch", "m", "n", "k", "window"), 1.0), **columns}
        filled = [np.broadcast_to(np.asarray(known.get(name, 0.0), np.float64), (count,)) for name in names]
        return KernelWork(np.full(count, FAMILIES.index(family)), np.full(count, dtype), *filled)

    @staticmethod
    def concatenate(parts: Sequence[KernelWork]) -> KernelWork:
        """Return all operators of several workloads."""
        names = [field.name for field in dataclasses.fields(KernelWork)]
        return KernelWork(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def matrix_products(m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, dtype: str, bits: int) -> KernelWork:
    """Return products of an activation (m, k) with a parameter (k, n) of a dtype; results have at least 16 bits."""
    m, n, k = (np.asarray(each, dtype=np.float64) for each in (m, n, k))
    size, result = bits / 8, max(bits, 16) / 8
    sizes = {"m": m, "n": n, "k": k, "flops": 2 * m * n * k}
    moved = {"read": size * m * k, "parameters": size * k * n, "written": result * m * n}
    return KernelWork.of("matmul", dtype, **sizes, **moved, library=1)


def describe(graph: OpGraph, footprint: npt.ArrayLike | None = None) -> KernelWork:
    """Return the operators of a graph, in its order.

    Shapes are those of the tensors: the second input of an operator with weights holds them, and the last dimension of a
    result is the fastest. If a graph has sizes but no shapes (a hand-written problem file), an operator is a vector of its
    bytes.

    Parameters
    ----------
    footprint : array of float, shape (operators,), optional
        Footprint of each operator's model; default: that of the graph.
    """
    seen: dict[tuple[object, ...], int] = {}
    rows: list[tuple[object, ...]] = []
    position = np.empty(len(graph.operators), dtype=np.int64)
    tensors, index = graph.tensors, graph.index
    for o, operator in enumerate(graph.operators):
        read = [tensors[index.tensor_id[name]] for name in operator.inputs]
        outputs = [tensors[t] for t in index.outputs[o]]
        key = (
            operator.kind,
            operator.flops,
            *((t.shape, t.dtype, t.size, t.kind) for t in (*read, *outputs)),
            len(outputs),
        )
        if key not in seen:
            seen[key] = len(rows)
            rows.append(_row(operator.kind, operator.flops, read, outputs))
        position[o] = seen[key]
    if not rows:
        return KernelWork.of("elementwise", "", flops=np.zeros(0))
    columns = list(zip(*rows, strict=True))
    numbers = [np.array(column, np.float64) for column in (*columns[2:], [0.0] * len(rows))]
    distinct = KernelWork(np.array(columns[0], np.int64), np.array(columns[1], np.str_), *numbers)
    work = distinct.take(position)
    total = footprint_of(graph, work) if footprint is None else np.asarray(footprint, np.float64)
    return dataclasses.replace(work, footprint=np.broadcast_to(total, position.shape))


def footprint_of(graph: OpGraph, work: KernelWork) -> float:
    """Return the bytes of parameters that a run of a graph reads; a parameter of several operators counts once.

    A lookup reads only some rows of its table, so the operator's bytes count.
    """
    size = {tensor.name: tensor.size for tensor in graph.tensors if tensor.kind == "parameter"}
    total = 0.0
    for operator, read in zip(graph.operators, work.parameters.tolist(), strict=True):
        if read:
            total += min(read, sum([size.pop(name, 0) for name in operator.inputs]))
    return total


@lru_cache(maxsize=4096)
def family_of(kind: str) -> tuple[str, int]:
    """Return the family of an operator's kind, and the number of operations fused with it.

    >>> family_of("onednn.conv2d_bias_relu")
    ('conv2d', 2)
    """
    words = [word for word in kind.rpartition(".")[2].split("_") if word]
    families = [_WORDS.get(word, "elementwise") for word in words] or ["elementwise"]
    if "pool" in families:
        return "pool", 0  # max_pool2d is one operation
    return min(families, key=_HEAVIEST_FIRST.index), len(families) - 1


def _row(kind: str, flops: int, read: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[object, ...]:
    family, position, fused, counts, library = _facts(kind)
    written = sum([t.size for t in outputs])
    parameters = others = 0
    distinct = {tensor.name: tensor for tensor in read}.values()
    for tensor in distinct:
        if tensor.kind == "parameter":
            parameters += tensor.size
        else:
            others += tensor.size
    if family == "gather" and read:  # reads as many rows of its table as it writes, not the table
        table = max([t for t in distinct if t.dtype not in ("int32", "int64")] or distinct, key=lambda t: t.size)
        rows_read = min(table.size, written)
        in_parameters = table.kind == "parameter"
        parameters, others = (rows_read, others) if in_parameters else (parameters, others - table.size + rows_read)
    dtype, extents = outputs[0].dtype if outputs else "", _extents(family, flops, read, outputs)
    if family == "attention":  # keys and values from a cache are read as those just computed are
        parameters, others = 0, parameters + others
        position = FAMILIES.index("decode_attention") if extents[1] == 1 else position
    return (position, dtype, flops, others, parameters, written, *extents, fused, *counts, library)


@lru_cache(maxsize=4096)
def _facts(kind: str) -> tuple[str, int, int, tuple[int, ...], float]:
    """Return a kind's family, its position, fused operations, words in each group of `FUNCTIONS`, whether a library's."""
    family, fused = family_of(kind)
    words = kind.rpartition(".")[2].split("_")
    counts = tuple(sum(word in group for word in words) for group in FUNCTIONS.values())
    return family, FAMILIES.index(family), fused, counts, float("." in kind)


def _extents(
    family: str, flops: int, read: Sequence[Tensor], outputs: Sequence[Tensor]
) -> tuple[float, float, float, float, float]:
    """Return ``batch, m, n, k, window`` of one operator."""
    out = outputs[0].shape if outputs else ()
    elements = float(prod(out)) if out else float(max(outputs[0].size, 1) if outputs else 1)
    n = float(out[-1]) if out else elements
    weights = read[1].shape if family in _WITH_WEIGHTS and len(read) > 1 else ()
    if not weights or not elements or flops < elements:
        return 1.0, elements / max(n, 1.0), n, 1.0, 1.0
    if family == "conv2d" and len(weights) > 2:
        k = float(prod(weights[1:]))
        # ONNX and PyTorch have channels before rows and columns; if as many columns as channels, the input tells.
        first = out[1] == weights[0] and (out[-1] != weights[0] or read[0].shape[1:2] == weights[1:2])
        channels = 1 if first else -1
        groups = max(round(read[0].shape[channels] / weights[1]), 1) if read[0].shape and weights[1] else 1
        groups = groups if weights[0] % groups == 0 else 1
        return float(groups), elements / weights[0], weights[0] / groups, k, float(prod(weights[2:]))
    if family == "attention" and len(out) == len(weights) == 4:
        # Keys are (batch, heads, rows, width) or, as frameworks have them, too, (batch, rows, heads, width): the operations
        # tell, of which causal attention has half; or where there are as many rows as heads, the heads of the queries.
        def misfit(axis: int) -> tuple[float, bool]:
            heads = max(weights[3 - axis], 1)
            return abs(log(flops / (4 * elements * max(weights[axis], 1)))), out[3 - axis] % heads != 0

        rows = min((2, 1), key=misfit)
        return elements / max(out[rows] * n, 1.0), float(out[rows]), float(weights[rows]), n, 1.0
    for other in outputs[1:]:  # queries, keys and values of one product: results side by side
        if other.shape[:-1] == out[:-1] and other.shape:
            elements, n = elements + prod(other.shape), n + other.shape[-1]
    k = max(float(round(flops / (2 * elements))), 1.0)
    batch = float(prod(weights[:-2])) if len(weights) > 2 else 1.0
    return batch, elements / max(batch * n, 1.0), n, k, 1.0


def roofline_seconds(work: KernelWork, device: DeviceProperties) -> Floats:
    """Return the roofline: the longer of arithmetic and memory traffic, plus the time of an empty kernel.

    Only kernels of libraries use more than one CPU thread.
    """
    return np.maximum(*_parts(work, device)) + FLOOR_SECONDS[device.kind]


def join_seconds(work: KernelWork, device: DeviceProperties, seconds: Floats) -> Floats:
    """Return the overhead of operators that take ``seconds`` on ideal threads, where several CPU threads share the work.

    It is at most what the threads save: kernels that would lose by it run on one thread.
    """
    shared = device.kind == "cpu" and device.processors > 1
    return np.minimum(JOIN_SECONDS * work.library, seconds * (device.processors - 1)) if shared else np.zeros(len(work))


def without_join(work: KernelWork, device: DeviceProperties, measured: Floats) -> Floats:
    """Return the seconds on ideal threads of operators of which ``measured`` has the times with `join_seconds`."""
    shared = device.kind == "cpu" and device.processors > 1
    return np.maximum(measured - JOIN_SECONDS * work.library, measured / device.processors) if shared else measured


def _parts(work: KernelWork, device: DeviceProperties) -> tuple[Floats, Floats]:
    return work.flops / _peak(work, device), work.bytes / device.bandwidth


def _peak(work: KernelWork, device: DeviceProperties) -> Floats:
    names, code = work.dtypes
    rates = np.array([device.peak(str(name)) for name in names], np.float64)[code]
    return rates / np.where(work.library > 0, 1, device.processors) if device.kind == "cpu" else rates


NAMES = (
    "family", "bits", "flops", "read", "parameters", "written", "batch", "m", "n", "k", "window", "fused",
    *FUNCTIONS, "calls", "library", "compute", "memory", "roofline", "peak", "bandwidth", "balance", "processors", "cache",
    "bytes/cache", "parameters/cache", "footprint/cache", "narrow", *(f"waves {rows}x{columns}" for rows, columns in TILES),
)  # fmt: skip
"""Columns of `features`. Each either grows with an operator's shape or does not depend on it: columns that may fall, such as
alignment or how full the last wave is, would make a larger operator cheaper."""
GROWING = (
    "flops", "read", "parameters", "written", "batch", "m", "n", "k", "window", "compute", "memory", "roofline",
    "bytes/cache", "parameters/cache", "footprint/cache", "narrow", *(name for name in NAMES if name.startswith("waves")),
)  # fmt: skip
"""Columns that grow with an operator's shape, so its time may not fall with them."""


def features(work: KernelWork, device: DeviceProperties) -> npt.NDArray[np.float32]:
    """Return the features of the model; sizes are logarithms to base 2.

    Ratios of zero or unknown bytes to the cache are NaN: as numbers they would tell the cache's size and so the device.

    Returns
    -------
    array of float32, shape (operators, len(NAMES))
    """
    compute, memory = _parts(work, device)
    physics = np.maximum(compute, memory) + FLOOR_SECONDS[device.kind]
    tiny, peak, cache = 1e-12, _peak(work, device), np.log2(device.cache)
    own = work.own_columns
    columns: list[npt.ArrayLike] = list(own.first.T)
    columns += [
        np.log2(compute + tiny),
        np.log2(memory + tiny),
        np.log2(physics),
        np.log2(peak),
        np.log2(device.bandwidth),
    ]
    columns += [
        np.log2(peak / device.bandwidth),
        device.processors,
        cache,
        *(each - cache for each in own.moved.T),
        np.minimum(work.m, work.n),
    ]
    columns += [_waves(work, rows, columns_of, device.processors) for rows, columns_of in TILES]
    result = np.empty((len(work), len(NAMES)), dtype=np.float32)
    for position, column in enumerate(columns):
        result[:, position] = column
    return result


class _OwnColumns(NamedTuple):
    """Columns of `features` that are the same on all devices, a row for each operator."""

    first: npt.NDArray[np.float32]
    moved: Floats

    @staticmethod
    def of(work: KernelWork) -> _OwnColumns:
        names, code = work.dtypes
        first: list[npt.ArrayLike] = [work.family, np.array([dtype_bits(str(name)) for name in names])[code]]
        first += [_log(getattr(work, n)) for n in ("flops", "read", "parameters", "written", "batch", "m", "n", "k")]
        first += [work.window, work.fused, *(getattr(work, name) for name in FUNCTIONS)]
        first += [work.exponentials + work.polynomials + work.powers, work.library]
        parameters, footprint = (np.where(each > 0, _log(each), np.nan) for each in (work.parameters, work.footprint))
        moved = [_log(work.bytes), parameters, footprint]
        return _OwnColumns(np.stack(first, axis=1).astype(np.float32), np.stack(moved, axis=1))


def _waves(work: KernelWork, rows: int, columns: int, processors: int) -> Floats:
    """Return the logarithm of the waves that the output's tiles take over the processors."""
    tiles = work.batch * np.ceil(work.m / rows) * np.ceil(work.n / columns)
    return np.log2(np.maximum(tiles / processors, 1e-6))


def _log(values: Floats) -> Floats:
    return np.log2(np.maximum(values, 1.0))


_BITS = {"int4": 4, "float4": 4, "int8": 8, "uint8": 8, "bool": 8, "float16": 16, "bfloat16": 16, "int16": 16,
         "float64": 64, "int64": 64}  # fmt: skip


def dtype_bits(name: str) -> float:
    """Return the bits of a number of a dtype; 32 for an unknown one."""
    return 8.0 if name.startswith("float8") else float(_BITS.get(name, 32))
