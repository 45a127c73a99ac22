"""What happens to a cluster over time: requests with lifetimes, failures and repairs; drawn at random or read from files."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from io import StringIO
from typing import Literal

import msgspec
import numpy as np

from tvm_sched_runtime.checks import require_positive
from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.files import read_bytes

from ..files.rampa_simulator_files import read_requests
from ..problem.cluster import Cluster
from ..problem.service import ServiceRequest, requests_of


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A failure or repair of a GPU, server, rack or link; ``time`` is in seconds from the start."""

    time: float
    event: Literal["fail", "repair"]
    part: str


def poisson_requests(
    demand: Mapping[str, float], count: int, offered: float, lifetime: float, seed: int
) -> list[ServiceRequest]:
    """Return requests at the times of a Poisson process, with exponential lifetimes.

    Parameters
    ----------
    demand : mapping of str to float
        Probability of each service.
    offered : float
        Services that would run on average if each request were accepted: rate times mean lifetime.
    lifetime : float
        Mean, in seconds.

    Raises
    ------
    InputError
        A number that is not above 0, or a demand without probabilities.
    """
    for what, value in (("offered", offered), ("lifetime", lifetime), ("count", count)):
        require_positive(what, value)
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(lifetime / offered, count))
    lives = random.exponential(lifetime, count)
    drawn = requests_of(demand, count, seed)
    return [
        ServiceRequest(request.name, request.service, time, life)
        for request, time, life in zip(drawn, times.tolist(), lives.tolist(), strict=True)
    ]


def read_trace(
    path: str | os.PathLike[str], demand: Mapping[str, float], lifetime: float, scale: float, seed: int
) -> list[ServiceRequest]:
    """Return the requests of a file, in the order of their times.

    A sequence of RAMPA's simulator (.txt), or a table (.csv) with a column ``time`` (seconds) or ``TIMESTAMP`` (date and
    time, as in the Azure LLM traces), and perhaps ``service``, ``lifetime`` (seconds) and ``name``. Services that are not
    there are drawn from the demand, and lifetimes from an exponential distribution.

    Parameters
    ----------
    scale : float
        Factor for the lifetimes of the file.

    Raises
    ------
    FormatError
        A column or field that is missing or is no number; says in which line.
    """
    where = os.fspath(path)
    require_positive("scale of lifetimes", scale)
    if not where.endswith(".csv"):
        sequence = read_requests(where)
        return sorted(
            (msgspec.structs.replace(each, lifetime=each.lifetime * scale) for each in sequence), key=lambda r: r.time
        )
    rows = _table(where)
    random = np.random.default_rng(seed)
    drawn = requests_of(demand, max(len(rows), 1), seed) if rows and "service" not in rows[0] else []
    requests, first = [], None
    for line, row in enumerate(rows):
        at = f"{where}: line {line + 2}"
        if "TIMESTAMP" in row:
            try:
                stamp = datetime.fromisoformat(row["TIMESTAMP"][:26].rstrip("Z")).timestamp()
            except ValueError:
                raise FormatError(f"{at}: TIMESTAMP is {row['TIMESTAMP']!r}; a date and time is expected") from None
        else:
            stamp = _number(row, "time", at)
        first = stamp if first is None and "TIMESTAMP" in row else first or 0.0
        life = _number(row, "lifetime", at) * scale if "lifetime" in row else random.exponential(lifetime)
        service = row["service"] if "service" in row else drawn[line].service
        requests.append(ServiceRequest(row.get("name") or f"r{line}", service, stamp - first, life))
    return sorted(requests, key=lambda request: request.time)


def draw_faults(
    cluster: Cluster, mtbf: float, mttr: float, until: float, seed: int, link_mtbf: float | None = None
) -> list[Fault]:
    """Return failures of servers and links with exponential times between failures and to repair, until a time.

    Parameters
    ----------
    mtbf, mttr : float
        Mean seconds that each server runs before it fails, and that its repair takes.
    link_mtbf : float, optional
        As ``mtbf``, for each link. Default: links do not fail.

    Raises
    ------
    InputError
        A time that is not above 0.
    """
    require_positive("mtbf", mtbf)
    require_positive("mttr", mttr)
    random, faults = np.random.default_rng([seed, 1]), []
    parts = [(server, mtbf) for server in cluster.servers]
    if link_mtbf is not None:
        require_positive("link mtbf", link_mtbf)
        parts += [(link.name, link_mtbf) for link in cluster.links]
    for part, mean in parts:
        time = random.exponential(mean)
        while time < until:
            back = time + random.exponential(mttr)
            faults += [Fault(time, "fail", part), Fault(back, "repair", part)]
            time = back + random.exponential(mean)
    return sorted(faults, key=lambda fault: (fault.time, fault.part))


def read_faults(path: str | os.PathLike[str]) -> list[Fault]:
    """Return the faults of a table (.csv) with the columns ``time`` (seconds), ``event`` (fail or repair) and ``part``.

    Raises
    ------
    FormatError
        A column or field that is missing or wrong; says in which line.
    """
    where, faults = os.fspath(path), []
    for line, row in enumerate(_table(where, "time", "event", "part")):
        at = f"{where}: line {line + 2}"
        event = row.get("event")
        if event not in ("fail", "repair") or not row.get("part"):
            raise FormatError(f"{at}: the columns time, event (fail or repair) and part are expected, found {row}")
        faults.append(Fault(_number(row, "time", at), event, row["part"]))  # type: ignore[arg-type]
    return sorted(faults, key=lambda fault: fault.time)


def read_load_times(path: str | os.PathLike[str]) -> tuple[float, ...]:
    """Return the seconds of a table (.csv) with a column ``seconds``, or ``value`` (milliseconds, as in GenTD26)."""
    where, times = os.fspath(path), []
    for line, row in enumerate(_table(where)):
        at = f"{where}: line {line + 2}"
        times.append(_number(row, "value", at) / 1e3 if "value" in row else _number(row, "seconds", at))
    if not times:
        raise FormatError(f"{where} holds no times")
    return tuple(times)


def _table(where: str, *columns: str) -> Sequence[dict[str, str]]:
    """Return the rows of a table, which must have these columns."""
    try:
        reader = csv.DictReader(StringIO(read_bytes(where).decode("utf-8-sig")))
        found, rows = list(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{where}: not a table of text ({error})") from None
    if any(column not in found for column in columns):
        raise FormatError(f"{where}: the columns {', '.join(columns)} are expected in the first line, found {found}")
    return rows


def _number(row: Mapping[str, str], column: str, where: str) -> float:
    try:
        value = float(row[column])
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{where}: column {column!r} holds {row.get(column)!r}; a number is expected") from None
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{where}: column {column!r} is {value}; a number from 0 is allowed")
    return value
