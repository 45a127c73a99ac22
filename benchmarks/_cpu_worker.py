"""One method on one network in a process of its own: ``METHOD FOLDER THREADS FILE``.

Says at what time it had its first output and how far that is from what is expected; then reads numbers of seconds, a line
each, measures for that long and says the times of the runs. Imports only what its method needs, for the time from the
process's start to the first output is measured, and so is memory.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[], Any]
KERNELS, TRACED_RUNS = "kernels", 9
"""What is read in place of a number of seconds to ask for the times of our kernels, and how many runs these come from."""


def onnx_runtime(folder: Path, inputs: dict[str, np.ndarray], threads: int, _file: str) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    feed = dict(zip((each.name for each in session.get_inputs()), inputs.values(), strict=True))
    return lambda: session.run(None, feed)


def openvino(folder: Path, inputs: dict[str, np.ndarray], threads: int, _file: str) -> Run:
    import openvino

    core = openvino.Core()
    model = core.read_model(folder / "model.onnx")
    model.reshape({i: list(value.shape) for i, value in enumerate(inputs.values())})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "CACHE_DIR": str(folder / "openvino"),
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    values = list(inputs.values())
    return lambda: list(request.infer(values).values())


def eager(folder: Path, inputs: dict[str, np.ndarray], threads: int, _file: str) -> Run:
    return _torch(folder, inputs, threads, lambda module: module)


def inductor(folder: Path, inputs: dict[str, np.ndarray], threads: int, _file: str) -> Run:
    import torch

    return _torch(folder, inputs, threads, lambda module: torch.compile(module, options={"freezing": True}))


def _torch(folder: Path, inputs: dict[str, np.ndarray], threads: int, prepare: Callable[[Any], Any]) -> Run:
    import torch
    from torch.utils._pytree import tree_leaves

    torch.set_num_threads(threads)
    module = prepare(torch.export.load(folder / "model.pt2").module())
    values = [torch.from_numpy(value) for value in inputs.values()]

    def run() -> Any:
        with torch.inference_mode():
            return [value.numpy() for value in tree_leaves(module(*values))]

    return run


class Ours:
    """Our artifact, which tells the times of its kernels, too."""

    def __init__(self, _folder: Path, inputs: dict[str, np.ndarray], _threads: int, file: str) -> None:
        from tvm_sched import runtime

        self.module = runtime.load(file)
        self.values = list(inputs.values())

    def __call__(self) -> Any:
        """Run it."""
        return self.module.run(*self.values)

    def kernels(self) -> dict[str, list[float]]:
        """By name, but for the number at its end: how many kernels there are, and their seconds in a typical run."""
        self.module.configure(trace=True)
        found: dict[str, list[float]] = {}
        for _ in range(TRACED_RUNS):
            self.module.run(*self.values)
            for row in self.module.timeline()["events"]:
                if row["event"]["kind"] == "kernel":
                    found.setdefault(row["event"]["name"], []).append((row["end_ns"] - row["start_ns"]) / 1e9)
        self.module.configure(trace=False)
        groups: dict[str, list[float]] = {}
        for name, times in found.items():
            head, _, number = name.rpartition(".")
            group = groups.setdefault(head if number.isdigit() else name, [0, 0.0])
            group[0] += 1
            group[1] += statistics.median(times)
        return groups


METHODS: dict[str, Callable[[Path, dict[str, np.ndarray], int, str], Run]] = {
    "ONNX Runtime": onnx_runtime,
    "OpenVINO": openvino,
    "eager": eager,
    "Inductor": inductor,
    "ours": Ours,
    "ours, one stream": Ours,
}


def error_of(results: list[Any], folder: Path) -> float:
    """Greatest difference from what is expected, as a share of the greatest value of that output."""
    with np.load(folder / "expected.npz") as expected:
        worst = 0.0
        for result, name in zip(results, expected.files, strict=True):
            wanted, found = expected[name].astype("float64"), np.asarray(result, "float64")
            if wanted.shape != found.shape:
                raise ValueError(f"output of shape {found.shape}; expected is {wanted.shape}")
            scale = np.abs(wanted).max(initial=1e-30)
            worst = max(worst, float(np.abs(found - wanted).max(initial=0.0) / scale))
        return worst


def peak_mib() -> float:
    """Most memory that the process had at a time."""
    status = Path("/proc/self/status").read_text()
    return float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def main() -> None:
    method, folder, threads, file = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(what: Any) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    with np.load(folder / "inputs.npz") as loaded:
        inputs = dict(loaded)
    try:
        run = METHODS[method](folder, inputs, threads, file)
        results = run()
        at = time.monotonic()
        say({"first": at, "mib": peak_mib(), "error": error_of(results, folder)})
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip() and not line.endswith(":")]
        say({"failed": f"{type(error).__name__}: {lines[0][:160] if lines else ''}"})
        raise
    for line in sys.stdin:
        if line.strip() == KERNELS:
            say({"kernels": run.kernels() if isinstance(run, Ours) else {}})
            continue
        run()
        times: list[float] = []
        end = time.perf_counter() + float(line)
        while time.perf_counter() < end or len(times) < 2:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        say({"times": times, "mib": peak_mib()})


if __name__ == "__main__":
    main()
