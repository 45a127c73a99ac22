"""Tables and pictures of the grid of `sortinghat.py`, in the order of the paper's figures."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from _checked import tally
from _grid import WARM, Case, Cell, Cells, make_problem
from _result_page import Page, marked, pyplot, write_json

from tvm_sched_bench.testing import fair_latency
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.schedule import evaluate

Pairs = list[tuple[Case, Cell]]
Place = tuple[str, str, str]
"""Server, model and shape of a cell."""
FUSED = "anytime, fused kernels"
OVERLAPPED = "pipelined"
"""One GPU that computes while it loads, so that what overlap alone gains is seen."""
SHORT = "SortingHat, short"
"""SortingHat with the limits of its variants in Figures 12 and 13."""
MAIN = ("single", OVERLAPPED, "EfficientMIP", "DeepPlan", "SortingHat", FUSED, "anytime")
LIKE = (
    ("fused kernels", "SortingHat", FUSED),
    ("all parts apart", "SortingHat, apart", "anytime, apart"),
    ("HEFT's choice", "SortingHat, HEFT's variants", "anytime, HEFT's variants"),
)
"""Kernels that both methods had, and the two methods."""
PAPER_SERVERS = ("v100-server", "v100-hetero", "a6000-server")
"""Those of the paper's Figure 9."""
PAPER = {"EfficientMIP": ("1.16", "1.62"), "DeepPlan": ("1.93", "2.14"), "SortingHat": ("2.28", "2.96")}
"""Average and largest speed-up over a single GPU (TVM) that the paper reports for its three servers."""
COLOURS = {"kernel": "#3b6fb6", "load": "#8fbf7f", "copy": "#e0903a", "host_read": "#9a6fb0"}
HEAD = (
    "case", "method", "limit", "submodels", "programs", "solver improved", "proved", "alike", "limit", "no solution",
    "not asked",
    "median gap", "solver", "found in", "TotalLatency", "simulated",
)  # fmt: skip
"""Of the table of what decided each schedule."""
REASONS = """\
Why ours differ from the paper's: latencies here are modelled, not measured on the paper's machines. By `roofline` a kernel
takes what its bytes and operations take on the card's data sheet, by `learned` what the [shipped model](../cost_model.md)
predicts from measured kernels of other cards, while the paper measured TVM with cuBLAS. Bus and link bandwidths are data
sheets' with a usual efficiency. Direct host access occupies the bus here (`docs/model.md`), which the paper's program
leaves out: at 32 tokens no schedule is faster than the buses carry the parameters. Clock and memory of the slow GPUs of
the heterogeneous server are modelled, too. Its single GPU loads everything before the first kernel; so does `single`. A
`--quick` run has two of the four models and two of the four shapes, so its averages are over other cases than the
paper's."""

PRICES = """\
The roofline reads each weight once over the bus, however many rows it is multiplied with. By the learned prices a kernel
with direct host access reads it once for each tile of rows, in 1.75 times a copy's time
(`tvm_sched.cost_model.host_rereads`), and occupies the bus for all readings. So a schedule that was made by the roofline may
read directly what should be loaded. DeepPlan chooses between loading and direct host access for each operator, so its
schedules show it most plainly. Schedules with variants (`anytime`) were not priced again. Direct reads are operators with
direct host access, a schedule in the mean."""


def write_page(
    plan: list[Case], cells: Cells, markdown: Path | None, rows: Path | None = None, shared: str | None = None
) -> None:
    """Write the page of all finished cells.

    With several cost models in the plan, the page is of the first, with the speed-ups by the last beside it, and with the
    sections for which only the last has rows. Of the first, cells count that have all methods.

    Parameters
    ----------
    shared : str, optional
        Cost model whose cells were computed while other work ran on the machine; empty: all.
    """
    pairs = [(case, cell) for case in plan if (cell := cells.get(case)) is not None]
    for _, cell in pairs:
        if cell.schedule is not None:
            tally(cell.checked)
    *others, last = (
        [pair for pair in pairs if pair[0].costs == name] for name in dict.fromkeys(case.costs for case in plan)
    )
    missing = {where(case) for case in plan if case.costs == plan[0].costs and cells.get(case) is None}
    main = [pair for pair in others[0] if where(pair[0]) not in missing] if others else last
    places = {where(case) for case, _ in main}
    beside = [pair for pair in last if where(pair[0]) in places] if others else []
    page = Page("SortingHat's evaluation with our schedulers", markdown, predicted=not others)
    limits(page, pairs, len(plan), shared)
    if others:
        page.text(
            f"Speed-ups are by the prices of `{plan[0].costs}`, over the {len(places)} cells that have all methods by them.",
            f"Beside them, in brackets or in columns of their own, are those of the same cells by `{plan[-1].costs}`.",
            "No latency was measured on these servers.",
        )
    headlines(page, main, beside)
    if others:
        prices(page, main, beside)
    out_of_order(page, main)
    figure_1c(page, main)
    figure_9(page, main, beside)
    for section in (figure_10, figure_14, certificates, programs):
        section(page, main)
    if others:
        page.text(
            f"# Sections by `{plan[-1].costs}`", "What follows was computed, or run emulated, by these prices alone."
        )
    for section in (like_with_like, figure_11, figure_12, figure_13):
        section(page, last)
    page.write()
    write_json(rows, [_figures(case, cell) for case, cell in pairs])


