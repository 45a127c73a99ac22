"""Language models with their weights: folders of Hugging Face compiled to artifacts that generate text."""

from ..generation_options import FORMATS, GenerationOptions
from .architecture import FAMILIES, Architecture, read_architecture
from .language_model import LanguageModel, compile_language_model, open_language_model

__all__ = [
    "FAMILIES",
    "FORMATS",
    "Architecture",
    "GenerationOptions",
    "LanguageModel",
    "compile_language_model",
    "open_language_model",
    "read_architecture",
]
