"""What the runtime adds on a real GPU: a small and a large network by our artifact and by PyTorch, inputs on host and GPU.

Prints Markdown. Needs one NVIDIA GPU, nvcc, and PyTorch with CUDA. Times are the caller's, from the call to the moment when
the results are known to be there; medians of runs in rows, which take turns, so that a change of the machine's speed meets
all.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from typing import Any

import numpy as np
from _gpu import Run, medians, torch_runs

from tvm_sched import _library
from tvm_sched.doctor.gpus import gpu_report
from tvm_sched.problem import load_topology
from tvm_sched.relax import compile
from tvm_sched.runtime import load


def networks(torch: Any) -> dict[str, tuple[Any, Any]]:
    """A module of PyTorch and its input, by name."""

    class Branches(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, size: int, width: int) -> None:
            super().__init__()
            self.up = torch.nn.ModuleList(torch.nn.Linear(size, width) for _ in range(4))
            self.down = torch.nn.ModuleList(torch.nn.Linear(width, size) for _ in range(4))
            self.norm = torch.nn.LayerNorm(size)

        def forward(self, x: Any) -> Any:
            return self.norm(sum(down(torch.relu(up(x))) for up, down in zip(self.up, self.down, strict=True)))

    torch.manual_seed(0)
    return {
        "32 rows of 64, 4 branches of 96": (Branches(64, 96).eval(), torch.randn(32, 64)),
        "512 rows of 1024, 4 branches of 4096": (Branches(1024, 4096).eval(), torch.randn(512, 1024)),
        "8192 rows of 1024, 4 branches of 4096": (Branches(1024, 4096).eval(), torch.randn(8192, 1024)),
    }


def our_runs(artifact: str, value: Any, expected: Any) -> tuple[dict[str, Run], float]:
    """Return the runs of the artifact, parameters on the GPU, and the largest error against PyTorch on the CPU."""
    on_host, on_gpu = value.numpy(), value.cuda()
    runs: dict[str, Run] = {}
    worst = 0.0
    for graph in (False, True):
        for given, where in ((on_host, "NumPy"), (on_gpu, "tensor on the GPU")):
            module = load(artifact)  # of its own: a graph is captured for inputs that lie so
            module.configure(resident=1.0, graph=graph)
            for _ in range(3):
                (found,) = module.run(given)
            found = found.cpu().numpy() if hasattr(found, "cpu") else found
            worst = max(worst, float(np.abs(found - expected).max() / np.abs(expected).max()))
            name = f"ours, {where}{', CUDA graph' if graph else ''}"
            runs[name] = lambda module=module, given=given: module.run(given)
    return runs, worst


def late_producer(torch: Any, artifact: str, value: Any) -> int:
    """Count wrong results of 40 runs whose input the caller writes late, on a side stream."""
    module = load(artifact)
    side, wrong = torch.cuda.Stream(), 0
    given = value.cuda()
    for turn in range(40):
        module.configure(graph=turn >= 20, resident=1.0)
        written = torch.zeros_like(given)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            written.copy_(given * (1 + turn))
            (found,) = module.run(written)
            kept = found.clone()
        torch.cuda.synchronize()
        (expected,) = module.run(value.numpy() * np.float32(1 + turn))
        wrong += not np.allclose(kept.cpu().numpy(), expected, rtol=1e-4, atol=1e-4)
    return wrong


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--topology", default="h200x8", help="of one GPU; its first device counts")
    arguments.add_argument("--repeat", type=int, default=100)
    options = arguments.parse_args()
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    report, reason = gpu_report()
    if report is None:
        raise SystemExit(reason)
    gpu = report["gpus"][0]
    print(f"{gpu['name']}, {gpu['arch']}, driver for CUDA {report['driver'] / 1000:.1f}, PyTorch {torch.__version__}\n")
    topology = load_topology(options.topology)
    tables: dict[str, dict[str, float]] = {}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for number, (name, (module, value)) in enumerate(networks(torch).items()):
            artifact = f"{folder}/{number}.so"
            compile(torch.export.export(module, (value,)), topology, "single", backend="cuda").export(artifact)
            runs, error = our_runs(artifact, value, module(value).numpy())
            print(f"- {name}: greatest error {error:.1e} of the greatest value", flush=True)
            tables[name] = medians({**torch_runs(torch, module, value), **runs}, options.repeat)
        small = next(iter(networks(torch).values()))[1]
        wrong = late_producer(torch, f"{folder}/0.so", small)
    print(f"- input written late on a side stream: {wrong} of 40 runs wrong\n")
    print(f"| us | {' | '.join(tables)} |\n|---|{'---:|' * len(tables)}")
    for run in next(iter(tables.values())):
        print(f"| {run} | {' | '.join(f'{table[run]:.0f}' for table in tables.values())} |")
    rates = [float(rate) / 1e9 for rate in _library.function("tvm_sched.cuda_copy_rates")(0, 256 << 20)]
    names = ("from the host", "to the host", "from the host, both ways", "to the host, both ways", "within the GPU")
    print("\n| copies of 256 MiB | GB/s |\n|---|---:|")
    for name, rate in zip(names, rates, strict=True):
        print(f"| {name} | {rate:.1f} |")
    print(f"\n{json.dumps({'gpu': gpu})}")


if __name__ == "__main__":
    main()
