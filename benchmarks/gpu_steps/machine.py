"""Steps about the machine: its facts, copies and pinning, compute-sanitizer."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tvm_sched_runtime.errors import InputError

from .artifacts import load, network_tensors, write_parameters
from .record import NotAvailable, Step


def output(*command: str, seconds: float = 20) -> str:
    """Return what a command prints, or why it cannot."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not there"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"{command[0]} took longer than {seconds:.0f} s"
    return (done.stdout + done.stderr).strip()


def environment(step: Step) -> None:
    """Facts of the GPU, its driver, libraries, processor and disk."""
    fields = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm,clocks.max.mem"
    step.measure("gpu", lambda: {"nvidia_smi": output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")})
    step.measure("topology", lambda: {"matrix": output("nvidia-smi", "topo", "-m")[:2000]})
    step.measure("processor", processor)
    step.measure("libraries", libraries)
    step.measure("opening the GPU", opening, least=8)
    step.measure("cudnn device properties", lambda: cudnn_properties(step), least=2)
    step.measure("disk", lambda: disk(step))


def processor() -> dict[str, Any]:
    """Model, cores, NUMA nodes and memory."""
    names = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    nodes = sorted(path.name for path in Path("/sys/devices/system/node").glob("node[0-9]*"))
    memory = Path("/proc/meminfo").read_text().splitlines()[0].split()[1]
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "model": names[0] if names else platform.machine(), "cores": os.cpu_count(), "numa_nodes": nodes,
        "memory_gb": round(int(memory) / 1e6, 1), "kernel": platform.release(), "python": platform.python_version(),
        "huge_pages": huge.read_text().strip() if huge.exists() else None,
        "memlock": output("bash", "-c", "ulimit -l"),
    }  # fmt: skip


def libraries() -> dict[str, Any]:
    """Versions of what the runtime opens, and of PyTorch."""
    from tvm_sched_runtime import core_library

    found: dict[str, Any] = {"why_not_nvidia": str(core_library.function("tvm_sched.why_not_nvidia")() or "")}
    found["opened"] = opened("cudnn", "cublas", "libcuda")
    for name, variable in (("libcudnn.so.9", "TVM_SCHED_CUDNN"),):
        try:
            library = ctypes.CDLL(os.environ.get(variable) or name)
            library.cudnnGetVersion.restype = ctypes.c_size_t
            found["cudnn"] = library.cudnnGetVersion()
        except (OSError, AttributeError) as error:
            found["cudnn"] = str(error)
    try:
        import torch

        found |= {
            "torch": torch.__version__,
            "torch_cuda": torch.version.cuda,
            "torch_cudnn": torch.backends.cudnn.version(),
        }
    except ImportError as error:
        found["torch"] = str(error)
    return found


SANITIZED = (
    *(("memcheck", name) for name in ("layer float16", "picture schedule 0", "branches schedule 1")),
    *(("racecheck", name) for name in ("layer float16", "branches schedule 0, TVM kernels")),
    *(("memcheck", f"{name} schedule 0, TVM kernels") for name in ("branches", "layer", "picture")),
)
"""Checks of compute-sanitizer and artifacts of ``values``."""
OPENING = """
import ctypes, json, time
driver, times = ctypes.CDLL("libcuda.so.1"), [time.perf_counter()]
context = ctypes.c_void_p()
assert driver.cuInit(0) == 0
times.append(time.perf_counter())
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
times.append(time.perf_counter())
print(json.dumps([times[1] - times[0], times[2] - times[1]]))
"""


def opening() -> dict[str, Any]:
    """Seconds of ``cuInit`` and of opening the primary context in a process of its own, by how modules are loaded."""
    found: dict[str, Any] = {}
    for loading in (None, "LAZY", "EAGER") * 2:
        environment = {**os.environ, **({"CUDA_MODULE_LOADING": loading} if loading else {})}
        done = subprocess.run(
            [sys.executable, "-c", OPENING], capture_output=True, text=True, timeout=20, check=False, env=environment
        )
        if done.returncode:
            raise NotAvailable(done.stderr[-200:])
        found.setdefault(loading or "as it is", []).append(json.loads(done.stdout))
    return {"init_and_context_s": found}


def opened(*words: str) -> list[str]:
    """Return the libraries that this process has open."""
    maps = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    return sorted(name for name in maps if any(word in name for word in words))


def cudnn_properties(step: Step) -> dict[str, Any]:
    """Return the device's properties as cuDNN serialises them, with which it compiles plans without the device."""
    from tvm_sched_runtime import core_library

    try:
        return {"properties": str(core_library.function("tvm_sched.cudnn_device_properties")(0))}
    except RuntimeError as error:
        raise NotAvailable(str(error)) from None


def disk(step: Step) -> dict[str, Any]:
    """Write and read a file of 1 GiB, which the step ``copies`` reads, too."""
    file = large_file(step)
    drop_caches(file)
    begin, count = time.perf_counter(), 0
    with file.open("rb", buffering=0) as read:
        while block := read.read(8 << 20):
            count += len(block)
    cold = time.perf_counter() - begin
    return {"read_gb_s": count / cold / 1e9, "file_system": output("df", "-hT", str(step.work)).splitlines()[-1]}


def large_file(step: Step) -> Path:
    """Return a file of 1 GiB with bytes that are not zero; of 16 MiB in a rehearsal."""
    file = step.work / "large"
    if not file.exists():
        block = os.urandom(16 << 20)
        with file.open("wb") as made:
            for _ in range(1 if step.quick else 64):
                made.write(block)
            made.flush()
            os.fsync(made.fileno())
    return file


def drop_caches(file: Path) -> bool:
    """Drop a file's pages from the page cache; return whether the system's caches could be dropped, too."""
    with file.open("rb") as opened_file:
        os.fsync(opened_file.fileno())
        os.posix_fadvise(opened_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


def copies(step: Step) -> None:
    """Pinning and copies by size and threads, by a program of CUDA's run time, and the rates that our library measures."""

    def rates() -> dict[str, Any]:
        from tvm_sched_runtime import core_library

        megabytes = 1 if step.quick else 256
        found = dict(core_library.function("tvm_sched.cuda_copy_rates")(0, megabytes << 20))
        return {"gb_s": {str(name): float(rate) / 1e9 for name, rate in found.items()}}

    step.measure("rates by tvm_sched.cuda_copy_rates", rates)

    def program() -> dict[str, Any]:
        file = step.folder / "copies"
        if not file.exists():
            raise NotAvailable("the program copies.cu was not compiled")
        done = subprocess.run(
            [file, large_file(step), str(step.left - 3)], capture_output=True, text=True, timeout=step.left, check=False
        )
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return {"rows": rows, "status_of_program": done.returncode, "error": done.stderr[-300:]}

    step.measure("copies.cu", program)


def profile(step: Step) -> None:
    """Measure copies by `tvm_sched.cost_model.copies`, as ``tvm-sched topology detect`` does; needs cupy."""
    from tvm_sched.cost_model.copies import LARGE, CopyTimer, EventTimer, gpu_count, import_cupy

    try:
        cupy = import_cupy()
    except InputError as reason:
        raise NotAvailable(f"{reason} (its wheel has 65 MiB, more than is carried)") from None

    def rates(gpu: int) -> dict[str, Any]:
        with cupy.cuda.Device(gpu):
            timer, size = CopyTimer(EventTimer(cupy)), LARGE >> 8 if step.quick else LARGE
            found = {way: size / timer.host(size, way == "from_host") / 1e9 for way in ("from_host", "to_host")}
            others = {f"to GPU {k}": size / timer.peer(size, k) / 1e9 for k in range(gpu_count(cupy)) if k != gpu}
        return {"gb_s": found | others}

    for gpu in range(gpu_count(cupy)):
        step.measure(f"GPU {gpu}", lambda gpu=gpu: rates(gpu), 3, 30)


def sanitizer(step: Step) -> None:
    """Run small artifacts under compute-sanitizer: memcheck, then racecheck of shared memory."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        step.write("compute-sanitizer", status="not available", reason="compute-sanitizer is not there")
        return
    here = Path(__file__).resolve().parents[1] / "gpu_hour.py"
    prepared = {about["name"]: file for file, about in step.artifacts("values")}
    for check, name in SANITIZED:
        if name in prepared:
            file = prepared[name]

            def run(check: str = check, file: Path = file) -> dict[str, Any]:
                command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, str(here), "once", str(file)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=step.left, check=False)
                said = done.stdout + done.stderr
                return {"exit": done.returncode, "said": said[-600:]}

            step.measure(f"{check}: {name}", run, least=12, of=(file,))


def once(step: Step, file: Path) -> None:
    """Run an artifact twice, issued and as a graph; for compute-sanitizer."""
    about = json.loads(file.with_suffix(".json").read_text())
    _, tensor, x = network_tensors(about)
    parameters = write_parameters(step, file, about, tensor)
    for graph in (False, True):
        loaded = load(file, parameters, devices=[0] * about["devices"], graph=graph)
        for _ in range(2 + graph):
            loaded.run(x)
