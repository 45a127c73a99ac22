"""What a release brings: one version everywhere, bills of materials, an index that pip reads."""

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tvm_sched import __version__

ROOT = Path(__file__).parents[1]


def load(name):
    sys.path.insert(0, str(ROOT / "distributions"))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / "distributions" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def write_wheel(folder, name="tvm_sched", files=(), licence="License-Expression: Apache-2.0\n"):
    path = folder / f"{name}-{__version__}-py3-none-any.whl"
    info = f"{name}-{__version__}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: {name.replace('_', '-')}\nVersion: {__version__}\n{licence}"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"{metadata}Requires-Dist: numpy\nRequires-Dist: onnx; extra == 'onnx'\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/licenses/LICENSE", "text")
        for file in files:
            wheel.writestr(file, file)
        wheel.writestr(f"{info}/RECORD", "")
    return path


def test_the_version_is_the_same_everywhere():
    cited = dict(
        re.findall(r"^(version|date-released): \"?([^\"\n]*)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    )
    assert cited["version"] == __version__
    assert f"\n## {__version__} - {cited['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text()
    minor = ".".join(__version__.split(".")[:2])
    assert f"\n| {minor} |" in (ROOT / "docs" / "release.md").read_text()


def test_a_bill_of_materials_names_what_is_in_a_wheel(tmp_path):
    files = ["tvm_sched_runtime/_lib/libtvm_sched.so", "tvm_sched_runtime.libs/libdnnl-1234.so.3"]
    made = load("sbom").document(write_wheel(tmp_path, files=files))
    assert made["metadata"]["component"]["purl"] == f"pkg:pypi/tvm-sched@{__version__}"
    inside = {each["name"]: each for each in made["components"]}
    for file in files:
        assert inside[file]["hashes"][0]["content"] == hashlib.sha256(file.encode()).hexdigest()
        assert inside[file]["licenses"] == [{"expression": "Apache-2.0"}]
    assert inside["numpy"]["scope"] == "required"
    assert inside["onnx"]["scope"] == "optional"
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_every_library_that_a_build_makes_is_known(tmp_path):
    """CMake installs each shared library or module into the wheels."""
    builds = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake")]
    names = [
        name for file in builds for name in re.findall(r"add_library\((\w+) (?:MODULE|SHARED)\b", file.read_text())
    ]
    assert {"tvm_sched", "triton_tvm_sched"} <= set(names)
    load("sbom").document(write_wheel(tmp_path, files=[f"tvm_sched_runtime/_lib/lib{name}.so" for name in names]))


def test_an_unknown_library_or_a_missing_licence_is_an_error(tmp_path):
    sbom = load("sbom")
    with pytest.raises(ValueError, match="libsurprise"):
        sbom.document(write_wheel(tmp_path, files=["a.libs/libsurprise.so.1"]))
    with pytest.raises(ValueError, match="names no licence"):
        sbom.document(write_wheel(tmp_path, licence=""))


def test_pip_installs_from_the_index(tmp_path):
    index = load("check_index")
    dist = tmp_path / "dist"
    dist.mkdir()
    write_wheel(dist, files=["tvm_sched_marker.py"])
    assert index.write_index(dist, tmp_path / "www") == {"tvm-sched": __version__}
    with index.served(tmp_path / "www") as address:
        with urllib.request.urlopen(address, timeout=30) as listed:
            assert 'href="tvm-sched/"' in listed.read().decode()
        command = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps", "--index-url", address]
        command += ["-d", tmp_path / "got", f"tvm-sched=={__version__}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (got,) = (tmp_path / "got").glob("*.whl")
    assert got.read_bytes() == (dist / got.name).read_bytes()


def test_without_wheels_it_says_what_to_do(tmp_path):
    command = [sys.executable, str(ROOT / "distributions" / "sbom.py"), "--dist", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "make wheels" in done.stderr) == (2, True)
    write_wheel(tmp_path)
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    assert json.loads((tmp_path / "sbom" / "tvm_sched.cdx.json").read_text())["bomFormat"] == "CycloneDX"
