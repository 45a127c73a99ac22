"""Servers that others wrote, with ONNX Runtime behind them: `python _serve_peers.py NAME MODEL.onnx PORT SIZES`.

FastAPI takes the bytes of a float32 tensor as the body of a POST and answers with those of the output. LitServe takes and
gives them as base64 in JSON, since its models get no raw bodies. `serve_latency.py --peer-python` starts both, with a Python
that has their packages.
"""

import base64
import sys
from typing import Any

PATHS = {"FastAPI": "/", "LitServe": "/predict"}
"""Path of the request to each server."""


def main() -> None:
    name, model, port, sizes = sys.argv[1:]
    SERVERS[name](_runner(model, tuple(map(int, sizes.split(",")))), int(port))


def _runner(model: str, shape: tuple[int, ...]) -> Any:
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda body: session.run(None, {name: np.frombuffer(body, np.float32).reshape(shape)})[0].tobytes()


def _fastapi(run: Any, port: int) -> None:
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.concurrency import run_in_threadpool

    app = FastAPI()

    async def infer(request: Request) -> Response:
        return Response(await run_in_threadpool(run, await request.body()))

    infer.__annotations__ = {"request": Request}
    app.post("/", response_class=Response, response_model=None)(infer)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False, timeout_keep_alive=75)


if sys.argv[1:2] == ["LitServe"]:  # its processes import the class by name
    import litserve

    class Api(litserve.LitAPI):  # type: ignore[misc]
        """The model, in a process of LitServe's."""

        def setup(self, device: str) -> None:
            """Load the model."""
            self.run = _runner(sys.argv[2], tuple(map(int, sys.argv[4].split(","))))

        def decode_request(self, request: dict[str, str]) -> bytes:
            """Return the tensor's bytes, which are in the JSON document as base64."""
            return base64.b64decode(request["x"])

        def predict(self, x: bytes) -> bytes:
            """Run the model."""
            return bytes(self.run(x))

        def encode_response(self, output: bytes) -> dict[str, str]:
            """Return the bytes as they came."""
            return {"y": base64.b64encode(output).decode()}


def _litserve(run: Any, port: int) -> None:
    litserve.LitServer(Api(), accelerator="cpu").run(
        host="127.0.0.1", port=port, generate_client_file=False, timeout_keep_alive=75
    )


SERVERS = {"FastAPI": _fastapi, "LitServe": _litserve}

if __name__ == "__main__":
    main()
