"""KServe's clients against a server; prints what they got as one JSON line.

A process of its own: KServe describes messages of gRPC under the names that tritonclient also uses, and protobuf
refuses both in one process.
"""

import asyncio
import json
import sys

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

HTTP, GRPC = sys.argv[1:]
X = np.arange(-16, 16, dtype=np.float32).reshape(4, 8)


def request(binary, name="small"):
    entry = InferInput(name="x", shape=list(X.shape), datatype="FP32")
    entry.set_data_from_numpy(X, binary_data=binary)
    return InferRequest(model_name=name, infer_inputs=[entry], request_id="seven")


def told(answer):
    (output,) = answer.outputs
    return {
        "id": answer.id, "model": answer.model_name, "output": output.name, "value": output.as_numpy().tolist(),
    }  # fmt: skip


async def main():
    url = f"http://{HTTP}"
    rest = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    remote = InferenceGRPCClient(GRPC)
    found = {"values": [], "errors": []}
    for client, where in ((rest, (url,)), (remote, ())):
        found.setdefault("health", []).extend(
            (
                await client.is_server_live(*where),
                await client.is_server_ready(*where),
                await client.is_model_ready(*where, "small"),
                await client.is_model_ready(*where, "absent"),
            )
        )
    for binary in (False, True):
        found["values"].append(told(await rest.infer(url, request(binary), model_name="small")))
        found["values"].append(told(await remote.infer(request(binary))))
    try:
        await rest.infer(url, request(True, "absent"), model_name="absent")
    except httpx.HTTPStatusError as error:
        found["errors"].append([error.response.status_code, str(error)])
    try:
        await remote.infer(request(True, "absent"))
    except grpc.RpcError as error:
        found["errors"].append([error.code().name, error.details()])
    await rest.close()
    await remote.close()
    print(json.dumps(found))


asyncio.run(main())
