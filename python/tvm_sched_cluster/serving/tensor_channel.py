"""Messages with tensors over a TCP connection, in an event loop; requests and results of stages travel in them.

A message is its length (4 bytes, little-endian), its fields as MessagePack, and the bytes of its tensors one after the
other. Whoever connects sends the deployment's token first.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import math
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from tvm_sched_runtime.errors import BusyError, FatalRequestError, InputError, ServingError, TvmSchedError
from tvm_sched_runtime.runtime.tensors import ALIGNMENT, numpy_dtype

Array = np.ndarray[Any, Any]
_LENGTH = struct.Struct("<I")
_FIELD_BYTES, _HELLO_BYTES = 1 << 16, 1 << 10
_SOCKET_BYTES = 4 << 20
_RECEIVE_BYTES = 64 << 10
"""Messages that are smaller are sent in one piece and received together, and their tensors copied."""
_DEAD_MILLISECONDS = 3000
"""A machine that acknowledges nothing for so long is taken for dead; a stopped process is not, since its machine does."""
_ERRORS = {error.__name__: error for error in (BusyError, FatalRequestError, InputError, ServingError)}


class TensorType(msgspec.Struct, array_like=True, frozen=True):
    """Type and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]


class Message(msgspec.Struct, array_like=True, frozen=True):
    """What one end tells the other.

    ``kind`` is one of ``hello`` (``text``: token), ``run`` (to the entry with ``names`` of the inputs and ``seconds`` that
    it may take), ``cancel``, ``beat``. Answers are ``begun``, ``done`` (``seconds`` of computing), ``failed`` (``text``:
    class and message of the error), ``cancelled``, ``alive`` (``seconds`` of the run that is under way).

    Gateways ask the entry: ``follow`` (``text``: the earliest generation of which the gateway may have requests, or 0, and
    its name), which it answers with ``serves`` (a tensor of bytes: the generation), then and at each rollout, until they say
    ``switched`` (``request``: generation); ``find``, ``end`` and ``why`` (``text``:
    generation, stage and replica; for ``end`` also address and port), answered with ``told`` or ``gone``.
    """

    kind: str
    request: int = 0
    text: str = ""
    seconds: float = 0.0
    names: tuple[str, ...] = ()
    tensors: tuple[TensorType, ...] = ()


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Message)


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name


class Endpoint(msgspec.Struct, frozen=True):
    """Where somebody listens, and the token that lets in."""

    host: str
    port: int
    token: str


