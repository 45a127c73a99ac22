"""Kernels that TVM generates for CPUs, one thread: nanoseconds an element, bytes a second, and PyTorch eager beside them.

Each row is one operator or chain that no kernel library takes. Ours is the sum of its kernels' times in a run of the
executor, the peer's the call of PyTorch on one thread; both take turns, and the least time of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from _common import Row, parser, report

Emit = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A kernel: how Relax and PyTorch write it, and the shapes of its inputs."""

    name: str
    emit: Emit
    peer: Emit
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"


def cases() -> list[Case]:
    return [*_activations(), *_moves(), *_reductions()]


def _activations() -> list[Case]:
    import torch
    from torch.nn import functional as nn
    from tvm import relax

    op = relax.op
    image, tokens = (1, 32, 104, 104), (1, 128, 3072)

    def constant(value: float) -> Any:
        return relax.const(value, "float32")

    def rotary(x: Any, cos: Any, sin: Any) -> Any:
        first, second = (op.strided_slice(x, [3], [k * 32], [k * 32 + 32], [1]) for k in (0, 1))
        return op.add(op.multiply(x, cos), op.multiply(op.concat([op.negative(second), first], axis=-1), sin))

    def rotary_torch(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    def hard_swish(x: Any) -> Any:
        return op.multiply(x, op.divide(op.clip(op.add(x, constant(3.0)), 0, 6), constant(6.0)))

    def mish(x: Any) -> Any:
        return op.multiply(x, op.tanh(op.log(op.add(op.exp(x), constant(1.0)))))

    def elu(x: Any) -> Any:
        return op.where(op.greater(x, constant(0.0)), x, op.subtract(op.exp(x), constant(1.0)))

    def mask(x: Any, y: Any) -> Any:
        return op.where(op.greater(y, constant(0.0)), x, op.full_like(x, constant(-1e9)))

    return [
        Case("SiLU", op.nn.silu, nn.silu, (image,)),
        Case("SiLU, odd", op.nn.silu, nn.silu, ((1, 13, 37, 41),)),
        Case("SiLU, tiny", op.nn.silu, nn.silu, ((1, 40, 1, 1),)),
        Case("GELU, erf", op.nn.gelu, nn.gelu, (tokens,)),
        Case("GELU, tanh", op.nn.gelu_tanh, lambda x: nn.gelu(x, approximate="tanh"), (tokens,)),
        Case("hard swish", hard_swish, nn.hardswish, (image,)),
        Case("Mish", mish, nn.mish, (image,)),
        Case("ELU", elu, nn.elu, (image,)),
        Case("power", lambda x, y: op.power(op.abs(x), y), lambda x, y: x.abs() ** y, ((64, 999), (64, 999))),
        Case("sine and cosine", lambda x: op.add(op.sin(x), op.cos(x)), lambda x: x.sin() + x.cos(), ((128, 999),)),
        Case("add, row", op.add, torch.add, (tokens, (3072,))),
        Case("add, channel", op.add, torch.add, (image, (1, 32, 1, 1))),
        Case("add, last of 1", op.add, torch.add, ((1, 12, 197, 197), (1, 12, 197, 1))),
        Case("add, outer", op.add, torch.add, ((1, 500, 1), (1, 1, 701))),
        Case("mask", mask, lambda x, y: torch.where(y > 0, x, -1e9), ((1, 12, 197, 197), (1, 1, 197, 197))),
        Case("rotary embedding", rotary, rotary_torch, ((1, 16, 128, 64), (1, 1, 128, 64), (1, 1, 128, 64))),
        Case("cast", lambda x: op.astype(x, "int32"), lambda x: x.int(), (tokens,)),
        Case(
            "compare", lambda x, y: op.astype(op.less(x, y), "float32"), lambda x, y: (x < y).float(), (tokens, tokens)
        ),
        Case("add, int64", op.add, torch.add, ((128, 3001), (128, 3001)), "int64"),
    ]


def _moves() -> list[Case]:
    import torch
    from torch.nn import functional as nn
    from tvm import relax

    op = relax.op
    image, heads = (1, 32, 104, 104), (1, 197, 12, 64)

    def resize(method: str, layout: str, size: int) -> Emit:
        return lambda x: op.image.resize2d(x, (size, size), layout=layout, method=method)

    def resize_torch(mode: str, size: int, last: bool = False) -> Emit:
        def run(x: Any) -> Any:
            aligned = {} if mode == "nearest" else {"align_corners": False}
            x = x.permute(0, 3, 1, 2) if last else x
            return nn.interpolate(x, (size, size), mode=mode, **aligned)

        return run

    def depth_to_space(x: Any) -> Any:
        x = op.reshape(x, (1, 2, 2, 8, 104, 104))
        return op.reshape(op.permute_dims(x, (0, 3, 4, 1, 5, 2)), (1, 8, 208, 208))

    def shuffle(x: Any) -> Any:
        return op.reshape(op.permute_dims(op.reshape(x, (1, 2, 16, 104, 104)), (0, 2, 1, 3, 4)), (1, 32, 104, 104))

    return [
        Case("transpose, last two", lambda x: op.permute_dims(x, (1, 0)), lambda x: x.t().contiguous(), ((1000, 770),)),
        Case("NCHW to NHWC", lambda x: op.permute_dims(x, (0, 2, 3, 1)), lambda x: x.permute(0, 2, 3, 1).contiguous(),
             (image,)),
        Case("NHWC to NCHW", lambda x: op.permute_dims(x, (0, 3, 1, 2)), lambda x: x.permute(0, 3, 1, 2).contiguous(),
             ((1, 104, 104, 32),)),
        Case("heads", lambda x: op.permute_dims(x, (0, 2, 1, 3)), lambda x: x.permute(0, 2, 1, 3).contiguous(), (heads,)),
        Case("concat of channels", lambda x, y: op.concat([x, y], axis=1), lambda x, y: torch.cat([x, y], 1),
             (image, (1, 16, 104, 104))),
        Case("concat, last", lambda x, y: op.concat([x, y], axis=-1), lambda x, y: torch.cat([x, y], -1),
             ((128, 300), (128, 77))),
        Case("slice", lambda x: op.strided_slice(x, [3], [1], [77], [1]), lambda x: x[..., 1:77].contiguous(), (image,)),
        Case("slice, step 2", lambda x: op.strided_slice(x, [2, 3], [0, 0], [104, 104], [2, 2]),
             lambda x: x[..., ::2, ::2].contiguous(), (image,)),
        Case("pad", lambda x: op.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1)), lambda x: nn.pad(x, (1, 1, 1, 1)), (image,)),
        Case("nearest, NCHW", resize("nearest_neighbor", "NCHW", 208), resize_torch("nearest", 208), (image,)),
        Case("linear, NCHW", resize("linear", "NCHW", 208), resize_torch("bilinear", 208), (image,)),
        Case("cubic, NCHW", resize("cubic", "NCHW", 208), resize_torch("bicubic", 208), (image,)),
        Case("linear, NHWC", resize("linear", "NHWC", 208), resize_torch("bilinear", 208, True), ((1, 104, 104, 32),)),
        Case("depth to space", depth_to_space, lambda x: nn.pixel_shuffle(x, 2), (image,)),
        Case("channel shuffle", shuffle, lambda x: nn.channel_shuffle(x, 2), (image,)),
        Case("take rows", lambda x: op.take(x, relax.const(np.arange(0, 5000, 39)), 0),
             lambda x: x[torch.arange(0, 5000, 39)], ((5000, 768),)),
    ]  # fmt: skip


