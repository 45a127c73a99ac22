"""Kernels of ``backend="cuda"`` on this machine's first GPU beside PyTorch's: times from CUDA graphs, values by float64.

``python benchmarks/gpu_kernels.py [WORD ...] [--json FILE]``: those whose names hold one of the words; default: all. Needs
nvcc, PyTorch with CUDA, and for the library ``nvidia`` cuBLASLt and cuDNN. Each time is the median of 15 replays of a graph
of 20 calls, divided by 20.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

TYPES = ("float32", "float16", "bfloat16")
LIBRARIES, ALONE = "handwritten_cuda,nvidia", "handwritten_cuda"
CALLS, REPLAYS = 20, 15
Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """A kernel: how Relax and PyTorch write it, and the shapes of its inputs and constants."""

    name: str
    dtype: str
    emit: Callable[..., Any]
    peer: Callable[..., Any]
    inputs: Shapes
    constants: Shapes = ()
    precision: str = "float32"
    libraries: str = LIBRARIES

    @property
    def title(self) -> str:
        """The name that a person asks for."""
        kind = "tf32" if self.precision == "tf32" else self.dtype
        return f"{self.name} {kind}{'' if self.libraries == LIBRARIES else ', without cuBLASLt and cuDNN'}"


def products(dtype: str) -> Iterator[Case]:
    """Products with weights, of one row to thousands."""
    from tvm import relax

    def emit(e: Any, x: Any, w: Any) -> Any:
        return relax.op.matmul(x, w)

    for m, n, k in ((4096, 4096, 4096), (512, 4096, 4096), (1, 4096, 4096), (384, 768, 3072)):
        shapes = [(m, k)], [(k, n)]
        yield Case(f"product {m}x{n}x{k}", dtype, emit, lambda x, w: x @ w, *shapes)
        if dtype == "float32" and m > 1:
            yield Case(f"product {m}x{n}x{k}", dtype, emit, lambda x, w: x @ w, *shapes, "tf32")
        if m in (1, 512):
            yield Case(f"product {m}x{n}x{k}", dtype, emit, lambda x, w: x @ w, *shapes, libraries=ALONE)


def convolutions(dtype: str) -> Iterator[Case]:
    """With bias and ReLU: (batch, channels, size, outputs, window, stride, padding, groups)."""
    import torch.nn.functional as F  # noqa: N812
    from tvm.relax import op

    cases = {
        "conv 3x3 64>64 56x56": (8, 64, 56, 64, 3, 1, 1, 1),
        "conv 1x1 64>256 56x56": (8, 64, 56, 256, 1, 1, 0, 1),
        "conv 7x7/2 stem": (8, 3, 224, 64, 7, 2, 3, 1),
        "conv 3x3 32 groups": (8, 128, 56, 128, 3, 1, 1, 32),
        "conv 3x3 depthwise": (8, 96, 56, 96, 3, 1, 1, 96),
    }
    for name, (batch, channels, size, outputs, window, stride, padding, groups) in cases.items():

        def emit(e: Any, x: Any, w: Any, b: Any, s: int = stride, p: int = padding, g: int = groups) -> Any:
            y = e(op.nn.conv2d(x, w, strides=s, padding=p, groups=g))
            return op.nn.relu(e(op.add(y, e(op.reshape(b, (1, -1, 1, 1))))))

        def peer(x: Any, w: Any, b: Any, s: int = stride, p: int = padding, g: int = groups) -> Any:
            return F.relu(F.conv2d(x, w, b, s, p, 1, g))

        weights = (outputs, channels // groups, window, window)
        shapes = [(batch, channels, size, size)], [weights, (outputs,)]
        for libraries in (LIBRARIES, ALONE) if window == 3 else (LIBRARIES,):
            yield Case(name, dtype, emit, peer, *shapes, libraries=libraries)


def attention(dtype: str) -> Iterator[Case]:
    """Of (batch, rows, heads, width)."""
    import torch.nn.functional as F  # noqa: N812
    from tvm.relax import op

    sizes = {"8x12x384x64": (8, 384, 12, 64), "causal 1x32x2048x128": (1, 2048, 32, 128)}
    for name, shape in sizes.items():
        causal = name.startswith("causal")

        def emit(e: Any, q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
            return op.nn.attention(q, k, v, causal_mask="TopLeft" if causal else None)

        def peer(*given: Any, causal: bool = causal) -> Any:
            return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in given), is_causal=causal).transpose(1, 2)

        yield Case(f"attention {name}", dtype, emit, peer, [shape] * 3)


def others(dtype: str) -> Iterator[Case]:
    """Epilogues, batches, and what is bound by memory."""
    import torch
    import torch.nn.functional as F  # noqa: N812
    from tvm.relax import op

    rows, width, pairs = [(4096, 1024)], [(1024,)], [(96, 384, 64)] * 2
    yield Case(
        "product+bias+gelu 512x3072x768", dtype,
        lambda e, x, w, b: op.nn.gelu_tanh(e(op.add(e(op.matmul(x, w)), b))),
        lambda x, w, b: F.gelu(torch.addmm(b, x, w), approximate="tanh"),
        [(512, 768)], [(768, 3072), (3072,)],
    )  # fmt: skip
    yield Case(
        "batched 96x384x384x64 transposed", dtype,
        lambda e, x, y: op.matmul(x, e(op.permute_dims(y, [0, 2, 1]))), lambda x, y: x @ y.mT, pairs,
    )  # fmt: skip
    yield Case(
        "layer norm 4096x1024", dtype, lambda e, x, w, b: op.nn.layer_norm(x, w, b, axes=[-1]),
        lambda x, w, b: F.layer_norm(x, (1024,), w, b), rows, width * 2,
    )  # fmt: skip
    yield Case(
        "rms norm 4096x1024", dtype, lambda e, x, w: op.nn.rms_norm(x, w, axes=[-1], epsilon=1e-5),
        lambda x, w: F.rms_norm(x, (1024,), w, 1e-5), rows, width,
    )  # fmt: skip
    yield Case("softmax 4096x1024", dtype, lambda e, x: op.nn.softmax(x), lambda x: x.softmax(-1), rows)
    yield Case(
        "silu x up 512x11008", dtype, lambda e, x, y: op.multiply(e(op.nn.silu(x)), y), lambda x, y: F.silu(x) * y,
        [(512, 11008)] * 2,
    )  # fmt: skip
    yield Case("running sum 512x4096", dtype, lambda e, x: op.cumsum(x, 1), lambda x: x.cumsum(1), [(512, 4096)])
    yield Case("sort 512x1024", dtype, lambda e, x: op.sort(x, 1), lambda x: x.sort(1).values, [(512, 1024)])
    yield Case(
        "max pool 3x3/2 64 112x112", dtype, lambda e, x: op.nn.max_pool2d(x, (3, 3), strides=(2, 2)),
        lambda x: F.max_pool2d(x, 3, 2), [(8, 64, 112, 112)],
    )  # fmt: skip


def cases() -> list[Case]:
    """Return all cases, type by type."""
    return [case for dtype in TYPES for part in (products, convolutions, attention, others) for case in part(dtype)]


def values(case: Case) -> tuple[list[Any], list[Any]]:
    """Draw inputs and constants, the same in each process."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def numbers(shape: tuple[int, ...]) -> Any:
        return torch.randn(shape, generator=generator)

    kind = getattr(torch, case.dtype)
    scaled = [numbers(s) / max(prod(s[1:]) if len(s) == 4 else s[0], 1) ** 0.5 for s in case.constants]
    return [numbers(s).to(kind) for s in case.inputs], [value.to(kind) for value in scaled]


