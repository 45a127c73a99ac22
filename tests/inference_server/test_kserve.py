"""Conformance: KServe's clients for Python, HTTP and gRPC, against exact values."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from inference_server_values import expected


def test_values_health_and_errors(server):
    python = os.environ.get("TVM_SCHED_KSERVE_PYTHON", sys.executable)
    if python == sys.executable and importlib.util.find_spec("kserve") is None:
        pytest.skip("kserve is not installed, and TVM_SCHED_KSERVE_PYTHON does not name a Python that has it")
    script = Path(__file__).with_name("kserve_calls.py")
    done = subprocess.run(
        [python, script, server.http, server.grpc], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["health"] == [True, True, True, False] * 2
    x = np.arange(-16, 16, dtype=np.float32).reshape(4, 8)
    assert len(found["values"]) == 4
    for answer in found["values"]:
        assert (answer["id"], answer["model"], answer["output"]) == ("seven", "small", "activations")
        np.testing.assert_array_equal(answer["value"], expected(x))
    (status, http_text), (code, details) = found["errors"]
    assert (status, code) == (404, "NOT_FOUND")
    assert "no model 'absent'" in http_text
    assert "no model 'absent'" in details
