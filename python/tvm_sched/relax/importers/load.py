"""`load_model`: find out what a model is and hand it to the importer for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tvm

from ...errors import InputError
from .model import ImportedModel
from .shapes import InputShapes

ALLOWED = ".onnx (ONNX), .pt2 (torch.export), .json (Relax module, tvm.ir.save_json), .py (TVMScript)"


def load_model(model: Any, input_shapes: InputShapes | None = None, name: str | None = None) -> ImportedModel:
    """Import a model with static shapes.

    Parameters
    ----------
    model : path, onnx.ModelProto, torch.export.ExportedProgram, tvm.IRModule or ImportedModel
        Files: ``.onnx``, ``.pt2``, ``.json`` (of ``tvm.ir.save_json``), ``.py`` (TVMScript; the file is executed).
    input_shapes : mapping of str to sequence of int, optional
        Shape of inputs by name. Needed where the model leaves a dimension open; a symbol that one input binds is bound
        in all of them.
    name : str, optional
        Name of the model; else the stem of the file, or the graph's own name.

    Raises
    ------
    InputError
        A file that is missing, unreadable or of an unknown kind; an input or dimension that does not fit or is left
        open; an operator that TVM's frontend cannot convert.
    """
    if isinstance(model, ImportedModel):
        return load_model(model.with_parameters(), input_shapes, name or model.name) if input_shapes else model
    if isinstance(model, (str, os.PathLike)):
        return _load_file(Path(model), input_shapes, name)
    return _load_object(model, input_shapes, name, f"model {name!r}" if name else "model")


def _load_object(model: Any, shapes: InputShapes | None, name: str | None, where: str) -> ImportedModel:
    if isinstance(model, tvm.IRModule):
        from .relax import from_module

        return from_module(model, shapes, name or "model", where)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if type(model).__qualname__ == "ModelProto":
        from .onnx import from_onnx

        return from_onnx(model, shapes, name, where)
    if kind.startswith("torch.export") and type(model).__qualname__ == "ExportedProgram":
        from .torch import from_exported_program

        return from_exported_program(model, shapes, name or "model", where)
    hint = ""
    if kind.startswith("torch.") or hasattr(model, "state_dict"):
        hint = "; export it first: torch.export.export(model.eval(), example_inputs)"
    raise InputError(
        f"{where} is a {kind}; a path, an onnx.ModelProto, a torch.export.ExportedProgram or a tvm.IRModule is allowed{hint}"
    )


def _load_file(path: Path, shapes: InputShapes | None, name: str | None) -> ImportedModel:
    where = str(path)
    if not path.exists():
        raise InputError(f"{where}: no such file; a model is a file of kind {ALLOWED}")
    if not path.is_file():
        raise InputError(f"{where} is not a file; a model is a file of kind {ALLOWED}")
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error})") from None
    name = name or path.stem
    extension = path.suffix.lower()
    if extension == ".onnx":
        from .onnx import read_onnx

        return _load_object(read_onnx(path), shapes, name, where)
    if extension == ".pt2":
        from .torch import read_exported_program

        return _load_object(read_exported_program(path), shapes, name, where)
    if extension in (".py", ".json"):
        from .relax import read_module

        return _load_object(read_module(path), shapes, name, where)
    raise InputError(f"{where}: files ending in {extension or 'nothing'!r} are not known; allowed are {ALLOWED}")
