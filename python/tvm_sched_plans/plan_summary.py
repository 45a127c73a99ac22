"""Plans for other runtimes: their summary and tables."""

from __future__ import annotations

from rich.table import Table

from tvm_sched.report.tables import table
from tvm_sched.report.units import format_bytes, format_ns, format_spread

from .planner import PlanFacts, Row, RuntimePlan

_PHASES = {"prefill": "a pass of prompt", "decode": "a token", "run": "a run"}


class PlanSummary(PlanFacts, frozen=True, kw_only=True):
    """A `RuntimePlan` without the content of its files; ``limits`` says which context, batch and GPUs would fit."""

    gap: float
    limits: list[str]

    @classmethod
    def of(cls, plan: RuntimePlan, limits: list[str]) -> PlanSummary:
        """Summarise a plan."""
        facts = {name: getattr(plan, name) for name in PlanFacts.__struct_fields__}
        return cls(**facts, gap=plan.gap, limits=limits)


def plan_tables(plan: RuntimePlan) -> list[Table]:
    """Return tables of times and memory of our split beside the runtime's own."""
    phases = list(plan.ours.phase_ns)
    splits = (*plan.defaults, *plan.given, plan.ours)
    rows = [
        (
            row.label,
            "yes" if row.fits else "no",
            format_spread(row.total_ns, row.intervals_ns.get("")),
            *(format_spread(row.phase_ns[p], row.intervals_ns.get(p)) for p in phases),
        )
        for row in splits
    ]
    rows.append(("no split is below, at these prices", "", format_ns(plan.lower_bound_ns), *("" for _ in phases)))
    title = f"{plan.model} on {plan.topology} for {plan.runtime}: {plan.measure}"
    places = dict.fromkeys(name for row in splits for name in row.held)
    memory = [(name, *(_memory(row, name) for row in splits)) for name in places]
    return [
        table(("split", "fits", "time", *(_PHASES[phase] for phase in phases)), rows, title),
        table(("memory, of what may be used", *(row.label for row in splits)), memory),
    ]


def _memory(row: Row, place: str) -> str:
    return f"{format_bytes(row.held[place])} of {format_bytes(row.limit[place])}" if place in row.held else ""
