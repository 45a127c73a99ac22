"""Imports all of ``tvm-sched-runtime`` in an environment that holds nothing else, and prices a schedule there.

``make test-wheels`` runs it, and cibuildwheel for each CPython; nothing of the source tree is on its path.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
from importlib import metadata

ABSENT = ("tvm", "tvm_sched", "ortools", "scipy", "xgboost", "typer", "rich")

present = [name for name in ABSENT if importlib.util.find_spec(name)]
assert not present, f"these are installed, so nothing is shown: {present}"

files = [file for file in metadata.files("tvm-sched-runtime") or () if file.suffix == ".py"]
modules = [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files]
assert len(modules) > 40, modules
for module in modules:
    if not module.startswith("tvm_sched_serve."):  # needs the extra `serve`
        importlib.import_module(module)

import tvm_sched_runtime  # noqa: E402
from tvm_sched_runtime.core_library import function  # noqa: E402
from tvm_sched_runtime.problem import load_topology  # noqa: E402

topology = load_topology("v100-server")
assert len(topology.devices) == 4
why_not = function("tvm_sched.why_not_onednn")()
print(
    f"Python {platform.python_version()}, tvm-sched-runtime {tvm_sched_runtime.__version__}: {len(modules)} modules,",
    f"oneDNN: {why_not or 'there'}",
)
