"""Latency of real networks on this machine's cores: ours, ONNX Runtime and plain TVM, in one run, batch 1.

Everybody gets the same number of threads. Ours on one device (``cpu1``) computes each kernel with all of them; ours
scheduled (``cpuN``, N the number of threads) computes N kernels side by side. The methods take turns, so that other work
on the machine meets all of them; the figure is the median of all rounds. What ours computes is compared with the peer.
MiniLM has no ONNX file here: its peer is PyTorch.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import Row, parser, report

ONNX = ("inception_v1", "inception_v2", "squeezenet", "resnet50", "densenet121", "shufflenet")
TOLERANCE = 1e-4
Run = Callable[[], np.ndarray]


def onnx_runtime(model: Any, x: np.ndarray, threads: int) -> dict[str, Run]:
    """ONNX Runtime in its two modes."""
    import onnxruntime as ort

    runs: dict[str, Run] = {}
    for name, mode in (("sequential", "ORT_SEQUENTIAL"), ("parallel", "ORT_PARALLEL")):
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        options.execution_mode = getattr(ort.ExecutionMode, mode)
        if name == "parallel":
            options.inter_op_num_threads = threads
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feed = {session.get_inputs()[0].name: x}
        runs[f"ONNX Runtime, {name}"] = lambda session=session, feed=feed: session.run(None, feed)[0]
    return runs


def torch_eager(model: Any, x: np.ndarray, threads: int) -> dict[str, Run]:
    """PyTorch, operator by operator."""
    import torch

    torch.set_num_threads(threads)
    module, tensor = model.module(), torch.from_numpy(x)

    def run() -> np.ndarray:
        with torch.no_grad():
            return module(tensor).numpy()

    return {"PyTorch": run}


def ours(model: Any, x: np.ndarray, threads: int, quick: bool) -> dict[str, Run]:
    """On one device, and scheduled over as many as there are threads."""
    import tvm

    from tvm_sched.relax import compile

    tensor = tvm.runtime.tensor(x)
    runs: dict[str, Run] = {}
    options = {"time_limit": 10 if quick else 60}
    for name, topology, scheduler in (
        ("ours, one device", "cpu1", "single"),
        ("ours, scheduled", f"cpu{threads}", "exact"),
    ):
        compiled = compile(model, topology, scheduler, options if scheduler == "exact" else None)
        runs[name] = lambda compiled=compiled: first(compiled.run(tensor))
    return runs


def plain_tvm(model: Any, x: np.ndarray) -> dict[str, Run]:
    """TVM's default pipeline."""
    import tvm
    from tvm import relax

    from tvm_sched.relax import load_model

    imported = load_model(model)
    mod = relax.transform.BindParams("main", imported.parameters)(imported.mod)
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    tensor = tvm.runtime.tensor(x)
    return {"plain TVM": lambda: first(machine["main"](tensor))}


def first(result: Any) -> np.ndarray:
    """The first tensor of a result, as an array."""
    while isinstance(result, (list, tuple)) or type(result).__name__ == "Array":
        result = result[0]
    return result.numpy() if hasattr(result, "numpy") else result


def medians(runs: dict[str, Run], seconds: float, rounds: int) -> dict[str, float]:
    """Median milliseconds of each method; in each round each runs for its share of the time, after one run to warm up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run()
            end = time.perf_counter() + seconds / rounds
            while time.perf_counter() < end or not times[name]:
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) * 1e3 for name, each in times.items()}


def measure(name: str, threads: int, quick: bool) -> list[Row]:
    """The rows of one network."""
    from tvm_sched.testing import models

    if name == "MiniLM":
        model = models.minilm()
        x = models.token_ids(model)
        runs = torch_eager(model, x, threads)
    else:
        model = models.onnx_model(name, seed=1)
        x = np.random.default_rng(2).standard_normal(models.input_shape(model)[1]).astype("float32")
        runs = onnx_runtime(model, x, threads)
    peer_name = next(iter(runs))
    expected = runs[peer_name]()
    runs |= ours(model, x, threads, quick)
    if not quick:
        runs |= plain_tvm(model, x)
    for method, run in runs.items():
        error = float(np.abs(run() - expected).max() / np.abs(expected).max())
        if error > TOLERANCE:
            raise SystemExit(f"{name}: {method} differs from {peer_name} by {error:.2g}")
    found = medians(runs, 2.0 if quick else 6.0, 4)
    peers = [method for method in found if method.startswith(("ONNX", "PyTorch"))]
    best = min(peers, key=lambda method: found[method])
    rows = [Row(name, method, figure, "ms", found[best], best) for method, figure in found.items()]
    mine = [Row(name, f"{m} / {best}", found[m] / found[best], "ratio") for m in found if m.startswith("ours")]
    return rows + mine


def main() -> None:
    arguments = parser(__doc__.partition("\n")[0], models=False)
    arguments.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of every method")
    arguments.add_argument("--case", action="append", default=[], choices=[*ONNX, "MiniLM"], help="only these networks")
    args = arguments.parse_args()
    for variable in ("TVM_SCHED_NUM_THREADS", "TVM_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    rows: list[Row] = []
    for name in args.case or [*ONNX, "MiniLM"]:
        rows += measure(name, args.threads, args.quick)
        print("; ".join(f"{r.case}: {r.method} {r.figure:.4g} {r.unit}" for r in rows if r.case == name), flush=True)
    report(f"Latency on {args.threads} threads, batch 1", rows, args.json)


if __name__ == "__main__":
    main()
