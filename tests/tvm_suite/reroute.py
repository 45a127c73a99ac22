"""A plugin of pytest: Relax modules that a test compiles for the CPU go through ``tvm_sched/cpu2``, if that takes them."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import tvm
from tvm import relax

TARGET = "tvm_sched/cpu2"
_counts: Counter[str] = Counter()
_build = relax.build


def _for_cpu(target: Any) -> bool:
    if target is None:
        target = tvm.target.Target.current(allow_none=True) or "llvm"
    return tvm.target.Target(target).kind.name in ("llvm", "c")


def _plain(mod: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether a module with a ``main`` is built with no option but the target."""
    given = inspect.signature(_build).bind(mod, None, *args, **options).arguments
    changed = [n for n, p in inspect.signature(_build).parameters.items() if n in given and given[n] is not p.default
               and given[n] != p.default and n not in ("mod", "target")]  # fmt: skip
    relaxed = isinstance(mod, tvm.IRModule) and any(
        variable.name_hint == "main" and isinstance(function, relax.Function)
        for variable, function in mod.functions_items()
    )
    return relaxed and not changed


def _rerouted(mod: Any, target: Any = None, *args: Any, **options: Any) -> Any:
    from tvm_sched_runtime.errors import InputError

    if _plain(mod, args, options) and _for_cpu(target):
        try:
            made = _build(mod, tvm.target.Target(TARGET))
        except InputError:
            _counts["refused"] += 1
        else:
            _counts["rerouted"] += 1
            return made
    else:
        _counts["of another kind"] += 1
    return _build(mod, target, *args, **options)


def pytest_configure() -> None:
    """Take the place of ``relax.build``, which ``tvm.compile`` calls."""
    relax.build = relax.vm_build.build = _rerouted


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was rerouted."""
    terminalreporter.write_line(f"tvm_sched: {', '.join(f'{n} {what}' for what, n in sorted(_counts.items()))}")
