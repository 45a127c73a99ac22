"""The Open Inference Protocol over gRPC."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from tvm_sched_runtime import __version__

from .access import Access, quota_place
from .datatypes import raw_bytes
from .execution_queue import CANCELLED
from .failures import Busy, RequestError
from .inference import EXTENSIONS, SERVER, GivenInput, GivenRequest, WantedOutput, infer, metadata, statistics
from .repository import Models
from .request_context import Recorder, RequestContext
from .shared_memory import SharedMemory
from .text_protocol import GenerateCall
from .text_queue import TextQueue

LOG = logging.getLogger("tvm_sched.serve")
SERVICE = "inference.GRPCInferenceService"
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
"""The field of typed contents for each data type."""
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED, 403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND, 413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.FAILED_PRECONDITION, 429: grpc.StatusCode.RESOURCE_EXHAUSTED, 503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip
_ID = "x-request-id"
_STREAM_REQUESTS = 64
"""Requests of one stream that are under way at once."""


@cache
def description() -> tuple[descriptor_pool.DescriptorPool, tuple[str, ...]]:
    """Return the pool with the interfaces of all services, and the names of their files.

    It is a pool of its own: a client in the same process describes messages of the same names.
    """
    pool, names = descriptor_pool.DescriptorPool(), []
    for path in sorted(Path(__file__).parent.glob("*.binpb")):
        for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file:
            pool.Add(file)
            names.append(file.name)
    return pool, tuple(names)


@cache
def messages() -> dict[str, Any]:
    """Return the messages of all services by name, those within other messages, too; without the package ``inference``.

    All classes stay: Protobuf refers to them weakly, and a message whose class the garbage collector was about to free
    ended the process.
    """
    pool, names = description()
    found = {}
    for name in names:
        left = list(pool.FindFileByName(name).message_types_by_name.values())
        while left:
            each = left.pop()
            found[each.full_name.removeprefix("inference.")] = message_factory.GetMessageClass(each)
            left += each.nested_types
    return found


class InferCall(NamedTuple):
    """A ``ModelInferRequest`` as it was read.

    Large raw contents are apart from the message, in which they would be copied twice.
    """

    message: Any
    contents: Sequence[memoryview | bytes]

    @classmethod
    def of(cls, content: bytes) -> InferCall:
        """Read a request.

        Raises
        ------
        google.protobuf.message.DecodeError
        """
        kind = messages()["ModelInferRequest"]
        if len(content) < LARGE_BYTES:
            message = kind.FromString(content)
            return cls(message, message.raw_input_contents)
        parts, contents = [], []
        view, begin, at, fields = memoryview(content), 0, 0, 0
        try:
            while at < len(content):
                fields += 1
                if fields > _MOST_FIELDS:
                    raise IndexError
                field, (end, size) = at, read_length(content, at + 1)
                at = end + size
                if content[field] == _RAW_INPUTS:
                    parts.append(view[begin:field])
                    contents.append(view[end:at])
                    begin = at
                elif content[field] & 0x87 != _OF_LENGTH:  # not a field of this message
                    raise IndexError
            if at > len(content):
                raise IndexError
        except IndexError:
            message = kind.FromString(content)
            return cls(message, message.raw_input_contents)
        parts.append(view[begin:])
        return cls(kind.FromString(b"".join(parts)), contents)


class InferAnswer(NamedTuple):
    """A ``ModelInferResponse``, whose raw contents are apart from the message."""

    message: Any
    contents: Sequence[memoryview] = ()

    def serialize(self) -> bytes:
        """Return the whole message as bytes."""
        parts = [self.message.SerializeToString()]
        for content in self.contents:
            parts += [bytes([_RAW_OUTPUTS]), _encoded(content.nbytes), content]
        return b"".join(parts)

    def whole(self) -> Any:
        """Return the whole message."""
        self.message.raw_output_contents.extend(map(bytes, self.contents))
        return self.message


LARGE_BYTES = 64 << 10
"""Smaller messages are read by Protobuf alone, which costs less."""
_OF_LENGTH = 2
"""Protobuf's type of fields that begin with their length."""
_LENGTH_BYTES = 10
"""The most that Protobuf allows a length."""
_MOST_FIELDS = 256
"""A message of more fields is left to Protobuf, which takes less time and memory for each."""
_RAW_INPUTS, _RAW_OUTPUTS = 7 << 3 | _OF_LENGTH, 6 << 3 | _OF_LENGTH
"""First bytes of the fields ``raw_input_contents`` of a request and ``raw_output_contents`` of a response."""


