# ruff: noqa: B023 (functions that are made in a loop are called in it)
"""Measures concurrent kernels on one GPU: alone, one after another, concurrently; launch orders; dependencies; occupancy.

Needs torch, cupy and ``kernels.cubin``: ``python kernels_of_known_demand.py`` writes its source, for ``nvcc -cubin``.
Its argument is the seconds that it may take; it writes ``concurrent.json`` to ``$OUT_DIR``.
"""

import json
import os
import random
import statistics
import sys
import time
import traceback

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


REPEATS = 6


def measure_pairs(kernels):
    RESULT["kernels"] = []
    for kernel in kernels:
        kernel.launch(MAIN, 0, 0)
        kernel.launch(SIDES[0], 1, 0)
        kernel.launch(SIDES[1], 2, 1)
    torch.cuda.synchronize()
    for kernel in kernels:
        reset_spans()
        graph = captured(chain([kernel], REPEATS))
        times = [t / REPEATS for t in timed(graph, 15)]
        row = kernel.describe() | {
            "alone_us": round(statistics.median(times), 3),
            "alone_least_us": round(min(times), 3),
        }
        if kernel.own:
            reset_spans()
            torch.cuda.synchronize()
            timed(graph, 1)
            rows = spans_of(1, REPEATS)
            row["span_us"] = round(float(np.median(rows[:, 0, 1] - rows[:, 0, 0])) / 1e3, 3)
        RESULT["kernels"].append(row)
    save()
    chosen = [(i, j) for i in range(len(kernels)) for j in range(i, len(kernels))]
    random.Random(19).shuffle(chosen)
    RESULT["pairs"] = []
    for i, j in chosen:
        if time.monotonic() - BEGAN > LIMIT:
            break
        pair = [kernels[i], kernels[j]]
        try:
            apart, together = captured(chain(pair, REPEATS)), captured(forked(pair, REPEATS))
            reset_spans()
            torch.cuda.synchronize()
            serial, parallel = [], []
            for _ in range(5):
                serial += timed(apart, 1)
                parallel += timed(together, 1)
            reset_spans()
            torch.cuda.synchronize()
            parallel += timed(together, 1)
            spans = spans_of(2, REPEATS)
            each = []
            for k in (0, 1):
                each.append(round(float(np.median(spans[:, k, 1] - spans[:, k, 0])) / 1e3, 3) if pair[k].own else None)
            offset = (
                round(float(np.median(spans[:, 1, 0] - spans[:, 0, 0])) / 1e3, 3)
                if pair[0].own and pair[1].own
                else None
            )
            RESULT["pairs"].append(
                [
                    i,
                    j,
                    round(statistics.median(serial) / REPEATS, 3),
                    round(statistics.median(parallel) / REPEATS, 3),
                    *each,
                    offset,
                ]
            )
        except Exception as error:
            RESULT.setdefault("errors", []).append([i, j, repr(error)[:200]])
    RESULT["pairs_possible"] = len(chosen)
    save()


def measure_overheads():
    empty, side = FUNCTIONS["empty"], {}

    def launch(stream):
        with cupy.cuda.ExternalStream(stream.cuda_stream):
            empty((1,), (32,), ())

    launch(MAIN)
    for count in (100, 200):
        side[f"chain_{count}"] = round(
            statistics.median(timed(captured(lambda: [launch(MAIN) for _ in range(count)]), 15)), 3
        )

    def alternate(count):
        def body():
            SIDES[0].wait_stream(MAIN)
            streams = [MAIN, SIDES[0]]
            for n in range(count):
                launch(streams[n % 2])
                streams[(n + 1) % 2].wait_stream(streams[n % 2])
            MAIN.wait_stream(SIDES[0])

        return body

    for count in (100, 200):
        side[f"alternate_{count}"] = round(statistics.median(timed(captured(alternate(count)), 15)), 3)
    for width in (2, 4, 8, 16, 28):

        def body(rounds):
            for _ in range(rounds):
                launch(MAIN)
                for k in range(width):
                    SIDES[k].wait_stream(MAIN)
                    launch(SIDES[k])
                for k in range(width):
                    MAIN.wait_stream(SIDES[k])
            launch(MAIN)

        for rounds in (10, 30):
            side[f"forkjoin_{width}_{rounds}"] = round(statistics.median(timed(captured(lambda: body(rounds)), 15)), 3)

    # without a graph, host bound: a gate that spins hides the launches
    def plain(streams, count, wait):
        found = []
        for _ in range(9):
            with cupy.cuda.ExternalStream(MAIN.cuda_stream):
                FUNCTIONS["spin"]((1,), (32,), (np.uint64(6_000_000), np.intp(SPANS.data_ptr())))
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(MAIN)
            for s in streams:
                if s is not MAIN:
                    s.wait_stream(MAIN)
            for n in range(count):
                launch(streams[n % len(streams)])
                if wait:
                    streams[(n + 1) % len(streams)].wait_stream(streams[n % len(streams)])
            for s in streams:
                if s is not MAIN:
                    MAIN.wait_stream(s)
            b.record(MAIN)
            b.synchronize()
            found.append(a.elapsed_time(b) * 1e3)
        return round(statistics.median(found), 3)

    for count in (100, 200):
        side[f"plain_chain_{count}"] = plain([MAIN], count, False)
        side[f"plain_alternate_{count}"] = plain([MAIN, SIDES[0]], count, True)
    RESULT["overheads_us"] = side
    save()


