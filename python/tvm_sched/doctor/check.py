"""`Check` and `Diagnosis`: results of the checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Literal

import msgspec
from rich.markup import escape

from tvm_sched_runtime import core_library

_LISTED = 20
"""Most implementations with wrong values in the text; all are in the check's data."""
_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red", "absent": "dim"}
Status = Literal["ok", "warning", "failure", "absent"]


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One check and its result."""

    part: str
    """The checked part: ``"host"``, ``"gpu"`` or ``"artifact"``."""
    name: str
    status: Status
    """``"ok"``; ``"warning"``: it works, but not as well as it could; ``"failure"``: it does not work, or gives wrong
    values; ``"absent"``: it is missing and not needed."""
    text: str
    """The result, and what to do if it is not ``"ok"``."""
    data: dict[str, Any] = {}
    """Figures of the text: bytes, bytes a second, nanoseconds."""


class Diagnosis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All checks in their order; ``healthy``: none failed."""

    healthy: bool
    checks: tuple[Check, ...]

    @classmethod
    def of(cls, checks: Iterable[Check]) -> Diagnosis:
        """Return the diagnosis that follows from checks."""
        results = tuple(checks)
        return cls(all(check.status != "failure" for check in results), results)

    def lines(self) -> list[str]:
        """Return the checks by part, and a last line with their counts, as texts with rich's markup."""
        said: list[str] = []
        for part, checks in groupby(self.checks, key=lambda check: check.part):
            said.append(f"[bold]{part}[/bold]")
            for check in checks:
                colour = _COLOURS[check.status]
                said.append(f"  [{colour}]{check.status:8}[/{colour}] {escape(f'{check.name}: {check.text}')}")
        counts = Counter(check.status for check in self.checks)
        return [*said, f"{len(self.checks)} checks, {counts['failure']} failed, {counts['warning']} with a warning"]


def values_check(part: str, library: str, found_wrong: str) -> Check:
    """Say which implementations of a library computed wrong values when they were chosen for a kernel.

    ``found_wrong`` names the function of our C++ library that lists them.
    """
    name = f"{library}'s values"
    wrong = [str(finding) for finding in core_library.function(found_wrong)()]
    if not wrong:
        return Check(part, name, "ok", "no implementation is known to compute wrong values here")
    more = [f"and {len(wrong) - _LISTED} more (--json)"] if len(wrong) > _LISTED else []
    first = f"values of these implementations ({len(wrong)}) were wrong here, so others are taken in their place:"
    text = "\n    ".join([first, *wrong[:_LISTED], *more])
    return Check(part, name, "warning", text, {"wrong": wrong})
