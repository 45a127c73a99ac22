"""A server in a process of its own, and a small model whose values are whole numbers, so that they are exact."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from inference_server_values import copy_artifact, weights

from onnx_text import onnx_model
from tvm_sched_runtime.core_library import library_path

pytest.importorskip("uvicorn")
pytest.importorskip("onnx")


SOURCES = str(Path(__file__).resolve().parents[2] / "python")


def compile_model(path, factor=1):
    from tvm_sched.relax import compile

    text = "(float[n, 8] x) => (float[n, 4] activations) { product = MatMul(x, w)  activations = Relu(product) }"
    model = onnx_model(text, {"w": factor * weights()})
    compile(model, "cpu1", input_shapes={"x": ({1, 4}, 8)}).export(path)


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory):
    """The model, and the same with weights twice as large."""
    folder = tmp_path_factory.mktemp("artifacts")
    for factor in (1, 2):
        compile_model(folder / f"by{factor}.so", factor)
    return folder


@pytest.fixture(scope="session")
def repository(artifacts, tmp_path_factory):
    """A folder with the model `small`, and `versioned` in two versions."""
    folder = tmp_path_factory.mktemp("repository")
    copy_artifact(artifacts / "by1.so", folder / "small.so")
    copy_artifact(artifacts / "by1.so", folder / "versioned" / "1" / "model.so")
    copy_artifact(artifacts / "by2.so", folder / "versioned" / "2" / "model.so")
    return folder


@pytest.fixture(scope="session")
def language_artifact(tmp_path_factory):
    """A small language model with a tokenizer of bytes and a chat template, for two texts at once."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tvm_sched_bench.testing.language_models import save_model, save_tokenizer
    from tvm_sched_language import GenerationOptions, compile_language_model

    template = (
        "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ bos_token }}"
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"
    )
    folder = save_model("llama", tmp_path_factory.mktemp("language"), vocab_size=259)
    save_tokenizer(folder, template)
    path = tmp_path_factory.mktemp("artifact") / "model.so"
    options = GenerationOptions(context=64, pieces=(4, 16), sequences=2)
    compile_language_model(folder, "cpu1", options, cost_model="roofline").export(path)
    return path


class Server:
    """A server as a process; ``http`` and ``grpc`` are HOST:PORT."""

    def __init__(self, artifact, *options, stderr=subprocess.PIPE):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tvm_sched_runtime.run_artifact", "serve", str(artifact), "--port", "0",
             "--grpc-port", "0", "--json", "--threads", "1", *options],
            stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        told = json.loads(line)
        self.http = told["http"].partition("//")[2]
        self.grpc = told.get("grpc")
        self.administration = told.get("administration")
        host, port = self.http.rsplit(":", 1)
        self.address = host, int(port)

    def stop(self):
        """End it as a service manager does; return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            if not self.process.stdout.closed:
                self.process.communicate()


@pytest.fixture(scope="session")
def start():
    """Start servers; they end with the tests."""
    servers = []

    def make(*arguments, **options):
        servers.append(Server(*arguments, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(start, repository):
    """One server for all tests that change nothing of it."""
    return start(
        repository, "--shared-memory", "--admin-port", "0", "--max-request-bytes", "100000", "--receive-timeout", "2"
    )


@pytest.fixture
def rows():
    """Inputs of small whole numbers."""
    return lambda n: np.random.default_rng(n).integers(-9, 9, (n, 8)).astype(np.float32)


class BlockingModule:
    """In place of an artifact: a run waits until it is let go, and gives back its input."""

    def __init__(self):
        import threading

        self.go = threading.Event()
        self.batches = []
        self.seconds = 1.0

    def run(self, *arrays):
        self.batches.append(arrays[0].copy())
        assert self.go.wait(20)
        return [array.copy() for array in arrays]

    def latency(self):
        return self.seconds


@pytest.fixture
def blocking():
    """A model that runs when it is told to, for rows of 3 numbers in batches of 1, 2 and 4."""
    from tvm_sched_serve.datatypes import TensorType
    from tvm_sched_serve.served_model import ServedModel

    def make(sizes=(1, 2, 4)):
        module = BlockingModule()
        size = -1 if len(sizes) > 1 else sizes[0]
        tensor = TensorType("x", "float32", (size, 3))
        model = ServedModel("m", "1", module, (tensor,), (tensor,), frozenset(((n, 3),) for n in sizes))
        return SimpleNamespace(module=module, model=model)

    return make


@pytest.fixture
def backend_library():
    library = library_path().with_name("libtriton_tvm_sched.so")
    if not library.is_file():
        pytest.skip(f"{library.name} was not built")
    return library


@pytest.fixture
def triton(tmp_path):
    """Start NVIDIA's server on a repository; give its address."""
    found = os.environ.get("TVM_SCHED_TRITON")
    if not found:
        pytest.skip("TVM_SCHED_TRITON does not name a folder into which the wheel nvidia-pytriton was unpacked")
    wheel = Path(found)
    server = wheel / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    backends = tmp_path / "backends"
    shutil.copytree(server / "backends", backends)
    stub = shutil.copy(server / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    Path(stub).chmod(0o755)
    program = Path(shutil.copy(server / "bin" / "tritonserver", tmp_path))
    program.chmod(0o755)
    started = []

    def start(repository):
        for file in repository.rglob("model.py"):  # Triton's Python takes no PYTHONPATH
            file.write_text(f"import sys\nsys.path.insert(0, {SOURCES!r})\n{file.read_text()}")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        process = subprocess.Popen(
            [program, "--model-repository", repository, "--backend-directory", backends, "--http-port", str(port),
             "--http-address", "127.0.0.1", "--allow-grpc=false", "--allow-metrics=false"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"LD_LIBRARY_PATH": str(wheel / "nvidia_pytriton.libs")},
        )  # fmt: skip
        started.append(process)
        log = []
        for line in process.stdout:
            log.append(line)
            if "Started HTTPService" in line:
                break
        else:
            raise AssertionError("".join(log))
        threading.Thread(target=process.stdout.read, daemon=True).start()
        while process.poll() is None:  # it says so a moment before it listens
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 60).close()
                break
        return f"http://127.0.0.1:{port}"

    yield start
    for process in started:
        process.terminate()
        process.wait(60)
