"""How the distributions of this tree are built; ``setup.py`` of each says which one it is.

========================= ============================================== ======================
distribution              what is in it                                  wheel
========================= ============================================== ======================
``tvm-sched-check``       `tvm_sched_check`                              ``py3-none-any``
``tvm-frontends``         `tvm_frontends`                                ``py3-none-any``
``tvm-sched-runtime``     `tvm_sched_runtime`, `tvm_sched_serve`         ``py3-none-linux_...``
``tvm-sched``, split      `tvm_sched`; requires these three              ``py3-none-any``
``tvm-sched-bench``       `tvm_sched_bench`; requires ``tvm-sched``      ``py3-none-any``
``tvm-sched-cluster``     `tvm_sched_cluster`; requires ``tvm-sched``    ``py3-none-any``
``tvm-sched-language``    `tvm_sched_language`; requires the runtime     ``py3-none-any``
``tvm-sched-plans``       `tvm_sched_plans`; requires ``tvm-sched``      ``py3-none-any``
``tvm-sched-onnxruntime`` `tvm_sched_onnxruntime` and its library        ``py3-none-linux_...``
``tvm-sched``, whole      all: ``pip install .`` and ``-e .``            ``py3-none-linux_...``
========================= ============================================== ======================

The libraries (``tvm_sched_runtime/_lib``) know Python through tvm_ffi alone, so that one wheel serves every CPython.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from setuptools import Distribution, Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = Path("tvm_sched_runtime") / "_lib"
SPLIT = "TVM_SCHED_SPLIT"
"""Environment variable: 1 builds ``tvm-sched`` without what the other distributions have."""
PARTS = "TVM_SCHED_PARTS"
"""Variable: ``demo`` leaves out of libtvm_sched what the demonstration does not call (TvmSchedLibrary.cmake)."""
_BUNDLED = ("onednn-cpu-tbb",)
"""Requirements that the runtime's wheel brings itself."""


OWN_PACKAGES = {
    "tvm_frontends": "tvm-frontends",
    "tvm_sched_bench": "tvm-sched-bench",
    "tvm_sched_check": "tvm-sched-check",
    "tvm_sched_cluster": "tvm-sched-cluster",
    "tvm_sched_language": "tvm-sched-language",
    "tvm_sched_onnxruntime": "tvm-sched-onnxruntime",
    "tvm_sched_plans": "tvm-sched-plans",
    "tvm_sched_runtime": "tvm-sched-runtime",
    "tvm_sched_serve": "tvm-sched-runtime",
}
"""Import packages that other distributions than ``tvm-sched`` have."""


def distribution_of(module: str) -> str:
    """Return the distribution that a module belongs to."""
    return OWN_PACKAGES.get(module.partition(".")[0], "tvm-sched")


DIGEST = "sources.sha256"
"""File beside the libraries of a wheel: the digest of the C++ sources that they were built from."""


def sources_digest() -> str:
    """Return the SHA-256 of what the libraries are built from: C++ sources, CMake's files, names of the processor."""
    digest = hashlib.sha256(os.uname().machine.encode())
    for file in sorted(file for folder in ("cpp", "cmake", "CMakeLists.txt") for file in _files(ROOT / folder)):
        digest.update(f"{file.relative_to(ROOT)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def built_wheel() -> Path | None:
    """Return the runtime's wheel in ``dist/`` if its libraries are those of this tree's sources and run on this system."""
    digest = sources_digest().encode()
    for wheel in sorted((ROOT / "dist").glob("tvm_sched_runtime-*.whl")):
        glibc = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name)
        if glibc is None or tuple(map(int, glibc.groups())) > glibc_version():
            continue
        try:
            with zipfile.ZipFile(wheel) as archive:
                if archive.read(f"{LIBRARIES}/{DIGEST}") == digest:
                    return wheel
        except (KeyError, OSError, zipfile.BadZipFile):
            continue
    return None


