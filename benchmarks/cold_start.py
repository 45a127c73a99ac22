"""From exec to the first output, with the model's file on disk or in the page cache, beside other engines.

Each start is a fresh process. *Cold*: the pages of the model's files were dropped (``posix_fadvise``), and `mincore` says
that none is left; Python, libraries and inputs stay in the page cache, for all engines. *Warm*: the files were read just
before. Engines take turns, and medians count, since the machine may be shared. Ours is compiled for a topology with the
storage that `tvm-sched topology detect --storage` measures, so its predicted latency contains the reads.

    python benchmarks/cold_start.py --folder /tmp/cold --markdown docs/results/cold_start.md
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _common import parser
from _result_page import Page, pyplot

HERE = Path(__file__).parent
ENGINES = ("ours", "onnxruntime", "openvino", "openvino, cache", "torch", "text", "llama")
TEXT_ENGINES = ("text", "llama")
"""Of language models, to the first token; the others are of ONNX files."""
NAMES = {
    "ours": "ours", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "openvino, cache": "OpenVINO, its cache",
    "torch": "PyTorch + safetensors", "text": "ours", "llama": "llama.cpp",
}  # fmt: skip
WIDTH = 2048
"""Of the products of a chain: 16 MiB of weights each."""
ROWS = 8


@dataclass
class Model:
    """A model as each engine reads it."""

    name: str
    onnx: Path
    inputs: Path
    size: int
    """Bytes of the parameters."""
    artifact: Path
    safetensors: Path | None = None
    """Of a chain of products, for PyTorch."""
    gguf: Path | None = None
    """Of a language model, for llama.cpp; ``onnx`` is then a folder of Hugging Face."""
    predicted_ns: int = 0
    bound_ns: int = 0
    reads_ns: int = 0
    """That the predicted run keeps the disk busy."""
    starts: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    """By engine and by cold or warm."""
    failed: dict[str, str] = field(default_factory=dict)


def chain(folder: Path, mebibytes: int) -> Model:
    """Make a chain of products and ReLUs with random weights of this size."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from safetensors.numpy import save_file

    name = f"chain-{mebibytes}MiB"
    count = max(mebibytes // 16, 1)
    random = np.random.default_rng(0)
    weights = {
        f"w{n:03d}": (random.standard_normal((WIDTH, WIDTH), np.float32) * np.sqrt(2 / WIDTH)).astype(np.float32)
        for n in range(count)
    }
    nodes, value = [], "x"
    for n, weight in enumerate(weights):
        nodes += [
            helper.make_node("MatMul", [value, weight], [f"p{n}"]),
            helper.make_node("Relu", [f"p{n}"], [f"r{n}"]),
        ]
        value = f"r{n}"
    graph = helper.make_graph(
        nodes, name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [ROWS, WIDTH])],
        [numpy_helper.from_array(array, weight) for weight, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file, tensors, inputs = (folder / f"{name}.{end}" for end in ("onnx", "weights.safetensors", "npz"))
    onnx.save(model, file, save_as_external_data=True, location=f"{name}.data", size_threshold=1024)
    save_file(weights, tensors)
    np.savez(inputs, x=random.standard_normal((ROWS, WIDTH), np.float32))
    return Model(name, file, inputs, count * WIDTH * WIDTH * 4, folder / f"{name}.so", tensors)


def given(folder: Path, file: Path, shapes: dict[str, tuple[int, ...]]) -> Model:
    """Take an ONNX file with the weights that it has."""
    import onnx

    inputs, copy = folder / f"{file.stem}.npz", folder / file.name
    copy.write_bytes(file.read_bytes())
    held = {tensor.name for tensor in onnx.load(file, load_external_data=False).graph.initializer}
    random = np.random.default_rng(0)
    wanted = [value for value in onnx.load(file).graph.input if value.name not in held]
    np.savez(
        inputs,
        **{
            value.name: random.random(
                shapes.get(value.name, tuple(each.dim_value or 1 for each in value.type.tensor_type.shape.dim)),
                dtype=np.float32,
            )
            for value in wanted
        },
    )
    return Model(file.stem, copy, inputs, file.stat().st_size, folder / f"{file.stem}.so")


def compile_ours(model: Model, topology: Path) -> None:
    """Compile the model for this machine and its disk, in a process of its own."""
    with np.load(model.inputs) as opened:
        shapes = [f"{name}:{','.join(map(str, opened[name].shape))}" for name in opened.files]
    command = [sys.executable, "-m", "tvm_sched.cli", "compile", str(model.onnx), "-t", str(topology)]
    command += [part for shape in shapes for part in ("--shape", shape)]
    subprocess.run(
        [*command, "--parameters", "external", "-o", str(model.artifact)], check=True, stdout=subprocess.DEVNULL
    )
    from tvm_sched.report.measurement import planned_timeline
    from tvm_sched_runtime.runtime import load

    module = load(model.artifact)
    (plan,), (about,) = module.plans(), module.info()["plans"]
    model.predicted_ns, model.bound_ns = planned_timeline(plan).latency_ns, about.get("lower_bound_ns") or 0
    model.reads_ns = sum(step["duration_ns"] for step in plan["steps"] if step["kind"] in ("read", "host_read"))


def language_model(folder: Path, source: Path, gguf: Path, topology: Path) -> Model:
    """Compile a folder of Hugging Face with 8-bit weights; the prompt has 16 tokens."""
    from tvm_sched.report.measurement import planned_timeline
    from tvm_sched_runtime.runtime import load

    inputs, artifact, copy = (folder / f"{source.name}{end}" for end in (".npz", ".so", ".gguf"))
    copy.write_bytes(gguf.read_bytes())
    np.savez(inputs, tokens=np.arange(100, 116))
    command = [sys.executable, "-m", "tvm_sched.cli", "compile", str(source), "--generate", "--weights", "int8"]
    command += ["--context", "256", "--pieces", "16", "--parameters", "external", "--costs", "roofline"]
    subprocess.run([*command, "-t", str(topology), "-o", str(artifact)], check=True, stdout=subprocess.DEVNULL)
    model = Model(source.name, source, inputs, artifact.with_suffix(".safetensors").stat().st_size, artifact, gguf=copy)
    module = load(artifact)
    number = next(k for k, plan in enumerate(module.plans()) if plan["arguments"][0]["shape"] == [16])
    plan = module.plans()[number]
    model.predicted_ns = planned_timeline(plan).latency_ns
    model.bound_ns = module.info()["plans"][number]["lower_bound_ns"] or 0
    model.reads_ns = sum(step["duration_ns"] for step in plan["steps"] if step["kind"] in ("read", "host_read"))
    return model


def files_of(engine: str, model: Model, cache: Path) -> list[Path]:
    """Return the model's files that an engine reads."""
    if engine == "llama":
        return [model.gguf] if model.gguf else []
    if engine in ("ours", "text"):
        return [model.artifact, model.artifact.with_suffix(".safetensors")]
    if engine == "torch":
        return [model.safetensors] if model.safetensors else []
    beside = [model.onnx, model.onnx.with_suffix(".data")]
    if engine == "openvino, cache":
        beside += sorted(file for file in cache.rglob("*") if file.is_file())
    return [file for file in beside if file.is_file()]


def drop(file: Path) -> None:
    """Drop a file's pages from the page cache; raises `RuntimeError` if some are left."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if left := resident_pages(file):
        raise RuntimeError(f"{file.name}: {left} pages stay in the page cache; some process has mapped it")


def warm(file: Path) -> None:
    """Read a file into the page cache."""
    with file.open("rb") as opened:
        while opened.read(1 << 22):
            pass


def resident_pages(file: Path) -> int:
    """Return how many of a file's pages are in the page cache (``mincore``)."""
    size = file.stat().st_size
    if not size:
        return 0
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found) != 0:
        raise OSError(ctypes.get_errno(), "mincore failed")
    return sum(byte & 1 for byte in found)


