"""Installs the wheels of ``dist/`` into empty environments and uses them, away from the source tree.

    python distributions/check_wheels.py [--python python3.12] [--keep FOLDER] [--runtime-only]

In the first environment `tvm-sched` compiles, schedules and runs; in the second, which has the runtime alone, what was
compiled gives the same values, from Python and from C++. With ``--runtime-only`` there is no first environment, which is a
gigabyte: the Python that runs this, which has the checkout, compiles.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = Path(__file__).with_name("example_models.py")
CPP = ROOT / "examples" / "cpp" / "run_model.cc"


class Environment:
    """An environment in which to compile and run, with a folder for what comes out."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        folder.mkdir(exist_ok=True)

    def run(self, *command: object) -> str:
        """Run a program of the environment, away from the source tree; return what it printed."""
        program, *arguments = map(str, command)
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        print(f"{self.folder.name}: {program} {' '.join(arguments)}", flush=True)
        return subprocess.run(
            [self.programs / program, *arguments],
            check=True,
            cwd=self.folder,
            env={**variables, "TVM_SCHED_CACHE": str(self.folder / "cache"), "TVM_SCHED_COSTS": "roofline"},
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def packages(self) -> Path:
        """The folder of its packages."""
        return Path(self.run("python", "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())


class WheelEnvironment(Environment):
    """A virtual environment with wheels of ours and what they require."""

    def __init__(self, python: str, folder: Path, *wheels: str) -> None:
        super().__init__(folder / "bin", folder)
        subprocess.check_call([python, "-m", "venv", folder])
        pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.check_call([*pip, "install", *wheels])
        print(
            f"{folder.name}: {self._megabytes()} MB with {', '.join(Path(wheel).name for wheel in wheels)}", flush=True
        )

    def _megabytes(self) -> int:
        files = (file.lstat().st_size for file in self.folder.rglob("*") if file.is_file())
        return round(sum(files) / 1e6)


def main() -> None:
    """Check the wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="what makes the environments (default: this Python)")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the wheels (default: dist)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the environments there")
    parser.add_argument("--runtime-only", action="store_true", help="compile with the checkout, in this environment")
    options = parser.parse_args()
    (runtime_wheel,) = options.dist.resolve().glob("tvm_sched_runtime-*.whl")
    (wheel,) = options.dist.resolve().glob("tvm_sched-*.whl")
    (frontends_wheel,) = options.dist.resolve().glob("tvm_frontends-*.whl")
    with _folder(options.keep) as folder:
        if options.runtime_only:
            compiler = Environment(Path(sys.executable).parent, folder / "compiler")
        else:
            wheels = (f"{wheel}[onnx]", str(frontends_wheel), str(runtime_wheel))
            compiler = WheelEnvironment(options.python, folder / "compiler", *wheels)
        models = _compile(compiler, folder)
        runtime = WheelEnvironment(options.python, folder / "runtime", str(runtime_wheel))
        print(runtime.run("python", ROOT / "distributions" / "check_runtime.py"), end="")
        for artifact in models:
            outputs = [_outputs(runtime, "tvm-sched-run", artifact), _outputs(compiler, "tvm-sched", "run", artifact)]
            assert outputs[0] == outputs[1], f"{artifact}: other values with the runtime alone"
        _run_from_cpp(runtime, folder, models[0])
    print(f"{len(models)} artifacts run with {runtime_wheel.name} alone as with {wheel.name}")


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="tvm-sched-wheels-") as folder:
        yield Path(folder)


def _compile(environment: Environment, folder: Path) -> list[Path]:
    """Artifacts of the example models, another for emulated devices, and a pipeline; a schedule on the way."""
    environment.run("python", MODELS, folder)
    common = ("--time-limit", 2, "--topology")
    environment.run("tvm-sched", "compile", MODELS, *common, "cpu2", "-o", folder / "convolutions.so")
    environment.run("tvm-sched", "compile", MODELS, *common, "v100-server", "-o", folder / "emulated.so")
    environment.run("tvm-sched", "schedule", MODELS, *common, "v100-server", "--json")
    environment.run("tvm-sched", "pipeline", MODELS, *common, "cpu2", "--artifact", folder / "stages.pipeline")
    return [*sorted(folder.glob("*.so")), folder / "stages.pipeline"]


def _outputs(environment: Environment, *command: object) -> dict[str, bytes]:
    """The files of outputs that a command writes, of random inputs by one seed."""
    target = environment.folder / "outputs"
    shutil.rmtree(target, ignore_errors=True)
    environment.run(*command, "--repeat", 2, "--output", target)
    return {file.name: file.read_bytes() for file in target.iterdir()}


def _run_from_cpp(environment: Environment, folder: Path, artifact: Path) -> None:
    """Build the example against the runtime's libraries and run an artifact."""
    packages = environment.packages()
    libraries = [packages / "tvm_sched" / "_lib", packages / "tvm_ffi" / "lib"]
    program = folder / "run_model"
    search = [flag for place in libraries for flag in (f"-L{place}", f"-Wl,-rpath,{place}")]
    links = ["-Wl,--no-as-needed", "-ltvm_sched", "-ltvm_runtime", "-ltvm_ffi"]
    subprocess.check_call(
        [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", CPP, "-o", program, f"-I{packages / 'tvm_ffi' / 'include'}",
         *search, *links]
    )  # fmt: skip
    told = subprocess.run([program, artifact], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "output of " in told, told
    print(f"C++: {told.splitlines()[0][:80]}")


if __name__ == "__main__":
    main()