def prices(page: Page, main: Pairs, beside: Pairs) -> None:
    """Say what the prices of ``main`` change: averages and direct reads, and schedules of ``beside`` at these prices."""
    name, other = (pairs[0][0].costs for pairs in (main, beside))
    found, before = speedups(main), speedups(beside)
    places = list(dict.fromkeys(where(case) for case, _ in main))
    again = repriced(beside, main, places)
    labels = [label for label in MAIN[1:] if label in found and label in before]
    page.text(f"## What the prices of `{name}` change, and why", PRICES)
    lines, cells, said = [], list[Sequence[str]](), list[str]()
    for label in labels:
        reads = [_direct_reads(pairs, label) for pairs in (main, beside)]
        both = [place for place in places if place in found[label] and place in before[label]]
        of = [found[label], before[label], again.get(label, {})]
        means = [mean_and_most(values[place] for place in both if place in values)[0] for values in of]
        lines.append([label, len(both), *means, *(f"{statistics.fmean(r.values()):.0f}" if r else "-" for r in reads)])
        if means[2] != "-":
            said.append(f"{label} {means[2]} and {means[0]}")
        for place in both:
            values = [f"{each[place]:.2f}" if place in each else "-" for each in of]
            cells.append([*place, label, *values, *(r.get(place, "-") for r in reads)])
    head = [name, other, f"schedules of {other} at prices of {name}", f"direct reads, {name}", f"direct reads, {other}"]
    page.table(["method", "cases", *head], lines)
    page.text(
        f"Averages at the prices of `{name}`, of schedules made by `{other}` and of those made for these prices: "
        + f"{'; '.join(said)}."
    )
    single = [{where(c): cell.latency for c, cell in of if c.method.label == "single"} for of in (main, beside)]
    longer = [own / base for place in places if (own := single[0].get(place)) and (base := single[1].get(place))]
    ahead = {
        label: [sum(of["SortingHat"][p] > of[label][p] for p in places if p in of.get("SortingHat", {}) and p in of[label])
                for of in (found, before)]
        for label in labels if label != "SortingHat"
    }  # fmt: skip
    page.text(
        f"`single` takes {statistics.median(longer):.2f} times as long by `{name}` as by `{other}` (median). SortingHat is "
        "ahead of "
        + ", ".join(f"{label} in {own} cells ({old} by `{other}`)" for label, (own, old) in ahead.items())
        + "."
    )
    page.data(["server", "model", "shape", "method", *head], cells)


def repriced(made: Pairs, priced: Pairs, places: Iterable[Place]) -> dict[str, dict[Place, float]]:
    """Return the speed-ups at some prices of schedules that were made with others, for methods without variants."""
    single = {where(case): (case, cell) for case, cell in priced if case.method.label == "single"}
    found: dict[str, dict[Place, float]] = {}
    for place in (place for place in places if place in single):
        case, base = single[place]
        own = [(other, cell.schedule) for other, cell in made if where(other) == place and not other.method.variants]
        schedules = {other.method.label: schedule for other, schedule in own if schedule is not None}
        if base.latency is None or not schedules:
            continue
        problem = make_problem(case.model, case.batch, case.tokens, case.server, costs=case.costs)
        for label, schedule in schedules.items():
            found.setdefault(label, {})[place] = base.latency / (evaluate(problem, schedule)[0] / 1e9)
    return found


def _direct_reads(pairs: Pairs, label: str) -> dict[Place, int]:
    """Return how many operators of a method's schedules read host memory directly."""
    return {
        where(case): sum(placement.direct_host_access for placement in cell.schedule.placements)
        for case, cell in pairs
        if case.method.label == label and cell.schedule is not None
    }


def _figures(case: Case, cell: Cell) -> dict[str, object]:
    row = {"server": case.server, "model": case.model, "shape": case.shape, "method": case.method.label}
    return {
        **row,
        **{name: getattr(cell, name) for name in cell.__struct_fields__ if name not in ("spans", "warm", "schedule")},
        "notes": cell.schedule.notes if cell.schedule is not None else {},
    }


