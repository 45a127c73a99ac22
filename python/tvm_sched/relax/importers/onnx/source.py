"""An ONNX model that is converted anew for each set of shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..constants import Values
from ..model import ImportedModel
from ..shapes import StaticShapes
from ..source import ModelSource
from .checks import check_graph
from .declared import declared_inputs
from .files import import_onnx
from .frontend import from_onnx

if TYPE_CHECKING:
    import onnx


def open_onnx(model: onnx.ModelProto, name: str | None, where: str) -> ModelSource:
    """The model with its declared inputs; what folds, and which branches remain, depends on the shapes."""
    import_onnx(where)
    check_graph(model.graph, where)

    def import_with(shapes: StaticShapes, constants: Values) -> ImportedModel:
        return from_onnx(model, shapes, name, where, constants)

    return ModelSource(name or model.graph.name or "model", where, declared_inputs(model), import_with)
