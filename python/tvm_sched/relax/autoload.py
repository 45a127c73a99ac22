"""Entry point ``tvm.backends``, called by ``import tvm``: registers targets, the pipeline and the runtime's loader.

It runs in every process that imports TVM, so it imports only the standard library and modules that TVM has imported.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

import tvm_sched_runtime
from tvm_sched_runtime.startup import register_targets_on_demand

from .target_tags import PREFIX, THROUGHPUT, config

CPU_TAGS = 128
"""Tags are registered at import for ``cpu`` and ``cpu1`` up to this number of devices, others on first use."""


def register() -> None:
    """Register the target tags, the pipeline ``tvm_sched`` and the loader of executables.

    With ``TVM_USE_RUNTIME_LIB=1`` there is no compiler, and only the loader is registered.
    """
    import tvm

    _register_loader()
    if tvm._RUNTIME_ONLY:
        return
    _register_tags()
    register_targets_on_demand(PREFIX, _register_other_tag)
    _register_pipeline()
    _explain_build()


def _register_loader() -> None:
    """Load libtvm_sched when the first module of ours is read, in place of its own loader until then."""
    import tvm_ffi

    key = "ffi.Module.load_from_bytes.tvm_sched"
    if tvm_ffi.get_global_func(key, allow_missing=True) is not None:
        return
    from tvm_sched_runtime.core_library import load_library

    load_library()


def _register_tags() -> None:
    import tvm

    presets = sorted(
        path.stem for path in (Path(tvm_sched_runtime.__file__).parent / "problem" / "presets").glob("*.toml")
    )
    for name in ["cpu", *(f"cpu{n}" for n in range(1, CPU_TAGS + 1)), *presets]:
        tvm.target.register_tag(PREFIX + name, config(name), override=True)
        throughput = config(name, '{"objective": "throughput"}')
        tvm.target.register_tag(f"{PREFIX}{name}{THROUGHPUT}", throughput, override=True)


def _register_other_tag(tag: str) -> None:
    """Register a tag such as ``tvm_sched/cpu200``, or name the allowed ones for ``tvm_sched/cpu0``."""
    from .targets import register_tag

    register_tag(tag)


def _register_pipeline() -> None:
    """Add our pipeline to TVM's, and let the default pipeline choose by target."""
    import tvm
    from tvm.relax.pipeline import PIPELINE_MAP

    if "tvm_sched" in PIPELINE_MAP:
        return

    def ours(**options: Any) -> tvm.transform.Pass:
        from .api import pipeline

        return pipeline(**options)

    former = PIPELINE_MAP["default"]

    def default(**options: Any) -> tvm.transform.Pass:
        chosen = former(**options)

        @tvm.transform.module_pass(opt_level=0, name="_pipeline")
        def by_target(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
            target = tvm.target.Target.current(allow_none=True)
            if target is None or "tvm_sched" not in target.keys:
                return chosen(mod)
            return ours()(mod)

        return by_target

    PIPELINE_MAP["tvm_sched"] = ours
    PIPELINE_MAP["default"] = default


def _explain_build() -> None:
    """Name `tvm.compile` where ``tvm.build`` gets a Relax model, which ends in an AttributeError inside TVM 0.27."""
    import tvm
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP, register_tir_pipeline

    former = PIPELINE_MAP["s_tir"]
    if hasattr(former, "_tvm_sched"):
        return

    @wraps(former)
    def pipeline(**options: Any) -> Any:
        lower, *finalize = former(**options)

        @tvm.transform.module_pass(opt_level=0, name="_pipeline")
        def refuse_relax(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
            models = [
                name.name_hint for name, function in mod.functions_items() if isinstance(function, tvm.relax.Function)
            ]
            if models:
                from tvm_sched_runtime.errors import InputError

                raise InputError(
                    f"tvm.build compiles functions of TIR, and {models[0]!r} is one of Relax; call "
                    'tvm.compile(mod, target="tvm_sched/cpu2"), or with another target'
                )
            return lower(mod)

        return (refuse_relax, *finalize)

    pipeline._tvm_sched = True  # type: ignore[attr-defined]
    register_tir_pipeline("s_tir", pipeline)
