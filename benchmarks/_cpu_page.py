"""The page of `cpu_latency`: a row a network, a column a method."""

from __future__ import annotations

import statistics
from importlib import metadata
from typing import Any

from _common import circumstances
from _cpu_missing import longest, missing
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


def page(rows: list[dict[str, Any]], threads: int, notes: str = "") -> str:
    """The page in Markdown; ``notes`` stand at its head."""
    methods = list(dict.fromkeys(method for row in rows for method in row["methods"]))
    lines = [f"# Latency on {threads} threads, batch 1", "", *circumstances(), ""]
    lines += [_versions(), *([notes] if notes else [])]
    lines += [
        "The docstring of `benchmarks/cpu_latency.py` describes the method of measurement. The best of a row is bold."
    ]
    if not any(MINE[0] in row["methods"] for row in rows):
        lines += [
            "Ours is compiled for one stream (`-t cpu1`). Parallel operators (`-t cpu`, the better of both by",
            "measurement) were not measured for this page.",
        ]
    lines += [""]
    lines += [*_summary(rows), ""]
    for half in HALVES:
        part = [row for row in rows if row["half"] == half]
        if part:
            lines += [f"## Median latency in ms (10th to 90th percentile), {half} networks", ""]
            lines += [*_table(part, methods, "ms", _spread, "ours / best peer"), ""]
    lines += ["## Process start to first output in s", ""]
    lines += [*_table(rows, methods, "first_s", lambda c: f"{c['first_s']:.2f}", "ours / best peer"), ""]
    lines += ["## Peak memory of the process in MiB", ""]
    lines += [*_table(rows, methods, "mib", lambda c: f"{c['mib']:.0f}", "ours / best peer"), ""]
    lines += [*_losses(rows), *_compilation(rows), *_failures(rows)]
    return "\n".join(lines) + "\n"


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    """Geometric means by half and set."""
    head = (
        "networks",
        "measured",
        "of",
        "latency, ours / best peer",
        "worst",
        f"above {WORST}",
        "ours is best",
        "first output",
        "memory",
    )
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    parts = [(half, None) for half in HALVES] + [(half, group) for half in HALVES for group in SETS]
    for half, group in parts:
        part = [row for row in rows if row["half"] == half and group in (None, row["set"])]
        found = {row["model"]: value for row in part if (value := ratio(row)) is not None}
        first, memory = (
            [value for row in part if (value := ratio(row, figure)) is not None] for figure in ("first_s", "mib")
        )
        if found:
            worst = max(found, key=lambda name: found[name])
            cells = (
                f"{half}, {group or 'all sets'}", len(found), len(part), f"{statistics.geometric_mean(found.values()):.2f}",
                f"{found[worst]:.2f} ({worst})", sum(value > WORST for value in found.values()),
                sum(value < 1 for value in found.values()), f"{statistics.geometric_mean(first):.2f}",
                f"{statistics.geometric_mean(memory):.2f}",
            )  # fmt: skip
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    means = (
        "Latency, first output and memory: geometric means of ours relative to the best peer; below 1 ours is better. "
        f"Aims on the held-out half: {AIM} for latency, none above {WORST}, first output {FIRST_AIM}."
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


def _losses(rows: list[dict[str, Any]]) -> list[str]:
    """Of each network what ours and the best peer spend their time in, where ours loses first."""
    head = ("network", "best peer", "ours / best peer", "ours takes longer in (ms)", "ours in ms", "the peer in ms")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    measured = [(value, row) for row in rows if (value := ratio(row)) is not None]
    for value, row in sorted(measured, key=lambda each: -each[0]):
        peer = best_peer(row, "ms")
        name = next(method for method, cell in row["methods"].items() if cell.get("ms") == peer)
        mine = next(row["methods"][method] for method in MINE if "ms" in row["methods"].get(method, {}))
        ours, theirs = mine.get("kernels", {}), row["methods"][name].get("kernels", {})
        lost = missing(ours, theirs) if ours and theirs else "no profile"
        lines.append(f"| {row['model']} | {name} | {value:.2f} | {lost} | {longest(ours)} | {longest(theirs)} |")
    return ["## What is missing, and what the peer does", "", _LOSSES, "", *lines, ""] if measured else []


_LOSSES = """Profiles of our artifact and the best peer, made after measuring; sums are a bit above latencies: kernels
by name, how many there are, the four that take longest. Ours also says how far they are from the roofline that the compiler
assumes for a core (`tvm_sched.problem.cpu_topology`). OpenVINO's kernels are named by type and implementation; ONNX
Runtime's `ReorderInput` and `ReorderOutput` are conversions to blocked layouts and back."""


def _versions() -> str:
    """Of the peers' packages."""
    found = []
    for name in ("onnxruntime", "openvino", "torch"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return f"Peers: {', '.join(found)}."


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
