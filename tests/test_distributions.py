"""What the distributions of the tree hold; `make test-wheels` builds, installs and uses them."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "distributions"))
import build_tools  # noqa: E402

tomllib = pytest.importorskip("tomllib", reason="part of Python from 3.11 on")
FRONTENDS = ROOT / "distributions" / "frontends" / "pyproject.toml"
INSTALLED = {"msgspec", "numpy", "tvm_ffi"}
OPTIONAL = {"ml_dtypes", "tvm"}
"""Imported where a tensor's type needs the one, and where the other's libraries are loaded."""
MODULES = {"cupy_cuda13x": "cupy", "nvidia_ml_py": "pynvml", "pillow": "PIL", "xgboost_cpu": "xgboost"}
"""Requirements whose modules have other names."""


def test_the_runtime_imports_nothing_that_it_has_not():
    graph = grimp.build_graph("tvm_sched_runtime", include_external_packages=True, exclude_type_checking_imports=True)
    ours = {name for name in graph.modules if name.partition(".")[0] == "tvm_sched_runtime"}
    outside = {
        f"{module} -> {imported}"
        for module in ours
        for imported in graph.find_modules_directly_imported_by(module) - ours
        if imported not in INSTALLED | OPTIONAL | {"tomli"} | sys.stdlib_module_names
    }
    assert not outside


def test_the_core_does_not_speak_of_ray():
    files = [
        file for file in (ROOT / "python" / "tvm_sched").rglob("*") if file.suffix in (".py", ".toml", ".html", ".js")
    ]
    assert len(files) > 250
    assert not [file for file in files if re.search(r"\bray\b", file.read_text("utf-8"), re.IGNORECASE)]


def test_both_ask_for_the_same_versions():
    whole, runtime = (
        tomllib.loads((folder / "pyproject.toml").read_text()) for folder in (ROOT, ROOT / "distributions" / "runtime")
    )
    assert set(runtime["project"]["dependencies"]) <= {*whole["project"]["dependencies"], *_tbb(whole)}
    assert set(whole["build-system"]["requires"]) <= set(runtime["build-system"]["requires"])


def test_the_front_ends_ask_for_the_same_versions():
    whole, frontends = (tomllib.loads(file.read_text())["project"] for file in (ROOT / "pyproject.toml", FRONTENDS))
    assert set(frontends["dependencies"]) <= set(whole["dependencies"])
    for name, requirements in frontends["optional-dependencies"].items():
        assert set(requirements) <= set(whole["optional-dependencies"][name])


@pytest.mark.parametrize(
    ("package", "folder", "ours"),
    [
        ("tvm_frontends", "frontends", set()),
        ("tvm_sched", ".", {"tvm_frontends", "tvm_sched_check", "tvm_sched_runtime"}),
        ("tvm_sched_bench", "bench", {"tvm_sched", "tvm_sched_check", "tvm_sched_runtime"}),
        ("tvm_sched_cluster", "cluster",
         {"tvm_sched", "tvm_sched_bench", "tvm_sched_check", "tvm_sched_runtime", "tvm_sched_serve"}),
        ("tvm_sched_language", "language", {"tvm_frontends", "tvm_sched", "tvm_sched_runtime"}),
        ("tvm_sched_onnxruntime", "onnxruntime", {"tvm_sched", "tvm_sched_runtime"}),
        ("tvm_sched_plans", "plans", {"tvm_sched", "tvm_sched_runtime"}),
    ],
)  # fmt: skip
def test_a_package_imports_nothing_that_its_distribution_does_not_require(package, folder, ours):
    """What a requirement itself requires may be gone in its next release, as click is of typer's."""
    graph = grimp.build_graph(package, include_external_packages=True, exclude_type_checking_imports=True)
    project = _project(folder)
    extras = project.get("optional-dependencies", {})
    required = [text for texts in (project["dependencies"], *extras.values()) for text in texts]
    names = {re.split(r"[<>=;\[ ]", text)[0].replace("-", "_").removeprefix("apache_") for text in required}
    allowed = {package, *ours, *names, *(MODULES[name] for name in names & MODULES.keys())} | sys.stdlib_module_names
    outside = {
        f"{module} -> {imported}"
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.partition(".")[0] not in allowed
    }
    assert not outside


