"""What examples, benchmarks and scripts of the distributions import from our packages is there, also inside of functions."""

import ast
import importlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("tvm_frontends", "tvm_sched")
FILES = sorted(file for folder in ("examples", "benchmarks", "distributions") for file in (ROOT / folder).rglob("*.py"))


def imported(file):
    """Modules and names that a file imports from our packages."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level and str(node.module).startswith(OURS):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.startswith(OURS))


def missing(module, name):
    """Return what is not there; a package of others that is not installed is no fault."""
    try:
        found = importlib.import_module(module)
        if name is not None and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        return str(error) if str(error.name).startswith(OURS) else ""
    return ""


def test_every_name_is_there():
    wanted = {(module, name): file for file in FILES for module, name in imported(file)}
    assert len(wanted) > 200
    faults = [
        f"{file.relative_to(ROOT)}: {text}"
        for (module, name), file in sorted(wanted.items(), key=str)
        if (text := missing(module, name))
    ]
    assert not faults
