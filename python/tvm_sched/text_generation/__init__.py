"""Generate text with what `tvm-sched compile --generate` wrote; the runtime's distribution and `tokenizers` are enough."""

from .generator import GeneratedText, Generator, Sequence, Token
from .sampling import Sampling
from .text import Text

__all__ = ["GeneratedText", "Generator", "Sampling", "Sequence", "Text", "Token"]
