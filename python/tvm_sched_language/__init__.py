"""Language models with their weights: compile folders of Hugging Face to artifacts, and generate text with these.

`Generator`, `Sampling` and what they return need the distributions ``tvm-sched-runtime`` and ``tvm-sched-language`` only;
what compiles needs ``tvm-sched``. Each is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_sched_runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from .architecture import FAMILIES, read_architecture
    from .generation_options import FORMATS, GenerationOptions
    from .generator import GeneratedText, Generator, PlanTime, Sequence, Token
    from .language_model import (
        CompiledStages,
        LanguageModel,
        compile_language_model,
        compile_stages,
        open_language_model,
    )
    from .sampling import Sampling
    from .text import Text

__all__ = [
    "FAMILIES",
    "FORMATS",
    "CompiledStages",
    "GeneratedText",
    "GenerationOptions",
    "Generator",
    "LanguageModel",
    "PlanTime",
    "Sampling",
    "Sequence",
    "Text",
    "Token",
    "compile_language_model",
    "compile_stages",
    "open_language_model",
    "read_architecture",
]

_HOMES = {
    **dict.fromkeys(("FAMILIES", "read_architecture"), "architecture"),
    **dict.fromkeys(("FORMATS", "GenerationOptions"), "generation_options"),
    **dict.fromkeys(("GeneratedText", "Generator", "PlanTime", "Sequence", "Token"), "generator"),
    **dict.fromkeys(
        ("CompiledStages", "LanguageModel", "compile_language_model", "compile_stages", "open_language_model"),
        "language_model",
    ),
    "Sampling": "sampling",
    "Text": "text",
}

__getattr__ = lazy_names(__name__, _HOMES)
