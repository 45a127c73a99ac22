"""docs/tasks/serve.md and docs/start/serve_models.md: their commands and their client, at other ports."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "tasks" / "serve.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
(CURL,) = (text for language, text in BLOCKS if language == "bash")
(PYTHON,) = (text for language, text in BLOCKS if language == "python" and "tritonclient" in text)
(LOAD,) = (text for language, text in BLOCKS if language == "sh" and "/load" in text)


@pytest.mark.slow
def test_the_page(start, tmp_path):
    pytest.importorskip("tritonclient")
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    from tvm_sched.relax import compile
    from tvm_sched_bench.testing.models import onnx_model

    (tmp_path / "repository").mkdir()
    compile(onnx_model("squeezenet"), "cpu1").export(tmp_path / "repository" / "squeezenet.so")
    server = start(tmp_path / "repository", "--admin-port", "0")

    def call(*command):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ | {"PATH": path},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def here(text):
        text = text.replace("http://127.0.0.1:8002", server.administration)
        assert "127.0.0.1:800" in text or server.administration in text
        return text.replace("127.0.0.1:8000", server.http)

    health, metadata = map(json.loads, call("bash", "-ec", here(CURL)).splitlines())
    assert health == {"ready": True}
    (output,) = metadata["outputs"]
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["outputs"][0]["shape"] == output["shape"]
    assert call(sys.executable, "-c", here(PYTHON)).strip() == str(tuple(output["shape"]))
    call("bash", "-ec", here(LOAD))
    assert server.stop() == 0


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


@pytest.mark.thorough
@pytest.mark.slow
def test_ten_minutes_of_who_serves(tmp_path):
    pytest.importorskip("onnx")
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    page = (DOCS / "start" / "serve_models.md").read_text()
    code = "".join(re.findall(r"^```sh\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE))
    for port in ("18089", "18090"):
        assert port in code
        code = code.replace(port, free_port())
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, arguments in (("tvm-sched", "-m tvm_sched.cli"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (tools / name).chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", code], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (output,) = json.loads((tmp_path / "answer.json").read_text())["outputs"]
    assert output["shape"][0] == 1
    assert len(output["data"]) == 1000
