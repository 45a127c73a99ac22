"""Nodes and pods of FGD's files, and random sequences of pods that ask for more GPUs than there are."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from io import StringIO
from typing import NamedTuple

import numpy as np

from tvm_sched_runtime.checks import require_positive
from tvm_sched_runtime.errors import FormatError
from tvm_sched_runtime.files import read_bytes

MILLI = 1000
"""Shares of a GPU."""
_DIGITS = 15
"""Most digits of a number."""


class Node(NamedTuple):
    """A node: thousandths of CPUs, MiB, number of GPUs and their kind."""

    cpu: int
    memory: int
    gpus: int
    kind: str


class Pod(NamedTuple):
    """A pod: thousandths of CPUs, MiB, GPUs, thousandths of each GPU, and the kinds allowed (none: any)."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    kinds: tuple[str, ...]

    @property
    def total(self) -> int:
        """Thousandths of GPUs in all."""
        return self.gpus * self.milli


def read_nodes(path: str | os.PathLike[str]) -> list[Node]:
    """Read the columns ``cpu_milli``, ``memory_mib``, ``gpu`` and ``model`` of a table.

    Raises
    ------
    FormatError
        A column that is missing, a field that is no number, or no node with a GPU.
    """
    columns = "cpu_milli", "memory_mib", "gpu", "model"
    nodes = [Node(int(r[0]), int(r[1]), int(r[2]), r[3]) for r in _rows(path, columns, 3)]
    if not any(node.gpus for node in nodes):
        raise FormatError(
            f"{os.fspath(path)}: none of the {len(nodes)} nodes has a GPU; the column gpu holds their number"
        )
    return nodes


def read_pods(path: str | os.PathLike[str]) -> list[Pod]:
    """Read the columns ``cpu_milli``, ``memory_mib``, ``num_gpu``, ``gpu_milli`` and perhaps ``gpu_spec`` of a table.

    Raises
    ------
    FormatError
        As `read_nodes`, or a share of a GPU that is not from 1 to 1000.
    """
    pods = []
    for line, row in enumerate(_rows(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"), 4)):
        gpus, milli = int(row[2]), int(row[3])
        milli = milli if gpus == 1 else MILLI if gpus else 0
        if gpus == 1 and not 0 < milli <= MILLI:
            raise FormatError(f"{os.fspath(path)}: line {line + 2}: gpu_milli is {milli}; 1 to {MILLI} is allowed")
        pods.append(Pod(int(row[0]), int(row[1]), gpus, milli, tuple(row[4].split("|")) if row[4] else ()))
    return pods


def _rows(path: str | os.PathLike[str], columns: Sequence[str], numbers: int) -> list[list[str]]:
    where = os.fspath(path)
    try:
        text = read_bytes(path).decode("utf-8-sig")
        table = list(csv.DictReader(StringIO(text)))
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{where}: no table of text ({error})") from None
    rows = []
    for line, row in enumerate(table):
        fields = [row.get(column) or "" for column in columns]
        for column, value in zip(columns[:numbers], fields, strict=False):
            if not value.isdecimal() or len(value) > _DIGITS:
                raise FormatError(
                    f"{where}: line {line + 2}: column {column!r} holds {value!r}; a whole number is expected"
                )
        rows.append(fields)
    if not rows:
        raise FormatError(f"{where} holds no rows")
    return rows


def draw_pods(pods: Sequence[Pod], gpus: int, ratio: float, seed: int) -> list[Pod]:
    """Return pods in random order until they ask for ``ratio`` times the GPUs; each once before any is drawn again."""
    require_positive("ratio of GPUs", ratio)
    random = np.random.default_rng(seed)
    order, drawn, total = list(random.permutation(len(pods))), list[Pod](), 0
    if not any(pod.total for pod in pods):
        raise FormatError("no pod asks for GPUs")
    while total < ratio * gpus * MILLI:
        drawn.append(pods[int(order.pop() if order else random.integers(len(pods)))])
        total += drawn[-1].total
    return drawn
