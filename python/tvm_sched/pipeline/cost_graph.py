"""Read TensorFlow's ``CostGraphDef`` as text, the format of the REGAL graphs, as partitioning problems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tvm_sched_runtime.errors import FormatError, GraphError
from tvm_sched_runtime.files import read_bytes
from tvm_sched_runtime.problem.partition_problem import PartitionProblem, StageTensor

_TOKEN = re.compile(
    r'\s+|#[^\n]*|(?P<text>"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')|(?P<word>[^\s{}<>:;,\[\]"\'#]+)|(?P<mark>[{}<>:;,\[\]])'
)
_CLOSING = {"{": "}", "<": ">"}
_MOST_DEPTH = 50

Message = dict[str, list[Any]]
"""Fields of a message by name, each with a list of its values: texts and messages."""


def read_cost_graph(path: str | os.PathLike[str], bandwidth: float = 1.0) -> PartitionProblem:
    """Read the graph of a ``CostGraphDef`` in protocol buffers' text format.

    A node's work is its ``compute_cost``. Each of its outputs is a tensor of ``output_info.size`` bytes, which takes
    ``size / bandwidth`` to a stage or from one. ``input_info`` names the tensors that a node reads by node and port. A
    control input is a tensor without bytes. Other fields are ignored.

    Parameters
    ----------
    bandwidth : float
        Bytes in a unit of ``compute_cost``.

    Raises
    ------
    FormatError
        The text is not a message, a field has a wrong value, or an input names a missing node or port.
    """
    where = os.fspath(path)
    if not 0 < bandwidth < float("inf"):
        raise FormatError(f"{where}: bandwidth is {bandwidth}; a finite number above 0 is allowed")
    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: it is no text in UTF-8: {error}") from None
    return _problem(_message(_tokens(text, where), "", where, 0).get("node", []), bandwidth, where)


def _problem(nodes: list[Any], bandwidth: float, where: str) -> PartitionProblem:
    if not nodes or not all(isinstance(node, dict) for node in nodes):
        raise FormatError(f"{where}: no CostGraphDef: it has no messages called 'node'")
    number = {_count(node, "id", where): v for v, node in enumerate(nodes)}
    if len(number) < len(nodes):
        raise FormatError(f"{where}: an id of nodes stands twice; ids are unique, and 0 where they are left out")
    readers: dict[tuple[int, int], set[int]] = {
        (v, port): set() for v, node in enumerate(nodes) for port in range(len(node.get("output_info", [])))
    }
    after: list[set[int]] = [set() for _ in nodes]
    for v, node in enumerate(nodes):
        for read in node.get("input_info", []):
            source, port = (_count(read, field, where) for field in ("preceding_node", "preceding_port"))
            if (number.get(source, -1), port) not in readers:
                raise FormatError(
                    f"{where}: node {_name(node)!r} reads port {port} of node {source}, which is not there"
                )
            readers[number[source], port].add(v)
        for source in node.get("control_input", []):
            if not str(source).isdecimal() or int(source) not in number:
                raise FormatError(f"{where}: control input {source!r} of node {_name(node)!r} is no node")
            after[number[int(source)]].add(v)
    tensors = []
    for (v, port), who in readers.items():
        size = max(_count(nodes[v]["output_info"][port], "size", where), 0)
        tensors.append(StageTensor(v, tuple(sorted(who)), size / bandwidth, size))
    tensors += [StageTensor(v, tuple(sorted(who)), 0.0) for v, who in enumerate(after) if who]
    work = np.array([_count(node, "compute_cost", where) for node in nodes], dtype=np.float64)
    try:
        return PartitionProblem([_name(node) for node in nodes], work, np.zeros(len(nodes)), tensors)
    except GraphError as error:
        raise FormatError(f"{where}: {error}") from None


def _name(node: Message) -> str:
    """Return a node's name and id; they are unique."""
    named = [str(value).strip("\"'") for value in node.get("name", [])]
    return f"{named[0] if named else 'node'}#{node.get('id', ['0'])[0]}"


def _count(message: Any, field: str, where: str) -> int:
    """Return an integer field, 0 if it is missing. These files have -1 for unknown sizes."""
    values = message.get(field, ["0"]) if isinstance(message, dict) else [""]
    if not isinstance(values[-1], str) or not re.fullmatch(r"-?\d+", values[-1]):
        raise FormatError(f"{where}: field {field!r} is {values[-1]!r}; an integer is allowed")
    return int(values[-1])


def _tokens(text: str, where: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            line = text.count("\n", 0, place) + 1
            raise FormatError(f"{where}: line {line}: {text[place]!r} has no place in the text of a message")
        place = match.end()
        if match.lastgroup:
            yield match.group()


def _message(tokens: Iterator[str], closing: str, where: str, depth: int) -> Message:
    if depth > _MOST_DEPTH:
        raise FormatError(f"{where}: its messages lie too deep in each other")
    message: Message = {}
    for name in tokens:
        if name == closing:
            return message
        if name in ";,":
            continue
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise FormatError(f"{where}: found {name!r} where the name of a field is expected")
        mark = next(tokens, "")
        value = next(tokens, "") if mark == ":" else mark
        if value in _CLOSING:
            message.setdefault(name, []).append(_message(tokens, _CLOSING[value], where, depth + 1))
        elif mark == ":" and value == "[":
            message.setdefault(name, []).extend(_list(tokens, name, where))
        elif mark == ":" and value and value not in "}>:;,]":
            message.setdefault(name, []).append(value)
        else:
            raise FormatError(
                f"{where}: field {name!r} has no value; `{name}: value` or `{name} {{ ... }}` is expected"
            )
    if closing:
        raise FormatError(f"{where}: the text ends inside of a message; {closing!r} is missing")
    return message


def _list(tokens: Iterator[str], name: str, where: str) -> list[str]:
    """Return the values of a list in short form."""
    values: list[str] = []
    for token in tokens:
        if token == "]":
            return values
        if token in "{}<>:;[":
            raise FormatError(f"{where}: field {name!r}: a list of plain values is expected, found {token!r}")
        values += [token] if token != "," else []
    raise FormatError(f"{where}: the list of field {name!r} does not end")
