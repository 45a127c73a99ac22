"""The part of the demonstration that one can judge by eye: text is drawn, found and read by a trained model.

PP-OCR's detector and recogniser come from the package rapidocr-onnxruntime, with their weights.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import ExecutionError, TvmSchedError

if TYPE_CHECKING:
    from tvm_sched.cli.output import Output

PACKAGE = "rapidocr_onnxruntime"
DETECTOR, RECOGNISER = "ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx"
TOPOLOGY = "cpu2"
LINES = ("Schedules a neural network", "over 2 CPUs and 4 GPUs", "Apache TVM, 2026")
PAGE = (256, 512)
"""Height and width of the picture, in pixels: multiples of 32, as the detector wants them."""
LINE = (48, 512)
"""Height and width of a line as the recogniser takes it."""
THRESHOLD = 0.3
"""From this probability on the detector's pixel is text."""
SCORE = 0.5
"""Regions whose mean probability is below are noise."""
UNCLIP = 1.6
"""The detector is trained on shrunken boxes: PP-OCR moves their sides out by this many times area over perimeter."""


@dataclass(frozen=True)
class Line:
    """A line of text that was found: its box (left, top, right, bottom) and its text."""

    box: tuple[int, int, int, int]
    text: str


def models_folder() -> Path | None:
    """Where the package keeps its models, or None where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    folder = Path(places[0]) / "models" if places else None
    return folder if folder is not None and (folder / DETECTOR).exists() else None


def read_picture(out: Output, folder: Path) -> list[Line]:
    """Draw a page, find and read its lines, and write the page with its boxes into ``folder``.

    Raises
    ------
    TvmSchedError
        Pillow is missing, or what was read is not what was drawn.
    """
    models = models_folder()
    if models is None:
        out.say("Reading a picture is left out: pip install --no-deps rapidocr-onnxruntime brings the trained models")
        return []
    page = draw_page()
    with out.step("Compiling PP-OCR's detector and recogniser for two CPUs"):
        detect = _compiled(models / DETECTOR, (1, 3, *PAGE))
        recognise = _compiled(models / RECOGNISER, (1, 3, *LINE))
    boxes = find_boxes(detect.run(_normalised(page))[0, 0])
    characters = _characters(models / RECOGNISER)
    lines = [Line(box, read_line(recognise, page.crop(box), characters)) for box in boxes]
    path = folder / "read.png"
    _with_boxes(page, boxes).save(path)
    out.wrote(path, "picture with the lines that were found")
    out.show(f"\nText that PP-OCR found and read in the picture, on {TOPOLOGY}:")
    for line in lines:
        out.show(f"  {line.text!r} at {line.box}")
    if tuple(line.text for line in lines) != LINES:
        raise ExecutionError(f"the picture says {LINES}, and {tuple(line.text for line in lines)} was read")
    return lines


def draw_page() -> Any:
    """A white page with `LINES`."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise TvmSchedError("the demonstration draws with Pillow: pip install pillow") from None
    page = Image.new("RGB", PAGE[::-1], "white")
    draw = ImageDraw.Draw(page)
    for number, text in enumerate(LINES):
        draw.text((24, 28 + 72 * number), text, fill=(20, 20, 60), font=ImageFont.load_default(size=30))
    return page


def find_boxes(probabilities: npt.NDArray[Any]) -> list[tuple[int, int, int, int]]:
    """The boxes of connected regions of text, from top to bottom; regions of a few pixels or of a low score are noise."""
    from scipy import ndimage

    regions, _ = ndimage.label(probabilities > THRESHOLD)
    height, width = probabilities.shape
    boxes = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(regions), start=1):
        tall, wide = rows.stop - rows.start, columns.stop - columns.start
        if min(tall, wide) < 4 or probabilities[regions == number].mean() < SCORE:
            continue
        grown = round(UNCLIP * tall * wide / (2 * (tall + wide)))
        top, bottom = max(0, rows.start - grown), min(height, rows.stop + grown)
        boxes.append((max(0, columns.start - grown), top, min(width, columns.stop + grown), bottom))
    return sorted(boxes, key=lambda box: (box[1], box[0]))


def _compiled(path: Path, shape: tuple[int, ...]) -> Any:
    from tvm_sched.relax import compile as compile_scheduled

    return compile_scheduled(path, TOPOLOGY, options={"time_limit": 10.0}, input_shapes={"x": shape})


def _normalised(picture: Any) -> npt.NDArray[np.float32]:
    """Pixels between -1 and 1, blue first, as (1, 3, height, width)."""
    pixels = np.asarray(picture, np.float32)[:, :, ::-1] / 127.5 - 1
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def read_line(recognise: Any, crop: Any, characters: list[str]) -> str:
    """Scale a line to the recogniser's height, fill it up to its width, and take the likeliest characters (CTC)."""
    width = min(LINE[1], max(1, round(crop.width * LINE[0] / crop.height)))
    pixels = np.zeros((1, 3, *LINE), np.float32)
    pixels[..., :width] = _normalised(crop.resize((width, LINE[0])))
    best = recognise.run(pixels)[0].argmax(axis=-1)
    kept = [int(now) for before, now in zip([0, *best[:-1]], best, strict=True) if now not in (0, before)]
    return "".join(characters[index - 1] for index in kept).strip()


def _characters(model: Path) -> list[str]:
    """The alphabet, which the model's metadata hold."""
    import onnx

    properties = {item.key: item.value for item in onnx.load(model).metadata_props}
    return [*properties["character"].splitlines(), " "]


def _with_boxes(page: Any, boxes: list[tuple[int, int, int, int]]) -> Any:
    from PIL import ImageDraw

    shown = page.copy()
    for box in boxes:
        ImageDraw.Draw(shown).rectangle(box, outline=(200, 30, 30), width=2)
    return shown
