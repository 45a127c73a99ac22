"""`compile`: parameters, several input shapes, export."""

import os

import numpy as np
import pytest
import tvm
from safetensors.numpy import load_file, save_file

from relax import cases
from relax.compare import assert_same
from tvm_sched.relax import compile, make_problem
from tvm_sched_runtime import runtime
from tvm_sched_runtime.errors import InputError

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

    schedule = solve(problem, method="single")
    model = compile(cases.Branches, "cpu2", schedule=schedule)
    assert model.schedule == schedule
    with pytest.raises(InputError, match="the schedule is for problem"):
        compile(cases.Branches, "cpu3", schedule=schedule)


def test_wrong_arguments(tmp_path):
    with pytest.raises(InputError, match="allowed are 'auto', 'embed', 'external'"):
        compile(cases.Branches, "cpu2", parameters="elsewhere")
    with pytest.raises(InputError, match="there is no scheduler 'nosuch'"):
        compile(cases.Branches, "cpu2", "nosuch")
    with pytest.raises(InputError, match="allowed are 'cpu', 'emulated', 'cuda'"):
        compile(cases.Branches, "cpu2", "single", backend="gpu")
    with pytest.raises(InputError, match="two sets of input shapes are the same"):
        compile(small_model(w=W, b=B), "cpu2", "single", input_shapes=[{"x": (1, 4)}, {"x": (1, 4)}])
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


def test_all_results_come_from_the_module_too():
    """Inputs handed back and results that are the same are outputs of the model, though not of the plan."""
    x = np.linspace(0, 1, 4, dtype="float32")
    found = compile(cases.SameTwice, "cpu2", "single").module.run(x)
    assert_same(found, [np.exp(x), x, np.exp(x), np.exp(x)])


def test_an_artifact_written_anew_is_loaded_anew(tmp_path):
    path = tmp_path / "model.so"
    for batch in (1, 2, 3):
        compile(small_model(w=W, b=B), "cpu1", "single", input_shapes={"x": (batch, 4)}).export(path)
        assert runtime.load(path).plans()[0]["arguments"][0]["shape"] == [batch, 4]
        assert runtime.load(path).run(np.ones((batch, 4), "float32"))[0].shape == (batch, 3)


def test_a_failed_export_leaves_what_was_there(tmp_path, monkeypatch):
    model = compile(small_model(w=W, b=B), "cpu1", "single", input_shapes={"x": (2, 4)}, parameters="external")

    def fail(path, *_):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tvm_sched.relax.emit.export.write_parameters", fail)
    (tmp_path / "model.so").write_bytes(b"old")
    with pytest.raises(InputError, match=r"cannot be written .No space left"):
        model.export(tmp_path / "model.so")
    assert [path.name for path in tmp_path.iterdir()] == ["model.so"]
    assert (tmp_path / "model.so").read_bytes() == b"old"
    with pytest.raises(InputError, match=r"must end in \.so"):
        model.export(tmp_path / "model")


def external(weights):
    return compile(small_model(w=weights, b=B), "cpu1", "single", input_shapes={"x": (2, 4)}, parameters="external")


def test_a_kill_between_the_two_files_of_an_export(tmp_path, monkeypatch):
    """The old artifact goes on with its own parameters, and the next export clears up."""
    path, x = tmp_path / "model.so", np.ones((2, 4), "float32")
    old, new = external(W), external(2 * W)
    old.export(path)
    replace = os.replace

    def killed(source, target):
        if str(target) == str(path):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            new.export(path)
    assert_same(runtime.load(path).run(x)[0], old.run(x))
    new.export(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.safetensors", "model.so"]
    assert_same(runtime.load(path).run(x)[0], new.run(x))


def test_parameters_of_another_compilation_are_refused_unless_they_are_named(tmp_path):
    one, other, x = tmp_path / "one.so", tmp_path / "other.so", np.ones((2, 4), "float32")
    external(W).export(one)
    external(2 * W).export(other)
    other.with_suffix(".safetensors").rename(one.with_suffix(".safetensors"))
    with pytest.raises(
        InputError, match=r"one\.safetensors: holds the parameters of another compilation than .*one\.so"
    ):
        runtime.load(one)
    assert runtime.load(one, one.with_suffix(".safetensors")).run(x) is not None
    save_file(load_file(one.with_suffix(".safetensors")), one.with_suffix(".safetensors"))
    assert runtime.load(one).run(x) is not None, "what another program wrote is taken"


def test_threads_take_turns():
    from concurrent.futures import ThreadPoolExecutor

    model = compile(small_model(w=W, b=B), "cpu2", "single", input_shapes={"x": (2, 4)})
    inputs = [np.full((2, 4), k, "float32") for k in range(8)]
    for call in (model.run, lambda x: model.module.run(x)[0]):
        with ThreadPoolExecutor(8) as pool:
            for x, found in zip(inputs * 40, pool.map(call, inputs * 40), strict=True):
                assert_same(found, expected(x))


def test_indices_out_of_range_read_nothing_else():
    table = np.arange(12, dtype="float32").reshape(4, 3)
    indices = np.array([3, -1, 4, 10**12, -(10**12)])
    found = compile(cases.Take, "cpu1", "single").run(table, table.astype("int32"), indices)
    np.testing.assert_array_equal(found[0][0], table[3])
    assert np.isnan(found[0][2:]).all()
    np.testing.assert_array_equal(found[1][[0, 2, 3]], table[[3, 3, 3]].astype("int32"))


def test_repr_is_short():
    model = compile(small_model(w=W, b=B), "cpu1", "single", input_shapes={"x": (2, 4)}, parameters="external")
    assert repr(model) == "CompiledModel(Problem('small': 1 operators, 'cpu1'), single; 2 external parameters)"


@pytest.mark.parametrize("value", [None, "text", object()])
def test_arguments_that_are_no_arrays(value):
    model = compile(small_model(w=W, b=B), "cpu1", "single", input_shapes={"x": (2, 4)})
    with pytest.raises(InputError, match=r"input 0 \(x\): a value of type .* cannot be taken as a tensor"):
        model.run(value)
