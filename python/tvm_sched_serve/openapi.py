"""What the server offers over HTTP, as OpenAPI 3.1 describes it: ``/openapi.json``."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from tvm_sched_runtime import __version__

from .http_documents import IndexRequest, InferRequest, LoadRequest, RegionRequest, TraceRequest, UnloadRequest
from .text_protocol import ChatRequest, CompletionRequest, GenerateRequest

Schema = dict[str, Any]
_TEXT, _COUNT, _FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(required: dict[str, Schema], **optional: Schema) -> Schema:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TENSOR = _object({"name": _TEXT, "datatype": _TEXT, "shape": _list({"type": "integer"})})
_DURATION = _object({"count": _COUNT, "ns": _COUNT})
_PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_STATISTICS = _object(
    {
        "name": _TEXT, "version": _TEXT, "last_inference": _COUNT, "inference_count": _COUNT, "execution_count": _COUNT,
        "inference_stats": _object(dict.fromkeys(_PARTS, _DURATION)), "batch_stats": _list({"type": "object"}),
    }
)  # fmt: skip
_ANSWERS: dict[str, Schema] = {
    "Empty": {"type": "object", "maxProperties": 0},
    "Live": _object({"live": _FLAG}),
    "Ready": _object({"ready": _FLAG}, name=_TEXT),
    "Server": _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
    "Model": _object(
        {
            "name": _TEXT, "versions": _list(_TEXT), "platform": _TEXT, "inputs": _list(_TENSOR),
            "outputs": _list(_TENSOR),
        }
    ),
    "Configuration": _object(
        {"name": _TEXT, "platform": _TEXT, "max_batch_size": _COUNT, "input": _list({"type": "object"}),
         "output": _list({"type": "object"}), "instance_group": _list({"type": "object"})}
    ),
    "Statistics": _object({"model_stats": _list(_STATISTICS)}),
    "Index": _list(_object({"name": _TEXT, "version": _TEXT, "state": {"enum": ["READY", "UNAVAILABLE"]}, "reason": _TEXT})),
    "Outputs": _object(
        {"model_name": _TEXT, "model_version": _TEXT, "outputs": _list(_TENSOR)}, id=_TEXT
    ),
    "Regions": _list(_object({"name": _TEXT, "key": _TEXT, "offset": _COUNT, "byte_size": _COUNT})),
    "Generated": _object({"model_name": _TEXT, "model_version": _TEXT, "text_output": _TEXT}, details={"type": "object"}),
    "OpenAiModel": _object({"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT}),
    "OpenAiModels": _object({"object": {"const": "list"}, "data": _list(_named("OpenAiModel"))}),
    "Completion": _object(
        {"id": _TEXT, "object": _TEXT, "created": _COUNT, "model": _TEXT, "choices": _list({"type": "object"}),
         "usage": {"type": "object"}}
    ),
    "Trace": _object({"traceEvents": _list({"type": "object"}), "displayTimeUnit": _TEXT, "otherData": {"type": "object"}}),
    "Error": _object({"error": _TEXT}),
    "OpenAiError": _object({"error": _object({"message": _TEXT, "type": _TEXT})}),
}  # fmt: skip
_REQUESTS = {
    kind.__name__: kind
    for kind in (
        InferRequest, RegionRequest, IndexRequest, LoadRequest, UnloadRequest, TraceRequest, GenerateRequest,
        CompletionRequest, ChatRequest,
    )
}  # fmt: skip
_EVENTS = {"text/event-stream": {"schema": _TEXT}}
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_REFUSALS = {
    "infer": (400, 401, 404, 408, 413, 422, 429, 500, 503, 504), "text": (400, 401, 404, 408, 413, 429, 500, 503, 504),
    "read": (401, 404), "memory": (400, 401, 404, 408, 413), "administer": (400, 401, 403, 404, 408, 413, 500, 503),
}  # fmt: skip
"""Statuses of errors by the kind of operation."""


@cache
def openapi_document() -> dict[str, Any]:
    """Return the document; its requests are described by the structures that read them."""
    _, components = msgspec.json.schema_components(_REQUESTS.values(), ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}

    def add(
        path: str, method: str, name: str, answer: str, kind: str = "", body: str = "", more: Schema | None = None,
        optional: bool = False,
    ) -> None:  # fmt: skip
        error = "OpenAiError" if path.startswith("/v1/") else "Error"
        operation: dict[str, Any] = {
            "operationId": name,
            "responses": {"200": _content(_named(answer), more)}
            | {str(status): _content(_named(error)) for status in _REFUSALS.get(kind, ())},
        }
        if answer == "Ready":
            operation["responses"]["503"] = _content(_named("Ready"))
        places = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        operation["parameters"] = [{"name": each, "in": "path", "required": True, "schema": _TEXT} for each in places]
        if body:
            operation["requestBody"] = {
                "required": not optional, "content": {"application/json": {"schema": _named(body)}}
            }  # fmt: skip
        if kind:
            operation["security"] = [{}, {"token": []}]
        paths.setdefault(path, {})[method] = operation

    add("/v2", "get", "server", "Server", "read")
    add("/v2/health/live", "get", "serverLive", "Live")
    add("/v2/health/ready", "get", "serverReady", "Ready")
    add("/v2/models/stats", "get", "allStatistics", "Statistics", "read")
    for model, suffix in (("/v2/models/{name}", ""), ("/v2/models/{name}/versions/{version}", "OfVersion")):
        add(model, "get", f"model{suffix}", "Model", "read")
        add(f"{model}/ready", "get", f"modelReady{suffix}", "Ready", "read")
        add(f"{model}/config", "get", f"configuration{suffix}", "Configuration", "read")
        add(f"{model}/stats", "get", f"statistics{suffix}", "Statistics", "read")
        add(f"{model}/infer", "post", f"infer{suffix}", "Outputs", "infer", "InferRequest", _BINARY)
        add(f"{model}/generate", "post", f"generate{suffix}", "Generated", "text", "GenerateRequest")
        add(
            f"{model}/generate_stream",
            "post",
            f"generateStream{suffix}",
            "Generated",
            "text",
            "GenerateRequest",
            _EVENTS,
        )
    add("/v1/models", "get", "openAiModels", "OpenAiModels", "read")
    add("/v1/models/{name}", "get", "openAiModel", "OpenAiModel", "read")
    add("/v1/completions", "post", "completions", "Completion", "text", "CompletionRequest", _EVENTS)
    add("/v1/chat/completions", "post", "chatCompletions", "Completion", "text", "ChatRequest", _EVENTS)
    add("/v2/repository/index", "post", "index", "Index", "memory", "IndexRequest", optional=True)
    for act in ("load", "unload"):
        path = f"/v2/repository/models/{{name}}/{act}"
        add(path, "post", act, "Empty", "administer", f"{act.title()}Request", optional=True)
    add("/v2/trace", "post", "trace", "Trace", "administer", "TraceRequest", optional=True)
    memory = "/v2/systemsharedmemory"
    add(f"{memory}/status", "get", "allRegions", "Regions", "memory")
    add(f"{memory}/region/{{name}}/status", "get", "region", "Regions", "memory")
    add(f"{memory}/region/{{name}}/register", "post", "register", "Empty", "memory", "RegionRequest")
    add(f"{memory}/region/{{name}}/unregister", "post", "unregister", "Empty", "memory")
    add(f"{memory}/unregister", "post", "unregisterAll", "Empty", "memory")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tvm-sched serve: Open Inference Protocol 2 with extensions, and OpenAI's completions",
            "version": __version__,
        },
        "paths": paths,
        "components": {
            "schemas": {**components, **_ANSWERS},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _content(schema: Schema, more: Schema | None = None) -> dict[str, Any]:
    return {"description": "", "content": {"application/json": {"schema": schema}, **(more or {})}}
