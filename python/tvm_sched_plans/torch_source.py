"""Read a saved torch.export program as an operator graph of its own nodes, so that a plan can refer to them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Operator, OpGraph, Tensor

from .operators import OperatorModel, priced_kind

_ALIASES = (
    "view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "slice", "select", "getitem", "alias",
    "detach", "flatten", "unflatten", "contiguous", "dropout", "_unsafe_view", "split", "chunk", "unbind",
)  # fmt: skip
"""Operators whose results share memory with what they read."""


def read_program(path: Path) -> OperatorModel:
    """Read an exported program; raises `InputError` where there is none, or its shapes are open."""
    try:
        import torch
    except ImportError:
        raise InputError(f"{path}: exported programs need PyTorch: pip install 'tvm_sched[torch]'") from None
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        program = torch.export.load(os.fspath(path))
    except Exception as error:  # zip, pickle, schema: several classes
        raise InputError(f"{path}: not a program of torch.export ({type(error).__name__})") from None
    return program_graph(program, path)


def program_graph(program: Any, path: Path) -> OperatorModel:
    """Return the nodes of a program as operators, in their order."""
    module = program.module()
    tensors: dict[str, Tensor] = {}
    operators: list[Operator] = []
    names: list[str] = []
    free: set[int] = set()
    produced: dict[str, tuple[str, ...]] = {}
    returned: tuple[str, ...] = ()
    for node in module.graph.nodes:
        read = [name for x in node.all_input_nodes for name in produced.get(x.name, ())]
        if node.op == "output":
            returned = tuple(dict.fromkeys(read))
            continue
        kind = {"placeholder": "input", "get_attr": "parameter"}.get(node.op, "activation")
        value = _attribute(module, node.target) if node.op == "get_attr" else node.meta.get("val")
        outputs = []
        for number, tensor in enumerate(_tensors(value)):
            name = node.name if number == 0 else f"{node.name}.{number}"
            tensors[name] = _tensor(name, tensor, kind, path)
            outputs.append(name)
        produced[node.name] = tuple(outputs)
        if kind != "activation" or (not outputs and node.op != "call_function"):
            continue
        if _packet(node) in _ALIASES:
            free.add(len(operators))
        operators.append(Operator(node.name, priced_kind(_packet(node)), tuple(read), tuple(outputs), _flops(node)))
        names.append(node.name)
    if not operators:
        raise InputError(f"{path}: a program without operators; there is nothing to place")
    used = {name for operator in operators for name in (*operator.inputs, *operator.outputs)} | set(returned)
    kept = tuple(tensor for name, tensor in tensors.items() if name in used)
    graph = OpGraph(path.stem, tuple(operators), kept, returned)
    return OperatorModel("torch", path, graph, program, tuple(names), frozenset(free))


def _packet(node: Any) -> str:
    name = getattr(node.target, "_opname", None) or getattr(node.target, "__name__", str(node.target))
    return str(name).split(".")[0]


def _attribute(module: Any, target: Any) -> Any:
    for part in str(target).split("."):
        module = getattr(module, part)
    return module


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _tensors(each)]
    return []


def _tensor(name: str, value: Any, kind: Any, path: Path) -> Tensor:
    if not all(isinstance(size, int) for size in value.shape):
        raise InputError(
            f"{path}: {name!r} has the open shape {list(value.shape)}; export the program with fixed shapes"
        )
    dtype = str(value.dtype).removeprefix("torch.")
    known = dtype in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "bool")
    return Tensor(name, value.numel() * value.element_size(), kind, tuple(value.shape), dtype if known else "")


def _flops(node: Any) -> int:
    from torch.utils.flop_counter import flop_registry

    value = node.meta.get("val")
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is not None:
        import torch

        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda x: _meta(x))
        return int(count(*args, **kwargs, out_val=value))
    if _packet(node) == "linear":
        x, weight = (_meta(a) for a in node.args[:2])
        return 2 * int(x.numel()) * int(weight.shape[0])
    if _packet(node) == "matmul":
        return 2 * int(value.numel()) * int(_meta(node.args[0]).shape[-1])
    if _packet(node) in ("conv1d", "conv2d", "conv3d"):
        weight = _meta(node.args[1])
        return 2 * int(value.numel()) * int(weight.numel()) // int(weight.shape[0])
    return sum(int(tensor.numel()) for tensor in _tensors(value))


def _meta(node: Any) -> Any:
    if node.op == "get_attr":
        return _attribute(node.graph.owning_module, node.target)
    return node.meta.get("val")
