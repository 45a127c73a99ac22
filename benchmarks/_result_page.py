"""Pages of results: title, what made them, paragraphs, tables with the best figures in bold, and pictures.

All benchmarks write their pages with `Page`. `report` prints rows of figures as tables, and writes their page and JSON file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from _checked import sentence
from rich.console import Console
from rich.table import Table as ScreenTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREDICTED = "Latencies on GPU topologies are predicted from data sheets (see `docs/model.md`), not measured."
MOST_COLUMNS = 12
"""With more methods than these, and fewer cases, the table has a row for each method and a column for each case."""
NONE = "–"
LEAST = (
    "% above the bound", "% gap", "MiB, most so far", "bottleneck, µs",
    "cost (no overlap), µs", "deployed after, s", "latency (10th percentile), ms",
    "latency (median), ms", "latency, ms", "latency, µs",
    "99th percentile, ms", "latency over a run here (median), ms", "processor time a request, ms",
    "median error %", "ms", "node killed: s", "of theirs",
    "over the best", "partition / best", "partition / simple bound", "process killed: s", "relative error",
    "s", "s a graph", "s at most", "s to schedule", "seconds in all", "seconds to compile", "slowest, ms",
    "stages", "us", "us per operator",
)  # fmt: skip
MOST = (
    "% below sequential", "GB/s", "Kendall's tau", "batches/s", "bound / best", "imported", "inputs a second", "least",
    "ms lower bound", "of theirs feasible", "placed", "requests/s",
)  # fmt: skip
NEAREST_ZERO = ("error, %", "whole model %")
Direction = Literal["least", "most", "zero", "none"]


@dataclass(frozen=True)
class Row:
    """A figure."""

    case: str
    """Instance or network."""
    method: str
    """Method."""
    figure: float
    unit: str
    """Result. The best figure is marked if `LEAST`, `MOST` or `NEAREST_ZERO` names the unit."""
    peer: float | None = None
    """The peer's figure from the same run; None without a peer."""
    peer_name: str = ""
    """Name of the peer."""
    note: str = ""
    """Text in brackets behind the figure."""


@dataclass(frozen=True)
class Table:
    """A figure of all cases and methods: its name with the unit, the heading, and lines of cells."""

    unit: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]


