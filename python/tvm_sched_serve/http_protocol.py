"""uvicorn's protocol with limits that it lacks: the size of headers, and the time to send them."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES = 64 << 10
HEADERS = 256


class TooManyHeadersError(Exception):
    """Refused with the status 400, by uvicorn's parser."""


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

        def _add(self, part: bytes) -> None:
            self._bytes += len(part)
            if self._bytes > HEADER_BYTES or self._count > HEADERS:
                raise TooManyHeadersError

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return LimitedProtocol
