"""The blocks of shell and Python on pages of documents, and how they are run: those of a page one after another.

A block that cannot run in a test stands behind a comment ``<!-- not run: why -->``, which no reader sees.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from docs.command_server import PROGRAMS, write_client

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SEARCH_SECONDS = re.compile(r"""((?:time[-_]limit|\bwork)["']?[ =:]+|--seconds )[\d.]+""")
"""Seconds that a page gives a search, by the clock or of work; in the tests it gets a fifth of one."""
BLOCK = re.compile(r"(?:<!-- (not run|needs)[: ]\s*(.*?) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block: its language, its text, where it begins, and why it is not run (empty: it is)."""

    language: str
    code: str
    line: int
    not_run: str


def blocks(page: Path) -> list[Block]:
    """Blocks of shell and Python on a page."""
    text = page.read_text()
    return [
        Block(language, code, text[: found.start(4)].count("\n") + 1, why if mark == "not run" else "")
        for found in BLOCK.finditer(text)
        for mark, why, language, code in [found.groups()]
        if language in ("sh", "python")
    ]


def commands(block: Block) -> list[list[str]]:
    """Words of the calls of ``tvm-sched`` in a block of shell."""
    import shlex

    lines = block.code.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("tvm-sched ")]


DEFAULT_COSTS = ("plan_gpu_server.md",)
"""Pages about GPUs that need the latencies which users get; the others take the roofline, so that no CPU is measured."""


class Place(NamedTuple):
    """Where pages are run: a server of commands (`command_server`), and a folder for what commands keep on disk."""

    server: str
    cache: Path


def environment(folder: Path, place: Place) -> dict[str, str]:
    """What the blocks are run with: this interpreter as ``python``, this package as ``tvm-sched``, a cache of their own."""
    tools = folder / ".tools"
    tools.mkdir(exist_ok=True)
    for program in PROGRAMS:
        write_client(tools / program, place.server)
    plain = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "TVM_SCHED_CACHE": str(place.cache)}
    path = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "python")}
    return {**os.environ, **plain, **path}


def run(page: Path, folder: Path, place: Place) -> None:
    """Run a page: its shell blocks where they stand, its Python blocks together in one process at the place of the last.

    Python of README runs in an interpreter that has imported nothing, as it does for who copies it.
    """
    chosen = [block for block in blocks(page) if not block.not_run]
    python = [block for block in chosen if block.language == "python"]
    surroundings = environment(folder, place)
    interpreter = sys.executable if page.name == "README.md" else str(folder / ".tools" / "python")
    for block in chosen:
        if block.language == "sh":
            command, code = ["bash", "-euo", "pipefail"], block.code
        elif block is python[-1]:
            command, code = [interpreter], "\n".join(each.code for each in python)
        else:
            continue
        if page.name in DEFAULT_COSTS:
            surroundings.pop("TVM_SCHED_COSTS", None)
        command += ["-c", SEARCH_SECONDS.sub(r"\g<1>0.2", code)]
        ran = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, f"{page.name}, line {block.line}:\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"
