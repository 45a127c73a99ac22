"""Numbers that are the same on every machine, and the parameters of prepared artifacts made of them."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def numbers(name: str, shape: tuple[int, ...], scale: float = 1.0, dtype: str = "float32") -> Array:
    """Draw numbers uniform in [-scale, scale) by a tensor's name.

    Made of the raw bits of PCG64, whose stream NumPy guarantees, so that two versions of NumPy give the same.
    """
    count = int(np.prod(shape))
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(count // 2 + 1)
    values = np.asarray(raw).view(np.uint32)[:count].astype(np.float32)
    values *= np.float32(scale * 2.0**-31)
    values -= np.float32(scale)
    return values.reshape(shape).astype(type_of(dtype), copy=False)


def tokens(name: str, shape: tuple[int, ...], below: int) -> Array:
    """Draw whole numbers from 0 to ``below``."""
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(int(np.prod(shape)))
    return (np.asarray(raw) % np.uint64(below)).astype(np.int64).reshape(shape)


def type_of(dtype: str) -> Any:
    """Return a NumPy type by name, bfloat16 too."""
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype)


def weight(name: str, shape: tuple[int, ...], dtype: str) -> Array:
    """Draw a network's parameter such that values neither vanish nor explode through its layers."""
    last = name.rpartition(".")[2]
    if len(shape) >= 2:
        gain = 6.0 if len(shape) == 4 and shape[-1] * shape[1] > 1 else 3.0
        return numbers(name, shape, (gain / max(1, int(np.prod(shape[1:])))) ** 0.5, dtype)
    small = numbers(name, shape, 0.1)
    return (1 + small if last in ("weight", "running_var") else small).astype(type_of(dtype))


def digest(array: Array) -> str:
    """Return a digest of an array's bytes in rows."""
    return hashlib.sha1(np.ascontiguousarray(array).tobytes()).hexdigest()


def sample(values: Array, most: int = 4096) -> Array:
    """Return at most so many of the values, evenly spread."""
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    return flat[:: -(-flat.size // most)]


def recipes(
    wanted: Mapping[str, Array], tensors: Mapping[str, Array]
) -> tuple[dict[str, dict[str, Any]], dict[str, Array]]:
    """Say of which tensor each of an artifact's parameters is a permutation, perhaps cast; return the others by value."""
    known: dict[str, tuple[str, tuple[int, ...]]] = {}
    sizes = {(array.size, array.dtype) for array in wanted.values()}
    for name, tensor in tensors.items():
        for kind in {kind for size, kind in sizes if size == tensor.size}:
            array = tensor.astype(kind)
            for order in itertools.permutations(range(array.ndim)) if array.ndim <= 4 else [tuple(range(array.ndim))]:
                known.setdefault(f"{kind} {digest(array.transpose(order))}", (name, order))
    found, others = {}, {}
    for name, array in wanted.items():
        of = known.get(f"{array.dtype} {digest(array)}")
        if of is None:
            others[name] = array
        else:
            found[name] = {
                "of": of[0], "order": list(of[1]), "shape": list(array.shape), "dtype": array.dtype.name,
            }  # fmt: skip
    return found, others


def write(file: Path, recipes: Mapping[str, Any], tensor: Callable[[str], Array], others: Mapping[str, Array]) -> None:
    """Write an artifact's parameters by their recipes to a safetensors file."""
    from tvm_sched_runtime.runtime import write_parameters

    made = {}
    for name, recipe in recipes.items():
        array = tensor(recipe["of"])
        array = array.astype(type_of(recipe.get("dtype", array.dtype.name)), copy=False)
        made[name] = np.ascontiguousarray(array.transpose(recipe["order"])).reshape(recipe["shape"])
    write_parameters(file, {**made, **others})
