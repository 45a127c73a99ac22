"""Import of models: ONNX, torch.export, Relax modules and TVMScript become one `ImportedModel` with static shapes."""

from .load import load_model
from .model import ImportedModel

__all__ = ["ImportedModel", "load_model"]