def glibc_version() -> tuple[int, ...]:
    """Return the version of this system's C library; (0,) if it is another than glibc."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        return (0,)
    return tuple(map(int, version.split("."))) if name == "glibc" else (0,)


class CMakeExtension(Extension):
    """The libraries, as setuptools sees them: no sources, for CMake knows them."""

    def __init__(self) -> None:
        super().__init__("tvm_sched_runtime._lib.libtvm_sched", sources=[])


class CMakeBuild(build_ext):
    """Run CMake in ``build/`` (incremental), which writes into the source tree; a wheel gets what CMake installs."""

    where = LIBRARIES

    def run(self) -> None:
        """Configure, build, and for a wheel install, stripped; a source tree takes the libraries of a wheel that fits."""
        if self._in_source_tree() and not (ROOT / "build" / "CMakeCache.txt").exists() and (wheel := built_wheel()):
            print(f"libraries from {wheel.relative_to(ROOT)}, which has those of these C++ sources")
            self._unpack(wheel)
            return
        cmake = self._tool("cmake")
        build = ROOT / "build"
        if Path(cmake).is_relative_to(tempfile.gettempdir()) and not Path(cmake).is_relative_to(ROOT):
            # pip's isolated build: its tools are gone afterwards, and a folder that was configured with them is of no
            # use to anybody else.
            build = build / "isolated"
        subprocess.check_call([cmake, "-S", ROOT, "-B", build, *self._options(build)])
        subprocess.check_call([cmake, "--build", build, "--target", "tvm_sched", "--parallel", str(self._jobs())])
        if not self._in_source_tree():
            folder = self._folder()
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.check_call(
                [cmake, "--install", build, "--component", "tvm_sched", "--prefix", folder, "--strip"]
            )
            if isinstance(self.distribution, Runtime):
                # Not stripped: others made these.
                subprocess.check_call([cmake, "--install", build, "--component", "bundled", "--prefix", folder])
                (folder / DIGEST).write_text(sources_digest())

    def _unpack(self, wheel: Path) -> None:
        """Put a wheel's libraries in place of those of the source tree."""
        folder = self._folder()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if Path(name).parent == LIBRARIES and Path(name).name not in ("", DIGEST):
                    target = folder / Path(name).name
                    target.write_bytes(archive.read(name))
                    target.chmod(0o755)

    def get_outputs(self) -> list[str]:
        """Return what a wheel takes from this command."""
        return [str(file) for file in self._folder().rglob("*") if file.is_file()]

    def get_output_mapping(self) -> dict[str, str]:
        """Nothing is copied into the source tree afterwards: CMake wrote it there."""
        return {}

    def _folder(self) -> Path:
        return (ROOT / "python" if self._in_source_tree() else Path(self.build_lib)).absolute() / self.where

    def _in_source_tree(self) -> bool:
        return bool(self.inplace or self.editable_mode)

    def _options(self, build: Path) -> list[str]:
        options = [f"-DPython_EXECUTABLE={sys.executable}"]
        options.append(f"-DTVM_SCHED_ALL_PARTS={'OFF' if os.environ.get(PARTS) == 'demo' else 'ON'}")
        ninja = self._tool("ninja", required=False)
        cache = build / "CMakeCache.txt"
        made_with_ninja = cache.is_file() and "CMAKE_GENERATOR:INTERNAL=Ninja" in cache.read_text()
        if ninja and (made_with_ninja or not cache.is_file()):
            # Named each time: pip's ninja lives in a folder that is gone after the build.
            options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        elif made_with_ninja:
            cache.unlink()
        return options

    def _jobs(self) -> int:
        return int(self.parallel or os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or 2)

    @staticmethod
    def _tool(name: str, required: bool = True) -> str:
        """Find a tool beside this Python (pip puts it there) or on the path."""
        beside = Path(sys.executable).parent / name
        found = shutil.which(name) or (str(beside) if beside.is_file() else None)
        if found is None and required:
            raise SystemExit(f"{name} was not found; `pip install {name}` brings it")
        return found or ""


HEADERS = "TVM_SCHED_ONNXRUNTIME_HEADERS"
"""Environment variable: folder of ONNX Runtime's headers; without it they are fetched from npm."""
_HEADERS_PACKAGE = "com.github.asus4.onnxruntime@0.4.9"
"""npm package with the headers of ONNX Runtime 1.29, which neither its wheels nor Debian 12 have."""
_HEADERS_DIGEST = "145995c5f24d9d30237aa873d6ebd93daf351ed485cdfacffd32ee7469b5eb17"


