"""The JSON documents of requests over HTTP, apart from those for generated text."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

MAX_TRACE_SECONDS = 60
"""Longest span of one trace."""


class Input(msgspec.Struct):
    """An input tensor: its numbers in ``data``, or its place in the body or in shared memory in ``parameters``."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = None


class Output(msgspec.Struct):
    """An output tensor that is asked for."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(msgspec.Struct):
    """A request for inference."""

    inputs: list[Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[Output] = []


class RegionRequest(msgspec.Struct):
    """A part of a POSIX shared memory segment."""

    key: str
    byte_size: int
    offset: int = 0


class IndexRequest(msgspec.Struct):
    """Which entries of the index are asked for."""

    ready: bool = False


class UnloadParameters(msgspec.Struct):
    """How a model is unloaded."""

    sleep: bool = False


class UnloadRequest(msgspec.Struct):
    """Parameters of unloading."""

    parameters: UnloadParameters = msgspec.field(default_factory=UnloadParameters)


class LoadRequest(msgspec.Struct):
    """Parameters of loading; none are known."""

    parameters: dict[str, Any] | None = None


class TraceRequest(msgspec.Struct):
    """How long a trace is recorded."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_TRACE_SECONDS)] = 1.0
