"""Import models into Apache TVM: ONNX, torch.export, Hugging Face folders, Relax modules and TVMScript.

Every import returns an `ImportedModel`: a Relax module with static shapes, and its parameters by name. Operators that
TVM's frontends lack or convert wrongly have converters here.

Public names are loaded on first use, so that ``import tvm_frontends`` imports neither TVM nor ONNX nor PyTorch.

Examples
--------
>>> import tvm_frontends
>>> tvm_frontends.load_model("model.onnx", {"x": (2, 3)}).inputs
{'x': ((2, 3), 'float32')}
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import hugging_face, onnx, torch
    from .errors import FrontendError, ModelError, ModelWarning
    from .imported_model import ImportedModel
    from .load import load_model, open_model
    from .source import ModelSource

_WHERE = {
    "FrontendError": "errors",
    "ImportedModel": "imported_model",
    "ModelError": "errors",
    "ModelSource": "source",
    "ModelWarning": "errors",
    "hugging_face": "",
    "load_model": "load",
    "onnx": "",
    "open_model": "load",
    "torch": "",
}
"""The module of each public name; empty for modules."""

__all__ = [
    "FrontendError",
    "ImportedModel",
    "ModelError",
    "ModelSource",
    "ModelWarning",
    "hugging_face",
    "load_model",
    "onnx",
    "open_model",
    "torch",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_WHERE[name] or name}", __name__)
    value = getattr(module, name) if _WHERE[name] else module
    globals()[name] = value
    return value
