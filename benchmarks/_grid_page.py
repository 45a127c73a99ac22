"""Tables and pictures of the grid of `sortinghat.py`, in the order of the paper's figures."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path

from _checked import tally
from _common import circumstances
from _grid import Case, Cell, Cells
from _grid_ablation import figure_12, figure_13
from _grid_decided import programs
from _grid_runs import figure_11, figure_14
from _grid_speedups import MAIN, PAPER_SERVERS, Pairs, bars_of, mean_and_most, speedup_of, speedups, upper_limits, where
from _page import Page, marked, plt
from rich.console import Console

PAPER = {"EfficientMIP": ("1.16", "1.62"), "DeepPlan": ("1.93", "2.14"), "SortingHat": ("2.28", "2.96")}
"""Average and largest speed-up over a single GPU (TVM) that the paper reports for its three servers."""
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


def limits(page: Page, pairs: Pairs, planned: int, shared: bool) -> None:
    """What time each method had."""
    parts = {"time_limit": "{:.4g} s", "total_time_limit": "{:.4g} s in all", "work": "{:.4g} s of an idle core's work"}
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
    made = Counter(cell.made or "an unknown commit" for _, cell in pairs)
    if len(made) > 1:
        page.text("Rows are of several versions: " + "; ".join(f"{n} of {name}" for name, n in made.items()) + ".")
    elif made:
        page.text(f"All rows were computed at {next(iter(made))}.")
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


def headlines(page: Page, pairs: Pairs) -> None:
    """Averages beside the paper's."""
    page.text("## Speed-up over a single GPU", REASONS)
    found = speedups(pairs, PAPER_SERVERS)
    rows = []
    for label in ("EfficientMIP", "DeepPlan", "SortingHat", "anytime"):
        own = found.get(label, {})
        rows.append((label, str(len(own)), *mean_and_most(own.values()), *PAPER.get(label, ("-", "-"))))
    page.table(
        ("V100, V100 (hetero), A6000", "cases", "average", "largest", "paper's average", "paper's largest"), rows
    )
    by_shape(page, found)
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
            most = mean_and_most(at_32x64[label])[1]
            page.text(f"On p4d at 32x64, {label}: up to {most} (the paper predicts up to 3.7 for SortingHat).")


def by_shape(page: Page, found: dict[str, dict[tuple[str, str, str], float]]) -> None:
    """Averages over the cases that SortingHat has, by kind of model and shape, as the paper's text speaks of them."""
    own = found.get("SortingHat", {})
    kinds = list(dict.fromkeys((model.partition("-")[0].upper(), shape) for _, model, shape in own))
    labels = [label for label in ("EfficientMIP", "DeepPlan", "SortingHat", "anytime") if label in found]
    rows = []
    for kind, shape in kinds:
        places = [p for p in own if p[1].upper().startswith(kind) and p[2] == shape]
        cells = []
        for label in labels:
            known = [found[label][p] for p in places if p in found[label]]
            cells.append(f"{statistics.fmean(known):.2f}" if len(known) == len(places) else "-")
        rows.append((f"{kind} {shape}", str(len(places)), *cells))
    if rows:
        page.text(
            "Where SortingHat has a schedule, averages by kind of model and shape. The paper's Figure 9 has bars without",
            "numbers; its text says that OpenLLaMA at 1x1024 gains most (up to 2.96), that at 1x32 SortingHat is little",
            "above DeepPlan and EfficientMIP at the Critical Path or below, and that OpenLLaMA at 32x64 gains more than",
            "GPT-2.",
        )
        page.table(("V100, V100 (hetero), A6000", "cases", *labels), rows)


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
        places = list(dict.fromkeys(where(case) for case, _ in pairs if case.server == server))
        page.text(f"### {server}")
        page.table(
            ("speed-up", *labels),
            [
                marked((f"{m} {s}", *(speedup_of(found, label, (server, m, s), pairs) for label in labels)), max)
                for _, m, s in places
            ],
        )
        names = [f"{m}\n{s}" for _, m, s in places]
        bars = {label: [found.get(label, {}).get(place, 0.0) for place in places] for label in labels}
        page.picture(
            f"figure-9-{server}", f"Speed-up on {server}", bars_of(names, bars, "speed-up", dashed="Critical Path")
        )


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
