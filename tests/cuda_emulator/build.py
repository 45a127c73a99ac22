"""Builds the emulated GPU: its driver and libraries, and what kernels are compiled with. Each thing once, by its content."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAKE_DRIVER = HERE / "fake_driver"
SANITIZE = "CUDA_EMULATOR_SANITIZE"
"""Environment variable: ``address`` for AddressSanitizer in kernels and driver, ``undefined`` for checks of each index and
alignment in kernels, or both, with a comma. Kernels then take three times as long to compile."""
CACHE = "CUDA_EMULATOR_CACHE"
"""Environment variable: folder of what was compiled; by default one in the checkout's ``build``."""

PEERS = ("none", "all", "pairs", "higher")
"""By their number for the driver."""


def compiler() -> str:
    """The C++ compiler: g++, for its sanitizers' calls are known here."""
    return os.environ.get("CXX") or shutil.which("g++") or ""


def sanitized(kind: str = "address") -> bool:
    """Whether a sanitizer was asked for."""
    return kind in os.environ.get(SANITIZE, "").split(",")


def cache_folder() -> Path:
    """Where compiled files are kept for later runs."""
    named = os.environ.get(CACHE)
    folder = Path(named) if named else HERE.parents[1] / "build" / "cuda_emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cuda_headers() -> list[str]:
    """Folders of NVIDIA's headers: of its wheels, or of a toolkit; empty where there are none."""
    wheels = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu1*/include"))
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda", *sorted(Path("/usr/local").glob("cuda-1*"), reverse=True)]
    for folder in [*wheels, *(Path(home) / "include" for home in homes if home)]:
        if all((folder / name).is_file() for name in ("cuda_fp16.h", "crt/host_defines.h", "nv/target")):
            return [str(folder)]
    return []


def why_not() -> str:
    """Why nothing can be emulated here; empty where all is there."""
    if not compiler():
        return "there is no C++ compiler"
    if not cuda_headers():
        return (
            "NVIDIA's headers are not there: pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl, "
            "or a CUDA toolkit"
        )
    return ""


@cache
def compile_flags() -> tuple[str, ...]:
    """How kernels are compiled; undefined values are visible, and wrong addresses are found."""
    checks = ["-ftrivial-auto-var-init=pattern"]
    if sanitized("undefined"):
        checks += ["-fsanitize=alignment,bounds", "-fno-sanitize-recover=all"]
    if sanitized():
        checks.append("-fsanitize=address")
    includes = [f"-I{HERE / 'include'}", f"-I{HERE / 'include' / 'cuda'}", *(f"-isystem{f}" for f in cuda_headers())]
    return ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-w", *checks, *includes)


@dataclass(frozen=True)
class PrecompiledHeader:
    """The device's header, compiled."""

    flags: tuple[str, ...]
    key: bytes


@cache
def precompiled_header() -> PrecompiledHeader:
    """`device.h` with NVIDIA's headers takes a second to parse, so it is kept."""
    header = HERE / "include" / "cuda_emulator" / "device.h"
    key = _digest(sorted((HERE / "include").rglob("*.h")), [compiler(), *compile_flags()])
    folder = cache_folder() / f"device-{key[:24]}" / "cuda_emulator"
    folder.mkdir(parents=True, exist_ok=True)

    def make(made: Path) -> None:
        _run([compiler(), *compile_flags(), "-x", "c++-header", str(header), "-o", str(made)])

    once(folder / "device.h.gch", make)
    return PrecompiledHeader((f"-I{folder.parent}",), key.encode())


@cache
def driver() -> Path:
    """The emulated GPU's driver with cuBLASLt and cuDNN, one shared library."""
    fake = [source for source in sorted(FAKE_DRIVER.glob("*.cc")) if source.name != "modules.cc"]
    sources = [*fake, *sorted((HERE / "execution").glob("*.cc")), *sorted((HERE / "libraries").glob("*.cc"))]
    headers = HERE.rglob("*.h")
    flags = ["-std=c++20", "-O1", "-fPIC", "-pthread", "-fvisibility=hidden", f"-I{HERE / 'include'}", f"-I{HERE}"]
    if sanitized():
        flags += ["-fsanitize=address", "-g1"]
    key = _digest(sorted([*sources, *headers]), [compiler(), *flags])[:24]

    def make(made: Path) -> None:
        objects = []
        for source in sources:
            objects.append(once(cache_folder() / "objects" / f"{key}-{source.stem}.o", _compiles(source, flags)))
        _run([compiler(), "-shared", *flags, *map(str, objects), "-o", str(made), "-ldl"])

    return once(cache_folder() / f"libemulated_gpu-{key}.so", make)


def _compiles(source: Path, flags: list[str]) -> Callable[[Path], None]:
    return lambda made: _run([compiler(), *flags, "-c", str(source), "-o", str(made)])


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, made if it is not there; several processes may ask at once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            make(made)
            made.rename(path)
    return path


def environment(
    devices: int = 1,
    *,
    peers: str = "all",
    archs: str = "sm_90",
    memory: int = 1 << 30,
    seed: int = 1,
    libraries: bool = True,
) -> dict[str, str]:
    """Environment variables of a process that shall find emulated GPUs, and nvcc's stand-in first on the ``PATH``.

    Parameters
    ----------
    devices : int
        How many GPUs there are.
    peers : str
        Which of them reach each other's memory, one of `PEERS`: ``"none"``, ``"all"``, ``"pairs"`` (0 and 1, 2 and 3), or
        ``"higher"`` (each GPU reaches those with a higher number).
    archs : str
        Of each GPU, such as ``"sm_90,sm_80"``; the last one is that of the others.
    memory : int
        Bytes of each GPU.
    seed : int
        Of the order of blocks and threads, and of how late streams are.
    libraries : bool
        Whether cuBLASLt and cuDNN are there.
    """
    library = str(driver())
    where = library if libraries else "/nonexistent/library.so"
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(_tools()), os.environ.get("PATH", "")]),
        "TVM_SCHED_CUDA_DRIVER": library,
        "TVM_SCHED_CUBLASLT": where,
        "TVM_SCHED_CUDNN": where,
        "FAKE_CUDA_DEVICES": str(devices),
        "FAKE_CUDA_PEERS": str(PEERS.index(peers)),
        "FAKE_CUDA_ARCHS": archs,
        "FAKE_CUDA_MEMORY": str(memory),
        "FAKE_CUDA_SEED": str(seed),
        **preloaded(),
    }


def preloaded() -> Mapping[str, str]:
    """Environment variables of a process that has AddressSanitizer's library from its start, if that was asked for."""
    if not sanitized():
        return {}
    found = [
        subprocess.check_output([compiler(), f"-print-file-name=lib{n}.so"], text=True).strip()
        for n in ("asan", "stdc++")
    ]
    return {"LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": "detect_leaks=0"}


def _tools() -> Path:
    """A folder with an executable nvcc."""
    script = HERE / "nvcc_stand_in.py"
    text = f'#!/bin/sh\nLD_PRELOAD= exec "{sys.executable}" "{script}" "$@"\n'
    folder = cache_folder() / f"tools-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def make(made: Path) -> None:
        made.write_text(text)
        made.chmod(0o755)

    return once(folder / "nvcc", make).parent


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


def _digest(files: list[Path], words: list[str]) -> str:
    found = hashlib.sha256("\0".join(words).encode())
    for file in files:
        found.update(file.read_bytes() + b"\0")
    return found.hexdigest()
