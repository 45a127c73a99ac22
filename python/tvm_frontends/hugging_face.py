"""Import of Hugging Face folders (``config.json`` and safetensors) through torch.export.

Nothing is downloaded, and no code of the folder is executed: transformers must know the architecture.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from .constants import Constants, Values
from .errors import MissingWeights, ModelError, ModelWarning, first_line
from .imported_model import ImportedModel
from .logs import quiet
from .shapes import DeclaredInput, Dimension, InputShapes, StaticShapes
from .source import Description, ModelSource
from .torch.import_program import import_exported_program

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
PREFIX = "model."
"""Prefix of the parameters' names inside of `_wrapper`."""
HALF = ("float16", "bfloat16")
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises if a file is not a JSON document with the expected fields."""


class _Head(msgspec.Struct):
    model_type: str = ""
    architectures: list[str] | None = None
    auto_map: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Signature:
    """The inputs of a model, and default sizes of symbols."""

    inputs: tuple[DeclaredInput, ...]
    defaults: Mapping[str, int]


def load(
    folder: str | os.PathLike[str],
    shapes: InputShapes | None = None,
    *,
    constants: Constants | None = None,
    name: str | None = None,
) -> ImportedModel:
    """Import a Hugging Face folder with static shapes.

    Parameters and errors are those of `tvm_frontends.load_model`; the symbols of shapes are those of `open_folder`.

    Examples
    --------
    >>> import tvm_frontends
    >>> imported = tvm_frontends.hugging_face.load("tiny-bert", {"batch": 1, "tokens": 8})
    >>> imported.inputs["input_ids"]
    ((1, 8), 'int64')
    """
    path = Path(folder)
    return open_folder(path, name or path.resolve().name, str(path)).load(shapes, constants)


def open_folder(folder: Path, name: str, where: str) -> ModelSource:
    """Read the configuration and determine the model's inputs; the weights are read at the import.

    Text inputs have the symbols ``batch`` and ``tokens``, images ``batch``, ``height`` and ``width``, sound ``batch`` and
    ``samples``. Of a model with an encoder and a decoder, the encoder is imported.

    Raises
    ------
    ModelError
        No ``config.json``, no weights, or an architecture that transformers or this module does not know.
    """
    head = _read_head(folder, where)
    transformers = _import_transformers(where)
    with _offline():
        config = _configuration(transformers, folder, where)
        model_class = _class_of(transformers, head, config, where)
        signature = _signature(model_class, config, folder, where)

    @cache
    def loaded() -> Any:
        with _offline():
            return _load(model_class, config, folder, where)

    def import_with(shapes: StaticShapes, constants: Values) -> ImportedModel:
        every = {**shapes, **{key: value.shape for key, value in constants.items()}}
        program = _export(loaded(), signature, every, where)
        return import_exported_program(program, name, where, PREFIX)(shapes, constants)

    about = {"architecture": model_class.__name__, "model type": head.model_type}
    return ModelSource(
        name, where, signature.inputs, import_with, lambda: _describe(folder, about, where), signature.defaults
    )


def _describe(folder: Path, about: dict[str, str], where: str) -> Description:
    """Describe a folder by the headers of its safetensors files."""
    from safetensors import SafetensorError, safe_open

    count = size = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "numpy") as content:
                slices = [content.get_slice(key) for key in content.keys()]  # noqa: SIM118 - not a mapping
                count += len(slices)
                size += sum(math.prod(part.get_shape()) * _BITS[part.get_dtype()] // 8 for part in slices)
        except (OSError, KeyError, SafetensorError) as error:
            raise ModelError(f"{file}: not a safetensors file that can be read ({error})") from None
    return Description("hugging face", about, parameters=count, parameter_bytes=size)


_BITS = {f"{kind}{bits}": bits for kind in "IUF" for bits in (8, 16, 32, 64)}
_BITS |= {"BOOL": 8, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8}


def _read_head(folder: Path, where: str) -> _Head:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{where}: a folder without config.json; a folder of Hugging Face has one, beside its .safetensors"
        )
    try:
        head = msgspec.json.decode(path.read_bytes(), type=_Head)
    except (OSError, *UNREADABLE) as error:
        raise ModelError(f"{path}: not a config.json of Hugging Face ({first_line(error)})") from None
    if not head.model_type:
        raise ModelError(f"{path}: has no model_type, which says the architecture")
    if not any(file for pattern in WEIGHTS for file in folder.glob(pattern)):
        raise ModelError(
            f"{where}: holds no weights (model.safetensors, or its parts with an index)", MissingWeights(path)
        )
    return head


def _import_transformers(where: str) -> Any:
    try:
        import torch  # noqa: F401 - transformers works without it, and then has no models
        import transformers
    except ImportError:
        raise ModelError(
            f"{where}: folders of Hugging Face need torch and transformers: pip install torch transformers"
        ) from None
    return transformers


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Suppress network access, progress bars and advice; errors are raised."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        with quiet("transformers"), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", ModelWarning)
            yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _configuration(transformers: Any, folder: Path, where: str) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # unknown architectures, wrong fields: several classes
        raise ModelError(
            f"{where}: transformers {transformers.__version__} cannot read its config.json ({first_line(error)})"
        ) from None


def _class_of(transformers: Any, head: _Head, config: Any, where: str) -> Any:
    """Return the class that the configuration names, else the base model of its architecture."""
    for architecture in head.architectures or ():
        candidate = getattr(transformers, architecture, None)
        if inspect.isclass(candidate) and hasattr(candidate, "from_pretrained") and hasattr(candidate, "forward"):
            return candidate
    if head.auto_map:
        raise ModelError(
            f"{where}: its architecture {head.architectures} is code in the folder, which is not executed; "
            "export it with torch.export and import the .pt2"
        )
    try:
        return transformers.MODEL_MAPPING[type(config)]
    except KeyError:
        raise ModelError(
            f"{where}: transformers {transformers.__version__} has no model of the type {head.model_type!r} "
            f"(architectures {head.architectures})"
        ) from None


def _signature(model_class: Any, config: Any, folder: Path, where: str) -> _Signature:
    main = getattr(model_class, "main_input_name", "input_ids")
    text = getattr(config, "text_config", None) or config
    if main == "input_ids":
        return _text_signature(model_class, text)
    if main == "pixel_values":
        return _image_signature(config, folder)
    if main == "input_features":
        mel = getattr(config, "num_mel_bins", None)
        frames = getattr(config, "max_source_positions", None)
        if mel and frames:  # Whisper's convolutions halve the frames
            return _Signature((DeclaredInput(main, ("batch", mel, 2 * frames), "float32"),), {"batch": 1})
    if main == "input_values":
        return _Signature((DeclaredInput(main, ("batch", "samples"), "float32"),), {"batch": 1})
    raise ModelError(
        f"{where}: {model_class.__name__} takes {main!r}; models of text (input_ids), images (pixel_values) and "
        "sound (input_values, Whisper's input_features) are supported: export it with torch.export and import the .pt2"
    )


def _text_signature(model_class: Any, config: Any) -> _Signature:
    takes = inspect.signature(model_class.forward).parameters
    names = ["input_ids"]
    if "attention_mask" in takes:
        names.append("attention_mask")
    if "token_type_ids" in takes and (getattr(config, "type_vocab_size", 0) or 0) > 1:
        names.append("token_type_ids")
    return _Signature(tuple(DeclaredInput(n, ("batch", "tokens"), "int64") for n in names), {"batch": 1})


def _image_signature(config: Any, folder: Path) -> _Signature:
    vision = getattr(config, "vision_config", None) or config
    channels = getattr(vision, "num_channels", 3)
    size = getattr(vision, "image_size", None)
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    else:
        height, width = _preprocessed_size(folder) or (None, None)
    sizes = {"batch": 1, "height": height, "width": width}
    shape: tuple[Dimension, ...] = ("batch", channels, "height", "width")
    defaults = {symbol: value for symbol, value in sizes.items() if value}
    return _Signature((DeclaredInput("pixel_values", shape, "float32"),), defaults)


class _Preprocessor(msgspec.Struct):
    size: Any = None
    crop_size: Any = None


def _preprocessed_size(folder: Path) -> tuple[int, int] | None:
    """Return height and width of the images that the folder's preprocessor makes, if it states them."""
    try:
        preprocessor = msgspec.json.decode((folder / "preprocessor_config.json").read_bytes(), type=_Preprocessor)
    except (OSError, *UNREADABLE):
        return None
    for size in (preprocessor.crop_size, preprocessor.size):
        if isinstance(size, int):
            return size, size
        if isinstance(size, dict):
            side = size.get("shortest_edge")
            height, width = size.get("height", side), size.get("width", side)
            if isinstance(height, int) and isinstance(width, int):
                return height, width
    return None


