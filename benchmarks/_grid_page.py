"""Tables and pictures of the grid of `sortinghat.py`, in the order of the paper's figures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from _checked import tally
from _common import circumstances
from _grid import WARM, Case, Cell, Cells
from _grid_decided import HEAD, decided
from _page import Page, marked, plt
from rich.console import Console

Pairs = list[tuple[Case, Cell]]
MAIN = ("single", "EfficientMIP", "DeepPlan", "SortingHat", "anytime")
PAPER = {"EfficientMIP": ("1.16", "1.62"), "DeepPlan": ("1.93", "2.14"), "SortingHat": ("2.28", "2.96")}
"""Average and largest speed-up over a single GPU (TVM) that the paper reports for its three servers."""
PAPER_SERVERS = ("v100-server", "v100-hetero", "a6000-server")
COLOURS = {"kernel": "#3b6fb6", "load": "#8fbf7f", "copy": "#e0903a", "host_read": "#9a6fb0"}
REASONS = """\
Why ours differ from the paper's: latencies here are modelled, not measured on the paper's machines. A kernel takes what
its bytes and operations take on the card's data sheet (the roofline), while the paper measured TVM with cuBLAS; a slower
kernel leaves more to gain by several devices. Bus and link bandwidths are data sheets' with a usual efficiency. Direct
host access occupies the bus here (`docs/model.md`), which the paper's program leaves out: at 32 tokens no schedule is
faster than the buses carry the parameters. Clock and memory of the slow GPUs of the heterogeneous server are modelled,
too. Its single GPU loads everything before the first kernel; so does `single`. A `--quick` run has two of the four models
and two of the four shapes, so its averages are over other cases than the paper's."""


def write_page(
    plan: list[Case], cells: Cells, markdown: Path | None, rows: Path | None, screen: Console, shared: bool = False
) -> None:
    """Everything that there are cells for; ``shared``: other work ran on the machine meanwhile, which the page says."""
    pairs = [(case, cell) for case in plan if (cell := cells.get(case)) is not None]
    for _, cell in pairs:
        if cell.schedule is not None:
            tally(cell.checked)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
    page = Page(markdown)
    page.text("# SortingHat's evaluation with our schedulers")
    page.text(*circumstances(predicted=True))
    limits(page, pairs, len(plan), shared)
    for section in (
        headlines, out_of_order, figure_9, figure_10, figure_11, figure_12, figure_13, figure_14, certificates, programs,
    ):  # fmt: skip
        section(page, pairs)
    page.write()
    screen.print("\n".join(page.lines), markup=False, highlight=False)
    if rows is not None:
        rows.write_text(json.dumps([_row(case, cell) for case, cell in pairs], indent=1) + "\n")


def _row(case: Case, cell: Cell) -> dict[str, object]:
    row = {"server": case.server, "model": case.model, "shape": case.shape, "method": case.method.label}
    return {
        **row,
        **{name: getattr(cell, name) for name in cell.__struct_fields__ if name not in ("spans", "warm", "schedule")},
        "notes": cell.schedule.notes if cell.schedule is not None else {},
    }


def speedups(pairs: Pairs, servers: Iterable[str] = ()) -> dict[str, dict[tuple[str, str, str], float]]:
    """Speed-up over the single device, by method and case; cases without a single device have none."""
    chosen = [(case, cell) for case, cell in pairs if cell.latency and (not servers or case.server in servers)]
    single = {_where(case): cell.latency for case, cell in chosen if case.method.label == "single"}
    found: dict[str, dict[tuple[str, str, str], float]] = {}
    for case, cell in chosen:
        base = single.get(_where(case))
        if base and cell.latency and cell.critical_path:
            found.setdefault(case.method.label, {})[_where(case)] = base / cell.latency
            found.setdefault("Critical Path", {})[_where(case)] = base / cell.critical_path
    return found


def upper_limits(pairs: Pairs, servers: Iterable[str]) -> list[float]:
    """For each case of `anytime` the speed-up over the single device that its lower bound allows."""
    single = {_where(case): cell.latency for case, cell in pairs if case.method.label == "single" and cell.latency}
    return [
        single[_where(case)] / cell.bound
        for case, cell in pairs
        if case.method.label == "anytime" and case.server in servers and cell.bound and _where(case) in single
    ]


