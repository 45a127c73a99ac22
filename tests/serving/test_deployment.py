"""Deployment files; nothing here needs Ray."""

import subprocess
import sys

import pytest

from tvm_sched_cluster.serving import Deployment, StagePlacement, load_deployment
from tvm_sched_runtime.errors import InputError

TEXT = """
format = "tvm_sched.deployment"
version = 1
name = "layers"
artifact = "layers.pipeline"
max_in_flight = 5

[[stages]]
resources = { h100 = 1, GPU = 1 }

[[stages]]
resources = { l4 = 0.5 }
"""


def written(tmp_path, text):
    (tmp_path / "layers.toml").write_text(text)
    return tmp_path / "layers.toml"


def test_a_file(tmp_path):
    found = load_deployment(written(tmp_path, TEXT))
    assert [stage.resources for stage in found.stages] == [{"h100": 1, "GPU": 1}, {"l4": 0.5}]
    assert (found.name, found.artifact, found.places) == ("layers", str(tmp_path / "layers.pipeline"), 5)
    assert (found.strategy, found.timeout, found.max_waiting, found.retries) == ("PACK", 60.0, 64, 3)


def test_an_artifact_alone_takes_any_cpu(artifact):
    found = load_deployment(artifact)
    assert [stage.resources for stage in found.stages] == [{"CPU": 1.0}] * 3
    assert (found.name, found.artifact, found.places) == ("layers", str(artifact), 12)


def test_replicas_of_all_stages_and_of_one(tmp_path):
    text = TEXT.replace("max_in_flight = 5", "replicas = 3").replace("l4 = 0.5 }", "l4 = 0.5 }\nreplicas = 2")
    found = load_deployment(written(tmp_path, text))
    assert found.processes == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    assert (found.replicas_of(0), found.replicas_of(1), found.places) == (3, 2, 20)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "newer than this tvm_sched reads"),
        ("format =", "formatted =", "`\\$.format` is None"),
        ('name = "layers"', 'name = "a/b"', "letters, digits"),
        ("max_in_flight = 5", "max_in_flight = -1", "max_in_flight is -1; 0 or more is allowed"),
        ("max_in_flight = 5", "timeout = 0", "timeout is 0"),
        ("max_in_flight = 5", 'strategy = "NEAR"', "Invalid enum value 'NEAR'"),
        ("max_in_flight = 5", "speed = 5", "unknown field `speed`; the fields are name, artifact"),
        ("l4 = 0.5", "l4 = 0", "resource 'l4' is 0"),
        ("l4 = 0.5", "", "at least one resource"),
        ("max_in_flight = 5", "replicas = 0", "replicas is 0; 1 or more is allowed"),
        ("resources = { l4 = 0.5 }", "resources = { l4 = 1 }\nreplicas = -1", "replicas is -1; 0 or more is allowed"),
        ("[[stages]]", "[stages", "not a TOML document"),
    ],
)
def test_wrong_files(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message):
        load_deployment(written(tmp_path, TEXT.replace(old, new)))


def test_what_is_no_deployment(tmp_path):
    for path, message in (
        (tmp_path, "has no manifest.json"),
        (tmp_path / "none.toml", "cannot be read"),
        (tmp_path / "plan.json", "neither a deployment file"),
    ):
        with pytest.raises(InputError, match=message):
            load_deployment(path)


def test_stages_are_those_of_the_artifact(artifact):
    with pytest.raises(InputError, match=r"places 2 stages; .* has 3"):
        Deployment("layers", str(artifact), (StagePlacement({"dev": 1}),) * 2).manifest()


def test_without_ray_it_is_said_what_to_install():
    script = (
        "import sys\n"
        "sys.modules['ray'] = None\n"
        "from tvm_sched_cluster import serving\n"
        "try: serving.deploy\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "InputError Ray is not installed: pip install 'tvm-sched[cluster]'"
