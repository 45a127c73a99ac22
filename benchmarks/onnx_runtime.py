"""ONNX Runtime with our execution provider beside its own for CPUs: equal outputs, processor time of a run and of a session.

Each of the 20 files runs in a process of its own, with both sessions in it, whose runs alternate. The files lie in installed
packages: onnx (networks, which get random weights here), onnxruntime, magika, rapidocr-onnxruntime and silero-vad.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from _common import parser
from _real_models import TESTED, picture, relative_error
from _result_page import Page

from tvm_sched_bench.testing.random_weights import randomise_initializers

LIGHT = "onnx/backend/test/data/light/light_"
FILES: dict[str, dict[str, Any]] = {
    **{f"{LIGHT}{name}.onnx": {} for name in (
        "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "zfnet512",
    )},
    **{real.file: real.shapes for real in TESTED if real.constants.get("sr") != 8000},
    **{f"onnxruntime/datasets/{name}.onnx": {} for name in ("logreg_iris", "mul_1", "sigmoid")},
}  # fmt: skip
"""Files below the folder of packages, and sizes of the inputs that they leave open."""
HEAD = (
    "file", "nodes in the file", "warnings of nodes left", "relative error", "CPU provider, processor ms",
    "ours, processor ms", "ratio", "making our session, processor s",
)  # fmt: skip


def one(name: str, topology: str, runs: int) -> dict[str, Any]:
    """Compare the two providers on a file."""
    import onnx
    import onnxruntime

    import tvm_sched_onnxruntime
    from tvm_sched_onnxruntime.claim import ProviderWarning

    path = str(Path(sysconfig.get_paths()["purelib"]) / name)
    model = onnx.load(path)
    if name.startswith(LIGHT):  # constant weights give constant outputs
        model = randomise_initializers(model)
    content = model.SerializeToString()
    plain, options = onnxruntime.SessionOptions(), onnxruntime.SessionOptions()
    for each in (plain, options):
        each.log_severity_level, each.intra_op_num_threads = 4, 2
        each.add_session_config_entry("session.intra_op.allow_spinning", "0")  # processor time is that of the work
    theirs = onnxruntime.InferenceSession(content, plain, providers=["CPUExecutionProvider"])
    feed = {item.name: _value(name, item, FILES[name].get(item.name)) for item in theirs.get_inputs()}
    sizes = {key: value.shape for key, value in feed.items()}
    tvm_sched_onnxruntime.add_to(
        options, topology=topology, time_limit=5, input_shapes={key: list(size) for key, size in sizes.items()}
    )
    began = time.process_time()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ours = onnxruntime.InferenceSession(content, options)
    session = time.process_time() - began
    left = [str(each.message) for each in told if each.category is ProviderWarning]
    expected, found = theirs.run(None, feed), ours.run(None, feed)
    seconds = {"theirs": 0.0, "ours": 0.0}
    for _ in range(runs):
        for side, which in (("theirs", theirs), ("ours", ours)):
            before = time.process_time()
            which.run(None, feed)
            seconds[side] += time.process_time() - before
    return {
        "nodes": len(model.graph.node),
        "left": left,
        "error": max(relative_error(np.asarray(a), np.asarray(b)) for a, b in zip(found, expected, strict=True)),
        "theirs": seconds["theirs"] / runs * 1e3,
        "ours": seconds["ours"] / runs * 1e3,
        "session": session,
    }


def _value(name: str, item: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    generator = np.random.default_rng(0)
    size = shape or tuple(extent if isinstance(extent, int) else 1 for extent in item.shape)
    if name.endswith("PP-OCRv4_det_infer.onnx"):  # in noise it sees nothing
        return picture(size)
    if item.name == "sr":
        return np.full(size if shape else item.shape, 16000, np.int64)
    if "float" in item.type:
        return (0.3 * generator.standard_normal(size)).astype(np.float16 if "16" in item.type else np.float32)
    return generator.integers(0, 4, size).astype(np.int32 if "32" in item.type else np.int64)


def page(found: dict[str, dict[str, Any]], path: Path | None) -> Page:
    """Make the page of results."""
    result = Page("ONNX Runtime: our execution provider beside its own", path)
    compared = {name: row for name, row in found.items() if "error" in row}
    equal = sum(row["error"] <= 1e-4 for row in compared.values())
    result.text(
        f"{equal} of {len(found)} files give the values of ONNX Runtime's own provider within 1e-4 of the largest value. "
        "Times are processor time of both cores for a run, whose inputs and outputs are NumPy arrays; the runs of the two "
        "sessions alternate in one process, with two threads each. A session's seconds are the processor time of its "
        "making, which compiles. [How to use the provider](../tasks/onnx_runtime.md)."
    )
    result.text(
        "Threads of ONNX Runtime do not spin (`allow_spinning` 0). ONNX Runtime's own provider runs all nodes of "
        "`silero_vad` in both sessions, so its ratio shows only noise. A warning tells of the nodes that are left to it."
    )
    rows = []
    for name, row in found.items():
        short = Path(name).stem if "magika" not in name else "magika"
        if "error" not in row:
            rows.append([short, "", "", row["failed"], "", "", "", ""])
            continue
        rows.append([
            short, row["nodes"], len(row["left"]), f"{row['error']:.1e}", f"{row['theirs']:.3f}", f"{row['ours']:.3f}",
            f"{row['ours'] / row['theirs']:.2f}", f"{row['session']:.1f}",
        ])  # fmt: skip
    result.table(HEAD, rows)
    result.left_to(
        "ONNX Runtime's own provider", ((Path(name).stem, row.get("left", ())) for name, row in found.items())
    )
    return result


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--topology", default="cpu2", help="what to compile for")
    arguments.add_argument("--only", default="", help="files whose names contain this text")
    arguments.add_argument("--runs", type=int, default=20, help="timed runs of each session")
    arguments.add_argument("--resume", type=Path, help="JSON of what is done, read and kept up: a run goes on from it")
    arguments.add_argument("--one", help="compare one file in this process, and print JSON")
    options = arguments.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.topology, options.runs)))
        return
    kept = options.resume
    found = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for name in FILES:
        if options.only in name and name not in found and not (options.quick and name.startswith(LIGHT)):
            command = [
                sys.executable,
                __file__,
                "--one",
                name,
                "--topology",
                options.topology,
                "--runs",
                str(options.runs),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            last = (done.stderr.strip().splitlines() or [""])[-1]
            found[name] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"failed": last}
            print(name, found[name], flush=True)
            if kept:
                kept.write_text(json.dumps(found, indent=1) + "\n")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    result = page(found, options.markdown)
    print(result.markdown)
    if options.markdown:
        result.write()


if __name__ == "__main__":
    main()
