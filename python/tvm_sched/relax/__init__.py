"""The only package that imports TVM: import of models, passes, targets and build, each loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_frontends import ImportedModel

    from . import passes
    from .api import CompiledModel, compile, make_problem, pipeline, run_passes
    from .inspection import inspect_model
    from .ir.attributes import get_pipeline_plan, get_problem, get_schedule
    from .model_loading import load_model
    from .options import CompileOptions
    from .pipeline_api import ExportablePipeline, compile_pipeline
    from .problem.operator_graph import get_graph
    from .targets import target

_WHERE = {
    "CompileOptions": "options",
    "CompiledModel": "api",
    "ExportablePipeline": "pipeline_api",
    "ImportedModel": "tvm_frontends",
    "compile": "api",
    "compile_pipeline": "pipeline_api",
    "get_graph": "problem.operator_graph",
    "get_pipeline_plan": "ir.attributes",
    "get_problem": "ir.attributes",
    "get_schedule": "ir.attributes",
    "inspect_model": "inspection",
    "load_model": "model_loading",
    "make_problem": "api",
    "passes": "passes",
    "pipeline": "api",
    "run_passes": "api",
    "target": "targets",
}

__all__ = [
    "CompileOptions",
    "CompiledModel",
    "ExportablePipeline",
    "ImportedModel",
    "compile",
    "compile_pipeline",
    "get_graph",
    "get_pipeline_plan",
    "get_problem",
    "get_schedule",
    "inspect_model",
    "load_model",
    "make_problem",
    "passes",
    "pipeline",
    "run_passes",
    "target",
]


def _register_errors() -> None:
    """Register our error classes, so that TVM's C++ pass manager does not turn them into RuntimeError."""
    from tvm_sched_runtime import errors
    from tvm_sched_runtime.startup import ffi

    register = ffi().register_error
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.TvmSchedError):
            register(f"tvm_sched.{name}", value)


_register_errors()


def __getattr__(name: str) -> Any:
    """Import lazily: ``import tvm`` calls `autoload` in this package and must stay cheap."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from tvm_sched_runtime.startup import import_tvm

    if import_tvm()._RUNTIME_ONLY:
        from tvm_sched_runtime.errors import InputError

        raise InputError(
            "TVM_USE_RUNTIME_LIB=1 loads TVM without its compiler, and models are imported and compiled with it: unset it; "
            "only `tvm_sched_runtime.runtime` (`tvm-sched run`) works there"
        )
    where = _WHERE[name]
    module = import_module(where if where == "tvm_frontends" else f".{where}", __name__)
    value = module if name == "passes" else getattr(module, name)
    globals()[name] = value
    return value
