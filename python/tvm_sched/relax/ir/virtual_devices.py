"""TVM's virtual devices (``VDevice``, ``to_vdevice``, ``hint_on_device``): which devices of a topology they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import rustworkx
import tvm
from tvm import relax

from tvm_frontends.errors import first_line
from tvm_frontends.imported_model import number_of_inputs
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Topology

KINDS = {"llvm": "cpu", "c": "cpu", "cuda": "cuda"}
"""The kind of device in a topology for each kind of target that a ``VDevice`` may have."""
_COPY = "tvm_sched.to_vdevice:"
"""Begin of the name of the function that stands for a copy, before the device: ``tvm_sched.to_vdevice:cuda:1``."""


def has_vdevices(mod: tvm.IRModule) -> bool:
    """Whether a module names virtual devices.

    Examples
    --------
    >>> from tvm_sched.relax.ir.virtual_devices import has_vdevices
    >>> has_vdevices(lowered)
    False
    """
    return "vdevice" in mod.global_infos


def resolve_vdevices(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with hints and types resolved to copies, which `copied_to` reads.

    TVM's pass ``RealizeVDevice`` turns hints into ``to_vdevice`` calls and devices in types. TVM lowers operators by the
    device in the type of their operands, so types lose it here: our topology says what the device is, and an emulated GPU
    computes on this CPU.

    Raises
    ------
    InputError
        A hint names a device that is not among the module's global infos.

    Examples
    --------
    >>> from tvm_sched.relax.ir.virtual_devices import resolve_vdevices
    >>> resolve_vdevices(lowered).same_as(lowered)
    True
    """
    hint, hints = tvm.ir.Op.get("relax.hint_on_device"), []
    relax.analysis.post_order_visit(
        mod["main"], lambda expr: hints.append(expr) if isinstance(expr, relax.Call) and expr.op.same_as(hint) else None
    )
    if not has_vdevices(mod) and not hints:
        return mod
    try:
        mod = relax.transform.RealizeVDevice()(mod)
    except ValueError as error:
        raise InputError(
            f"hint_on_device: {first_line(error)}; name the devices in the module: "
            "I.module_global_infos({'vdevice': [I.vdevice('llvm', 0), I.vdevice('llvm', 1)]})"
        ) from error
    result = mod.clone()
    result.update_func(mod.get_global_var("main"), _without_devices(mod))
    return result


def _without_devices(mod: tvm.IRModule) -> relax.Function:
    """Return ``main`` with types that name no device, and copies of the inputs that are on one."""
    function = mod["main"]
    body = function.body if isinstance(function.body, relax.SeqExpr) else relax.SeqExpr([], function.body)
    params, copies, values = [], [], {}
    for position, variable in enumerate(function.params):
        params.append(relax.Var(variable.name, on_device(variable.ty, None)))
        values[variable] = params[-1]
        device = getattr(variable.ty, "vdevice", None)
        if device is not None and position < number_of_inputs(function):
            values[variable] = relax.Var(variable.name, on_device(variable.ty, None))
            copies.append(relax.VarBinding(values[variable], _copy(params[-1], device)))
    changed = _Copies(mod, values).visit_expr(body)
    body = relax.SeqExpr([relax.BindingBlock(copies), *changed.blocks], changed.body)
    return relax.Function(params, body, on_device(function.ret_ty, None), function.is_pure, function.attrs)


@relax.expr_functor.mutator
class _Copies(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, values: Mapping[relax.Var, relax.Var]) -> None:
        super().__init__(mod)
        self.of = values

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self.of[var] if var in self.of else super().visit_var_(var)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if call.op.same_as(tvm.ir.Op.get("relax.to_vdevice")):
            constant = isinstance(call.args[0], tvm.ir.GenericConst)  # the scheduler moves parameters
            return call.args[0] if constant else _copy(call.args[0], call.attrs.dst_vdevice)
        return relax.Call(call.op, call.args, call.attrs, [on_device(ty, None) for ty in call.ty_args])


def on_device(ty: Any, device: relax.VDevice | None) -> Any:
    """Return a type with its tensors on a device; None: on no named one.

    Examples
    --------
    >>> from tvm import relax
    >>> from tvm_sched.relax.ir.virtual_devices import on_device
    >>> on_device(relax.TensorType((2,), "float32"), relax.VDevice("llvm", 1)).vdevice.vdevice_id
    1
    """
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([on_device(part, device) for part in ty.fields])
    if not isinstance(ty, relax.TensorType) or ty.vdevice is device:
        return ty
    return relax.TensorType(ty.shape, ty.dtype, device, ty.ndim if ty.shape is None else -1)


