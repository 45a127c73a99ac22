"""Modules of `tvm_sched_runtime` by the names that they had in `tvm_sched`.

The next release keeps these names, the one after removes them.

A module has one copy, whatever it is called: its classes are the same under both names.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module

TYPE_CHECKING = False  # as in `tvm_sched_runtime`
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

MODULES = (
    "core_library", "_version", "checks", "cores", "errors", "files", "lazy_names", "presets", "problem", "run_artifact",
    "runtime", "schedule", "search_budget", "standard_output", "startup", "toml_files",
)  # fmt: skip
PIPELINE = (
    "compiled_pipeline", "pipeline_artifact", "pipeline_executor", "pipeline_plan", "pipeline_simulator",
    "pipeline_verifier", "stage_pricing", "wiring",
)  # fmt: skip
_PREFIXES = (*(f"tvm_sched.{name}." for name in MODULES), *(f"tvm_sched.pipeline.{name}." for name in PIPELINE))


class _OldNames:
    """Import hook that takes a module which has moved from its new place."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if not f"{name}.".startswith(_PREFIXES):
            return None
        from importlib.machinery import ModuleSpec

        warnings.warn(f"{name} is {_moved(name)} now", PendingDeprecationWarning, stacklevel=2)
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(_moved(module.__name__))

    def get_code(self, name: str) -> CodeType | None:
        """Return the code that ``python -m`` runs."""
        from importlib.util import find_spec

        spec = find_spec(_moved(name))
        return spec.loader.get_code(_moved(name)) if spec else None  # type: ignore[union-attr]


def _moved(name: str) -> str:
    return name.replace("tvm_sched", "tvm_sched_runtime", 1)


def install() -> None:
    """Let imports find the old names, before they look into the folder of a package that has moved."""
    sys.meta_path.insert(0, _OldNames())
