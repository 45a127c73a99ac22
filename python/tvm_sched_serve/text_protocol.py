"""Requests for generated text: the generate extension of the Open Inference Protocol, and OpenAI's completions."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

import msgspec

from tvm_sched_runtime.errors import InputError

from .failures import RequestError
from .served_text import TextPrompt
from .text_queue import GeneratingText, TextOptions, TextPiece, TextQueue

MAX_TEXTS = 128
"""Texts of one request."""
_GENERATE_TOKENS = 256
_COMPLETION_TOKENS = 16
"""Defaults of ``max_tokens``: as of `tvm-sched generate`, and as of OpenAI's completions."""


class _Sampled(msgspec.Struct):
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None


class _GenerateParameters(_Sampled):
    details: bool | None = None


class GenerateRequest(msgspec.Struct):
    """A request of the generate extension."""

    text_input: str
    parameters: _GenerateParameters | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _OpenAiRequest(_Sampled, kw_only=True):
    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    return_token_ids: bool | None = None
    # What would change the answer and is not available.
    best_of: Any = None
    echo: Any = None
    frequency_penalty: Any = None
    function_call: Any = None
    functions: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    presence_penalty: Any = None
    response_format: Any = None
    suffix: Any = None
    tool_choice: Any = None
    tools: Any = None


_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "best_of": (1,), "echo": (False,), "frequency_penalty": (0,), "function_call": ("none",), "functions": ([],),
    "logit_bias": ({},), "logprobs": (False,), "presence_penalty": (0,), "response_format": ({"type": "text"},),
    "suffix": ("",), "tool_choice": ("none", "auto"), "tools": ([],),
}  # fmt: skip
"""Values, apart from null, with which a field that is not available may be sent."""


class CompletionRequest(_OpenAiRequest, kw_only=True):
    """A request for completions."""

    prompt: str | list[str | int | list[int]]


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class ChatRequest(_OpenAiRequest, kw_only=True):
    """A request for an answer of a conversation."""

    messages: list[_Message]
    max_completion_tokens: int | None = None


class TextCall(ABC):
    """A request for texts, and the form of its answer.

    Attributes
    ----------
    model, version : str
    stream : bool
        Whether the answer is a stream of events.
    prompts : list of TextPrompt
    """

    last_event: ClassVar[bytes] = b""
    """What ends a stream."""
    model: str
    version: str = ""
    stream: bool
    prompts: list[TextPrompt]

    @abstractmethod
    def options(self, queue: TextQueue) -> list[TextOptions]:
        """Return the options of each text."""

    def first(self, texts: Sequence[GeneratingText]) -> Iterator[dict[str, Any]]:
        """Yield the events before the first token."""
        return iter(())

    @abstractmethod
    def event(self, number: int, piece: TextPiece) -> dict[str, Any] | None:
        """Return the event of a piece of a text, None if there is nothing to tell."""

    def last(self, texts: Sequence[GeneratingText]) -> Iterator[dict[str, Any]]:
        """Yield the events after the last token."""
        return iter(())

    @abstractmethod
    def answer(self, texts: Sequence[GeneratingText], pieces: Sequence[Sequence[TextPiece]]) -> dict[str, Any]:
        """Return the answer as a whole."""

    def error(self, error: RequestError) -> dict[str, Any]:
        """Return the document of an error."""
        return {"error": str(error)}