def _copy(value: relax.Expr, device: relax.VDevice) -> relax.Call:
    return relax.call_dps_packed(
        f"{_COPY}{device.target.kind.name}:{device.vdevice_id}", [value], out_ty=on_device(value.ty, None)
    )


def copied_to(value: Any) -> str | None:
    """Return the virtual device to which a call copies its argument (``"llvm:1"``), None if it is no copy.

    Examples
    --------
    >>> from tvm import relax
    >>> from tvm_sched.relax.ir.virtual_devices import copied_to
    >>> copied_to(relax.const(1)) is None
    True
    """
    if not isinstance(value, relax.Call) or not value.op.same_as(tvm.ir.Op.get("relax.call_dps_packed")):
        return None
    name = str(value.args[0].global_symbol)
    return name.removeprefix(_COPY) if name.startswith(_COPY) else None


def given_devices(readers: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> dict[str, str]:
    """Return the virtual device of each operator that annotations place.

    ``readers`` has for each operator the operators whose results it reads where they are, and the devices of the copies
    that it reads. Operators between copies are on one device, as TVM requires.

    Raises
    ------
    InputError
        An operator reads what was copied to two devices.

    Examples
    --------
    >>> from tvm_sched.relax.ir.virtual_devices import given_devices
    >>> given_devices({"a": ([], []), "b": (["a"], ["llvm:1"]), "c": ([], [])})
    {'a': 'llvm:1', 'b': 'llvm:1'}
    """
    graph, names = rustworkx.PyGraph(), list(readers)
    graph.add_nodes_from(names)
    rows = {name: row for row, name in enumerate(names)}
    graph.add_edges_from_no_data(
        [(rows[maker], rows[name]) for name, (makers, _) in readers.items() for maker in makers]
    )
    given: dict[str, str] = {}
    for region in rustworkx.connected_components(graph):
        members = [names[row] for row in sorted(region)]
        devices = list(dict.fromkeys(device for name in members for device in readers[name][1]))
        if len(devices) > 1:
            at = next(name for name in members if devices[1] in readers[name][1])
            raise InputError(
                f"{at!r} reads what is copied to the VDevice {devices[1]}, together with operators on {devices[0]}; copy "
                "what they exchange (R.to_vdevice)"
            )
        given |= {name: device for name in members for device in devices}
    return given


def vdevices_of(topology: Topology, host: tvm.target.Target) -> list[relax.VDevice]:
    """Return a virtual device for each device of a topology, and one for the host behind them if none is a CPU.

    Examples
    --------
    >>> from tvm.target import Target
    >>> from tvm_sched_runtime.problem import load_topology
    >>> from tvm_sched.relax.ir.virtual_devices import vdevices_of
    >>> [str(device.target.kind.name) for device in vdevices_of(load_topology("v100-server"), Target("llvm"))]
    ['cuda', 'cuda', 'cuda', 'cuda', 'llvm']
    """
    kinds = [device.kind for device in topology.devices]
    found = []
    for number, device in enumerate(topology.devices):
        arch = {"arch": device.arch} if device.arch else {}
        target = host if device.kind == "cpu" else tvm.target.Target({"kind": "cuda", **arch})
        found.append(relax.VDevice(target, kinds[:number].count(device.kind)))
    return found if "cpu" in kinds else [*found, relax.VDevice(host, 0)]


def device_of(vdevice: str, topology: Topology, operator: str) -> int:
    """Return the number of the topology's device that is the virtual device: ``"cuda:1"`` is the second CUDA device.

    Raises
    ------
    InputError
        The topology has no such device; the message names the operator.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import load_topology
    >>> from tvm_sched.relax.ir.virtual_devices import device_of
    >>> device_of("llvm:1", load_topology("cpu2"), "add")
    1
    """
    target, _, number = vdevice.partition(":")
    alike = [place for place, device in enumerate(topology.devices) if device.kind == KINDS.get(target)]
    if int(number) in range(len(alike)):
        return alike[int(number)]
    there = ", ".join(f"{device.name} ({device.kind})" for device in topology.devices)
    kinds = ", ".join(f"{name} is {kind}" for name, kind in KINDS.items())
    raise InputError(
        f"operator {operator!r} is on the VDevice {vdevice}, which the topology {topology.name!r} lacks; it has {there}, "
        f"counted from 0 for each kind ({kinds}): change the VDevice, or take another topology"
    )
