"""A page of Markdown with tables, and with pictures beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "tvm_sched", "svg.fonttype": "none", "font.size": 8})

import matplotlib.pyplot as plt  # noqa: E402 - after the backend is chosen


def marked(row: Sequence[str], best: Callable[..., float]) -> list[str]:
    """A row of a name and figures, the best ones in bold; what is no number is left as it is, and so are equal ones."""
    figures = {n: float(cell) for n, cell in enumerate(row) if n and re.fullmatch(r"[\d.]+", cell)}
    if len(set(figures.values())) < 2:
        return list(row)
    first = best(figures.values())
    return [f"**{cell}**" if figures.get(n) == first else cell for n, cell in enumerate(row)]


class Page:
    """A page of Markdown with its pictures beside it; without a file, nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.lines = path, list[str]()

    def text(self, *lines: str) -> None:
        self.lines += [*lines, ""]

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
        self.text(*lines, *("| " + " | ".join(row) + " |" for row in rows))

    def picture(self, name: str, caption: str, figure: plt.Figure) -> None:
        if self.path is not None:
            file = self.path.with_name(f"{self.path.stem}-{name}.svg")
            figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
            self.text(f"![{caption}]({file.name})")
        plt.close(figure)

    def write(self) -> None:
        if self.path is not None:
            self.path.write_text("\n".join(self.lines).rstrip() + "\n")
