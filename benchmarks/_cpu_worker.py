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
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[], Any]
Groups = dict[str, list[float]]
"""By kind of kernel: how many there are, and their seconds in a typical run."""
KERNELS, TRACED_RUNS = "kernels", 9
"""What is read in place of a number of seconds to ask for the times of kernels, and how many runs these come from."""


class OnnxRuntime:
    """ONNX Runtime, with the times of its kernels."""

    def __init__(self, folder: Path, inputs: dict[str, np.ndarray], threads: int, _file: str) -> None:
        self.model, self.threads = folder / "model.onnx", threads
        self.session = self._open("")
        self.feed = dict(zip((each.name for each in self.session.get_inputs()), inputs.values(), strict=True))

    def __call__(self) -> Any:
        """Run it."""
        return self.session.run(None, self.feed)

    def kernels(self) -> Groups:
        """Return the times by ONNX operator."""
        with tempfile.TemporaryDirectory() as folder:
            session = self._open(f"{folder}/profile")
            for _ in range(TRACED_RUNS):
                session.run(None, self.feed)
            events = json.loads(Path(session.end_profiling()).read_text())
        found = [
            (each["name"], each["args"]["op_name"], each["dur"] / 1e6)
            for each in events
            if each.get("cat") == "Node" and each["name"].endswith("_kernel_time")
        ]
        return grouped(found)

    def _open(self, profile: str) -> Any:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self.threads
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        return ort.InferenceSession(self.model, options, providers=["CPUExecutionProvider"])


class OpenVino:
    """OpenVINO, with the times of its kernels."""

    def __init__(self, folder: Path, inputs: dict[str, np.ndarray], threads: int, _file: str) -> None:
        self.folder, self.threads, self.values = folder, threads, list(inputs.values())
        self.request = self._open({"CACHE_DIR": str(folder / "openvino")})

    def __call__(self) -> Any:
        """Run it."""
        return list(self.request.infer(self.values).values())

    def kernels(self) -> Groups:
        """Return the times by node type and implementation."""
        request = self._open({"PERF_COUNT": True})
        found = []
        for _ in range(TRACED_RUNS):
            request.infer(self.values)
            for each in request.profiling_info:
                if each.real_time.total_seconds() > 0:
                    kind = f"{each.node_type} {each.exec_type}"
                    found.append((each.node_name, kind, each.real_time.total_seconds()))
        return grouped(found)

    def _open(self, more: dict[str, Any]) -> Any:
        import openvino

        core = openvino.Core()
        model = core.read_model(self.folder / "model.onnx")
        model.reshape({i: list(value.shape) for i, value in enumerate(self.values)})
        settings = {
            "INFERENCE_NUM_THREADS": self.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            **more,
        }
        return core.compile_model(model, "CPU", settings).create_infer_request()


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
    """Our artifact, with the times of its kernels."""

    def __init__(self, _folder: Path, inputs: dict[str, np.ndarray], _threads: int, file: str) -> None:
        from tvm_sched_runtime import runtime

        self.module, self.notes = runtime.load(file), Path(file).with_suffix(".json")
        self.values = list(inputs.values())

    def __call__(self) -> Any:
        """Run it."""
        return self.module.run(*self.values)

    def kernels(self) -> Groups:
        """Return the times by name without the number at its end, with the roofline's seconds."""
        self.module.configure(trace=True)
        found = []
        for _ in range(TRACED_RUNS):
            self.module.run(*self.values)
            for row in self.module.timeline()["events"]:
                if row["event"]["kind"] == "kernel":
                    name = row["event"]["name"]
                    found.append((name, kind_of(name), (row["end_ns"] - row["start_ns"]) / 1e9))
        self.module.configure(trace=False)
        ideal = json.loads(self.notes.read_text()).get("roofline", {}) if self.notes.exists() else {}
        return {kind: [*figures, ideal.get(kind, 0.0)] for kind, figures in grouped(found).items()}


METHODS: dict[str, Callable[[Path, dict[str, np.ndarray], int, str], Run]] = {
    "ONNX Runtime": OnnxRuntime,
    "OpenVINO": OpenVino,
    "eager": eager,
    "Inductor": inductor,
    "ours": Ours,
    "ours, one stream": Ours,
}


def kind_of(name: str) -> str:
    """Return the name of our operator without the number at its end."""
    head, _, number = name.rpartition(".")
    return head if number.isdigit() else name


def grouped(found: list[tuple[str, str, float]]) -> Groups:
    """Add up by kind the median times of several runs, given as (kernel's name, kind, seconds)."""
    times: dict[tuple[str, str], list[float]] = {}
    for name, kind, seconds in found:
        times.setdefault((name, kind), []).append(seconds)
    groups: Groups = {}
    for (_, kind), several in times.items():
        group = groups.setdefault(kind, [0, 0.0])
        group[0] += 1
        group[1] += statistics.median(several)
    return groups


def error_of(results: list[Any], folder: Path) -> float:
    """Return the largest difference from the expected outputs, relative to the largest value of the output."""
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
    """Return the process's peak memory in MiB."""
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
            say({"kernels": run.kernels() if isinstance(run, Ours | OnnxRuntime | OpenVino) else {}})
            continue
        run()
        times: list[float] = []
        busy: list[float] = []
        end = time.perf_counter() + float(line)
        while time.perf_counter() < end or len(times) < 2:
            start, before = time.perf_counter(), time.process_time()
            run()
            times.append(time.perf_counter() - start)
            busy.append(time.process_time() - before)
        say({"times": times, "processor": busy, "mib": peak_mib()})


if __name__ == "__main__":
    main()
