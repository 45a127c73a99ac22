"""Figures 12 and 13 of the grid: variants of one method beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from _grid import make_problem
from _grid_speedups import Pairs, bars_of, mean_and_most, speedup_of, speedups
from _page import Page, marked

from tvm_sched.errors import InputError
from tvm_sched.testing import fair_latency


def _variants(page: Page, pairs: Pairs, name: str, labels: Sequence[str], servers: Sequence[str]) -> None:
    """Speed-ups of variants of one method in parallel."""
    if not any(label in speedups(pairs, servers) for label in labels if label != "SortingHat"):
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
    return [label for label in labels if label == "SortingHat" or any(word in label for word in words)]


def _best_or_not(page: Page, pairs: Pairs, labels: Sequence[str], servers: Sequence[str]) -> None:
    """In how many cases SortingHat is as fast as each of its variants, or faster; to two digits."""
    found = speedups(pairs, servers)
    own = found.get("SortingHat", {})
    for label in (each for each in labels if each != "SortingHat" and each in found):
        places = [place for place in own if place in found[label]]
        ahead = sum(round(own[place], 2) >= round(found[label][place], 2) for place in places)
        page.text(f"- SortingHat is as fast as *{label}*, or faster, in {ahead} of {len(places)} cases.")


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
    """The executor's half of the first ablation: queues per GPU, and buses that are shared fairly."""
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
        "The paper changes the executor, too: a queue for each GPU instead of each bus. `tvm_sched.testing.fair_latency`",
        "prices the same schedules so, each bus shared evenly by all that is on it. No topology has such buses, since the",
        f"executor and every bound take turns. Of {len(times)} schedules {slower} are slower so and {faster} faster,",
        f"between {min(times) - 1:+.1%} and {max(times) - 1:+.1%}. Some order of whole loads is as good as any sharing",
        "(`docs/model.md`), but a schedule need not have that order.",
    )
    page.table(("latency in ms", "turns on the bus", "queues per GPU", "times as long"), rows)
