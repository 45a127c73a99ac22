"""Latency of real networks on this machine's cores: ours, ONNX Runtime and plain TVM, in one run, batch 1.

Everybody gets the same number of threads. Ours on one device (``cpu1``) computes each kernel with all of them, one after
another; ours measured (``cpu``) is what the compiler chose by measurement among that, operators side by side, and logical
devices; ours scheduled (``cpuN``, N the number of threads) computes N kernels side by side, whether that pays or not. Each
method has a process of its own, for
idle threads of one that wait in a loop would take the cores from the next; the processes take turns, so that other work on
the machine meets all of them. The figure is the median of all rounds. What ours computes is compared with the peer. MiniLM,
Inception-v3 and NASNet-A mobile have no ONNX file here: their peer is PyTorch.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import Row, parser, report

ONNX = ("inception_v1", "inception_v2", "squeezenet", "resnet50", "densenet121", "shufflenet")
TORCH = ("MiniLM", "Inception-v3", "NASNet-A mobile")
TOLERANCE = 1e-4
ROUNDS = 4
Run = Callable[[], np.ndarray]


def onnx_runtime(model: Any, x: np.ndarray, threads: int, mode: str) -> Run:
    """ONNX Runtime; ``mode`` is "sequential" or "parallel"."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.execution_mode = getattr(ort.ExecutionMode, f"ORT_{mode.upper()}")
    if mode == "parallel":
        options.inter_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x}
    return lambda: session.run(None, feed)[0]


def torch_eager(model: Any, x: np.ndarray, threads: int) -> Run:
    """PyTorch, operator by operator."""
    import torch

    torch.set_num_threads(threads)
    module, tensor = model.module(), torch.from_numpy(x)

    def run() -> np.ndarray:
        with torch.no_grad():
            return module(tensor).numpy()

    return run


def ours(model: Any, x: np.ndarray, topology: str, quick: bool) -> tuple[Run, str]:
    """On one device, as measured, or scheduled over several; and what was chosen by measurement."""
    import tvm

    from tvm_sched.relax import compile

    tensor = tvm.runtime.tensor(x)
    one = topology in ("cpu", "cpu1")
    compiled = compile(
        model, topology, "single" if one else "exact", None if one else {"time_limit": 10 if quick else 60}
    )
    chosen = compiled.schedule.notes.get("measured", {}).get("chosen", "")
    return lambda: first(compiled.run(tensor)), chosen


def plain_tvm(model: Any, x: np.ndarray) -> Run:
    """TVM's default pipeline."""
    import tvm
    from tvm import relax

    from tvm_sched.relax import load_model

    imported = load_model(model)
    mod = relax.transform.BindParams("main", imported.parameters)(imported.mod)
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    tensor = tvm.runtime.tensor(x)
    return lambda: first(machine["main"](tensor))


def first(result: Any) -> np.ndarray:
    """The first tensor of a result, as an array."""
    while isinstance(result, (list, tuple)) or type(result).__name__ == "Array":
        result = result[0]
    return result.numpy() if hasattr(result, "numpy") else result


def network(name: str) -> tuple[Any, np.ndarray]:
    """A network with weights that are the same in every process, and an input."""
    from tvm_sched.testing import models

    if name == "MiniLM":
        model = models.minilm()
        return model, models.token_ids(model)
    rng = np.random.default_rng(2)
    if name in TORCH:
        import torch

        from tvm_sched.testing import branched

        torch.manual_seed(1)
        made, size = (branched.inception_v3, 299) if name == "Inception-v3" else (branched.nasnet_mobile, 224)
        return branched.exported(made(), size), rng.standard_normal((1, 3, size, size)).astype("float32")
    model = models.onnx_model(name, seed=1)
    return model, rng.standard_normal(models.input_shape(model)[1]).astype("float32")


def make(name: str, method: str, threads: int, quick: bool) -> tuple[Run, str]:
    """What one run of a method on a network is, and a word on it."""
    model, x = network(name)
    if method.startswith("ONNX Runtime"):
        return onnx_runtime(model, x, threads, method.rpartition(" ")[2]), ""
    if method == "PyTorch":
        return torch_eager(model, x, threads), ""
    if method == "plain TVM":
        return plain_tvm(model, x), ""
    return ours(model, x, {"ours, one device": "cpu1", "ours, measured": "cpu"}.get(method, f"cpu{threads}"), quick)


def serve(pipe: Any, name: str, method: str, threads: int, quick: bool) -> None:
    """A method's process: says what it computes, then measures for as long as it is told, until told nothing."""
    run, word = make(name, method, threads, quick)
    pipe.send((run(), word))
    for seconds in iter(pipe.recv, None):
        run()
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not times:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        pipe.send(times)


class Method:
    """A method in a process of its own."""

    def __init__(self, name: str, method: str, threads: int, quick: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, name, method, threads, quick), daemon=True)
        self.process.start()
        other.close()
        self.result, self.word = self.receive()
        self.times: list[float] = []

    def receive(self) -> Any:
        """What the process sends next."""
        try:
            return self.pipe.recv()
        except EOFError:
            raise SystemExit("a method's process ended; its error stands above") from None

    def measure(self, seconds: float) -> None:
        """Run for a while and note the times."""
        self.pipe.send(seconds)
        self.times += self.receive()

    def end(self) -> None:
        """Let the process go."""
        self.pipe.send(None)
        self.process.join()


def measure(name: str, threads: int, quick: bool) -> list[Row]:
    """The rows of one network."""
    peers = ["PyTorch"] if name in TORCH else ["ONNX Runtime, sequential", "ONNX Runtime, parallel"]
    names = [*peers, "ours, one device", "ours, measured", "ours, scheduled", *([] if quick else ["plain TVM"])]
    methods = {method: Method(name, method, threads, quick) for method in names}
    expected = methods[peers[0]].result
    for method, process in methods.items():
        error = float(np.abs(process.result - expected).max() / np.abs(expected).max())
        if error > TOLERANCE:
            raise SystemExit(f"{name}: {method} differs from {peers[0]} by {error:.2g}")
    for _ in range(ROUNDS):
        for process in methods.values():
            process.measure((2.0 if quick else 6.0) / ROUNDS)
    found = {method: statistics.median(process.times) * 1e3 for method, process in methods.items()}
    for process in methods.values():
        process.end()
    best = min(peers, key=lambda method: found[method])
    rows = [Row(name, method, figure, "ms", found[best], best) for method, figure in found.items()]
    mine = [Row(name, f"{m} / {best}", found[m] / found[best], "ratio") for m in found if m.startswith("ours")]
    chosen = f"ours, measured ({methods['ours, measured'].word}) / one device"
    mine.append(Row(name, chosen, found["ours, measured"] / found["ours, one device"], "ratio"))
    return rows + mine


def main() -> None:
    arguments = parser(__doc__.partition("\n")[0], models=False)
    arguments.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of every method")
    arguments.add_argument("--case", action="append", default=[], choices=[*ONNX, *TORCH], help="only these networks")
    args = arguments.parse_args()
    for variable in ("TVM_SCHED_NUM_THREADS", "TVM_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    rows: list[Row] = []
    for name in args.case or [*ONNX, *TORCH]:
        rows += measure(name, args.threads, args.quick)
        print("; ".join(f"{r.case}: {r.method} {r.figure:.4g} {r.unit}" for r in rows if r.case == name), flush=True)
    report(f"Latency on {args.threads} threads, batch 1", rows, args.json, args.markdown)


if __name__ == "__main__":
    main()
