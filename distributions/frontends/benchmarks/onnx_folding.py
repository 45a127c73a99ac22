"""Libraries that fold constants in ONNX models, compared on real files: how many become importable, and how long it takes.

Needs ``pip install onnxslim onnxsim onnxruntime`` besides the extra ``onnx``. Inputs are frozen before each of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))  # what all benchmarks share
from _common import parser
from _real_models import MORE, TESTED
from _result_page import Row, report

ALL = [*TESTED, *MORE]
SECONDS = 900


def _frozen(number: int, folder: Path | None) -> tuple[Any, dict[str, tuple[int, ...]]]:
    import numpy as np
    import onnx

    real = ALL[number]
    model = onnx.load(real.path(folder))
    initializers = {tensor.name for tensor in model.graph.initializer}
    shapes = {}
    for item in list(model.graph.input):
        tensor = item.type.tensor_type
        if item.name in real.constants:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            value = np.asarray(real.constants[item.name], dtype).reshape([1] * len(tensor.shape.dim))
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, item.name))
            model.graph.input.remove(item)
        elif item.name not in initializers:
            given = real.shapes.get(item.name, tuple(dim.dim_value for dim in tensor.shape.dim))
            shapes[item.name] = given
            del tensor.shape.dim[:]
            for size in given:
                tensor.shape.dim.add().dim_value = size
    return model, shapes


def _onnxscript(model: Any) -> Any:
    from onnxscript import optimizer

    return optimizer.optimize(model)


def _onnxsim(model: Any) -> Any:
    import onnxsim

    return onnxsim.simplify(model)[0]


def _onnxslim(model: Any) -> Any:
    import onnxslim

    return onnxslim.slim(model)


def _onnxruntime(model: Any) -> Any:
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = f"{folder}/m.onnx"
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(f"{folder}/m.onnx")


LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "none": lambda model: model,
    "onnxscript optimizer": _onnxscript,
    "onnxsim": _onnxsim,
    "onnxslim": _onnxslim,
    "ONNX Runtime, basic": _onnxruntime,
}
OURS = "tvm_sched (onnxscript, loops, branches)"


def _one(library: str, number: int, folder: Path | None) -> dict[str, Any]:
    from tvm_frontends.onnx import prepare
    from tvm_frontends.onnx.convert_graph import check_operators, convert
    from tvm_sched_runtime.errors import TvmSchedError

    model, shapes = _frozen(number, folder)
    start = time.perf_counter()
    try:
        made = (
            prepare.prepare(model, shapes, None, "model")
            if library == OURS
            else prepare.Prepared(LIBRARIES[library](model))
        )
        seconds = time.perf_counter() - start
        check_operators(made.model, "model")
        convert(made, shapes, "model")
    except TvmSchedError as error:
        return {"seconds": time.perf_counter() - start, "refused": str(error)}
    return {"seconds": seconds}


def _all(library: str, numbers: list[int], folder: Path | None) -> None:
    """Print a line of JSON for each model."""
    for number in numbers:
        try:
            print(json.dumps(_one(library, number, folder)), flush=True)
        except Exception as error:  # whatever the library raises
            print(json.dumps({"seconds": 0.0, "failed": str(error)}), flush=True)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, help="where the packages are unpacked, instead of this environment")
    arguments.add_argument("--library", help="try one library, in this process")
    options = arguments.parse_args()
    numbers = [number for number, real in enumerate(ALL) if real.path(options.folder).exists()]
    numbers = numbers[:4] if options.quick else numbers
    if options.library:
        _all(options.library, numbers, options.folder)
        return
    case = f"{len(numbers)} files"
    rows = []
    for library in (*LIBRARIES, OURS):
        command = [
            sys.executable,
            __file__,
            "--library",
            library,
            *(["--folder", str(options.folder)] if options.folder else []),
        ]
        done = subprocess.run(
            command + (["--quick"] if options.quick else []),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
        failed = len(numbers) - len(outcomes) + sum("failed" in outcome for outcome in outcomes)
        imported = sum(not {"refused", "failed"} & set(outcome) for outcome in outcomes)
        rows.append(Row(case, library, imported, "imported"))
        rows.append(Row(case, library, failed, "the library failed"))
        rows.append(Row(case, library, sum(outcome["seconds"] for outcome in outcomes), "seconds in all"))
        print(library, imported, failed, flush=True)
    report("Constant folding of ONNX models", rows, options.json, options.markdown)


if __name__ == "__main__":
    main()
