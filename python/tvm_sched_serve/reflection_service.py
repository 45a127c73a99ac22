"""gRPC's server reflection: tells grpcurl and its like which services and messages there are, so that they need no files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
from google.protobuf import descriptor_pb2

from .grpc_server import description, messages

_PACKAGE = "grpc.reflection.v1"
_NAMES = (f"{_PACKAGE}.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The interface, and its older name, for which many clients ask; the messages are the same on the wire."""


def reflection_handlers() -> Iterator[Any]:
    """Yield what a `grpc.aio.Server` is given; nobody needs a token to read an interface that is public."""
    known = messages()
    method = grpc.stream_stream_rpc_method_handler(
        _answers,
        request_deserializer=known[f"{_PACKAGE}.ServerReflectionRequest"].FromString,
        response_serializer=known[f"{_PACKAGE}.ServerReflectionResponse"].SerializeToString,
    )
    for name in _NAMES:
        yield grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})


async def _answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    async for request in requests:
        yield _answer(request)


def _answer(request: Any) -> Any:
    answer = messages()[f"{_PACKAGE}.ServerReflectionResponse"](valid_host=request.host, original_request=request)
    pool, files = description()
    asked = request.WhichOneof("message_request")
    try:
        if asked == "list_services":
            for name in files:
                for service in pool.FindFileByName(name).services_by_name.values():
                    answer.list_services_response.service.add(name=service.full_name)
        elif asked in _FINDERS:
            found = [getattr(pool, _FINDERS[asked])(getattr(request, asked))]
            for file in found:  # grows by what each file imports
                found += [each for each in file.dependencies if each not in found]
                described = descriptor_pb2.FileDescriptorProto()
                file.CopyToProto(described)
                answer.file_descriptor_response.file_descriptor_proto.append(described.SerializeToString())
        elif asked == "all_extension_numbers_of_type":
            kind = pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
            answer.all_extension_numbers_response.base_type_name = kind.full_name  # no message here has extensions
        else:
            _refuse(answer, grpc.StatusCode.NOT_FOUND if asked else grpc.StatusCode.INVALID_ARGUMENT)
    except KeyError:
        _refuse(answer, grpc.StatusCode.NOT_FOUND)
    return answer


_FINDERS = {"file_by_filename": "FindFileByName", "file_containing_symbol": "FindFileContainingSymbol"}
"""The pool's method for each kind of request for a file."""


def _refuse(answer: Any, code: grpc.StatusCode) -> None:
    answer.error_response.error_code = code.value[0]
    answer.error_response.error_message = code.value[1]