def limits(page: Page, pairs: Pairs, planned: int, shared: str | None) -> None:
    """Add the time limits of each method."""
    several = len({case.costs for case, _ in pairs}) > 1
    parts = {"time_limit": "{:.4g} s", "total_time_limit": "{:.4g} s in all", "work": "{:.4g} s of an idle core's work"}
    found: dict[str, list[str]] = {}
    for case, _ in pairs:
        options = case.method.options
        words = [text.format(options[name]) for name, text in parts.items() if name in options]
        if words:
            each = " a submodel, " if len(words) > 1 else ""
            by = f" by {case.costs}" if several else ""
            found.setdefault(each.join(words), []).append(f"{case.method.label}{by}")
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
    if shared is not None:
        by = f" by `{shared}`; the others had a core to themselves" if shared else ""
        page.text(
            f"Other work ran on the machine during the search{by}. A method whose limit is in seconds had less of the",
            "processors than they say; with more time its answers can be better. A limit of work does not depend on that.",
        )


def out_of_order(page: Page, pairs: Pairs) -> None:
    """Add the cold starts in which another method beats `anytime`."""
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


def headlines(page: Page, pairs: Pairs, beside: Pairs) -> None:
    """Add the average speed-ups beside the paper's, and beside those of the same cells by other prices."""
    page.text("## Speed-up over a single GPU", REASONS)
    found, other = speedups(pairs, PAPER_SERVERS), speedups(beside, PAPER_SERVERS)

    def row(name: str, label: str, servers: Sequence[str] = PAPER_SERVERS) -> list[str]:
        own, by = ([v for p, v in of.get(label, {}).items() if p[0] in servers] for of in (found, other))
        columns = [*mean_and_most(own), *(mean_and_most(by) if beside else ())]
        return [name, str(len(own)), *columns, *PAPER.get(label, ("-", "-"))]

    rows = []
    for label in [label for label in MAIN[1:] if label in found or label != OVERLAPPED]:
        rows.append(row(label, label))
        if label == "EfficientMIP" and any(place[0] != "v100-hetero" for place in found.get(label, {})):
            rows.append(row(f"{label}, without V100 (hetero) as in the paper", label, ("v100-server", "a6000-server")))
    by = [f"{name}, {beside[0][0].costs}" for name in ("average", "largest") if beside]
    head = ("V100, V100 (hetero), A6000", "cases", "average", "largest", *by, "paper's average", "paper's largest")
    page.table(head, rows)
    if OVERLAPPED in found:
        page.text(f"*{OVERLAPPED}* is one GPU that computes while it loads: what overlap alone gains.")
    page.text(
        one_gpu(pairs),
        "The paper's single GPU with PyTorch, its transfers and kernels alone, is not here: no price of ours is of",
        "PyTorch's kernels on these cards.",
    )
    gains(page, found)
    by_shape(page, found, other)
    behind(page, speedups(pairs))
    most = upper_limits(pairs, PAPER_SERVERS)
    if most:
        average, cases = statistics.fmean(most), len(most)
        page.text(
            f"By the lower bounds no schedule's average over the {cases} cases of `anytime` is above {average:.2f}."
        )
    p4d_at_32x64(page, pairs)


def one_gpu(pairs: Pairs) -> str:
    """Count the schedules of EfficientMIP that put all operators on one GPU."""
    made = [cell.schedule for case, cell in pairs if case.method.label == "EfficientMIP" and cell.schedule is not None]
    alone = sum(len({placement.device for placement in schedule.placements}) == 1 for schedule in made)
    return f"EfficientMIP uses one GPU in {alone} of {len(made)} cases, so there its gain is overlap, too."


def gains(page: Page, found: dict[str, dict[tuple[str, str, str], float]]) -> None:
    """Say what the search gains on equal kernels, and what the choice among variants adds."""
    if FUSED in found and "anytime" in found and "SortingHat" in found:
        own, fused, every = (mean_and_most(found[label].values())[0] for label in ("SortingHat", FUSED, "anytime"))
        page.text(
            f"SortingHat and *{FUSED}* have the same graph and kernels: on these SortingHat averages {own}, `anytime` "
            f"{fused}. `anytime` may also choose variants, tensor splits and parts of fused kernels apart, that "
            f"SortingHat does not know; that adds the rest to {every}."
        )


