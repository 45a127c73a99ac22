"""Makes the files of a network that the methods of `cpu_latency` load, each in a process of its own.

``export NAME FOLDER`` writes model.pt2, model.onnx, inputs.npz, expected.npz; ``compile FOLDER TOPOLOGY FILE`` our artifact.
Why a file could not be made stands in notes.json.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from _cpu_models import cases
from _cpu_worker import kind_of


def export(name: str, folder: Path) -> None:
    """Write a network's files."""
    folder.mkdir(parents=True, exist_ok=True)
    case = cases()[name]
    if case.group == "architectures":
        import torch

        torch.manual_seed(1)
        model, inputs = case.make()
        notes = _export_torch(model.eval(), inputs, folder)
    else:
        model, inputs = case.make()
        notes = _save_onnx(model, inputs, folder)
    np.savez(folder / "inputs.npz", **inputs)
    (folder / "notes.json").write_text(json.dumps(notes))


def _export_torch(model: Any, inputs: dict[str, np.ndarray], folder: Path) -> dict[str, str]:
    import torch

    notes = {}
    values = tuple(torch.from_numpy(value) for value in inputs.values())
    with torch.no_grad():
        program = torch.export.export(model, values)
        _save_expected(folder, torch.utils._pytree.tree_leaves(program.module()(*values)))
        torch.export.save(program, folder / "model.pt2")
        try:
            torch.onnx.export(program, dynamo=True, verbose=False).save(folder / "model.onnx")
        except Exception as error:
            notes["onnx"] = f"torch.onnx.export: {_word(error)}"
    return notes


def _save_onnx(model: Any, inputs: dict[str, np.ndarray], folder: Path) -> dict[str, str]:
    import onnx
    import onnxruntime as ort

    onnx.save(model, folder / "model.onnx")
    session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    _save_expected(folder, session.run(None, inputs))
    return {"torch": "there is no PyTorch form of this file"}


def _save_expected(folder: Path, values: Any) -> None:
    np.savez(folder / "expected.npz", *[np.asarray(value) for value in values])


def compile_ours(folder: Path, topology: str, file: Path) -> None:
    """Compile our artifact from the exported program, or from the ONNX file if the program is missing or refused."""
    from tvm_sched_runtime.errors import TvmSchedError

    refused: TvmSchedError | None = None
    for source in ("model.pt2", "model.onnx"):
        if (folder / source).exists():
            try:
                return _compile(folder, source, topology, file)
            except TvmSchedError as error:
                refused = refused or error
    raise refused or FileNotFoundError(f"{folder} has no model")


def _compile(folder: Path, source: str, topology: str, file: Path) -> None:
    import tvm_sched.relax

    with np.load(folder / "inputs.npz") as inputs:
        shapes = {name: value.shape for name, value in inputs.items()}
    begin = time.perf_counter()
    one = topology == "cpu1"
    compiled = tvm_sched.relax.compile(
        folder / source,
        topology,
        "single" if one else "anytime",
        None if one else {"time_limit": 10},
        input_shapes=shapes if source == "model.onnx" else None,
        parameters="auto",
    )
    compiled.export(file)
    compiled.problem.save(file.with_suffix(".problem.json"))
    seconds = time.perf_counter() - begin
    chosen = compiled.schedule.notes.get("measured", {}).get("chosen", "")
    notes = {"seconds": seconds, "source": source, "chosen": chosen, "roofline": _rooflines(compiled.problem)}
    file.with_suffix(".json").write_text(json.dumps(notes))


def _rooflines(problem: Any) -> dict[str, float]:
    """Return the roofline's seconds of the kernels of each kind, by the rates of the device."""
    from tvm_sched.cost_model.roofline_model import roofline

    found: dict[str, float] = {}
    least = roofline(problem.graph, problem.topology).operator_ns.min(axis=1)
    for operator, nanoseconds in zip(problem.graph.operators, least, strict=True):
        kind = kind_of(operator.name)
        found[kind] = found.get(kind, 0.0) + float(nanoseconds) / 1e9
    return found


def _word(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"


def main() -> None:
    warnings.simplefilter("ignore")
    what, *rest = sys.argv[1:]
    try:
        if what == "export":
            export(rest[0], Path(rest[1]))
        else:
            compile_ours(Path(rest[0]), rest[1], Path(rest[2]))
    except Exception as error:
        print(f"\n{_word(error)}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
