"""Random ONNX graphs compiled here and compared with ONNX Runtime: right, refused, wrong.

``python distributions/frontends/benchmarks/onnx_fuzz.py --count 2000 --seed 0`` ends with status 1 if a graph is wrong or
the compiler fails with another error than its own; the first is printed shrunk with ``--shrink``.
Tolerances: `frontends.fuzz.onnx_graphs`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import _random_models

from frontends.fuzz.onnx_graphs import RandomGraph, difference, onnx_graphs


def compile_and_run(model: Any, feeds: dict[str, Any]) -> list[Any]:
    import tvm_sched.relax

    shapes = {name: value.shape for name, value in feeds.items()}  # ONNX says 0 for a dimension that it does not know
    compiled = tvm_sched.relax.compile(model, "cpu1", "single", input_shapes=shapes)
    result = compiled.run(*feeds.values())
    return result if isinstance(result, list) else [result]


def judge(graph: RandomGraph) -> tuple[str, str]:
    """``right``, ``refused``, ``no reference``, ``wrong`` or ``failed``, and why."""
    verdict, why = _random_models.judge(lambda: difference(graph, compile_and_run))
    theirs = verdict == "failed" and why.startswith("onnxruntime.")
    return ("no reference", why) if theirs else (verdict, why)


def main() -> int:
    parser = _random_models.parser(__doc__.splitlines()[0], "graph", count=2000, steps=6)
    parser.add_argument("--keep", type=Path, help="folder for the models that are wrong")
    options = parser.parse_args()

    def keep(graph: RandomGraph, verdict: str, number: int) -> None:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{verdict}{number}.onnx").write_bytes(graph.model.SerializeToString())

    return _random_models.examine(onnx_graphs(options.steps), judge, options, "graph", keep)


if __name__ == "__main__":
    sys.exit(main())
