"""The code in docs/extending.md, in the task pages that it names and in examples/ does what the pages say."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from tvm_sched import cost_model
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.scheduler_registry import SCHEDULERS
from tvm_sched_bench.testing import random_graph, random_topology
from tvm_sched_runtime.problem import Problem, load_topology

ROOT = Path(__file__).parents[2]


def some_problem(seed, devices=2, operators=10):
    """A problem in which every operator runs everywhere."""
    graph, topology = random_graph(seed, operators), random_topology(seed, devices, style="bus")
    return Problem(graph, topology, cost_model.roofline(graph, topology))


@pytest.fixture(autouse=True)
def own_registries(monkeypatch):
    SCHEDULERS.names(), cost_model.COST_MODELS.names()  # what there is must not be forgotten with what follows
    monkeypatch.setattr(SCHEDULERS, "entries", dict(SCHEDULERS.entries))
    monkeypatch.setattr(cost_model.COST_MODELS, "entries", dict(cost_model.COST_MODELS.entries))


def blocks(needs_tvm=False):
    text = (ROOT / "docs" / "extending.md").read_text()
    found = re.findall(r"(<!-- needs tvm -->\n)?```python\n(.*?)```", text, re.DOTALL)
    return [code for mark, code in found if bool(mark) == needs_tvm]


def first_block(task):
    return re.search(r"```python\n(.*?)```", (ROOT / "docs" / "tasks" / task).read_text(), re.DOTALL).group(1)


def test_blocks_run_one_after_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    some_problem(3).save("problem.json")
    names = {}
    for code in blocks():
        exec(code, names)
    assert re.match(r"\d\.\d+ s, gap \d+%\n\d+\n", capsys.readouterr().out)
    assert load_topology("mine.toml").name == "mine"
    assert Problem.load("problem.json").digest == names["schedule"].problem


def test_pipeline_target():
    pytest.importorskip("tvm", exc_type=ImportError)
    from tvm_sched.relax.autoload import register

    register()
    names = {}
    exec(blocks(needs_tvm=True)[0], names)
    assert len(names["pipeline"].stages) == 2
    assert names["result"].batch == 7
    np.testing.assert_allclose(names["value"].sum(axis=-1), 1, rtol=1e-5)


def test_a_function_of_another_code_generator(capsys):
    pytest.importorskip("tvm", exc_type=ImportError)
    exec(blocks(needs_tvm=True)[1], {})
    assert capsys.readouterr().out == "50000 [3. 3. 3. 3.]\n"


@pytest.mark.slow
def test_pass():
    tvm = pytest.importorskip("tvm", exc_type=ImportError)
    from tvm_sched.relax.ir.attributes import PROBLEM, get_schedule

    names = {}
    exec(first_block("write_pass.md"), names)
    problem = some_problem(4, operators=3)
    mod = names["BestOfTwo"]()(tvm.IRModule({}).with_attr(PROBLEM, problem.to_json().decode()))
    latencies = {name: solve(problem, method=name).certificate.latency_ns for name in ("single", "heft")}
    assert len(set(latencies.values())) == 2
    assert get_schedule(mod).certificate.latency_ns == min(latencies.values())
    assert get_schedule(mod).scheduler == min(latencies, key=latencies.get)


def test_kernel_library(monkeypatch):
    pytest.importorskip("tvm", exc_type=ImportError)
    from tvm import relax

    from tvm_sched.relax import compile
    from tvm_sched.relax.lower.kernel_libraries.kernel_library import LIBRARIES

    LIBRARIES.names()
    monkeypatch.setattr(LIBRARIES, "entries", dict(LIBRARIES.entries))
    exec(first_block("add_kernel_library.md"), {})
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.negative(x))
        builder.emit_func_output(result)
    compiled = compile(builder.get(), "cpu1", "single")
    assert [operator.kind for operator in compiled.problem.graph.operators] == ["mine.negative"]
    values = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(compiled.run(values), -values)
    with_both_libraries(values)


def with_both_libraries(values):
    """Build a product and a negation by TVM alone: one is oneDNN's, the other that of the page."""
    import tvm
    from tvm import relax

    from tvm_sched.relax.lower.kernel_libraries import OffloadKernels, claimed_functions, get_library

    if get_library("onednn").why_not() is not None:
        return
    weight = np.arange(12, dtype="float32").reshape(3, 4)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(relax.op.negative(x), relax.const(weight)))
            result = builder.emit_output(relax.op.negative(product))
        builder.emit_func_output(result)
    offloaded = OffloadKernels("mine")(OffloadKernels("onednn")(builder.get()))
    assert {name.partition(".")[0] for name in claimed_functions(offloaded)} == {"mine", "onednn"}
    machine = relax.VirtualMachine(tvm.compile(offloaded, "llvm"), tvm.cpu())
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(values)).numpy(), values @ weight)


@pytest.mark.parametrize("seed", range(5))
def test_round_robin_gives_feasible_schedules(seed):
    runpy.run_path(str(ROOT / "examples" / "round_robin_scheduler.py"))
    problem = some_problem(seed, devices=3)
    schedule = solve(problem, method="round-robin", options={"first": 1})
    assert schedule.options == {"first": 1}
    assert len({placement.device for placement in schedule.placements}) == 3
