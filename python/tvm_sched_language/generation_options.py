"""`GenerationOptions`: how a language model is compiled to generate text."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_sched_runtime.errors import InputError

FORMATS = ("float32", "bfloat16", "int8", "int4", "int4-zeros")
"""Formats of the weights of products: integers have a scale for each group of 32 terms."""
LONGEST = 2048
"""Default of `GenerationOptions.context`, if the model has more positions."""
PIECES = (16, 128)
"""Default of `GenerationOptions.pieces`."""


@dataclass(frozen=True)
class GenerationOptions:
    """How a language model is compiled.

    Raises
    ------
    InputError
        A value that is not allowed.

    Examples
    --------
    >>> from tvm_sched_language import GenerationOptions
    >>> GenerationOptions(context=1024, sequences=4, weights="int8").pieces
    (16, 128)
    """

    context: int | None = None
    """Most tokens of a sequence, prompt and text together. Default: the model's positions, at most `LONGEST`."""
    sequences: int = 1
    """Sequences that are generated at once."""
    pieces: tuple[int, ...] = PIECES
    """Lengths of the plans for prompts. A prompt is read in pieces of these lengths."""
    weights: str = "float32"
    """Format of the weights of products, one of `FORMATS`."""
    prefill_devices: tuple[str, ...] = ()
    decode_devices: tuple[str, ...] = ()
    """Names of the devices that may compute the plans for prompts, and those for decode steps; none: all."""
    stages: int = 1
    """Stages of a pipeline, in which several sequences follow each other. Each stage has some of the layers and its part of
    the topology's devices, and is an artifact of its own (`compile_stages`)."""

    tensor_parallel: int | None = None
    """Devices that compute each layer together: the first of those that may compute a plan. Default: for GPUs the number
    whose schedule of a decode step is fastest, 1 for others and in a pipeline."""

    def __post_init__(self) -> None:
        if self.context is not None and self.context < 2:
            raise InputError(f"context is {self.context}; 2 or more tokens are allowed")
        if not 1 <= self.sequences <= 256:
            raise InputError(f"sequences is {self.sequences}; 1 to 256 are allowed")
        if not self.pieces or any(piece < 2 for piece in self.pieces):
            raise InputError(f"pieces is {self.pieces}; one or more lengths of 2 or more tokens are allowed")
        if self.weights not in FORMATS:
            raise InputError(f"weights is {self.weights!r}; allowed are {', '.join(FORMATS)}")
        if not 1 <= self.stages <= 64:
            raise InputError(f"stages is {self.stages}; 1 to 64 are allowed")
        if self.tensor_parallel is not None and not 1 <= self.tensor_parallel <= 64:
            raise InputError(f"tensor_parallel is {self.tensor_parallel}; 1 to 64 are allowed")
        if self.stages > 1 and (self.tensor_parallel or 1) > 1:
            raise InputError("stages and tensor_parallel are set; one of them is allowed")
        if self.stages > 1 and (self.prefill_devices or self.decode_devices):
            raise InputError(
                "a pipeline's stages have devices of their own: leave the devices of prompts and decode steps out"
            )
