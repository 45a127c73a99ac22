"""Latencies from a user's table: CSV with the columns operator, device, seconds and optionally direct_seconds."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path

import numpy as np

from tvm_sched_runtime.errors import CostsError
from tvm_sched_runtime.problem import Costs, OpGraph, Topology

COLUMNS = ("operator", "device", "seconds")
DIRECT = "direct_seconds"


def costs_of_table(graph: OpGraph, topology: Topology, path: str | os.PathLike[str]) -> Costs:
    """Read the latencies of a graph on a topology.

    A row is for one operator, or for ``*``: every operator that has no row of its own on that device; likewise a device
    may be ``*``. ``inf`` says that the operator cannot run there; an empty ``direct_seconds`` that it cannot read host
    memory directly.

    Raises
    ------
    CostsError
        The file cannot be read, has other columns, names an operator or device that is not there, gives a pair twice or a
        time that is not above 0, or leaves a pair out; the first few pairs are listed.
    """
    where = os.fspath(path)
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            header = [name.strip() for name in reader.fieldnames or ()]
            rows = [(reader.line_num, {k.strip(): (v or "").strip() for k, v in row.items() if k}) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error, AttributeError) as error:
        raise CostsError(f"{where}: cannot be read as CSV ({error})") from None
    if not set(COLUMNS) <= set(header) or set(header) - {*COLUMNS, DIRECT}:
        raise CostsError(f"{where}: the columns are {', '.join(header) or 'none'}; expected operator, device, seconds "
                         "and, if you like, direct_seconds")  # fmt: skip
    operators, devices = graph.index.operator_id, topology.device_id
    latencies: dict[tuple[str, str], tuple[float, float]] = {}
    for line, row in rows:
        pair = row["operator"], row["device"]
        for what, name, known in (("operator", pair[0], operators), ("device", pair[1], devices)):
            if name not in known and name != "*":
                raise CostsError(
                    f"{where}, line {line}: there is no {what} {name!r}; there are {_shortened_list(list(known))}"
                )
        if pair in latencies:
            raise CostsError(f"{where}, line {line}: operator {pair[0]!r} on {pair[1]!r} has a time already")
        direct = row.get(DIRECT, "")
        latencies[pair] = (
            _seconds(row["seconds"], f"{where}, line {line}"),
            _seconds(direct, f"{where}, line {line}") if direct else math.inf,
        )
    return _fill_costs(graph, topology, latencies, where)


def _seconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise CostsError(f"{where}: {text!r} is not a latency; seconds above 0 are allowed, or inf")
    return value


def _fill_costs(
    graph: OpGraph, topology: Topology, latencies: dict[tuple[str, str], tuple[float, float]], where: str
) -> Costs:
    values = np.empty((2, len(graph.operators), len(topology.devices)))
    missing = []
    for o, operator in enumerate(graph.operators):
        for d, device in enumerate(topology.devices):
            candidates = ((operator.name, device.name), (operator.name, "*"), ("*", device.name), ("*", "*"))
            latency = next((latencies[pair] for pair in candidates if pair in latencies), None)
            if latency is None:
                missing.append(f"{operator.name} on {device.name}")
            else:
                values[:, o, d] = latency
    if missing:
        raise CostsError(f"{where}: {len(missing)} latencies are missing: {_shortened_list(missing)}")
    direct = values[1]
    for d in range(len(topology.devices)):
        if topology.reads_host_in_place(d):
            direct[:, d] = math.inf
    return Costs.from_seconds(values[0], direct, source=Path(where).name)


def _shortened_list(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f", ... ({len(names)} in all)" if len(names) > 10 else "")
