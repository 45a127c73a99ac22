"""Contents of a problem file or an artifact, and tables of it and of inspected models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from tvm_sched_runtime.problem import Demand, Problem
from tvm_sched_runtime.runtime import load
from tvm_sched_runtime.runtime.tensors import tensor_bytes

from ..relax.inspection import Inspection, Tensor
from .measurement import kernels_for, later_text
from .tables import table
from .units import format_bytes


def _alternatives(problem: Problem) -> dict[str, str]:
    """Count the groups of operators that each alternative computes; empty without variants."""
    if problem.variants is None:
        return {}
    count = Counter(name for group in problem.variants.groups for name in group.alternative_names)
    said = ", ".join(f"{n} {name}" for name, n in count.items())
    return {"variants": f"{len(problem.variants.groups)} groups; alternatives: {said}"}


def inspect_problem(path: Path) -> Inspection:
    """Describe a problem file."""
    problem = Problem.load(path)
    graph = problem.graph
    parameters = [tensor for tensor in graph.tensors if tensor.kind == "parameter"]

    def types(names: Iterable[str]) -> list[Tensor]:
        tensors = [graph.tensors[graph.index.tensor_id[name]] for name in names]
        return [Tensor(tensor.name, tensor.dtype or None, list(tensor.shape)) for tensor in tensors]

    return Inspection(
        model=graph.name,
        kind="problem",
        about={"topology": problem.topology.name, "latencies": problem.costs.source, **_alternatives(problem)},
        inputs=types(tensor.name for tensor in graph.tensors if tensor.kind == "input"),
        outputs=types(graph.outputs),
        symbols=[],
        operators=dict(Counter(operator.kind for operator in graph.operators).most_common()),
        parameters=len(parameters),
        parameter_bytes=sum(tensor.size for tensor in parameters),
        checked="nothing",
        demands={operator.name: operator.demand for operator in graph.operators if operator.demand},
    )


def inspect_artifact(path: Path) -> Inspection:
    """Describe an artifact by its metadata; it has an input for each shape that a plan takes, or one with open sizes."""
    module = load(path)
    info, plans, parameters = module.info(), module.plans(), module.parameters()
    inside = sum(bool(parameter["embedded"]) for parameter in parameters)
    about = {key: str(info[key]) for key in ("topology", "scheduler", "emulated") if info.get(key)}
    about |= {"kernels for": kernels_for(module)} if module.processor() else {}
    about |= {"plans": str(len(plans)), "embedded parameters": f"{inside} of {len(parameters)}"}

    if later := later_text(info):
        about["later segments"] = later

    template = module.template
    symbols = template["symbols"] if template else []
    if template:
        limits = [
            f"{s['name']} from {s.get('low', 0)}{f' to {high}' if (high := s.get('high')) else ''}" for s in symbols
        ]
        about["any size"] = ", ".join(limits)
    if certified := info.get("range"):
        upto = ["x".join(map(str, anchor["sizes"])) for anchor in certified["anchors"]]
        about["schedules for sizes up to"] = ", ".join(upto)
        where = ", ".join(f"{s['name']} from {s['low']} to {s['high']}" for s in certified["symbols"])
        about["certified"] = f"{where}: latency <= {certified['factor']:.4g} x the least possible, at these prices"
    documents = [template, *plans] if template else plans

    def tensors(described: list[dict[str, Any]]) -> list[Tensor]:
        return [Tensor(t["name"], t.get("dtype"), t.get("shape") and list(map(_extent, t["shape"]))) for t in described]

    kernels = Counter(str(step["function"]) for step in plans[0]["steps"] if step.get("function"))
    return Inspection(
        model=str(info.get("name", path.stem)),
        kind="artifact",
        about=about,
        inputs=tensors([argument for document in documents for argument in document["arguments"]]),
        outputs=tensors([output for document in documents for output in module.outputs(document)]),
        symbols=[symbol["name"] for symbol in symbols],
        operators=dict(kernels.most_common()),
        parameters=len(parameters),
        parameter_bytes=sum(map(tensor_bytes, parameters)),
        checked="nothing",
        demands=msgspec.convert((info.get("plans") or [{}])[0].get("demands", {}), dict[str, Demand]),
    )


def _extent(size: Any) -> int | str:
    """Return a size expression of a plan template as a text; sizes and symbols stay as they are."""
    if isinstance(size, (int, str)):
        return size
    operator, *operands = size
    left, right = (f"({text})" if isinstance(each, list) else str(text) for each, text in
                   zip(operands, map(_extent, operands), strict=True))  # fmt: skip
    return f"{operator}({left}, {right})" if operator in ("min", "max") else f"{left} {operator} {right}"


def inspection_tables(inspection: Inspection) -> list[Table]:
    """Return the tables of an inspection; `verdict` returns the lines below them."""
    rows = [("kind", inspection.kind), *inspection.about.items()]
    rows.append(("parameters", f"{inspection.parameters:,}, {format_bytes(inspection.parameter_bytes)}"))
    rows += [("symbols", ", ".join(inspection.symbols))] if inspection.symbols else []
    tables = [table(("model", inspection.model), rows, text_columns=2)]
    for what, tensors in (("input", inspection.inputs), ("output", inspection.outputs)):
        if tensors:
            tables.append(table((what, "shape", "dtype"), [_row(tensor) for tensor in tensors], text_columns=3))
    if inspection.operators:
        tables.append(
            table(("operator", "count"), [(name, f"{count:,}") for name, count in inspection.operators.items()])
        )
    if inspection.demands:
        head = ("operator", "known from", "bound by", "blocks", "threads", "registers", "shared memory")
        launches = [row for item in inspection.demands.items() for row in _launch_rows(*item)]
        tables.append(table(head, launches, text_columns=3))
    return tables


def _row(tensor: Tensor) -> tuple[str, str, str]:
    shape = "?" if tensor.shape is None else f"[{', '.join('?' if d is None else str(d) for d in tensor.shape)}]"
    return tensor.name, shape, tensor.dtype or "?"


def _launch_rows(name: str, demand: Demand) -> list[tuple[str, ...]]:
    """Return a row for each kernel that the operator launches."""
    bound = "memory" if demand.memory_bound else "arithmetic"
    return [
        (name, demand.source, bound, f"{k.blocks:,}", f"{k.threads:,}", str(k.registers), format_bytes(k.shared_memory))
        for k in demand.launches
    ]


def verdict(inspection: Inspection) -> list[str]:
    """Say what would be refused, in sentences."""
    lines = [f"refused: {': '.join(text for text in (each.node, each.reason) if text)}" for each in inspection.refused]
    if inspection.needs:
        lines.append(f"needs: {inspection.needs}")
        if inspection.kind in ("onnx", "torch.export", "relax") and not inspection.refused:
            lines.append("or leave them open: `compile` for CPUs makes an artifact that takes any size")
        if inspection.kind == "onnx" and not inspection.refused:
            lines.append("there is a converter for each operator; with shapes, the import is tried, too")
    elif inspection.checked == "import" and not inspection.refused:
        lines.append("it can be imported")
    return lines
