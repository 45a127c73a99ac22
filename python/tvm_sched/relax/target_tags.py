"""Target strings of topologies. ``import tvm`` imports this file, so it needs the standard library only."""

from __future__ import annotations

from typing import Any

PREFIX = "tvm_sched/"
"""Target tags are this and the name of a preset topology."""
THROUGHPUT = "/throughput"
"""Behind such a tag: a pipeline of stages, for batches that follow each other."""


def config(model: str, options: str = "{}") -> dict[str, Any]:
    """What `tvm.target.Target` makes of a topology; ``libs`` carries options, as composite targets have no own fields.

    ``options``: a JSON object of `CompileOptions`.
    """
    return {
        "kind": "composite",
        "keys": ["tvm_sched"],
        "model": model,
        "libs": [options],
        "devices": [{"kind": "llvm"}],
        "host": {"kind": "llvm"},  # else TVM takes the composite target itself for that of the host's code
    }
