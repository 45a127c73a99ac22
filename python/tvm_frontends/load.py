"""Load or open a model: detect its kind, and call the importer of that kind."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import tvm

from .constants import Constants, Values
from .errors import ModelError, first_line, refused
from .imported_model import ImportedModel
from .shapes import InputShapes, StaticShapes
from .source import ModelSource

ALLOWED = (
    ".onnx (ONNX), .pt2 (torch.export), .json (Relax module, tvm.ir.save_json), .py (TVMScript), or a folder of Hugging "
    "Face (config.json and .safetensors) or of ONNX Runtime GenAI (genai_config.json)"
)

GENAI = "genai_config.json"
"""File of an ONNX Runtime GenAI folder that names the decoder's ONNX file."""


class _DecoderInputs(msgspec.Struct):
    past_key_names: str = ""
    past_value_names: str = ""


class _Decoder(msgspec.Struct):
    filename: str = ""
    head_size: int = 0
    inputs: _DecoderInputs = msgspec.field(default_factory=_DecoderInputs)


class _GenAiModel(msgspec.Struct):
    decoder: _Decoder = msgspec.field(default_factory=_Decoder)


class _GenAi(msgspec.Struct):
    model: _GenAiModel = msgspec.field(default_factory=_GenAiModel)


def load_model(
    model: Any, shapes: InputShapes | None = None, *, constants: Constants | None = None, name: str | None = None
) -> ImportedModel:
    """Import a model with static shapes.

    Parameters
    ----------
    model : path, onnx.ModelProto, torch.export.ExportedProgram, tvm.IRModule or ImportedModel
        Files: ``.onnx``, ``.pt2``, ``.json`` (of ``tvm.ir.save_json``), ``.py`` (TVMScript; the file is executed); a folder
        of Hugging Face; or a folder of ONNX Runtime GenAI, of which the decoder is imported.
    shapes : mapping, optional
        Shapes of inputs and sizes of symbols, by name. They are required if the model leaves a dimension open. A symbol
        that the shape of one input binds is bound in all inputs. If two inputs of an ONNX model are given different sizes
        for one symbol, each input has its own size, and a `ModelWarning` says so.
    constants : mapping, optional
        Values of inputs that become constants of the model: numbers, nested sequences of numbers, or arrays.
    name : str, optional
        Name of the model. Default: the stem of the file, or the graph's own name.

    Raises
    ------
    ModelError
        The file is missing, unreadable or of an unknown kind; a shape or constant does not fit the model; a dimension is
        left open; or an operator cannot be converted.

    Examples
    --------
    >>> import tvm_frontends
    >>> imported = tvm_frontends.load_model("model.onnx", {"x": (2, 3)})
    >>> imported.name, imported.inputs
    ('model', {'x': ((2, 3), 'float32')})
    """
    if isinstance(model, ImportedModel) and not shapes and not constants:
        return model
    return open_model(model, name).load(shapes, constants)


def open_model(model: Any, name: str | None = None) -> ModelSource:
    """Read a model and what it declares, without conversion.

    Parameters
    ----------
    model, name
        As for `load_model`.

    Raises
    ------
    ModelError
        As for `load_model`.

    Examples
    --------
    >>> from tvm_frontends import open_model
    >>> open_model("model.onnx").name
    'model'
    """
    if name is not None and not isinstance(name, str):
        raise ModelError(f"the name of the model is of the type {type(name).__name__}; a text is allowed")
    if isinstance(model, ModelSource):
        return model
    if isinstance(model, ImportedModel):
        return open_model(model.with_parameters(), name or model.name)
    path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    where = str(path) if path is not None else f"model {name!r}" if name else "model"
    with refused(where, "cannot be read"):
        source = _open_file(path, name) if path is not None else _open_object(model, name, where)

    def import_with(shapes: StaticShapes, constants: Values) -> ImportedModel:
        with refused(where, "cannot be imported"):
            return source.import_with(shapes, constants)

    return replace(source, import_with=import_with)


def _open_object(model: Any, name: str | None, where: str) -> ModelSource:
    if isinstance(model, tvm.IRModule):
        from .relax_modules import open_module

        return open_module(model, name or "model", where)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if type(model).__qualname__ == "ModelProto":
        from .onnx import open_onnx

        return open_onnx(model, name, where)
    if kind.startswith("torch.export") and type(model).__qualname__ == "ExportedProgram":
        from .torch import open_exported_program

        return open_exported_program(model, name or "model", where)
    hint = ""
    if kind.startswith("torch.") or hasattr(model, "state_dict"):
        hint = "; export it first: torch.export.export(model.eval(), example_inputs)"
    kind = kind.removeprefix("builtins.").removeprefix("NoneType") or "None"
    raise ModelError(
        f"{where} is of the type {kind}; a path, an onnx.ModelProto, a torch.export.ExportedProgram or a tvm.IRModule is "
        f"allowed{hint}"
    )


def _open_file(path: Path, name: str | None) -> ModelSource:
    where = str(path)
    if not path.exists():
        raise ModelError(f"{where}: no such file; a model is {ALLOWED}")
    if path.is_dir():
        if (path / GENAI).is_file() and not any(path.glob("*.safetensors")):
            return _open_genai(path, name or path.resolve().name)
        from .hugging_face import open_folder

        return open_folder(path, name or path.resolve().name, where)
    if not path.is_file():
        raise ModelError(f"{where} is not a file; a model is {ALLOWED}")
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ModelError(f"{where}: cannot be read ({error.strerror or error})") from None
    name = name or path.stem
    extension = path.suffix.lower()
    if extension == ".onnx":
        from .onnx import read_onnx

        return _open_object(read_onnx(path), name, where)
    if extension == ".pt2":
        from .torch import read_exported_program

        return _open_object(read_exported_program(path), name, where)
    if extension in (".py", ".json"):
        from .relax_modules import read_module

        return _open_object(read_module(path), name, where)
    raise ModelError(f"{where}: files ending in {extension or 'nothing'!r} are not known; allowed are {ALLOWED}")


def _open_genai(folder: Path, name: str) -> ModelSource:
    """Open the decoder's ONNX file of an ONNX Runtime GenAI folder; its heads get the size that the folder says."""
    from .onnx import read_onnx

    config = folder / GENAI
    try:
        decoder = msgspec.json.decode(config.read_bytes(), type=_GenAi).model.decoder
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.MsgspecError) as error:
        raise ModelError(f"{config}: not a configuration of ONNX Runtime GenAI ({first_line(error)})") from None
    if not decoder.filename:
        raise ModelError(
            f"{config}: model.decoder.filename names no ONNX file; a decoder in several files is not supported: name one "
            "of its .onnx files in place of the folder"
        )
    path = folder / decoder.filename
    if path.parent != folder or not path.is_file():
        raise ModelError(f"{config}: model.decoder.filename is {decoder.filename!r}, and the folder has no such file")
    model = read_onnx(path)
    prefixes = tuple(
        names.partition("%d")[0] for names in (decoder.inputs.past_key_names, decoder.inputs.past_value_names)
    )
    for value in model.graph.input:
        size = value.type.tensor_type.shape.dim[-1:]
        if decoder.head_size > 0 and all(prefixes) and value.name.startswith(prefixes) and size and size[0].dim_param:
            size[0].dim_value = decoder.head_size
    return _open_object(model, name, str(path))
