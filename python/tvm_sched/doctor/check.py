"""`Check` and `Diagnosis`: results of the checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

Status = Literal["ok", "warning", "failure", "absent"]


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One check and its result.

    Parameters
    ----------
    part : str
        Of what: ``"host"``, ``"gpu"`` or ``"artifact"``.
    name : str
    status : str
        ``"ok"``; ``"warning"``: it works, less well than it could; ``"failure"``: it does not work, or gives wrong values;
        ``"absent"``: it is not there, and nothing that was requested needs it.
    text : str
        What was found, and what to do where that is not ``"ok"``.
    data : dict
        The figures behind the text: bytes, bytes a second, nanoseconds.
    """

    part: str
    name: str
    status: Status
    text: str
    data: dict[str, Any] = {}


class Diagnosis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All checks, in the order in which they were made; ``healthy``: none failed."""

    healthy: bool
    checks: tuple[Check, ...]

    @classmethod
    def of(cls, checks: Iterable[Check]) -> Diagnosis:
        """The diagnosis that follows from checks."""
        made = tuple(checks)
        return cls(all(check.status != "failure" for check in made), made)