class Channel(asyncio.BufferedProtocol):
    """One end of a connection.

    Parameters
    ----------
    receive : callable
        Called with the channel, a message and its tensors. They are in memory of their own, aligned for kernels.
    lost : callable
        Called once with the channel when the connection is closed.
    limit : int
        Most bytes of a message's tensors.
    token : str, optional
        Connections whose first message does not bring it are closed; for the end that listens.
    """

    def __init__(
        self,
        receive: Callable[[Channel, Message, list[Array]], None],
        lost: Callable[[Channel], None],
        limit: int,
        token: str | None = None,
    ) -> None:
        self._receive, self._lost, self._limit, self._token = receive, lost, limit, token
        self._buffers = self._read()
        self._view = next(self._buffers)
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self.ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._aborted = False

    @property
    def closed(self) -> bool:
        """Whether nothing is sent or received any more."""
        return self.ended.is_set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is of another class
        self._transport.set_write_buffer_limits(0)  # uvloop would send at the end of its turn, after a run here
        found = transport.get_extra_info("socket")
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            found.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MILLISECONDS)
        if self._aborted:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.ended.set()
        self._lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes belong: what remains of a large tensor is received in its place."""
        return self._view if len(self._view) >= _RECEIVE_BYTES else self._received

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes."""
        if len(self._view) >= _RECEIVE_BYTES:
            self._fill(nbytes)
            return
        content = self._received[:nbytes]
        while len(content) and not self._aborted:
            count = min(len(content), len(self._view))
            self._view[:count] = content[:count]
            content = content[count:]
            self._fill(count)

    def _fill(self, count: int) -> None:
        """Note that bytes of the next buffer are there."""
        self._view = self._view[count:]
        try:
            while not len(self._view):
                self._view = next(self._buffers)
        except (ValueError, TypeError, msgspec.MsgspecError, InputError, StopIteration):
            self.abort()

    def send(self, message: Message, tensors: Sequence[Array] = ()) -> None:
        """Send a message; what the connection does not take at once waits in memory."""
        if self.closed or self._transport is None:
            return
        arrays = [np.ascontiguousarray(tensor) for tensor in tensors]
        if arrays:
            types = tuple([TensorType(_name(array.dtype), array.shape) for array in arrays])
            message = Message(
                message.kind, message.request, message.text, message.seconds, message.names, types
            )  # `structs.replace` takes five times as long
        fields = _ENCODER.encode(message)
        head = _LENGTH.pack(len(fields)) + fields
        parts = [array.reshape(-1).view(np.uint8).data for array in arrays if array.nbytes]
        if len(head) + sum(part.nbytes for part in parts) < _RECEIVE_BYTES:
            self._transport.write(b"".join((head, *parts)))
            return
        self._transport.write(head)
        for part in parts:  # before Python 3.12, asyncio's `writelines` would join them
            self._transport.write(part)

    def abort(self) -> None:
        """Close the connection at once."""
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    def _read(self) -> Iterator[memoryview]:
        """Yield the buffers that are to be filled, one after the other."""
        allowed = self._token is None
        while True:
            length = bytearray(_LENGTH.size)
            yield memoryview(length)
            (size,) = _LENGTH.unpack(length)
            if not 0 < size <= (_FIELD_BYTES if allowed else _HELLO_BYTES):
                raise ValueError
            fields = bytearray(size)
            yield memoryview(fields)
            message = _DECODER.decode(fields)
            if not allowed:
                if (
                    message.kind != "hello"
                    or message.tensors
                    or not hmac.compare_digest(message.text, self._token or "")
                ):
                    raise ValueError
                allowed = True
                continue
            left = self._limit
            tensors = []
            for each in message.tensors:
                dtype = numpy_dtype(each.dtype)
                if dtype.hasobject:
                    raise ValueError
                count = math.prod(each.shape) * dtype.itemsize
                left -= count
                if min(each.shape, default=0) < 0 or left < 0:
                    raise ValueError
                memory = np.empty(count + ALIGNMENT, np.uint8)
                begin = -memory.ctypes.data % ALIGNMENT
                tensor = memory[begin : begin + count]
                yield tensor.data
                tensors.append(tensor.view(dtype).reshape(each.shape))
            self._receive(self, message, tensors)


_CONNECT_SECONDS = 5.0


async def connect(
    endpoint: Endpoint,
    receive: Callable[[Channel, Message, list[Array]], None],
    lost: Callable[[Channel], None],
    limit: int,
) -> Channel:
    """Connect to who listens there, and send the token.

    Raises
    ------
    OSError
    """
    loop = asyncio.get_running_loop()
    opened = loop.create_connection(lambda: Channel(receive, lost, limit), endpoint.host, endpoint.port)
    try:
        _, channel = await asyncio.wait_for(opened, _CONNECT_SECONDS)
    except asyncio.TimeoutError:
        raise ConnectionError(f"{endpoint.host} does not answer") from None
    channel.send(Message("hello", text=endpoint.token))
    return channel


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for connections: uvloop's if it is installed; a hop takes a sixth less processor time."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def failed(request: int, error: TvmSchedError) -> Message:
    """Return the message of an error."""
    known = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), ServingError.__name__)
    return Message("failed", request, f"{known} {error}")


def error_of(message: Message) -> TvmSchedError:
    """Return the error of a message."""
    name, _, text = message.text.partition(" ")
    return _ERRORS.get(name, ServingError)(text)


def tensor_bytes(shapes: Sequence[tuple[str, Sequence[int]]]) -> int:
    """Return the bytes of tensors of some types and shapes."""
    return sum(math.prod(shape) * numpy_dtype(dtype).itemsize for dtype, shape in shapes)
