"""Sorts and running sums along an axis on GPUs: claims, and CUDA source (`lines.cuh`)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tvm import relax

from ....ir.tensor_types import dtype_of, static_shape
from ..kernel_library import KernelSet
from ..rewrite import Rewriter, is_tensor_of, operation
from .attention_source import describe_launch

HEADER = "lines.cuh"
ELEMENTS = {
    "float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double", "bool": "bool",
    **{f"int{bits}": f"{'signed char' if bits == 8 else 'short' if bits == 16 else 'int' if bits == 32 else 'long long'}"
       for bits in (8, 16, 32, 64)},
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned", "uint64": "unsigned long long",
}  # fmt: skip
"""C++ types of tensors that the kernels take."""
_THREADS = 256
_BYTES = {"float": 4, "double": 8, "bool": 1, "signed char": 1, "short": 2, "int": 4, "long long": 8,
          "unsigned char": 1, "unsigned short": 2, "unsigned": 4, "unsigned long long": 8}  # fmt: skip
"""Bytes of an accumulator, by C++ type."""
_MOST_BLOCKS = 1024
_SCANS = {"cumsum": "RunningSum", "cumprod": "RunningProduct"}


class LineClaimer(Rewriter):
    """Replaces sorts, the largest or smallest elements, and running sums and products."""

    def __init__(self, mod: Any, kernels: KernelSet, settings: dict[str, Any]) -> None:
        super().__init__(mod)
        self.kernels = kernels
        self.settings = settings

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        name = operation(value)
        if name not in ("sort", "argsort", "topk", *_SCANS) or not is_tensor_of(value.args[0], tuple(ELEMENTS)):
            return super().visit(variable, value)
        data = self.value(self.resolve(value.args[0]))
        if name in _SCANS:
            return self.emit(self._scan(value, name, data))
        axis = int(value.attrs.axis) % data.ty.ndim
        if name == "topk":
            return self._largest(value, data, axis)
        dtype = dtype_of(value) if name == "argsort" else "int32"
        order = self.emit(self._order(value.args[0], data, axis, bool(value.attrs.descending), dtype))
        return order if name == "argsort" else self.emit(_gather(self.emit, data, order, axis))

    def _largest(self, call: Any, data: Any, axis: int) -> Any:
        kind = str(call.attrs.ret_type)
        dtype = str(call.attrs.dtype)
        order = self._order(call.args[0], data, axis, bool(call.attrs.largest), dtype, int(call.attrs.k))
        order = self.emit(order)
        if kind == "indices":
            return order
        values = self.emit(_gather(self.emit, data, order, axis))
        return values if kind == "values" else self.builder.emit(relax.Tuple([values, order]), self.name)

    def _order(self, expr: Any, data: Any, axis: int, descending: bool, dtype: str, kept: int = 0) -> Any:
        shape = list(static_shape(expr) or ())
        kept = min(kept, shape[axis]) if kept > 0 else shape[axis]
        kernel = {"kind": "argsort", "dtype": dtype_of(expr), "result_dtype": dtype, **_lines(shape, axis)}
        kernel.update(kept=kept, descending=descending, **self.settings)
        ty = relax.TensorType([*shape[:axis], kept, *shape[axis + 1 :]], dtype)
        return self.kernels.call("argsort", kernel, [data], ty, 0)

    def _scan(self, call: Any, name: str, data: Any) -> Any:
        shape, axis = list(static_shape(call.args[0]) or ()), call.attrs.axis
        lines = _lines(shape, int(axis) % len(shape)) if axis is not None else _lines([prod(shape)], 0)
        kernel = {"kind": name, "dtype": dtype_of(call.args[0]), "result_dtype": dtype_of(call), **lines}
        kernel.update(exclusive=bool(call.attrs.exclusive), **self.settings)
        return self.kernels.call(name, kernel, [data], call.ty, prod(shape))


def _gather(emit: Any, data: Any, order: Any, axis: int) -> Any:
    return relax.op.gather_elements(data, emit(relax.op.astype(order, "int64")), axis)


def _lines(shape: list[int], axis: int) -> dict[str, int]:
    return {"outer": prod(shape[:axis]), "length": shape[axis], "inner": prod(shape[axis + 1 :])}


def render(symbol: str, kernel: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the source of a kernel, and its launches for ``cpp/kernels/cuda/image.h``."""
    element, result = ELEMENTS[kernel["dtype"]], ELEMENTS[kernel["result_dtype"]]
    lines, length, inner = kernel["outer"] * kernel["inner"], kernel["length"], kernel["inner"]
    blocks = min(lines, _MOST_BLOCKS)
    pointers: list[list[Any]] = [["tensor", 0], ["tensor", 1]]
    workspaces: list[int] = []
    if kernel["kind"] == "argsort":
        padded = 1 << (length - 1).bit_length()
        arguments = [element, result, length, padded, kernel["kept"], inner, f"{lines}LL", _flag(kernel["descending"])]
        call, more, shared = "argsort", ", int* workspace", 0
        workspaces.append(4 * blocks * padded)
        pointers.append(["workspace", 0])
    else:
        number = _accumulator(kernel["result_dtype"])
        scan = f"tvm_sched::{_SCANS[kernel['kind']]}<{number}>"
        arguments = [element, number, result, scan, length, inner, f"{lines}LL", _flag(kernel["exclusive"])]
        call, more, shared = "scan", "", 2 * _THREADS * _BYTES[number]
    parameters = f"in, out{', workspace' if more else ''}"
    source = (
        f'extern "C" __global__ void __launch_bounds__({_THREADS}) '
        f"{symbol}_kernel(const {element}* in, {result}* out{more}) {{\n"
        f"  tvm_sched::{call}<{', '.join(map(str, arguments))}>({parameters});\n}}\n"
    )
    launch = describe_launch(f"{symbol}_kernel", [blocks, 1, 1], _THREADS, pointers, shared)
    return source, {"tensors": 2, "workspaces": workspaces, "launches": [launch]}


def _accumulator(dtype: str) -> str:
    """Return the C++ type of an accumulator: float for half precision."""
    return "float" if dtype in ("float16", "bfloat16") else ELEMENTS[dtype]


def _flag(value: bool) -> str:
    return str(value).lower()