class GenerateCall(TextCall):
    """``generate`` and ``generate_stream`` of the Open Inference Protocol."""

    _REASONS: ClassVar[dict[str, str]] = {
        "stop": "eos_token", "stop_text": "stop_sequence", "length": "length", "context": "length",
    }  # fmt: skip

    def __init__(self, request: GenerateRequest, model: str, version: str, stream: bool) -> None:
        self.model, self.version, self.stream = model, version, stream
        self._parameters = request.parameters or _GenerateParameters()
        self.prompts = [TextPrompt(text=request.text_input)]
        self._served = {"model_name": model, "model_version": version}

    @classmethod
    def of_body(cls, body: memoryview, model: str, version: str, stream: bool) -> GenerateCall:
        """Read a request of HTTP."""
        return cls(_decode(body, GenerateRequest), model, version, stream)

    @classmethod
    def of_parameters(cls, text: str, parameters: Mapping[str, Any], model: str, version: str) -> GenerateCall:
        """Read a request of gRPC, whose parameters have the same names."""
        try:
            options = msgspec.convert(dict(parameters), _GenerateParameters)
        except msgspec.ValidationError as error:
            raise RequestError(f"the parameters are not what is expected: {error}") from None
        return cls(GenerateRequest(text, options), model, version, stream=True)

    def options(self, queue: TextQueue) -> list[TextOptions]:
        """Return the options; the model's are the default."""
        self._served["model_version"] = queue.model.version
        return _options(
            self._parameters,
            queue,
            [_GENERATE_TOKENS if self._parameters.max_tokens is None else self._parameters.max_tokens],
        )

    def event(self, number: int, piece: TextPiece) -> dict[str, Any] | None:
        """Return the text of a piece; with ``details`` its token and the reason of the end."""
        if not self._parameters.details:
            return {**self._served, "text_output": piece.text} if piece.text or piece.finished else None
        details: dict[str, Any] = {"token": {"id": piece.token, "text": piece.text}}
        if piece.finished:
            details["finish_reason"] = self._REASONS[piece.finished]
        return {**self._served, "text_output": piece.text, "details": details}

    def answer(self, texts: Sequence[GeneratingText], pieces: Sequence[Sequence[TextPiece]]) -> dict[str, Any]:
        """Return the text."""
        (sequence,) = pieces
        answer: dict[str, Any] = {**self._served, "text_output": "".join(piece.text for piece in sequence)}
        if self._parameters.details:
            tokens = [{"id": piece.token, "text": piece.text} for piece in sequence]
            answer["details"] = {"finish_reason": self._REASONS[sequence[-1].finished], "tokens": tokens}
        return answer


class _OpenAiCall(TextCall):
    last_event = b"data: [DONE]\n\n"
    prefix: ClassVar[str]
    kind: ClassVar[str]
    stream_kind: ClassVar[str]
    request: _OpenAiRequest

    def __init__(self, request: _OpenAiRequest, prompts: list[TextPrompt]) -> None:
        for name, values in _WITHOUT_EFFECT.items():
            value = getattr(request, name)
            same = (value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)
            if value is not None and not any(same):
                raise RequestError(f"{name!r} is not available")
        count = 1 if request.n is None else request.n
        if count < 1 or not 1 <= len(prompts) * count <= MAX_TEXTS:
            raise RequestError(f"{len(prompts)} prompts with n={count}: 1 to {MAX_TEXTS} texts are allowed")
        self.request, self.model, self.stream = request, request.model, bool(request.stream)
        self.prompts = [prompt for prompt in prompts for _ in range(count)]
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}

    def options(self, queue: TextQueue) -> list[TextOptions]:
        return _options(self.request, queue, [self.max_tokens()] * len(self.prompts))

    @abstractmethod
    def max_tokens(self) -> int | None:
        """Return the most tokens of each text."""

    @abstractmethod
    def choice(self, text: str, event: bool) -> dict[str, Any]:
        """Return the fields of a choice that carry its text."""

    def _choice(self, number: int, text: str, tokens: list[int], finished: str, event: bool) -> dict[str, Any]:
        reason = {"": None, "stop": "stop", "stop_text": "stop"}.get(finished, "length")
        more = {"token_ids": tokens} if self.request.return_token_ids else {}
        return {"index": number, **self.choice(text, event), "logprobs": None, "finish_reason": reason, **more}

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.stream_kind, "choices": choices}

    def event(self, number: int, piece: TextPiece) -> dict[str, Any] | None:
        if not (piece.text or piece.finished or self.request.return_token_ids):
            return None
        return self._event([self._choice(number, piece.text, [piece.token], piece.finished, True)])

    def last(self, texts: Sequence[GeneratingText]) -> Iterator[dict[str, Any]]:
        if self.request.stream_options is not None and self.request.stream_options.include_usage:
            yield {**self._event([]), "usage": self._usage(texts)}

    def answer(self, texts: Sequence[GeneratingText], pieces: Sequence[Sequence[TextPiece]]) -> dict[str, Any]:
        choices = [
            self._choice(
                k, "".join(p.text for p in sequence), [p.token for p in sequence], sequence[-1].finished, False
            )
            for k, sequence in enumerate(pieces)
        ]
        return {**self._head, "object": self.kind, "choices": choices, "usage": self._usage(texts)}

    def _usage(self, texts: Sequence[GeneratingText]) -> dict[str, int]:
        # The tokens of a prompt count once, however many texts are generated for it.
        every = 1 if self.request.n is None else self.request.n
        read, generated = sum(text.prompt_tokens for text in texts[::every]), sum(text.tokens for text in texts)
        return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}

    def error(self, error: RequestError) -> dict[str, Any]:
        return openai_error(error)