def like_with_like(page: Page, pairs: Pairs) -> None:
    """Add SortingHat beside `anytime` on equal kernels, and then with `anytime`'s own choice."""
    found = speedups(pairs)
    page.text(
        "## Like beside like",
        "In each column both methods have the same graph with the same kernels; a cell has SortingHat's speed-up over a",
        "single GPU with fused kernels, then `anytime`'s. *All parts apart* computes what OpenLLaMA's products fuse as",
        "kernels of their own; GPT-2 has no such products. *HEFT's choice* are the variants that HEFT chooses, fixed for",
        "both. Fixed variants were computed on one Latin square, each model once at each shape. SortingHat's limits are",
        "by the clock, and the load on the 2 cores was about 13 then; `anytime`'s limit is work.",
    )
    places = [p for p in found.get("SortingHat", {}) if any(p in found.get(own, {}) for _, own, _ in LIKE[1:])]
    rows = []
    for place in sorted(places):
        cells = []
        for _, own, ours in LIKE:
            values = [found.get(label, {}).get(place) for label in (own, ours)]
            cells.append(", ".join("-" if value is None else f"{value:.2f}" for value in values))
        choice = found.get("anytime", {}).get(place)
        rows.append((f"{place[1]} {place[2]} on {place[0]}", *cells, f"{choice:.2f}" if choice else "-"))
    if not rows:
        page.text("None of these cases were run.")
        return
    averages = []
    for _, own, ours in LIKE:
        both = [p for p in places if p in found.get(own, {}) and p in found.get(ours, {})]
        means = [mean_and_most(found[label][p] for p in both)[0] for label in (own, ours)] if both else ["-", "-"]
        averages.append(f"{', '.join(means)} ({len(both)})")
    all_of = [found["anytime"][p] for p in places if p in found.get("anytime", {})]
    rows.append(("average (cases)", *averages, f"{mean_and_most(all_of)[0]} ({len(all_of)})"))
    page.table(("SortingHat, anytime", *(kernels for kernels, _, _ in LIKE), "anytime chooses"), rows)
    for kernels, own, ours in LIKE:
        both = [p for p in found.get(own, {}) if p in found.get(ours, {})]
        ahead = [p for p in both if found[own][p] > found[ours][p]]
        cases = ", ".join(
            f"{m} {s} on {v} ({found[own][v, m, s]:.3f}, {found[ours][v, m, s]:.3f})" for v, m, s in ahead
        )
        page.text(
            f"- {kernels}: SortingHat is ahead in {len(ahead)} of {len(both)} cases{': ' if ahead else ''}{cases}."
        )


def behind(page: Page, found: dict[str, dict[tuple[str, str, str], float]]) -> None:
    """Name the cases in which SortingHat is behind the methods that the paper has it always ahead of."""
    own = found.get("SortingHat", {})
    for label in ("DeepPlan", "EfficientMIP"):
        both = [place for place in own if place in found.get(label, {})]
        worse = [p for p in both if round(found[label][p], 2) > round(own[p], 2)]
        if both:
            names = ", ".join(
                f"{m} {s} on {v} ({own[v, m, s]:.2f} against {found[label][v, m, s]:.2f})" for v, m, s in worse
            )
            page.text(
                f"SortingHat is behind {label} in {len(worse)} of {len(both)} cases, where the paper has none"
                + (f": {names}." if worse else ".")
            )


def p4d_at_32x64(page: Page, pairs: Pairs) -> None:
    """Say what the bound allows on p4d at 32x64, where the paper predicts 3.7."""
    found = speedups(pairs, ("p4d",))
    most = {label: max(v for (_, _, s), v in of.items() if s == "32x64") for label, of in found.items()
            if any(s == "32x64" for _, _, s in of)}  # fmt: skip
    single = {where(case): cell.latency for case, cell in pairs if case.method.label == "single" and cell.latency}
    bounds = [
        single[where(case)] / cell.bound
        for case, cell in pairs
        if case.method.label == FUSED and (case.server, case.shape) == ("p4d", "32x64") and cell.bound
    ]
    if "SortingHat" not in most or not bounds:
        return
    page.text(
        f"On p4d at 32x64 SortingHat reaches up to {most['SortingHat']:.2f}, where the paper predicts up to 3.7. By the "
        f"lower bound no schedule of our fused kernels is above {max(bounds):.2f}: on eight GPUs the kernels on the longest "
        "path decide, whose graph has fused what the paper's TVM may leave as branches, and "
        f"`anytime` on them reaches {most[FUSED]:.2f}."
        + (
            f" With HEFT's variants SortingHat reaches {most[LIKE[2][1]]:.2f}, and `anytime` {most[LIKE[2][2]]:.2f}."
            if LIKE[2][1] in most and LIKE[2][2] in most
            else ""
        )
    )


def by_shape(page: Page, found: dict[str, dict[Place, float]], other: dict[str, dict[Place, float]]) -> None:
    """Add averages over SortingHat's cases by model family and shape, as in the paper's text."""
    own = found.get("SortingHat", {})
    kinds = list(dict.fromkeys((model.partition("-")[0].upper(), shape) for _, model, shape in own))
    labels = [label for label in MAIN[1:] if label in found]
    rows = []
    for kind, shape in kinds:
        places = [p for p in own if p[1].upper().startswith(kind) and p[2] == shape]
        cells = []
        for label in labels:
            known, by = ([of[p] for p in places if p in of] for of in (found[label], other.get(label, {})))
            cell = f"{statistics.fmean(known):.2f}" if len(known) == len(places) else "-"
            cells.append(f"{cell} ({statistics.fmean(by):.2f})" if len(by) == len(places) else cell)
        rows.append((f"{kind} {shape}", str(len(places)), *cells))
    if rows:
        page.text(
            "Where SortingHat has a schedule, averages by kind of model and shape. The paper's Figure 9 has bars without",
            "numbers; its text says that OpenLLaMA at 1x1024 gains most (up to 2.96), that at 1x32 SortingHat is little",
            "above DeepPlan and EfficientMIP at the Critical Path or below, and that OpenLLaMA at 32x64 gains more than",
            "GPT-2.",
        )
        page.table(("V100, V100 (hetero), A6000", "cases", *labels), rows)