def measure_occupancy():
    rows = []
    for name in ("copy", "fma_8", "fma_48", "fma_96", "fma_200"):
        kernel = FUNCTIONS[name]
        kernel.max_dynamic_shared_size_bytes = 227 * 1024
        for threads in (32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024):
            for shared in (
                0,
                1024,
                4096,
                8192,
                12288,
                16384,
                24576,
                33792,
                49152,
                65536,
                100 << 10,
                113 << 10,
                114 << 10,
                227 << 10,
            ):
                if threads > kernel.max_threads_per_block:
                    continue
                resident = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
                    kernel.kernel.ptr, threads, shared
                )
                rows.append([kernel.num_regs, threads, shared, resident])
    RESULT["occupancy"] = {"columns": ["registers", "threads", "shared", "resident"], "rows": rows}
    save()


def orders_of(kernels, rng):
    info = [(k.blocks * k.threads, k.function in ("copy", "mixed")) for k in kernels]
    small = sorted(range(len(kernels)), key=lambda k: info[k][0])
    found = {"small": small, "large": small[::-1]}
    lists = [[k for k in small if not info[k][1]], [k for k in small if info[k][1]]]
    turn, order = 1, []
    while any(lists):
        if not lists[turn]:
            turn = 1 - turn
        order.append(lists[turn].pop(0))
        turn = 1 - turn
    found["opara"] = order
    found["given"] = list(range(len(kernels)))
    for n in range(3):
        order = list(range(len(kernels)))
        rng.shuffle(order)
        found[f"random{n}"] = order
    return found


def measure_orders(kernels):
    rng, RESULT["orders"] = random.Random(7), []
    for n in range(28):
        chosen = [rng.randrange(len(kernels)) for _ in range(4 + n % 5)]
        kernel_set = [kernels[c] for c in chosen]
        serial = statistics.median(timed(captured(chain(kernel_set, 3)), 5)) / 3
        for name, order in orders_of(kernel_set, rng).items():
            reset_spans()
            graph = captured(forked(kernel_set, REPEATS, order))
            times = timed(graph, 5)
            reset_spans()
            torch.cuda.synchronize()
            timed(graph, 1)
            rows = spans_of(len(kernel_set), REPEATS)
            makespans = rows[:, :, 1].max(axis=1) - rows[:, :, 0].min(axis=1)
            middle = int(np.argsort(makespans)[REPEATS // 2])
            zero = rows[middle, :, 0].min()
            graph_row = [round(float(makespans[middle]) / 1e3, 3), (rows[middle] - zero).tolist()]
            # streams alone: all wait for a gate that spins while they are launched
            plain = []
            for _ in range(5):
                reset_spans()
                torch.cuda.synchronize()
                with cupy.cuda.ExternalStream(MAIN.cuda_stream):
                    FUNCTIONS["spin"]((1,), (32,), (np.uint64(400_000), np.intp(SPANS.data_ptr() + 16 * 4000)))
                forked(kernel_set, 1, order)()
                torch.cuda.synchronize()
                rows = spans_of(len(kernel_set), 1)[0]
                plain.append((int(rows[:, 1].max() - rows[:, 0].min()), (rows - rows[:, 0].min()).tolist()))
            plain.sort(key=lambda row: row[0])
            RESULT["orders"].append(
                {
                    "kernels": chosen,
                    "order": name,
                    "launched": order,
                    "serial_us": round(serial, 3),
                    "graph_us": round(statistics.median(times) / REPEATS, 3),
                    "graph": graph_row,
                    "streams": [plain[2][0] / 1e3, plain[2][1]],
                }
            )
    save()


def main():
    steps = []
    a = torch.randn(8192, 8192, device=device)
    while time.monotonic() - BEGAN < 3:  # the clocks come up
        torch.mm(a, a)
        torch.cuda.synchronize()
    KEPT.append(captured(lambda: own_kernels()[0].launch(MAIN, 0, 0)))
    own = own_kernels()
    for name, step in (
        ("occupancy", measure_occupancy),
        ("overheads", measure_overheads),
        ("calibrate", lambda: calibrate(own)),
        ("orders", lambda: measure_orders(own)),
    ):
        try:
            step()
        except Exception:
            RESULT.setdefault("failed", {})[name] = traceback.format_exc()[-1500:]
            traceback.print_exc()
        steps.append((name, round(time.monotonic() - BEGAN, 1)))
    try:
        measure_pairs(own + torch_kernels())
    except Exception:
        RESULT.setdefault("failed", {})["pairs"] = traceback.format_exc()[-1500:]
        traceback.print_exc()
    steps.append(("pairs", round(time.monotonic() - BEGAN, 1)))
    RESULT["steps_s"] = steps
    save()
    print(RESULT["device"], steps)
    print("occupancy rows", len(RESULT.get("occupancy", {}).get("rows", [])), "overheads", RESULT.get("overheads_us"))
    pairs = RESULT.get("pairs", [])
    ratios = sorted(p[3] / p[2] for p in pairs)
    if ratios:
        print(
            len(pairs),
            "pairs of",
            RESULT.get("pairs_possible"),
            "together/serial: least",
            round(ratios[0], 3),
            "median",
            round(ratios[len(ratios) // 2], 3),
            "most",
            round(ratios[-1], 3),
            "errors",
            len(RESULT.get("errors", [])),
        )
    for row in RESULT.get("orders", [])[:14]:
        print(row["kernels"], row["order"], row["serial_us"], row["graph_us"], row["graph"][0], row["streams"][0])


main()