def limits(page: Page, pairs: Pairs, planned: int, shared: bool) -> None:
    """What time each method had."""
    parts = {"time_limit": "{:.4g} s", "total_time_limit": "{:.4g} s in all"}
    found: dict[str, list[str]] = {}
    for case, _ in pairs:
        options = case.method.options
        words = [text.format(options[name]) for name, text in parts.items() if name in options]
        if words:
            each = " a submodel, " if len(words) > 1 else ""
            found.setdefault(each.join(words), []).append(case.method.label)
    lines = [f"- {words}: {'; '.join(dict.fromkeys(labels))}." for words, labels in found.items()]
    page.text("Time limits, a case (the paper: 30 s a submodel):", *lines)
    if len(pairs) < planned:
        page.text(
            f"{len(pairs)} of {planned} cases are done; the command goes on with the others, which have no figure here."
        )
    if shared:
        page.text(
            "Other work ran on the machine during the search. Limits are by the clock, so a method had less of the",
            "processors than its seconds say, and not all methods equally less. With more time answers can be better.",
        )


def out_of_order(page: Page, pairs: Pairs) -> None:
    """Cold starts in which `anytime` is behind another method."""
    page.text("### Where `anytime` is behind")
    found = speedups(pairs)
    best = found.get("anytime", {})
    rows = []
    for place, own in sorted(best.items()):
        others = {label: found[label][place] for label in found if label != "Critical Path" and place in found[label]}
        label = max(others, key=lambda label: others[label])
        if others[label] > own:
            server, model, shape = place
            rows.append((f"{model} {shape} on {server}", f"{own:.3f}", f"{others[label]:.3f}", label))
    if not rows:
        page.text(
            "Nowhere: in no cold start that both have is a schedule of another method faster (warm runs: Figure 14)."
        )
        return
    page.text(f"It should be so nowhere; it is in {len(rows)} of {len(best)} cases.")
    page.table(("case", "anytime", "the best", "by"), rows)


def _where(case: Case) -> tuple[str, str, str]:
    return case.server, case.model, case.shape


def _mean_and_most(values: Iterable[float]) -> tuple[str, str]:
    known = list(values)
    return (f"{statistics.fmean(known):.2f}", f"{max(known):.2f}") if known else ("-", "-")


def headlines(page: Page, pairs: Pairs) -> None:
    """Averages beside the paper's."""
    page.text("## Speed-up over a single GPU", REASONS)
    found = speedups(pairs, PAPER_SERVERS)
    rows = []
    for label in ("EfficientMIP", "DeepPlan", "SortingHat", "anytime"):
        own = found.get(label, {})
        rows.append((label, str(len(own)), *_mean_and_most(own.values()), *PAPER.get(label, ("-", "-"))))
    page.table(
        ("V100, V100 (hetero), A6000", "cases", "average", "largest", "paper's average", "paper's largest"), rows
    )
    most = upper_limits(pairs, PAPER_SERVERS)
    if most:
        average, cases = statistics.fmean(most), len(most)
        page.text(
            f"By the lower bounds no schedule's average over the {cases} cases of `anytime` is above {average:.2f}."
        )
    p4d = speedups(pairs, ("p4d",))
    at_32x64 = {label: [v for (_, _, shape), v in cells.items() if shape == "32x64"] for label, cells in p4d.items()}
    for label in ("SortingHat", "anytime"):
        if at_32x64.get(label):
            most = _mean_and_most(at_32x64[label])[1]
            page.text(f"On p4d at 32x64, {label}: up to {most} (the paper predicts up to 3.7 for SortingHat).")


def figure_9(page: Page, pairs: Pairs) -> None:
    """Speed-up of each method in each case."""
    page.text(
        "## Figure 9: each case",
        "Critical Path is the paper's: loads and kernels on the longest path, loads not ahead.",
    )
    labels = [
        label for label in ("Critical Path", *MAIN) if any(c.method.label == label for c, _ in pairs) or label[0] == "C"
    ]
    for server in dict.fromkeys(case.server for case, _ in pairs):
        found = speedups(pairs, (server,))
        places = list(dict.fromkeys(_where(case) for case, _ in pairs if case.server == server))
        page.text(f"### {server}")
        page.table(
            ("speed-up", *labels),
            [
                marked((f"{m} {s}", *(_cell(found, label, (server, m, s), pairs) for label in labels)), max)
                for _, m, s in places
            ],
        )
        names = [f"{m}\n{s}" for _, m, s in places]
        bars = {label: [found.get(label, {}).get(place, 0.0) for place in places] for label in labels}
        page.picture(
            f"figure-9-{server}", f"Speed-up on {server}", _bars(names, bars, "speed-up", dashed="Critical Path")
        )


