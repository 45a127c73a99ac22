"""Installs the wheels of ``dist/`` into empty environments and uses them, away from the source tree.

    python distributions/check_wheels.py [--python python3.12] [--keep FOLDER] [--runtime-only] [--without-plugin]

The first environment is what ``docs/distributions.md`` tells users without a checkout to install; the README's five commands
run there, and `tvm-sched` compiles, schedules and runs further models. The second has the runtime alone, and what was
compiled gives the same values there, from Python and from C++. The third has the checker alone, which proves a schedule's
bound. Then `tvm-sched-bench`, `tvm-sched-cluster`, `tvm-sched-plans` and `tvm-sched-language` are installed into the first,
one after the other: each brings its command. With `tvm-sched-onnxruntime` a session runs; ``--without-plugin`` leaves it
out, where `make wheels` could not fetch ONNX Runtime's headers. With ``--runtime-only`` there is no first environment, which
is more than a gigabyte: the Python that runs this, which has the checkout, compiles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = Path(__file__).with_name("example_models.py")
CPP = ROOT / "examples" / "cpp" / "run_model.cc"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "distributions.md"


class Environment:
    """An environment in which to compile and run, with a folder for what comes out."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        folder.mkdir(exist_ok=True)

    def run(self, *command: object, status: int = 0) -> str:
        """Run a program of the environment, away from the source tree; return its output, or what it says of an error."""
        program, *arguments = map(str, command)
        print(f"{self.folder.name}: {program} {' '.join(arguments)}", flush=True)
        done = subprocess.run(
            [self.programs / program, *arguments],
            check=False,
            cwd=self.folder,
            env=self.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if status else None,
            text=True,
        )
        assert done.returncode == status, f"{command} ended with status {done.returncode}, not {status}"
        return done.stderr if status else done.stdout

    def variables(self) -> dict[str, str]:
        """Variables of its processes: its programs come first, nothing of the source tree is on a path."""
        inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        path = f"{self.programs}{os.pathsep}{inherited['PATH']}"
        cache = str(self.folder / "cache")
        quiet = {"PIP_QUIET": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return {**inherited, **quiet, "PATH": path, "TVM_SCHED_CACHE": cache, "TVM_SCHED_COSTS": "roofline"}

    def packages(self) -> Path:
        """The folder of its packages."""
        return Path(self.run("python", "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())


class WheelEnvironment(Environment):
    """A virtual environment with wheels of ours and what they require."""

    def __init__(self, python: str, folder: Path, *wheels: str) -> None:
        super().__init__(folder / "bin", folder)
        subprocess.check_call([python, "-m", "venv", folder])
        if wheels:
            self.install(*wheels)

    def install(self, *wheels: str) -> None:
        """Install wheels and what they require."""
        self._pip("install", *wheels)
        self.say_size(", ".join(Path(wheel).name for wheel in wheels))

    def uninstall(self, name: str) -> None:
        """Remove a distribution."""
        self._pip("uninstall", "--yes", name)

    def follow(self, page: Path, heading: str) -> None:
        """Run the first block of commands below a heading, as a user with this environment would."""
        commands = commands_below(page, heading)
        print(f"{self.folder.name}: {heading}\n{commands}", end="", flush=True)
        subprocess.check_call(["sh", "-e", "-c", commands], cwd=self.folder, env=self.variables())

    def say_size(self, what: str) -> None:
        """Print the size of the installed packages and their libraries, without the tools that install."""
        tools = re.compile(r"/(pip|setuptools|pkg_resources|_distutils_hack)[^/]*/")
        files = [file for file in (self.folder / "lib").rglob("*") if file.is_file() and not tools.search(str(file))]
        size = sum(file.lstat().st_size for file in files)
        print(f"{self.folder.name}: {size / 1e6:.1f} MB with {what}", flush=True)

    def _pip(self, *arguments: str) -> None:
        subprocess.check_call([self.programs / "python", "-m", "pip", *arguments], env=self.variables())


def commands_below(page: Path, heading: str) -> str:
    """The first block of commands below a heading of a page."""
    found = re.search(rf"^#+ {re.escape(heading)}\n.*?^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no commands below {heading!r}"
    return found[1]


def main() -> None:
    """Check the wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="what makes the environments (default: this Python)")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the wheels (default: dist)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the environments there")
    parser.add_argument("--runtime-only", action="store_true", help="compile with the checkout, in this environment")
    parser.add_argument("--without-plugin", action="store_true", help="do not ask for tvm-sched-onnxruntime")
    options = parser.parse_args()
    names = ["bench", "check", "cluster", "frontends", "language", "plans", "runtime", "tvm_sched"]
    if not (options.runtime_only or options.without_plugin):
        names.append("onnxruntime")
    wheels = {name: found for name in names if (found := _wheel(options.dist, name))}
    if missing := [name for name in names if name not in wheels]:
        hint = " (--without-plugin if ONNX Runtime's headers are out of reach)" if missing == ["onnxruntime"] else ""
        sys.exit(f"{options.dist} has no wheel of {', '.join(missing)}: run `make wheels`{hint}")
    with _folder(options.keep) as folder:
        compiler: Environment
        if options.runtime_only:
            compiler = Environment(Path(sys.executable).parent, folder / "compiler")
        else:
            compiler = WheelEnvironment(options.python, folder / "compiler")
            (compiler.folder / "dist").symlink_to(options.dist.resolve())
            compiler.follow(PAGE, "Without a checkout")
            compiler.say_size(f"what {PAGE.name} says")
            compiler.follow(README, "Five commands")
        models = _compile(compiler, folder)
        runtime = WheelEnvironment(options.python, folder / "runtime", wheels["runtime"])
        print(runtime.run("python", ROOT / "distributions" / "check_runtime.py"), end="")
        for artifact in models:
            outputs = [_outputs(runtime, "tvm-sched-run", artifact), _outputs(compiler, "tvm-sched", "run", artifact)]
            assert outputs[0] == outputs[1], f"{artifact}: other values with the runtime alone"
        _run_from_cpp(runtime, folder, models[0])
        checker = WheelEnvironment(options.python, folder / "checker", wheels["check"])
        print(
            checker.run("tvm-sched-check", *(folder / f"{name}.json" for name in ("problem", "schedule", "evidence"))),
            end="",
        )
        if isinstance(compiler, WheelEnvironment):
            _attach_others(compiler, wheels, folder)
    print(
        f"{len(models)} artifacts run with {Path(wheels['runtime']).name} alone as with {Path(wheels['tvm_sched']).name}"
    )


def _wheel(dist: Path, name: str) -> str:
    """The wheel of a distribution: ``tvm_sched``, or another by the end of its name; empty if it is not there."""
    found = list(dist.resolve().glob("tvm_sched-*.whl" if name == "tvm_sched" else f"tvm*_{name}-*.whl"))
    assert len(found) < 2, found
    return str(found[0]) if found else ""


def _attach_others(compiler: WheelEnvironment, wheels: dict[str, str], folder: Path) -> None:
    """The commands of a distribution name it where it is not installed, and work where it is."""
    suite = folder / "suite.toml"
    head = (
        'format = "tvm_sched.suite"\nversion = 1\n[[family]]\nname = "regal"\nkind = "throughput"\nsource = "regal"\n'
    )
    suite.write_text(f"{head}[family.grid]\nseed = [0]\nstages = [4]\n")
    commands = {
        "bench": ("bench", "list", suite),
        "cluster": ("cluster", "place", "rampa-base", "--service", "service1"),
        "plans": ("plan", "llama-2-13b", "--topology", "p4d", "--for", "vllm"),
    }
    compiler.uninstall("tvm-sched-bench")
    for name, command in commands.items():
        refusal = compiler.run("tvm-sched", *command, "--json", status=2)
        assert f"tvm-sched-{name}, which is not installed" in " ".join(refusal.split()), refusal
        compiler.install(wheels[name])
        answers = json.loads(compiler.run("tvm-sched", *command, "--json"))
        assert answers.get("instances") or answers.get("placed") == 1 or answers.get("runtime") == "vllm", answers
    asked = ("tvm-sched", "compile", folder, "--topology", "cpu1", "--generate", "-o", folder / "text.so")
    for message in ("tvm-sched-language, which is not installed", "config.json"):
        refusal = compiler.run(*asked, status=2)
        assert message in " ".join(refusal.split()), refusal
        compiler.install(wheels["language"])
    if plugin := wheels.get("onnxruntime"):
        compiler.install(plugin)
        _run_session(compiler, plugin)


def _run_session(environment: Environment, plugin: str) -> None:
    """A session of ONNX Runtime runs with the plugin as without it."""
    program = """if True:
        import numpy, onnx, onnxruntime, tvm_sched_onnxruntime
        head = '<ir_version: 8, opset_import: ["": 17]>'
        model = onnx.parser.parse_model(head + "g (float[2, 4] x) => (float[2, 4] y) { a = Exp(x) y = Softmax(a) }")
        options = onnxruntime.SessionOptions()
        tvm_sched_onnxruntime.add_to(options, topology="cpu2", time_limit=2, fallback=False)
        ours = onnxruntime.InferenceSession(model.SerializeToString(), options)
        theirs = onnxruntime.InferenceSession(model.SerializeToString())
        feed = {"x": numpy.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)}
        numpy.testing.assert_allclose(ours.run(None, feed), theirs.run(None, feed), rtol=1e-6)
        print(ours.get_providers()[0])"""
    assert "TvmSchedExecutionProvider" in environment.run("python", "-c", program), plugin


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
    environment.run("tvm-sched", "problem", MODELS, "--topology", "v100-server", "-o", folder / "problem.json")
    files = ("-o", folder / "schedule.json", "--evidence", folder / "evidence.json")
    environment.run("tvm-sched", "schedule", folder / "problem.json", "--time-limit", 2, *files)
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
    libraries = [packages / "tvm_sched_runtime" / "_lib", packages / "tvm_ffi" / "lib"]
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