def figure_1c(page: Page, pairs: Pairs) -> None:
    """Loads beside kernels on one GPU."""
    rows = [
        (f"{case.model} {case.shape}", f"{(cell.warm[0] - cell.warm[-1]) * 1e3:.0f}", f"{cell.warm[-1] * 1e3:.0f}")
        for case, cell in pairs
        if case.method.label == "single" and case.server == "v100-server" and cell.warm
    ]
    if not rows:
        return
    longer = sum(float(load) > float(kernels) for _, load, kernels in rows)
    page.text(
        "## Figure 1(c): loads and kernels on one V100",
        f"Loading takes longer than the kernels in {longer} of {len(rows)} cases; in the paper in all.",
    )
    page.table(("ms", "loads", "kernels"), rows)


def figure_9(page: Page, pairs: Pairs, beside: Pairs) -> None:
    """Speed-up of each method in each case, by other prices in brackets."""
    other = speedups(beside)
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
        rows = []
        for _, m, s in places:
            own = marked((f"{m} {s}", *(speedup_of(found, label, (server, m, s), pairs) for label in labels)), max)
            by = [other.get(label, {}).get((server, m, s)) for label in labels]
            rows.append([own[0], *(f"{a} ({b:.2f})" if b else a for a, b in zip(own[1:], by, strict=True))])
        page.table(("speed-up", *labels), rows)
        names = [f"{m}\n{s}" for _, m, s in places]
        bars = {label: [found.get(label, {}).get(place, 0.0) for place in places] for label in labels}
        page.picture(
            f"figure-9-{server}", f"Speed-up on {server}", bars_of(names, bars, "speed-up", dashed="Critical Path")
        )


def figure_10(page: Page, pairs: Pairs) -> None:
    """Timelines of one case."""
    page.text("## Figure 10: timelines")
    by_device(page, pairs)
    best: dict[str, tuple[Case, Cell]] = {}
    for case, cell in pairs:
        shown = case.server == "v100-server" and case.method.label in ("SortingHat", "anytime")
        if cell.spans and shown and not case.method.servers:
            best.setdefault(f"{case.server}-{case.method.label}".lower(), (case, cell))
    if best:
        page.text("Blue: kernels; green: loads; orange: peer copies; violet: direct host access.")
    for name, (case, cell) in best.items():
        lanes = sorted({lane for lane, *_ in cell.spans}, key=lambda lane: ("/" not in lane, lane))
        figure, axes = pyplot().subplots(figsize=(8, 0.22 * len(lanes) + 0.6))
        for n, lane in enumerate(lanes):
            for kind, colour in COLOURS.items():
                bars = [(b * 1e3, (e - b) * 1e3) for own, k, b, e in cell.spans if own == lane and k == kind]
                axes.broken_barh(bars, (-n - 0.4, 0.8), facecolors=colour, rasterized=True)  # thousands of spans
        axes.set_yticks([-n for n in range(len(lanes))], lanes, fontsize=6)
        axes.set_xlabel("ms")
        title = f"{case.model} {case.shape} on {case.server}, {case.method.label}"
        axes.set_title(title, fontsize=8)
        page.picture(f"figure-10-{name}", f"Predicted timeline of {title}", figure)


def by_device(page: Page, pairs: Pairs) -> None:
    """Add how many operators each device computes, for the model and shape of the paper's Figure 10."""
    shown = [
        (case, Counter(placement.device for placement in cell.schedule.placements))
        for case, cell in pairs
        if (case.model, case.shape) == ("openllama-3b", "1x1024")
        and case.method.label in ("SortingHat", FUSED)
        and cell.schedule is not None
    ]
    if not shown:
        return
    page.text(
        "Operators by device for openllama-3b 1x1024 with fused kernels. In the paper all GPUs of the V100 server are used",
        "evenly, the slow gpu2 and gpu3 of V100 (hetero) are avoided, and gpu2 and gpu3 of the A6000 server have most.",
    )
    rows = [
        (case.server, case.method.label, ", ".join(f"{device} {count}" for device, count in sorted(counts.items())))
        for case, counts in shown
    ]
    page.table(("server", "method", "operators"), rows, left=3)


def certificates(page: Page, pairs: Pairs) -> None:
    """Add the gaps between each method's latencies and the lower bounds."""
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


