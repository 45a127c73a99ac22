"""`Generator`: run an artifact's plans for prompts and for decode steps, for several sequences at once."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Several
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import ScheduledModule, load

from .sampling import Sampling
from .stages import StagedRun, StageThreads, stage_file
from .text import Decoded, Text

_LOG = logging.getLogger("tvm_sched.language")
MAX_TOKENS = 256
"""Default of ``max_tokens``."""
KEPT_TIMES = 1000
"""Runs of each plan whose times `Generator.times` looks at."""
Prompt = str | Several[int]


def _keep_on_gpus(module: ScheduledModule) -> None:
    """Let parameters and graphs stay on the GPUs between calls, where the artifact's own options say nothing else.

    If a plan reuses the memory of a parameter, the parameters are loaded again in each call.
    """
    own = module.info().get("run") or {}
    if "graph" not in own and not own.get("in_turn"):
        module.configure(graph=True)
    if "resident" not in own:
        try:
            module.configure(resident=1.0)
        except InputError as error:
            _LOG.warning("parameters are loaded in each call: %s", error)


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
    (the artifact's context is full), ``"invalid"`` (its logits are infinite or not numbers, so ``id`` is -1 and the text
    ends before it); "" if it goes on."""


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
    in_flight: bool = False
    """Whether it has rows in a run of a pipeline that has not ended."""
    random: Any = None
    drawn: float | None = None
    """Its random number of the next token, where the kernels choose that."""
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
    """The latency of the plan's schedule, for a run in which states and resident parameters are on the devices. Of a
    pipeline: that of its slowest stage, as of the measured times; so a run ends after each such time, if enough follow."""
    seconds: float
    """Median. For emulated devices, the plan's time without the emulation's scale."""
    least_seconds: float
    """The shortest of these runs. On GPUs the first run of all loads the parameters."""
    memory_share: float | None = None
    """On GPUs: bytes that the kernels move, divided by the GPUs' memory bandwidth, as a fraction of the predicted time."""


@dataclass(frozen=True)
class _Job:
    """A run: rows of sequences."""

    sequences: list[Sequence]
    count: int
    """Tokens of each that it reads."""
    arguments: tuple[npt.NDArray[Any], ...]
    gives_tokens: bool
    answer: Future[StagedRun] | None = None
    """Of a pipeline."""


