"""A plugin of pytest: it records each test of TVM, and lets what a test compiles for the CPU go through ``tvm_sched/cpu2``.

``TVM_SUITE_WAY``, ``TVM_SUITE_RECORD`` and ``TVM_SUITE_LIMIT`` are the way (see ``run.py``), the file to which lines of JSON
are appended, and the processor time in seconds that a file may take. Tests that the record has are left out. A test begins
as "unfinished", which it remains if it ends the process or takes twice the limit; after two of these the file's others are
not run. Tests that were not run are tried again with a higher limit.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WAY, RECORD = os.environ["TVM_SUITE_WAY"], Path(os.environ["TVM_SUITE_RECORD"])
LIMIT = float(os.environ["TVM_SUITE_LIMIT"])
TARGET = "tvm_sched/cpu2"


class _NoTorch:
    """Hide PyTorch, which tvm_ffi imports where there is one, from tests that do not name it: that saves three seconds."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Refuse to find it; ``None`` in ``sys.modules`` would look to SciPy as if it were imported."""
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)


if not any("torch" in Path(name).read_text() for name in sys.argv if name.endswith(".py") and Path(name).is_file()):
    sys.meta_path.insert(0, _NoTorch)  # type: ignore[arg-type]
if WAY == "plain":  # TVM's own backends are entry points, too
    sys.modules["tvm_sched.relax.autoload"] = SimpleNamespace(register=lambda: None)  # type: ignore[assignment]

import tvm  # noqa: E402
from tvm import relax  # noqa: E402

if not hasattr(tvm.ir, "VDevice"):  # names of the checkout that the installed version has elsewhere
    tvm.ir.VDevice = relax.VDevice
if not hasattr(tvm, "arith"):
    tvm.arith = sys.modules["tvm.arith"] = tvm.sym

_build = relax.build
_calls: dict[str, Any] = {}


def _for_cpu(target: Any) -> bool:
    if target is None:
        target = tvm.target.Target.current(allow_none=True) or "llvm"
    return tvm.target.Target(target).kind.name in ("llvm", "c")


def _plain(mod: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether Relax functions are built with no option but the target."""
    given = inspect.signature(_build).bind(mod, None, *args, **options).arguments
    changed = [n for n, p in inspect.signature(_build).parameters.items() if n in given and given[n] is not p.default
               and given[n] != p.default and n not in ("mod", "target")]  # fmt: skip
    functions = mod.functions.values() if isinstance(mod, tvm.IRModule) else [mod]
    return any(isinstance(function, relax.Function) for function in functions) and not changed


def _count(what: str) -> None:
    _calls[what] = _calls.get(what, 0) + 1


def _rerouted(mod: Any, target: Any = None, *args: Any, **options: Any) -> Any:
    if not _plain(mod, args, options) or not _for_cpu(target):
        _count("other")
    elif WAY != "rerouted":
        _count("for the CPU")
    else:
        from tvm_sched_runtime.errors import TvmSchedError

        try:
            made = _build(mod, tvm.target.Target(TARGET))
        except TvmSchedError as error:
            _calls.setdefault("refused", []).append(str(error))
        else:
            _count("rerouted")
            return made
    return _build(mod, target, *args, **options)


def _note(outcome: str, **more: Any) -> None:
    with RECORD.open("a") as file:
        file.write(json.dumps({"way": WAY, "outcome": outcome, **more}) + "\n")


def pytest_configure() -> None:
    """Take the place of ``relax.build``, which ``tvm.compile`` calls."""
    relax.build = relax.vm_build.build = _rerouted


def pytest_collectreport(report: Any) -> None:
    """Note a file that cannot be imported or skips itself."""
    if report.outcome != "passed":
        _note(report.outcome, file=report.nodeid, said=_last_line(report))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave out the tests that ran."""
    lines = map(json.loads, RECORD.open() if RECORD.exists() else ())
    done = {each["test"]: each["outcome"] for each in lines if each["way"] == WAY and "test" in each}
    items[:] = [item for item in items if done.get(item.nodeid, "not run") == "not run"]
    _ended.update(name.split("::")[0] for name, outcome in done.items() if outcome == "unfinished")


_spent: Counter[Any] = Counter()
_ended: Counter[str] = Counter()


def pytest_runtest_protocol(item: Any) -> bool | None:
    """Leave out a test whose file has had its time or has ended two processes, else begin it."""
    late = _spent[item.path] > LIMIT or _ended[item.nodeid.split("::")[0]] > 1
    _calls.clear()
    _note("not run" if late else "unfinished", test=item.nodeid)
    if late:
        return True
    _spent[item.path] -= time.process_time()
    faulthandler.dump_traceback_later(2 * LIMIT, exit=True)
    return None


def pytest_runtest_teardown(item: Any) -> None:
    """Count the time of a test."""
    _spent[item.path] += time.process_time()
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logreport(report: Any) -> None:
    """Note the outcome of a test; an error before or behind it is a failure."""
    if report.when == "call" or report.outcome != "passed":
        _note(report.outcome, test=report.nodeid, calls=dict(_calls), said=_last_line(report))


def _last_line(report: Any) -> str:
    return (str(report.longrepr).strip().splitlines() or [""])[-1][:300] if report.outcome == "failed" else ""
