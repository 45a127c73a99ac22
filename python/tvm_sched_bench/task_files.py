"""Task graphs with communication that others published, in their three formats, as problems (``docs/formats/benchmark.md``).

In all three a device runs one task at a time, what a task makes is there at once on its own device, and reaches any other
device after a delay; any number of copies travel at once. So the devices share a switch without contention.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import FormatError, TvmSchedError
from tvm_sched_runtime.files import UNREADABLE, read_bytes, why_unreadable
from tvm_sched_runtime.problem import Costs, Device, Operator, OpGraph, Problem, Switch, Tensor, Topology
from tvm_sched_runtime.schedule import Placement, Schedule, Transfer

UNIT = 1_000_000
"""Nanoseconds of a unit of time of a file of unrelated machines: they have six digits behind the point."""
MOST_DEVICES = 4096


class Published(NamedTuple):
    """A task graph with the schedule that its file contains.

    Examples
    --------
    >>> published.problem.graph.name, published.schedule.problem == published.problem.digest, published.length_ns
    ('pair', True, 6)
    """

    problem: Problem
    schedule: Schedule
    length_ns: int
    """Length of the schedule, as the file claims it."""


def tasks_on_switch(
    name: str,
    source: str,
    times: npt.NDArray[np.int64],
    reads: Sequence[Sequence[int]],
    makers: Sequence[int],
    sizes: Sequence[int],
    bandwidth: float = 1e9,
) -> Problem:
    """Return the problem of tasks on devices that are joined by a switch without contention.

    Parameters
    ----------
    times : array of shape (tasks, devices)
        Nanoseconds.
    reads : for each task the positions of the tensors that it reads.
    makers, sizes : for each tensor the task that makes it, and its bytes.
    bandwidth : float
        Bytes a second; by default a byte takes a nanosecond.
    """
    tensors = tuple(Tensor(f"t{t}", size) for t, size in enumerate(sizes))
    writes: list[list[str]] = [[] for _ in reads]
    for tensor, maker in zip(tensors, makers, strict=True):
        writes[maker].append(tensor.name)
    operators = tuple(
        Operator(f"v{v}", "task", tuple(f"t{t}" for t in read), tuple(writes[v])) for v, read in enumerate(reads)
    )
    names = tuple(f"device{d}" for d in range(times.shape[1]))
    devices = tuple(Device(each, 1 << 60, 1e12, {"float32": 1e13}) for each in names)
    switches = (Switch("network", names, bandwidth, contention=False),) if len(names) > 1 else ()
    topology = Topology(f"{len(names)} devices", devices, switches=switches)
    return Problem(OpGraph(name, operators, tensors), topology, Costs(times, source=source))


_TEXT = r'"(?:[^"\\]|\\.)*"|[\w.+-]+'
_DOT = re.compile(
    rf"\s*(?P<tail>{_TEXT})(?:\s*->\s*(?P<head>{_TEXT}))?\s*"
    rf"\[(?P<fields>\s*(?:(?:{_TEXT})\s*=\s*(?:{_TEXT})\s*[,;]?\s*)*)\]\s*;?\s*",
    re.ASCII | re.DOTALL,
)
_FIELD = re.compile(rf"({_TEXT})\s*=\s*({_TEXT})", re.ASCII | re.DOTALL)
_GRAPH = re.compile(rf"\s*digraph\s*(?P<name>{_TEXT})?\s*\{{(?P<body>.*)\}}\s*", re.DOTALL)


def read_auckland(path: str | os.PathLike[str]) -> Published:
    """Read a task graph of the University of Auckland with its schedule: a ``.dot`` file; a unit of time is a nanosecond.

    A node has ``Weight``, ``Start time``, ``Finish time`` and ``Processor``, an edge the ``Weight`` that a copy takes, the
    graph ``TargetSystem`` (``Homogeneous-N``) and ``Total schedule length``. Each edge is a tensor of its own. A file
    without fields of the graph has ``Start`` in place of ``Start time``, and ``Homogeneous-N`` at the end of its name.

    Raises
    ------
    FormatError
        The file is no such graph, or the schedule's times are not those of its tasks.
    """
    where = os.fspath(path)
    text = _text(path)
    graph = _GRAPH.fullmatch(text)
    if graph is None:
        raise FormatError(f"{where}: not a graph of Auckland: it is to be 'digraph NAME {{ ... }}'")
    body, position = graph["body"], 0
    system: dict[str, str] = {}
    nodes: dict[str, dict[str, str]] = {}
    edges: dict[tuple[str, str], dict[str, str]] = {}
    while position < len(body.rstrip()):
        statement = _DOT.match(body, position)
        if statement is None:
            line = text.count(
                "\n", 0, graph.start("body") + position + len(body[position:]) - len(body[position:].lstrip())
            )
            raise FormatError(
                f"{where}, line {line + 1}: a node, an edge or the graph, with fields in brackets, is allowed"
            )
        position = statement.end()
        fields = {_plain(key): _plain(value) for key, value in _FIELD.findall(statement["fields"])}
        tail, head = _plain(statement["tail"]), statement["head"]
        if head is None and tail == "graph":
            system.update(fields)
            continue
        known: dict[str, dict[str, str]] | dict[tuple[str, str], dict[str, str]]
        thing, known, key = (f"node {tail!r}", nodes, tail) if head is None else (
            f"edge {tail} -> {_plain(head)}", edges, (tail, _plain(head))
        )  # fmt: skip
        if key in known:
            raise FormatError(f"{where}: {thing} is there twice")
        known[key] = fields  # type: ignore[index]
    named = (
        system.get("TargetSystem")
        or os.path.basename(where).rpartition("_")[2].partition(".")[0].partition("-output")[0]
    )
    target = re.fullmatch(r"Homogeneous-(\d{1,4})", named)
    if target is None or not 1 <= int(target[1]) <= MOST_DEVICES:
        raise FormatError(
            f"{where}: TargetSystem is {named!r}; 'Homogeneous-N' with 1 to {MOST_DEVICES} equal processors is allowed"
        )
    place = {node: v for v, node in enumerate(nodes)}
    if unknown := next((end for edge in edges for end in edge if end not in place), None):
        raise FormatError(f"{where}: an edge names node {unknown!r}, which is not there")
    begins = "Start time" if "TargetSystem" in system else "Start"
    weight, begin, processor = (
        {node: _number(where, f"node {node!r}", fields, field) for node, fields in nodes.items()}
        for field in ("Weight", begins, "Processor")
    )
    used = {number: d for d, number in enumerate(sorted(set(processor.values())))}
    if not nodes or len(used) > int(target[1]):
        raise FormatError(
            f"{where}: {len(nodes)} tasks on {len(used)} processors; 1 task or more on {target[1]} are allowed"
        )
    end = {node: begin[node] + weight[node] for node in nodes}
    for node, fields in nodes.items():
        if weight[node] < 1 or fields.get("Finish time", str(end[node])) != str(end[node]):
            raise FormatError(
                f"{where}: node {node!r} runs from {begin[node]} to {fields.get('Finish time')}; its Weight is "
                f"{weight[node]}, and 1 or more is allowed"
            )
    sizes = [_number(where, f"edge {a} -> {b}", fields, "Weight") for (a, b), fields in edges.items()]
    reads: list[list[int]] = [[] for _ in nodes]
    for t, (_, head) in enumerate(edges):
        reads[place[head]].append(t)
    times = np.repeat(np.array([weight[node] for node in nodes], dtype=np.int64)[:, None], int(target[1]), axis=1)
    problem = _made(
        where, _plain(graph["name"] or "graph"), "auckland", times, reads, [place[a] for a, _ in edges], sizes
    )  # fmt: skip
    order = sorted(nodes, key=lambda node: (begin[node], end[node], place[node]))
    device = {node: f"device{used[processor[node]]}" for node in nodes}
    placements = tuple(Placement(f"v{place[node]}", device[node]) for node in order)
    copies = tuple(
        Transfer("copy", device[b], f"t{t}", source=device[a])
        for t, (a, b) in enumerate(edges)
        if device[a] != device[b]
    )
    length = _number(where, "the graph", system, "Total schedule length") if system else max(end.values())
    return Published(problem, Schedule(problem.digest, placements, copies), length)


_SECTION = re.compile(r"#(critical|tasks|edges|end)")


def read_unrelated(path: str | os.PathLike[str]) -> Problem:
    """Read a graph on unrelated machines (Santiago et al.): a ``.dag`` file; a unit of time is a millisecond.

    ``#tasks`` has the time of each task on each machine, ``#edges`` from, to, and the time of a copy between machines.
    What stands under ``#critical`` is not used, as the authors say.

    Raises
    ------
    FormatError
        The file is no such graph; the message names the line.
    """
    where, section = os.fspath(path), ""
    rows: dict[str, list[list[str]]] = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        at = f"{where}, line {number}"
        if not line.strip():
            continue
        if line.startswith("#"):
            found = _SECTION.fullmatch(line.strip())
            if found is None or found[1] in rows or "end" in rows:
                raise FormatError(f"{at}: {line.strip()!r}; #critical, #tasks, #edges and #end are allowed, once each")
            section = found[1]
            rows[section] = []
            continue
        if section not in ("critical", "tasks", "edges"):
            raise FormatError(f"{at}: text outside of the sections #critical, #tasks and #edges")
        if section == "critical":
            continue
        label, colon, values = line.partition(":")
        if not colon or label.strip() != str(len(rows[section])):
            raise FormatError(f"{at}: it begins with {label.strip()!r}; '{len(rows[section])}:' is allowed")
        rows[section].append([value.strip() for value in values.split(",")])
    if missing := [name for name in ("tasks", "edges", "end") if name not in rows] or (not rows["tasks"] and ["tasks"]):
        raise FormatError(f"{where}: not a graph on unrelated machines: section #{missing[0]} is missing or empty")
    count = len(rows["tasks"][0])
    for v, row in enumerate(rows["tasks"]):
        if len(row) != count or count > MOST_DEVICES:
            raise FormatError(
                f"{where}: task {v} has {len(row)} times; each is to have {count}, at most {MOST_DEVICES}"
            )
    times = [[_ns(where, f"task {v}", value) for value in row] for v, row in enumerate(rows["tasks"])]
    reads: list[list[int]] = [[] for _ in times]
    makers, sizes = [], []
    for t, row in enumerate(rows["edges"]):
        if len(row) != 3 or not all(end.isdecimal() and int(end) < len(times) for end in row[:2]):
            raise FormatError(
                f"{where}: edge {t} is {', '.join(row)}; two tasks of 0 to {len(times) - 1} and a time are allowed"
            )
        makers.append(int(row[0]))
        reads[int(row[1])].append(t)
        sizes.append(_ns(where, f"edge {t}", row[2]))
    least = np.maximum(np.array(times, dtype=np.int64), 1)
    name = os.path.basename(where).removesuffix(".dag")
    return _made(where, name, "unrelated", least, reads, makers, sizes)


class _Output(msgspec.Struct):
    s: float


class _Task(msgspec.Struct):
    d: float
    cpus: int
    outputs: list[_Output]
    inputs: list[tuple[int, int]]


class _Frame(msgspec.Struct, forbid_unknown_fields=True):
    graph_name: dict[str, str]
    graph_id: dict[str, str]
    graph: dict[str, str]


def read_estee(
    path: str | os.PathLike[str],
    graph: int = 0,
    workers: int = 8,
    bandwidth: float = 100e6,
    one_at_a_time: bool = False,
) -> Problem:
    """Read a workflow of Estee: a data frame as JSON, in a file called ``.zip``.

    Parameters
    ----------
    graph : int
        Row of the data frame.
    workers : int
        Workers of one core each.
    bandwidth : float
        Bytes a second between any two workers, as in Estee's network model ``simple``, without limits of how many downloads
        a worker has. A worker downloads each output once. Sizes in the file are megabytes, times seconds.
    one_at_a_time : bool
        Whether a task that needs several cores has a worker for itself, as if all workers had enough cores and ran one task
        at a time. Without it such graphs are refused.

    Raises
    ------
    FormatError
        The file is no such data frame, or lacks that graph, or a task needs several cores.
    """
    where = os.fspath(path)
    rows = _frame(path)
    if str(graph) not in rows.graph:
        raise FormatError(f"{where}: there is no graph {graph}; 0 to {len(rows.graph) - 1} are allowed")
    name = f"{rows.graph_name.get(str(graph), 'graph')}-{graph}"
    where = f"{where}, graph {graph}"
    if not 1 <= workers <= MOST_DEVICES or not 0 < bandwidth < float("inf"):
        raise FormatError(
            f"{where}: {workers} workers, {bandwidth:g} bytes a second; 1 to {MOST_DEVICES} and a finite rate above 0 are "
            "allowed"
        )
    try:
        tasks = msgspec.json.decode(rows.graph[str(graph)], type=list[_Task])
    except UNREADABLE as error:
        raise FormatError(f"{where}: not a list of tasks ({why_unreadable(error)})") from None
    first = np.cumsum([0, *(len(task.outputs) for task in tasks)]).tolist()
    reads: list[list[int]] = []
    for v, task in enumerate(tasks):
        if task.cpus < 1 or (task.cpus > 1 and not one_at_a_time):
            raise FormatError(
                f"{where}: task {v} needs {task.cpus} cores; tasks of one core are allowed. With the option one_at_a_time "
                "a task has its worker for itself"
            )
        if wrong := [
            pair
            for pair in task.inputs
            if not (0 <= pair[0] < len(tasks) and 0 <= pair[1] < len(tasks[pair[0]].outputs))
        ]:
            raise FormatError(f"{where}: task {v} reads output {wrong[0][1]} of task {wrong[0][0]}, which is not there")
        reads.append([first[a] + k for a, k in dict.fromkeys(task.inputs)])
    for what, values in (("duration", [t.d for t in tasks]), ("size", [o.s for t in tasks for o in t.outputs])):
        if wrong_value := [value for value in values if not 0 <= value <= 1e9]:
            raise FormatError(f"{where}: a {what} is {wrong_value[0]:g}; 0 to 1e9 is allowed")
    times = np.maximum(np.rint(np.array([task.d for task in tasks]) * 1e9).astype(np.int64), 1)
    makers = [v for v, task in enumerate(tasks) for _ in task.outputs]
    sizes = [round(output.s * 1e6) for task in tasks for output in task.outputs]
    return _made(where, name, "estee", np.repeat(times[:, None], workers, axis=1), reads, makers, sizes, bandwidth)


def estee_graphs(path: str | os.PathLike[str]) -> int:
    """Return how many graphs a data frame of Estee has; raises `FormatError` if the file is none."""
    return len(_frame(path).graph)


def _frame(path: str | os.PathLike[str]) -> _Frame:
    try:
        return msgspec.json.decode(read_bytes(path), type=_Frame)
    except UNREADABLE as error:
        raise FormatError(f"{os.fspath(path)}: not a data frame of Estee's graphs ({why_unreadable(error)})") from None


def _made(
    where: str, name: str, source: str, times: npt.NDArray[np.int64], reads: Sequence[Sequence[int]],
    makers: Sequence[int], sizes: Sequence[int], bandwidth: float = 1e9,
) -> Problem:  # fmt: skip
    """Return `tasks_on_switch`; its errors name the file."""
    try:
        return tasks_on_switch(name, source, times, reads, makers, sizes, bandwidth)
    except TvmSchedError as error:
        raise FormatError(f"{where}: {error}") from None


def _text(path: str | os.PathLike[str]) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{os.fspath(path)}: not a text file ({why_unreadable(error)})") from None


def _plain(text: str) -> str:
    return text[1:-1].replace("\\\n", "").replace('\\"', '"') if text.startswith('"') else text


def _number(where: str, thing: str, fields: dict[str, str], field: str) -> int:
    value = fields.get(field, "")
    if not re.fullmatch(r"\d{1,15}", value, re.ASCII):
        raise FormatError(f"{where}: {thing} has {field} {value!r}; a whole number from 0 to 10^15 is allowed")
    return int(value)


def _ns(where: str, thing: str, text: str) -> int:
    """Return a decimal number of milliseconds as nanoseconds, exactly."""
    whole, _, part = text.partition(".")
    if not re.fullmatch(r"\d{1,9}", whole, re.ASCII) or not re.fullmatch(r"\d{0,6}", part, re.ASCII):
        raise FormatError(
            f"{where}: {thing} has the time {text!r}; a decimal number with up to 6 digits behind the point is allowed"
        )
    return int(whole) * UNIT + int(part.ljust(6, "0"))