def _reductions() -> list[Case]:
    from torch.nn import functional as nn
    from tvm import relax

    op = relax.op
    image, tokens = (1, 32, 104, 104), (128, 768)

    def ones(size: int) -> Any:
        return relax.const(np.ones(size, "float32"))

    def rms(x: Any) -> Any:
        return op.nn.rms_norm(x, ones(768), [-1], 1e-6)

    def rms_torch(x: Any) -> Any:
        return nn.rms_norm(x, (768,), None, 1e-6)

    def group(x: Any) -> Any:
        return op.nn.group_norm(x, ones(32), ones(32), 8, 1, [2, 3])

    return [
        Case("sum, last", lambda x: op.sum(x, 1), lambda x: x.sum(1), (tokens,)),
        Case("sum, first", lambda x: op.sum(x, 0), lambda x: x.sum(0), (tokens,)),
        Case("mean of images", lambda x: op.mean(x, [2, 3]), lambda x: x.mean((2, 3)), (image,)),
        Case("mean of images, NHWC", lambda x: op.mean(x, [1, 2]), lambda x: x.mean((1, 2)), ((1, 104, 104, 32),)),
        Case("max, last", lambda x: op.max(x, 1), lambda x: x.amax(1), (tokens,)),
        Case("argmax, last", lambda x: op.argmax(x, 1), lambda x: x.argmax(1), (tokens,)),
        Case("argmax, channels", lambda x: op.argmax(x, 1), lambda x: x.argmax(1), (image,)),
        Case("softmax, last", lambda x: op.nn.softmax(x, -1), lambda x: x.softmax(-1), ((12, 197, 197),)),
        Case("softmax, channels", lambda x: op.nn.softmax(x, 1), lambda x: x.softmax(1), (image,)),
        Case("layer norm", lambda x: op.nn.layer_norm(x, ones(768), ones(768), [-1]), lambda x: nn.layer_norm(x, (768,)),
             (tokens,)),
        Case("RMS norm", rms, rms_torch, (tokens,)),
        Case("group norm", group, lambda x: nn.group_norm(x, 8), (image,)),
        Case("instance norm", lambda x: op.nn.instance_norm(x, ones(32), ones(32), 1, [2, 3]), nn.instance_norm, (image,)),
        Case("cumsum", lambda x: op.cumsum(x, 1), lambda x: x.cumsum(1), (tokens,)),
        Case("max pooling", lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1)), lambda x: nn.max_pool2d(x, 3, 2, 1),
             (image,)),
        Case("mean pooling", lambda x: op.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1, 1, 1)),
             lambda x: nn.avg_pool2d(x, 3, 1, 1), (image,)),
    ]  # fmt: skip


