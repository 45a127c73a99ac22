"""CUDA source and launches of attention kernels, from their descriptions (`attention.cuh`)."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, prod
from typing import Any

HEADER = "attention.cuh"
ELEMENTS = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}
"""C++ types of tensors that the kernels take."""
MOST_WIDTH = 256
"""Most elements of a query or value row, which a block holds in registers."""
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
_ROWS, _THREADS = 64, 128
_FEW_BLOCKS = 128
"""Below this number of blocks, about that of a GPU's processors, several blocks share the keys of a head."""
_KEYS_OF_SPLIT = 256
_OPERANDS = ("query", "key", "value", "mask", "result")


def render(symbol: str, kernel: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the source of a kernel, and its launches for ``cpp/kernels/cuda/image.h``.

    Parameters
    ----------
    symbol : str
        A C++ identifier that is not a prefix of another kernel's.
    kernel : mapping
        ``dtype``, ``result_dtype``, ``mask_dtype`` (None without a mask); the extents ``batch``, ``groups``, ``heads`` (per
        group), ``rows``, ``keys``, ``width`` and ``out``; ``scale``, ``causal``, ``shift``, ``safe``; and for each of
        ``query``, ``key``, ``value``, ``mask`` and ``result`` the offset and the strides of (batch, group, head, row,
        column), in elements.
    """
    tile_rows, tile_keys = _tiles(kernel)
    packed = _packed(kernel)
    heads = kernel["batch"] * kernel["groups"] * (kernel["heads"] // packed)
    rows = packed * kernel["rows"]
    tiles = -(-rows // tile_rows)
    splits = _splits(tiles * heads, kernel["keys"])
    masked = kernel["mask_dtype"] is not None
    half = kernel["dtype"] != "float32"
    element, result = ELEMENTS[kernel["dtype"]], ELEMENTS[kernel["result_dtype"]]
    mask = ELEMENTS[kernel["mask_dtype"]] if masked else "float"
    tensors = [f"const {element}* q, const {element}* k, const {element}* v"]
    tensors += [f"const {mask}* mask"] if masked else []
    tensors += [f"{result}* result", "float* parts"] if splits > 1 else [f"{result}* result"]
    call = f"attend_half<{symbol}, {tile_keys}>" if half else f"attend_float<{symbol}, {tile_rows}, {tile_keys}>"
    arguments = f"q, k, v, {'mask' if masked else 'nullptr'}, result, {'parts' if splits > 1 else 'nullptr'}"
    source = [
        _shape(symbol, kernel, packed, splits, (element, mask, result)),
        f'extern "C" __global__ void __launch_bounds__({_THREADS}) {symbol}_kernel({", ".join(tensors)}) {{',
        f"  tvm_sched::{call}({arguments});",
        "}",
    ]
    count = 4 + masked
    pointers: list[list[Any]] = [["tensor", k] for k in range(count)]
    shared = _shared(kernel, tile_rows, tile_keys)
    pointers += [["workspace", 0]] if splits > 1 else []
    launches = [describe_launch(f"{symbol}_kernel", [heads, tiles, splits], _THREADS, pointers, shared)]
    workspaces: list[int] = []
    if splits > 1:
        workspaces.append(4 * splits * heads * rows * (kernel["out"] + 2))
        source += [
            f'extern "C" __global__ void {symbol}_join(const float* parts, {result}* result) {{',
            f"  tvm_sched::join_attention<{symbol}>(parts, result);",
            "}",
        ]
        join = [["workspace", 0], ["tensor", count - 1]]
        launches.append(describe_launch(f"{symbol}_join", [heads, rows, 1], _THREADS, join))
    function = {"tensors": count, "workspaces": workspaces, "launches": launches}
    library = describe_for_cudnn(kernel)
    return "\n".join(source) + "\n", {**function, "attention": library} if library else function


def describe_for_cudnn(kernel: Mapping[str, Any]) -> dict[str, Any] | None:
    """Describe attention for ``cpp/kernels/cuda/attention.h``; None if cuDNN has no kernel for it.

    cuDNN computes half precision without a mask or with a causal one; its heads are consecutive, and rows are contiguous.
    """
    half = kernel["dtype"] != "float32" and kernel["result_dtype"] == kernel["dtype"]
    if not half or kernel["mask_dtype"] is not None or kernel["safe"]:
        return None
    if kernel["width"] % 8 or kernel["out"] % 8:
        return None
    places = {name: _place_of_heads(kernel, name) for name in ("query", "key", "value", "result")}
    shared = kernel["key"][3] == 0 and kernel["value"][3] == 0 and kernel["heads"] > 1
    if None in places.values() or (not shared and kernel["heads"] > 1 and 0 in (kernel["key"][3], kernel["value"][3])):
        return None
    names = ("dtype", "batch", "rows", "keys", "width", "out", "scale", "causal", "shift")
    heads = kernel["groups"] * kernel["heads"]
    return {
        **{name: kernel[name] for name in names},
        "heads": heads,
        "shared_heads": kernel["groups"] if shared else heads,
        **places,
    }


def _place_of_heads(kernel: Mapping[str, Any], name: str) -> list[int] | None:
    """Return the offset and the strides of (batch, head, row) of a tensor; None if its heads have no stride."""
    offset, batch, group, head, row, column = kernel[name]
    if column != 1 or any(number % 8 for number in (offset, batch, group, head, row)):
        return None
    if kernel["heads"] == 1 or (head == 0 and name in ("key", "value")):
        return [offset, batch, group, row]
    if kernel["groups"] > 1 and group != kernel["heads"] * head:
        return None
    return [offset, batch, head, row]


def describe_launch(
    symbol: str, grid: list[int], threads: int, pointers: list[list[Any]], shared_bytes: int = 0
) -> dict[str, Any]:
    """Describe a launch for ``cpp/kernels/cuda/image.h``; ``pointers`` are ``["tensor" or "workspace", index]``."""
    block = [threads, 1, 1]
    return {"symbol": symbol, "grid": grid, "block": block, "shared_bytes": shared_bytes, "pointers": pointers}


def _shape(symbol: str, kernel: Mapping[str, Any], packed: int, splits: int, types: tuple[str, str, str]) -> str:
    """Return the C++ struct `Shape` of a kernel."""
    assert isfinite(kernel["scale"])
    element, mask, result = types
    numbers = {name: kernel[name] for name in ("batch", "groups", "heads", "rows", "keys", "width", "out", "shift")}
    numbers |= {"packed": packed, "splits": splits}
    flags = {name: kernel[name] for name in ("causal", "safe")} | {"masked": kernel["mask_dtype"] is not None}
    flags |= {f"vector_{name[0]}": _is_vector(kernel, name) for name in ("query", "key", "value")}
    strides = {name: kernel[name] for name in _OPERANDS if kernel.get(name) is not None}
    return "\n".join(
        [
            f"struct {symbol} {{",
            f"  using Element = {element};\n  using Mask = {mask};\n  using Result = {result};",
            *(f"  static constexpr int {name} = {value};" for name, value in numbers.items()),
            *(f"  static constexpr bool {name} = {str(bool(value)).lower()};" for name, value in flags.items()),
            f"  static constexpr float scale = static_cast<float>({float(kernel['scale'])!r});",
            *(_strides(name, values) for name, values in strides.items()),
            "};",
        ]
    )


def _strides(name: str, values: list[int]) -> str:
    numbers = ", ".join(f"{value}LL" for value in values)
    return f"  __device__ static constexpr tvm_sched::Strides {name}() {{ return {{{numbers}}}; }}"


def _tiles(kernel: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rows and keys of a tile that fit into shared memory (99 KB on the smaller GPUs)."""
    wide = max(kernel["width"], kernel["out"]) > 128
    if kernel["dtype"] == "float32":
        return (32, 16) if wide else (64, 32)
    return (_ROWS, 32) if wide else (_ROWS, 64)


def _shared(kernel: Mapping[str, Any], rows: int, keys: int) -> int:
    """Return the bytes of shared memory that a kernel needs."""
    if kernel["dtype"] == "float32":
        wide = -(-kernel["width"] // 4) * 4 + 4
        return 4 * ((rows + keys) * wide + keys * (-(-kernel["out"] // 32) * 32) + rows * (keys + 4))
    wide, long = (-(-kernel[name] // 16) * 16 + 8 for name in ("width", "out"))
    return 2 * ((rows + keys) * wide + keys * long)


def _packed(kernel: Mapping[str, Any]) -> int:
    """Return the heads per tile: all that share keys and values if a head has few rows, so that they are read once."""
    shared = kernel["key"][3] == 0 and kernel["value"][3] == 0
    return kernel["heads"] if shared and kernel["rows"] < _ROWS else 1


def _splits(blocks: int, keys: int) -> int:
    if blocks >= _FEW_BLOCKS:
        return 1
    return max(1, min(-(-keys // _KEYS_OF_SPLIT), -(-_FEW_BLOCKS // blocks)))


def _is_vector(kernel: Mapping[str, Any], name: str) -> bool:
    """Whether rows are contiguous and begin at multiples of 16 bytes, so that 16 bytes can be read at a time."""
    lanes = 16 // _BYTES[kernel["dtype"]]
    offset, *strides, column = kernel[name]
    extent = kernel["out" if name == "value" else "width"]
    return column == 1 and all(number % lanes == 0 for number in (offset, *strides, extent))


def flops(kernel: Mapping[str, Any]) -> int:
    """Return the operations of a kernel; a causal kernel only counts the keys that each row sees."""
    pairs = kernel["rows"] * kernel["keys"]
    if kernel["causal"]:
        first = kernel["shift"] + 1
        pairs = sum(min(max(first + row, 0), kernel["keys"]) for row in range(kernel["rows"]))
    return prod((kernel["batch"], kernel["groups"], kernel["heads"], pairs)) * (
        2 * kernel["width"] + 2 * kernel["out"] + 8
    )
