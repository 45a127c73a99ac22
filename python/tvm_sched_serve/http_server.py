"""The Open Inference Protocol over HTTP: an ASGI application."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tvm_sched_runtime import __version__

from .access import Access, quota_place
from .datatypes import aligned_bytes, raw_bytes
from .execution_queue import CANCELLED
from .failures import Busy, NotFound, RequestError, TooLarge, TooSlow, Unauthorized, UnknownCoding
from .http_documents import (
    MAX_TRACE_SECONDS,
    IndexRequest,
    InferRequest,
    LoadRequest,
    RegionRequest,
    TraceRequest,
    UnloadParameters,
    UnloadRequest,
    given,
)
from .http_protocol import RECEIVE_INTO
from .inference import (
    EXTENSIONS,
    SERVER,
    Answer,
    GivenInput,
    GivenRequest,
    Result,
    WantedOutput,
    infer,
    metadata,
    statistics,
)
from .metrics import CONTENT_TYPE, Metrics
from .openapi import openapi_document
from .repository import Models
from .request_context import Recorder, RequestContext
from .request_trace import RequestTrace
from .shared_memory import SharedMemory
from .text_protocol import ChatCall, CompletionCall, GenerateCall, TextCall, openai_error
from .text_queue import GeneratingText, TextPiece, TextQueue

T = TypeVar("T")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ReceiveInto = Callable[[memoryview], Awaitable[None]]
_LENGTH_HEADER = b"inference-header-content-length"
_ID_HEADER = b"x-request-id"
_JSON = b"application/json"
_NULL = msgspec.Raw(b"null")
_CODINGS = (b"gzip", b"x-gzip", b"deflate")
_INFLATED_BYTES = 1 << 20
"""How much of a compressed body is decompressed before other requests get their turn."""
_LARGE_BYTES = 64 << 10
"""Bodies of at least so many bytes are received in place, if the server in front of the application offers it."""


_DECODER = msgspec.json.Decoder(InferRequest)


@dataclass(frozen=True)
class HttpLimits:
    """Limits of a request.

    Parameters
    ----------
    body_bytes : int
        Of one request.
    total_bytes : int
        Of all requests that are received or answered at one time.
    seconds : float
        To send a body, or to take an answer.
    """

    body_bytes: int = 64 << 20
    total_bytes: int = 1 << 30
    seconds: float = 30.0


class _ClientGone(Exception):
    """The client closed its connection, or takes no answer."""


class TimeLimit:
    """Ends what the current task waits for with a TimeoutError."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def _expire(self) -> None:
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._expired and kind is asyncio.CancelledError:
            raise TimeoutError


