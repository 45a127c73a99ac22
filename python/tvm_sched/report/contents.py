"""What a problem file or an artifact holds, and tables of it and of inspected models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from ..problem import Demand, Problem
from ..relax.inspection import Inspection, Tensor
from ..runtime import load
from ..runtime.tensors import tensor_bytes
from .measurement import kernels_for, tail_text
from .tables import table
from .units import format_bytes


def _ways(problem: Problem) -> dict[str, str]:
    """How many groups of operators can be computed in which ways; nothing where there are none."""
    if problem.variants is None:
        return {}
    count = Counter(way for group in problem.variants.groups for way in group.alternative_names)
    said = ", ".join(f"{n} {way}" for way, n in count.items())
    return {"variants": f"{len(problem.variants.groups)} groups; ways: {said}"}


def inspect_problem(path: Path) -> Inspection:
    """Describe a problem file: what a scheduler is given."""
    problem = Problem.load(path)
    graph = problem.graph
    parameters = [tensor for tensor in graph.tensors if tensor.kind == "parameter"]

    def tensors(names: Iterable[str]) -> list[Tensor]:
        found = [graph.tensors[graph.index.tensor_id[name]] for name in names]
        return [Tensor(tensor.name, tensor.dtype or None, list(tensor.shape)) for tensor in found]

    return Inspection(
        model=graph.name,
        kind="problem",
        about={"topology": problem.topology.name, "latencies": problem.costs.source, **_ways(problem)},
        inputs=tensors(tensor.name for tensor in graph.tensors if tensor.kind == "input"),
        outputs=tensors(graph.outputs),
        symbols=[],
        operators=dict(Counter(operator.kind for operator in graph.operators).most_common()),
        parameters=len(parameters),
        parameter_bytes=sum(tensor.size for tensor in parameters),
        checked="nothing",
        demands={operator.name: operator.demand for operator in graph.operators if operator.demand},
    )


def inspect_artifact(path: Path) -> Inspection:
    """Describe what an artifact says of itself; there is an input for each shape that a plan takes."""
    module = load(path)
    info, plans, parameters = module.info(), module.plans(), module.parameters()
    inside = sum(bool(parameter["embedded"]) for parameter in parameters)
    about = {key: str(info[key]) for key in ("topology", "scheduler", "emulated") if info.get(key)}
    about |= {"kernels for": kernels_for(module)} if module.processor() else {}
    about |= {"plans": str(len(plans)), "embedded parameters": f"{inside} of {len(parameters)}"}

    if info.get("tail"):
        about["dynamic tail"] = f"{tail_text(info)}: {', '.join(info['tail'])}"

    def tensors(found: list[dict[str, Any]]) -> list[Tensor]:
        return [Tensor(t["name"], t.get("dtype"), t.get("shape")) for t in found]

    kernels = Counter(str(step["function"]) for step in plans[0]["steps"] if step.get("function"))
    return Inspection(
        model=str(info.get("name", path.stem)),
        kind="artifact",
        about=about,
        inputs=tensors([argument for plan in plans for argument in plan["arguments"]]),
        outputs=tensors([output for plan in range(len(plans)) for output in module.outputs(plan)]),
        symbols=[],
        operators=dict(kernels.most_common()),
        parameters=len(parameters),
        parameter_bytes=sum(map(tensor_bytes, parameters)),
        checked="nothing",
        demands=msgspec.convert((info.get("plans") or [{}])[0].get("demands", {}), dict[str, Demand]),
    )


def inspection_tables(found: Inspection) -> list[Table]:
    """Tables of an inspection; `verdict` is what is said below them."""
    rows = [("kind", found.kind), *found.about.items()]
    rows.append(("parameters", f"{found.parameters:,}, {format_bytes(found.parameter_bytes)}"))
    rows += [("symbols", ", ".join(found.symbols))] if found.symbols else []
    tables = [table(("model", found.model), rows, text_columns=2)]
    for what, tensors in (("input", found.inputs), ("output", found.outputs)):
        if tensors:
            tables.append(table((what, "shape", "dtype"), [_row(tensor) for tensor in tensors], text_columns=3))
    if found.operators:
        tables.append(table(("operator", "count"), [(name, f"{count:,}") for name, count in found.operators.items()]))
    if found.demands:
        head = ("operator", "known from", "bound by", "blocks", "threads", "registers", "shared memory")
        launches = [row for item in found.demands.items() for row in _launch_rows(*item)]
        tables.append(table(head, launches, text_columns=3))
    return tables


def _row(tensor: Tensor) -> tuple[str, str, str]:
    shape = "?" if tensor.shape is None else f"[{', '.join('?' if d is None else str(d) for d in tensor.shape)}]"
    return tensor.name, shape, tensor.dtype or "?"


def _launch_rows(name: str, demand: Demand) -> list[tuple[str, ...]]:
    """A row for each kernel that the operator launches."""
    bound = "memory" if demand.memory_bound else "arithmetic"
    return [
        (name, demand.source, bound, f"{k.blocks:,}", f"{k.threads:,}", str(k.registers), format_bytes(k.shared_memory))
        for k in demand.launches
    ]


def verdict(found: Inspection) -> list[str]:
    """Say what would be refused, in sentences."""
    lines = [f"refused: {': '.join(text for text in (each.node, each.reason) if text)}" for each in found.refused]
    if found.needs:
        lines.append(f"needs: {found.needs}")
        if found.kind == "onnx" and not found.refused:
            lines.append("there is a converter for each operator; with shapes, the import is tried, too")
    elif found.checked == "import" and not found.refused:
        lines.append("it can be imported")
    return lines
