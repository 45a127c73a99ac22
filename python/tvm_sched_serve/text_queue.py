"""The texts that a language model generates at once: sequences join and leave between two steps of the generator."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tvm_sched_runtime.errors import ExecutionError, InputError

from .execution_queue import CANCELLED, Observer, QueueOptions, Statistics
from .failures import Busy, Failed, Late, RequestError
from .request_context import Recorder, RequestContext, RunRecord
from .served_text import ServedText, TextPrompt

if TYPE_CHECKING:
    from tvm_sched_language import Sampling, Token
    from tvm_sched_language import Sequence as GeneratedSequence

LOG = logging.getLogger("tvm_sched.serve")


@dataclass(frozen=True)
class TextOptions:
    """How a text is generated."""

    sampling: Sampling
    max_tokens: int | None = None
    """Default: until the context is full."""
    stop: tuple[str, ...] = ()
    """Texts that end it; they are not part of it."""


@dataclass(frozen=True)
class TextPiece:
    """What a step added to a text."""

    text: str
    """"" while a character, or what may become a stop text, is incomplete."""
    token: int
    finished: str = ""
    """``"stop"`` (a stop token), ``"stop_text"``, ``"length"``, ``"context"``; "" if it goes on."""


@dataclass(frozen=True)
class TextTiming:
    """One text: its tokens, and seconds from the request's arrival to the first and the last of them."""

    prompt_tokens: int
    tokens: int
    first_seconds: float
    seconds: float


