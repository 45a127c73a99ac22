"""Files that are made from others: the description of gRPC's interface, and the dashboard's names of metrics."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_sched_serve.metrics import Metrics

PACKAGE = Path(sys.modules[Metrics.__module__].__file__).parent
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["open_inference", "health", "reflection"])
def test_the_description_is_of_the_interface(tmp_path, name):
    pytest.importorskip("grpc_tools")
    made = tmp_path / "made.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PACKAGE}", f"--descriptor_set_out={made}"]
    subprocess.run([*command, f"{name}.proto"], check=True)
    assert made.read_bytes() == (PACKAGE / f"{name}.binpb").read_bytes()


def test_the_interface_and_its_description_have_the_same_messages():
    from tvm_sched_serve.grpc_server import messages

    text = (PACKAGE / "open_inference.proto").read_text()
    outer = re.findall(r"^message (\w+)", text, flags=re.MULTILINE)
    assert set(outer) == {name for name in messages() if "." not in name}


def test_the_dashboard_asks_for_metrics_that_there_are():
    dashboard = json.loads((ROOT / "docs" / "grafana" / "serve.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"tvm_sched_\w+", target["expr"])
    }
    assert len(asked) > 5
    known = Metrics().text().decode()
    for name in asked:
        assert f" {name.removesuffix('_bucket')} " in known
