"""gRPC's health checking, which Kubernetes' probes, load balancers and clients call: ``grpc.health.v1.Health``."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import grpc

from .access import Access
from .failures import Unauthorized
from .grpc_server import SERVICE, messages
from .repository import Models

_PACKAGE = "grpc.health.v1"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
"""States of the interface (``ServingStatus``)."""


class HealthService:
    """Tells whether the server, its inference service, or one of its models takes requests.

    The names are ``""`` and ``inference.GRPCInferenceService``, which need no token, and those of the models.

    Parameters
    ----------
    models : Models
    access : Access
    """

    def __init__(self, models: Models, access: Access) -> None:
        self._models, self._access = models, access
        self._watching: set[asyncio.Task[None]] = set()

    def handler(self) -> Any:
        """Return what a `grpc.aio.Server` is given."""
        known = messages()
        kinds = {
            "request_deserializer": known[f"{_PACKAGE}.HealthCheckRequest"].FromString,
            "response_serializer": known[f"{_PACKAGE}.HealthCheckResponse"].SerializeToString,
        }
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, **kinds),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, **kinds),
        }
        return grpc.method_handlers_generic_handler(f"{_PACKAGE}.Health", methods)

    def end(self) -> None:
        """End all watches, which would never end by themselves."""
        for task in self._watching:
            task.cancel()

    async def state(self, name: str) -> int:
        """Return the state of a service or model."""
        if name in ("", SERVICE) or self._models.has(name):
            return SERVING if self._models.ready else NOT_SERVING
        known = await asyncio.to_thread(self._models.known_versions, name)
        return NOT_SERVING if known else SERVICE_UNKNOWN

    async def _check(self, request: Any, context: Any) -> Any:
        await self._guard(request.service, context)
        state = await self.state(request.service)
        if state == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service or model {request.service[:128]!r}")
        return messages()[f"{_PACKAGE}.HealthCheckResponse"](status=state)

    async def _watch(self, request: Any, context: Any) -> None:
        await self._guard(request.service, context)

        async def watch() -> None:
            told = None
            async with aclosing(self._models.changes()) as changes:
                async for _ in changes:
                    state = await self.state(request.service)
                    if state != told:
                        await context.write(messages()[f"{_PACKAGE}.HealthCheckResponse"](status=state))
                    told = state

        watching = asyncio.create_task(watch())
        self._watching.add(watching)
        try:
            await asyncio.wait({watching})
        finally:
            self._watching.discard(watching)
            watching.cancel()

    async def _guard(self, name: str, context: Any) -> None:
        """Ask for a token where the names of models could be found out."""
        if name in ("", SERVICE):
            return
        token = dict(context.invocation_metadata() or ()).get("authorization", b"")
        try:
            self._access.check(token if isinstance(token, bytes) else token.encode(), administration=False)
        except Unauthorized as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