def speedups(pairs: Pairs, servers: Iterable[str] = ()) -> dict[str, dict[tuple[str, str, str], float]]:
    """Return the speed-up over the single device by method and case; cases without that baseline are left out."""
    chosen = [(case, cell) for case, cell in pairs if cell.latency and (not servers or case.server in servers)]
    single = {where(case): cell.latency for case, cell in chosen if case.method.label == "single"}
    found: dict[str, dict[tuple[str, str, str], float]] = {}
    for case, cell in chosen:
        base = single.get(where(case))
        if base and cell.latency and cell.critical_path:
            found.setdefault(case.method.label, {})[where(case)] = base / cell.latency
            if not case.method.variants:
                found.setdefault("Critical Path", {})[where(case)] = base / cell.critical_path
    return found


def upper_limits(pairs: Pairs, servers: Iterable[str]) -> list[float]:
    """Return the speed-up over the single device that the lower bound allows, for each case of `anytime`."""
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


def bars_of(names: list[str], bars: dict[str, list[float]], axis: str, dashed: str = "") -> Any:
    figure, axes = pyplot().subplots(figsize=(max(4.0, 0.78 * len(names) + 1), 2.4))
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
    if not measured:
        return
    rows = []
    for label in dict.fromkeys(case.method.label for case, _ in measured):
        own = [cell for case, cell in measured if case.method.label == label]
        record, wall = ([_error(cell, measure) for cell in own] for measure in ("record", "wall"))
        mean, wall_mean, most = statistics.fmean(record), statistics.fmean(wall), max(wall)
        rows.append((label, len(own), f"{mean:.2g} %", f"{wall_mean:.2g} %", f"{most:.2g} %"))
    page.table(("method", "cases", "error by record", "error by wall clock", "largest by wall clock"), rows)
    off = [
        f"{case.model} {case.shape} on {case.server}, {case.method.label} ({_error(cell, 'record'):.2g} %)"
        for case, cell in measured
        if _error(cell, "record") > 1
    ]
    if off:
        page.text(f"By the record these runs differ by more than 1 %: {'; '.join(off)}.")
    expected_against_emulated(page, measured)
    figure, axes = pyplot().subplots(figsize=(3.4, 3.2))
    for label in dict.fromkeys(case.method.label for case, _ in measured):
        own = [cell for case, cell in measured if case.method.label == label]
        axes.loglog([c.latency for c in own], [c.wall for c in own], "o", markersize=3, label=label)
    ends = [min(c.latency or 1 for _, c in measured), max(c.latency or 1 for _, c in measured)]
    axes.loglog(ends, ends, color="gray", linewidth=0.5)
    axes.set_xlabel("predicted, s")
    axes.set_ylabel("emulated, wall clock, s")
    axes.legend(fontsize=6)
    page.picture("figure-11", "Predicted against emulated latency", figure)


def by_programs(case: Case, cell: Cell) -> bool:
    """Tell whether SortingHat's programs made the schedule, rather than HEFT after they were cut off."""
    return case.method.label == "SortingHat" and cell.schedule is not None and "total_latency_ns" in cell.schedule.notes


def expected_against_emulated(page: Page, measured: Pairs) -> None:
    """Compare TotalLatency with the emulated runs, as the paper compares it with runs on GPUs."""
    errors: dict[str, list[float]] = {}
    for case, cell in measured:
        if by_programs(case, cell) and case.server in PAPER_SERVERS and cell.wall:
            expected = cell.schedule.notes["total_latency_ns"] / 1e9
            errors.setdefault(case.server, []).append(abs(expected / cell.wall - 1) * 100)
    each = [error for own in errors.values() for error in own]
    if not each:
        return
    page.text(
        f"TotalLatency is {statistics.fmean(each):.2f} % from the emulated run by the wall clock, on average over "
        f"{len(each)} cases of the paper's {len(errors)} servers; the paper has 2.97 % from runs on GPUs. Emulated kernels "
        "take what the plan says, so errors of the latencies of kernels, which the paper's figure includes, are not in ours."
    )
    rows = [
        (server, str(len(own)), f"{statistics.fmean(own):.2f} %", f"{max(own):.2f} %") for server, own in errors.items()
    ]
    page.table(("TotalLatency against emulated", "cases", "average error", "largest"), rows)


def total_latency(page: Page, pairs: Pairs) -> None:
    """Compare the programs' TotalLatency with the simulated latency of their schedules."""
    errors: dict[str, list[float]] = {}
    for case, cell in pairs:
        if by_programs(case, cell) and cell.latency:
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


def _error(cell: Cell, measure: str) -> float:
    return abs(getattr(cell, measure) / (cell.latency or 1) - 1) * 100


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
    """Count the cases in which a method beats one device with this part resident; return that and the number of cases."""
    both = [found for found in warm.values() if label in found and "single" in found]
    return sum(found[label][p] < found["single"][p] for found in both), len(both)


