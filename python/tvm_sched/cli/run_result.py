"""Output of ``run``: measured runs compared with the compiled plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .output import Output

if TYPE_CHECKING:
    from ..runtime import ScheduledModule
    from .measure import Measured


def show_run(out: Output, module: ScheduledModule, measured: Measured, files: dict[str, str], warm: bool) -> None:
    """Show the runs compared with the plan, which is always for a cold run, whether they were ``warm`` or not."""
    from ..report.figures import time_by_kind
    from ..report.tables import table
    from ..report.units import format_ns, format_percent, format_time

    statistics, info = measured.statistics, module.info()
    predicted = measured.predicted.latency_ns
    bound = lower_bound_ns(info, measured.plan)
    gap = 1 - bound / predicted if bound is not None and predicted else None
    source = measured.timeline.source
    rows = [(name, format_time(getattr(statistics, name))) for name in ("min", "median", "mean", "p90", "p99", "max")]
    out.show(table((f"{source} latency", f"{statistics.repeat} runs"), rows))
    of = ", cold" if warm else ""
    rows = [*_run_table_rows(module, measured), (f"predicted latency{of}", format_ns(predicted))]
    if bound is not None and gap is not None:
        rows += [(f"lower bound{of}", format_ns(bound)), ("gap", format_percent(gap))]
    out.show(table(("plan", measured.plan["name"]), rows, text_columns=2))  # what is emulated takes lines
    times = [time_by_kind(timeline) for timeline in (measured.predicted, measured.timeline)]
    kinds = {"loading": ("load", "host_read"), "computing": ("kernel",), "copying": ("copy",)}
    split = {name: [sum(t.get(kind, 0) for kind in of) for t in times] for name, of in kinds.items()}
    rows3 = [(name, format_ns(plan), format_ns(real)) for name, (plan, real) in split.items()]
    out.show(table(("time over all lanes", f"predicted{of}", f"{source}, fastest run"), rows3))
    out.result(
        {
            "source": source, "plan": measured.plan["name"], "repeat": statistics.repeat,
            "latency_seconds": {name: getattr(statistics, name) for name in ("min", "median", "mean", "p90", "p99", "max")},
            "predicted_latency_ns": predicted, "lower_bound_ns": bound, "gap": gap,
            "time_ns": {name: {"predicted": plan, source: real} for name, (plan, real) in split.items()},
            "wall_seconds": measured.wall_seconds, "processor": module.processor(), "compiled_with": info, "files": files,
            "outputs": [{"shape": value.shape, "dtype": value.dtype.name} for value in measured.outputs],
        }
    )  # fmt: skip


def _run_table_rows(module: ScheduledModule, measured: Measured) -> list[tuple[str, str]]:
    """What ran, where, made by whom; the inputs and outputs as ``run`` names them."""
    info, plan = module.info(), measured.plan
    others = len(info.get("plans", ())) - 1
    rows = [(what, str(info[what])) for what in ("topology", "scheduler", "emulated") if info.get(what)]
    rows += [("kernels for", kernels_for(module))] if module.processor() else []
    rows += [("plans for other shapes", str(others))] if others > 0 else []
    rows += [("dynamic tail", tail_text(info))] if info.get("tail") else []
    rows += [("input", f"{a['name']} {list(a['shape'])} {a['dtype']}") for a in plan["arguments"]]
    outputs = enumerate(measured.outputs)
    return rows + [("output", f"output_{n} {list(value.shape)} {value.dtype.name}") for n, value in outputs]


def kernels_for(module: ScheduledModule) -> str:
    """The processor whose kernels run here, and which others the artifact has kernels for."""
    levels = module.info().get("needs", {}).get("processor", {}).get("levels", ())
    others = [level["name"] for level in levels if level["name"] != module.processor()]
    return f"{module.processor()} (and, elsewhere, {', '.join(others)})" if others else module.processor()


def tail_text(info: dict[str, Any]) -> str:
    """What TVM's virtual machine runs after the schedule."""
    return f"{sum(info['tail'].values())} operators, not scheduled, not in the latency"


def lower_bound_ns(info: dict[str, Any], plan: dict[str, Any]) -> int | None:
    """Lower bound of the plan's latency, as the compiler noted it down."""
    for noted in info.get("plans", ()):
        if noted.get("name") == plan["name"]:
            return noted.get("lower_bound_ns")
    return None
