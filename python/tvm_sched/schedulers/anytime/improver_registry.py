"""Improvers of `anytime` by name, and the shares of the work that a text or a file gives to some of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import read_bytes
from tvm_sched_runtime.search_budget import Improver, Turn
from tvm_sched_runtime.toml_files import parse_toml

from ...registry import Registry
from .search_state import ScheduleState

FORMAT, VERSION = "tvm_sched.improvers", 1

MakeImprover = Callable[[Any], Improver[ScheduleState]]
"""A class or function: makes an improver for one search from the `AnytimeOptions`."""

IMPROVERS: Registry[MakeImprover] = Registry(
    "improver",
    "tvm_sched.improvers",
    own={
        "annealing": "tvm_sched.schedulers.anytime.improvers:Annealing",
        "annealing-into-stages": "tvm_sched.schedulers.anytime.improvers:AnnealingIntoStages",
        "blocks": "tvm_sched.schedulers.anytime.improvers:Blocks",
        "direct-reads": "tvm_sched.schedulers.anytime.direct_reads:DirectReads",
        "local-search": "tvm_sched.schedulers.anytime.improvers:LocalSearch",
    },
)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    improvers: dict[str, float]


def register_improver(name: str) -> Callable[[MakeImprover], MakeImprover]:
    """Decorate a class, or a function that makes an improver, to register it for `anytime`.

    Parameters
    ----------
    name : str
        Name in the option ``improvers``. The function gets the `AnytimeOptions` of the search.

    Examples
    --------
    >>> from tvm_sched.schedulers.anytime import register_improver
    >>> @register_improver("nothing")
    ... class Nothing:
    ...     name = "nothing"
    ...     def __init__(self, options): ...
    ...     def step(self, state, budget):
    ...         return False
    ...
    >>> solve(problem, options={"improvers": "nothing:1"}).certificate.latency_ns
    3750
    """
    return lambda make: IMPROVERS.add(name, make)


def read_shares(text: str) -> dict[str, float]:
    """Return the shares of the work by improver.

    Parameters
    ----------
    text : str
        ``NAME:SHARE,NAME:SHARE``, in which a share of 1 may be left out; or the path of a TOML file with the table
        ``[improvers]``. They take turns in this order.

    Raises
    ------
    InputError
        There is no name, or a name is unknown or comes twice, or a share is not above 0.
    """
    shares: dict[str, float] = {}
    if text.endswith(".toml"):
        shares = parse_toml(read_bytes(Path(text)), FORMAT, VERSION, _File, text).improvers
    else:
        for each in text.split(","):
            name, _, number = (part.strip() for part in each.partition(":"))
            if name in shares:
                raise InputError(f"improvers {text!r} name {name!r} twice; name each improver once")
            try:
                shares[name] = float(number or 1)
            except ValueError:
                raise InputError(
                    f"improvers {text!r}: the share {number!r} is no number; NAME:SHARE,NAME:SHARE or a TOML file is allowed"
                ) from None
    if not shares:
        raise InputError(f"improvers: {text} names none; name one or more, with a share of each")
    for name, share in shares.items():
        IMPROVERS.get(name)  # raises for an unknown one
        if not 0 < share < math.inf:
            raise InputError(f"improvers: the share of {name!r} is {share:g}; a number above 0 is allowed")
    return shares


def turns_by_share(shares: Mapping[str, float], options: Any) -> list[Turn[ScheduleState]]:
    """Return the turns of improvers, each made for this search."""
    return [Turn(IMPROVERS.get(name)(options), share) for name, share in shares.items()]
