"""Compile PrimFuncs to CUDA kernels (dlight's loops, TVM's code, nvcc's fat binary) and describe their launches."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import split_host_device_mods

from tvm_sched_runtime.core_library import function as library_function
from tvm_sched_runtime.errors import InputError

from ....cost_model.cubin import CompiledKernel
from ...toolchain.nvcc import architectures, compile_source
from ..decreasing_indices import hide_decreasing
from .gpu_schedule import schedule_for_gpu, without_offsets

_COMPILE = "tvm_callback_cuda_compile"
_compile_function = Lock()
"""Held while `_COMPILE`, which is global to all threads, is replaced."""
Pointers = dict[Any, tuple[str, int]]
"""The memory of each buffer: "tensor" (of the call) or "workspace", and its index."""
Functions = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class CudaImage:
    """Compiled kernels."""

    functions: Functions
    """The launches of each function, for ``cpp/kernels/cuda/image.h``."""
    binary: bytes
    """A fat binary."""
    kernels: dict[str, CompiledKernel]
    """Resources by symbol, for the oldest architecture."""


kept_images: deque[tuple[Mapping[str, tirx.PrimFunc], Sequence[str], CudaImage]] = deque(maxlen=2)


def compile_cuda_kernels(functions: Mapping[str, tirx.PrimFunc], archs: Sequence[str] = ()) -> tvm.runtime.Module:
    """Compile kernels into one runtime module of kind ``tvm_sched_cuda``, which needs neither TVM's CUDA runtime nor nvcc.

    Parameters and errors are those of `compile_image`.
    """
    image = compile_image(functions, archs)
    document = json.dumps({"version": 1, "functions": image.functions})
    return library_function("tvm_sched.make_cuda_module")(document, image.binary)


def compile_image(functions: Mapping[str, tirx.PrimFunc], archs: Sequence[str] = ()) -> CudaImage:
    """Compile kernels; the last images are cached, since their resources are estimated before the artifact is built.

    Parameters
    ----------
    functions : mapping of str to PrimFunc
        Functions with static shapes, by name.
    archs : sequence of str
        GPU architectures such as ``"sm_90"``; see `architectures`. Loops are scheduled for the oldest.

    Raises
    ------
    InputError
        nvcc is missing or fails, or a function computes on the host.
    """
    archs = architectures(archs)
    for known, known_archs, image in kept_images:
        if known_archs == archs and _equal(known, functions):
            return image
    described, device = _describe_all(functions, archs)
    binary, kernels = compile_source(_source(device), archs)
    image = CudaImage(described, binary, kernels)
    kept_images.append((dict(functions), archs, image))
    return image


def describe_launches(functions: Mapping[str, tirx.PrimFunc], archs: Sequence[str]) -> Functions:
    """Describe the launches of each function without nvcc; parameters are those of `compile_image`."""
    return _describe_all(functions, architectures(archs))[0]


def _equal(one: Mapping[str, tirx.PrimFunc], other: Mapping[str, tirx.PrimFunc]) -> bool:
    return list(one) == list(other) and all(tvm_ffi.structural_equal(one[name], other[name]) for name in one)


def _describe_all(functions: Mapping[str, tirx.PrimFunc], archs: Sequence[str]) -> tuple[Functions, tvm.IRModule]:
    """Return the launches of kernels, and the kernels lowered for code generation."""
    target = tvm.target.Target({"kind": "cuda", "arch": archs[0]}, host="llvm")
    named = {name: without_offsets(function).with_attr("global_symbol", name) for name, function in functions.items()}
    host, device = _lower(schedule_for_gpu(tvm.IRModule(named), target), target)
    return {name: _describe(name, host[name], functions[name]) for name in functions}, device


@tvm.instrument.pass_instrument
class _AfterSplit:
    """Keeps the module after kernels are split from the host functions that launch them.

    The next pass of TVM's pipeline converts these launches for TVM's own runtime.
    """

    module: tvm.IRModule | None = None

    def run_after_pass(self, module: tvm.IRModule, info: Any) -> None:
        """Take the module after the pass that splits."""
        if info.name == "tirx.SplitHostDevice":
            self.module = module


def _lower(module: tvm.IRModule, target: tvm.target.Target) -> tuple[tvm.IRModule, tvm.IRModule]:
    """The host functions as they launch kernels, and the kernels ready for code generation."""
    pipeline, _, finalize = tirx.get_default_tir_pipeline(target)
    split = _AfterSplit()
    with tvm.transform.PassContext(opt_level=3, instruments=[split]), target:
        lowered = pipeline(hide_decreasing(tirx.transform.BindTarget(target)(module)))
    if split.module is None:
        raise RuntimeError("TVM's pipeline has no pass tirx.SplitHostDevice: another version of TVM than 0.27")
    devices = list(split_host_device_mods(lowered)[1].values())
    if len(devices) != 1:
        raise InputError("none of the kernels runs on a GPU")
    return split.module, finalize()(devices[0])


def _source(device: tvm.IRModule) -> str:
    """Return the CUDA source of the kernels.

    TVM's code generator also compiles the source, through a global function. That function is disabled during the call,
    since nvcc compiles for several architectures afterwards.
    """
    target = next(function.attrs["target"] for _, function in device.functions_items())
    with _compile_function:
        former = tvm_ffi.get_global_func(_COMPILE, allow_missing=True)
        tvm_ffi.register_global_func(_COMPILE, lambda code: b"\0", override=True)
        try:
            with target:
                module = tvm_ffi.get_global_func("target.build.cuda")(device, target)
            # TVM prints the infinity of bfloat16 as a number with a suffix, which is no C++.
            return re.sub(r"\binff\b", "__int_as_float(0x7f800000)", str(module.inspect_source("cuda")))
        finally:
            if former is not None:
                tvm_ffi.register_global_func(_COMPILE, former, override=True)


def _describe(name: str, host: tirx.PrimFunc, original: tirx.PrimFunc) -> dict[str, Any]:
    """Describe the launches of a function's kernels for ``cpp/kernels/cuda/image.h``."""
    pointers: Pointers = {parameter: ("tensor", position) for position, parameter in enumerate(host.params)}
    workspaces: list[int] = []
    launches = []
    for statement in _statements(host.body):
        if isinstance(statement, tirx.AllocBuffer):
            buffer = statement.buffer
            pointers[buffer] = ("workspace", len(workspaces))
            workspaces.append(_bytes(name, buffer))
        elif isinstance(statement, tirx.DeclBuffer):
            pointers[statement.buffer] = _pointer(name, statement.data, pointers)
        elif isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tvm.ir.Call):
            launches.append(_launch(name, statement.value, pointers))
        else:
            raise InputError(
                f"the kernel {name!r} does work of the host ({type(statement).__name__}) between its launches"
            )
    if not launches:
        raise InputError(f"the kernel {name!r} launches nothing on the GPU")
    return {"tensors": len(original.params), "workspaces": workspaces, "launches": launches}


