"""The cold start: from the start of a process to the first output of a chain of products, ours and PyTorch's loaders.

As a script it is one such process: ``cold_start.py WAY ARTIFACT PARAMETERS BEGAN`` prints a timeline in JSON, with times in
seconds since ``BEGAN`` (`time.time` of the process that started it).
"""

from __future__ import annotations

import time

ENTERED = time.time()

import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

BEST_PEERS = ("torch pageable", "torch pinned")
LATE = "ours, libraries in the first run"
"""Our load without the first calls of cuBLASLt and cuDNN, which the first run then makes."""
REPEATED, FROM_DISK = ("0.5 GB", "2 GB"), ("0.5 GB",)
PEERS = ("torch pageable", "torch pinned", "safetensors", "fastsafetensors", "runai")


def ours(artifact: str, parameters: str, mark: Callable[[str], None], options: dict[str, Any]) -> Any:
    """Load and run our artifact."""
    from tvm_sched_runtime.runtime import load

    mark("libraries imported")
    import numpy as np

    about = json.loads(Path(artifact).with_suffix(".json").read_text())
    from gpu_steps import weights

    x = weights.numbers("x0", (about["rows"], about["width"]))
    mark("input made")
    loaded = load(artifact, parameters)
    mark("artifact and parameters loaded")
    loaded.configure(**options)
    mark("configured")
    (found,) = loaded.run(x)
    first = np.asarray(found)
    mark("first output")
    loaded.run(x)
    mark("second output")
    told: dict[str, Any] = {}
    if options.get("trace"):
        told["timeline"] = compact(loaded.timeline())
    for name in ("stages",):  # of a runtime that tells the stages of its loading
        found_function = getattr(loaded, name, None)
        if found_function is not None:
            told[name] = found_function() if callable(found_function) else found_function
    return first, told


def compact(timeline: Any) -> Any:
    """Return a timeline's facts: kinds of events with count, first begin, last end and sum."""
    events = timeline.get("events", []) if isinstance(timeline, dict) else []
    found: dict[str, list[float]] = {}
    for event in events:
        row = found.setdefault(str(event.get("kind", event.get("name", "?"))), [0, float("inf"), 0, 0])
        row[0] += 1
        row[1], row[2] = min(row[1], event["start_ns"]), max(row[2], event["end_ns"])
        row[3] += event["end_ns"] - event["start_ns"]
    others = {k: v for k, v in timeline.items() if k != "events"} if isinstance(timeline, dict) else {}
    return {"kinds": found, "others": json.loads(json.dumps(others, default=str))}


def peer(way: str, artifact: str, parameters: str, mark: Callable[[str], None]) -> Any:
    """Load the same file by one of PyTorch's ways, and multiply."""
    import torch

    mark("libraries imported")
    about = json.loads(Path(artifact).with_suffix(".json").read_text())
    from gpu_steps import weights

    x = torch.from_numpy(weights.numbers("x0", (about["rows"], about["width"])))
    mark("input made")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.init()
    mark("CUDA initialised")
    x = x.cuda()
    mark("context")
    found: dict[str, Any] = {}
    if way in ("torch pageable", "torch pinned", "safetensors"):
        from safetensors.torch import load_file

        if way == "safetensors":
            found = load_file(parameters, device="cuda")
        else:
            host = load_file(parameters)
            for name, value in host.items():
                found[name] = value.pin_memory().to("cuda", non_blocking=True) if "pinned" in way else value.to("cuda")
    elif way == "fastsafetensors":
        from fastsafetensors import fastsafe_open

        with fastsafe_open([parameters], nogds=True, device="cuda:0") as opened:
            found = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    else:
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            streamer.stream_file(parameters)
            found = {name: value.to("cuda") for name, value in streamer.get_tensors()}
    torch.cuda.synchronize()
    mark("parameters on the GPU")
    of = {recipe["of"]: (name, recipe["order"]) for name, recipe in about["recipes"].items()}
    with torch.inference_mode():
        for k in range(about["layers"]):
            name, order = of[f"w{k}"]
            weight = found[name] if order == [0, 1] else found[name].T
            x = torch.relu(x @ weight)
        first = x.cpu().numpy()
    mark("first output")
    return first, {}


def main() -> None:
    """Be one process."""
    way, artifact, parameters, began = sys.argv[1:5]
    marks: list[tuple[str, float]] = [("process entered", ENTERED - float(began))]

    def mark(name: str) -> None:
        marks.append((name, time.time() - float(began)))

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    if way in PEERS:
        first, told = peer(way, artifact, parameters, mark)
    else:
        options = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
        first, told = ours(artifact, parameters, mark, options)
    from gpu_steps.artifacts import arrays, difference

    about = json.loads(Path(artifact).with_suffix(".json").read_text())
    error = difference(first, arrays(Path(artifact))["expected"], about["largest"])
    print(json.dumps({"marks": marks, "error": error, **told}, default=float))


def cold_start(step: Any) -> None:
    """Start a process for each way and size, with the file's pages cached and dropped."""
    from .artifacts import write_parameters
    from .cases import cold_weight
    from .machine import drop_caches
    from .record import torch_with_cuda

    ours: dict[str, Any] = {"ours": {"resident": 1.0}}
    traced = {"ours, traced": {"resident": 1.0, "trace": True}}
    late = {LATE: {"resident": 1.0}}
    every = {**ours, **late, **dict.fromkeys(PEERS), **traced}
    some = {**ours, **dict.fromkeys(BEST_PEERS)}
    prepared = list(step.artifacts("cold"))
    sizes = {about["name"] for _, about in prepared}
    turns = [(sizes, True, 0, every), (REPEATED, True, 1, some), (REPEATED, True, 2, some)]
    turns += [(FROM_DISK, False, turn, some) for turn in range(2)]
    for names, cached, turn, ways in turns[:1] if step.quick else turns:
        for file, about in prepared:
            if about["name"] in names:
                parameters = None
                for way, options in ways.items():

                    def run(
                        way: str = way,
                        options: Any = options,
                        file: Path = file,
                        about: Any = about,
                        cached: bool = cached,
                    ) -> dict[str, Any]:
                        nonlocal parameters
                        if way in PEERS:
                            torch_with_cuda()
                        if parameters is None:
                            parameters = write_parameters(
                                step, file, about, lambda name: cold_weight(int(name[1:]), about["width"])
                            )
                        dropped = None
                        if cached:
                            with parameters.open("rb", buffering=0) as opened:
                                while opened.read(64 << 20):
                                    pass
                        else:
                            dropped = drop_caches(parameters)
                        command = [sys.executable, __file__, way.split(",")[0], str(file), str(parameters)]
                        began = time.time()
                        command += [repr(began), *([json.dumps(options)] if options is not None else [])]
                        done = subprocess.run(
                            command, capture_output=True, text=True, timeout=min(60, step.left), check=False,
                            env={**os.environ, "PYTHONWARNINGS": "ignore", "TVM_SCHED_WARM_UP": "01"[way != LATE]},
                        )  # fmt: skip
                        ended = time.time() - began
                        if done.returncode:
                            raise RuntimeError(f"after {ended:.2f} s: {done.stderr[-500:]}")
                        told = json.loads(done.stdout.splitlines()[-1])
                        return {
                            **told, "process_s": ended, "caches_dropped": dropped, "bytes": parameters.stat().st_size,
                            "predicted": about["predicted"],
                        }  # fmt: skip

                    state = "cached" if cached else "from disk"
                    case = f"{about['name']}, {state}, {way}, turn {turn}"
                    step.measure(case, run, least=10, of=() if way in PEERS else (file,))


if __name__ == "__main__":
    main()
