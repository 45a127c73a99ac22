"""How many lines each part of the tree has, and how many it may have: the table `budgets.txt`.

A limit may only fall. ``python tests/budgets.py`` prints the table and lowers limits to what is there. Whoever raises one
edits its line and says why in the last column.
"""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("budgets.txt")
KINDS = {".py": "Python", **dict.fromkeys((".cc", ".cu", ".cuh", ".h"), "C++")}


class Budget(NamedTuple):
    """Most lines in the files of a language in a folder, and why the limit was raised last."""

    folder: str
    language: str
    limit: int
    reason: str

    def __str__(self):
        return f"{self.folder:32} {self.language:7} {self.limit:7}  {self.reason}"

    @property
    def lines(self):
        """The lines that there are."""
        return sum(
            file.read_bytes().count(b"\n")
            for file in (ROOT / self.folder).rglob("*")
            if KINDS.get(file.suffix) == self.language
        )


def read(text):
    """The budgets of a table."""
    rows = (line.split(None, 3) for line in text.splitlines())
    return [Budget(folder, language, int(limit), reason) for folder, language, limit, reason in rows]


def lowered(budgets):
    """The budgets with limits that were too high at what is there."""
    return [budget._replace(limit=min(budget.limit, budget.lines)) for budget in budgets]


if __name__ == "__main__":
    known = read(TABLE.read_text())
    for budget in known:
        print(f"{budget.folder:32} {budget.language:7} {budget.lines:7} of {budget.limit}")
    TABLE.write_text("".join(f"{budget}\n" for budget in lowered(known)))