class Page:
    """A page of Markdown with its pictures beside it; without a file, nothing is written.

    Parameters
    ----------
    title : str
    path : Path or None
        Where the page is written; pictures lie beside it and begin with its name.
    predicted : bool
        Whether the page says that latencies on GPUs are predicted.
    notes : str
        Lines below those which say what made the page.
    made : list of str or None
        What made the page, where it was not this machine.
    """

    def __init__(
        self,
        title: str,
        path: Path | None = None,
        *,
        predicted: bool = False,
        notes: str = "",
        made: Sequence[str] | None = None,
    ) -> None:
        self.path, self.lines = path, list[str]()
        self.text(f"# {title}")
        self.text(*(circumstances(predicted) if made is None else made), *notes.splitlines())

    @property
    def markdown(self) -> str:
        """Text of the page."""
        return "\n".join(self.lines).rstrip() + "\n"

    def text(self, *lines: str) -> None:
        """Add a paragraph, a heading or a list."""
        self.lines += [*lines, ""]

    def table(self, head: Sequence[object], rows: Iterable[Sequence[object]], left: int = 1) -> None:
        """Add a table; the first ``left`` columns hold text, the others figures."""
        lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
        self.text(*("| " + " | ".join(map(str, line)) + " |" for line in lines))

    def rows(self, rows: Sequence[Row], level: int = 2) -> None:
        """Add the tables of rows, each under the name of its figure."""
        for each in tables(rows):
            self.text(f"{'#' * level} {each.unit}")
            self.table(each.header, each.lines)

    def left_to(self, peer: str, told: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Add what each case leaves to a peer, as it said; nothing where none did."""
        lines = [f"- {name}: {text}" for name, texts in told for text in texts]
        if lines:
            self.text(f"What is left to {peer}:")
            self.text(*lines)

    def data(self, head: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
        """Write a long table as a file of comma-separated values in the folder ``data`` beside the page, and link to it."""
        if self.path is not None:
            file = self.path.parent / "data" / f"{self.path.stem}.csv"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("w", newline="") as opened:
                csv.writer(opened, lineterminator="\n").writerows([head, *rows])
            self.text(f"All {len(rows)} rows: [{file.name}](data/{file.name}).")

    def picture(self, name: str, caption: str, figure: Figure) -> None:
        """Add a picture, and write it beside the page."""
        if self.path is not None:
            file = self.path.with_name(f"{self.path.stem}-{name}.svg")
            save(figure, file)
            self.text(f"![{caption}]({file.name})")
        pyplot().close(figure)

    def write(self) -> None:
        """Print the page, and write it."""
        Console().print(self.markdown, markup=False, highlight=False)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self.markdown)


def report(
    title: str,
    rows: Sequence[Row],
    file: Path | None,
    markdown: Path | None = None,
    *,
    predicted: bool = False,
    notes: str = "",
) -> None:
    """Print rows as tables; write them as JSON and as a page where files are given."""
    for each in tables(rows):
        shown = ScreenTable(*each.header, title=f"{title}: {each.unit}")
        for line in each.lines:
            shown.add_row(*(cell.replace("**", "") for cell in line))
        Console().print(shown)
    if file is not None:
        write_json(file, [asdict(row) for row in rows])
    if markdown is not None:
        page = Page(title, markdown, predicted=predicted, notes=notes)
        page.rows(rows)
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(page.markdown)


def add_portions(arguments: argparse.ArgumentParser, things: str) -> None:
    """Add the options of a benchmark that can be run in portions, ``--only`` and ``--earlier``."""
    arguments.add_argument(
        "--only", default="", metavar="TEXT", help=f"{things} with this in their names: a portion of a run"
    )
    arguments.add_argument(
        "--earlier",
        type=Path,
        nargs="*",
        default=[],
        metavar="FILE",
        help="JSON of earlier portions, to report with this",
    )


def earlier_rows(options: argparse.Namespace) -> list[Row]:
    """Return the figures of earlier portions."""
    return [Row(**row) for file in options.earlier for row in json.loads(file.read_text())]


def write_json(file: Path | None, rows: Any) -> None:
    """Write figures as JSON if a file is given."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rows, indent=1) + "\n")


def pyplot() -> Any:
    """Import matplotlib.pyplot, configured so that equal figures give equal files."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "tvm_sched", "svg.fonttype": "none", "font.size": 8})
    import matplotlib.pyplot as plt

    return plt


def save(figure: Figure, file: Path) -> None:
    """Write a picture."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})


def marked(row: Sequence[str], best: Callable[..., float]) -> list[str]:
    """Return a row with its best figures in bold; cells that are no numbers, and rows of equal figures, stay as they are."""
    figures = [float(cell) if n and re.fullmatch(r"[\d.]+", cell) else None for n, cell in enumerate(row)]
    if len({figure for figure in figures if figure is not None}) < 2:
        return list(row)
    return bold(row, figures, best)


def bold(cells: Sequence[str], figures: Sequence[float | None], best: Callable[..., float] = min) -> list[str]:
    """Return the cells with the best figure in bold."""
    first = best((figure for figure in figures if figure is not None), default=None)
    return [
        f"**{cell}**" if figure is not None and figure == first else cell
        for cell, figure in zip(cells, figures, strict=True)
    ]


def direction(unit: str) -> Direction:
    """Return which figure of a unit is the best."""
    return "least" if unit in LEAST else "most" if unit in MOST else "zero" if unit in NEAREST_ZERO else "none"


def tables(rows: Sequence[Row]) -> list[Table]:
    """Make a table for each unit, in order of first use, with a column for the peer.

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
    """Return the keys of a case's best figures; none if the unit has no best figure or all look equal."""
    if better == "none" or len({f"{figure:.4g}" for figure in figures.values()}) < 2:
        return []
    worth = {"least": float, "most": lambda figure: -figure, "zero": abs}[better]
    best = min(worth(figure) for figure in figures.values())
    return [key for key, figure in figures.items() if f"{worth(figure):.4g}" == f"{best:.4g}"]


def circumstances(predicted: bool = False) -> list[str]:
    """Say what made the page: command, machine, date, versions, whether latencies are predicted, what was checked."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    script, repository = Path(sys.argv[0]).resolve(), Path(__file__).resolve().parents[1]
    name = script.relative_to(repository) if script.is_relative_to(repository) else Path("benchmarks", script.name)
    command = " ".join(["python", name.as_posix(), *map(_elsewhere, sys.argv[1:])])
    packages = ", ".join(f"{name} {version(name)}" for name in ("apache-tvm", "ortools", "numpy"))
    made = f"Made by `{command}` on {version_and_date()}, {os.cpu_count()} cores of {cpu}; {packages}."
    absent = ", ".join(f"`{name}`" for name in inputs_of(command) if not is_here(name))
    elsewhere = [f"{ELSEWHERE}{absent}, which the command reads."] if absent else []
    return [made, *elsewhere, *([PREDICTED] if predicted else []), *([told] if (told := sentence()) else [])]


def version_and_date() -> str:
    """Return the date, and the commit if there is git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        return f"{time.strftime('%Y-%m-%d')}, commit {found}"
    except (OSError, subprocess.CalledProcessError):
        return time.strftime("%Y-%m-%d")


def _elsewhere(argument: str) -> str:
    """Return an argument for the page: a path outside of the repository is cut to its last name."""
    option, equals, value = argument.rpartition("=")
    outside = os.path.isabs(value) or value.startswith(os.pardir)
    return f"{option}{equals}{Path(value).name}" if outside else argument


READ_BY = {
    "--instances", "--vidur", "--data", "--record", "--earlier", "--only-page", "--viprchk", "--source",
    "--gguf", "--packages", "--python", "--rows",
}  # fmt: skip
"""Options of the benchmarks whose values are files or folders that a command reads."""
KEPT_ROWS = {"--resume", "--results"}
"""Options for rows of earlier runs: inputs of a command that makes only the page of them."""
MODEL_FILES = (".onnx", ".gguf")
ELSEWHERE = "Not in the repository: "
"""Beginning of the line of a page on what its command reads and a clean checkout does not have."""


def is_here(name: str) -> bool:
    """Whether a clean checkout has a file or folder."""
    repository = Path(__file__).resolve().parents[1]
    return (repository / name).exists() and not name.startswith(("build", "out"))


def inputs_of(command: str) -> list[str]:
    """Return the files and folders that the command of a results page reads."""
    words = command.split()
    reads = READ_BY | (KEPT_ROWS if "--only-page" in words or "--minutes 0" in command else set())
    option, found = "", []
    for word in words[2:]:
        name = word.strip("\"'").split(":")[0]
        if word.startswith("--"):
            option, _, name = word.partition("=")
        is_file = name.endswith(MODEL_FILES) or (option in reads and name and not name.isdigit())
        if is_file and name not in found:
            found.append(name)
    return found
