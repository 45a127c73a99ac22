"""WriteVDevices: a schedule as a plain Relax module, in which operators and copies name TVM's virtual devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import tvm
from tvm import relax

from tvm_frontends.imported_model import number_of_inputs
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.schedule import simulate

from ...execution_plan import KernelCall
from ..ir.attributes import PARAMETERS, get_compile_target, get_problem, get_schedule
from ..ir.virtual_devices import on_device, vdevices_of
from ..lower.dynamic_tail import refuse_tail
from ..lower.kernel_libraries import claimed_functions, make_modules
from ..problem.operator_graph import extract, flatten
from .runtime_module import modules_of_others

_OPAQUE = 8
"""TVM's operator pattern for kernels that are not fused."""


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.WriteVDevices")
class WriteVDevices:
    """Write the schedule into ``main`` as TVM's virtual devices, for ``relax.build`` and ``relax.VirtualMachine``.

    Reads ``tvm_sched.problem`` and ``tvm_sched.schedule``; the result has neither. The global infos name one ``VDevice`` for
    each device of the topology, and the host behind them if all of these are GPUs. Kernels are called in the order in which
    they start; TVM runs them one after another. A tensor that is read on another device than the one where it is gets a
    ``to_vdevice``. Inputs and results are on the host. Parameters follow the inputs (``num_input``), each on the device that
    reads it first, with their values in ``tvm_frontends.parameters``.

    Raises
    ------
    InputError
        Sizes depend on data, or kernels update an input in place.

    Examples
    --------
    >>> from tvm_sched.relax.emit.write_vdevices import WriteVDevices
    >>> [device.vdevice_id for device in WriteVDevices()(placed).global_infos["vdevice"]]
    [0, 1]
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        refuse_tail([mod], "a module of virtual devices")
        return _Writer(mod).run()


class _Writer:
    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod, self.extraction, self.problem = mod, extract(mod), get_problem(mod)
        for call in self.extraction.calls:
            if call.in_place:
                raise InputError(
                    f"operator {call.operator!r} updates an input in place, which schedules for TVM's virtual machine cannot"
                )
        self.vdevices = vdevices_of(self.problem.topology, get_compile_target(mod).host)
        self.host = next(n for n, device in enumerate(self.vdevices) if device.target.kind.name != "cuda")
        self.tensors = {tensor.name: tensor for tensor in self.problem.graph.tensors}
        self.places: dict[
            str, dict[int, relax.Expr]
        ] = {}  # variables of each tensor by device; the first is its origin
        self.functions: dict[tuple[str, str], tvm.ir.GlobalVar] = {}  # kernels by name and kind of target
        self.builder = relax.BlockBuilder()

    def run(self) -> tvm.IRModule:
        """Return the written module."""
        numbers = {device.name: number for number, device in enumerate(self.problem.topology.devices)}
        schedule = get_schedule(self.mod)
        devices = {placement.operator: numbers[placement.device] for placement in schedule.placements}
        starts = {
            event.name: event.start_ns for event in simulate(self.problem, schedule).events if event.kind == "kernel"
        }
        calls = sorted(self.extraction.calls, key=lambda call: starts[call.operator])
        function = self.mod["main"]
        host = self.vdevices[self.host]
        inputs = {v: relax.Var(v.name, on_device(v.ty, host)) for v in function.params[: number_of_inputs(function)]}
        reads = [(tensor, devices[call.operator]) for call in calls for tensor in call.inputs]
        results = flatten(self.extraction.result)
        parameters = self._parameters([*reads, *((tensor, self.host) for tensor in results)])
        kernels = {(call.function, devices[call.operator]) for call in calls if not call.external}
        for name, device in sorted(kernels):
            self._add_kernel(name, self.vdevices[device].target)
        with self.builder.function("main", [*inputs.values(), *parameters.values()], {"num_input": len(inputs)}):
            with self.builder.dataflow():
                for name, (variable, path) in self.extraction.arguments.items():
                    value = reduce(relax.TupleGetItem, path, inputs[variable])
                    self.places.setdefault(name, {self.host: self.builder.emit(value) if path else value})
                for call in calls:
                    self._call(call, devices[call.operator])
                result = self.builder.emit_output(self._result(self.extraction.result))
            self.builder.emit_func_output(result)
        return self._with_modules(self.builder.finalize(), list(parameters))

    def _parameters(self, reads: Iterable[tuple[str, int]]) -> dict[str, relax.Var]:
        """Return the arguments for parameters, each on the first device that reads it."""
        found: dict[str, relax.Var] = {}
        for name, device in reads:
            if name in self.extraction.parameters and name not in found:
                found[name] = relax.Var(name, self._type(name, device))
                self.places[name] = {device: found[name]}
        return found

    def _add_kernel(self, name: str, target: tvm.target.Target) -> None:
        kind = str(target.kind.name)
        if (name, kind) in self.functions:
            return
        kernel = self.mod[name].with_attr("op_pattern", _OPAQUE)  # TVM's pipeline must not fuse it with others
        own = kernel if kind != "cuda" else kernel.with_attr("target", target)
        self.functions[name, kind] = self.builder.add_func(own, name)

    def _call(self, call: KernelCall, device: int) -> None:
        arguments = [self._at(tensor, device) for tensor in call.inputs]
        types = [self._type(tensor, device) for tensor in call.outputs]
        ty = types[0] if len(types) == 1 else types
        if call.packed:
            result = relax.call_pure_packed(call.function, *arguments, ty_args=ty)
        elif call.external:
            result = relax.call_dps_packed(call.function, arguments, ty)
        else:
            function = self.functions[call.function, str(self.vdevices[device].target.kind.name)]
            result = relax.call_tir(function, relax.Tuple(arguments), ty)
        value = self.builder.emit(result, call.operator)
        for k, tensor in enumerate(call.outputs):
            own = value if len(types) == 1 else self.builder.emit(relax.TupleGetItem(value, k))
            self.places[tensor] = {device: own}

    def _at(self, tensor: str, device: int) -> relax.Expr:
        """Return a tensor on a device, copied there if it is not yet."""
        there = self.places[tensor]
        if device not in there:
            origin = next(iter(there.values()))
            there[device] = self.builder.emit(relax.op.to_vdevice(origin, self.vdevices[device]))
        return there[device]

    def _result(self, result: Any) -> relax.Expr:
        if isinstance(result, tuple):
            return relax.Tuple([self._result(part) for part in result])
        return self._at(result, self.host)

    def _type(self, name: str, device: int) -> relax.TensorType:
        tensor = self.tensors[name]
        return relax.TensorType(tensor.shape, tensor.dtype, self.vdevices[device])

    def _with_modules(self, mod: tvm.IRModule, parameters: Sequence[str]) -> tvm.IRModule:
        """Return the module with the functions of kernel libraries and other code generators, and parameters' values."""
        mod.update_global_info("vdevice", self.vdevices)
        calls = self.extraction
        claimed = {call.function: call.function for call in calls.calls if call.function in claimed_functions(self.mod)}
        modules = [*make_modules(self.mod, claimed, {}), *modules_of_others(self.mod, calls)]
        values = self.mod.attrs.get(PARAMETERS, {})
        mod = mod.with_attr(PARAMETERS, {name: values[name] for name in parameters if name in values})
        return mod.with_attr("external_mods", modules) if modules else mod
