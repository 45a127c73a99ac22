"""The page of `cpu_latency`: a row a network, a column a method."""

from __future__ import annotations

import statistics
from typing import Any

from _common import circumstances
from _cpu_models import HALVES, SETS

MINE = ("ours", "ours, one stream")
AIM, WORST, FIRST_AIM = 0.90, 1.15, 0.80


def word(cell: dict[str, Any]) -> str:
    """A cell in a line of progress."""
    return f"{cell['ms']:.4g} ms" if "ms" in cell else f"- ({cell.get('failed', 'not measured')})"


def best_peer(row: dict[str, Any], figure: str) -> float | None:
    """The least of the peers' figures."""
    found = [cell[figure] for method, cell in row["methods"].items() if method not in MINE and figure in cell]
    return min(found, default=None)


def ratio(row: dict[str, Any], figure: str = "ms") -> float | None:
    """Ours as compiled for ``cpu``, or else on one stream, over the best peer."""
    mine = next((row["methods"][m][figure] for m in MINE if figure in row["methods"].get(m, {})), None)
    peer = best_peer(row, figure)
    return mine / peer if mine is not None and peer else None


def page(rows: list[dict[str, Any]], threads: int) -> str:
    """The page in Markdown."""
    methods = list(dict.fromkeys(method for row in rows for method in row["methods"]))
    lines = [f"# Latency on {threads} threads, batch 1", "", *circumstances(), ""]
    lines += ["How it is measured stands at the head of `benchmarks/cpu_latency.py`. The best of a row is bold.", ""]
    lines += [*_summary(rows), ""]
    for half in HALVES:
        part = [row for row in rows if row["half"] == half]
        if part:
            lines += [f"## Median latency in ms (10th to 90th percentile), {half} networks", ""]
            lines += [*_table(part, methods, "ms", _spread, "ours / best peer"), ""]
    lines += ["## Process start to first output in s", ""]
    lines += [*_table(rows, methods, "first_s", lambda c: f"{c['first_s']:.2f}", "ours / best peer"), ""]
    lines += ["## Peak memory in MiB", "", *_table(rows, methods, "mib", lambda c: f"{c['mib']:.0f}", ""), ""]
    lines += [*_compilation(rows), *_failures(rows)]
    return "\n".join(lines) + "\n"


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    """Geometric means by half and set."""
    head = ("networks", "measured", "of", "latency, ours / best peer", "worst", f"above {WORST}", "first output")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    parts = [(half, None) for half in HALVES] + [(half, group) for half in HALVES for group in SETS]
    for half, group in parts:
        part = [row for row in rows if row["half"] == half and group in (None, row["set"])]
        found = {row["model"]: value for row in part if (value := ratio(row)) is not None}
        first = [value for row in part if (value := ratio(row, "first_s")) is not None]
        if found:
            worst = max(found, key=lambda name: found[name])
            cells = (
                f"{half}, {group or 'all sets'}", len(found), len(part), f"{statistics.geometric_mean(found.values()):.2f}",
                f"{found[worst]:.2f} ({worst})", sum(value > WORST for value in found.values()),
                f"{statistics.geometric_mean(first):.2f}",
            )  # fmt: skip
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    means = (
        f"Geometric means; aims on the held-out half: {AIM} for latency, none above {WORST}, first output {FIRST_AIM}."
    )
    return [*lines, "", means]


def _spread(cell: dict[str, Any]) -> str:
    return f"{cell['ms']:.4g} ({cell['p10']:.3g}–{cell['p90']:.3g})"


def _table(rows: list[dict[str, Any]], methods: list[str], figure: str, show: Any, last: str) -> list[str]:
    head = ["network", *methods, *([last] if last else [])]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = row["methods"]
        best = min((cell[figure] for cell in cells.values() if figure in cell), default=None)
        line = [row["model"]]
        for method in methods:
            cell = cells.get(method, {})
            text = show(cell) if figure in cell else "–"
            line.append(f"**{text}**" if figure in cell and cell[figure] == best else text)
        if last:
            value = ratio(row, figure)
            line.append("" if value is None else f"{value:.2f}")
        lines.append("| " + " | ".join(line) + " |")
    return lines


def _compilation(rows: list[dict[str, Any]]) -> list[str]:
    """What our artifacts are made from, how long that took, and what was chosen."""
    lines = ["## Our artifacts", "", "| network | made from | compiled in s | chosen |", "|---|---|---|---|"]
    for row in rows:
        for method in MINE:
            cell = row["methods"].get(method, {})
            if "seconds" in cell:
                chosen = cell["chosen"] or "one stream"
                lines.append(f"| {row['model']} | {cell['source']} | {cell['seconds']:.1f} | {chosen} |")
                break
    return [*lines, ""]


def _failures(rows: list[dict[str, Any]]) -> list[str]:
    found = [
        f"- {row['model']}, {method}: {cell['failed']}"
        for row in rows
        for method, cell in row["methods"].items()
        if "failed" in cell
    ]
    return ["## Not measured", "", *found] if found else []
