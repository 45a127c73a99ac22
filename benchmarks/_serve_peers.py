"""Servers that others wrote, with ONNX Runtime behind them: `python _serve_peers.py NAME MODEL.onnx PORT SIZES`.

FastAPI and Ray Serve take the bytes of a float32 tensor as the body of a POST and answer with the output's. LitServe and
BentoML take and give them as base64 in JSON, since their models get no raw bodies. MLServer takes the Open Inference
Protocol over gRPC, with raw contents. `serve_latency.py --peer-python` starts each with a Python that has its package.
"""

import base64
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

_GIVEN = "TVM_SCHED_PEER"
"""Environment variable that tells model and sizes to processes in which a server imports this file."""


def main() -> None:
    name, model, port, sizes = sys.argv[1:]
    os.environ[_GIVEN] = f"{model}|{sizes}"
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    SERVERS[name](int(port))


def _given_runner() -> Any:
    model, sizes = os.environ[_GIVEN].split("|")
    return _runner(model, tuple(map(int, sizes.split(","))))


def _runner(model: str, shape: tuple[int, ...]) -> Any:
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda body: session.run(None, {name: np.frombuffer(body, np.float32).reshape(shape)})[0].tobytes()


def _fastapi(port: int) -> None:
    run = _given_runner()
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
            self.run = _given_runner()

        def decode_request(self, request: dict[str, str]) -> bytes:
            """Return the tensor's bytes, which are in the JSON document as base64."""
            return base64.b64decode(request["x"])

        def predict(self, x: bytes) -> bytes:
            """Run the model."""
            return bytes(self.run(x))

        def encode_response(self, output: bytes) -> dict[str, str]:
            """Return the bytes as they came."""
            return {"y": base64.b64encode(output).decode()}


def _litserve(port: int) -> None:
    litserve.LitServer(Api(), accelerator="cpu").run(
        host="127.0.0.1", port=port, generate_client_file=False, timeout_keep_alive=75
    )


if __name__ == "_serve_peers" and os.environ.get("TVM_SCHED_PEER_KIND") == "BentoML":
    import bentoml

    @bentoml.service
    class Bento:
        """The model, in a process of BentoML's."""

        def __init__(self) -> None:
            self.run = _given_runner()

        @bentoml.api  # type: ignore[misc]
        def predict(self, x: str) -> str:
            """Return the output of a tensor, both as base64."""
            return base64.b64encode(self.run(base64.b64decode(x))).decode()


def _bentoml(port: int) -> None:
    os.environ["TVM_SCHED_PEER_KIND"] = "BentoML"
    command = [
        sys.executable,
        "-m",
        "bentoml",
        "serve",
        "_serve_peers:Bento",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    os.execv(sys.executable, command)


if __name__ == "_serve_peers" and os.environ.get("TVM_SCHED_PEER_KIND") == "MLServer":
    import numpy as np
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec
    from mlserver.types import InferenceRequest, InferenceResponse

    class Served(MLModel):  # type: ignore[misc]
        """The model, in MLServer's process."""

        async def load(self) -> bool:
            """Load the model."""
            self.run = _given_runner()
            return True

        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            """Run the model."""
            value = NumpyCodec.decode_input(payload.inputs[0])
            output = np.frombuffer(self.run(value.astype(np.float32).tobytes()), np.float32).reshape(1, -1)
            return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", output)])


def _mlserver(port: int) -> None:
    os.environ["TVM_SCHED_PEER_KIND"] = "MLServer"
    folder = Path(tempfile.mkdtemp())
    name = Path(os.environ[_GIVEN].split("|")[0]).stem
    settings = {"host": "127.0.0.1", "http_port": 0, "grpc_port": port, "metrics_port": 0, "parallel_workers": 0}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps({"name": name, "implementation": "_serve_peers.Served"}))
    program = Path(sys.executable).with_name("mlserver")
    os.execv(sys.executable, [sys.executable, str(program), "start", str(folder)])


def _ray_serve(port: int) -> None:
    import signal

    import ray
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response

    class Deployed:
        def __init__(self) -> None:
            self.run = _given_runner()

        async def __call__(self, request: Request) -> Response:
            return Response(self.run(await request.body()))

    os.environ.update(RAY_worker_niceness="0")  # Ray's default is 15, behind everything else on the machine
    ray.init(address="local", include_dashboard=False)  # not one that happens to run here
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(serve.deployment(Deployed).bind(), route_prefix="/")
    signal.pause()


SERVERS = {
    "BentoML": _bentoml, "FastAPI": _fastapi, "LitServe": _litserve, "MLServer": _mlserver, "Ray Serve": _ray_serve,
}  # fmt: skip

if __name__ == "__main__":
    main()
