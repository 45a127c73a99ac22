"""Conformance: requests that schemathesis makes from the server's OpenAPI document, good ones and bad ones."""

import pytest

pytest.importorskip("schemathesis")
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from thorough import examples
from tvm_sched_serve.openapi import openapi_document

load_all_checks()
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = [
    pytest.param(path, method, id=operation["operationId"], marks=[pytest.mark.thorough] if "{version}" in path else [])
    for path, methods in openapi_document()["paths"].items()
    for method, operation in methods.items()
]


@pytest.fixture(scope="module")
def schema(server):
    return schemathesis.openapi.from_url(f"http://{server.http}/openapi.json")


def test_document_is_complete(schema):
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) == len(OPERATIONS) > 30


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_answers_are_what_the_document_says(schema, path, method):
    operation = schema[path][method]
    known = {"name": "small", "version": "1"} if "/models/" in path else {"name": "part"}
    places = {name: value for name, value in known.items() if f"{{{name}}}" in path}
    strategies = [operation.as_strategy()]
    if places:
        strategies.append(operation.as_strategy(path_parameters=places))
    if "requestBody" in openapi_document()["paths"][path][method]:
        strategies.append(operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=places))
    codes = set()
    for strategy in strategies:

        @given(case=strategy)
        @settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def ask(case):
            response = case.call_and_validate(checks=CHECKS)
            codes.add(response.status_code)

        ask()
    assert codes
    print(path, method, codes)
