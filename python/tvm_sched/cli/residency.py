"""The option ``--resident``: parameters that are on the devices when a run begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..problem import Problem, Request
    from ..schedule import Schedule

ResidentParameters = Annotated[
    str | None,
    typer.Option(
        "--resident",
        metavar="PART|NAMES|@FILE",
        help="Parameters that remain on devices between runs: a fraction of their bytes, 0 to 1, comma-separated names, or "
        "a file with one a line.",
    ),
]
ResidentRequests = Annotated[
    str | None,
    typer.Option(
        "--resident",
        metavar="PART|NAMES|@FILE|PART:WEIGHT,...",
        help="Parameters that are on the devices when a run begins: a fraction of their bytes, 0 to 1, comma-separated "
        "names, or a file with one name per line. Several kinds of requests have weights: 0:1,1:9 is one cold, nine warm.",
    ),
]


def resident_of(text: str | None) -> float | list[str] | None:
    """A part or names, as one run has them."""
    from ..resident_texts import resident_of

    return resident_of(text)


def requests_from(problem: Problem, text: str | None) -> tuple[Request, ...]:
    """The requests to schedule for; none of a cold run, or if the option is not given.

    Raises
    ------
    InputError
        As `resident_of`, and where a weight is none or a name is no parameter of the problem.
    """
    from ..resident_texts import parse_requests
    from ..schedule import requests_of

    if text is None:
        return ()
    return requests_of(problem, parse_requests(text))


def requests_for(problem: Problem, schedule: Schedule, text: str | None) -> tuple[Request, ...]:
    """The requests to price a schedule for: those of the option, else those that it was made for."""
    if text is not None:
        return requests_from(problem, text)
    return schedule.certificate.requests if schedule.certificate else ()
