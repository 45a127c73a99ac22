"""Reading of ONNX files. External data stay in their files, and are memory-mapped when they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError, first_line
from .check_tensors import tensor_bytes

if TYPE_CHECKING:
    import onnx


def read_onnx(path: Path) -> onnx.ModelProto:
    """Read an ONNX file; its external data are located and checked, but not read.

    Raises
    ------
    ModelError
        The file is not an ONNX model, or external data are missing, too short or outside of the model's folder.
    """
    onnx = import_onnx(str(path))
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf and onnx raise unrelated classes
        raise ModelError(f"{path}: not a readable ONNX file ({first_line(error)})") from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path}: not a readable ONNX file (its graph is empty)")
    _locate_external_data(model, path)
    return model


def import_onnx(where: str) -> Any:
    """Return the package onnx, or raise an error that says how to install it and the other packages of the importer."""
    try:
        import onnx
        import onnx_ir  # noqa: F401
        import onnxscript.optimizer  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"{where}: reading ONNX models needs the package {error.name or 'onnx'}: pip install onnx onnx-ir onnxscript"
        ) from None
    return onnx


def tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a graph: initializers, tensors in node attributes, and those of subgraphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            for body in subgraphs(attribute):
                yield from tensors_of(body)


def subgraphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    """Return the graphs in an attribute."""
    return [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]


def _locate_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Rewrite the locations of external data as full paths, so that the model can be used from any folder."""
    for tensor in tensors_of(model.graph):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        entries = {entry.key: entry for entry in tensor.external_data}
        if "location" not in entries:
            raise ModelError(
                f"{path}: tensor {tensor.name!r} has external data without a location; export the model again"
            )
        file = _data_file(path, entries["location"].value, f"{path}: tensor {tensor.name!r}")
        subject = f"{path}: tensor {tensor.name!r} has its data in {file}"
        offset, length = (_whole(subject, entries, key) for key in ("offset", "length"))
        needed = tensor_bytes(tensor, subject)
        if length is not None and needed is not None and length != needed:
            raise ModelError(
                f"{subject}, {length} bytes of it by its entry 'length'; its shape {list(tensor.dims)} and type need "
                f"{needed}: the file is broken, export the model again"
            )
        end = (offset or 0) + (length if length is not None else needed or 0)
        if file.stat().st_size < end:
            raise ModelError(
                f"{subject}, which ends at byte {file.stat().st_size} where {end} are needed; copy it again"
            )
        if needed == 0:  # an empty file cannot be mapped
            tensor.data_location, tensor.raw_data = tensor.DEFAULT, b""
            del tensor.external_data[:]
            continue
        entries["location"].value = str(file)


def _data_file(path: Path, location: str, subject: str) -> Path:
    """Return the file of external data, without its links.

    Caches of Hugging Face keep files under other names in a second folder, and links to them. So the data are looked for
    beside the path that is given, and then beside the file that it leads to. No location may leave these folders, and no
    link there may lead to a third one.

    Raises
    ------
    ModelError
        The location leads outside, or there is no such file.
    """
    given, real = path.absolute().parent, path.resolve().parent
    for folder in (given, real):
        file = folder / location
        inside = Path(os.path.normpath(file)).is_relative_to(os.path.normpath(folder))
        found = file.resolve()
        if not inside or not any(found.is_relative_to(allowed) for allowed in (given.resolve(), real)):
            raise ModelError(
                f"{subject} has its data in {file}, outside the model's folder {folder}; put it beside the model"
            )
        if file.is_file():
            return found
    raise ModelError(
        f"{subject} has its data in {given / location}, and there is no such file; it is part of the model, put it there"
    )


def _whole(subject: str, entries: Mapping[str, onnx.StringStringEntryProto], key: str) -> int | None:
    """Return a number of bytes of an external tensor; None if its entry is missing."""
    if key not in entries:
        return None
    text = entries[key].value
    if not (text.isascii() and text.isdecimal()):
        raise ModelError(f"{subject}: its entry {key!r} is {text!r}; a number of bytes, 0 or more, is allowed")
    return int(text)
