"""Parse resident parameters: ``0.5``, ``weight,bias``, ``@names.txt``, ``0:1,1:9``."""

from __future__ import annotations

import re
from pathlib import Path

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Problem, Request
from tvm_sched_runtime.schedule import Requests, Resident, Schedule, requests_of

WEIGHT = re.compile(r"[0-9.eE+-]+")


def resident_of(text: str | None) -> float | list[str] | None:
    """Parse the resident parameters of one kind of run: a part, or names.

    Raises
    ------
    InputError
        A part is outside of 0 to 1, a file cannot be read, or a name is empty.
    """
    if text is None:
        return None
    if text.startswith("@"):
        return _from_file(text)
    try:
        part = float(text)
    except ValueError:
        names = [name.strip() for name in text.split(",")]
        if not all(names):
            raise InputError(f"--resident {text}: a name is empty; expected names with one comma between") from None
        return names
    if not 0 <= part <= 1:
        raise InputError(f"--resident {text}: a fraction from 0 to 1 is allowed, or names of parameters")
    return part


def parse_requests(text: str) -> Requests:
    """Parse a part or names, or several kinds of requests with weights."""
    kinds = [kind.rpartition(":") for kind in text.split(",")]
    if not all(mark and WEIGHT.fullmatch(weight) and _is_kind(what) for what, mark, weight in kinds):
        single = resident_of(text)
        assert single is not None
        return single
    weighted: list[tuple[Resident, float]] = []
    for what, _, weight in kinds:
        resident = resident_of(what) or 0.0
        try:
            weighted.append((resident, float(weight)))
        except ValueError:
            raise InputError(
                f"--resident {text}: the weight {weight} is not a number; expected such as 0:1,1:9"
            ) from None
    return weighted


def _is_kind(text: str) -> bool:
    """Return whether a text can be a kind of request: a part or a file, unlike a name with colons."""
    return text.startswith("@") or bool(WEIGHT.fullmatch(text))


def _from_file(text: str) -> list[str]:
    try:
        lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--resident {text}: the file cannot be read ({error})") from None
    return [line.strip() for line in lines if line.strip()]


def requests_for(problem: Problem, schedule: Schedule, text: str | None) -> tuple[Request, ...]:
    """Return the requests to price a schedule for: those of the text, else the ones that it was scheduled for."""
    if text is not None:
        return requests_of(problem, parse_requests(text))
    return schedule.certificate.requests if schedule.certificate else ()
