"""Inference requests, whatever protocol brings them: checks, arrays, and where outputs go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .access import quota_place
from .datatypes import Array, TensorType, raw_bytes
from .execution_queue import ExecutionQueue
from .failures import RequestError
from .repository import Models, Queue
from .request_context import RequestContext
from .shared_memory import Region, SharedMemory

SERVER = "tvm_sched"
PLATFORM = "tvm_sched"
EXTENSIONS = (
    "binary_tensor_data",
    "generate",
    "model_repository",
    "statistics",
    "system_shared_memory",
    "schedule_policy",
)
_LARGEST = 1 << 62


@dataclass(slots=True)
class GivenInput:
    """An input of a request: its bytes, or its numbers in ``values`` or ``document``, or a part of shared memory."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    content: memoryview | None = None
    values: Any = None
    document: msgspec.Raw | None = None


@dataclass(slots=True)
class WantedOutput:
    """An output that a request asks for."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class GivenRequest:
    """A request as it came."""

    model: str
    version: str
    id: str
    parameters: Mapping[str, Any]
    inputs: Sequence[GivenInput]
    outputs: Sequence[WantedOutput]


@dataclass(slots=True)
class Answer:
    """An output with its value, which is in shared memory already if ``region`` is given."""

    type: TensorType
    value: Array
    parameters: Mapping[str, Any]
    region: Region | None = None


@dataclass(slots=True)
class Result:
    """Answer to a request."""

    queue: ExecutionQueue
    id: str
    outputs: list[Answer]
    binary: bool
    """Whether outputs over HTTP are binary where the request does not say it."""


async def infer(
    repository: Models, memory: SharedMemory, request: GivenRequest, context: RequestContext | None = None
) -> Result:
    """Run a request.

    Raises
    ------
    RequestError
    """
    queue = repository.find(request.model, request.version)
    if not isinstance(queue, ExecutionQueue):
        raise RequestError(f"model {request.model!r} generates text, which has no tensors")
    model = queue.model
    if context is not None:
        context.model, context.version = model.name, model.version
    if len(request.id) > 1024:
        raise RequestError("the request's id is longer than 1024 characters")
    wanted = _wanted(model.outputs, request.outputs)
    targets = [_region(memory, output.parameters) for _, output in wanted]
    arrays = _bind(model.inputs, request.inputs, memory)
    parameters = request.parameters
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        if parameters.get(name):
            raise RequestError(f"the model keeps no states, so that {name} means nothing")
    priority = _whole(parameters, "priority")
    timeout = 1e-6 * _whole(parameters, "timeout")
    with quota_place():
        values = await queue.submit(arrays, priority or _MIDDLE, timeout, context)
    answers = []
    for (place, output), target in zip(wanted, targets, strict=True):
        value = values[place]
        if target is not None:
            region, offset, size = target
            region.write(offset, size, raw_bytes(value))
        region_of = target[0] if target is not None else None
        answers.append(Answer(model.outputs[place], value, output.parameters, region_of))
    return Result(queue, request.id, answers, bool(parameters.get("binary_data_output")))


_MIDDLE = 1 << 31
"""Priority of a request that names none: between the highest, 1, and the lowest."""


def _whole(parameters: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = parameters.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise RequestError(f"parameter {name!r}: a whole number from 0 is needed")
    return value


def _wanted(outputs: Sequence[TensorType], asked: Sequence[WantedOutput]) -> list[tuple[int, WantedOutput]]:
    if not asked:
        return [(place, WantedOutput(output.name)) for place, output in enumerate(outputs)]
    places = {output.name: place for place, output in enumerate(outputs)}
    chosen: dict[str, tuple[int, WantedOutput]] = {}
    for each in asked:
        if each.name not in places:
            raise RequestError(f"there is no output {each.name[:64]!r}; the model has {', '.join(places)}")
        if each.name in chosen:
            raise RequestError(f"output {each.name!r} is asked for twice")
        if each.parameters.get("classification"):
            raise RequestError("the classification extension is not available")
        chosen[each.name] = places[each.name], each
    return list(chosen.values())


def _bind(types: Sequence[TensorType], inputs: Sequence[GivenInput], memory: SharedMemory) -> list[Array]:
    """Return the arrays of all inputs in the model's order."""
    by_name = {each.name: each for each in inputs}
    known = [each.name for each in types]
    if len(by_name) != len(inputs) or by_name.keys() != set(known):
        names = ", ".join(each.name[:32] for each in inputs[:16])
        raise RequestError(f"the inputs are {names or 'none'}; expected {', '.join(known) or 'none'}, each once")
    arrays = []
    for kind in types:
        each = by_name[kind.name]
        size = kind.check(each.datatype, each.shape)
        place = _region(memory, each.parameters)
        content = each.content
        if place is not None:
            if content is not None or each.values is not None or each.document is not None:
                raise RequestError(f"input {kind.name!r} has values beside those in shared memory")
            region, offset, length = place
            if length != size:
                raise RequestError(f"input {kind.name!r} has {length} bytes; its shape needs {size}")
            content = region.read(offset, size)
        if content is None:
            if each.document is not None:
                arrays.append(kind.of_document(each.document, each.shape))
            elif each.values is not None:
                arrays.append(kind.of_values(each.values, each.shape))
            else:
                raise RequestError(
                    f"input {kind.name!r} has no values: neither data, nor binary_data_size, nor a shared_memory_region"
                )
            continue
        if content.nbytes != size:
            raise RequestError(f"input {kind.name!r} has {content.nbytes} bytes; its shape needs {size}")
        arrays.append(kind.of_bytes(content, each.shape))
    return arrays


