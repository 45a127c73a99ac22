"""RestrictDevices: keep a module's operators to some devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import tvm

from tvm_sched_runtime.problem import restrict_to_devices

from ..ir.attributes import PROBLEM, get_problem, leave


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.RestrictDevices")
class RestrictDevices:
    """Forbid all other devices to the operators, as `tvm_sched_runtime.problem.restrict_to_devices`.

    Reads and writes the attribute ``tvm_sched.problem``.

    Parameters
    ----------
    devices : collection of str
        Names of devices of the topology; none: all.
    homes : mapping of str to collection of str, optional
        For some parameters and states, the devices of the operators that read them.

    Examples
    --------
    >>> from tvm_sched.relax import get_problem
    >>> from tvm_sched.relax.place.restrict_devices import RestrictDevices
    >>> get_problem(RestrictDevices(["cpu0"])(placed)).digest != get_problem(placed).digest
    True
    """

    def __init__(self, devices: Collection[str], homes: Mapping[str, Collection[str]] | None = None) -> None:
        self.devices, self.homes = tuple(devices), dict(homes or {})

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        return leave(mod, PROBLEM, restrict_to_devices(get_problem(mod), self.devices, homes=self.homes))
