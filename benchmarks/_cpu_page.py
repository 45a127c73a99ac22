"""The page of `cpu_latency`: a row a network, a column a method, and what the best peer does in less time than ours.

Profiles are taken after the measurements, so their sums are a little above the latencies.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from _cpu_models import HALVES, SETS
from _result_page import NONE, Page, bold

MINE = ("ours", "ours, one stream")
AIM, WORST, FIRST_AIM = 0.90, 1.15, 0.80
LOSSES = """\
Profiles of our artifact and the best peer, made after measuring; sums are a bit above latencies: kernels
by name, how many there are, the four that take longest. Ours also says how far they are from the roofline that the compiler
assumes for a core (`tvm_sched_runtime.problem.cpu_topology`). OpenVINO's kernels are named by type and implementation; ONNX
Runtime's `ReorderInput` and `ReorderOutput` are conversions to blocked layouts and back."""
Profile = dict[str, list[float]]
"""By kind of kernel: how many there are, and their seconds in a run; ours have a third figure, the roofline's seconds."""

CLASSES: dict[str, tuple[str, ...]] = {
    "attention": ("attention", "softmax", "sdpa"),
    "convolution": ("conv",),
    "product": ("matmul", "gemm", "fullyconnected", "matrix_vector"),
    "normalization": ("norm", "moments", "mvn", "mean", "reduce", "lrn", "rms"),
    "pooling": ("pool",),
    "recurrent": ("lstm", "gru", "rnn", "scan", "loop"),
    "moving": (
        "concat", "transpose", "reshape", "reorder", "split", "slice", "gather", "take", "pad", "permute", "tile",
        "expand", "resize", "interpolate", "upsample", "shuffle", "squeeze", "flatten", "convert",
    ),
}  # fmt: skip
"""What is in the name of a kernel of each class, the first class that fits; the rest computes number by number."""
OTHERS = "elementwise"
_LEAST = 0.02
"""Share of our latency below which a difference is not told."""


def word(cell: dict[str, Any]) -> str:
    """Return a cell's text for a line of progress."""
    return f"{cell['ms']:.4g} ms" if "ms" in cell else f"- ({cell.get('failed', 'not measured')})"


def best_peer(row: dict[str, Any], figure: str) -> float | None:
    """Return the least of the peers' figures."""
    found = [cell[figure] for method, cell in row["methods"].items() if method not in MINE and figure in cell]
    return min(found, default=None)


def ratio(row: dict[str, Any], figure: str = "ms") -> float | None:
    """Return our figure over the best peer's: as compiled for ``cpu``, else on one stream."""
    mine = next((row["methods"][m][figure] for m in MINE if figure in row["methods"].get(m, {})), None)
    peer = best_peer(row, figure)
    return mine / peer if mine is not None and peer else None


def page(rows: list[dict[str, Any]], threads: int, path: Path | None = None, notes: str = "") -> Page:
    """Make the page, with ``notes`` at its head."""
    methods = list(dict.fromkeys(method for row in rows for method in row["methods"]))
    lines = [_versions(), *([notes] if notes else [])]
    lines += [
        "The docstring of `benchmarks/cpu_latency.py` describes the method of measurement. The best of a row is bold."
    ]
    if not any(MINE[0] in row["methods"] for row in rows):
        lines += [
            "Ours is compiled for one stream (`-t cpu1`). Parallel operators (`-t cpu`, the better of both by",
            "measurement) were not measured for this page.",
        ]
    made = Page(f"Latency on {threads} threads, batch 1", path, notes="\n".join(lines))
    _summary(made, rows)
    for half in HALVES:
        if part := [row for row in rows if row["half"] == half]:
            made.text(f"## Median latency in ms (10th to 90th percentile), {half} networks")
            _table(made, part, methods, "ms", lambda c: f"{c['ms']:.4g} ({c['p10']:.3g}–{c['p90']:.3g})")
    made.text("## Process start to first output in s")
    _table(made, rows, methods, "first_s", lambda c: f"{c['first_s']:.2f}")
    made.text("## Peak memory of the process in MiB")
    _table(made, rows, methods, "mib", lambda c: f"{c['mib']:.0f}")
    _losses(made, rows)
    _compilation(made, rows)
    cells = [(row["model"], *each) for row in rows for each in row["methods"].items()]
    if failed := [f"- {model}, {method}: {cell['failed']}" for model, method, cell in cells if "failed" in cell]:
        made.text("## Not measured")
        made.text(*failed)
    return made