def _without_headers(why: str) -> SystemExit:
    print(f"headers of ONNX Runtime ({_HEADERS_PACKAGE}): {why}; {HEADERS} may name their folder", file=sys.stderr)
    return SystemExit(3)  # by which the Makefile goes on without the plugin


def onnxruntime_headers() -> Path:
    """Return the folder of ``onnxruntime_c_api.h``; fetch it once. Status 3 where it cannot be fetched."""
    if named := os.environ.get(HEADERS):
        return Path(named).absolute()
    folder = ROOT / "build" / "onnxruntime-headers"
    if (folder / "onnxruntime_c_api.h").is_file():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise _without_headers("npm was not found")
    with tempfile.TemporaryDirectory() as fetched:
        command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", fetched, _HEADERS_PACKAGE]
        command += ["--fetch-retries=1", "--fetch-timeout=60000"]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            raise _without_headers("npm did not fetch them")
        (package,) = Path(fetched).iterdir()
        with tarfile.open(package) as archive:
            names = [
                name for name in archive.getnames() if re.search(r"/ios-arm64/.*/Headers/onnxruntime_\w+\.h$", name)
            ]
            headers = {Path(name).name: archive.extractfile(name).read() for name in sorted(names)}
    digest = hashlib.sha256(b"".join(headers.values())).hexdigest()
    if digest != _HEADERS_DIGEST:
        raise SystemExit(f"{_HEADERS_PACKAGE} has other headers than it had: SHA-256 {digest}, not {_HEADERS_DIGEST}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in headers.items():
        (folder / name).write_bytes(content)
    return folder


class PluginBuild(CMakeBuild):
    """Build the plugin for ONNX Runtime, which has a CMake project of its own."""

    where = Path("tvm_sched_onnxruntime") / "_lib"

    def run(self) -> None:
        """Configure and build; CMake writes where the library is to lie."""
        build = ROOT / "build" / "onnxruntime"
        cmake = self._tool("cmake")
        shutil.rmtree(build, ignore_errors=True)  # two files: there is nothing to gain by keeping them
        options = [f"-DPython_EXECUTABLE={sys.executable}", f"-D{HEADERS}={onnxruntime_headers()}"]
        options += [f"-DTVM_SCHED_ONNXRUNTIME_FOLDER={self._folder()}", f"-DTVM_SCHED_VERSION={self._version()}"]
        subprocess.check_call([cmake, "-S", ROOT / "cpp" / "onnxruntime", "-B", build, *options])
        subprocess.check_call([cmake, "--build", build, "--parallel", str(self._jobs())])

    def _version(self) -> str:
        return str(self.distribution.metadata.version)


class FreshWheel(bdist_wheel):
    """A wheel without what an earlier one left in the folder that it is built in."""

    def run(self) -> None:
        """Remove that folder, then build."""
        shutil.rmtree(self.get_finalized_command("build").build_base, ignore_errors=True)
        super().run()


class AnyPython(FreshWheel):
    """A wheel for every CPython of the platform that its libraries are for."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag, without the interpreter that builds."""
        return ("py3", "none", super().get_tag()[2])


class OwnFolder(Distribution):
    """A distribution that is built in a folder of its own."""

    requires_of_ours: tuple[str, ...] = ()
    """Distributions of this tree that it needs, in the same version."""

    def __init__(self, attributes: dict[str, object] | None = None) -> None:
        super().__init__(attributes)
        self.cmdclass["bdist_wheel"] = FreshWheel
        folder = ROOT / "build" / "setuptools" / type(self).__name__.lower()
        self.get_option_dict("build")["build_base"] = (__file__, str(folder))

    def parse_config_files(self, *arguments: object, **named: object) -> None:
        """Read ``pyproject.toml``, and require the other distributions of this tree."""
        super().parse_config_files(*arguments, **named)
        self.require([self.of_this_version(name) for name in self.requires_of_ours], self.install_requires)

    def of_this_version(self, name: str) -> str:
        """Return the requirement of a distribution in the version of this one."""
        return f"{name}=={self.metadata.version}"

    def require(self, *requirements: list[str]) -> None:
        """Set all that is required."""
        self.install_requires = [each for part in requirements for each in part]
        self.metadata.install_requires = self.install_requires  # written into the wheel from there

    def offer(self, **extras: list[str]) -> None:
        """Set what extras require; a name of a distribution alone is one of this tree, in this version."""
        for name, requirements in extras.items():
            self.extras_require[name] = [
                self.of_this_version(each) if each.startswith("tvm-sched") else each for each in requirements
            ]
        self.metadata.extras_require = self.extras_require


class Check(OwnFolder):
    """``tvm-sched-check``."""


class Frontends(OwnFolder):
    """``tvm-frontends``."""


class Bench(OwnFolder):
    """``tvm-sched-bench``."""

    requires_of_ours = ("tvm-sched",)  # which brings the checker, whole or split


class Cluster(OwnFolder):
    """``tvm-sched-cluster``."""

    requires_of_ours = ("tvm-sched",)

    def parse_config_files(self, *arguments: object, **named: object) -> None:
        """Read ``pyproject.toml``, and offer the benchmark, which loads `benchmark_kind`."""
        super().parse_config_files(*arguments, **named)
        self.offer(bench=["tvm-sched-bench"])


class Language(OwnFolder):
    """``tvm-sched-language``."""

    requires_of_ours = ("tvm-sched-runtime",)

    def parse_config_files(self, *arguments: object, **named: object) -> None:
        """Read ``pyproject.toml``, and offer what compiles."""
        super().parse_config_files(*arguments, **named)
        self.offer(compile=["tvm-sched", *self.extras_require["compile"]])


class Plans(OwnFolder):
    """``tvm-sched-plans``."""

    requires_of_ours = ("tvm-sched",)


class OnnxRuntime(OwnFolder):
    """``tvm-sched-onnxruntime``."""

    requires_of_ours = ("tvm-sched",)

    def __init__(self, attributes: dict[str, object] | None = None) -> None:
        super().__init__(attributes)
        self.cmdclass.update(build_ext=PluginBuild, bdist_wheel=AnyPython)
        self.ext_modules = [Extension("tvm_sched_onnxruntime._lib.libtvm_sched_onnxruntime", sources=[])]


class Whole(OwnFolder):
    """``tvm-sched`` with everything."""

    def __init__(self, attributes: dict[str, object] | None = None) -> None:
        super().__init__(attributes)
        self.cmdclass.update(build_ext=CMakeBuild, bdist_wheel=AnyPython)
        self.ext_modules = [CMakeExtension()]


class Runtime(Whole):
    """``tvm-sched-runtime``."""

    def parse_config_files(self, *arguments: object, **named: object) -> None:
        """Read ``pyproject.toml``, and offer what generates text."""
        super().parse_config_files(*arguments, **named)
        self.offer(generate=["tvm-sched-language"])


class Split(OwnFolder):
    """``tvm-sched`` without what the other distributions have."""

    requires_of_ours = ("tvm-sched-runtime", "tvm-frontends", "tvm-sched-check")

    def __init__(self, attributes: dict[str, object] | None = None) -> None:
        super().__init__(attributes)
        # Beside the packages its entry points would hide those of the whole, which this tree is installed as.
        folder = ROOT / "build" / "egg-info"
        folder.mkdir(parents=True, exist_ok=True)
        self.get_option_dict("egg_info")["egg_base"] = (__file__, str(folder))

    def parse_config_files(self, *arguments: object, **named: object) -> None:
        """Read ``pyproject.toml``, and leave out what belongs to other distributions."""
        super().parse_config_files(*arguments, **named)
        self.packages = [name for name in self.packages if distribution_of(name) == "tvm-sched"]
        self.entry_points = {
            group: own
            for group, entries in self.entry_points.items()
            if (own := [entry for entry in entries if distribution_of(_module_of(entry)) == "tvm-sched"])
        }
        self.require([text for text in self.install_requires if not text.startswith(_BUNDLED)])
        self.offer(
            bench=["tvm-sched-bench"],
            cluster=["tvm-sched-cluster"],
            generate=["tvm-sched-language[compile]"],
            plans=["tvm-sched-plans"],
        )


def _module_of(entry_point: str) -> str:
    """Return the module that an entry point such as ``name = module:object`` names."""
    return entry_point.partition("=")[2].partition(":")[0].strip()
