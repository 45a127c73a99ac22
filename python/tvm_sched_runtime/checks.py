"""Checks of the fields of data classes; their errors say the field, its value and what is allowed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable

from .errors import InputError, TvmSchedError

LARGEST_SEED = 2**31 - 1
"""The largest seed that all solvers take."""


def shown(value: object) -> str:
    """Return a value for a message: short, on one line, and without the address of an object."""
    plain = value is None or isinstance(value, (bool, int, float, str, bytes, list, tuple, dict, set, frozenset))
    text = " ".join(repr(value).split()) if plain else f"an object of the type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


_LONGEST = 100


def require_kind(what: str, value: object, kind: type | tuple[type, ...], allowed: str) -> None:
    """Check the type of an argument; ``allowed`` describes it: ``"a Problem"``."""
    if not isinstance(value, kind):
        raise InputError(f"{what} is {shown(value)}; {allowed} is allowed")


def path_text(what: str, path: object) -> str:
    """Return the name of a file; refuse an argument that is none."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or "\0" in text:
        raise InputError(f"{what} is {shown(path)}; the name of a file is allowed")
    return text


def require_name(what: str, name: str, error: type[TvmSchedError] = InputError) -> None:
    """Check that a name is not empty."""
    if not name:
        raise error(f"{what} has an empty name")


def require_unique(what: str, names: Iterable[str], error: type[TvmSchedError] = InputError) -> None:
    """Check that no name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise error(f"{what} {name!r} occurs twice; names must be unique")
        seen.add(name)


def require_positive(what: str, value: float, error: type[TvmSchedError] = InputError) -> None:
    """Check that a number is above 0 and finite."""
    if not 0 < value < math.inf:
        raise error(f"{what} is {value}; a finite number above 0 is allowed")


def require_not_negative(what: str, value: float, error: type[TvmSchedError] = InputError) -> None:
    """Check that a number is 0 or more and finite."""
    if not 0 <= value < math.inf:
        raise error(f"{what} is {value}; a finite number from 0 is allowed")


def require_at_least(
    options: object, *, where: str = "", error: type[TvmSchedError] = InputError, **least: float
) -> None:
    """Check that each named field is at least this number."""
    for name, smallest in least.items():
        if not getattr(options, name) >= smallest:
            raise error(f"{where}{name} is {getattr(options, name)}; {smallest} or more is allowed")


def require_number_or_auto(what: str, value: object) -> None:
    """Check that a setting is a whole number from 1, or ``"auto"``."""
    if value != "auto" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InputError(f"{what} is {value!r}; a number from 1, or 'auto', is allowed")


def require_seed(seed: int) -> None:
    """Check that a number is a seed that every solver takes."""
    if not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"seed is {seed}; 0 to {LARGEST_SEED} are allowed")
