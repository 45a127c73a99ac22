"""The report of a pipeline plan: costs of the stages, batches over time, and the possible improvement."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tvm_sched_runtime.pipeline import PipelinePlan, Stage
from tvm_sched_runtime.pipeline.pipeline_simulator import PipelineRun
from tvm_sched_runtime.problem import Problem

from ..cost_model.uncertainty import PipelineIntervals, pipeline_intervals
from .chart_data import pipeline_chart
from .page import write_page
from .sections import NONE, cards, certificate_cards, chart_tools, table, timeline_chart
from .stages import PARTS, certificate_sentence
from .units import between_text, format_bytes, format_ns


def write_pipeline_report(
    path: str | os.PathLike[str],
    problem: Problem,
    plan: PipelinePlan,
    predicted: PipelineRun,
    others: Sequence[PipelineRun] = (),
    *,
    title: str = "",
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write the report of a plan.

    Parameters
    ----------
    problem, plan
        A plan of the problem that `tvm_sched.pipeline.verify` accepts.
    predicted : PipelineRun
        The plan's simulation.
    others : sequence of PipelineRun
        Runs, emulated or measured, that are drawn below the prediction.
    path, title, options
        As in `write_page`.

    Raises
    ------
    TvmSchedError
        plotly is missing.
    """
    runs = [predicted, *others]
    write_page(
        path,
        title or f"{problem.graph.name} as a pipeline on {problem.topology.name}",
        [problem],
        summary=_summary(problem, plan, runs),
        entries=[_batches(runs)],
        charts=[pipeline_chart(problem, plan, [run.timeline for run in runs])],
        options={**_made_by(plan), **(options or {})},
    )


def _summary(problem: Problem, plan: PipelinePlan, runs: Sequence[PipelineRun]) -> str:
    intervals = pipeline_intervals(problem, plan)
    return f"""<h2>Stages</h2>
<p class="certificate">{escape(certificate_sentence(plan, runs[0].steady_ns, intervals))}</p>
{_cards(plan, runs, intervals)}
{_stage_table(problem, plan)}
<p class="hint legend">{_legend(plan)}</p>"""


def _cards(plan: PipelinePlan, runs: Sequence[PipelineRun], intervals: PipelineIntervals | None) -> str:
    every, alone = (f", {between_text(each)}" if each else "" for each in intervals or (None, None))
    shown = [("Bottleneck", format_ns(plan.cost_ns), f"between batches, in turn with transfers{every}")]
    for run in runs:
        note = "between batches, transfers beside kernels"
        source = "predicted" if run.timeline.source == "simulated" else run.timeline.source
        shown.append((f"{source.capitalize()} period", format_ns(round(run.steady_ns)), note))
    shown.append(("Latency", format_ns(plan.latency_ns), f"of a batch alone{alone}"))
    return cards([*shown, *certificate_cards(plan.certificate, plan.seconds, plan.partitioner)])


def _stage_table(problem: Problem, plan: PipelinePlan) -> str:
    head = ["Stage", "Device", "Operators", "Input", "Work", "Overflow", "Output", "Cost", "Parameters", "Activations",
            "Memory", ""]  # fmt: skip
    rows = []
    for s, stage in enumerate(plan.stages):
        memory = problem.topology.devices[problem.topology.device_id[stage.device]].memory
        rows.append(
            [
                f"{s}",
                escape(stage.device),
                f'<span title="{escape(", ".join(stage.operators))}">{len(stage.operators):,}</span>',
                *(format_ns(getattr(stage, part.field)) if getattr(stage, part.field) else NONE for part in PARTS),
                f"<b>{format_ns(stage.cost_ns)}</b>",
                format_bytes(stage.parameter_bytes),
                format_bytes(stage.peak_bytes),
                format_bytes(memory),
                _bar(stage, plan),
            ]
        )
    return table(head, rows, "summary stages", numbers=2)


def _bar(stage: Stage, plan: PipelinePlan) -> str:
    """Draw a stage's parts next to each other, the bottleneck as long as the column, and a line at the lower bound."""
    longest = max(plan.cost_ns, 1)
    pieces = "".join(
        f'<i class="{part.name}" style="width:{100 * getattr(stage, part.field) / longest:.3f}%" '
        f'title="{part.name}: {format_ns(getattr(stage, part.field))}"></i>'
        for part in PARTS
        if getattr(stage, part.field)
    )
    bound = plan.certificate.lower_bound_ns if plan.certificate else 0
    line = f'<u style="left:{100 * bound / longest:.3f}%" title="lower bound: {format_ns(bound)}"></u>' if bound else ""
    return f'<span class="parts">{pieces}{line}</span>'


def _legend(plan: PipelinePlan) -> str:
    keys = [f'<span class="key {part.name}"></span>{part.name}: {part.meaning}' for part in PARTS]
    if plan.certificate:
        keys.append('<span class="key bound"></span>lower bound of the dearest stage')
    return " · ".join(keys)


def _batches(runs: Sequence[PipelineRun]) -> str:
    count = len(runs[0].done_ns)
    return f"""<section class="entry" data-entry="0"><h2>Batches <small>{count} of them, one after the other</small></h2>
<div class="tools">{chart_tools()}</div>
{timeline_chart("Timeline of the batches")}</section>"""


def _made_by(plan: PipelinePlan) -> dict[str, Any]:
    said = {f"{plan.partitioner}: {name}": value for name, value in plan.options.items()}
    return {"partitioner": plan.partitioner, **said}
