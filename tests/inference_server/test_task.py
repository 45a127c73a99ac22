"""docs/tasks/serve.md: its commands and its client, against a server at other ports."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tasks" / "serve.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
(CURL,) = (text for language, text in BLOCKS if language == "bash")
(PYTHON,) = (text for language, text in BLOCKS if language == "python")
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

    metadata = json.loads(call("bash", "-ec", here(CURL)))
    (output,) = metadata["outputs"]
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["outputs"][0]["shape"] == output["shape"]
    assert call(sys.executable, "-c", here(PYTHON)).strip() == str(tuple(output["shape"]))
    call("bash", "-ec", here(LOAD))
    assert server.stop() == 0
