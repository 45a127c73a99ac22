"""Tables of a page of results: one for each figure, with a row for each case, a column for each method, the best in bold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MOST_COLUMNS = 12
"""With more methods than these, and fewer cases, the table has a row for each method and a column for each case."""

NONE = "–"

LEAST = (
    "% above the bound", "% gap", "MiB, most so far", "bottleneck, µs",
    "cost (no overlap), µs", "deployed after, s", "latency (median), ms", "latency, ms", "latency, µs",
    "median error %", "ms", "ms an allocation", "node killed: s", "of theirs",
    "over the best", "partition / best", "partition / simple bound", "process killed: s", "relative error",
    "s", "s a graph", "s at most", "s to schedule", "seconds in all", "seconds to compile", "slowest, ms",
    "stages", "us", "us per operator", "waits",
)  # fmt: skip
MOST = (
    "% below sequential", "GB/s", "Kendall's tau", "batches/s", "bound / best", "imported", "inputs a second", "least",
    "ms lower bound", "of theirs feasible", "placed", "times one stream's speed, predicted",
)  # fmt: skip
NEAREST_ZERO = ("error, %", "whole model %")

Direction = Literal["least", "most", "zero", "none"]


@dataclass(frozen=True)
class Row:
    """A figure.

    Parameters
    ----------
    case : str
        What was worked on.
    method : str
        What did it.
    figure, unit : float, str
        What came out. A unit that `LEAST`, `MOST` or `NEAREST_ZERO` names has its best figure marked.
    peer : float or None
        The same figure of the peer, from the same run; None where there is no peer.
    peer_name : str
        Who the peer is.
    note : str
        What stands behind the figure, in brackets.
    """

    case: str
    method: str
    figure: float
    unit: str
    peer: float | None = None
    peer_name: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A figure of all cases and methods: its name with the unit, the heading, and lines of cells."""

    unit: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]

    def markdown(self) -> list[str]:
        """The table in Markdown, without its name."""
        rows = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.lines]
        return ["| " + " | ".join(row) + " |" for row in rows]


def direction(unit: str) -> Direction:
    """Which figure of a unit is the best."""
    return "least" if unit in LEAST else "most" if unit in MOST else "zero" if unit in NEAREST_ZERO else "none"


def tables(rows: Sequence[Row]) -> list[Table]:
    """A table for each unit, in order of first use; a peer is one more column.

    Where a peer has a figure for each method, not one for each case, its figures are a table of their own. Figures of
    one method alone are the columns of one table.
    """
    made, alone = [], dict[str, list[Row]]()
    for unit in dict.fromkeys(row.unit for row in rows):
        own = [row for row in rows if row.unit == unit]
        if len(methods := {row.method for row in own}) == 1 and all(row.peer is None for row in own):
            alone.setdefault(methods.pop(), []).extend(own)
            continue
        figures = {(row.case, row.method): (row.figure, row.note) for row in own}
        beside: dict[str, list[Row]] = {}
        for row in own:
            if row.peer is not None:
                beside.setdefault(row.peer_name, []).append(row)
        apart = []
        for name, peers in beside.items():
            if len({row.case for row in peers}) == len({(row.case, row.peer) for row in peers}):
                figures |= {(row.case, name): (row.peer or 0.0, "") for row in peers if (row.case, name) not in figures}
            else:
                apart.append((name, {(row.case, row.method): (row.peer or 0.0, "") for row in peers}))
        made.append(_table(unit, figures, direction(unit)))
        made += [_table(f"{unit}, {name}", peers, direction(unit)) for name, peers in apart]
    for method, own in alone.items():
        title = own[0].unit if len({row.unit for row in own}) == 1 else method
        figures = {(row.case, row.unit): (row.figure, row.note) for row in own}
        made.append(_table(title, figures, "none"))
    return made


def _table(unit: str, figures: dict[tuple[str, str], tuple[float, str]], better: Direction) -> Table:
    cases, methods = list(dict.fromkeys(c for c, _ in figures)), list(dict.fromkeys(m for _, m in figures))
    cells = {key: f"{figure:.4g}" + (f" ({note})" if note else "") for key, (figure, note) in figures.items()}
    for case in cases:
        for key in _best({key: figure for key, (figure, _) in figures.items() if key[0] == case}, better):
            cells[key] = f"**{cells[key]}**"
    if len(methods) > MOST_COLUMNS and len(cases) < len(methods):
        lines = [[method, *(cells.get((case, method), NONE) for case in cases)] for method in methods]
        return Table(unit, ["method", *cases], lines)
    lines = [[case, *(cells.get((case, method), NONE) for method in methods)] for case in cases]
    return Table(unit, ["case", *methods], lines)


def _best(figures: dict[tuple[str, str], float], better: Direction) -> list[tuple[str, str]]:
    """The best of a case; nothing where there is no choice, or all are equal as they are shown."""
    if better == "none" or len({f"{figure:.4g}" for figure in figures.values()}) < 2:
        return []
    worth = {"least": float, "most": lambda figure: -figure, "zero": abs}[better]
    best = min(worth(figure) for figure in figures.values())
    return [key for key, figure in figures.items() if f"{worth(figure):.4g}" == f"{best:.4g}"]
