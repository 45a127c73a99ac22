"""EmitPipeline: each stage of a plan becomes a runtime module, and ``main`` calls them in turn."""

from __future__ import annotations

import tvm

from .emit_executor import attach_executor
from .stages import make_stages, pipeline_main


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.EmitPipeline")
class EmitPipeline:
    """Compile the stages of ``tvm_sched.pipeline`` and put their modules into the attribute ``external_mods``.

    A call of ``main`` returns when its result is there, so it takes one batch through all stages, one after the other:
    the model's values at the plan's latency. `tvm_sched.pipeline.open_pipeline` finds the stages in the executable and
    runs many batches through them at once. Run TVM's default build pipeline after this pass.

    Parameters
    ----------
    backend : {"cpu", "emulated", "cuda"}, optional
        As for `EmitExecutor`.
    """

    def __init__(self, backend: str | None = None) -> None:
        self.backend = backend

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        stages = [stage.module for stage in make_stages(mod, self.backend, together=True)]
        return attach_executor(mod, stages, pipeline_main(mod, stages))