def _statements(body: Any) -> Iterator[Any]:
    if isinstance(body, tirx.SeqStmt):
        for part in body.seq:
            yield from _statements(part)
    elif isinstance(body, tirx.AttrStmt):
        yield from _statements(body.body)
    else:
        yield body


def _pointer(name: str, expr: Any, pointers: Pointers) -> tuple[str, int]:
    """Return the memory of a buffer: a tensor of the call, or a workspace."""
    if isinstance(expr, tvm.ir.Call) and expr.op.name == "tirx.buffer_data" and expr.args[0] in pointers:
        return pointers[expr.args[0]]
    raise InputError(f"the kernel {name!r} takes {expr}, which is not a tensor; pass the shapes of the inputs")


def _bytes(name: str, buffer: tirx.Buffer) -> int:
    size = tvm.DataType(str(buffer.dtype)).itemsize
    for extent in buffer.shape:
        size *= _integer(name, extent)
    return size


def _integer(name: str, value: Any) -> int:
    if isinstance(value, int):
        return value
    if not isinstance(value, tirx.IntImm):
        raise InputError(f"the kernel {name!r} has shapes that are not static ({value}); pass the shapes of the inputs")
    return int(value)


def _launch(name: str, call: tvm.ir.Call, pointers: Pointers) -> dict[str, Any]:
    if call.op.name != "tirx.call_ffi_kernel":
        raise InputError(f"the kernel {name!r} calls {call.op.name!r} on the host")
    extents = {"grid": [1, 1, 1], "block": [1, 1, 1]}
    shared = 0
    tags = [str(tag) for tag in call.attrs["launch_params"]]
    arguments = list(call.args[1 : len(call.args) - len(tags)])
    for tag, value in zip(tags, call.args[len(call.args) - len(tags) :], strict=True):
        kind, _, axis = tag.partition(".")
        if kind in ("blockIdx", "threadIdx"):
            extents["grid" if kind == "blockIdx" else "block"]["xyz".index(axis)] = _integer(name, value)
        elif tag == "tirx.use_dyn_shared_memory":
            shared = _integer(name, value)
        else:
            raise InputError(f"the kernel {name!r} is launched with {tag!r}, which the executor does not know")
    return {
        "symbol": str(call.args[0].value),
        **extents,
        "shared_bytes": shared,
        "pointers": [_pointer(name, argument, pointers) for argument in arguments],
    }
