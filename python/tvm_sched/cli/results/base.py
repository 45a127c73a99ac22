"""Base of all results."""

from __future__ import annotations

import msgspec


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command's result. Fields may be added; none is renamed or removed within a major version."""


class Array(Result, frozen=True):
    """An output of a model."""

    shape: tuple[int, ...]
    dtype: str
