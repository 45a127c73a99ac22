"""uvicorn's protocol with what it lacks for real clients.

It limits headers and the time to send them, receives bodies in place, ignores offers to upgrade, keeps trailers apart from
headers, and reads what a client still sends when it was refused.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEADER_BYTES = 64 << 10
HEADERS = 256
RECEIVE_INTO = "tvm_sched.receive_into"
"""Name of an extension of ASGI: receives what is left of a body into memory that the application gives."""
_LINGER_SECONDS = 5.0
"""How long a connection that ends before its request has come is still read."""
_FRAMING = (b"content-length", b"transfer-encoding")


class TooManyHeadersError(Exception):
    """Refused with the status 400, by uvicorn's parser."""


class _BodyReceiver(asyncio.BufferedProtocol):
    """Receives the rest of a body in place of the connection's protocol, without the three copies that the parser makes."""

    def __init__(self, protocol: HttpToolsProtocol, cycle: Any, body: memoryview) -> None:
        self._protocol, self._cycle, self._left = protocol, cycle, body
        self.done: asyncio.Future[None] = protocol.loop.create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._left

    def buffer_updated(self, nbytes: int) -> None:
        self._left = self._left[nbytes:]
        if len(self._left):
            return
        self._cycle.more_body = False
        self._protocol.parser = _parser(self._protocol)  # the earlier one is in the middle of this body
        self._protocol.transport.set_protocol(self._protocol)
        if not self.done.done():
            self.done.set_result(None)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)
        if not self.done.done():
            self.done.set_exception(ConnectionResetError())


class _LingeringTransport:
    """Closes a connection when the client has sent its body, or after a while.

    If unread data were left, the system would reset the connection, and the client might lose the answer.
    """

    def __init__(self, protocol: Any, cycle: RequestResponseCycle) -> None:
        self._protocol, self._cycle = protocol, cycle
        self.write, self.is_closing = protocol.transport.write, protocol.transport.is_closing

    def close(self) -> None:
        if self._cycle.more_body and not self._cycle.disconnected:
            self._protocol.linger()
        else:
            self._protocol.transport.close()


def _parser(protocol: HttpToolsProtocol) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
    return parser


async def _send_unasked(cycle: RequestResponseCycle, message: Any) -> None:
    """Send an answer; end the connection if the client still waits for "100 Continue".

    It may leave out the body, so that nobody could tell where its next request begins.
    """
    if cycle.waiting_for_100_continue:
        cycle.keep_alive = False
    await RequestResponseCycle.send(cycle, message)


def limited_protocol(seconds: float) -> type[HttpToolsProtocol]:
    """Return a protocol that closes connections whose headers do not come within some seconds."""

    class LimitedProtocol(HttpToolsProtocol):
        _bytes = _count = 0
        _timer: asyncio.TimerHandle | None = None
        _in_body = False
        """Whether the head of the current message has come; header fields after it are trailers."""
        _repeats_head = False
        """Whether the parser reads a head that stands for one which was read."""
        _lingers = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start(seconds)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._unset_keepalive_if_required()
            while data:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    (read,) = upgrade.args
                    data = data[read:]
                    self._ignore_upgrade()
                except httptools.HttpParserError:
                    self.send_400_response("Invalid HTTP request received.")
                    return

        def on_message_begin(self) -> None:
            if self._repeats_head:
                return
            self._bytes = self._count = 0
            self._in_body = False
            self._start(seconds)
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            if self._repeats_head:
                return
            self._add(url)
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._repeats_head:
                return
            self._count += 1
            self._add(name + value)
            if not self._in_body:  # trailers may not change what was checked in the head
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            if self._repeats_head:
                return
            self._stop()
            self._in_body = True
            super().on_headers_complete()
            extensions: dict[str, Any] = {RECEIVE_INTO: partial(self._receive_into, self.cycle)}
            self.scope["extensions"] = extensions
            if self.scope["method"] != "GET":
                self.cycle.transport = _LingeringTransport(self, self.cycle)  # type: ignore[assignment]
            if self.cycle.waiting_for_100_continue:
                self.cycle.send = partial(_send_unasked, self.cycle)  # type: ignore[method-assign]

        def on_message_complete(self) -> None:
            if self.parser.should_upgrade() and self._framing():
                return  # the body is still to come
            self._stop()
            super().on_message_complete()
            if self._lingers:
                self.transport.close()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            current = self.cycle
            if current.response_complete and current.more_body and not self._lingers:
                self._start(seconds)  # for the rest of the body, which is read and dropped

        def linger(self) -> None:
            """Read and drop what comes until the request ends, then close the connection."""
            self._lingers = True
            self._start(min(seconds, _LINGER_SECONDS))
            self.flow.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()

        def _framing(self) -> bytes:
            """Return the header lines which say how long the current body is."""
            return b"".join(b"%s: %s\r\n" % field for field in self.headers if field[0] in _FRAMING)

        def _ignore_upgrade(self) -> None:
            """Read on as HTTP/1.1, as RFC 9110 (7.8) allows.

            httptools takes what follows the head for another protocol. Another parser is given a head with the same
            framing, so that it reads the body.
            """
            self.parser = _parser(self)
            framing = self._framing()
            if framing:
                self._repeats_head = True
                self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % framing)
                self._repeats_head = False

        async def _receive_into(self, cycle: Any, body: memoryview) -> None:
            """Receive a body of known length into memory of that length.

            Raises
            ------
            ConnectionError
                The client closed the connection.
            """
            begun = len(cycle.body)
            body[:begun] = cycle.body
            cycle.body.clear()
            cycle.message_event.clear()
            if not cycle.more_body:
                return
            if cycle.disconnected:
                raise ConnectionResetError
            if cycle.waiting_for_100_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                cycle.waiting_for_100_continue = False
            receiver = _BodyReceiver(self, cycle, body[begun:])
            self.transport.set_protocol(receiver)
            self.flow.resume_reading()
            try:
                await receiver.done
            except BaseException:
                # What the client sends is the rest of this body; it is not read into memory that was given back.
                cycle.keep_alive, cycle.transport = False, self.transport
                raise

        def _add(self, part: bytes) -> None:
            self._bytes += len(part)
            if self._bytes > HEADER_BYTES or self._count > HEADERS:
                raise TooManyHeadersError

        def _start(self, limit: float) -> None:
            """Close the connection after some seconds unless `_stop` is called."""
            self._stop()
            self._timer = self.loop.call_later(limit, self.transport.close)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return LimitedProtocol
