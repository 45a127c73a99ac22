"""Work in processes of its own that begin with what this one has imported: forked, timed, and lost without harm.

A process that has imported TVM takes milliseconds to fork and seconds to start anew. Threads do not survive a fork, so
the parent must not start any: import, do not run.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any


@dataclass
class _Child:
    key: Any
    pid: int
    pipe: int
    log: IO[bytes]
    began: float
    received: bytes = b""


def run_forked(
    work: Callable[[Any], Any], keys: Iterable[Any], *, seconds: float, jobs: int = 2, gigabytes: float = 6
) -> Iterator[tuple[Any, Any, str | None, float]]:
    """Call ``work(key)`` for each key in a process of its own.

    Parameters
    ----------
    work : callable
        Returns what JSON can hold. What it prints is kept from the terminal.
    seconds : float
        After which a child is killed.
    jobs : int
        Children at once.
    gigabytes : float
        Address space that a child may add to this process's.

    Yields
    ------
    key
    result
        Of ``work``; None where the child failed.
    failure : str or None
        Why there is no result: the exception, the signal or the time limit, with the last line that the child printed.
    seconds : float
    """
    waiting, running = iter(keys), {}
    gc.collect()
    gc.freeze()  # a collection in a child would copy all pages
    try:
        while True:
            while len(running) < jobs and (key := next(waiting, None)) is not None:
                child = _fork(work, key, gigabytes)
                running[child.pipe] = child
            if not running:
                return
            ready, _, _ = select.select(list(running), [], [], 0.25)
            for pipe in list(running):
                child = running[pipe]
                if pipe in ready:
                    data = os.read(pipe, 1 << 16)
                    child.received += data
                    ended = not data
                else:
                    ended = False
                late = time.monotonic() - child.began > seconds
                if ended or late:
                    del running[pipe]
                    yield (child.key, *_reap(child, late and not ended, seconds))
    finally:
        for child in running.values():
            _reap(child, True, seconds)


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write the results as JSON; an interruption leaves the old file."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    temporary.replace(path)


def _fork(work: Callable[[Any], Any], key: Any, gigabytes: float) -> _Child:
    reading, writing = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - the parent reads it when the child has ended
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Child(key, pid, reading, log, time.monotonic())
    os.close(reading)
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + int(gigabytes * 2**30),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer = {"result": work(key)}
    except BaseException:
        answer = {"failure": traceback.format_exc()}
    with os.fdopen(writing, "w") as pipe:
        json.dump(answer, pipe)
    os._exit(0)  # no clean-up of what belongs to the parent


def _reap(child: _Child, kill: bool, seconds: float) -> tuple[Any, str | None, float]:
    if kill:
        os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    os.close(child.pipe)
    took = time.monotonic() - child.began
    child.log.seek(0)
    lines = child.log.read().decode(errors="replace").strip().splitlines()
    child.log.close()
    said = f"; it printed: {lines[-1][:200]}" if lines else ""
    if kill:
        return None, f"killed after {seconds:g} s{said}", took
    try:
        answer = json.loads(child.received)
    except ValueError:
        ended = signal.Signals(-code).name if (code := os.waitstatus_to_exitcode(status)) < 0 else f"status {code}"
        return None, f"ended by {ended}{said}", took
    return answer.get("result"), answer.get("failure"), took