def start(engine: str, model: Model, cache: Path, paths: str) -> dict[str, Any]:
    """Start an engine in a fresh process; return seconds to its first output, processor seconds, and what it tells."""
    source = {"ours": model.artifact, "text": model.artifact, "torch": model.safetensors, "llama": model.gguf}.get(
        engine, model.onnx
    )
    output = model.inputs.with_suffix(".out.npy")
    kind, *more = (engine.split(",")[0], str(cache)) if engine.endswith("cache") else (engine,)
    command = [
        sys.executable,
        str(HERE / "_cold_start_worker.py"),
        kind,
        str(source),
        str(model.inputs),
        str(output),
        *more,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), paths)))}
    before, begin = os.times(), time.monotonic_ns()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    after = os.times()
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    answer["seconds"] = (answer.pop("first_output_ns") - begin) * 1e-9
    spent = [getattr(after, each) - getattr(before, each) for each in ("children_user", "children_system")]
    answer["processor_s"] = sum(spent)
    answer["output"] = np.load(output)
    return answer


def measure(model: Model, engines: list[str], turns: int, caches: Path, paths: str) -> None:
    """Start all engines in turn, cold and warm."""
    cache = caches / model.name
    expected = None
    for turn in range(-1, turns):  # the first turn fills OpenVINO's cache and compares outputs
        for state in ("cold", "warm"):
            for engine in engines:
                if engine in model.failed or (engine == "torch" and model.safetensors is None):
                    continue
                if (engine in TEXT_ENGINES) != (model.gguf is not None):
                    continue
                try:
                    for file in files_of(engine, model, cache):
                        (drop if state == "cold" else warm)(file)
                    answer = start(engine, model, cache, paths)
                    expected = answer["output"] if expected is None else expected
                    error = float(np.abs(answer["output"] - expected).max() / max(np.abs(expected).max(), 1e-30))
                    if model.gguf is None and not error < 1e-3:  # engines round weights and rows of 8 bits differently
                        raise RuntimeError(f"its output differs by {error:.1g} of the largest number")
                except (RuntimeError, OSError) as failure:
                    model.failed[engine] = str(failure)
                    continue
                if turn >= 0:
                    del answer["output"]
                    model.starts.setdefault((engine, state), []).append(answer)


