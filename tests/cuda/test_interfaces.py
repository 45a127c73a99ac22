"""What is declared for NVIDIA's driver and libraries agrees with their headers, where these are."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX") or shutil.which("g++")


def folders(header):
    """Folders that hold a header: NVIDIA's wheels, the toolkit of nvcc, the system."""
    places = [*Path(sysconfig.get_path("purelib")).glob("nvidia/*/include")]
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda", *sorted(Path("/usr/local").glob("cuda-*"))):
        if home:
            places += [Path(home) / "include"]
    places += [Path(p) for p in os.environ.get("CPATH", "").split(":") if p]
    return [place for place in [*places, Path("/usr/include")] if (place / header).is_file()][:1]


@pytest.mark.parametrize(
    ("source", "headers"),
    [("cuda_api_check.cc", ["cuda.h"]), ("cuda_libraries_check.cc", ["cuda.h", "cublasLt.h", "cudnn.h"])],
)
def test_declarations_agree_with_nvidias(source, headers):
    found = {header: folders(header) for header in headers}
    missing = [header for header, places in found.items() if not places]
    if missing or COMPILER is None:
        pytest.skip(f"{', '.join(missing) or 'a C++ compiler'} is not on this machine")
    includes = [f"-I{place}" for places in found.values() for place in places]
    command = [COMPILER, "-std=c++20", "-fsyntax-only", "-w", *includes, "-Icpp", "-Itests/cpp", f"tests/cpp/{source}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
