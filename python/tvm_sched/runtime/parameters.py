"""Parameters: written so that the executor can use them where they lie in the file; missing ones named."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError

_ALIGNMENT = 64
_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def write_parameters(path: str | os.PathLike[str], parameters: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a safetensors file whose tensors the executor can map rather than copy.

    The format allows no holes between tensors, so those whose size is a multiple of 64 bytes come first, after a
    header that is padded to end at such an offset; only the few others are copied when the file is loaded. The file
    is written one tensor at a time, beside its place, and moved there when it is whole.

    Raises
    ------
    ValueError
        If an array's data type has no name in the format; the message names the parameter.
    """
    from ..files import folder_beside  # its parsers take 10 ms to import, which loading an artifact need not wait for

    order = sorted(parameters, key=lambda name: (parameters[name].nbytes % _ALIGNMENT != 0, name))
    target = Path(path)
    header = _header(order, parameters)
    with folder_beside(target) as folder:
        with (folder / "new").open("wb") as file:
            file.write(header)
            for name in order:
                file.write(np.ascontiguousarray(parameters[name]).reshape(-1).view(np.uint8).data)
        (folder / "new").replace(target)


def require_parameters(artifact: Path, parameters: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to run an artifact whose ``parameters`` (`ScheduledModule.parameters`) do not all have values.

    Raises
    ------
    InputError
        With the first of them, and the file that is expected to hold them.
    """
    missing = [parameter["name"] for parameter in parameters if not parameter["loaded"]]
    if missing:
        raise InputError(
            f"{artifact}: {len(missing)} parameters have no values ({missing[0]!r}, ...): there is no file "
            f"{artifact.with_suffix('.safetensors')}, which `compile` wrote beside the artifact; name it with --parameters"
        )


def _header(order: list[str], parameters: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    entries = {}
    offset = 0
    for name in order:
        array = parameters[name]
        stored = _NAMES.get(array.dtype.name)
        if stored is None:
            raise ValueError(f"parameter {name!r} is {array.dtype}; safetensors has {', '.join(_NAMES)}")
        entries[name] = {
            "dtype": stored,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
