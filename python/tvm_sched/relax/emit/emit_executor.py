"""EmitExecutor: the schedule becomes a runtime module, and ``main`` a call of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from ...schedule.verifier import verify
from ..ir.attributes import PARAMETERS, TAIL, get_compile_target, get_problem, get_schedule
from .executor import make_executor


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.EmitExecutor")
class EmitExecutor:
    """Compile the kernels, emit the plan, and put the module that executes it into the attribute ``external_mods``.

    ``main`` then takes the inputs (and the parameters without values) and calls that module. The parameters whose
    values the module's attributes hold are embedded. Run TVM's default build pipeline after it.

    Parameters
    ----------
    backend : str, optional
        As in `CompileOptions`. For ``"cuda"`` the kernels must have been lowered for GPUs (`LowerToKernels`).
    run_options : mapping, optional
        Initial settings, as for `tvm_sched.runtime.ScheduledModule.configure`.
    states : mapping of str to int, optional
        Inputs that the executor keeps from run to run, as in `CompileOptions`.

    Raises
    ------
    tvm_sched.errors.ScheduleError
        The schedule in the attributes breaks a rule of ``docs/model.md``.

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
    ) -> None:
        self.backend, self.run_options, self.states = backend, dict(run_options or {}), dict(states or {})

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        verify(get_problem(mod), get_schedule(mod))
        executor = make_executor([mod], backend=self.backend, run_options=self.run_options, states=self.states)
        return attach_executor(mod, [executor.module], executor.main)


def attach_executor(
    mod: tvm.IRModule,
    modules: Sequence[tvm.runtime.Module],
    main: relax.Function,
) -> tvm.IRModule:
    """Put ``main`` and the modules that it calls into a module, and drop unused kernels."""
    result = mod.clone()
    if TAIL in mod.attrs:
        result.update(mod.attrs[TAIL])
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