@pytest.mark.parametrize("name", sorted(path.parent.name for path in ROOT.glob("distributions/*/pyproject.toml")))
def test_each_distribution_holds_the_licence(name):
    """Each wheel takes the licence from the folder that it is built in."""
    for file in _project(name)["license-files"]:
        assert (ROOT / "distributions" / name / file).read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_commands_without_a_checkout_name_all_that_is_ours():
    """pip would look for a forgotten one on PyPI, where the name may be somebody else's."""
    page = (ROOT / "docs" / "distributions.md").read_text()
    ours, others = re.findall(r"^pip install (.*)$", page.partition("## Without a checkout")[2], re.MULTILINE)[:2]
    named = {word for word in ours.split() if word.startswith("tvm-")}
    assert "--no-index" in ours
    assert others == "'tvm-sched[bench,onnx,report]'"
    assert named == {"tvm-sched", *build_tools.Split.requires_of_ours, "tvm-sched-bench"}


def test_the_checker_requires_nothing():
    assert not _project("check")["dependencies"]


@pytest.mark.parametrize("name", ["bench", "cluster", "language", "onnxruntime", "plans"])
def test_an_attached_distribution_asks_for_the_same_versions(name):
    whole, attached = _project("."), _project(name)
    of_all = {*whole["dependencies"], *(text for texts in whole["optional-dependencies"].values() for text in texts)}
    of_it = {
        *attached["dependencies"],
        *(text for texts in attached.get("optional-dependencies", {}).values() for text in texts),
    }
    assert of_it <= of_all


def test_the_whole_has_the_entry_points_of_all():
    found = {}
    for name in ("bench", "check", "cluster", "frontends", "language", "plans", "runtime"):
        for group, entries in _entry_points(_project(name)).items():
            if (name, group) != ("runtime", "console_scripts"):  # `tvm-sched run` does what its program does
                found.setdefault(group, {}).update(entries)
    whole = _entry_points(_project("."))
    of_the_core = {
        group: {name: value for name, value in entries.items() if name not in found.get(group, {})}
        for group, entries in whole.items()
    }
    modules = [value.partition(":")[0] for entries in of_the_core.values() for value in entries.values()]
    assert {build_tools.distribution_of(module) for module in modules} == {"tvm-sched"}
    assert all(whole[group][name] == value for group, entries in found.items() for name, value in entries.items())


@pytest.mark.parametrize(
    "name", sorted({".", *(file.parent.name for file in ROOT.glob("distributions/*/pyproject.toml"))})
)
def test_each_file_beside_modules_is_in_the_wheel(name):
    tool = _document(name)["tool"]["setuptools"]
    included = {entry.rstrip(".*") for entry in tool["packages"]["find"].get("include", build_tools.OWN_PACKAGES)}
    packages = included if name != "." else {"tvm_sched"}
    files = [
        file for each in packages for file in (ROOT / "python" / each).rglob("*") if file.is_file()
        and file.suffix not in (".py", ".pyc") and "_lib" not in file.parts
    ]  # fmt: skip
    assert files
    assert not [file for file in files if not any(file.match(pattern) for pattern in tool["package-data"]["*"])]


def _document(name):
    folder = ROOT if name == "." else ROOT / "distributions" / name
    return tomllib.loads((folder / "pyproject.toml").read_text())


def _project(name):
    return _document(name)["project"]


def _entry_points(project):
    return {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}


def test_each_module_is_in_one_distribution():
    assert build_tools.distribution_of("tvm_sched_check.clusters") == "tvm-sched-check"
    assert build_tools.distribution_of("tvm_sched_bench.testing.graphs") == "tvm-sched-bench"
    assert build_tools.distribution_of("tvm_sched_language.generator") == "tvm-sched-language"
    assert build_tools.distribution_of("tvm_sched_onnxruntime.claim") == "tvm-sched-onnxruntime"
    assert build_tools.distribution_of("tvm_sched_plans.planner") == "tvm-sched-plans"
    assert build_tools.distribution_of("tvm_sched_cluster.serving") == "tvm-sched-cluster"
    assert build_tools.distribution_of("tvm_sched_serve.server") == "tvm-sched-runtime"
    assert build_tools.distribution_of("tvm_frontends.onnx.loop_operators") == "tvm-frontends"
    assert build_tools.distribution_of("tvm_sched.relax.api") == "tvm-sched"


