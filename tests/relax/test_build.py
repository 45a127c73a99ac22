"""`compile`: parameters, several input shapes, export."""

import numpy as np
import pytest
import tvm

from relax import cases
from relax.compare import assert_same
from tvm_sched import runtime
from tvm_sched.errors import InputError
from tvm_sched.relax import compile, make_problem

onnx = pytest.importorskip("onnx")
from relax.onnx_models import small_model  # noqa: E402

W = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
B = np.linspace(-1, 1, 3, dtype="float32")
X = np.random.default_rng(1).standard_normal((2, 4)).astype("float32")


def expected(x):
    return np.maximum(x @ W + B, 0)


@pytest.mark.parametrize("parameters", ["auto", "embed", "external"])
def test_parameters(tmp_path, parameters):
    model = compile(small_model(w=W, b=B), "cpu2", input_shapes={"x": (2, 4)}, parameters=parameters)
    assert bool(model.parameters) == (parameters == "external")
    assert_same(model.run(X), expected(X))
    files = model.export(tmp_path / "model.so")
    assert [file.name for file in files] == ["model.so", "model.safetensors"][: len(files)]
    assert (len(files) == 2) == (parameters == "external")
    assert_same(runtime.load(files[0]).run(X), [expected(X)])


def test_several_shapes():
    model = compile(small_model(w=W, b=B), "cpu2", input_shapes=[{"x": (1, 4)}, {"x": (2, 4)}, {"x": (5, 4)}])
    assert len(model.schedules) == 3
    assert len(model.module.parameters()) == 2  # shared
    for batch in (1, 2, 5):
        x = np.random.default_rng(batch).standard_normal((batch, 4)).astype("float32")
        assert_same(model.run(x), expected(x))
    with pytest.raises(Exception, match="no plan of this module takes"):
        model.run(np.zeros((3, 4), "float32"))


def test_several_outputs_keep_their_structure():
    found = compile(cases.SameTwice, "cpu2").run(np.zeros(4, "float32"))
    assert np.shape(found[0][0]) == (4,)
    assert len(found[0][1]) == 2


def test_given_schedule():
    problem = make_problem(cases.Branches, "cpu2")
    from tvm_sched.schedulers import solve

    schedule = solve(problem, "single")
    model = compile(cases.Branches, "cpu2", schedule=schedule)
    assert model.schedule == schedule
    with pytest.raises(InputError, match="the schedule is for problem"):
        compile(cases.Branches, "cpu3", schedule=schedule)


def test_wrong_arguments(tmp_path):
    with pytest.raises(InputError, match="'auto', 'embed' or 'external' is allowed"):
        compile(cases.Branches, "cpu2", parameters="elsewhere")
    with pytest.raises(InputError, match="there is no scheduler 'nosuch'"):
        compile(cases.Branches, "cpu2", "nosuch")
    with pytest.raises(InputError, match="empty list"):
        compile(cases.Branches, "cpu2", input_shapes=[])
    with pytest.raises(InputError, match="does not exist"):
        compile(cases.SameTwice, "cpu1").export(tmp_path / "nowhere" / "model.so")


def test_module_without_work():
    model = compile(cases.OnlyInputs, "cpu2")
    assert_same(model.run(np.ones(4, "float32"), np.array(True)), [np.array(True), np.ones(4, "float32")])


def test_metadata():
    model = compile(small_model(w=W, b=B), "cpu2", input_shapes={"x": (2, 4)})
    info = model.module.info()
    assert info["topology"] == "cpu2"
    assert info["plans"][0]["problem"] == model.problem.digest
    assert info["plans"][0]["latency_ns"] == model.schedule.certificate.latency_ns


def test_virtual_machine_of_tvm():
    model = compile(cases.SameTwice, "cpu2")
    machine = tvm.relax.VirtualMachine(model.executable, tvm.cpu())
    assert_same(machine["main"](tvm.runtime.tensor(np.zeros(4, "float32"))), model.run(np.zeros(4, "float32")))
