"""What `measure_concurrent_kernels` launches: kernels of known demand and calls of torch, captured as graphs."""

import json
import os
import statistics
import sys
import time

import cupy
import numpy as np
import torch

BEGAN = time.monotonic()
LIMIT = float(sys.argv[1]) if len(sys.argv) > 1 else 75.0
OUT = os.environ.get("OUT_DIR", ".")
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.manual_seed(0)
RESULT = {"format": "concurrent-kernels", "version": 1}
device = torch.device("cuda:0")
properties = cupy.cuda.runtime.getDeviceProperties(0)
RESULT["device"] = {
    key: (properties[key].decode() if isinstance(properties[key], bytes) else int(properties[key]))
    for key in (
        "name",
        "multiProcessorCount",
        "regsPerMultiprocessor",
        "sharedMemPerMultiprocessor",
        "sharedMemPerBlockOptin",
        "maxThreadsPerMultiProcessor",
        "maxBlocksPerMultiProcessor",
        "reservedSharedMemPerBlock",
        "l2CacheSize",
        "clockRate",
        "memoryClockRate",
        "concurrentKernels",
    )
    if key in properties
}
RESULT["driver"] = cupy.cuda.runtime.driverGetVersion()
module = cupy.RawModule(path=os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels.cubin"))
FUNCTIONS = {
    name: module.get_function(name)
    for name in ("empty", "spin", "copy", "mixed", "shared_loop", "fma_8", "fma_48", "fma_96", "fma_200")
}
SPANS = torch.zeros((4096, 2), dtype=torch.int64, device=device)
SINK = torch.zeros(16, device=device)
BIG = 512 << 20
POOL = [torch.empty(BIG // 4, device=device).normal_() for _ in range(4)]  # source and destination of each side
KEPT = []  # the first graph: its pool is that of all others, and lives as long as one of them
MAIN, SIDES = torch.cuda.Stream(), [torch.cuda.Stream() for _ in range(32)]


def save():
    with open(os.path.join(OUT, "concurrent.json"), "w") as file:
        json.dump(RESULT, file, separators=(",", ":"))


def reset_spans():
    SPANS[:, 0] = 1 << 62
    SPANS[:, 1] = 0


class Own:
    """A kernel of ours: launches itself on a stream; side 0 or 1 has memory of its own."""

    def __init__(self, name, function, blocks, threads, shared=0, work=0, megabytes=0):
        self.name, self.function, self.blocks, self.threads, self.shared = name, function, blocks, threads, shared
        self.work, self.bytes = work, megabytes << 20
        self.kernel = FUNCTIONS[function]
        if shared > 48 * 1024:
            self.kernel.max_dynamic_shared_size_bytes = 227 * 1024

    own = True

    def launch(self, stream, slot, side):
        """Launch it on a stream; it notes its times in a slot, where it can."""
        span = np.intp(SPANS.data_ptr() + 16 * slot)
        with cupy.cuda.ExternalStream(stream.cuda_stream):
            if self.function in ("copy", "mixed"):
                # sides begin elsewhere, so that kernels of a set do not read each other's lines
                source = POOL[2 * (side % 2)].data_ptr() + (side // 2) * (64 << 20)
                target = POOL[2 * (side % 2) + 1].data_ptr() + (side // 2) * (64 << 20)
                arguments = [np.intp(target), np.intp(source), np.uint64(self.bytes // 16)]
                if self.function == "mixed":
                    arguments.append(np.int32(self.work))
                self.kernel((self.blocks,), (self.threads,), (*arguments, span), shared_mem=self.shared)
            else:
                self.kernel(
                    (self.blocks,),
                    (self.threads,),
                    (np.intp(SINK.data_ptr()), np.int32(self.work), span),
                    shared_mem=self.shared,
                )

    def describe(self):
        """What is known of it."""
        return {
            "name": self.name,
            "function": self.function,
            "blocks": self.blocks,
            "threads": self.threads,
            "registers": self.kernel.num_regs,
            "shared": self.shared,
            "static": self.kernel.shared_size_bytes,
            "work": self.work,
            "bytes": 2 * self.bytes,
            "flops": self.flops(),
        }

    def flops(self):
        """Floating-point operations."""
        if self.function.startswith("fma"):
            return 2 * int(self.function[4:]) * self.work * self.blocks * self.threads
        return 2 * self.work * self.bytes // 4 if self.function == "mixed" else 0


class Torch:
    """A call of torch: its library's kernels."""

    own = False

    def __init__(self, name, make, flops, moved):
        self.name, self.flops_, self.moved = name, flops, moved
        self.calls = [make(), make()]

    def launch(self, stream, slot, side):
        """Launch it on a stream; it notes its times in a slot, where it can."""
        with torch.cuda.stream(stream):
            self.calls[side % 2]()

    def describe(self):
        """What is known of it."""
        return {"name": self.name, "function": "torch", "flops": self.flops_, "bytes": self.moved}


def captured(body):
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(MAIN):
        graph.capture_begin(*([KEPT[0].pool()] if KEPT else []))
        try:
            body()
        finally:
            graph.capture_end()
        graph.replay()
    torch.cuda.synchronize()
    return graph


def timed(graph, count=5):
    """Microseconds of replays."""
    found = []
    for _ in range(count):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(MAIN):
            a.record()
            graph.replay()
            b.record()
        b.synchronize()
        found.append(a.elapsed_time(b) * 1e3)
    return found


def chain(kernels, repeats):
    def body():
        for r in range(repeats):
            for k, kernel in enumerate(kernels):
                kernel.launch(MAIN, r * len(kernels) + k, k)

    return body


def forked(kernels, repeats, order=None):
    """Each kernel on a stream of its own, launched in `order`; slots stay with the kernels."""
    order = order or range(len(kernels))

    def body():
        for r in range(repeats):
            for k in range(len(kernels)):
                SIDES[k].wait_stream(MAIN)
            for k in order:
                kernels[k].launch(SIDES[k], r * len(kernels) + k, k)
            for k in range(len(kernels)):
                MAIN.wait_stream(SIDES[k])

    return body


def spans_of(count, repeats):
    rows = SPANS[: count * repeats].cpu().numpy().reshape(repeats, count, 2)
    return rows


def own_kernels():
    found = []

    def fma(acc, blocks, threads, shared=0, work=1000):
        found.append(
            Own(
                f"fma{acc}_{blocks}x{threads}" + (f"_{shared >> 10}k" if shared else ""),
                f"fma_{acc}",
                blocks,
                threads,
                shared,
                work,
            )
        )

    for blocks, threads in (
        (8, 128),
        (33, 256),
        (66, 256),
        (132, 128),
        (132, 1024),
        (264, 256),
        (528, 256),
        (1056, 256),
        (2112, 128),
        (4224, 256),
    ):
        fma(8, blocks, threads)
    fma(48, 66, 512)
    fma(48, 264, 256)
    fma(96, 132, 256)
    fma(96, 528, 256)
    fma(200, 132, 256)
    fma(200, 396, 128)
    fma(8, 132, 256, 100 << 10)
    fma(8, 264, 128, 64 << 10)
    fma(8, 66, 256, 200 << 10)
    for megabytes, blocks in ((1, 66), (8, 132), (8, 1024), (32, 66), (32, 264), (48, 1056), (60, 4096)):
        found.append(Own(f"copy{megabytes}_{blocks}x256", "copy", blocks, 256, 0, 0, megabytes))
    for flops in (8, 64):
        found.append(Own(f"mixed{flops}_528x256", "mixed", 528, 256, 0, flops, 32))
    found.append(Own("shared_132x512", "shared_loop", 132, 512, 16 << 10, 400))
    found.append(Own("shared_528x256", "shared_loop", 528, 256, 16 << 10, 100))
    return found


def calibrate(kernels):
    """Work such that kernels alone take 15 to 120 microseconds, evenly over their logarithm, by a fixed rule."""
    targets = [15, 30, 60, 120]
    for n, kernel in enumerate(kernels):
        if kernel.function in ("copy", "mixed"):
            continue
        kernel.work = 2000
        graph = captured(chain([kernel], 3))
        took = statistics.median(timed(graph)) / 3
        kernel.work = max(1, int(kernel.work * targets[n % 4] / took))


def torch_kernels():
    found = []

    def mm(m, n, k):
        def make():
            a, b, c = (
                torch.randn(m, k, device=device),
                torch.randn(k, n, device=device),
                torch.empty(m, n, device=device),
            )
            return lambda: torch.mm(a, b, out=c)

        found.append(Torch(f"mm_{m}x{n}x{k}", make, 2 * m * n * k, 4 * (m * n + m * k + n * k)))

    def conv(c, o, hw, r, stride=1):
        def make():
            x, w = torch.randn(1, c, hw, hw, device=device), torch.randn(o, c, r, r, device=device)
            return lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=r // 2)

        out = (hw + stride - 1) // stride
        found.append(
            Torch(
                f"conv_{c}_{o}_{hw}_{r}",
                make,
                2 * o * c * r * r * out * out,
                4 * (c * hw * hw + o * c * r * r + o * out * out),
            )
        )

    def elementwise(name, function, elements, reads):
        def make():
            xs = [torch.randn(elements, device=device) for _ in range(reads)]
            out = torch.empty(elements, device=device)
            return lambda: function(*xs, out=out)

        found.append(Torch(f"{name}_{elements >> 20}M", make, elements, 4 * elements * (reads + 1)))

    for shape in (
        (128, 768, 768),
        (128, 3072, 768),
        (128, 768, 3072),
        (512, 512, 512),
        (1024, 1024, 1024),
        (2048, 2048, 1024),
    ):
        mm(*shape)
    for shape in ((64, 192, 56, 3), (192, 64, 28, 1), (96, 128, 28, 3), (480, 192, 14, 1), (288, 384, 35, 3)):
        conv(*shape)
    elementwise("relu", lambda x, out: torch.clamp_min(x, 0, out=out), 1 << 20, 1)
    elementwise("relu", lambda x, out: torch.clamp_min(x, 0, out=out), 8 << 20, 1)
    elementwise("add", torch.add, 4 << 20, 2)
    return found
