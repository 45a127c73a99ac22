"""Target strings of topologies. ``import tvm`` imports this file, so it needs the standard library only."""

from __future__ import annotations

from typing import Any

PREFIX = "tvm_sched/"
"""Target tags are this and the name of a preset topology."""
THROUGHPUT = "/throughput"
"""Suffix of a tag for the objective throughput: a pipeline of stages."""
SORTINGHAT = "/sortinghat"
"""Suffix of a tag for SortingHat as its paper has it, from the split at dominators to the launch order."""
SUFFIXES: dict[str, dict[str, Any]] = {
    "": {},
    THROUGHPUT: {"objective": "throughput"},
    # One stream a device keeps the order that the programs give; the paper's graphs have no alternatives.
    SORTINGHAT: {"scheduler": "sortinghat", "cost_model": "learned", "streams": "one", "variants": False},
}
"""Compile options of each suffix."""


def config(model: str, options: str = "{}") -> dict[str, Any]:
    """Return the configuration of a topology's `tvm.target.Target`.

    ``options`` is a JSON object of `CompileOptions`. It is stored in ``libs``, since composite targets have no own fields.
    """
    return {
        "kind": "composite",
        "keys": ["tvm_sched"],
        "model": model,
        "libs": [options],
        "devices": [{"kind": "llvm"}],
        "host": {"kind": "llvm"},  # else TVM takes the composite target itself for that of the host's code
    }