def _tbb(project):
    """TBB, which `tvm-sched` gets through oneDNN's package, and the runtime by itself."""
    return {text.replace("tbb-devel", "tbb") for text in project["build-system"]["requires"] if "tbb-devel" in text}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree with C++ sources, and a wheel of them for an old glibc."""
    monkeypatch.setattr(build_tools, "ROOT", tmp_path)
    monkeypatch.setattr(build_tools, "glibc_version", lambda: (2, 36))
    (tmp_path / "cpp").mkdir()
    (tmp_path / "cpp" / "a.cc").write_text("int a;")
    (tmp_path / "CMakeLists.txt").write_text("project(a)")
    (tmp_path / "dist").mkdir()
    wheel = tmp_path / "dist" / "tvm_sched_runtime-0.2.0-py3-none-manylinux_2_35_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tvm_sched_runtime/_lib/libtvm_sched.so", b"library")
        archive.writestr("tvm_sched_runtime/_lib/sources.sha256", build_tools.sources_digest())
        archive.writestr("tvm_sched_runtime/core_library.py", "")
    return tmp_path, wheel


def test_a_tree_that_was_never_built_takes_the_libraries_of_a_wheel_of_its_sources(tree, monkeypatch):
    root, _ = tree
    command = build_tools.CMakeBuild(build_tools.Distribution())
    command.inplace = True
    monkeypatch.setattr(build_tools.subprocess, "check_call", lambda call: pytest.fail(f"{call} was run"))
    command.run()
    (library,) = (root / "python" / "tvm_sched_runtime" / "_lib").iterdir()
    assert (library.name, library.read_bytes()) == ("libtvm_sched.so", b"library")


@pytest.mark.parametrize("other", ["source", "new file", "older glibc", "damaged", "no digest"])
def test_a_wheel_of_other_sources_or_for_another_system_is_left_alone(tree, other, monkeypatch):
    root, wheel = tree
    assert build_tools.built_wheel() == wheel
    if other == "source":
        (root / "cpp" / "a.cc").write_text("int b;")
    elif other == "new file":
        (root / "cpp" / "b.cc").write_text("")
    elif other == "older glibc":
        monkeypatch.setattr(build_tools, "glibc_version", lambda: (2, 34))
    elif other == "damaged":
        wheel.write_bytes(wheel.read_bytes()[:40])
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("tvm_sched_runtime/_lib/libtvm_sched.so", b"library")
    assert build_tools.built_wheel() is None


def test_a_wheel_that_is_missing_is_named(tmp_path):
    """The plugin's, too, unless it is said that there is none."""
    for name in ("", "_bench", "_check", "_cluster", "_language", "_plans", "_runtime"):
        (tmp_path / f"tvm_sched{name}-1-py3-none-any.whl").touch()
    program = [sys.executable, ROOT / "distributions" / "check_wheels.py", "--dist", tmp_path]
    for more, missing in ((), "frontends, onnxruntime"), (("--without-plugin",), "frontends:"):
        done = subprocess.run([*program, *more], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"has no wheel of {missing}" in done.stderr


def _commands():
    """Each console script of the distributions, with arguments that print; and a command of ``tvm-sched`` that prints."""
    projects = (_project(file.parent.name) for file in ROOT.glob("distributions/*/pyproject.toml"))
    scripts = {
        name: where for project in (_project("."), *projects) for name, where in project.get("scripts", {}).items()
    }
    return [
        *((name, where, "--help") for name, where in scripts.items()),
        ("tvm-sched", scripts["tvm-sched"], "schedulers"),
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "where", "argument"), _commands())
@pytest.mark.parametrize("output", ["closed pipe", "full disk"])
def test_a_command_ends_well_where_standard_output_takes_no_more(name, where, argument, output):
    if output == "closed pipe":
        reader, file = os.pipe()
        os.close(reader)
    else:
        file = os.open("/dev/full", os.O_WRONLY)
    module, function = where.split(":")
    code = f"import sys; sys.argv[0] = {name!r}; from {module} import {function}; sys.exit({function}())"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with os.fdopen(file) as stdout:
        done = subprocess.run(
            [sys.executable, "-c", code, argument],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    assert done.returncode == 1
    if output == "closed pipe":
        assert done.stderr == ""
    else:
        assert re.fullmatch(r"error: standard output.*: No space left on device\n", done.stderr)
