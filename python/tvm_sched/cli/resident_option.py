"""The option ``--resident``: parameters that are on the devices when a run begins."""

from __future__ import annotations

from typing import Annotated

import typer

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