class Generator:
    """A language model that generates text.

    One thread may use it at a time. Calls of `start` and `step` serve several sequences; `stream` and `generate` use them.
    In a pipeline, as many runs as it has stages are on their way at once, each with other sequences.

    Parameters
    ----------
    source : path, ScheduledModule or sequence of ScheduledModule
        What `tvm-sched compile --generate` wrote, of a pipeline its first file; or the modules of all stages.
    parameters, threads, verify
        As for `tvm_sched_runtime.load`.

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
        source: str | os.PathLike[str] | ScheduledModule | Several[ScheduledModule],
        parameters: str | os.PathLike[str] | None = None,
        *,
        threads: int | None = None,
        verify: bool | None = None,
    ) -> None:
        where = "the artifact"
        if isinstance(source, (str, os.PathLike)):
            where = str(Path(source))
            source = load(source, parameters, threads=threads, verify=verify)
            about = source.info().get("generation", {})
            stages = int(about.get("stages", 1)) if about.get("stage") == 0 else 1
            if stages > 1 and parameters is not None:
                raise InputError(f"{where}: a pipeline's stages have parameters of their own: give no file for them")
            files = [stage_file(Path(where), k) for k in range(1, stages)]
            source = [source, *(load(file, threads=threads, verify=verify) for file in files)]
        self.modules = (source,) if isinstance(source, ScheduledModule) else tuple(source)
        self.module, self.where = self.modules[0], where
        """The artifact, and of a pipeline its first stage."""
        self.about = self._description()
        self.context, self.places = int(self.about["context"]), int(self.about["sequences"])
        self.text = Text(self.about, where)
        sizes = [
            (plan["arguments"][0]["shape"][0], plan["arguments"][3]["shape"][0]) for plan in self.modules[-1].plans()
        ]
        self._predicted = {size: self._slowest(size, k, "latency_ns") for k, size in enumerate(sizes)}
        self._memory = {size: self._slowest(size, k, "memory_ns") for k, size in enumerate(sizes)}
        self._measured: dict[tuple[int, int], deque[float]] = {size: deque(maxlen=KEPT_TIMES) for size in sizes}
        self._pieces = sorted(rows for rows, outputs in sizes if outputs == 1)
        self._steps = sorted(rows for rows, outputs in sizes if outputs == rows)
        if self.about.get("sampled"):  # on GPUs
            for module in self.modules:
                _keep_on_gpus(module)
        self._threads = StageThreads(self.modules) if len(self.modules) > 1 else None
        self._jobs: deque[_Job] = deque()
        self.free_places = list(range(self.places))
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []

    def _description(self) -> Mapping[str, Any]:
        """Return the entry ``generation`` of the metadata; raise `InputError` unless the modules are all of its stages."""
        abouts: list[Mapping[str, Any]] = [module.info().get("generation", {}) for module in self.modules]
        if not all(abouts):
            raise InputError(f"{self.where}: generates no text, because it was compiled without --generate")
        for about in abouts:
            if about["version"] > 3:
                raise InputError(
                    f"{self.where}: its description of the language model has version {about['version']}, and 3 is known "
                    "here; install a newer tvm-sched-runtime"
                )
        stage, stages = abouts[0].get("stage", 0), abouts[0].get("stages", 1)
        if [about.get("stage", 0) for about in abouts] != list(range(stages)):
            alone = "give the modules of all stages in order, or " if stage == 0 else "give "
            raise InputError(
                f"{self.where}: is stage {stage} of a pipeline with {stages}; {alone}the path of the first one, beside "
                "which the others lie"
            )
        if len({about.get("pipeline") for about in abouts}) > 1:
            raise InputError(f"{self.where}: the stages beside it are of another compilation; compile the model again")
        return abouts[0]

    def _slowest(self, size: tuple[int, int], number: int, time: str) -> int | None:
        """Return a time of the schedules of a size, the plan ``number`` of the last stage: the longest of all stages."""
        found = [self.modules[-1].info()["plans"][number].get(time)]
        for module in self.modules[:-1]:
            rows = [plan["arguments"][0]["shape"][0] for plan in module.plans()]
            found.append(module.info()["plans"][rows.index(size[0])].get(time))
        return None if None in found else max(found)

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
        sequences: list[Sequence] = []
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        try:
            for prompt in prompts:
                sequences.append(self.start(prompt, **options))
            texts: dict[int, list[str]] = {id(sequence): [] for sequence in sequences}
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
            if not sequence.in_flight:  # else its rows are still written, and `step` frees the place
                self._free_place(sequence)
        sequence.finished = sequence.finished or "cancelled"

    def _free_place(self, sequence: Sequence) -> None:
        self.free_places.append(sequence.place)
        sequence.place = -1

    def step(self) -> list[Token]:
        """Read a piece of a prompt, or generate a token for each sequence whose prompt has been read; return new tokens.

        A run that fails or is interrupted changes no sequence, so that `step` can be called again.
        """
        while self._waiting and self.free_places:
            sequence = self._waiting.pop(0)
            sequence.place = self.free_places.pop(0)
            self._running.append(sequence)
        if self._threads is None:
            job = self._next_job()
            return [] if job is None else self._take(job, self._run(job))
        while len(self._jobs) < len(self.modules) and (job := self._next_job()) is not None:
            for sequence in job.sequences:
                sequence.in_flight = True
            self._jobs.append(with_fields(job, answer=self._threads.submit(*job.arguments)))
        if not self._jobs:
            return []
        first = self._jobs[0]
        assert first.answer is not None
        wait([first.answer])  # Ctrl-C leaves the run on its way
        self._jobs.popleft()
        for sequence in first.sequences:
            sequence.in_flight = False
            if sequence.finished:
                self._free_place(sequence)
        run = first.answer.result()
        self._note(first, run.seconds)
        return self._take(first, run.result)

    def _next_job(self) -> _Job | None:
        """Return a run for sequences that are in none: a piece of a prompt, or a step of these sequences."""
        idle = [sequence for sequence in self._running if not sequence.in_flight]
        reading = next((sequence for sequence in idle if sequence.length - sequence.read > 1), None)
        if reading is not None:
            return self._piece(reading)
        share = -(-len(self._running) // len(self.modules))
        some = idle[: min(share, self._steps[-1])]
        if not some:
            return None
        return self._job([(sequence, sequence.read) for sequence in some], list(range(len(some))), self._steps)

    def _piece(self, sequence: Sequence) -> _Job:
        left = sequence.length - sequence.read
        # The largest piece that is full, unless three quarters of the next larger one are.
        full = [piece for piece in self._pieces if piece <= left]
        larger = [piece for piece in self._pieces if piece > left and (4 * left >= 3 * piece or full in ([], [1]))]
        size = larger[0] if larger else full[-1]
        count = min(left, size)
        rows = [(sequence, position) for position in range(sequence.read, sequence.read + count)]
        return self._job(rows, [count - 1], [size])

    def _job(self, rows: list[tuple[Sequence, int]], outputs: list[int], sizes: list[int]) -> _Job:
        """Return a run of the smallest plan of ``sizes`` for rows of sequences and positions, with logits of ``outputs``."""
        size = next(size for size in sizes if size >= len(rows))
        tokens, positions, places = np.zeros(size, np.int32), np.full(size, -1, np.int32), np.zeros(size, np.int32)
        for k, (sequence, position) in enumerate(rows):
            tokens[k], positions[k], places[k] = sequence.token_at(position), position, sequence.place
        wanted = np.zeros(1 if len(outputs) == 1 and size not in self._steps else size, np.int32)
        wanted[: len(outputs)] = outputs
        sequences = list(dict.fromkeys(sequence for sequence, _ in rows))
        count = len(rows) // len(sequences)
        whole = rows[-1][1] == sequences[-1].length - 1
        arguments = (tokens, positions, places, wanted, *self._choices(sequences if whole else [], wanted.size))
        return _Job(sequences, count, arguments, whole)

    def _choices(self, sequences: list[Sequence], size: int) -> list[npt.NDArray[Any]]:
        """Return how kernels choose the tokens of sequences, if they do; a run that is repeated keeps its random numbers."""
        if not self.about.get("sampled"):
            return []
        choices = np.zeros((size, 4))
        for k, sequence in enumerate(sequences):
            sampling = sequence.sampling
            if sampling.temperature > 0 and sequence.drawn is None:
                sequence.drawn = float(sequence.random.random())
            choices[k] = sampling.temperature, sampling.top_k, sampling.top_p, sequence.drawn or 0.0
        return [choices]

    def _run(self, job: _Job) -> npt.NDArray[Any]:
        result: npt.NDArray[Any] = self.module.run(*job.arguments)[0]
        self._note(job, self.module.latency())
        return result

    def _note(self, job: _Job, seconds: float) -> None:
        self._measured[job.arguments[0].size, job.arguments[3].size].append(seconds)

    def _take(self, job: _Job, result: npt.NDArray[Any]) -> list[Token]:
        """Note what a run has read, and return the tokens that it gives."""
        live = [(k, sequence) for k, sequence in enumerate(job.sequences) if not sequence.finished]
        for _, sequence in live:
            sequence.read += job.count
        return [self._accept(sequence, result[k]) for k, sequence in live] if job.gives_tokens else []

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
                None if predicted is None or (least := self._memory[rows, outputs]) is None else least / predicted,
            )
            for (rows, outputs), seconds in self._measured.items()
            if seconds
        ]

    def _accept(self, sequence: Sequence, result: Any) -> Token:
        token = int(result) if self.about.get("sampled") else sequence.sampling.choose(result, sequence.random)
        sequence.drawn = None
        if token < 0:
            sequence.finished = "invalid"
            text = "" if sequence.decoded is None else sequence.decoded.finish()
            self.cancel(sequence)
            return Token(sequence, token, text, sequence.finished)
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