def _region(memory: SharedMemory, parameters: Mapping[str, Any]) -> tuple[Region, int, int] | None:
    if "shared_memory_region" not in parameters:
        return None
    region = memory.find(parameters["shared_memory_region"])
    return region, _whole(parameters, "shared_memory_offset"), _whole(parameters, "shared_memory_byte_size")


def duration(count: int, nanoseconds: int) -> dict[str, int]:
    """Return a duration of the statistics extension."""
    return {"count": count, "ns": nanoseconds}


def statistics(queue: Queue) -> dict[str, Any]:
    """Return the statistics of a version, as the protocol's extension has them."""
    s = queue.statistics
    return {
        "name": queue.model.name,
        "version": queue.model.version,
        "last_inference": s.last_inference_ms,
        "inference_count": sum(rows * counts[0] for rows, counts in s.batches.items()) or s.successes,
        "execution_count": s.executions,
        "inference_stats": {
            "success": duration(s.successes, s.success_ns),
            "fail": duration(s.failures, s.failure_ns),
            "queue": duration(s.successes, s.queue_ns),
            "compute_input": duration(s.successes, s.input_ns),
            "compute_infer": duration(s.successes, s.compute_ns),
            "compute_output": duration(s.successes, s.output_ns),
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": duration(counts[0], counts[1]),
                "compute_infer": duration(counts[0], counts[2]),
                "compute_output": duration(counts[0], counts[3]),
            }
            for rows, counts in sorted(s.batches.items())
        ],
    }


def metadata(repository: Models, queue: Queue) -> dict[str, Any]:
    """Return the metadata of a model."""
    model = queue.model

    def described(tensors: Sequence[TensorType]) -> list[dict[str, Any]]:
        # With batching, any number of rows up to the largest batch is taken.
        rows = (-1,) if queue.joins else ()
        return [{"name": t.name, "datatype": t.datatype, "shape": [*rows, *t.shape[len(rows) :]]} for t in tensors]

    return {
        "name": model.name,
        "versions": repository.versions(model.name) or [model.version],
        "platform": PLATFORM,
        "inputs": described(model.inputs),
        "outputs": described(model.outputs),
    }
