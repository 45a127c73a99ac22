"""Structures of what commands print with ``--json``; ``tvm-sched schema`` prints their JSON Schema."""

from __future__ import annotations

from typing import Any

import msgspec

from ...relax.inspection import Inspection
from ..attached_commands import COMMAND_SETS
from .benchmarks import Benchmarked, Instances, Proved, Scored, Standing
from .benchmarks import Checked as CheckedSolutions
from .machines import (
    Cached,
    CachePath,
    CheckedTopology,
    Cleared,
    DetectedTopology,
    Diagnosed,
    Learned,
    Presets,
    Profiled,
    ShownTopology,
)
from .pipelines import Partitioned, Pipelined, RanPipeline
from .plans import Planned
from .schedules import (
    Checked,
    CheckedPartition,
    Comparison,
    Comparisons,
    Compiled,
    Demonstrated,
    Explained,
    MadeProblem,
    Method,
    Ran,
    Scheduled,
    Simulated,
    Verified,
)

RESULTS: dict[str, Any] = {
    "compile": Compiled,
    "inspect": Inspection,
    "run": (Ran, RanPipeline),
    "schedule": Scheduled,
    "simulate": Simulated,
    "verify": Verified,
    "check": (Checked, CheckedPartition),
    "explain": Explained,
    "compare": (Comparison, Comparisons),
    "pipeline": (Pipelined, Partitioned),
    "plan": Planned,
    "problem": MadeProblem,
    "generation": MadeProblem,
    "profile": Profiled,
    "learn": Learned,
    "topology list": Presets,
    "topology show": ShownTopology,
    "topology check": CheckedTopology,
    "topology detect": DetectedTopology,
    "bench check": CheckedSolutions,
    "bench prove": Proved,
    "bench list": Instances,
    "bench run": Benchmarked,
    "bench score": Scored,
    "bench table": Standing,
    "cache show": Cached,
    "cache clear": Cleared,
    "cache path": CachePath,
    "schedulers": list[Method],
    "doctor": Diagnosed,
    "demo": Demonstrated,
}
"""By command; several where it depends on what the command is given. Those of attached commands follow."""
for _name in COMMAND_SETS.names():
    RESULTS.update(COMMAND_SETS.get(_name).results())


def typed(command: str, data: Any) -> Any:
    """A command's result in its structure; raises `msgspec.ValidationError` where it is none."""
    plain, kinds = msgspec.to_builtins(data), _kinds(command)
    for kind in kinds[:-1]:
        try:
            return msgspec.convert(plain, kind)
        except msgspec.ValidationError:
            continue
    return msgspec.convert(plain, kinds[-1])


def schema(command: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of what a command prints with ``--json``."""
    kinds = _kinds(command)
    found, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"tvm-sched {command}",
        **(found[0] if len(found) == 1 else {"anyOf": list(found)}),
        "$defs": components,
    }


def _kinds(command: str) -> tuple[Any, ...]:
    kinds = RESULTS[command]
    return kinds if isinstance(kinds, tuple) else (kinds,)
