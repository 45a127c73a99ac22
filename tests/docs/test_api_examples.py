"""Each public name of the API reference has an example or a reason for none, and the examples are run.

What they share stands on ``docs/api/examples.md``: a section's block is run once for each docstring, or once in all where
running it takes seconds and its examples change nothing.
"""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

API = Path(__file__).parents[2] / "docs" / "api"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

CLUSTER = "needs a running Ray cluster; tests/serving runs it"
WEIGHTS = "needs a folder with weights and tokenizer; docs/tasks/language_models.md and tests/language run it"
WITHOUT_EXAMPLE = {
    "tvm_sched.pipeline.open_pipeline": "its argument is a result of tvm.compile; tests/pipeline runs it",
    "tvm_sched.relax.lower.kernel_libraries.make_modules": "called with kernels; the example of EmitExecutor runs it",
    "tvm_sched_runtime.runtime.make_module": "called with an execution plan; the example of EmitExecutor runs it",
    "tvm_sched_cluster.serving.Client": CLUSTER,
    "tvm_sched_cluster.serving.RayExecutor": CLUSTER,
    "tvm_sched_cluster.serving.connect": CLUSTER,
    "tvm_sched_cluster.serving.deploy": CLUSTER,
    "tvm_sched_cluster.serving.deployment_of": "needs an artifact of the same stages; tests/serving runs it",
    "tvm_sched_cluster.serving.deployments": CLUSTER,
    "tvm_sched_cluster.serving.rollout": CLUSTER,
    "tvm_sched_cluster.serving.executor_of": CLUSTER,
    "tvm_sched_cluster.serving.follow": CLUSTER,
    "tvm_sched_cluster.serving.status": CLUSTER,
    "tvm_sched_cluster.serving.undeploy": CLUSTER,
    "tvm_sched_language.LanguageModel": WEIGHTS,
    "tvm_sched_language.Text": WEIGHTS,
    "tvm_sched_language.compile_language_model": WEIGHTS,
}
"""Public names that have no example yet, and why. The list may only get shorter."""

ELSEWHERE = {
    "tvm_frontends.hugging_face.load": "tests/frontends/test_examples.py",
    "tvm_frontends.torch.import_program.load": "tests/frontends/test_examples.py",
    "tvm_sched_language.Generator": "tests/language/test_generator.py",
}
"""Examples that need PyTorch or weights, and the tests that run them; of the generator, the same calls."""

ONCE = {"Compiling, running, front ends", "Language models"}
SECTIONS = {
    "tvm_frontends": "Compiling, running, front ends",
    "tvm_sched.relax": "Compiling, running, front ends",
    "tvm_sched_runtime.runtime": "Compiling, running, front ends",
    "tvm_sched_bench": "Benchmark",
    "tvm_sched_cluster": "Clusters",
    "tvm_sched_language": "Language models",
}
FIRST = "Problems, schedules, schedulers, latencies, pipelines"
ARTIFACTS = {
    f"tvm_sched.pipeline.{name}" for name in ("CompiledPipeline", "Manifest", "load", "load_manifest", "load_stage")
}


def public_names():
    """Functions and classes of the reference, by dotted path; those that two pages show stand here once."""
    found = {}
    for path in re.findall(
        r"^::: (\S+)$", "\n".join(page.read_text() for page in sorted(API.glob("*.md"))), re.MULTILINE
    ):
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError:
            parent, _, name = path.rpartition(".")
            module, names = importlib.import_module(parent), [name]
        else:
            own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == path]
            names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
        for name in names:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value) or hasattr(value, "__wrapped__"):
                found.setdefault(id(value) if inspect.isclass(value) else value, (f"{module.__name__}.{name}", value))
    return dict(found.values())


def section_of(path, value):
    """Section of ``examples.md`` whose names an example uses."""
    if value.__module__ == "tvm_sched.registry":  # one docstring for schedulers, partitioners and allocators
        return FIRST
    if path in ARTIFACTS:
        return SECTIONS["tvm_sched_runtime.runtime"]
    return next((section for package, section in SECTIONS.items() if path.startswith(f"{package}.")), FIRST)


def shared_code():
    """Blocks of ``examples.md`` by section."""
    found = re.findall(
        r"^## (.*?)\n.*?^```python\n(.*?)^```", (API / "examples.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return dict(found)


@pytest.fixture(scope="module")
def names():
    for package in ("onnx", "ray", "tvm"):
        pytest.importorskip(package, reason=f"the reference shows what needs {package}")
    return public_names()


@pytest.fixture
def registries(monkeypatch):
    """What examples register is forgotten afterwards."""
    from tvm_sched.cost_model import COST_MODELS
    from tvm_sched.schedulers.scheduler_registry import SCHEDULERS

    for registry in (COST_MODELS, SCHEDULERS):
        registry.names()
        monkeypatch.setattr(registry, "entries", dict(registry.entries))


def test_each_public_name_has_an_example(names):
    without = {path for path, value in names.items() if ">>> " not in (value.__doc__ or "")}
    assert without == set(WITHOUT_EXAMPLE), "give new names an example, and take names that have one off the list"


@pytest.mark.slow
def test_examples_give_what_they_show(names, registries, tmp_path, monkeypatch):
    monkeypatch.delenv("TVM_SCHED_COSTS")  # examples show what users get
    blocks = shared_code()
    assert set(SECTIONS.values()) | {FIRST} == set(blocks)
    blocks["Benchmark"] = blocks[FIRST] + blocks["Benchmark"]
    parser, shared, failed, attempted = doctest.DocTestParser(), {}, [], 0
    for number, (path, value) in enumerate(names.items()):
        if path in WITHOUT_EXAMPLE or path in ELSEWHERE:
            continue
        section = section_of(path, value)
        folder = tmp_path / (section if section in ONCE else str(number))
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        if section not in shared or section not in ONCE:
            shared[section] = {}
            exec(compile(blocks[section], f"examples.md, {section}", "exec"), shared[section])
        test = parser.get_doctest(inspect.cleandoc(value.__doc__), dict(shared[section]), path, None, 0)
        said = []
        results = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append)
        attempted += results.attempted
        if results.failed:
            failed.append("".join(said))
    assert not failed, "\n".join(failed)
    assert attempted > len(names)
