"""The corrections of TVM that docstrings of `tvm_frontends` list; run it to print the table of ``docs/frontends.md``."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "upstream"))
from try_patches import patches  # noqa: E402

PACKAGE = ROOT / "python" / "tvm_frontends"
PAGE = ROOT / "docs" / "frontends.md"
_SECTION = re.compile(r"^Corrections of TVM ([\d.]+), ``(.+)``:$")
_ITEM = re.compile(r"^- ``(\w+)``: (.*)$")


def _read_entry(text: str) -> tuple[str, ...]:
    """Read an entry of a patch's line ``Corrects``, such as ``_binary_op of torch/elementwise.py (in part)``."""
    return re.fullmatch(r"(\w+)(?: of (\S+))?( \(in part\))?", text).groups("")  # type: ignore[union-attr]


@dataclass(frozen=True)
class Correction:
    """A fault of TVM that a file works around."""

    file: str
    """Of ours, inside of the package."""
    version: str
    """The version of TVM in which the fault was seen first."""
    where: str
    """The file of TVM."""
    symbol: str
    """The class or method there."""
    fault: str

    @property
    def patch(self) -> str:
        """The number of the patch in ``upstream/`` that corrects it, perhaps in part; empty if none does."""
        for each in patches():
            if any(name.endswith(self.where) for name in each.files):
                for symbol, file, part in map(_read_entry, each.corrects):
                    if symbol == self.symbol and file in ("", self.file):
                        return each.path.stem[:2] + (", in part" if part else "")
        return ""

    def row(self) -> str:
        """Return the line of the page's table."""
        fault = self.fault.replace("``", "`").replace("|", "\\|")
        return (
            f"| `{self.file}` | {self.version} | `{Path(self.where).name}` | `{self.symbol}` | {self.patch} | {fault} |"
        )


def corrections() -> list[Correction]:
    """Return all corrections, in the order of files and lines."""
    found: list[Correction] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        section = None
        for line in (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines():
            if match := _SECTION.match(line):
                section = match.groups()
            elif section and (match := _ITEM.match(line)):
                found.append(Correction(path.relative_to(PACKAGE).as_posix(), *section, *match.groups()))
            elif section and line.startswith("  "):
                last = found.pop()
                found.append(Correction(last.file, *section, last.symbol, f"{last.fault} {line.strip()}"))
    return found


if __name__ == "__main__":
    print("\n".join(correction.row() for correction in corrections()))