def to_numpy(value: Any) -> Any:
    """Convert a tensor of PyTorch on the CPU, also of bfloat16, to an array."""
    import ml_dtypes
    import torch

    return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if value.dtype == torch.bfloat16 else value.numpy()


def build(title: str, file: str) -> Any:
    """Compile a case to a file; return kernel calls with tensor names, tensors' shapes and types, predicted us."""
    warnings.simplefilter("ignore")
    import tvm
    from tvm import relax

    from tvm_sched.relax import compile

    case = next(case for case in cases() if case.title == title)
    os.environ["TVM_SCHED_KERNEL_LIBRARIES"] = case.libraries
    inputs = [relax.Var(f"x{k}", relax.TensorType(shape, case.dtype)) for k, shape in enumerate(case.inputs)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            constants = (relax.const(tvm.runtime.tensor(to_numpy(value))) for value in values(case)[1])
            result = builder.emit_output(case.emit(builder.emit, *inputs, *constants))
        builder.emit_func_output(result)
    made = compile(builder.get(), "h200x8", "single", backend="cuda", precision=case.precision)
    made.export(file)
    steps = [step for step in made.module.plans()[0]["steps"] if step["kind"] == "kernel"]
    graph = made.problem.graph
    calls = [(s["function"], [*o.inputs, *o.outputs]) for s, o in zip(steps, graph.operators, strict=True)]
    tensors = {tensor.name: (list(tensor.shape), tensor.dtype) for tensor in graph.tensors}
    return calls, tensors, sum(row[0] for row in made.problem.costs.operator_ns.tolist()) / 1e3


def microseconds(run: Callable[[], Any]) -> float:
    """Return the microseconds of a call, measured in a CUDA graph of many calls."""
    import torch

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            run()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / CALLS)
    return sorted(times)[REPLAYS // 2]


def find(modules: Any, name: str) -> Any:
    """Find a function in the modules that an artifact imports."""
    for module in modules:
        try:
            return module.get_function(name)
        except AttributeError:
            continue
    raise LookupError(name)


def measure(case: Case, file: str, built: Any) -> dict[str, Any]:
    """Measure times and errors of our kernels and PyTorch's."""
    import torch
    import tvm_ffi

    from tvm_sched.runtime import load

    calls, tensors, predicted = built
    loaded = load(file)
    loaded.configure(devices=[0] * 8)
    inputs, constants = values(case)
    found = torch.from_numpy(np.asarray(loaded.run(*map(to_numpy, inputs))[0]).astype("float64"))
    on_gpu = [value.cuda() for value in (*inputs, *constants)]
    exact = case.peer(*(value.double() for value in on_gpu)).cpu()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
    memory = {}
    for name, (shape, dtype) in tensors.items():
        memory[name] = torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda")
        if dtype in TYPES:
            memory[name].normal_()
    kernels = [
        (find(loaded.module.imports, name), [tvm_ffi.from_dlpack(memory[n]) for n in names]) for name, names in calls
    ]

    def ours() -> None:
        with tvm_ffi.use_torch_stream():
            for function, given in kernels:
                function(*given)

    def error(value: Any) -> float:
        return ((value.reshape(exact.shape) - exact).abs().max() / exact.abs().max()).item()

    return {
        "us": microseconds(ours),
        "torch_us": microseconds(lambda: case.peer(*on_gpu)),
        "predicted_us": predicted,
        "error": error(found),
        "torch_error": error(case.peer(*on_gpu).double().cpu()),
        "kernels": [name for name, _ in calls],
    }


def why_not() -> str | None:
    """Return why nothing can be measured here."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch is missing ({error})"
    return None if torch.cuda.is_available() else "PyTorch finds no GPU"


def main() -> None:
    """Compile in many processes, then measure one case after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="parts of names")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    asked = parser.parse_args()
    if reason := why_not():
        parser.exit(message=f"nothing is measured: {reason}\n")
    chosen = [case for case in cases() if not asked.words or any(word in case.title for word in asked.words)]
    rows = {}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor() as pool:
        files = [f"{folder}/{k}.so" for k in range(len(chosen))]
        built = list(pool.map(build, [case.title for case in chosen], files))
        print("| kernel | ours, us | PyTorch, us | predicted, us | error | PyTorch's |\n|---|---|---|---|---|---|")
        for case, file, each in zip(chosen, files, built, strict=True):
            row = rows[case.title] = measure(case, file, each)
            times = " | ".join(f"{row[name]:.1f}" for name in ("us", "torch_us", "predicted_us"))
            print(f"| {case.title} | {times} | {row['error']:.0e} | {row['torch_error']:.0e} |", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
