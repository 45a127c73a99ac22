"""What an artifact keeps of its speed beside others: a busy process, a second artifact, PyTorch in the same process.

Each situation is measured in turns with the quiet one, so that a change of the machine's speed meets both. Writes
``docs/results/busy_machine.md`` with ``--page``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import date
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

MODELS = Path(onnx.__file__).parent / "backend/test/data/light"
PAGE = Path(__file__).parent.parent / "docs" / "results" / "busy_machine.md"


def spin(stop: Any) -> None:
    while not stop.is_set():
        for _ in range(10000):
            pass


@contextmanager
def busy_process() -> Iterator[None]:
    """One process that takes all of a core that it gets."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=spin, args=(stop,), daemon=True)
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join()


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[None]:
    """A thread of this process that repeats ``work``."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def torch_products() -> Callable[[], Any]:
    import torch

    a, b = torch.rand(512, 512), torch.rand(512, 512)
    return lambda: torch.mm(a, b)


def timed(run: Callable[[], Any], seconds: float) -> list[float]:
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times


def measure(artifact: Path, shape: tuple[int, ...], turns: int, seconds: float) -> dict[str, dict[str, float]]:
    from tvm_sched.runtime import load

    value = np.random.default_rng(0).random(shape, dtype=np.float32)
    first, second = load(artifact), load(artifact)
    situations: dict[str, Callable[[], Any]] = {
        "quiet": nullcontext,
        "beside a busy process": busy_process,
        "beside a second artifact": lambda: beside(lambda: second.run(value)),
    }
    try:
        products = torch_products()
        situations["beside products of PyTorch"] = lambda: beside(products)
    except ImportError:
        pass
    times: dict[str, list[float]] = {name: [] for name in situations}
    timed(lambda: first.run(value), 0.1)
    for _ in range(turns):
        for name, situation in situations.items():
            with situation():
                times[name] += timed(lambda: first.run(value), seconds)
    quiet = median(times["quiet"])
    return {
        name: {
            "median_ms": median(found) * 1e3,
            "largest_ms": max(found) * 1e3,
            "runs": len(found),
            "median_ratio": median(found) / quiet,
            "largest_ratio": max(found) / quiet,
        }
        for name, found in times.items()
    }


def table(result: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = [
        "| model | situation | median | over quiet | largest over quiet median | runs |",
        "|---|---|---|---|---|---|",
    ]
    for model, situations in result.items():
        for name, row in situations.items():
            lines.append(
                f"| {model} | {name} | {row['median_ms']:.2f} ms | {row['median_ratio']:.2f} | "
                f"{row['largest_ratio']:.2f} | {row['runs']} |"
            )
    return "\n".join(lines)


def page(text: str, turns: int, seconds: float) -> str:
    from tvm_sched.cores import cores
    from tvm_sched.cost_model.profile import this_machine

    return (
        "# Beside others\n\nMade by `python benchmarks/busy_machine.py --page`: artifacts for `cpu1` on all cores of the "
        f"machine, {turns} turns of {seconds} s in each situation. Processor: {this_machine().processor}, {cores()} cores; "
        f"{date.today()}. The aim is a median of at most 2.5 times the quiet one beside a busy process, and no run above "
        f"5 times.\n\n{text}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="One model, short turns.")
    parser.add_argument("--turns", type=int, default=5, help="How often each situation is measured.")
    parser.add_argument("--seconds", type=float, default=3.0, help="How long a turn takes.")
    parser.add_argument("--json", type=Path, help="Keep the figures here; models that stand there are left out.")
    parser.add_argument("--page", action="store_true", help="Write the page in docs/results.")
    arguments = parser.parse_args()
    from tvm_sched.relax import compile

    names = ["squeezenet"] if arguments.quick else ["squeezenet", "inception_v1", "resnet50"]
    turns, seconds = (2, 0.5) if arguments.quick else (arguments.turns, arguments.seconds)
    kept = arguments.json
    result = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for name in (name for name in names if name not in result):
        with TemporaryDirectory() as folder:
            artifact = Path(folder) / f"{name}.so"
            compile(MODELS / f"light_{name}.onnx", "cpu1", "single").export(artifact)
            result[name] = measure(artifact, (1, 3, 224, 224), turns, seconds)
        if kept:
            kept.write_text(json.dumps(result, indent=1))
    text = table(result)
    print(text)
    if arguments.page:
        PAGE.write_text(page(text, turns, seconds))


if __name__ == "__main__":
    main()