def _summary(made: Page, rows: list[dict[str, Any]]) -> None:
    """Add the geometric means by half and set."""
    lines = []
    parts = [(half, None) for half in HALVES] + [(half, group) for half in HALVES for group in SETS]
    for half, group in parts:
        part = [row for row in rows if row["half"] == half and group in (None, row["set"])]
        found = {row["model"]: value for row in part if (value := ratio(row)) is not None}
        if not found:
            continue
        first, memory = (
            statistics.geometric_mean([value for row in part if (value := ratio(row, figure)) is not None])
            for figure in ("first_s", "mib")
        )
        worst = max(found, key=lambda name: found[name])
        lines.append((
            f"{half}, {group or 'all sets'}", len(found), len(part), f"{statistics.geometric_mean(found.values()):.2f}",
            f"{found[worst]:.2f} ({worst})", sum(value > WORST for value in found.values()),
            sum(value < 1 for value in found.values()), f"{first:.2f}", f"{memory:.2f}",
        ))  # fmt: skip
    head = ("networks", "measured", "of", "latency, ours / best peer", "worst", f"above {WORST}", "ours is best",
            "first output", "memory")  # fmt: skip
    made.table(head, lines)
    made.text(
        "Latency, first output and memory: geometric means of ours relative to the best peer; below 1 ours is better. "
        f"Aims on the held-out half: {AIM} for latency, none above {WORST}, first output {FIRST_AIM}."
    )


def _table(
    made: Page, rows: list[dict[str, Any]], methods: list[str], figure: str, show: Callable[[dict[str, Any]], str]
) -> None:
    lines = []
    for row in rows:
        cells = [row["methods"].get(method, {}) for method in methods]
        texts, figures = [show(c) if figure in c else NONE for c in cells], [c.get(figure) for c in cells]
        value = ratio(row, figure)
        lines.append([row["model"], *bold(texts, figures), "" if value is None else f"{value:.2f}"])
    made.table(["network", *methods, "ours / best peer"], lines)


def _losses(made: Page, rows: list[dict[str, Any]]) -> None:
    """Add where our artifact and the best peer spend their time on each network, our losses first."""
    lines = []
    measured = [(value, row) for row in rows if (value := ratio(row)) is not None]
    for value, row in sorted(measured, key=lambda each: -each[0]):
        peer = best_peer(row, "ms")
        name = next(method for method, cell in row["methods"].items() if cell.get("ms") == peer)
        mine = next(row["methods"][method] for method in MINE if "ms" in row["methods"].get(method, {}))
        ours, theirs = mine.get("kernels", {}), row["methods"][name].get("kernels", {})
        lost = missing(ours, theirs) if ours and theirs else "no profile"
        lines.append((row["model"], name, f"{value:.2f}", lost, longest(ours), longest(theirs)))
    if lines:
        made.text("## What is missing, and what the peer does")
        made.text(*LOSSES.splitlines())
        head = ("network", "best peer", "ours / best peer", "ours takes longer in (ms)", "ours in ms", "the peer in ms")
        made.table(head, lines, left=len(head))


def _versions() -> str:
    """Return the versions of the peers' packages."""
    found = []
    for name in ("onnxruntime", "openvino", "torch"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return f"Peers: {', '.join(found)}."


def _compilation(made: Page, rows: list[dict[str, Any]]) -> None:
    """Add the source of our artifacts, their compile times and the choices made."""
    made.text("## Our artifacts")
    own = [(row["model"], [row["methods"].get(method, {}) for method in MINE]) for row in rows]
    cells = [(model, next((cell for cell in found if "seconds" in cell), None)) for model, found in own]
    lines = [
        (model, cell["source"], f"{cell['seconds']:.1f}", cell["chosen"] or "one stream")
        for model, cell in cells
        if cell
    ]
    made.table(("network", "made from", "compiled in s", "chosen"), lines)


def class_of(kind: str) -> str:
    """Return the class of a kernel of ours or of a peer, by its name."""
    name = kind.lower()
    return next((each for each, words in CLASSES.items() if any(word in name for word in words)), OTHERS)


def by_class(profile: Profile) -> dict[str, float]:
    """Sum the seconds of each class."""
    found: dict[str, float] = {}
    for kind, figures in profile.items():
        found[class_of(kind)] = found.get(class_of(kind), 0.0) + figures[1]
    return found


def longest(profile: Profile, count: int = 4) -> str:
    """Describe the slowest kernels: milliseconds, number, and distance from the roofline."""
    groups = sorted(profile.items(), key=lambda each: -each[1][1])
    total = sum(figures[1] for figures in profile.values())
    said = []
    for kind, (number, seconds, *ideal) in groups[:count]:
        far = f", {seconds / ideal[0]:.1f} x roofline" if ideal and ideal[0] > 0 else ""
        said.append(f"`{kind}` {seconds * 1e3:.3g} ({number:.0f}{far})")
    return f"{', '.join(said)}; of {total * 1e3:.3g}" if said else ""


def missing(mine: Profile, peer: Profile) -> str:
    """Return the classes in which ours takes longer than the peer, the largest difference first."""
    ours, theirs = by_class(mine), by_class(peer)
    least = _LEAST * sum(ours.values())
    lost = {each: seconds - theirs.get(each, 0.0) for each, seconds in ours.items()}
    said = [
        f"{each} {ours[each] * 1e3:.3g} against {theirs.get(each, 0.0) * 1e3:.3g}"
        for each, more in sorted(lost.items(), key=lambda pair: -pair[1])
        if more > least
    ]
    return "; ".join(said) or "no class of kernels"