def ours(case: Case) -> tuple[Callable[[], float], int, int]:
    """What runs a case and returns the seconds of its kernels; its bytes, and the elements that it writes."""
    import tvm
    from tvm import relax

    from tvm_sched.relax import passes
    from tvm_sched.relax.emit.runnable import link_calls, make_runnable
    from tvm_sched.relax.ir.attributes import get_problem, get_schedule
    from tvm_sched.relax.problem.operator_graph import extract

    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{k}", relax.TensorType(shape, case.dtype)) for k, shape in enumerate(case.shapes)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(case.emit(*variables))
        builder.emit_func_output(result)
    estimate = passes.EstimateLatencies("cpu1", "roofline")
    chain = [passes.LowerToKernels(libraries=()), passes.PrepareKernels(), estimate, passes.Place("single")]
    mod = tvm.transform.Sequential(chain)(builder.get())
    calls, problem = extract(mod), get_problem(mod)
    kernels = link_calls(mod, calls, problem.topology)
    module = make_runnable(mod, calls, problem, get_schedule(mod), kernels)
    module.configure(trace=True)
    arguments = values(case)

    def run() -> float:
        module.run(*arguments)
        rows = [row for row in module.timeline()["events"] if row["event"] and row["event"].get("kind") == "kernel"]
        return sum(row["end_ns"] - row["start_ns"] for row in rows) / 1e9

    ends = {tensor.name: tensor for tensor in problem.graph.tensors}
    written = [ends[name] for name in problem.graph.outputs]
    moved = sum(tensor.size for tensor in problem.graph.tensors if tensor.kind in ("input", "parameter"))
    elements = sum(int(np.prod(tensor.shape)) for tensor in written)
    return run, moved + sum(tensor.size for tensor in written), elements


def values(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(shape) * 4).astype(case.dtype) for shape in case.shapes]


def theirs(case: Case) -> Callable[[], float]:
    import torch

    torch.set_num_threads(1)
    arguments = [torch.from_numpy(value) for value in values(case)]

    def run() -> float:
        begin = time.perf_counter()
        case.peer(*arguments)
        return time.perf_counter() - begin

    return run


def measure(case: Case, seconds: float) -> tuple[float, float, int, int]:
    """Least seconds of ours and the peer, in turns; bytes and elements."""
    first, moved, elements = ours(case)
    second = theirs(case)
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for run, found in zip((first, second), times, strict=True):
            run()
            found += [run() for _ in range(3)]
    return min(times[0]), min(times[1]), moved, elements


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--only", metavar="TEXT", default="", help="only cases with this in their name")
    given = arguments.parse_args()
    rows = []
    for case in cases():
        if given.only not in case.name:
            continue
        mine, peer, moved, elements = measure(case, 0.02 if given.quick else 0.5)
        rows.append(Row(case.name, "tvm_sched", mine * 1e6, "us", peer * 1e6, "PyTorch eager"))
        rows.append(Row(case.name, "tvm_sched", mine / elements * 1e9, "ns/element"))
        rows.append(Row(case.name, "tvm_sched", moved / mine / 1e9, "GB/s"))
    report("Kernels that TVM generates, one thread", rows, given.json, given.markdown)


if __name__ == "__main__":
    main()