def _figure_14_of(page: Page, pairs: Pairs, model: str) -> None:
    own = [(c, cell) for c, cell in pairs if c.model == model and c.server == "v100-server" and cell.warm]
    shapes = list(dict.fromkeys(c.shape for c, _ in own))
    figure, axes = pyplot().subplots(
        1, len(shapes), figsize=(2.3 * len(shapes) + 0.6, 1.9), squeeze=False, layout="constrained"
    )
    for n, shape in enumerate(shapes):
        for case, cell in own:
            if case.shape == shape and case.method.label in ("single", "SortingHat", "anytime"):
                values = [seconds * 1e3 for seconds in cell.warm]
                parts = [part * 100 for part in WARM]
                axes[0, n].plot(parts, values, marker="o", markersize=2, label=case.method.label)
        axes[0, n].set_title(shape, fontsize=8)
        axes[0, n].set_ylim(bottom=0)
        axes[0, n].set_xlabel("% remain")
    axes[0, 0].set_ylabel("ms")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), fontsize=6, loc="outside upper left", ncols=3)
    page.picture(f"figure-14-{model}", f"Latency of {model} with remaining parameters", figure)


def _variants(page: Page, pairs: Pairs, name: str, labels: Sequence[str], servers: Sequence[str]) -> None:
    """Add the speed-ups of the variants of a method."""
    if not any(label in speedups(pairs, servers) for label in labels if label != SHORT):
        page.text("None of these cases were run: `sortinghat` was left out, or its variants.")
        return
    for server in servers:
        found = speedups(pairs, (server,))
        known = [label for label in labels if label in found]
        if len(known) < 2:
            continue
        places = list(found[known[0]])
        rows = [
            (f"{m} {s}", *(speedup_of(found, label, (server, m, s), pairs) for label in known)) for _, m, s in places
        ]
        common = [place for place in places if all(place in found[label] for label in known)]
        means = (mean_and_most(found[label][place] for place in common)[0] if common else "-" for label in known)
        rows.append((f"average of the {len(common)} with all", *means))
        page.table((f"speed-up on {server}", *known), [marked(row, max) for row in rows])
        bars = {label: [found[label].get(place, 0.0) for place in places] for label in known}
        page.picture(
            f"{name}-{server}", f"{name} on {server}", bars_of([f"{m}\n{s}" for _, m, s in places], bars, "speed-up")
        )


def _labels_with(pairs: Pairs, *words: str) -> list[str]:
    labels = dict.fromkeys(case.method.label for case, _ in pairs)
    return [label for label in labels if label == SHORT or any(word in label for word in words)]


def _best_or_not(page: Page, pairs: Pairs, labels: Sequence[str], servers: Sequence[str]) -> None:
    """Count the cases in which SortingHat is at least as fast as each variant, to two digits."""
    found = speedups(pairs, servers)
    own = found.get(SHORT, {})
    for label in (each for each in labels if each != SHORT and each in found):
        places = [place for place in own if place in found[label]]
        ahead = sum(round(own[place], 2) >= round(found[label][place], 2) for place in places)
        page.text(f"- *{SHORT}* is as fast as *{label}*, or faster, in {ahead} of {len(places)} cases.")


def figure_12(page: Page, pairs: Pairs) -> None:
    """Search space and search time."""
    page.text("## Figure 12: q, dominators in a submodel, and search time")
    labels, servers = _labels_with(pairs, "nDom", "third"), ("v100-server", "a6000-server")
    if len(labels) > 1:
        page.text(
            "With equal seconds of the solver in all: a submodel of two dominators has twice those of one. In the paper",
            "each submodel has 30 s, and q 6 with one dominator is best in most cases, q 12 much the same.",
        )
        _best_or_not(page, pairs, labels, servers)
    _variants(page, pairs, "figure-12", labels, servers)


def figure_13(page: Page, pairs: Pairs) -> None:
    """Without contention avoidance, without topology."""
    page.text("## Figure 13: without PCIe contention avoidance, without topology")
    labels, servers = _labels_with(pairs, "without"), ("v100-server", "v100-hetero")
    if len(labels) > 1:
        page.text(
            "In the paper the schedules without contention avoidance are always slower, though not by much, and those",
            "without topology are much slower on the heterogeneous server, in some cases than a single GPU.",
        )
        _best_or_not(page, pairs, labels, servers)
        _slower_than_one(page, pairs)
    _variants(page, pairs, "figure-13", labels, servers)
    _without_turns(page, pairs, servers)


def _slower_than_one(page: Page, pairs: Pairs) -> None:
    found = speedups(pairs, ("v100-hetero",)).get("SortingHat without topology", {})
    slower = sum(value < 1 for value in found.values())
    if found:
        page.text(f"On v100-hetero, {slower} of {len(found)} schedules without topology are slower than a single GPU.")


