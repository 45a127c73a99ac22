"""List names of TVM's Python package that ours use and a checkout of TVM does not have.

    python upstream/missing_names.py TVM_SOURCE

Nothing is run or imported of the checkout, so it needs no build: names are looked up in its source files. With a checkout of
TVM's main this tells what the next release breaks before there is a wheel of it. Names that TVM makes when it is imported
are not found; those that the installed TVM lacks in the same way are left out.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OURS = Path(__file__).resolve().parents[1] / "python"


def used(file: Path) -> set[str]:
    """Return the dotted names of TVM in a file, such as ``tvm.relax.op.add``."""
    tree = ast.parse(file.read_text())
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "tvm":
            known |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] == "tvm":
                    known[each.asname or "tvm"] = each.name if each.asname else "tvm"
    found = set(known.values())
    for node in ast.walk(tree):
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and node.id in known:
            found.add(".".join([known[node.id], *reversed(names)]))
    return found


class Sources:
    """The source files of a package ``tvm``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.defines = cache(self._defines)

    def has(self, dotted: str) -> bool:
        """Whether each module of a dotted name has the next part; what classes and functions have is not looked up."""
        module, *parts = dotted.split(".")
        for part in parts:
            if self._file(f"{module}.{part}"):
                module = f"{module}.{part}"
            elif (target := self.defines(module).get(part)) is None:
                return False
            elif target and self._file(target):
                module = target
            else:
                return True
        return True

    def _file(self, module: str) -> Path | None:
        path = self.root.joinpath(*module.split(".")[1:])
        return next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()), None)

    def _defines(self, module: str) -> dict[str, str]:
        """Return the names that a module defines or imports, and from which module each comes."""
        file, found = self._file(module), dict[str, str]()
        for node in ast.walk(ast.parse(file.read_text())) if file else ():
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = ""
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = ""
            elif isinstance(node, ast.Import):
                found |= {each.asname or each.name.split(".")[0]: each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                package = module.split(".") if file and file.name == "__init__.py" else module.split(".")[:-1]
                base = package[: len(package) - node.level + 1] if node.level else []
                source = ".".join([*base, *([node.module] if node.module else [])])
                for each in node.names:
                    if each.name == "*":
                        if source.startswith("tvm") and source != module:
                            found = dict(self.defines(source)) | found
                    else:
                        found[each.asname or each.name] = f"{source}.{each.name}"
        return found


def main(source: str) -> int:
    """Print the names that the checkout lacks, with the files that use them; return 1 if there are any."""
    installed = Path(next(iter(find_spec("tvm").submodule_search_locations)))  # type: ignore[union-attr, arg-type]
    theirs, ours = Sources(Path(source, "python", "tvm")), Sources(installed)
    users: dict[str, list[str]] = defaultdict(list)
    for file in sorted(OURS.rglob("*.py")):
        for name in used(file):
            users[name].append(str(file.relative_to(OURS)))
    missing = {name: files for name, files in sorted(users.items()) if ours.has(name) and not theirs.has(name)}
    for name, files in missing.items():
        print(f"{name}: {', '.join(files)}")
    print(f"{len(missing)} of {len(users)} names are missing")
    return int(bool(missing))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1]))
