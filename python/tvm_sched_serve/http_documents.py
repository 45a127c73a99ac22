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
    parameters: dict[str, Any] | None = None
    data: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    """Read when the tensor's type is known (`TensorType.of_document`)."""


class Output(msgspec.Struct):
    """An output tensor that is asked for."""

    name: str
    parameters: dict[str, Any] | None = None


class InferRequest(msgspec.Struct):
    """A request for inference; many clients send null for each optional field that they do not use."""

    inputs: list[Input]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[Output] | None = None


class RegionRequest(msgspec.Struct):
    """A part of a POSIX shared memory segment."""

    key: str
    byte_size: int
    offset: int | None = None


class IndexRequest(msgspec.Struct):
    """Which entries of the index are asked for."""

    ready: bool | None = None


class UnloadParameters(msgspec.Struct):
    """How a model is unloaded."""

    sleep: bool | None = None


class UnloadRequest(msgspec.Struct):
    """Parameters of unloading."""

    parameters: UnloadParameters | None = None


class LoadRequest(msgspec.Struct):
    """Parameters of loading; none are known."""

    parameters: dict[str, Any] | None = None


class TraceRequest(msgspec.Struct):
    """How long a trace is recorded."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_TRACE_SECONDS)] | None = None
    """Default: 1."""


def given(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Return the parameters that are not null."""
    if not parameters:
        return {}
    return {name: value for name, value in parameters.items() if value is not None}