def _without_turns(page: Page, pairs: Pairs, servers: Sequence[str]) -> None:
    """Price the same schedules with a queue per GPU and evenly shared buses, as in the paper's first ablation."""
    rows, times = [], []
    for case, cell in pairs:
        shown = case.method.label in ("SortingHat", "SortingHat without contention avoidance")
        if not shown or case.server not in servers or cell.schedule is None or not cell.latency:
            continue
        try:
            fair = fair_latency(make_problem(case.model, case.batch, case.tokens, case.server), cell.schedule)
        except InputError:
            continue
        times.append(fair / cell.latency)
        what = (f"{cell.latency * 1e3:.1f}", f"{fair * 1e3:.1f}", f"{fair / cell.latency:.3f}")
        rows.append((f"{case.model} {case.shape} on {case.server}, {case.method.label}", *what))
    if not rows:
        return
    slower, faster = sum(round(time, 3) > 1 for time in times), sum(round(time, 3) < 1 for time in times)
    page.text(
        "The paper changes the executor, too: a queue for each GPU instead of each bus. "
        "`tvm_sched_bench.testing.fair_latency` prices the same schedules so,"
        " each bus shared evenly by all that is on it. No topology has such buses, since the",
        f"executor and every bound take turns. Of {len(times)} schedules {slower} are slower so and {faster} faster,",
        f"between {min(times) - 1:+.1%} and {max(times) - 1:+.1%}. Some order of whole loads is as good as any sharing",
        "(`docs/model.md`), but a schedule need not have that order.",
    )
    page.table(("latency in ms", "turns on the bus", "queues per GPU", "times as long"), rows)


def decided(pairs: list[tuple[Case, Cell]]) -> list[list[str]]:
    """Return a row of `HEAD` for each schedule whose notes say how its submodels were decided."""
    found = []
    for case, cell in pairs:
        notes = cell.schedule.notes if cell.schedule is not None else {}
        if "submodels" in notes and cell.latency is not None:
            limit = f"{case.method.options['time_limit']:g} s" if "time_limit" in case.method.options else "-"
            where = f"{case.model} {case.shape} on {case.server}"
            found.append([where, case.method.label, limit, *_row(notes, cell)])
    return found


def _row(notes: dict[str, Any], cell: Cell) -> list[str]:
    told = notes["submodels"]
    solved = [each for each in told if each.get("same_as") is None]
    status = Counter(each["status"] for each in told)
    gaps = [gap for each in told if (gap := solver_gap(each)) is not None]
    assert cell.latency is not None
    return [
        str(len(told)),
        str(len(solved)),
        str(notes["decided_by_solver"]),
        *(str(status[name]) for name in ("optimal", "alike", "limit", "no solution", "not asked")),
        f"{statistics.median(gaps):.1%}" if gaps else "-",
        f"{sum(each['seconds'] for each in told):.1f} s",
        f"{cell.found_in:.1f} s",
        f"{notes['total_latency_ns'] / 1e6:.3g} ms",
        f"{cell.latency * 1e3:.3g} ms",
    ]


def solver_gap(told: dict[str, Any]) -> float | None:
    """Return 1 - bound / objective of a submodel's program, from the start of the run; None without a bound."""
    if told["bound_ns"] is None or not told["objective_ns"]:
        return None
    return 1 - told["bound_ns"] / told["objective_ns"]


def programs(page: Page, pairs: Pairs) -> None:
    """Add how SortingHat's schedules were decided."""
    rows = decided(pairs)
    if not rows:
        return
    page.text(
        "## What decided SortingHat's schedules",
        "Each submodel's program starts from a heuristic's assignment, and its solver's answer is taken where that is",
        "better: *solver improved*. *Programs* are those that differ: a submodel whose program is that of one before has",
        "its answer, and the columns count all submodels. *Proved* were solved to the end, *alike* have the optimum of a",
        "program that is not quite their own (option `alike`, 2 % of a submodel's time), *limit* have a solution that is",
        "not proved, *no solution* have none within their time, *not asked* had no time left. The gap is the solver's,",
        "1 - bound / objective, where it has a bound; *found in* has the heuristic's time, too. TotalLatency is the",
        "program's, beside what the simulator makes of the schedule. The file of `--json` has them for each submodel,",
        "as have the `notes` of `tvm-sched schedule --scheduler sortinghat --json`.",
    )
    told = [each for _, cell in pairs if cell.schedule for each in cell.schedule.notes.get("submodels", [])]
    improved = sum(each["decided_by"] == "solver" for each in told)
    differ = sum(each.get("same_as") is None for each in told)
    page.text(
        f"In all, {len(told)} submodels have {differ} programs that differ, and the solver improved on the start in "
        f"{improved} submodels ({improved / len(told):.0%})."
    )
    page.table(HEAD, rows)