def _cell(
    found: dict[str, dict[tuple[str, str, str], float]], label: str, place: tuple[str, str, str], pairs: Pairs
) -> str:
    value = found.get(label, {}).get(place)
    if value is not None:
        return f"{value:.2f}"
    cell = next((cell for case, cell in pairs if _where(case) == place and case.method.label == label), None)
    if cell is None or not cell.error:
        return f"{cell.latency * 1e3:.0f} ms" if cell is not None and cell.latency else "-"
    return "OOM" if cell.error.startswith("out of memory") else "failed"


def _bars(names: list[str], bars: dict[str, list[float]], axis: str, dashed: str = "") -> plt.Figure:
    figure, axes = plt.subplots(figsize=(max(4.0, 0.62 * len(names) + 1), 2.4))
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


def figure_10(page: Page, pairs: Pairs) -> None:
    """Timelines of one case."""
    page.text(
        "## Figure 10: timelines", "Blue: kernels; green: loads; orange: peer copies; violet: direct host access."
    )
    best: dict[str, tuple[Case, Cell]] = {}
    for case, cell in pairs:
        shown = case.server == "v100-server" and case.method.label in ("SortingHat", "anytime")
        if cell.spans and shown and not case.method.servers:
            best.setdefault(f"{case.server}-{case.method.label}".lower(), (case, cell))
    for name, (case, cell) in best.items():
        lanes = sorted({lane for lane, *_ in cell.spans}, key=lambda lane: ("/" not in lane, lane))
        figure, axes = plt.subplots(figsize=(8, 0.22 * len(lanes) + 0.6))
        for n, lane in enumerate(lanes):
            for kind, colour in COLOURS.items():
                bars = [(b * 1e3, (e - b) * 1e3) for own, k, b, e in cell.spans if own == lane and k == kind]
                axes.broken_barh(bars, (-n - 0.4, 0.8), facecolors=colour, rasterized=True)  # thousands of spans
        axes.set_yticks([-n for n in range(len(lanes))], lanes, fontsize=6)
        axes.set_xlabel("ms")
        title = f"{case.model} {case.shape} on {case.server}, {case.method.label}"
        axes.set_title(title, fontsize=8)
        page.picture(f"figure-10-{name}", f"Predicted timeline of {title}", figure)