class InferenceServer:
    """An ASGI application.

    Parameters
    ----------
    repository, memory, metrics, access, limits, recorder
    inference : bool
        False for the port that has nothing but administration.
    administration : bool
        Whether this is the port for administration.
    """

    def __init__(
        self,
        repository: Models,
        memory: SharedMemory,
        metrics: Metrics,
        access: Access,
        limits: HttpLimits,
        recorder: Recorder,
        *,
        administration: bool = False,
    ) -> None:
        self.repository, self.memory, self.metrics = repository, memory, metrics
        self.access, self.limits, self.administration = access, limits, administration
        self.recorder = recorder
        self._held_bytes = 0
        self._created = int(time.time())
        self._other = Starlette(routes=self._routes(), exception_handlers={HTTPException: _not_routed})
        self._other.router.redirect_slashes = False  # a redirected POST arrives as a GET with many clients

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path.endswith("/"):
            path = path.rstrip("/") or "/"
            scope["path"] = path
        headers = dict(scope["headers"])
        context = RequestContext.of(
            headers.get(_ID_HEADER, b"").decode("latin-1"), headers.get(b"traceparent", b"").decode("latin-1"), "http"
        )

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (_ID_HEADER, context.id.encode())]
            await send(message)

        if self.administration or scope["method"] != "POST" or not path.endswith(("/infer", *_TEXTS)):
            await self._other(scope, receive, answer)
            return
        status = 200
        try:
            if path.endswith("/infer"):
                receive_into = scope.get("extensions", {}).get(RECEIVE_INTO)
                await self._infer(path, headers, receive, answer, context, receive_into)
            else:
                await self._generate(path, headers, receive, answer, context)
        except RequestError as error:
            status = error.status
            await _send_error(answer, error, openai=path.startswith("/v1/"))
        except _ClientGone:
            status = CANCELLED
        finally:
            self.recorder.request(context, status)

    async def _infer(
        self,
        path: str,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        context: RequestContext,
        receive_into: ReceiveInto | None = None,
    ) -> None:
        self.access.check(headers.get(b"authorization", b""), administration=False)
        name, version = _model_of(path)
        self.repository.find(name, version)  # before the body is received
        split = _whole_header(headers, _LENGTH_HEADER)
        async with self._body(headers, split or 0, receive, receive_into) as body:
            request = _parse(body, split, name, version)
            if request.id and _ID_HEADER not in headers:
                context.rename(request.id)
            queue = self.repository.find(name, version)  # which may have been loaded anew meanwhile
            if isinstance(queue, TextQueue):
                raise RequestError(
                    f"model {name!r} generates text: use generate, generate_stream or /v1/chat/completions"
                )
            work = infer(self.repository, self.memory, request, context)
            # A run that is over at once cannot be cancelled, so nobody needs to watch the client.
            result = await (work if queue.runs_at_once else self._watched(work, receive))
            try:
                with TimeLimit(self.limits.seconds):  # of clients that do not take their answer
                    await _send_result(send, result)
            except TimeoutError:
                raise _ClientGone from None

    async def _generate(
        self, path: str, headers: dict[bytes, bytes], receive: Receive, send: Send, context: RequestContext
    ) -> None:
        self.access.check(headers.get(b"authorization", b""), administration=False)
        if path not in ("/v1/completions", "/v1/chat/completions"):
            self.repository.find(*_model_of(path))
        async with self._body(headers, 0, receive) as body:
            call = _text_call(path, body)
            queue = self.repository.find(call.model, call.version)
            if not isinstance(queue, TextQueue):
                raise RequestError(f"model {call.model[:128]!r} generates no text: it was compiled without --generate")
            context.model, context.version = queue.model.name, queue.model.version
            with quota_place():
                await self._watched(self._answer(call, queue, send, context), receive)

    async def _answer(self, call: TextCall, queue: TextQueue, send: Send, context: RequestContext) -> None:
        """Generate the texts of a request and send them, as they come or as a whole."""
        texts = await queue.start(call.prompts, call.options(queue), context)
        failure: BaseException | None = None
        try:
            if call.stream:
                await self._send_events(call, queue, texts, send)
            else:
                pieces: list[list[TextPiece]] = [[] for _ in texts]
                async for number, piece in queue.pieces(texts):
                    pieces[number].append(piece)
                with TimeLimit(self.limits.seconds):
                    await _send(send, 200, [(b"content-type", _JSON)], msgspec.json.encode(call.answer(texts, pieces)))
        except TimeoutError:  # of clients that do not take their answer
            failure = _ClientGone()
            raise failure from None
        except BaseException as error:
            failure = error
            raise
        finally:
            queue.finish(texts, failure)

    async def _send_events(self, call: TextCall, queue: TextQueue, texts: list[GeneratingText], send: Send) -> None:
        """Send the pieces of texts as server-sent events."""

        async def write(content: bytes, more: bool = True) -> None:
            with TimeLimit(self.limits.seconds):
                await send({"type": "http.response.body", "body": content, "more_body": more})

        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for document in call.first(texts):
            await write(_event(document))
        try:
            async for number, piece in queue.pieces(texts):
                told = call.event(number, piece)
                if told is not None:
                    await write(_event(told))
        except RequestError as error:
            # The status has been sent, so the error is an event.
            await write(_event(call.error(error)), more=False)
            raise _ClientGone from error
        for document in call.last(texts):
            await write(_event(document))
        await write(call.last_event, more=False)

    @asynccontextmanager
    async def _body(
        self, headers: dict[bytes, bytes], aligned: int, receive: Receive, receive_into: ReceiveInto | None = None
    ) -> AsyncIterator[memoryview]:
        """Receive a body, whose bytes count until the request is answered; byte ``aligned`` is at an aligned address."""
        length, coded = _whole_header(headers, b"content-length"), _coding(headers)
        if length is None and b"transfer-encoding" not in headers:
            raise RequestError("the request has no body")
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if size > self.limits.body_bytes:
                raise TooLarge(f"the body has {size} bytes or more; {self.limits.body_bytes} are allowed")
            if self._held_bytes + size - held > self.limits.total_bytes:
                raise Busy("the running requests use all the memory that requests may use")
            self._held_bytes += size - held
            held = size

        try:
            if length is None or coded:
                hold(length or 0)
                body = await self._receive_growing(receive, coded, hold)
            else:
                hold(length)
                if aligned > length:
                    raise RequestError("Inference-Header-Content-Length is more than the body")
                body = await self._receive(length, aligned, receive, receive_into)
            if aligned > len(body):
                raise RequestError("Inference-Header-Content-Length is more than the body")
            yield body
        finally:
            self._held_bytes -= held

    async def _receive_growing(self, receive: Receive, coded: bool, hold: Callable[[int], None]) -> memoryview:
        """Read a body whose length nobody knows: one in chunks, or a compressed one."""
        body = bytearray()
        inflater = _Inflater() if coded else None
        try:
            with TimeLimit(self.limits.seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGone
                    part, more = message.get("body", b""), message.get("more_body", False)
                    for piece in (part,) if inflater is None else inflater.pieces(part, last=not more):
                        hold(len(body) + len(piece))
                        body += piece
                        if inflater is not None:
                            await asyncio.sleep(0)
        except TimeoutError:
            raise TooSlow(f"the body did not come within {self.limits.seconds:g} s") from None
        return memoryview(body)

    async def _receive(self, length: int, split: int, receive: Receive, receive_into: ReceiveInto | None) -> memoryview:
        """Read a body into memory in which the binary tensors begin at an aligned address."""
        body = aligned_bytes(length, split).data
        done = 0
        try:
            with TimeLimit(self.limits.seconds):
                if receive_into is not None and length >= _LARGE_BYTES:
                    await receive_into(body)
                    return body
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGone
                    part = message.get("body", b"")
                    if done + len(part) > length:
                        raise RequestError("the body is longer than its Content-Length")
                    body[done : done + len(part)] = part
                    done += len(part)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise TooSlow(f"the body did not come within {self.limits.seconds:g} s") from None
        except ConnectionError:
            raise _ClientGone from None
        if done != length:
            raise RequestError("the body is shorter than its Content-Length")
        return body

    async def _watched(self, work: Coroutine[Any, Any, T], receive: Receive) -> T:
        """Do the work of a request; if its client goes, cancel it."""
        task = asyncio.current_task()
        went = False

        async def watch() -> None:
            nonlocal went
            await receive()
            went = True
            if task is not None:
                task.cancel()

        watching = asyncio.ensure_future(watch())
        try:
            return await work
        except asyncio.CancelledError:
            if went:
                raise _ClientGone from None
            raise
        finally:
            watching.cancel()

    def _routes(self) -> list[Route]:
        routes = [
            ("/v2/repository/index", self._index, ["POST"], False),
            ("/v2/repository/models/{name}/load", self._load, ["POST"], True),
            ("/v2/repository/models/{name}/unload", self._unload, ["POST"], True),
            ("/metrics", self._metrics, ["GET"], False),
            ("/v2/trace", self._trace, ["POST"], True),
            ("/v2/health/live", self._live, ["GET"], None),
            ("/v2/health/ready", self._ready, ["GET"], None),
        ]
        if not self.administration:
            memory = "/v2/systemsharedmemory"
            routes += [
                ("/v2", self._server, ["GET"], False),
                ("/openapi.json", self._openapi, ["GET"], None),
                ("/v2/models/stats", self._statistics, ["GET"], False),
                ("/v1/models", self._openai_models, ["GET"], False),
                ("/v1/models/{name}", self._openai_models, ["GET"], False),
                (f"{memory}/status", self._memory_status, ["GET"], False),
                (f"{memory}/region/{{name}}/status", self._memory_status, ["GET"], False),
                (f"{memory}/region/{{name}}/register", self._memory_register, ["POST"], False),
                (f"{memory}/region/{{name}}/unregister", self._memory_unregister, ["POST"], False),
                (f"{memory}/unregister", self._memory_unregister, ["POST"], False),
            ]
            for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
                routes += [
                    (model, self._model, ["GET"], False),
                    (f"{model}/ready", self._model_ready, ["GET"], False),
                    (f"{model}/stats", self._statistics, ["GET"], False),
                    (f"{model}/config", self._config, ["GET"], False),
                ]
        return [Route(path, self._guarded(act, admin), methods=methods) for path, act, methods, admin in routes]

    def _guarded(
        self, act: Callable[[Request], Awaitable[Response]], administration: bool | None
    ) -> Callable[[Request], Awaitable[Response]]:
        """Check the token before ``act``, and answer what it refuses; None asks for no token."""

        async def checked(request: Request) -> Response:
            try:
                if administration is not None:
                    token = request.headers.get("authorization", "").encode("latin-1")
                    administrates = administration or self.administration
                    self.access.check(token, administration=administrates, own_port=self.administration)
                return await act(request)
            except RequestError as error:
                status, headers, body = _error(error, openai=request.url.path.startswith("/v1/"))
                return Response(body, status, dict(headers), "application/json")

        return checked

    async def _live(self, request: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, request: Request) -> Response:
        return _json({"ready": self.repository.ready}, 200 if self.repository.ready else 503)

    async def _openapi(self, request: Request) -> Response:
        return _json(openapi_document())

    async def _trace(self, request: Request) -> Response:
        """Answer with a trace of what happens within some seconds from now."""
        asked = _decode(await self._small_body(request) or b"{}", TraceRequest).seconds
        seconds = 1.0 if asked is None else asked
        if self.recorder.timelines:
            raise Busy("another trace is being recorded", MAX_TRACE_SECONDS)
        trace = RequestTrace()
        self.recorder.add(trace)
        try:
            self.repository.record_timelines(True)
            await asyncio.sleep(seconds)
        finally:
            self.recorder.remove(trace)
            self.repository.record_timelines(False)
        return Response(await asyncio.to_thread(trace.document), media_type="application/json")

    async def _server(self, request: Request) -> Response:
        extensions = [each for each in EXTENSIONS if self.memory.allowed or each != "system_shared_memory"]
        return _json({"name": SERVER, "version": __version__, "extensions": extensions})

    async def _model(self, request: Request) -> Response:
        return _json(metadata(self.repository, self._find(request)))

    async def _model_ready(self, request: Request) -> Response:
        name = self._find(request).model.name
        return _json({"name": name, "ready": self.repository.ready}, 200 if self.repository.ready else 503)

    async def _config(self, request: Request) -> Response:
        queue = self._find(request)
        described = metadata(self.repository, queue)
        batch = queue.model.largest_batch if queue.joins else 0
        for kind in ("inputs", "outputs"):
            described[kind] = [
                {"name": t["name"], "data_type": f"TYPE_{t['datatype']}", "dims": t["shape"][1 if batch else 0 :]}
                for t in described[kind]
            ]
        return _json(
            {
                "name": queue.model.name,
                "platform": described["platform"],
                "max_batch_size": batch,
                "input": described["inputs"],
                "output": described["outputs"],
                "instance_group": [{"count": queue.options.instances, "kind": "KIND_CPU"}],
            }
        )

    async def _statistics(self, request: Request) -> Response:
        where = request.path_params
        queues = self.repository.queues(where.get("name", ""), where.get("version", ""))
        return _json({"model_stats": [statistics(queue) for queue in queues]})

    async def _openai_models(self, request: Request) -> Response:
        """Tell OpenAI's clients which language models there are, or of one that it is there."""
        name = request.path_params.get("name")
        models = [
            {"id": queue.model.name, "object": "model", "created": self._created, "owned_by": SERVER}
            for queue in self.repository.latest()
            if isinstance(queue, TextQueue) and name in (None, queue.model.name)
        ]
        if name is not None and not models:
            raise NotFound(f"there is no language model {name[:128]!r}")
        return _json(models[0] if name is not None else {"object": "list", "data": models})

    async def _index(self, request: Request) -> Response:
        options = _decode(await self._small_body(request) or b"{}", IndexRequest)
        index = await asyncio.to_thread(self.repository.index)
        return _json([asdict(entry) for entry in index if entry.state == "READY" or not options.ready])

    async def _load(self, request: Request) -> Response:
        if given(_decode(await self._small_body(request) or b"{}", LoadRequest).parameters):
            raise RequestError("load takes no parameters: the artifact in the repository is loaded")
        await self.repository.load(request.path_params["name"])
        return _json({})

    async def _unload(self, request: Request) -> Response:
        options = _decode(await self._small_body(request) or b"{}", UnloadRequest)
        sleep = bool((options.parameters or UnloadParameters()).sleep)
        await self.repository.unload(request.path_params["name"], sleep=sleep)
        return _json({})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def _memory_status(self, request: Request) -> Response:
        regions = self.memory.status(request.path_params.get("name", ""))
        return _json([{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in regions])

    async def _memory_register(self, request: Request) -> Response:
        region = _decode(await self._small_body(request), RegionRequest)
        self.memory.register(request.path_params["name"], region.key, region.offset or 0, region.byte_size)
        return _json({})

    async def _memory_unregister(self, request: Request) -> Response:
        self.memory.unregister(request.path_params.get("name", ""))
        return _json({})

    def _find(self, request: Request) -> Any:
        return self.repository.find(request.path_params["name"], request.path_params.get("version", ""))

    async def _small_body(self, request: Request, limit: int = 1 << 16) -> bytes:
        """Read a body of a few fields."""
        if _coding({b"content-encoding": request.headers.get("content-encoding", "").encode("latin-1")}):
            raise UnknownCoding("only requests for inference and for text may be compressed")
        body = bytearray()
        try:
            with TimeLimit(self.limits.seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > limit:
                        raise TooLarge(f"the body has more than {limit} bytes")
        except TimeoutError:
            raise TooSlow(f"the body did not come within {self.limits.seconds:g} s") from None
        return bytes(body)


_TEXTS = ("/generate", "/generate_stream", "/v1/completions", "/v1/chat/completions")
"""Ends of the paths that generate text."""


def _model_of(path: str) -> tuple[str, str]:
    """Return model and version of the path of a request to a model."""
    match path.split("/"):
        case ["", "v2", "models", name, _]:
            return name, ""
        case ["", "v2", "models", name, "versions", version, _]:
            return name, version
    raise NotFound("there is no such path")


def _text_call(path: str, body: memoryview) -> TextCall:
    if path == "/v1/completions":
        return CompletionCall(body)
    if path == "/v1/chat/completions":
        return ChatCall(body)
    return GenerateCall.of_body(body, *_model_of(path), stream=path.endswith("_stream"))


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body does not have the expected form: {str(error)[:200]}") from None


def _whole_header(headers: dict[bytes, bytes], name: bytes) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise RequestError(f"the header {name.decode()} is not a number")
    return int(text)


def _coding(headers: dict[bytes, bytes]) -> bool:
    """Return whether a body is compressed.

    Raises
    ------
    UnknownCoding
        In a way that the server does not know.
    """
    coding = headers.get(b"content-encoding", b"").strip().lower()
    if coding in _CODINGS:
        return True
    if coding not in (b"", b"identity"):
        raise UnknownCoding(
            f"the body has the Content-Encoding {coding.decode('latin-1')[:32]!r}; gzip and deflate are read"
        )
    return False


class _Inflater:
    """Decompresses a body of gzip or zlib, which it tells apart by their head."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def pieces(self, part: bytes, *, last: bool) -> Iterator[bytes]:
        """Yield what a part of the body holds, in pieces.

        Raises
        ------
        RequestError
            It is damaged, or cut off.
        """
        try:
            while part:
                yield self._stream.decompress(part, _INFLATED_BYTES)
                part = self._stream.unconsumed_tail
            if last:
                yield self._stream.flush()
        except zlib.error:
            raise RequestError("the body is not compressed as its Content-Encoding says") from None
        if self._stream.unused_data or (last and not self._stream.eof):
            raise RequestError("the compressed body is cut off, or has bytes after its end")


def _parse(body: memoryview, split: int | None, name: str, version: str) -> GivenRequest:
    """Read the JSON part of a body, and give each binary input its bytes."""
    end = len(body) if split is None else split
    try:
        document = _DECODER.decode(body[:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the request is not what the protocol says: {str(error)[:200]}") from None
    inputs = []
    for each in document.inputs:
        content, numbers = None, None if each.data == _NULL else each.data
        parameters = given(each.parameters)
        size = parameters.get("binary_data_size")
        if size is not None:
            if (
                isinstance(size, bool)
                or not isinstance(size, int)
                or not 0 <= size <= len(body) - end
                or numbers is not None
            ):
                raise RequestError(f"input {each.name[:64]!r}: binary_data_size does not fit the body")
            content = body[end : end + size]
            end += size
        inputs.append(GivenInput(each.name, each.datatype, each.shape, parameters, content, document=numbers))
    if end != len(body):
        raise RequestError(f"the body has {len(body) - end} bytes after its last input")
    wanted = [WantedOutput(output.name, given(output.parameters)) for output in document.outputs or ()]
    return GivenRequest(name, version, document.id or "", given(document.parameters), inputs, wanted)


async def _not_routed(request: Request, error: Exception) -> Response:
    """Answer requests of a path or method that there is not."""
    status, headers = 500, {}
    if isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
    path = request.scope["path"]
    if status == 404 and request.method != "POST" and path.endswith(("/infer", *_TEXTS)):
        status, headers = 405, {"allow": "POST"}
    told = (
        f"{request.method} is not possible here: {headers.get('allow', '')}"
        if status == 405
        else "there is no such path"
    )
    return Response(msgspec.json.encode({"error": told}), status, headers, "application/json")


def _json(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def _error(error: RequestError, *, openai: bool) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return status, headers and document of an error, as the Open Inference Protocol or OpenAI's clients read it."""
    headers = []
    if isinstance(error, Busy):
        headers.append(("retry-after", str(error.retry_after)))
    if isinstance(error, UnknownCoding):
        headers.append(("accept-encoding", "gzip, deflate"))
    if isinstance(error, TooSlow):
        headers.append(("connection", "close"))
    if isinstance(error, Unauthorized):
        headers.append(("www-authenticate", "Bearer"))
    document = openai_error(error) if openai else {"error": str(error)}
    return error.status, headers, msgspec.json.encode(document)


async def _send_error(send: Send, error: RequestError, *, openai: bool) -> None:
    status, more, body = _error(error, openai=openai)
    headers = [(name.encode(), value.encode()) for name, value in more]
    with suppress(TimeoutError, OSError):
        await _send(send, status, [*headers, (b"content-type", _JSON)], body)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def json_numbers(answer: Answer) -> list[Any]:
    """Return the values of an output for a JSON document.

    Raises
    ------
    RequestError
        JSON has no word for one of them (RFC 8259, 6). What stands for it elsewhere is read wrongly by some clients: null
        becomes 0 in Go, and the words NaN and Infinity end most parsers.
    """
    flat = answer.value.reshape(-1)
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        place = int(np.argmin(np.isfinite(flat)))
        raise RequestError(
            f"output {answer.type.name!r} has the value {flat[place]} at position {place}, which JSON does not carry: "
            "ask for binary_data"
        )
    return flat.tolist()


async def _send_result(send: Send, result: Result) -> None:
    """Answer with the outputs: binary ones behind the JSON document."""
    outputs, parts = [], []
    for each in result.outputs:
        parameters: dict[str, Any] = {}
        described: dict[str, Any] = {
            "name": each.type.name, "datatype": each.type.datatype, "shape": each.value.shape, "parameters": parameters,
        }  # fmt: skip
        if each.region is not None:
            parameters["shared_memory_region"] = each.region.name
            parameters["shared_memory_byte_size"] = each.value.nbytes
        elif each.parameters.get("binary_data", result.binary):
            content = raw_bytes(each.value)
            parameters["binary_data_size"] = content.nbytes
            parts.append(content)
        else:
            if each.type.datatype in ("FP16", "BF16"):
                raise RequestError(
                    f"output {each.type.name!r} is {each.type.datatype}, which JSON does not carry: ask for binary_data"
                )
            described["data"] = json_numbers(each)
        outputs.append(described)
    document = msgspec.json.encode(
        {
            "model_name": result.queue.model.name,
            "model_version": result.queue.model.version,
            **({"id": result.id} if result.id else {}),
            "outputs": outputs,
        }
    )
    if not parts:
        await _send(send, 200, [(b"content-type", _JSON)], document)
        return
    headers = [(b"content-type", b"application/octet-stream"), (_LENGTH_HEADER, str(len(document)).encode())]
    await _send(send, 200, headers, b"".join((document, *parts)))
