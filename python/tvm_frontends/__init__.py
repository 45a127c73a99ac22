"""Import of models: ONNX, torch.export, Relax modules and TVMScript become one `ImportedModel` with static shapes."""

from .load import load_model, open_model
from .model import ImportedModel
from .source import ModelSource

__all__ = ["ImportedModel", "ModelSource", "load_model", "open_model"]
