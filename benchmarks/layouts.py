"""Convolutions of whole networks with channels last and in blocked layouts, as oneDNN computes them.

Channels last as oneDNN chooses its implementation, and with the fastest of its first four for each convolution, which is
what the compiler takes; against the faster of blocks of 16 and of 8 channels (nChw16c, nChw8c) for each convolution, without
the conversions to and from them. Kernels run in the order of the network, on three tensors that take turns, four passes in
each layout in turns; a kernel's time is the lower quartile. Networks are those of `cpu_latency`, exported by it into
``--cache``. Compiles ``layouts.cc`` with the C++ compiler of the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from _common import parser
from _cpu_models import cases
from _result_page import Row, report
from cpu_latency import HERE, Bench

NETWORKS = ("tv/resnet50", "ddddocr/common_det", "tv/mobilenet_v3_large", "rapidocr_onnxruntime/ch_PP-OCRv4_det_infer")
"""Of the half that may be looked at: a residual network, a YOLOX-like detector, and two with depthwise convolutions."""
QUICK = ("tv/mobilenet_v3_large",)
FOLLOWS = {"relu": 1, "clip": 1, "silu": 2, "hard_swish": 3}


LAYOUTS = (("last", "channels last"), ("blocked", "blocked"))


def program(folder: Path) -> tuple[Path, dict[str, str]]:
    """``layouts.cc``, compiled; and the environment that it runs in."""
    import tvm_sched

    roots = [
        Path(sysconfig.get_path("data")),
        *(Path(p.split("/lib/python")[0]) for p in sys.path if "/lib/python" in p),
    ]
    root = next((each for each in roots if (each / "include/oneapi/dnnl/dnnl.hpp").exists()), None)
    if root is None:
        raise SystemExit("the headers of oneDNN were not found: pip install onednn-devel-cpu-tbb 'tbb-devel==2021.*'")
    made = folder / "layouts"
    libraries = [str(root / "lib" / name) for name in ("libdnnl.so.3", "libtbb.so.12")]
    command = ["g++", "-O2", "-std=c++17", str(HERE / "layouts.cc"), f"-I{root / 'include'}", "-o", str(made)]
    subprocess.run([*command, *libraries, "-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed", "-lm"], check=True)
    own = Path(str(tvm_sched.__file__)).parent / "_lib"  # what stands in for Intel's libraries
    return made, {**os.environ, "LD_LIBRARY_PATH": f"{own}:{root / 'lib'}"}


def convolutions(model: Path, inputs: Path) -> list[dict[str, Any]]:
    """The descriptions of a model's convolutions of images, in the order of the network."""
    import numpy as np
    import tvm

    from tvm_sched.relax import CompileOptions, load_model
    from tvm_sched.relax.api import model_with_name
    from tvm_sched.relax.lower.kernel_libraries import KERNELS
    from tvm_sched.relax.passes import problem_passes

    with np.load(inputs) as values:
        shapes = {name: value.shape for name, value in values.items()} if model.suffix == ".onnx" else None
    passes = problem_passes(CompileOptions.of("cpu1", cost_model="roofline"))
    mod = tvm.transform.Sequential(passes)(model_with_name(load_model(model, shapes)))
    found = [json.loads(str(document))["kernel"] for document in mod.attrs[KERNELS].values()]
    return [k for k in found if k["primitive"] == "convolution" and len(k["operands"][0]["dims"]) == 4]


def line_of(kernel: dict[str, Any]) -> str:
    """A convolution as ``layouts.cc`` reads it."""
    source, weights, *_, result = (operand["dims"] for operand in kernel["operands"])
    groups = weights[0] if len(weights) == 5 else 1
    out, into, *size = weights[-4:]
    post = kernel["post"]
    follows = 4 if any("input" in each for each in post) else FOLLOWS.get(post[0]["name"], 1) if post else 0
    places = [kernel[name] for name in ("strides", "dilation", "padding_low", "padding_high")]
    numbers = [source[0], groups, into, out, *source[2:], *result[2:], *size, *(n for pair in places for n in pair)]
    return " ".join(map(str, [*numbers, follows]))


def measured(made: tuple[Path, dict[str, str]], lines: list[str], threads: int, seconds: float) -> dict[str, float]:
    """Milliseconds of a network by what chooses: oneDNN, or the fastest implementation, or the fastest blocked one."""
    command = [str(made[0]), str(threads), str(seconds)]
    text = "\n".join(lines)
    done = subprocess.run(command, input=text, env=made[1], capture_output=True, text=True, check=True).stdout
    first: dict[str, float] = {}
    best: dict[str, dict[str, float]] = {layout: {} for layout, _ in LAYOUTS}
    for row in done.splitlines():
        number, layout, *_, took = row.split()
        if layout == "last":
            first.setdefault(number, float(took))
        best[layout][number] = min(best[layout].get(number, float("inf")), float(took))
    both = best["last"].keys() & best["blocked"].keys()  # blocks hold no groups of a few channels
    sums = {f"{name}, fastest": sum(best[layout][n] for n in both) * 1e3 for layout, name in LAYOUTS}
    return {"channels last, oneDNN's choice": sum(first[n] for n in both) * 1e3, **sums}


def arguments() -> Any:
    made = parser((__doc__ or "").partition("\n")[0], models=False)
    made.add_argument("--case", action="append", metavar="NAME", help=f"networks; default {', '.join(NETWORKS)}")
    made.add_argument("--threads", type=int, action="append", help="default: 1, and as many as there are cores")
    made.add_argument("--seconds", type=float, default=4.0, help="measured a network and number of threads")
    made.add_argument("--cache", type=Path, default=HERE.parent / "out/bench/cache", help="of cpu_latency's networks")
    return made.parse_args()


def main() -> None:
    args = arguments()
    threads = args.threads or sorted({1, len(os.sched_getaffinity(0))})
    bench = Bench(args.cache, threads[-1], args.seconds, 1, 600, "")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        made = program(Path(folder))
        for name in args.case or (QUICK if args.quick else NETWORKS):
            case = cases()[name]
            failed = case.missing or bench.export(case).get("all", "")
            if failed:
                print(f"{name}: left out, {failed}", flush=True)
                continue
            place = bench.folder(case)
            model = next(place / each for each in ("model.onnx", "model.pt2") if (place / each).exists())
            lines = [line_of(kernel) for kernel in convolutions(model, place / "inputs.npz")]
            for count in threads:
                word = f"{name}, {count} thread{'s' if count > 1 else ''}"
                found = measured(made, lines, count, args.seconds)
                rows += [Row(word, method, figure, "ms") for method, figure in found.items()]
    report("Layouts of convolutions", rows, args.json, args.markdown, notes=NOTES)


NOTES = """
Milliseconds of all convolutions of a network, one after another (`benchmarks/layouts.py` says how). *Fastest* takes for each
convolution the fastest of oneDNN's implementations in that layout; conversions to and from blocks are not counted."""


if __name__ == "__main__":
    main()
