"""Checks of values for inputs that become constants, against the inputs that the model declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import ModelError
from .shapes import DeclaredInput
from .tensor_types import numpy_dtype

Constants: TypeAlias = "Mapping[str, Any]"
"""Input to a number, nested sequences of numbers, or an array."""
Values: TypeAlias = "dict[str, npt.NDArray[np.generic]]"


def check_constants(declared: Sequence[DeclaredInput], constants: Constants | None, where: str) -> Values:
    """Return the values of inputs that become constants, as arrays of the inputs' dtypes.

    A number must be exact in the input's dtype, except that floating point rounds. A flat list is reshaped to the input's
    fixed shape. A scalar stays a scalar array: it fills the input once its shape is known.

    Parameters
    ----------
    where : str
        The model, for messages.

    Raises
    ------
    ModelError
        An input is unknown; or a value is not a number, does not fit the dtype, or has another shape.
    """
    if constants is not None and not isinstance(constants, Mapping):
        raise ModelError(f"{where}: constants is {constants!r}; a mapping from input names to values is allowed")
    known = {item.name: item for item in declared}
    values: Values = {}
    for name, value in (constants or {}).items():
        if name not in known:
            raise ModelError(
                f"{where}: a constant is given for input {name!r}, which the model does not have; "
                f"its inputs are {', '.join(map(str, declared)) or 'none'}"
            )
        values[name] = _laid_out(known[name], _converted(known[name], value, where), where)
    return values


def _converted(item: DeclaredInput, value: Any, where: str) -> npt.NDArray[np.generic]:
    subject = f"{where}: input {item.name!r}: the constant {_short(value)}"
    try:
        array = np.asarray(value)
    except ValueError:
        raise ModelError(
            f"{subject} has rows of different lengths; the same number of values in each is allowed"
        ) from None
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(item.dtype or "float32")
    if array.dtype.kind not in "biuf":
        raise ModelError(
            f"{subject} is no number; whole or decimal numbers, true, false, and lists of these are allowed"
        )
    if item.dtype is None:
        return array
    dtype = numpy_dtype(item.dtype)
    fits = array.dtype == dtype or array.dtype.kind in _TAKES.get(dtype.kind, "biuf")
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if not fits or (dtype.kind in "biu" and not np.array_equal(cast, array)):
        raise ModelError(f"{subject} is no {item.dtype}, the input's type; pass values that it holds exactly")
    return cast


_TAKES = {"b": "bui", "i": "bui", "u": "bui"}
"""Kinds of numbers that each kind of integer dtype accepts; floating point accepts all."""


def _laid_out(item: DeclaredInput, value: npt.NDArray[np.generic], where: str) -> npt.NDArray[np.generic]:
    if item.shape is None or value.ndim == 0:
        return value
    fixed = [d if isinstance(d, int) else None for d in item.shape]
    known = [d for d in fixed if d is not None]
    if value.ndim == 1 and len(fixed) > 1 and len(known) == len(fixed) and np.prod(known) == value.size:
        return value.reshape(known)
    if value.ndim != len(fixed) or any(d not in (None, s) for d, s in zip(fixed, value.shape, strict=True)):
        raise ModelError(
            f"{where}: input {item.name!r}: the constant has shape {tuple(value.shape)}, the model declares {item}"
        )
    return value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]} ..."
