"""Publish the wheels of ``dist/`` into an index on this machine, and install from there by the documents' words.

    python distributions/check_index.py [--dist dist] [--python python3.12]

The index is a folder in the form of PEP 503, served on the loopback address. An empty environment installs
``tvm-sched[bench,onnx,report]`` from it, with other packages from pip's own sources, and runs the README's five commands.
This is the dry run of a release: what pip fetches from PyPI afterwards are the same files.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import http.server
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from check_wheels import README, ROOT, WheelEnvironment

INSTALLED = "tvm-sched[bench,onnx,report]"
DISTRIBUTIONS = ROOT / "docs" / "distributions.md"
MODEL = """
import sys
from onnx import TensorProto, helper, save
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in "xy")
graph = helper.make_graph([helper.make_node("Sin", ["x"], ["y"])], "small", [x], [y])
save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), sys.argv[1])
"""
"""Program that writes a small model."""


def write_index(dist: Path, folder: Path) -> dict[str, str]:
    """Write a simple index of the wheels; return the version of each project."""
    projects: dict[str, list[Path]] = {}
    for wheel in sorted(dist.glob("*.whl")):
        projects.setdefault(re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower(), []).append(wheel)
    for project, wheels in projects.items():
        place = folder / "simple" / project
        place.mkdir(parents=True)
        links = []
        for wheel in wheels:
            shutil.copy(wheel, place)
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            links.append(f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a><br>')
        (place / "index.html").write_text("<!doctype html>\n" + "\n".join(links) + "\n")
    listed = "\n".join(f'<a href="{project}/">{project}</a><br>' for project in projects)
    (folder / "simple" / "index.html").write_text(f"<!doctype html>\n{listed}\n")
    return {project: wheels[0].name.split("-")[1] for project, wheels in projects.items()}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on the loopback address; give the address of its index."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
        finally:
            server.shutdown()
            thread.join()


def main() -> None:
    """Publish, install, run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="what makes the environment (default: this Python)")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the wheels (default: dist)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tvm-sched-index-") as name:
        folder = Path(name)
        versions = write_index(options.dist, folder)
        environment = WheelEnvironment(options.python, folder / "environment")
        with served(folder) as address:
            environment.install("--extra-index-url", address, f"{INSTALLED}=={versions['tvm-sched']}")
        for project in ("tvm-sched", "tvm-sched-runtime", "tvm-frontends", "tvm-sched-check", "tvm-sched-bench"):
            asked = f"from importlib.metadata import version; print(version({project!r}))"
            installed = environment.run("python", "-c", asked).strip()
            assert installed == versions[project], f"{project} {installed} was installed, not {versions[project]}"
        environment.follow(README, "Five commands")
        subprocess.check_call([environment.programs / "tvm-sched", "--version"])
        environment.run("python", "-c", MODEL, folder / "model.onnx")  # the tools of a build have no onnx
        _check_one_line(options, folder)
    print(f"{INSTALLED} {versions['tvm-sched']} installs from an index, and the README's five commands run")


def _check_one_line(options: argparse.Namespace, folder: Path) -> None:
    """Run the one-line installation of docs/distributions.md on ``model.onnx``, in a cache of its own."""
    if shutil.which("uvx") is None:
        print("uvx is not installed (pip install uv): the one-line installation was not checked")
        return
    (line,) = (text for text in DISTRIBUTIONS.read_text().splitlines() if text.startswith("uvx "))
    words = [{"dist": str(options.dist.resolve())}.get(word, word) for word in shlex.split(line)]
    environment = {
        **os.environ,
        "UV_CACHE_DIR": str(folder / "uv"),
        "UV_SYSTEM_CERTS": "1",
        "UV_PYTHON": options.python,
    }
    environment.pop("PYTHONPATH", None)
    subprocess.run(words, cwd=folder, env=environment, check=True)
    assert (folder / "model-auto" / "model.so").exists()


if __name__ == "__main__":
    main()
