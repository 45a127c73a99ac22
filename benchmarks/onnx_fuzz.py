"""Random ONNX graphs compiled here and compared with ONNX Runtime: right, refused, wrong.

``python benchmarks/onnx_fuzz.py --count 2000 --seed 0`` ends with status 1 where a graph is wrong or the compiler fails
with another error than its own; the first is printed shrunk with ``--shrink``. Tolerances: `tvm_sched.testing.onnx_graphs`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis

from tvm_sched.errors import TvmSchedError
from tvm_sched.testing.onnx_graphs import RandomGraph, difference, onnx_graphs


def compile_and_run(model: Any, feeds: dict[str, Any]) -> list[Any]:
    import tvm_sched.relax

    shapes = {name: value.shape for name, value in feeds.items()}  # ONNX says 0 for a dimension that it does not know
    compiled = tvm_sched.relax.compile(model, "cpu1", "single", input_shapes=shapes)
    result = compiled.run(*feeds.values())
    return result if isinstance(result, list) else [result]


def judge(graph: RandomGraph) -> tuple[str, str]:
    """``right``, ``refused``, ``wrong`` or ``failed``, and why."""
    try:
        told = difference(graph, compile_and_run)
    except TvmSchedError as error:
        return "refused", str(error)
    except Exception as error:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        if kind.startswith("onnxruntime."):
            return "no reference", str(error)
        return "failed", f"{kind}: {error}"
    return ("wrong", told) if told else ("right", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="graphs (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of hypothesis (default 0)")
    parser.add_argument("--nodes", type=int, default=6, help="most steps of a graph (default 6)")
    parser.add_argument("--shrink", action="store_true", help="stop at the first that is wrong, and make it small")
    parser.add_argument("--keep", type=Path, help="folder for the models that are wrong")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    started = time.monotonic()

    @hypothesis.seed(options.seed)
    @hypothesis.settings(
        max_examples=options.count, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(onnx_graphs(options.nodes))
    def examine(graph: RandomGraph) -> None:
        verdict, why = judge(graph)
        counts[verdict] += 1
        if verdict in ("refused", "no reference"):
            reasons[f"{verdict}: {why.splitlines()[0][:160]}"] += 1
        elif verdict != "right":
            if options.shrink:
                raise AssertionError(f"{verdict}: {why}")
            print(f"{verdict}: {why[:500]}\n{graph}\n", flush=True)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{verdict}{counts[verdict]}.onnx").write_bytes(graph.model.SerializeToString())

    examine()
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")
    total = sum(counts.values())
    print(f"{total} graphs, seed {options.seed}, {time.monotonic() - started:.0f} s: "
          + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))  # fmt: skip
    return 1 if counts["wrong"] or counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
