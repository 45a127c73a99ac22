"""Numbers with units, as people write them in topology files: ``"32 GiB"``, ``"15.7 TFLOP/s"``, ``"5 us"``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from ..errors import FormatError

_DECIMAL = {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BYTES = {"B": Decimal(1)}
_BYTES |= {f"{prefix}B": Decimal(10) ** power for prefix, power in _DECIMAL.items() if prefix != "K"}
_BYTES |= {f"{prefix}iB": Decimal(2) ** (10 * step) for step, prefix in enumerate("KMGTP", start=1)}

UNITS: dict[str, dict[str, Decimal]] = {
    "bytes": _BYTES,
    "bandwidth": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "rate": {"FLOP/s": Decimal(1)}
    | {f"{prefix}FLOP/s": Decimal(10) ** power for prefix, power in _DECIMAL.items() if prefix not in "kK"}
    | {f"{prefix}FLOPS": Decimal(10) ** power for prefix, power in _DECIMAL.items() if prefix not in "kK"},
    "work": {"FLOP": Decimal(1)}
    | {f"{prefix}FLOP": Decimal(10) ** power for prefix, power in _DECIMAL.items() if prefix not in "kK"},
    "time": {
        "s": Decimal(1),
        "ms": Decimal("1e-3"),
        "us": Decimal("1e-6"),
        "µs": Decimal("1e-6"),
        "ns": Decimal("1e-9"),
    },
}
"""Units of each kind of quantity, with their factors to the base unit: bytes, bytes/s, FLOP/s, FLOP, seconds."""

_BASE = {
    "bytes": "bytes",
    "bandwidth": "bytes a second",
    "rate": "floating-point operations a second",
    "work": "floating-point operations",
    "time": "seconds",
}
_WRITTEN = {
    "bytes": ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB"),
    "bandwidth": ("TB/s", "GB/s", "MB/s", "kB/s"),
    "rate": ("PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s"),
    "work": ("TFLOP", "GFLOP", "MFLOP"),
    "time": ("s", "ms", "us", "ns"),
}
_LITERAL = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(\S*)\s*")


def parse_quantity(value: float | str, kind: str, where: str) -> float:
    """Read a number, or a text of a number and a unit.

    Parameters
    ----------
    value : float or str
        A number counts in the base unit: bytes, bytes a second, FLOP/s, FLOP, seconds.
    kind : {"bytes", "bandwidth", "rate", "work", "time"}
    where : str
        Place that an error names.

    Raises
    ------
    FormatError
        The text is not a number, or the unit does not belong to the kind.
    """
    if not isinstance(value, str):
        return value
    match = _LITERAL.fullmatch(value)
    factor = UNITS[kind].get(match.group(2)) if match else None
    if match is None or factor is None:
        units = ", ".join(unit for unit in UNITS[kind])
        raise FormatError(
            f"{where}: found {value!r}, expected a number of {_BASE[kind]}, or a text of a number and a unit such as "
            f"{_EXAMPLE[kind]!r}; units are {units}"
        )
    exact = Decimal(match.group(1)) * factor
    return int(exact) if kind == "bytes" and exact == exact.to_integral_value() else float(exact)


def format_quantity(value: float, kind: str) -> float | str:
    """Write a value with the unit that makes it shortest, or as a plain number; reading it gives the same value."""
    candidates = []
    for unit in _WRITTEN[kind]:
        text = f"{float(Decimal(value) / UNITS[kind][unit]):.6g} {unit}"
        if "e" not in text and parse_quantity(text, kind, "") == value:
            candidates.append(text)
    return min(candidates, key=lambda text: (len(text), text.startswith("0"))) if candidates else value


def format_fields(record: msgspec.Struct, kinds: Mapping[str, str], *without: str) -> dict[str, Any]:
    """Return the set fields of a record by name; those with a kind of quantity in ``kinds`` as people write them."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__ if name not in without}
    fields = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    return {name: format_quantity(value, kinds[name]) if name in kinds else value for name, value in fields.items()}


_EXAMPLE = {"bytes": "32 GiB", "bandwidth": "16 GB/s", "rate": "15.7 TFLOP/s", "work": "48.2 GFLOP", "time": "5 us"}