def our_starts(model: Model, state: str) -> list[dict[str, Any]]:
    """Return our starts of a model, cold or warm."""
    return model.starts.get(("text" if model.gguf else "ours", state), [])


def stage_rows(model: Model) -> list[list[str]]:
    """Return our stages: name, whether the model counts it, predicted and median measured milliseconds."""
    cold, hot = (our_starts(model, state) for state in ("cold", "warm"))
    predicted = {"read parameters": model.reads_ns * 1e-6, "first run": model.predicted_ns * 1e-6}
    rows = []
    names = [stage["name"] for stage in cold[0]["stages"]] if cold else []
    for name in dict.fromkeys(names):
        taken = [_milliseconds(starts, name) for starts in (cold, hot)]
        counted = next(stage["model"] for stage in cold[0]["stages"] if stage["name"] == name)
        rows.append([name, counted, f"{predicted[name]:.1f}" if name in predicted else "", *taken])
    return rows


def _milliseconds(starts: list[dict[str, Any]], name: str) -> str:
    times = [
        sum(stage["end_s"] - stage["start_s"] for stage in each["stages"] if stage["name"] == name) for each in starts
    ]
    return f"{1e3 * median(times):.1f}" if times else ""


def picture(model: Model, plan: dict[str, Any], storage_name: str) -> Any:
    """Draw a cold start: disk, memory and kernels on one time axis, predicted above measured."""
    from tvm_sched.report.measurement import measured_timeline, planned_timeline

    starts = sorted(model.starts["ours", "cold"], key=lambda each: each["seconds"])
    taken = starts[len(starts) // 2]
    stages = {stage["name"]: stage for stage in taken["stages"]}
    run = stages["kernels of the first run"]
    measured = measured_timeline(taken["timeline"])
    kernels = [event for event in measured.events if event.kind == "kernel"]
    begin = run["start_s"] - kernels[0].start_ns * 1e-9  # of the first run, from the start of the process
    reading = stages["read parameters"]["start_s"]
    plt = pyplot()
    figure, axes = plt.subplots(2, 1, sharex=True, figsize=(7.5, 4.2))
    for axis, timeline, shift, title in (
        (axes[0], planned_timeline(plan), reading, "predicted, from the first read on"),
        (axes[1], measured, begin, f"measured, median of {len(starts)} cold starts"),
    ):
        axis.set_title(title, loc="left")
        for at, kinds, color in ((0, ("kernel",), "tab:green"), (2, ("load", "host_read"), "tab:blue")):
            bars = [
                (shift + event.start_ns * 1e-9, (event.end_ns - event.start_ns) * 1e-9)
                for event in timeline.events
                if event.kind in kinds and not (event.kind == "load" and axis is axes[1])
            ]
            axis.broken_barh(bars, (at - 0.35, 0.7), facecolors=color, edgecolors="white", linewidth=0.3)
        loads = sorted((shift + event.end_ns * 1e-9, event.bytes) for event in timeline.events if event.kind == "load")
        edges = [(reading, 0), *loads]
        total = max(sum(size for _, size in loads), 1)
        held = np.cumsum([size for _, size in edges]) / total
        axis.plot([moment for moment, _ in edges], 0.65 + 0.7 * held, color="tab:red", drawstyle="steps-post")
        if axis is axes[1]:
            axis.barh(2, stages["read parameters"]["end_s"] - reading, 0.7, reading, color="tab:blue")
            for stage in stages.values():
                if stage["model"] == "not counted":
                    axis.barh(
                        3, stage["end_s"] - stage["start_s"], 0.7, stage["start_s"], color="0.7", edgecolor="white"
                    )
        axis.set_yticks([0, 1, 2, 3], ["kernels", f"memory, of {total >> 20} MiB", storage_name, "start"])
    axes[1].set_xlabel("seconds from the start of the process")
    return figure


def page(models: list[Model], engines: list[str], turns: int, target: Path | None, topology: Path) -> Page:
    """Make the page of results."""
    from tvm_sched_runtime.problem import load_topology

    machine = load_topology(str(topology))
    disk = machine.storage
    load = os.getloadavg()
    made = Page("Cold start on CPUs", target)
    made.text(
        "From exec to the first output, seconds. *Cold*: the model's files were dropped from the page cache, which mincore "
        "confirmed; Python, libraries and inputs stayed there. *Warm*: they had just been read. Each start is a fresh "
        f"process, engines take turns, medians of {turns} turns. In brackets: processor seconds, which other work on the "
        f"machine does not lengthen much. **The machine was shared with other work**: load {load[0]:.0f} at the end on "
        f"{os.cpu_count()} cores, and the disk is shared too, so seconds vary from turn to turn.",
    )
    assert disk
    made.text(
        f"Disk as `topology detect --storage` measured it just before: {disk.bandwidth / 1e9:.2f} GB/s, "
        f"{disk.latency * 1e6:.0f} us a read, queue depth {disk.queue_depth}. "
        f"`chain-N`: products of {ROWS} rows with random weights of {WIDTH} x {WIDTH} in float32, and ReLUs. Others are "
        "files with trained weights."
    )
    for state in ("cold", "warm"):
        made.text(f"## {state.capitalize()}, seconds to the first output")
        for kind, title in ((False, "model"), (True, "language model, 8 bits")):
            group = [model for model in models if (model.gguf is not None) == kind]
            columns = [engine for engine in engines if (engine in TEXT_ENGINES) == kind]
            rows = [
                [model.name, f"{model.size / 1e6:.0f}", *(_times(model.starts.get((e, state), [])) for e in columns)]
                for model in group
            ]
            if rows:
                made.table([title, "MB", *(NAMES[engine] for engine in columns)], rows)
    failures = [f"- {model.name}, {NAMES[engine]}: {why}" for model in models for engine, why in model.failed.items()]
    if failures:
        made.text("Left out:", *failures)
    made.text("## Predicted and measured")
    made.text(
        "Milliseconds. Predicted: the schedule's latency from the first read to the last kernel, and its bound. Measured: "
        "from the first read to the end of the first run. *Disk*: the reads alone. *Less the disk's error*: measured over "
        "predicted, if the disk had been as fast as in these starts. The model does not count what comes "
        "before the first read (Python, libraries), nor what a first call does besides its kernels' work: pages that are "
        "touched first, weights that are laid out then because they could not be when the model was compiled."
    )
    rows = []
    for model in models:
        starts = our_starts(model, "cold")
        if not starts:
            continue
        whole = median(_span(each) for each in starts)
        reads = float(_milliseconds(starts, "read parameters"))
        rows.append(
            [model.name, f"{model.bound_ns * 1e-6:.1f}", f"{model.predicted_ns * 1e-6:.1f}", f"{1e3 * whole:.1f}",
             f"{1e9 * whole / model.predicted_ns:.2f}", f"{model.reads_ns * 1e-6:.1f}", f"{reads:.1f}",
             f"{1e3 * whole / (reads + 1e-6 * (model.predicted_ns - model.reads_ns)):.2f}"]
        )  # fmt: skip
    made.table(
        ["model", "bound", "predicted", "measured", "measured / predicted", "disk, predicted", "disk, measured",
         "less the disk's error"], rows
    )  # fmt: skip
    for model in models:
        if rows := stage_rows(model):
            made.text(f"## Stages of {model.name}")
            made.table(["stage", "in the model", "predicted, ms", "cold, ms", "warm, ms"], rows, left=2)
    drawings(made, models, disk.name)
    return made


def _times(starts: list[dict[str, Any]]) -> str:
    """Return the median seconds, and in brackets the median processor seconds."""
    if not starts:
        return "–"
    return f"{median(s['seconds'] for s in starts):.2f} ({median(s['processor_s'] for s in starts):.2f})"


def drawings(made: Page, models: list[Model], storage_name: str) -> None:
    """Add the picture of a cold start of the largest model."""
    from tvm_sched_runtime.runtime import load as load_artifact

    drawn = [model for model in models if ("ours", "cold") in model.starts]
    if drawn:
        largest = max(drawn, key=lambda model: model.size)
        (plan,) = load_artifact(largest.artifact).plans()
        made.picture("timeline", f"A cold start of {largest.name}", picture(largest, plan, storage_name))


def _span(answer: dict[str, Any]) -> float:
    stages = {stage["name"]: stage for stage in answer["stages"]}
    return float(stages["first run"]["end_s"] - stages.get("read parameters", stages["first run"])["start_s"])


def main() -> None:
    """Make the models, measure, write the page."""
    options = parser(__doc__)
    options.add_argument(
        "--folder", type=Path, default=Path(), help="where models and artifacts are written; on the disk to be measured"
    )
    options.add_argument(
        "--sizes", type=int, nargs="*", default=[64, 512, 2048], metavar="MIB", help="of chains of products"
    )
    options.add_argument(
        "--model", type=Path, nargs="*", default=[], metavar="FILE.onnx", help="models with their weights"
    )
    options.add_argument("--shape", nargs="*", default=[], metavar="INPUT:1,2,3", help="shapes of their inputs")
    options.add_argument(
        "--text", type=Path, nargs=2, metavar=("FOLDER", "FILE.gguf"), help="a language model, also as GGUF with 8 bits"
    )
    options.add_argument("--turns", type=int, default=5)
    options.add_argument(
        "--packages", default="", metavar="DIR", help="where packages of peers are, besides this Python's"
    )
    arguments = options.parse_args()
    sizes, turns = ([16], 1) if arguments.quick else (arguments.sizes, arguments.turns)
    shapes = {name: tuple(map(int, dims.split(","))) for name, dims in (shape.split(":") for shape in arguments.shape)}
    if arguments.packages:
        sys.path.append(arguments.packages)
    packages = {"ours": "tvm_sched", "text": "tvm_sched_language", "llama": "xllamacpp"}
    engines = [e for e in ENGINES if importlib.util.find_spec(packages.get(e, e.split(",")[0]))]
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="cold-start-") as made:
        folder = Path(made).resolve()
        topology = folder / "machine.toml"
        detect = [sys.executable, "-m", "tvm_sched.cli", "topology", "detect", "--storage", made, "-o", str(topology)]
        subprocess.run(detect, check=True, stdout=subprocess.DEVNULL)
        models = [*(given(folder, file, shapes) for file in arguments.model), *(chain(folder, size) for size in sizes)]
        if arguments.text:
            models.append(language_model(folder, *arguments.text, topology))
        for model in models:
            if model.gguf is None:
                compile_ours(model, topology)
            measure(model, engines, turns, folder / "caches", arguments.packages)
            seconds = {f"{e} {s}": [round(a["seconds"], 2) for a in each] for (e, s), each in model.starts.items()}
            print(model.name, seconds, model.failed, file=sys.stderr, flush=True)
        result = page(models, engines, turns, arguments.markdown, topology)
        if arguments.json:
            rows = [
                {
                    "model": m.name,
                    "bytes": m.size,
                    "predicted_ns": m.predicted_ns,
                    "engine": e,
                    "state": s,
                    "starts": starts,
                }
                for m in models
                for (e, s), starts in m.starts.items()
            ]
            arguments.json.write_text(json.dumps(rows) + "\n")
        result.write()


if __name__ == "__main__":
    main()