def _load(model_class: Any, config: Any, folder: Path, where: str) -> Any:
    """Load the model with its weights, in float32."""
    import torch

    kept = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    try:
        model, about = model_class.from_pretrained(
            folder, config=config, local_files_only=True, trust_remote_code=False, dtype=torch.float32,
            output_loading_info=True,
        )  # fmt: skip
    except Exception as error:  # damaged or missing files, sizes that do not fit: several classes
        raise ModelError(f"{where}: its weights cannot be read ({first_line(error)})") from None
    if missing := sorted(about.get("missing_keys", ())):
        raise ModelError(
            f"{where}: {len(missing)} weights of {model_class.__name__} are not in the folder ({missing[0]!r}, ...) and "
            "would be random; complete the folder"
        )
    if kept in HALF:
        _warn(f"{where}: its weights are {kept}; it is compiled in float32, the type of kernels for CPUs")
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
        _warn(f"{where}: {model_class.__name__} has an encoder and a decoder; its encoder is compiled")
    if (
        hasattr(model, "set_experts_implementation")
        and getattr(model, "_can_set_experts_implementation", lambda: True)()
    ):
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            model.set_experts_implementation("batched_mm")  # the implementation of experts with fixed shapes
    return model.eval()


def _warn(text: str) -> None:
    warnings.warn(text, ModelWarning, stacklevel=2)


