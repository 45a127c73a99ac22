"""The page and the pictures that `hios.py` makes of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from _common import Row, circumstances
from _hios_claims import Milliseconds, claims_table, contradictions, off_by
from _tables import tables

SPREAD = "standard deviation"
PRINTED = "ms, printed by the authors' code"
DEFAULT_DEVICES = 4
DRAWN = ("devices",)
"""Sweeps with a picture; of the others the tables are enough."""

NOTES = """
## Where paper, code and we differ

- "theirs" are the `feasible_*` figures of the instances' files: the mapping of the authors' code, priced under the
  paper's own precedence constraint. What their code prints for itself differs: it evaluates operators in the order of
  their numbers, which is not topological in these graphs, and breaks precedence on many edges. Here Algorithms 1 to 3 are
  as the paper states them.
- Where theirs has no feasible schedule (stages that wait for each other in a circle, or an exception), ours are
  compared on the other instances only; "of theirs feasible" counts those.
- The transfer of an edge goes by the time of the operator that reads it in the authors' generator, of the one that
  makes it in the paper and in the sweeps here. The sweeps' graphs are made after the paper's description, with seeds
  of our own.
- `ios` has the limits of the authors' simulation: 2 groups of up to 3 operators, 10 operators looked at together.
- `anytime` and "anytime with stages" are ours; the first is for operators by themselves, as `*-inter`, `heft` and `peft`
  are. Bounds are of the problem with or without stages that a method was given; with stages they are weaker.
"""


def page(rows: list[Row], sweeps: Iterable[str], pictures: Path | None, told: str) -> str:
    """Everything as Markdown; ``pictures`` is where those of `draw` lie, relative to the page, ``told`` stands above all."""
    lines = ["# HIOS's simulations", "", *circumstances(), told, ""]
    lines += ["## The authors' instances", ""]
    for each in tables([row for row in rows if "instances" in row.case]):
        lines += [f"### {each.unit}", "", *each.markdown(), ""]
    for sweep in sweeps:
        chosen = [row for row in rows if row.case.split()[0] == sweep and row.unit in ("ms", SPREAD)]
        if chosen:
            lines += [f"## Latency against {sweep}", ""]
            if pictures is not None and sweep in DRAWN:
                lines += [f"![Latency of each method against {sweep}]({pictures / _picture(sweep)})", ""]
            lines += [*_by_value(chosen), ""]
    lines += section_v(rows)
    times = [row for row in rows if row.unit == "s"]
    if times:
        lines += ["", "## Scheduling time, s", "", *tables(times)[0].markdown()]
    return "\n".join(lines) + "\n" + NOTES


def section_v(rows: list[Row]) -> list[str]:
    """All figures that the paper's text has of its simulations, beside these."""
    ms = {(row.case, row.method): row.figure for row in rows if row.unit == "ms"}
    printed = _printed(rows)
    head = ["where", "ms, or ms / ms", "paper", "authors' code prints", "here"]
    lines = ["## Figures of Section V", "", *_table(head, claims_table(ms, printed)), ""]
    lines += [
        "The authors' code prints it of its own schedules of the authors' instances, which have the default settings "
        f"({DEFAULT_DEVICES} devices, 200 operators, 400 edges, 14 layers, 0.8). {off_by(ms, printed)}",
        "",
        "What contradicts the paper by more than 5 %, or changes in another direction:",
        "",
    ]
    return [*lines, *([f"- {text}" for text in contradictions(ms)] or ["- nothing."])]


def _printed(rows: list[Row]) -> Milliseconds:
    """What the authors' code prints, by the points of sweeps that the authors' instances are."""
    found: Milliseconds = {}
    for row in rows:
        if "instances" in row.case and (row.unit == PRINTED or (row.unit == "ms" and row.method == "sequential")):
            devices = int(row.case.split()[2])
            points = [f"devices {devices}"]
            if devices == DEFAULT_DEVICES:
                points += ["operators", "layers", "edges 400"]
            found |= {(point, row.method): row.figure for point in points}
    return found


def _text(figure: float) -> str:
    return f"{figure:.4g}"


def _table(header: list[str], body: Iterable[list[str]]) -> Iterator[str]:
    for cells in (header, ["---"] * len(header), *body):
        yield "| " + " | ".join(cells) + " |"


def _by_value(rows: list[Row]) -> Iterator[str]:
    """A line for each value of a sweep: mean milliseconds of each method and, behind it, the standard deviation."""
    means = {(row.case, row.method): row.figure for row in rows if row.unit == "ms"}
    spread = {(row.case, row.method): f" ± {row.figure:.2g}" for row in rows if row.unit == SPREAD}
    methods = list(dict.fromkeys(method for _, method in means))
    cases = dict.fromkeys(case for case, _ in means)

    def cell(case: str, method: str) -> str:
        text = _text(means[case, method]) + spread.get((case, method), "")
        return f"**{text}**" if means[case, method] == min(means[case, m] for m in methods) else text

    header = [f"{rows[0].case.split()[0]} (latency in ms)", *methods]
    return _table(header, ([case.split()[1], *(cell(case, m) for m in methods)] for case in cases))


def _picture(sweep: str) -> str:
    return f"hios-{sweep}.svg"


def draw(rows: list[Row], sweeps: Iterable[str], folder: Path) -> None:
    """A picture for each sweep of `DRAWN`: mean latency of each method, with standard deviations, like Figures 7 to 11."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    for sweep in [sweep for sweep in sweeps if sweep in DRAWN]:
        figure, axes = pyplot.subplots(figsize=(6, 4))
        chosen = [row for row in rows if row.case.split()[0] == sweep]
        spread = {(r.case, r.method): r.figure for r in chosen if r.unit == SPREAD}
        for method in dict.fromkeys(row.method for row in chosen if row.unit == "ms"):
            points = [row for row in chosen if row.method == method and row.unit == "ms"]
            axes.errorbar(
                [float(row.case.split()[1]) for row in points],
                [row.figure for row in points],
                [spread.get((row.case, method), 0.0) for row in points],
                label=method,
                capsize=2,
            )
        axes.set(xlabel=sweep, ylabel="latency, ms", ylim=(0, None))
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.02, 0.5))
        figure.savefig(folder / _picture(sweep), bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
