"""Figures 11 and 14 of the grid: what was predicted and what runs took, and runs in which parameters remain."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from _grid import WARM, Cell
from _grid_speedups import MAIN, Pairs
from _page import Page, marked, plt


def figure_11(page: Page, pairs: Pairs) -> None:
    """TotalLatency, simulated and emulated latency."""
    page.text("## Figure 11: predicted and actual latency")
    total_latency(page, pairs)
    page.text(
        "The executor runs each schedule with emulated devices: threads, queues and waits are real, kernels and copies only",
        "take their time. By the run's record an error is a wrong wait or order; by the wall clock, with the dilation",
        "divided out, what this machine takes to wake threads is in it. Both end with the last step: results are neither",
        "made room for nor handed over, as in the predicted latency.",
    )
    measured = [(case, cell) for case, cell in pairs if cell.latency and cell.wall and cell.record]
    left = sum(1 for _, cell in pairs if cell.latency) - len(measured)
    if left:
        page.text(f"{left} of {left + len(measured)} schedules have not been run emulated (yet).")
    rows = []
    for label in dict.fromkeys(case.method.label for case, _ in measured):
        own = [cell for case, cell in measured if case.method.label == label]
        errors: list[Callable[[Cell], float]] = [_error("record"), _error("wall")]
        record, wall = ([error(cell) for cell in own] for error in errors)
        rows.append(
            (
                label,
                str(len(own)),
                f"{statistics.fmean(record):.2g} %",
                f"{statistics.fmean(wall):.2g} %",
                f"{max(wall):.2g} %",
            )
        )
    if not measured:
        return
    page.table(("method", "cases", "error by record", "error by wall clock", "largest by wall clock"), rows)
    figure, axes = plt.subplots(figsize=(3.4, 3.2))
    for label in dict.fromkeys(case.method.label for case, _ in measured):
        own = [cell for case, cell in measured if case.method.label == label]
        axes.loglog([c.latency for c in own], [c.wall for c in own], "o", markersize=3, label=label)
    ends = [min(c.latency or 1 for _, c in measured), max(c.latency or 1 for _, c in measured)]
    axes.loglog(ends, ends, color="gray", linewidth=0.5)
    axes.set_xlabel("predicted, s")
    axes.set_ylabel("emulated, wall clock, s")
    axes.legend(fontsize=6)
    page.picture("figure-11", "Predicted against emulated latency", figure)


def total_latency(page: Page, pairs: Pairs) -> None:
    """The programs' TotalLatency beside what the simulator makes of their schedules."""
    errors: dict[str, list[float]] = {}
    for case, cell in pairs:
        if case.method.label == "SortingHat" and cell.schedule is not None and cell.latency:
            expected = cell.schedule.notes["total_latency_ns"] / 1e9
            errors.setdefault(case.server, []).append((expected / cell.latency - 1) * 100)
    if not errors:
        return
    rows = [
        (server, str(len(own)), f"{statistics.fmean(map(abs, own)):.2f} %", f"{min(own):+.2f} %", f"{max(own):+.2f} %")
        for server, own in errors.items()
    ]
    each = [abs(error) for own in errors.values() for error in own]
    page.text(
        f"TotalLatency, by which SortingHat's program goes, is {statistics.fmean(each):.2f} % from the simulated latency on",
        f"average, {max(each):.2f} % at most. The paper's is 2.97 % from the latency on real GPUs, over all cases of its",
        "three servers. It is above where direct reads are counted as if all devices of the bus read and loaded, and below",
        "where they find the bus in use.",
    )
    page.table(("TotalLatency against simulated", "cases", "average error", "lowest", "highest"), rows)


def _error(measure: str) -> Callable[[Cell], float]:
    return lambda cell: abs(getattr(cell, measure) / (cell.latency or 1) - 1) * 100


def figure_14(page: Page, pairs: Pairs) -> None:
    """Parameters that remain from a run before."""
    page.text(
        "## Figure 14: part of the parameters that remain on the devices",
        "Latency in ms, on v100-server, of schedules made for a cold start; `--resident` makes others, of which none is",
        "slower than one device ([tasks](../tasks/warm_and_several.md)). The paper has gpt2-large and openllama-7b.",
    )
    warm: dict[str, dict[str, Sequence[float]]] = {}
    for case, cell in pairs:
        if case.server == "v100-server" and cell.warm:
            warm.setdefault(f"{case.model} {case.shape}", {})[case.method.label] = cell.warm
    methods = [label for label in MAIN if any(label in found for found in warm.values())]
    faster = {part: _faster(warm, "SortingHat", p) for p, part in enumerate(WARM)}
    if any(of for _, of in faster.values()):
        page.text(
            "SortingHat's schedule is faster than the single GPU "
            + ", ".join(f"in {count} of {of} cases where {part:.0%} remain" for part, (count, of) in faster.items())
            + ". In the paper it is slightly slower at 100 % for gpt2-large, and significantly faster in most other cases."
        )
    page.table(
        ("latency in ms", *methods),
        [
            marked((f"{name}, {part:.0%}", *(f"{found[m][p] * 1e3:.1f}" if m in found else "-" for m in methods)), min)
            for name, found in warm.items()
            for p, part in enumerate(WARM)
        ],
    )
    for model in dict.fromkeys(c.model for c, cell in pairs if cell.warm and c.server == "v100-server"):
        _figure_14_of(page, pairs, model)


def _faster(warm: dict[str, dict[str, Sequence[float]]], label: str, p: int) -> tuple[int, int]:
    """In how many cases a method is faster than one device with this part resident, and how many there are."""
    both = [found for found in warm.values() if label in found and "single" in found]
    return sum(found[label][p] < found["single"][p] for found in both), len(both)


def _figure_14_of(page: Page, pairs: Pairs, model: str) -> None:
    own = [(c, cell) for c, cell in pairs if c.model == model and c.server == "v100-server" and cell.warm]
    shapes = list(dict.fromkeys(c.shape for c, _ in own))
    figure, axes = plt.subplots(1, len(shapes), figsize=(2.1 * len(shapes) + 0.6, 1.9), squeeze=False)
    for n, shape in enumerate(shapes):
        for case, cell in own:
            if case.shape == shape and case.method.label in ("single", "SortingHat", "anytime"):
                values = [seconds * 1e3 for seconds in cell.warm]
                axes[0, n].plot(
                    [part * 100 for part in WARM], values, marker="o", markersize=2, label=case.method.label
                )
        axes[0, n].set_title(shape, fontsize=8)
        axes[0, n].set_ylim(bottom=0)
        axes[0, n].set_xlabel("% remain")
    axes[0, 0].set_ylabel("ms")
    axes[0, -1].legend(fontsize=6)
    page.picture(f"figure-14-{model}", f"Latency of {model} with remaining parameters", figure)
