"""One artifact for several shapes: symbols, one copy of parameters and kernels, the choice by `main`; frozen inputs."""

import json

import numpy as np
import pytest
import tvm

from relax import cases
from relax.compare import assert_same
from tvm_sched.relax import compile, load_model
from tvm_sched_runtime import runtime
from tvm_sched_runtime.errors import InputError

onnx = pytest.importorskip("onnx")
from onnx_text import onnx_model  # noqa: E402
from relax.onnx_models import small_model  # noqa: E402

W = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
B = np.linspace(-1, 1, 3, dtype="float32")


def expected(x):
    return np.maximum(x @ W + B, 0)


@pytest.fixture(scope="module")
def compiled():
    return compile(small_model(w=W, b=B), "cpu2", "single", input_shapes={"batch": {1, 2, 5}}, parameters="external")


def test_parameters_are_there_once(compiled, tmp_path):
    files = compiled.export(tmp_path / "m.so")
    assert [file.name for file in files] == ["m.so", "m.safetensors"]
    assert len(compiled.parameters) == 2
    module = runtime.load(files[0])
    assert len(module.plans()) == 3
    for batch in (5, 1, 2):
        x = np.random.default_rng(batch).standard_normal((batch, 4)).astype("float32")
        assert_same(module.run(x), [expected(x)])


@pytest.mark.parametrize("shape", [(3, 4), (1, 5), (4,)])
def test_main_of_the_executable_lists_the_shapes_there_are(tmp_path, shape):
    """The artifact as TVM's own loader sees it: nothing of this package but its library."""
    path = compile(small_model(w=W, b=B), "cpu1", "single", input_shapes={"batch": {1, 2}}).export(tmp_path / "m.so")[0]
    machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    assert_same(
        machine["main"](tvm.runtime.tensor(np.ones((2, 4), "float32"))).numpy(), expected(np.ones((2, 4), "f4"))
    )
    with pytest.raises(Exception, match=r"(?s)no plan of this module takes.*x: float32\[1, 4\].*x: float32\[2, 4\]"):
        machine["main"](tvm.runtime.tensor(np.ones(shape, "float32")))


def kernels_of(model):
    return {step["function"] for plan in model.module.plans() for step in plan["steps"] if step["kind"] == "kernel"}


def test_equal_kernels_are_compiled_once(monkeypatch):
    """A branch whose shape does not depend on the symbol is the same kernel in each plan."""
    monkeypatch.setenv("TVM_SCHED_KERNEL_LIBRARIES", "")
    model = compile(two_inputs(), "cpu1", "single", input_shapes={"n": {1, 2, 3}})
    names = [[s["function"] for s in plan["steps"] if s["kind"] == "kernel"] for plan in model.module.plans()]
    shared = set.intersection(*map(set, names))
    assert len(shared) == 1
    assert len(kernels_of(model)) == 1 + 3
    for n in (1, 2, 3):
        x, y = np.ones((n, 4), "float32"), np.full((7, 2), 2, "float32")
        assert_same(model.module.run(x, y), [np.exp(x), np.tanh(y)])


def two_inputs():
    return onnx_model("(float[n, 4] x, float[7, 2] y) => (float[n, 4] a, float[7, 2] b) { a = Exp(x)  b = Tanh(y) }")


def test_the_same_shape_twice_is_refused():
    with pytest.raises(InputError, match="two sets of input shapes are the same"):
        compile(small_model(), "cpu1", "single", input_shapes=[{"batch": {1, 2}}, {"x": (2, 4)}])


def test_load_model_takes_one_shape():
    with pytest.raises(InputError, match="2 combinations of shapes are given; one is allowed here"):
        load_model(small_model(), {"batch": {1, 2}})


def test_a_frozen_input_of_onnx():
    model = compile(small_model(w=W, b=B), "cpu1", "single", constants={"x": [[1, 2, 3, 4]]})
    assert model.module.plans()[0]["arguments"] == []
    reshape = onnx_model("(float[n, 6] x, int64[2] shape) => (float[] y) { y = Reshape(x, shape) }")
    imported = load_model(reshape, {"n": 2}, constants={"shape": [3, 4]})
    assert imported.inputs == {"x": ((2, 6), "float32")}
    assert [int(d) for d in imported.mod["main"].ret_ty.shape] == [3, 4]
    with pytest.raises(InputError, match="'shape' is frozen as a constant, so no shape can be given"):
        load_model(reshape, {"n": 2, "shape": (2,)}, constants={"shape": [3, 4]})


