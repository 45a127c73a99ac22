"""Check the inputs of an artifact that takes any sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError


def check_sizes(about: Mapping[str, Any], tensors: Sequence[Any]) -> None:
    """Check inputs that no plan takes.

    Parameters
    ----------
    about : mapping
        The entry ``any_shape`` of the artifact's metadata.
    tensors : sequence of tensors

    Raises
    ------
    InputError
        The number, the type or the rank of an input is wrong, or a size; it names the dimension and both sizes.
    """
    inputs = about["inputs"]
    if len(tensors) != len(inputs):
        raise InputError(f"{len(tensors)} inputs are given; the model takes {len(inputs)}: {_names(inputs)}")
    sizes: dict[str, tuple[int, str]] = {}
    for item, tensor in zip(inputs, tensors, strict=True):
        shape, name = [int(size) for size in tensor.shape], item["name"]
        if str(tensor.dtype) != item["dtype"]:
            raise InputError(f"input {name!r} is of the type {tensor.dtype}; {item['dtype']} is needed")
        if len(shape) != len(item["shape"]):
            raise InputError(f"input {name!r} has the shape {shape}; the model takes {_text(item)}")
        for axis, (size, declared) in enumerate(zip(shape, item["shape"], strict=True)):
            where = f"dimension {axis} of input {name!r}"
            if isinstance(declared, int):
                if size != declared:
                    raise InputError(f"{where} is {size}; the model fixes it at {declared}: {_text(item)}")
                continue
            first, place = sizes.setdefault(declared, (size, where))
            if size != first:
                raise InputError(f"{where} ({declared!r}) is {size}, and {place} is {first}; they must be equal")
            least, most = about["ranges"].get(declared, (0, None))
            if size < least or (most is not None and size > most):
                upper = "" if most is None else f" to {most}"
                raise InputError(f"{where} ({declared!r}) is {size}; sizes from {least}{upper} are allowed")


def _text(item: Mapping[str, Any]) -> str:
    return f"{item['name']}[{', '.join(map(str, item['shape']))}]"


def _names(inputs: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(map(_text, inputs))