def read_length(content: bytes, at: int) -> tuple[int, int]:
    """Read a length in Protobuf's form; return the position behind it, and the length."""
    size = 0
    for place in range(_LENGTH_BYTES):
        byte = content[at + place]
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return at + place + 1, size
    raise IndexError


def _encoded(length: int) -> bytes:
    """Return a length in Protobuf's form."""
    found = bytearray()
    while length >= 0x80:
        found.append(length & 0x7F | 0x80)
        length >>= 7
    found.append(length)
    return bytes(found)


class GrpcService:
    """The methods of the service.

    Parameters
    ----------
    repository, memory, access, recorder
    """

    def __init__(self, repository: Models, memory: SharedMemory, access: Access, recorder: Recorder) -> None:
        self.repository, self.memory, self.access, self.recorder = repository, memory, access, recorder
        self._reading: set[asyncio.Task[None]] = set()

    def end_streams(self) -> None:
        """Take no more requests of streams; each ends when those that it brought are answered.

        Clients keep streams open without a request for as long as they live, and the server would wait for them.
        """
        for task in self._reading:
            task.cancel()

    def handler(self) -> Any:
        """Return what a `grpc.aio.Server` is given."""
        known = messages()
        unary: dict[str, tuple[Callable[[Any, Any], Awaitable[dict[str, Any] | Any]], bool | None]] = {
            "ServerLive": (self._live, None),
            "ServerReady": (self._ready, None),
            "ModelReady": (self._model_ready, False),
            "ServerMetadata": (self._server, False),
            "ModelMetadata": (self._model, False),
            "ModelInfer": (self._answer, None),  # which checks the token itself
            "ModelStatistics": (self._statistics, False),
            "RepositoryIndex": (self._index, False),
            "RepositoryModelLoad": (self._load, True),
            "RepositoryModelUnload": (self._unload, True),
            "SystemSharedMemoryStatus": (self._memory_status, False),
            "SystemSharedMemoryRegister": (self._memory_register, False),
            "SystemSharedMemoryUnregister": (self._memory_unregister, False),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                self._guarded(act, administration, known[f"{name}Response"]),
                request_deserializer=InferCall.of if name == "ModelInfer" else known[f"{name}Request"].FromString,
                response_serializer=(
                    InferAnswer.serialize if name == "ModelInfer" else known[f"{name}Response"].SerializeToString
                ),
            )
            for name, (act, administration) in unary.items()
        }
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=InferCall.of,
            response_serializer=known["ModelStreamInferResponse"].SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _check(self, known: Mapping[str, str | bytes], administration: bool) -> None:
        token = known.get("authorization", b"")
        self.access.check(
            token if isinstance(token, bytes) else token.encode("utf-8", "replace"), administration=administration
        )

    def _guarded(self, act: Callable[[Any, Any], Awaitable[Any]], administration: bool | None, kind: Any) -> Any:
        async def checked(request: Any, context: Any) -> Any:
            try:
                if administration is not None:
                    self._check(_metadata(context), administration)
                answer = await act(request, context)
            except RequestError as error:
                await _abort(context, error)
            else:
                return json_format.ParseDict(answer, kind()) if isinstance(answer, dict) else answer

        return checked

    async def _live(self, request: Any, context: Any) -> dict[str, Any]:
        return {"live": True}

    async def _ready(self, request: Any, context: Any) -> dict[str, Any]:
        return {"ready": self.repository.ready}

    async def _model_ready(self, request: Any, context: Any) -> dict[str, Any]:
        ready = self.repository.ready and self.repository.has(request.name, request.version)
        return {"ready": ready}

    async def _server(self, request: Any, context: Any) -> dict[str, Any]:
        return {"name": SERVER, "version": __version__, "extensions": EXTENSIONS}

    async def _model(self, request: Any, context: Any) -> dict[str, Any]:
        return metadata(self.repository, self.repository.find(request.name, request.version))

    async def _statistics(self, request: Any, context: Any) -> dict[str, Any]:
        return {"model_stats": [statistics(q) for q in self.repository.queues(request.name, request.version)]}

    async def _index(self, request: Any, context: Any) -> dict[str, Any]:
        index = await asyncio.to_thread(self.repository.index)
        return {"models": [vars(entry) for entry in index if entry.state == "READY" or not request.ready]}

    async def _load(self, request: Any, context: Any) -> dict[str, Any]:
        if request.parameters:
            raise RequestError("load takes no parameters: the artifact in the repository is loaded")
        await self.repository.load(request.model_name)
        return {}

    async def _unload(self, request: Any, context: Any) -> dict[str, Any]:
        await self.repository.unload(request.model_name, sleep=request.parameters["sleep"].bool_param)
        return {}

    async def _memory_status(self, request: Any, context: Any) -> dict[str, Any]:
        return {
            "regions": {
                r.name: {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size}
                for r in self.memory.status(request.name)
            }
        }

    async def _memory_register(self, request: Any, context: Any) -> dict[str, Any]:
        self.memory.register(request.name, request.key, request.offset, request.byte_size)
        return {}

    async def _memory_unregister(self, request: Any, context: Any) -> dict[str, Any]:
        self.memory.unregister(request.name)
        return {}

    async def _answer(self, call: InferCall, context: Any) -> InferAnswer:
        """Answer a request with one response."""
        request, known = call.message, _metadata(context)
        self._check(known, False)
        found = self._begin(request, known)
        context.set_trailing_metadata(((_ID, found.id),))
        status = 200
        try:
            queue = self.repository.find(request.model_name, request.model_version)
            if not isinstance(queue, TextQueue):
                return await self._infer(call, context, found)
            async with aclosing(self._generate(call, queue, found)) as pieces:
                text = "".join([text async for text, _ in pieces])
            return InferAnswer(self._text_response(request, queue, text))
        except RequestError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = CANCELLED
            raise
        finally:
            self.recorder.request(found, status)

    def _begin(self, request: Any, known: Mapping[str, str | bytes]) -> RequestContext:
        name, parent = str(known.get(_ID, "")), str(known.get("traceparent", ""))
        found = RequestContext.of(name, parent, "grpc")
        if request.id and not name:
            found.rename(request.id)
        return found

    async def _generate(
        self, call: InferCall, queue: TextQueue, found: RequestContext
    ) -> AsyncGenerator[tuple[str, bool], None]:
        """Yield the pieces of a text, and whether each is the last."""
        model = queue.model
        found.model, found.version = model.name, model.version
        parameters = _plain(call.message.parameters)
        wanted = GenerateCall.of_parameters(_text_of(call), parameters, model.name, model.version)
        with quota_place():
            texts = await queue.start(wanted.prompts, wanted.options(queue), found)
            failure: BaseException | None = None
            try:
                async for _, piece in queue.pieces(texts):
                    yield piece.text, bool(piece.finished)
            except BaseException as error:
                failure = error
                raise
            finally:
                queue.finish(texts, failure)

    def _text_response(self, request: Any, queue: TextQueue, text: str, last: bool = True) -> Any:
        model = queue.model
        answer = messages()["ModelInferResponse"](model_name=model.name, model_version=model.version, id=request.id)
        answer.parameters["triton_final_response"].bool_param = last
        answer.outputs.add(name=model.outputs[0].name, datatype="BYTES", shape=(1,))
        content = text.encode()
        answer.raw_output_contents.append(len(content).to_bytes(4, "little") + content)
        return answer

    async def _infer(self, call: InferCall, context: Any, found: RequestContext) -> InferAnswer:
        request, contents = call.message, call.contents
        parameters = _plain(request.parameters)
        left = context.time_remaining()
        if left is not None and 0 < left < 1e9:  # of the client's deadline
            limit = max(1, int(1e6 * left))
            asked = parameters.get("timeout")
            parameters["timeout"] = min(asked, limit) if isinstance(asked, int) and asked > 0 else limit
        raw = iter(contents)
        inputs = []
        used = 0
        for each in request.inputs:
            of_input = _plain(each.parameters)
            item = GivenInput(each.name, each.datatype, each.shape, of_input)
            if each.HasField("contents"):
                if contents:
                    raise RequestError("the inputs have typed contents and raw contents; one of them is allowed")
                field = _CONTENTS.get(each.datatype)
                if field is None:
                    raise RequestError(f"input {each.name[:64]!r}: {each.datatype[:32]} needs raw contents")
                item.values = getattr(each.contents, field)
            elif "shared_memory_region" not in of_input:
                content = next(raw, None)
                if content is None:
                    raise RequestError(f"input {each.name[:64]!r} has no contents")
                item.content = memoryview(content)
                used += 1
            inputs.append(item)
        if used != len(contents):
            raise RequestError(f"there are {len(contents)} raw contents for {used} inputs")
        wanted = [WantedOutput(output.name, _plain(output.parameters)) for output in request.outputs]
        result = await infer(
            self.repository,
            self.memory,
            GivenRequest(request.model_name, request.model_version, request.id, parameters, inputs, wanted),
            found,
        )
        model = result.queue.model
        answer = messages()["ModelInferResponse"](model_name=model.name, model_version=model.version, id=result.id)
        values: list[memoryview] = []
        for output in result.outputs:
            described = answer.outputs.add(
                name=output.type.name, datatype=output.type.datatype, shape=output.value.shape
            )
            if output.region is not None:
                described.parameters["shared_memory_region"].string_param = output.region.name
                described.parameters["shared_memory_byte_size"].int64_param = output.value.nbytes
                values.append(memoryview(b""))  # clients count the outputs
            else:
                values.append(raw_bytes(output.value))
        return InferAnswer(answer, values)

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Answer the requests of a stream as they end, and texts as they come; an error ends only its request."""
        kind = messages()["ModelStreamInferResponse"]
        places = asyncio.Semaphore(_STREAM_REQUESTS)
        writing = asyncio.Lock()
        tasks: set[asyncio.Task[None]] = set()
        known = _metadata(context)
        try:
            self._check(known, False)
        except RequestError as error:
            await _abort(context, error)

        async def write(**fields: Any) -> None:
            async with writing:
                await context.write(kind(**fields))

        async def answer(call: InferCall) -> None:
            request = call.message
            found, status = self._begin(request, known), 200
            try:
                queue = self.repository.find(request.model_name, request.model_version)
                if isinstance(queue, TextQueue):
                    async with aclosing(self._generate(call, queue, found)) as pieces:
                        async for text, last in pieces:
                            if text or last:
                                await write(infer_response=self._text_response(request, queue, text, last))
                else:
                    await write(infer_response=(await self._infer(call, context, found)).whole())
            except RequestError as error:
                status = error.status
                await write(error_message=str(error), infer_response=messages()["ModelInferResponse"](id=request.id))
            except asyncio.CancelledError:
                status = CANCELLED
                raise
            finally:
                places.release()
                self.recorder.request(found, status)

        async def read() -> None:
            async for request in requests:
                await places.acquire()
                task = asyncio.create_task(answer(request))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        reading = asyncio.create_task(read())
        self._reading.add(reading)
        try:
            await asyncio.wait({reading})
            if not reading.cancelled():
                reading.result()
            await asyncio.gather(*tasks)
        finally:
            self._reading.discard(reading)
            for task in (reading, *tasks):
                task.cancel()


def _metadata(context: Any) -> dict[str, str | bytes]:
    """Return the metadata of a call; of a repeated name the first value."""
    return dict(reversed(context.invocation_metadata() or ()))


def _text_of(call: InferCall) -> str:
    """Return the text of the input ``text_input``: one element of type BYTES."""
    request = call.message
    if [each.name for each in request.inputs] != ["text_input"]:
        names = ", ".join(each.name[:32] for each in request.inputs[:16])
        raise RequestError(f"the inputs are {names or 'none'}; expected text_input, once; options are parameters")
    (entry,) = request.inputs
    if entry.datatype != "BYTES" or math.prod(entry.shape) != 1:
        raise RequestError(f"text_input is {entry.datatype[:32]} {list(entry.shape)[:16]}; expected BYTES [1]")
    contents = list(entry.contents.bytes_contents)
    if not contents and len(call.contents) == 1:
        raw = bytes(call.contents[0])
        if int.from_bytes(raw[:4], "little") == len(raw) - 4:
            contents = [raw[4:]]
    if len(contents) != 1:
        raise RequestError("text_input: expected one text, in bytes_contents or as a length of 4 bytes and the text")
    try:
        return bytes(contents[0]).decode()
    except UnicodeDecodeError:
        raise RequestError("text_input is not UTF-8") from None


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as plain values."""
    if not parameters:
        return {}
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "bool_param") for name, value in parameters.items()
    }


async def _abort(context: Any, error: RequestError) -> None:
    trailing = (("retry-after", str(error.retry_after)),) if isinstance(error, Busy) else ()
    await context.abort(_CODES.get(error.status, grpc.StatusCode.INTERNAL), str(error), trailing)
