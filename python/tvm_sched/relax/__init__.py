"""The only package that imports TVM: import of models, passes, targets and build, each loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import passes
    from .attributes import get_pipeline_plan, get_problem, get_schedule
    from .build import CompiledModel, compile, make_problem
    from .graph import get_graph
    from .importers import ImportedModel, load_model
    from .inspect import inspect_model
    from .options import CompileOptions
    from .pipeline_build import ExportablePipeline, compile_pipeline
    from .pipelines import pipeline
    from .targets import target

_WHERE = {
    "CompileOptions": "options",
    "CompiledModel": "build",
    "ExportablePipeline": "pipeline_build",
    "ImportedModel": "importers",
    "compile": "build",
    "compile_pipeline": "pipeline_build",
    "get_graph": "graph",
    "get_pipeline_plan": "attributes",
    "get_problem": "attributes",
    "get_schedule": "attributes",
    "inspect_model": "inspect",
    "load_model": "importers",
    "make_problem": "build",
    "passes": "passes",
    "pipeline": "pipelines",
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
    "target",
]


def _register_errors() -> None:
    """Let our errors keep their class on their way through TVM's C++ pass manager; others become RuntimeError there."""
    from .. import errors
    from .._library import ffi

    register = ffi().register_error
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.TvmSchedError):
            register(f"tvm_sched.{name}", value)


_register_errors()


def __getattr__(name: str) -> Any:
    """Import lazily: TVM calls `autoload` on every ``import tvm``, which must cost next to nothing."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    import tvm

    if tvm._RUNTIME_ONLY:
        from ..errors import InputError

        raise InputError(
            "TVM_USE_RUNTIME_LIB=1 loads TVM without its compiler, and models are imported and compiled with it: unset it; "
            "only `tvm_sched.runtime` (`tvm-sched run`) works there"
        )
    module = import_module(f".{_WHERE[name]}", __name__)
    value = module if _WHERE[name] == name and name == "passes" else getattr(module, name)
    globals()[name] = value
    return value
