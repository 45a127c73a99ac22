"""uvicorn's protocol with what it lacks: limits of headers and of the time to send them, and bodies received in place."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES = 64 << 10
HEADERS = 256
RECEIVE_INTO = "tvm_sched.receive_into"
"""Name of an extension of ASGI: receives what is left of a body into memory that the application gives."""


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
        parser = httptools.HttpRequestParser(self._protocol)  # the earlier one is in the middle of this body
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._protocol.parser = parser
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


def limited_protocol(seconds: float) -> type[HttpToolsProtocol]:
    """Return a protocol that closes connections whose headers do not come within some seconds."""

    class LimitedProtocol(HttpToolsProtocol):
        _bytes = _count = 0
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._timer = self.loop.call_later(seconds, transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            self._bytes = self._count = 0
            self._stop()
            self._timer = self.loop.call_later(seconds, self.transport.close)
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            self._add(url)
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count += 1
            self._add(name + value)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._stop()
            super().on_headers_complete()
            extensions: dict[str, Any] = {RECEIVE_INTO: partial(self._receive_into, self.cycle)}
            self.scope["extensions"] = extensions

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
                cycle.keep_alive = False  # what the client sends is the rest of this body
                raise

        def _add(self, part: bytes) -> None:
            self._bytes += len(part)
            if self._bytes > HEADER_BYTES or self._count > HEADERS:
                raise TooManyHeadersError

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return LimitedProtocol
