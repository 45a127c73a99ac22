# ruff: noqa: B023 (functions that are made in a loop are called in it)
"""Measures concurrent kernels on one GPU: alone, one after another, concurrently; launch orders; dependencies; occupancy.

Needs torch, cupy and ``kernels.cubin``: ``python kernels_of_known_demand.py`` writes its source, for ``nvcc -cubin``.
Its argument is the seconds that it may take; it writes ``concurrent.json`` to ``$OUT_DIR``.
"""

import random
import statistics
import time
import traceback

import cupy
import numpy as np
import torch
from _concurrent_cases import (
    BEGAN,
    FUNCTIONS,
    KEPT,
    LIMIT,
    MAIN,
    RESULT,
    SIDES,
    SPANS,
    calibrate,
    captured,
    chain,
    device,
    forked,
    own_kernels,
    reset_spans,
    save,
    spans_of,
    timed,
    torch_kernels,
)

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
