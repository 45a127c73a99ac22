"""`Generator`: run an artifact's plans for prompts and for decode steps, for several sequences at once."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_sched.errors import InputError
from tvm_sched.runtime import ScheduledModule, load

from .sampling import Sampling
from .text import Decoded, Text

MAX_TOKENS = 256
"""Default of ``max_tokens``."""
KEPT_TIMES = 1000
"""Runs of each plan whose times `Generator.times` looks at."""
Prompt = str | Several[int]


@dataclass(frozen=True)
class Token:
    """A generated token.

    Examples
    --------
    >>> from tvm_sched_language import Sampling, Sequence, Token
    >>> sequence = Sequence([7, 8], max_tokens=4, sampling=Sampling(), stop=frozenset({0}))
    >>> Token(sequence, id=9, text="a", finished="").id
    9
    """

    sequence: Sequence
    id: int
    text: str
    """New text; "" where a character is incomplete, and without a tokenizer."""
    finished: str
    """Why the sequence ends with this token: ``"stop"`` (a stop token), ``"length"`` (``max_tokens``), ``"context"``
    (the artifact's context is full); "" if it goes on."""


@dataclass(eq=False)
class Sequence:
    """A prompt and what was generated for it.

    Examples
    --------
    >>> from tvm_sched_language import Sampling, Sequence
    >>> sequence = Sequence([7, 8], max_tokens=4, sampling=Sampling(), stop=frozenset({0}), tokens=[9])
    >>> sequence.length, [sequence.token_at(place) for place in range(3)]
    (3, [7, 8, 9])
    """

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stop: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    finished: str = ""
    place: int = -1
    """Its number in the caches; -1 while it waits, and when it has ended."""
    read: int = 0
    """Tokens whose keys and values are in the caches."""
    random: Any = None
    decoded: Decoded | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and text."""
        return len(self.prompt) + len(self.tokens)

    def token_at(self, position: int) -> int:
        """Return the token at a position of prompt and text."""
        count = len(self.prompt)
        return self.prompt[position] if position < count else self.tokens[position - count]


@dataclass(frozen=True)
class GeneratedText:
    """The result for a prompt.

    Examples
    --------
    >>> from tvm_sched_language import GeneratedText
    >>> GeneratedText("Hi", [72, 105], prompt_tokens=3, finished="length", prompt_seconds=0.01, seconds=0.03).tokens
    [72, 105]
    """

    text: str
    """"" without a tokenizer."""
    tokens: list[int]
    prompt_tokens: int
    finished: str
    """As `Token.finished`."""
    prompt_seconds: float
    seconds: float
    """From the call to the first token, and to the last."""


@dataclass(frozen=True)
class PlanTime:
    """Times of a plan's runs, from their start to the end of their last step.

    Examples
    --------
    >>> from tvm_sched_language import PlanTime
    >>> PlanTime("decode", 1, runs=20, predicted_seconds=0.011, seconds=0.012, least_seconds=0.011).phase
    'decode'
    """

    phase: str
    """``"prompt"``: it reads a piece of a prompt; ``"decode"``: a row for each sequence."""
    rows: int
    runs: int
    """At most `KEPT_TIMES`, the last ones."""
    predicted_seconds: float | None
    """The latency of the plan's schedule, for a run in which states and resident parameters are on the devices."""
    seconds: float
    """Median. For emulated devices, the plan's time without the emulation's scale."""
    least_seconds: float
    """The shortest of these runs. On GPUs the first run after one of another plan also loads the parameters."""


class Generator:
    """A language model that generates text.

    One thread may use it at a time. Calls of `start` and `step` serve several sequences; `stream` and `generate` use them.

    Parameters
    ----------
    source : path or ScheduledModule
        What `tvm-sched compile --generate` wrote.
    parameters, threads
        As for `tvm_sched.runtime.load`.

    Raises
    ------
    InputError
        The artifact cannot be loaded, or was compiled without ``--generate``.

    Examples
    --------
    >>> from tvm_sched_language import Generator
    >>> model = Generator("model.so")
    >>> for token in model.stream("Once upon a time", max_tokens=50):
    ...     print(token.text, end="", flush=True)
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | ScheduledModule,
        parameters: str | os.PathLike[str] | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        self.module = source if isinstance(source, ScheduledModule) else load(source, parameters, threads=threads)
        where = "the artifact" if isinstance(source, ScheduledModule) else str(Path(source))
        about: Mapping[str, Any] = self.module.info().get("generation", {})
        if not about:
            raise InputError(f"{where}: generates no text, because it was compiled without --generate")
        if about["version"] > 1:
            raise InputError(
                f"{where}: its description of the language model has version {about['version']}, and 1 is known here; "
                "install a newer tvm-sched-runtime"
            )
        self.about, self.where = about, where
        self.context, self.places = int(about["context"]), int(about["sequences"])
        self.text = Text(about, where)
        entries = self.module.info()["plans"]
        sizes = [(plan["arguments"][0]["shape"][0], plan["arguments"][3]["shape"][0]) for plan in self.module.plans()]
        self._predicted = {size: entry.get("latency_ns") for size, entry in zip(sizes, entries, strict=True)}
        self._measured: dict[tuple[int, int], deque[float]] = {size: deque(maxlen=KEPT_TIMES) for size in sizes}
        self._pieces = sorted(rows for rows, outputs in sizes if outputs == 1)
        self._steps = sorted(rows for rows, outputs in sizes if outputs == rows)
        self._free = list(range(self.places))
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Token]:
        """Generate one text and yield its tokens as they come; closing the iterator cancels it.

        Parameters
        ----------
        prompt, options
            As for `start`.
        """
        sequence = self.start(prompt, **options)
        try:
            while not sequence.finished:
                for token in self.step():
                    if token.sequence is sequence:
                        yield token
        finally:
            self.cancel(sequence)

    def generate(
        self, prompts: Several[Prompt], *, watch: Callable[[Token], None] | None = None, **options: Any
    ) -> list[GeneratedText]:
        """Generate a text for each prompt, as many at once as the artifact has sequences.

        Parameters
        ----------
        prompts : sequence
            Texts or sequences of tokens.
        watch : callable, optional
            Called with each token as it comes.
        options
            As for `start`.
        """
        began = time.perf_counter()
        sequences = [self.start(prompt, **options) for prompt in prompts]
        texts: dict[int, list[str]] = {id(sequence): [] for sequence in sequences}
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        try:
            while any(not sequence.finished for sequence in sequences):
                for token in self.step():
                    key, now = id(token.sequence), time.perf_counter() - began
                    if key in texts:
                        texts[key].append(token.text)
                        first.setdefault(key, now)
                        last[key] = now
                        if watch is not None:
                            watch(token)
        finally:
            for sequence in sequences:
                self.cancel(sequence)
        return [
            GeneratedText("".join(texts[id(s)]), s.tokens, len(s.prompt), s.finished, first[id(s)], last[id(s)])
            for s in sequences
        ]

    def start(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = MAX_TOKENS,
        sampling: Sampling | None = None,
        chat: bool = False,
        stop: Several[int] | None = None,
    ) -> Sequence:
        """Add a sequence; `step` generates its tokens.

        Parameters
        ----------
        prompt : str or sequence of int
            A text, or tokens.
        max_tokens : int
            Most tokens of the text.
        sampling : Sampling, optional
            Default: what the model's ``generation_config.json`` says, else the most likely token.
        chat : bool
            Whether the text is a message, around which the model's chat template is put.
        stop : sequence of int, optional
            Tokens that end the text. Default: the model's.

        Raises
        ------
        InputError
            An empty or too long prompt, an unknown token, no tokenizer for a text.
        """
        if max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens}; 1 or more is allowed")
        tokens = self._tokens(prompt, chat)
        chosen = self.default_sampling() if sampling is None else sampling
        ends = frozenset(self.about["stop"] if stop is None else stop)
        sequence = Sequence(tokens, max_tokens, chosen, ends, random=chosen.generator())
        if self.text.has_tokenizer:
            sequence.decoded = Decoded(self.text)
        self._waiting.append(sequence)
        return sequence

    def default_sampling(self) -> Sampling:
        """Return the sampling of the model's ``generation_config.json``."""
        return Sampling(**self.about.get("defaults", {}))

    def _tokens(self, prompt: Prompt, chat: bool) -> list[int]:
        if isinstance(prompt, str):
            text = self.text.chat([{"role": "user", "content": prompt}]) if chat else prompt
            tokens = self.text.encode(text, special=not chat)
            if not tokens and self.about.get("begin") is not None:
                tokens = [int(self.about["begin"])]
        else:
            tokens = [int(token) for token in prompt]
        if not tokens:
            raise InputError("the prompt is empty; give at least one token")
        if len(tokens) >= self.context:
            raise InputError(
                f"the prompt has {len(tokens)} tokens, and {self.where} was compiled for a context of {self.context}; "
                "shorten it, or compile with a larger --context"
            )
        vocab = int(self.about["vocab"])
        if wrong := [token for token in tokens if not 0 <= token < vocab]:
            raise InputError(f"the prompt has the token {wrong[0]}; 0 to {vocab - 1} are known to the model")
        return tokens

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence and free its place."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        if sequence in self._running:
            self._running.remove(sequence)
            self._free.append(sequence.place)
            sequence.place = -1
        sequence.finished = sequence.finished or "cancelled"

    def step(self) -> list[Token]:
        """Read a piece of a prompt, or generate a token for each sequence whose prompt has been read; return new tokens.

        A run that fails or is interrupted changes no sequence, so that `step` can be called again.
        """
        while self._waiting and self._free:
            sequence = self._waiting.pop(0)
            sequence.place = self._free.pop(0)
            self._running.append(sequence)
        reading = next((s for s in self._running if s.length - s.read > 1), None)
        if reading is not None:
            return self._read_piece(reading)
        some = self._running[: self._steps[-1]]
        if not some:
            return []
        logits = self._run([(sequence, sequence.read) for sequence in some], list(range(len(some))), self._steps)
        return [self._accept(sequence, logits[k]) for k, sequence in enumerate(some)]

    def _read_piece(self, sequence: Sequence) -> list[Token]:
        left = sequence.length - sequence.read
        # The largest piece that is full, unless three quarters of the next larger one are.
        full = [piece for piece in self._pieces if piece <= left]
        larger = [piece for piece in self._pieces if piece > left and (4 * left >= 3 * piece or full in ([], [1]))]
        size = larger[0] if larger else full[-1]
        count = min(left, size)
        rows = [(sequence, position) for position in range(sequence.read, sequence.read + count)]
        logits = self._run(rows, [count - 1], [size])
        return [self._accept(sequence, logits[0], count)] if count == left else self._advance(sequence, count)

    def _advance(self, sequence: Sequence, count: int) -> list[Token]:
        sequence.read += count
        return []

    def _run(self, rows: list[tuple[Sequence, int]], outputs: list[int], sizes: list[int]) -> npt.NDArray[Any]:
        """Run the smallest plan of ``sizes`` for rows of sequences and positions; return logits of the rows ``outputs``."""
        size = next(size for size in sizes if size >= len(rows))
        tokens, positions, places = np.zeros(size, np.int32), np.full(size, -1, np.int32), np.zeros(size, np.int32)
        for k, (sequence, position) in enumerate(rows):
            tokens[k], positions[k], places[k] = sequence.token_at(position), position, sequence.place
        wanted = np.zeros(1 if len(outputs) == 1 and size not in self._steps else size, np.int32)
        wanted[: len(outputs)] = outputs
        result: npt.NDArray[Any] = self.module.run(tokens, positions, places, wanted)[0]
        self._measured[size, len(wanted)].append(self.module.latency())
        return result

    def times(self) -> list[PlanTime]:
        """Return for each plan that has run the predicted and the measured time of a run."""
        return [
            PlanTime(
                "decode" if rows == outputs else "prompt",
                rows,
                len(seconds),
                None if (predicted := self._predicted[rows, outputs]) is None else predicted * 1e-9,
                median(seconds),
                min(seconds),
            )
            for (rows, outputs), seconds in self._measured.items()
            if seconds
        ]

    def _accept(self, sequence: Sequence, logits: npt.NDArray[Any], count: int = 1) -> Token:
        sequence.read += count
        token = sequence.sampling.choose(logits, sequence.random)
        sequence.tokens.append(token)
        text = ""
        if token in sequence.stop:
            sequence.finished = "stop"
        elif len(sequence.tokens) >= sequence.max_tokens:
            sequence.finished = "length"
        elif sequence.length >= self.context:
            sequence.finished = "context"
        if sequence.decoded is not None:
            text = "" if sequence.finished == "stop" else sequence.decoded.add(token)
            text += sequence.decoded.finish() if sequence.finished else ""
        if sequence.finished:
            self.cancel(sequence)
        return Token(sequence, token, text, sequence.finished)