def figure_11(page: Page, pairs: Pairs) -> None:
    """Predicted and emulated latency."""
    page.text(
        "## Figure 11: predicted and emulated latency",
        "The executor runs each schedule with emulated devices: threads, queues and waits are real, kernels and copies only",
        "take their time. By the run's record an error is a wrong wait or order; by the wall clock, with the dilation",
        "divided out, what this machine takes to wake threads is in it. Both end with the last step: results are neither",
        "made room for nor handed over, as in the predicted latency. The paper's error on real GPUs is 2.97 %.",
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
    page.table(("method", "cases", "error by record", "error by wall clock", "largest by wall clock"), rows)
    if not measured:
        return
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


def _error(measure: str) -> Callable[[Cell], float]:
    return lambda cell: abs(getattr(cell, measure) / (cell.latency or 1) - 1) * 100


def _variants(page: Page, pairs: Pairs, name: str, labels: Sequence[str], servers: Sequence[str]) -> None:
    """Speed-ups of variants of one method in parallel."""
    if not any(label in speedups(pairs, servers) for label in labels if label != "SortingHat"):
        page.text("None of these cases were run: `sortinghat` was left out, or its variants.")
    for server in servers:
        found = speedups(pairs, (server,))
        known = [label for label in labels if label in found]
        if len(known) < 2:
            continue
        places = list(found[known[0]])
        rows = [(f"{m} {s}", *(_cell(found, label, (server, m, s), pairs) for label in known)) for _, m, s in places]
        common = [place for place in places if all(place in found[label] for label in known)]
        means = (_mean_and_most(found[label][place] for place in common)[0] if common else "-" for label in known)
        rows.append((f"average of the {len(common)} with all", *means))
        page.table((f"speed-up on {server}", *known), [marked(row, max) for row in rows])
        bars = {label: [found[label].get(place, 0.0) for place in places] for label in known}
        page.picture(
            f"{name}-{server}", f"{name} on {server}", _bars([f"{m}\n{s}" for _, m, s in places], bars, "speed-up")
        )


def _labels_with(pairs: Pairs, *words: str) -> list[str]:
    labels = dict.fromkeys(case.method.label for case, _ in pairs)
    return [label for label in labels if label == "SortingHat" or any(word in label for word in words)]


def figure_12(page: Page, pairs: Pairs) -> None:
    """Search space and search time."""
    page.text("## Figure 12: q, dominators in a submodel, and search time")
    _variants(page, pairs, "figure-12", _labels_with(pairs, "nDom", "time"), ("v100-server", "a6000-server"))


def figure_13(page: Page, pairs: Pairs) -> None:
    """Without contention avoidance, without topology."""
    page.text("## Figure 13: without PCIe contention avoidance, without topology")
    _variants(page, pairs, "figure-13", _labels_with(pairs, "without"), ("v100-server", "v100-hetero"))


def figure_14(page: Page, pairs: Pairs) -> None:
    """Parameters that remain from a run before."""
    page.text(
        "## Figure 14: part of the parameters that remain on the devices",
        "Latency in ms, on v100-server, of schedules made for a cold start; `--resident` makes others.",
    )
    warm: dict[str, dict[str, Sequence[float]]] = {}
    for case, cell in pairs:
        if case.server == "v100-server" and case.model in ("gpt2-large", "openllama-7b") and cell.warm:
            warm.setdefault(f"{case.model} {case.shape}", {})[case.method.label] = cell.warm
    methods = [label for label in MAIN if any(label in found for found in warm.values())]
    page.table(
        ("latency in ms", *methods),
        [
            marked((f"{name}, {part:.0%}", *(f"{found[m][p] * 1e3:.1f}" if m in found else "-" for m in methods)), min)
            for name, found in warm.items()
            for p, part in enumerate(WARM)
        ],
    )
    models = dict.fromkeys(c.model for c, cell in pairs if cell.warm and c.server == "v100-server")
    for model in [model for model in models if model in ("gpt2-large", "openllama-7b")]:
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


def programs(page: Page, pairs: Pairs) -> None:
    """What decided each schedule of SortingHat's."""
    rows = decided(pairs)
    if not rows:
        return
    page.text("## What decided SortingHat's schedules")
    page.text(
        "Each submodel's program starts from a heuristic's assignment, and its solver's answer is taken where that is",
        "better: *solver improved*. Of the programs, *proved* were solved to the end, *limit* have a solution that is not",
        "proved,",
        "*no solution* have none within their time, *not asked* had no time left. The gap is the solver's, 1 - bound /",
        "objective, where it has a bound; TotalLatency is the program's, beside what the simulator makes of the schedule.",
        "The file of `--json` has them for each submodel.",
    )
    page.table(HEAD, rows)


def certificates(page: Page, pairs: Pairs) -> None:
    """How far each method's answers can be from the best there is."""
    page.text("## Gaps to the lower bound", "No schedule is faster than the bound; a gap is 1 - bound / latency.")
    rows = []
    for label in dict.fromkeys(case.method.label for case, _ in pairs):
        own = [cell for case, cell in pairs if case.method.label == label and cell.latency and cell.bound is not None]
        gaps = sorted(1 - (cell.bound or 0) / (cell.latency or 1) for cell in own)
        failed = sum(1 for case, cell in pairs if case.method.label == label and cell.error)
        if gaps:
            median, seconds = statistics.median(gaps), statistics.fmean(cell.found_in for cell in own)
            rows.append((label, str(len(gaps)), f"{median:.1%}", f"{gaps[-1]:.1%}", f"{seconds:.1f} s", str(failed)))
    page.table(("method", "cases", "median gap", "largest gap", "found in", "without a schedule"), rows)
    for case, cell in pairs:
        if cell.error:
            page.text(f"{case.model} {case.shape} on {case.server}, {case.method.label}: {cell.error}")
