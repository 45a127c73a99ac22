"""EmitExecutor: the schedule becomes a runtime module, and ``main`` a call of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax

from tvm_sched_runtime.schedule.verifier import verify

from ..codegen.cpu.kernel_objects import static_kernels
from ..codegen.cpu.kernels import compile_kernels
from ..codegen.prepare_kernels import bounded_tail
from ..ir.attributes import PARAMETERS, TAIL, get_compile_target, get_problem, get_schedule
from ..lower.split_tail import check_tail
from .any_shape import Template
from .executor import make_executor
from .export import EMBED_LIMIT
from .segments import Segments


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.EmitExecutor")
class EmitExecutor:
    """Compile the kernels, emit the plan, and put the module that executes it into the attribute ``external_mods``.

    ``main`` then takes the inputs (and the parameters without values) and calls that module. Run TVM's default build
    pipeline after it.

    Parameters
    ----------
    backend : str, optional
        As in `CompileOptions`. For ``"cuda"`` the kernels must have been lowered for GPUs (`LowerToKernels`).
    run_options : mapping, optional
        Initial settings, as for `tvm_sched_runtime.runtime.ScheduledModule.configure`.
    states : mapping of str to int, optional
        Inputs that the executor keeps from run to run, as in `CompileOptions`.
    parameters : {"embed", "auto", "external"}
        As in `CompileOptions`. Values that are not embedded remain in the attribute ``tvm_frontends.parameters``.
    others : sequence of tvm.IRModule
        The same model, scheduled for other input shapes. ``main`` picks the plan by the shapes of its inputs.
    about : mapping, optional
        The entry ``generation`` of the metadata (``docs/formats/language_model.md``).
    template : Template, optional
        What runs for sizes that no plan takes.
    segments : Segments, optional
        What runs in place of the dynamic tail.
    for_export : bool
        Whether the executable is exported or linked (`load_executable`) before it runs. Kernels then come from the cache of
        object files.

    Raises
    ------
    tvm_sched_runtime.errors.ScheduleError
        A schedule in the attributes breaks a rule of ``docs/model.md``.

    Examples
    --------
    >>> from tvm_sched.relax.passes import EmitExecutor
    >>> emitted = EmitExecutor()(placed)
    >>> [module.kind for module in emitted.attrs["external_mods"]]
    ['tvm_sched']
    """

    def __init__(
        self,
        backend: str | None = None,
        run_options: Mapping[str, Any] | None = None,
        states: Mapping[str, int] | None = None,
        parameters: str = "embed",
        others: Sequence[tvm.IRModule] = (),
        about: Mapping[str, Any] | None = None,
        template: Template | None = None,
        for_export: bool = False,
        segments: Segments | None = None,
    ) -> None:
        self.backend, self.run_options, self.states = backend, dict(run_options or {}), dict(states or {})
        self.parameters, self.others, self.about = parameters, tuple(others), about
        self.template, self.for_export, self.segments = template, for_export, segments

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        mods = [mod, *self.others]
        for each in mods:
            verify(get_problem(each), get_schedule(each))
        few = _bytes(mods) <= EMBED_LIMIT
        embed = self.parameters == "embed" or (self.parameters == "auto" and few)
        # To run in this process, objects are linked with the embedded values, which is fast if these are small.
        objects = self.for_export and (few or not embed)
        executor = make_executor(
            mods,
            backend=self.backend,
            embed=embed,
            run_options=self.run_options,
            compiler=partial(static_kernels, cache=get_compile_target(mod).cache) if objects else compile_kernels,
            states=self.states,
            about=self.about,
            template=self.template,
            segments=self.segments,
        )
        whole = mod if self.segments is None else mod.without_attr(TAIL)
        result = attach_executor(whole, [executor.module], executor.main)
        return result.with_attr(PARAMETERS, executor.parameters) if executor.parameters else result


def _bytes(mods: Sequence[tvm.IRModule]) -> int:
    """Return the bytes of the parameters' values; what several modules hold counts once."""
    values = (value for mod in mods if PARAMETERS in mod.attrs for value in mod.attrs[PARAMETERS].values())
    return sum({int(v.data_ptr()): int(v.numel()) * v.dtype.itemsize for v in values}.values())


def attach_executor(
    mod: tvm.IRModule,
    modules: Sequence[tvm.runtime.Module],
    main: relax.Function,
) -> tvm.IRModule:
    """Put ``main`` and the modules that it calls into a module, and drop unused kernels."""
    result = mod.clone()
    if TAIL in mod.attrs:
        check_tail(mod.attrs[TAIL])
        result.update(bounded_tail(mod.attrs[TAIL], mod))
        result = result.without_attr(TAIL)
    result["main"] = main.with_attr("global_symbol", "main")
    result = relax.transform.DeadCodeElimination()(result)
    host = get_compile_target(mod).host
    for variable, function in list(result.functions_items()):
        if isinstance(function, tvm.tirx.PrimFunc):  # kernels of other functions than main
            result.update_func(variable, function.with_attr("target", host))
    if PARAMETERS in result.attrs:
        result = result.without_attr(PARAMETERS)
    if not modules:
        return result
    others = list(result.attrs["external_mods"]) if "external_mods" in result.attrs else []
    return result.with_attr("external_mods", [*others, *modules])
