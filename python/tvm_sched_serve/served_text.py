"""A language model in memory: its generator, and what clients learn of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import ScheduledModule, load
from tvm_sched_runtime.runtime.parameters import require_parameters

from .datatypes import TensorType
from .served_model import ServedModel

if TYPE_CHECKING:
    from tvm_sched_language import Generator, Sampling
    from tvm_sched_language import Sequence as GeneratedSequence

Messages = Sequence[Mapping[str, str]]
"""A conversation: each message has ``role`` and ``content``."""


@dataclass(frozen=True)
class TextPrompt:
    """What a text is generated for: exactly one of the three."""

    text: str | None = None
    tokens: Sequence[int] | None = None
    messages: Messages | None = None


@dataclass(frozen=True)
class ServedText:
    """A version of a language model in memory."""

    name: str
    version: str
    generator: Generator

    inputs = (TensorType("text_input", "bytes", (1,)),)
    outputs = (TensorType("text_output", "bytes", (1,)),)
    batch_sizes = ()

    @property
    def module(self) -> ScheduledModule:
        """The artifact that the generator runs."""
        return self.generator.module

    def start(self, prompt: TextPrompt, max_tokens: int | None, sampling: Sampling) -> GeneratedSequence:
        """Add a sequence to the generator; without ``max_tokens`` it may fill the context.

        Raises
        ------
        InputError
            The prompt is empty or too long, or the artifact has no tokenizer or chat template for it.
        """
        content: str | Sequence[int]
        if prompt.messages is not None:
            text = self.generator.text
            content = text.encode(text.chat(prompt.messages), special=False)
        else:
            content = prompt.text if prompt.text is not None else prompt.tokens or ()
        return self.generator.start(content, max_tokens=max_tokens or self.generator.context, sampling=sampling)


def load_served(
    file: Path,
    name: str,
    version: str,
    *,
    instances: int = 1,
    threads: int | None = None,
    watchdog: float | None = None,
    verify: bool | None = None,
) -> ServedModel | ServedText:
    """Load an artifact; one that was compiled with ``--generate`` becomes a language model.

    Raises
    ------
    InputError
        As `ServedModel.load`.
    """
    module = load(file, threads=threads, verify=verify)
    require_parameters(file, module.parameters())
    about = module.info().get("generation")
    if not about:
        return ServedModel.of(module, file, name, version, instances=instances, watchdog=watchdog)
    if about.get("stages", 1) > 1:
        raise InputError(
            f"{file}: is a stage of a pipeline; pipelines of language models are not served: tvm-sched generate takes them"
        )
    try:
        from tvm_sched_language import Generator
    except ModuleNotFoundError:
        raise InputError(
            f"{file}: generates text, which needs tvm-sched-language: pip install tvm-sched-language"
        ) from None
    module.configure(watchdog=watchdog)
    # Given a module, its errors name no path of this machine.
    return ServedText(name, version, Generator(module))