class StopTexts:
    """Holds back what may be the beginning of a text that ends generation."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._held = ""

    def add(self, text: str, last: bool) -> tuple[str, bool]:
        """Return what is certain to be part of the text, and whether a stop text was found behind it."""
        held = self._held + text
        places = [place for place in (held.find(stop) for stop in self._texts) if place >= 0]
        if places:
            return held[: min(places)], True
        keep = 0 if last else self._possible(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def _possible(self, held: str) -> int:
        """Characters at the end of ``held`` with which a stop text begins."""
        return max(
            (n for stop in self._texts for n in range(1, min(len(stop), len(held) + 1)) if held.endswith(stop[:n])),
            default=0,
        )


@dataclass(eq=False)
class GeneratingText:
    """A text of a request, while it is generated."""

    number: int
    """Its place among the request's texts."""
    prompt: TextPrompt
    options: TextOptions
    pieces: asyncio.Queue[tuple[int, TextPiece | RequestError]]
    """Numbers of texts and what was generated; the texts of a request have it in common."""
    since: float = field(default_factory=time.perf_counter)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the prompt was accepted or refused."""
    refused: RequestError | None = None
    prompt_tokens: int = 0
    tokens: int = 0
    first_seconds: float = 0.0
    sequence: GeneratedSequence | None = None
    stops: StopTexts | None = None
    context: RequestContext | None = None


class TextQueue:
    """Texts of one version of a language model.

    All methods are called in the event loop's thread; only `_step` runs in another, one step of the generator at a time.
    Between two steps, new texts join and those whose client went leave.
    """

    joins = False

    def __init__(self, model: ServedText, options: QueueOptions) -> None:
        self.model = model
        self.options = options
        self.statistics = Statistics()
        self.observe: Observer = lambda status, seconds, timing: None
        self.recorder = Recorder()
        self.observe_text: Callable[[TextTiming], None] = lambda timing: None
        self._live: set[GeneratingText] = set()
        self._new: list[GeneratingText] = []
        self._left: list[GeneratingText] = []
        self._stepping = False
        self._started: dict[int, GeneratingText] = {}
        """By identity of the sequence; only `_step` uses it."""
        self._thread = ThreadPoolExecutor(1, f"tvm-sched-{model.name}")
        self._idle = asyncio.Event()
        self._idle.set()
        self._seconds = 0.0

    @property
    def running(self) -> int:
        """Texts that have a place in the generator."""
        return min(len(self._live), self.model.generator.places)

    @property
    def waiting(self) -> int:
        """Texts that wait for a place."""
        return len(self._live) - self.running

    def retry_after(self) -> int:
        """Return the seconds after which a place should be free."""
        return max(1, min(60, math.ceil(self.waiting * self._seconds / self.model.generator.places)))

    def record_timelines(self, wanted: bool) -> None:
        """Let the executor record the timelines of further steps, or no more."""
        self.model.generator.module.configure(trace=wanted)

    async def start(
        self, prompts: Sequence[TextPrompt], options: Sequence[TextOptions], context: RequestContext | None = None
    ) -> list[GeneratingText]:
        """Begin to generate a text for each prompt; the caller reads them with `pieces`, then calls `finish`.

        Raises
        ------
        RequestError
            There is no place, or a prompt is refused; then none is begun.
        """
        most = self.model.generator.places + self.options.places
        if len(prompts) > most:
            raise RequestError(f"the request is for {len(prompts)} texts; the model takes at most {most} at once")
        if len(self._live) + len(prompts) > most:
            self.observe(Busy.status, 0.0, None)
            raise Busy(
                f"the model has {len(self._live)} of the {most} texts that it takes at once, {self.waiting} of them wait",
                self.retry_after(),
            )
        pieces: asyncio.Queue[tuple[int, TextPiece | RequestError]] = asyncio.Queue()
        pairs = enumerate(zip(prompts, options, strict=True))
        texts = [GeneratingText(number, prompt, each, pieces, context=context) for number, (prompt, each) in pairs]
        if context is not None:
            context.queued_ns = time.perf_counter_ns()
        self._live.update(texts)
        self._new += texts
        self._idle.clear()
        self._dispatch()
        try:
            for text in texts:
                await text.began.wait()
                if text.refused is not None:
                    raise text.refused
            if context is not None:
                context.run_ns = time.perf_counter_ns()
        except BaseException as error:
            self.leave(texts)
            self._count(error, texts[0].since)
            raise
        return texts

    async def pieces(self, texts: Sequence[GeneratingText]) -> AsyncIterator[tuple[int, TextPiece]]:
        """Yield the pieces of a request's texts as they come, each with the number of its text, until all have ended.

        Raises
        ------
        RequestError
            A step failed, or no token came in time.
        """
        left = len(texts)
        while left:
            try:
                number, piece = await asyncio.wait_for(texts[0].pieces.get(), self.options.timeout)
            except asyncio.TimeoutError:
                raise Late(f"no token came within {self.options.timeout:g} s") from None
            if isinstance(piece, RequestError):
                raise piece
            left -= bool(piece.finished)
            yield number, piece

    def leave(self, texts: Sequence[GeneratingText]) -> None:
        """Stop what is still generated of some texts, and give back their places."""
        for text in texts:
            if text in self._live:
                self._live.remove(text)
                if text in self._new:
                    self._new.remove(text)
                else:
                    self._left.append(text)
        self._dispatch()

    def finish(self, texts: Sequence[GeneratingText], error: BaseException | None) -> None:
        """Count a request that was answered, or failed with ``error``; its texts leave."""
        self.leave(texts)
        if error is None:
            spent = time.perf_counter() - texts[0].since
            self.statistics.successes += 1
            self.statistics.success_ns += int(1e9 * spent)
            self.statistics.last_inference_ms = time.time_ns() // 1_000_000
            self.observe(200, spent, None)
        else:
            self._count(error, texts[0].since)

    async def drain(self) -> None:
        """Wait until every text has ended, then end the thread."""
        await self._idle.wait()
        self._thread.shutdown(wait=False)

    def _count(self, error: BaseException, since: float) -> None:
        spent = time.perf_counter() - since
        self.statistics.failures += 1
        self.statistics.failure_ns += int(1e9 * spent)
        self.observe(error.status if isinstance(error, RequestError) else CANCELLED, spent, None)

    def _dispatch(self) -> None:
        """Begin a step if none is under way and there is something to do."""
        if self._stepping:
            return
        if not self._live and not self._left:
            self._idle.set()
            return
        self._stepping = True
        new, left, self._new, self._left = self._new, self._left, [], []
        self._thread.submit(self._step, new, left, asyncio.get_running_loop())

    def _step(self, new: list[GeneratingText], left: list[GeneratingText], loop: asyncio.AbstractEventLoop) -> None:
        """Let texts join and leave, then generate; runs in a thread of ours."""
        generator = self.model.generator
        pieces: list[tuple[GeneratingText, TextPiece | RequestError]] = []
        for text in left:
            if text.sequence is not None:
                generator.cancel(text.sequence)
                self._started.pop(id(text.sequence), None)
        for text in new:
            try:
                options = text.options
                text.sequence = self.model.start(text.prompt, options.max_tokens, options.sampling)
            except InputError as error:
                text.refused = RequestError(str(error))
            except Exception as error:
                LOG.error("model %s version %s: %s%s", self.model.name, self.model.version, error, _ids([text]))
                text.refused = Failed("the prompt could not be read; the server's log says why")
            else:
                text.stops = StopTexts(options.stop)
                text.prompt_tokens = len(text.sequence.prompt)
                self._started[id(text.sequence)] = text
        loop.call_soon_threadsafe(_begin, new)
        begin_ns = time.perf_counter_ns()
        tokens: Sequence[Token] = ()
        try:
            tokens = generator.step()
            if self.recorder.watched and self._started:
                self._record(begin_ns)
            for token in tokens:
                text = self._started[id(token.sequence)]
                piece: TextPiece | RequestError = self._piece(text, token)
                if token.finished == "invalid":
                    piece = Failed(f"after {text.tokens - 1} tokens the logits are infinite or not numbers")
                pieces.append((text, piece))
                if isinstance(piece, RequestError) or piece.finished:
                    generator.cancel(token.sequence)
                    del self._started[id(token.sequence)]
        except Exception as error:
            ids = _ids(list(self._started.values()))
            LOG.error("model %s version %s: %s%s", self.model.name, self.model.version, error, ids)
            for text in self._started.values():
                if text.sequence is not None:
                    generator.cancel(text.sequence)
                pieces.append((text, Failed("a step failed; the server's log says why")))
            self._started.clear()
        loop.call_soon_threadsafe(self._stepped, pieces, bool(tokens))

    def _record(self, begin_ns: int) -> None:
        end_ns, timeline = time.perf_counter_ns(), None
        if self.recorder.timelines:
            with suppress(ExecutionError):  # the recording began within the step
                timeline = self.model.generator.module.timeline()
        ids = list(dict.fromkeys(each.context.id for each in self._started.values() if each.context is not None))
        name = threading.current_thread().name
        self.recorder.run(RunRecord(self.model.name, self.model.version, name, begin_ns, end_ns, ids, timeline))

    def _piece(self, text: GeneratingText, token: Token) -> TextPiece:
        assert text.stops is not None
        shown, stopped = text.stops.add(token.text, bool(token.finished))
        text.tokens += 1
        if text.tokens == 1:
            text.first_seconds = time.perf_counter() - text.since
        if text.context is not None:
            text.context.tokens += 1
            text.context.split_ns = time.perf_counter_ns()
            text.context.computed_ns = text.context.computed_ns or text.context.split_ns
        return TextPiece(shown, token.id, "stop_text" if stopped else token.finished)

    def _stepped(self, pieces: list[tuple[GeneratingText, TextPiece | RequestError]], generated: bool) -> None:
        self._stepping = False
        self.statistics.executions += generated
        for text, piece in pieces:
            ended = isinstance(piece, RequestError) or bool(piece.finished)
            if text not in self._live:
                continue
            text.pieces.put_nowait((text.number, piece))
            if ended:
                self._live.remove(text)
            if ended and isinstance(piece, TextPiece):
                seconds = time.perf_counter() - text.since
                self._seconds = 0.9 * self._seconds + 0.1 * seconds if self._seconds else seconds
                self.observe_text(TextTiming(text.prompt_tokens, text.tokens, text.first_seconds, seconds))
        self._dispatch()


def _ids(texts: Sequence[GeneratingText]) -> str:
    """Return the ids of texts' requests for a message."""
    ids = dict.fromkeys(text.context.id for text in texts if text.context is not None)
    return f" (requests {', '.join(ids)})" if ids else ""


def _begin(texts: Sequence[GeneratingText]) -> None:
    """Let requests go on whose prompts were accepted or refused."""
    for text in texts:
        text.began.set()