def test_a_frozen_input_of_relax():
    imported = load_model(cases.Symbolic, constants={"y": np.ones((2, 5), "float32")})
    assert "y" not in imported.inputs
    assert all(2 in shape or 5 in shape for shape, _ in imported.inputs.values())


def test_a_frozen_input_of_torch():
    torch = pytest.importorskip("torch")
    model = compile(
        cases.scaled_batches(torch.ones(1), least=1),
        "cpu1",
        "single",
        input_shapes={"x": ({2, 4}, 3)},
        constants={"factor": 3},
    )
    assert [a["name"] for a in model.module.plans()[0]["arguments"]] == ["x"]
    for n in (2, 4):
        assert_same(model.run(np.ones((n, 3), "float32")), np.full((n, 3), 3, "float32"))
    assert json.loads(json.dumps(model.module.info()))["plans"][1]["inputs"][0]["shape"] == [4, 3]


def test_batches_of_torch_where_the_other_sizes_are_known():
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def forward(self, x):
            x = torch.nn.functional.group_norm(x, 3) + x.var((1, 2), keepdim=True)
            return torch.nn.functional.interpolate(torch.nn.functional.interpolate(x, scale_factor=1.5), scale_factor=2)

    x = torch.randn(4, 6, 5)
    program = torch.export.export(Block(), (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},))
    assert_same(compile(program, "cpu1", "single", input_shapes={"x": (4, 6, 5)}).run(x.numpy()), Block()(x).numpy())


def test_the_last_element_and_places_where_a_size_is_a_symbol():
    torch = pytest.importorskip("torch")

    class Last(torch.nn.Module):
        def forward(self, cache, x, places):
            rows = places[:, None].expand(x.shape)
            return x[-1] * 2, x[-2:][0], cache.scatter(0, rows, x)

    given = torch.zeros(8, 3), torch.randn(4, 3), torch.tensor([1, 5, 2, 7])
    size = torch.export.Dim("size", min=2, max=8)
    program = torch.export.export(Last(), given, dynamic_shapes=(None, {0: size}, {0: size}))
    found = compile(program, "cpu1", "single", input_shapes={"x": (4, 3)}).run(*(each.numpy() for each in given))
    for one, expected in zip(found, Last()(*given), strict=True):
        assert_same(one, expected.numpy())


def test_an_operator_of_torch_that_needs_its_sizes():
    """TVM cannot convert it with a symbol, so the program is exported again with the given size."""
    torch = pytest.importorskip("torch")

    class Norm(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.batch_norm(x, None, None, training=True)

    batch, x = torch.export.Dim("batch", min=2, max=64), torch.randn(5, 3)
    program = torch.export.export(Norm(), (torch.randn(4, 3),), dynamic_shapes=({0: batch},))
    model = compile(program, "cpu1", "single", input_shapes={"x": (5, 3)})
    assert_same(model.run(x.numpy()), Norm()(x).numpy())


def test_operands_of_torch_are_promoted():
    """As in EdgeNeXt and DeBERTa, where TVM's frontend divides a float by an integer, or takes its logarithm."""
    torch = pytest.importorskip("torch")

    class Mixed(torch.nn.Module):
        def forward(self, x, n):
            return x / n + n / 2 + torch.log(n) + n / n

    x, n = torch.randn(2, 3), torch.tensor([1, 2, 5])
    model = compile(torch.export.export(Mixed(), (x, n)), "cpu1", "single")
    assert_same(model.run(x.numpy(), n.numpy()), Mixed()(x, n).numpy())


def test_an_empty_cache_is_concatenated_as_nothing():
    """As transformers' cache of keys and values, which begins as a tensor of shape (0,)."""
    torch = pytest.importorskip("torch")

    class Cache(torch.nn.Module):
        def forward(self, x):
            return torch.cat([torch.empty(0), x], dim=-2), torch.cat([x, x.double()], dim=1)

    x = torch.randn(2, 3, 4)
    model = compile(torch.export.export(Cache().eval(), (x,)), "cpu1", "single")
    for found, expected in zip(model.run(x.numpy()), Cache()(x), strict=True):
        assert_same(found, expected.numpy())
