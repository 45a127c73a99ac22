"""Speed-ups of the grid's cells over one device, and the bars that show them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from _grid import Case, Cell
from _page import plt

Pairs = list[tuple[Case, Cell]]
MAIN = ("single", "EfficientMIP", "DeepPlan", "SortingHat", "anytime")
PAPER_SERVERS = ("v100-server", "v100-hetero", "a6000-server")
"""Those of the paper's Figure 9."""


def speedups(pairs: Pairs, servers: Iterable[str] = ()) -> dict[str, dict[tuple[str, str, str], float]]:
    """Speed-up over the single device, by method and case; cases without a single device have none."""
    chosen = [(case, cell) for case, cell in pairs if cell.latency and (not servers or case.server in servers)]
    single = {where(case): cell.latency for case, cell in chosen if case.method.label == "single"}
    found: dict[str, dict[tuple[str, str, str], float]] = {}
    for case, cell in chosen:
        base = single.get(where(case))
        if base and cell.latency and cell.critical_path:
            found.setdefault(case.method.label, {})[where(case)] = base / cell.latency
            found.setdefault("Critical Path", {})[where(case)] = base / cell.critical_path
    return found


def upper_limits(pairs: Pairs, servers: Iterable[str]) -> list[float]:
    """For each case of `anytime` the speed-up over the single device that its lower bound allows."""
    single = {where(case): cell.latency for case, cell in pairs if case.method.label == "single" and cell.latency}
    return [
        single[where(case)] / cell.bound
        for case, cell in pairs
        if case.method.label == "anytime" and case.server in servers and cell.bound and where(case) in single
    ]


def where(case: Case) -> tuple[str, str, str]:
    return case.server, case.model, case.shape


def mean_and_most(values: Iterable[float]) -> tuple[str, str]:
    known = list(values)
    return (f"{statistics.fmean(known):.2f}", f"{max(known):.2f}") if known else ("-", "-")


def speedup_of(
    found: dict[str, dict[tuple[str, str, str], float]], label: str, place: tuple[str, str, str], pairs: Pairs
) -> str:
    value = found.get(label, {}).get(place)
    if value is not None:
        return f"{value:.2f}"
    cell = next((cell for case, cell in pairs if where(case) == place and case.method.label == label), None)
    if cell is None or not cell.error:
        return f"{cell.latency * 1e3:.0f} ms" if cell is not None and cell.latency else "-"
    return "OOM" if cell.error.startswith("out of memory") else "failed"


def bars_of(names: list[str], bars: dict[str, list[float]], axis: str, dashed: str = "") -> plt.Figure:
    figure, axes = plt.subplots(figsize=(max(4.0, 0.78 * len(names) + 1), 2.4))
    width = 0.8 / max(len(bars), 1)
    for n, (label, values) in enumerate(bars.items()):
        style = {"fill": False, "linestyle": "--", "edgecolor": "black"} if label == dashed else {}
        axes.bar(
            [k + (n - len(bars) / 2 + 0.5) * width for k in range(len(names))], values, width, label=label, **style
        )
    axes.set_xticks(range(len(names)), names, fontsize=6)
    axes.set_ylabel(axis)
    axes.axhline(1, color="gray", linewidth=0.5)
    axes.legend(fontsize=6, ncols=3, loc="upper left", bbox_to_anchor=(0, 1.25), frameon=False)
    return figure