def _wrapper(model: Any) -> Any:
    """Wrap the model in a module that takes tensors by name and returns a tuple of tensors."""
    import torch

    takes = inspect.signature(model.forward).parameters
    fixed = {"return_dict": True, "use_cache": False}
    anything = any(parameter.kind == parameter.VAR_KEYWORD for parameter in takes.values())
    options = {key: value for key, value in fixed.items() if key in takes or (key == "return_dict" and anything)}

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **inputs: Any) -> tuple[Any, ...]:
            result = self.model(**inputs, **options)
            values = result.values() if hasattr(result, "values") else result
            return tuple(value for value in values if isinstance(value, torch.Tensor))

    return Wrapper().eval()


def _export(model: Any, signature: _Signature, shapes: StaticShapes, where: str) -> Any:
    import torch

    takes = {item.name: item.dtype or "float32" for item in signature.inputs}
    inputs = {name: torch.ones(shapes[name], dtype=getattr(torch, dtype)) for name, dtype in takes.items()}
    try:
        with _offline(), torch.no_grad():
            return torch.export.export(_wrapper(model), (), inputs)
    except Exception as error:  # torch._dynamo and the model itself raise many unrelated classes
        shape_text = ", ".join(f"{name}:{','.join(map(str, shape))}" for name, shape in shapes.items())
        raise ModelError(
            f"{where}: torch.export cannot export {type(model).__name__} with {shape_text}: {first_line(error)}"
        ) from error