class CompletionCall(_OpenAiCall):
    """OpenAI's ``/v1/completions``."""

    prefix, kind, stream_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, body: memoryview) -> None:
        request = _decode(body, CompletionRequest)
        super().__init__(request, _prompts(request.prompt))

    def max_tokens(self) -> int | None:
        """Return 16 by default, as OpenAI's interface says."""
        return _COMPLETION_TOKENS if self.request.max_tokens is None else self.request.max_tokens

    def choice(self, text: str, event: bool) -> dict[str, Any]:
        """Return the text."""
        return {"text": text}


class ChatCall(_OpenAiCall):
    """OpenAI's ``/v1/chat/completions``."""

    prefix, kind, stream_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, body: memoryview) -> None:
        request = _decode(body, ChatRequest)
        if not request.messages:
            raise RequestError("'messages' is empty; at least one message is needed")
        messages = [{"role": each.role, "content": _content(each)} for each in request.messages]
        self._most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        super().__init__(request, [TextPrompt(messages=messages)])

    def max_tokens(self) -> int | None:
        """Return what the request says; by default a text may fill the context."""
        return self._most

    def first(self, texts: Sequence[GeneratingText]) -> Iterator[dict[str, Any]]:
        """Yield who speaks."""
        for number in range(len(texts)):
            delta = {"role": "assistant", "content": ""}
            yield self._event([{"index": number, "delta": delta, "logprobs": None, "finish_reason": None}])

    def choice(self, text: str, event: bool) -> dict[str, Any]:
        """Return the message, or what is new of it."""
        if event:
            return {"delta": {"content": text} if text else {}}
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


def openai_error(error: RequestError) -> dict[str, Any]:
    """Return an error as OpenAI's clients read it."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": None}}


def _prompts(prompt: str | list[str | int | list[int]]) -> list[TextPrompt]:
    """Return the prompts of a field that holds a text, tokens, or a list of texts or of tokens."""
    if isinstance(prompt, str):
        return [TextPrompt(text=prompt)]
    tokens = [each for each in prompt if isinstance(each, int)]
    if tokens and len(tokens) == len(prompt):
        return [TextPrompt(tokens=tokens)]
    if tokens:
        raise RequestError("'prompt' mixes tokens with other prompts")
    return [
        TextPrompt(text=each) if isinstance(each, str) else TextPrompt(tokens=each)
        for each in prompt
        if not isinstance(each, int)
    ]


def _content(message: _Message) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for part in message.content:
        if part.type != "text":
            raise RequestError(f"a message has a part of type {part.type[:32]!r}; only 'text' is available")
    return "".join(part.text or "" for part in message.content)


def _options(asked: _Sampled, queue: TextQueue, most: Sequence[int | None]) -> list[TextOptions]:
    """Return the options of some texts; with a seed, each text of a request has another, so that they differ."""
    from tvm_sched_language import Sampling

    for tokens in most:
        if tokens is not None and tokens < 1:
            raise RequestError(f"max_tokens is {tokens}; 1 or more is allowed")
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    if len(stop) > 16 or not all(0 < len(text) <= 1024 for text in stop):
        raise RequestError("'stop': up to 16 texts of 1 to 1024 characters are allowed")
    own = asdict(queue.model.generator.default_sampling())
    named = {name: getattr(asked, name) for name in own if getattr(asked, name) is not None}
    try:
        sampling = Sampling(**own | named)
    except InputError as error:
        raise RequestError(str(error)) from None
    seeds = [None if sampling.seed is None else sampling.seed + number for number in range(len(most))]
    return [TextOptions(replace(sampling, seed=seed), tokens, stop) for seed, tokens in zip(seeds, most, strict=True)]


def _decode(body: memoryview, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the request is not what is expected: {str(error)[:200]}") from None
