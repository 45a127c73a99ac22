"""Models with open dimensions, compiled without sizes, give right values for every size, 0 and 1 included."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from onnx_text import onnx_model
from tvm_frontends.relax_modules import open_module
from tvm_frontends.shapes import DeclaredInput
from tvm_sched.relax import compile
from tvm_sched.relax.emit.any_shape import AnyShape
from tvm_sched.relax.lower.operators_without_kernel import simplify
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.input_shapes import one_shape, parse_shapes
from tvm_sched_runtime.runtime import load

pytestmark = pytest.mark.filterwarnings("ignore:.*it has open dimensions")

SIZES = [(1, 1), (2, 3), (0, 2), (3, 0), (4, 7)]


def _module(build):
    """Return a module whose ``main`` is built from x[n, m, 4]; ``build`` takes the builder, x, n and m."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType([n, m, 4], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(build(builder, x, n, m))
        builder.emit_func_output(result)
    return builder.get()


def _random_graph(seed):
    """Return a random module on x[n, m, 4], and the same function of NumPy; values are small integers, exact in float32."""
    random = np.random.default_rng(seed)
    weights = random.integers(-2, 3, (4, 4)).astype("float32")
    steps = [str(step) for step in random.choice(["matmul", "add", "flat", "concat", "turn", "sum"], 4)]

    def build(builder, x, n, m):
        y = x
        for step in steps:
            first, second = y.ty.shape.values[:2]
            if step == "matmul":
                y = builder.emit(relax.op.matmul(y, relax.const(weights)))
            elif step == "add":
                y = builder.emit(relax.op.add(y, builder.emit(relax.op.maximum(y, relax.const(0.0, "float32")))))
            elif step == "flat":
                flat = builder.emit(relax.op.reshape(y, relax.ShapeExpr([first * second, 4])))
                y = builder.emit(relax.op.reshape(flat, relax.ShapeExpr([first, second, 4])))
            elif step == "concat":
                y = builder.emit(relax.op.concat([y, y], 1))
            elif step == "turn":
                y = builder.emit(relax.op.permute_dims(y, [1, 0, 2]))
            else:
                y = builder.emit(relax.op.add(y, builder.emit(relax.op.sum(y, [0], keepdims=True))))
        return y

    def expected(x):
        y = x
        for step in steps:
            y = {
                "matmul": lambda y: y @ weights, "add": lambda y: y + np.maximum(y, 0), "flat": lambda y: y,
                "concat": lambda y: np.concatenate([y, y], 1), "turn": lambda y: y.transpose(1, 0, 2),
                "sum": lambda y: y + y.sum(0, keepdims=True),
            }[step](y)  # fmt: skip
        return y

    return _module(build), expected


@pytest.mark.parametrize(
    "seed",
    [0, pytest.param(1, marks=pytest.mark.slow), *(pytest.param(k, marks=pytest.mark.thorough) for k in range(2, 12))],
)
def test_random_graphs_are_exact_at_every_size(seed):
    module, expected = _random_graph(seed)
    compiled = compile(module, "cpu2", cost_model="roofline", cache=False)
    for n, m in SIZES:
        x = np.random.default_rng(n).integers(-3, 4, (n, m, 4)).astype("float32")
        np.testing.assert_array_equal(compiled.run(x), expected(x))


def test_splits_by_rows_are_for_listed_sizes_alone():
    """Once an error after all the work: the plan for any size has no variants, nor parts by rows."""
    module = _module(lambda builder, x, n, m: builder.emit(relax.op.add(x, x)))
    compiled = compile(module, "cpu2", cost_model="roofline", rows=True, cache=False)
    assert np.array_equal(compiled.run(np.ones((2, 3, 4), "float32")), np.full((2, 3, 4), 2.0))


def test_a_sum_over_no_elements_is_written():
    module = _module(lambda builder, x, n, m: builder.emit(relax.op.sum(x, [1])))
    # Once no linker took kernels that were called after a model with a blank in its name.
    compiled = compile(module, "cpu1", cost_model="roofline", cache=False, name="a sum 0/0")
    for _ in range(3):
        np.testing.assert_array_equal(compiled.run(np.ones((5, 0, 4), "float32")), np.zeros((5, 4), "float32"))


def test_a_reshape_that_does_not_divide_is_an_error_with_both_sizes(tmp_path):
    module = _module(lambda builder, x, n, m: builder.emit(relax.op.reshape(x, relax.ShapeExpr([n, m // 3, 12]))))
    compiled = compile(module, "cpu1", cost_model="roofline", cache=False, input_shapes={"n": 1, "m": range(3, 13)})
    compiled.export(tmp_path / "m.so")
    loaded = load(tmp_path / "m.so")
    x = np.arange(2 * 6 * 4, dtype="float32").reshape(2, 6, 4)
    np.testing.assert_array_equal(loaded.run(x)[0], x.reshape(2, 2, 12))
    for run in (compiled.run, loaded.run):
        with pytest.raises(InputError, match=r"reshape.*is 40, and 24 is needed"):
            run(np.zeros((2, 5, 4), "float32"))
        with pytest.raises(InputError, match=r"'m'\) is 13; sizes from 3 to 12"):
            run(np.zeros((2, 13, 4), "float32"))


@pytest.fixture(scope="module")
def symbolic():
    """Return ``main`` of an executable that TVM compiled for our target: x[n, m] and (z[n, 4],) to a product and z."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType([n, m], "float32"))
    rest = relax.Var("rest", relax.TupleType([relax.TensorType([n, 4], "float32")]))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, rest], attrs={"tir_var_lower_bound": {"m": 0}, "tir_var_upper_bound": {"m": 8}}):
        with builder.dataflow():
            z = builder.emit(relax.TupleGetItem(rest, 0))
            product = builder.emit(relax.op.matmul(builder.emit(relax.op.permute_dims(x)), z))
            results = builder.emit_output(relax.Tuple([product, z]))
        builder.emit_func_output(results)
    machine = relax.VirtualMachine(tvm.compile(builder.finalize(), "tvm_sched/cpu2"), tvm.cpu())
    tensor = tvm.runtime.tensor
    return lambda x, z: [result.numpy() for result in machine["main"](tensor(x), (tensor(z),))]


def test_tvm_compiles_symbolic_functions_for_our_target(symbolic):
    for n, m in SIZES:
        x = np.arange(n * m, dtype="float32").reshape(n, m)
        z = np.arange(n * 4, dtype="float32").reshape(n, 4)
        product, same = symbolic(x, z)
        np.testing.assert_array_equal(product, x.T @ z)
        np.testing.assert_array_equal(same, z)


def test_sizes_that_a_symbolic_function_does_not_take_are_errors_with_both(symbolic):
    with pytest.raises(ValueError, match=r"input 'rest.0' \('n'\) is 2, and dimension 0 of input 'x' is 3"):
        symbolic(np.zeros((3, 2), "float32"), np.zeros((2, 4), "float32"))
    with pytest.raises(ValueError, match=r"\('m'\) is 9; sizes from 0 to 8 are allowed"):
        symbolic(np.zeros((3, 9), "float32"), np.zeros((3, 4), "float32"))


def _built(params, build, attrs=None):
    """Return an executable that TVM compiled for our target: ``main`` is what ``build`` makes with the builder."""
    builder = relax.BlockBuilder()
    with builder.function("main", params, attrs=attrs):
        with builder.dataflow():
            result = builder.emit_output(build(builder))
        builder.emit_func_output(result)
    machine = relax.VirtualMachine(tvm.compile(builder.finalize(), "tvm_sched/cpu2"), tvm.cpu())
    return lambda *given: machine["main"](
        *(tvm.runtime.tensor(value) if isinstance(value, np.ndarray) else value for value in given)
    ).numpy()


def _rising(*shape):
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


def test_shapes_and_numbers_are_arguments_of_functions_that_tvm_compiles():
    k, n, m = (tirx.Var(name, "int64") for name in "knm")
    x, shape = relax.Var("x", relax.TensorType([k], "float32")), relax.Var("shape", relax.ShapeType([n, m]))
    count, last = relax.Var("count", tvm.ir.PrimType("int64")), relax.Var("last", relax.ShapeType(ndim=1))

    def build(builder):
        y = builder.emit(relax.op.reshape(x, relax.ShapeExpr([n, m, 1])))
        size = tirx.Var("size", "int64")
        builder.match_cast(last, relax.ShapeType([size]))
        return builder.emit(
            relax.op.broadcast_to(builder.emit(relax.op.add(y, y)), relax.ShapeExpr([count, n, m, size]))
        )

    run = _built([x, shape, count, last], build)
    sizes = tvm.runtime.ShapeTuple
    for n, m, count, last in [(2, 3, 2, 2), (1, 1, 1, 1), (0, 2, 3, 1), (2, 1, 0, 1), (2, 2, 1, 0), (4, 5, 3, 2)]:
        wanted = np.broadcast_to(2 * _rising(n, m, 1), (count, n, m, last))
        np.testing.assert_array_equal(run(_rising(n * m), sizes((n, m)), count, sizes((last,))), wanted)
    with pytest.raises(ValueError, match="number of elements is 6, and 8 is needed"):
        run(_rising(6), sizes((4, 2)), 1, sizes((1,)))
    with pytest.raises(ValueError, match=r"dimension 0 of input 'shape' \('n'\) is -2; sizes from 0 are allowed"):
        run(_rising(6), sizes((-2, -3)), 1, sizes((1,)))
    with pytest.raises(ValueError, match=r"input 'count' \('count'\) is -1; sizes from 0 are allowed"):
        run(_rising(6), sizes((2, 3)), -1, sizes((1,)))


def test_functions_of_any_name_return_what_is_no_tensor():
    """As `nn.Module.export_tvm` makes them: another public function without tensors, and an effect that is handed on."""
    n, m = (tirx.Var(name, "int64") for name in "nm")
    x = relax.Var("x", relax.TensorType([n, 4], "float32"))
    like = relax.Var("like", relax.TensorType([m, n], ""))  # of no data type: only its sizes are read
    last, effect = relax.Var("last", relax.ShapeType(ndim=1)), relax.Var("effect", relax.AnyType())
    builder = relax.BlockBuilder()
    with builder.function("begin", []):
        builder.emit_func_output(relax.ShapeExpr([1]))
    with builder.function("forward", [x, like, last, effect]):
        with builder.dataflow():
            y = builder.emit(relax.op.broadcast_to(x, relax.ShapeExpr([m, n, 4])))
            pair = builder.emit(relax.Tuple([relax.ShapeExpr([n + m, 4]), effect]))
            results = builder.emit_output(relax.Tuple([builder.emit(relax.op.add(y, y)), pair, last]))
        builder.emit_func_output(results)
    machine = relax.VirtualMachine(tvm.compile(builder.finalize(), "tvm_sched/cpu2"), tvm.cpu())
    assert list(machine["begin"]()) == [1]
    for n, m in [(3, 2), (1, 1), (0, 3), (2, 0)]:
        given = map(tvm.runtime.tensor, (_rising(n, 4), np.zeros((m, n), "int8")))
        y, (sizes, effect), last = machine["forward"](*given, tvm.runtime.ShapeTuple([7]), "an effect")
        np.testing.assert_array_equal(y.numpy(), np.broadcast_to(2 * _rising(n, 4), (m, n, 4)))
        assert (list(sizes), str(effect), list(last)) == ([n + m, 4], "an effect", [7])


@pytest.mark.parametrize("rows", [3, tirx.Var("n", "int64")], ids=["static", "open"])
def test_main_needs_no_global_symbol(rows):
    x, builder = relax.Var("x", relax.TensorType([rows, 4], "float32")), relax.BlockBuilder()
    with builder.function("main", [x], private=True):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    mod = builder.finalize()
    assert open_module(mod, "model", "model").inputs[0].name == "x"
    assert "global_symbol" in simplify(mod)["main"].attrs


def test_kernels_take_numbers_that_the_model_gives():
    x, count = relax.Var("x", relax.TensorType([6], "float32")), relax.Var("count", tvm.ir.PrimType("int64"))

    def build(builder):
        six, two = (tirx.IntImm("int64", size) for size in (6, 2))
        source, first = te.placeholder([six], "float32"), tirx.Var("first", "int64")
        result = te.compute([two], lambda k: source[first + k])
        kernel = te.create_prim_func([source, first, result]).with_attr("global_symbol", "window")
        kernel = builder.add_func(kernel, "window")
        ty = relax.TensorType([2], "float32")
        windows = [builder.emit(relax.call_tir(kernel, relax.Tuple([x, tirx.IntImm("int64", k)]), ty)) for k in (1, 4)]
        return builder.emit(relax.op.broadcast_to(builder.emit(relax.op.add(*windows)), relax.ShapeExpr([count, 2])))

    run = _built([x, count], build)
    np.testing.assert_array_equal(run(_rising(6), 3), [[5, 7]] * 3)


def test_casts_name_sizes_and_contradict_them():
    """No equal sizes of all symbols are admissible here, except 0."""
    n, a, b = (tirx.Var(name, "int64") for name in "nab")
    x = relax.Var("x", relax.TensorType(dtype="float32", ndim=2))
    y = relax.Var("y", relax.TensorType([a, b], "float32"))

    def build(builder):
        square = builder.match_cast(x, relax.TensorType([n, n], "float32"))
        pairs = builder.match_cast(y, relax.TensorType([2 * n, 1], "float32"))
        pairs = builder.emit(relax.op.reshape(pairs, relax.ShapeExpr([n, 2])))
        return builder.emit(relax.op.matmul(builder.emit(relax.op.permute_dims(square)), pairs))

    run = _built([x, y], build)
    for size in (3, 1, 0, 5):
        wanted = _rising(size, size).T @ _rising(size, 2)
        np.testing.assert_array_equal(run(_rising(size, size), _rising(2 * size, 1)), wanted)
    with pytest.raises(ValueError, match=r"'x' \('x_0'\) is 3, and dimension 0 of input 'x' is 2"):
        run(_rising(2, 3), _rising(4, 1))
    with pytest.raises(ValueError, match=r"match_cast of '.*': dimension 0 is 5, and 4 is needed"):
        run(_rising(2, 2), _rising(5, 1))


@pytest.mark.parametrize("bound", [False, True], ids=["passed", "held"])
def test_parameters_have_symbols(bound):
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x, weight = (
        relax.Var("x", relax.TensorType([n, 4], "float32")),
        relax.Var("weight", relax.TensorType([4, m], "float32")),
    )
    attrs = {"params": [tvm.runtime.tensor(_rising(4, 3))]} if bound else {}
    run = _built([x, weight], lambda builder: builder.emit(relax.op.matmul(x, weight)), {"num_input": 1, **attrs})
    for n, m in [(2, 3), (0, 3)] if bound else [(2, 3), (1, 1), (0, 2), (3, 0)]:
        given = [_rising(n, 4)] if bound else [_rising(n, 4), _rising(4, m)]
        np.testing.assert_array_equal(run(*given), _rising(n, 4) @ _rising(4, m))


@pytest.mark.parametrize("rows", [3, tirx.Var("n", "int64")], ids=["static", "open"])
def test_parameters_without_values_are_passed(rows):
    """Once TVM's pass VMShapeLower ended the process, also for static models."""
    x = relax.Var("x", relax.TensorType([rows, 4], "float32"))
    weight = relax.Var("weight", relax.TensorType([4, 2], "float32"))
    run = _built([x, weight], lambda builder: builder.emit(relax.op.matmul(x, weight)), {"num_input": 1})
    np.testing.assert_array_equal(run(_rising(3, 4), _rising(4, 2)), _rising(3, 4) @ _rising(4, 2))


def test_a_plan_in_which_an_operator_vanishes_returns_what_the_template_does():
    """At n = 4, the reshape is an identity, and its result the input."""
    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    with builder.function("main", [x := relax.Var("x", relax.TensorType([n, 4], "float32"))]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.reshape(x, relax.ShapeExpr([4, n])))
        builder.emit_func_output(result)
    compiled = compile(
        builder.finalize(), "cpu1", "single", cost_model="roofline", cache=False, input_shapes={"n": range(1, 5)}
    )
    for size in (4, 3):
        x = np.arange(size * 4, dtype="float32").reshape(size, 4)
        np.testing.assert_array_equal(compiled.run(x), x.reshape(4, size))


def test_another_example_stands_in_for_one_that_does_not_fit():
    """The usual example for n is 1; no input but those of a multiple of 6 rows is reshaped so."""
    module = _module(lambda builder, x, n, m: builder.emit(relax.op.reshape(x, relax.ShapeExpr([n // 6, 24, m]))))
    compiled = compile(module, "cpu1", "single", cost_model="roofline", cache=False)
    x = np.arange(6 * 2 * 4, dtype="float32").reshape(6, 2, 4)
    np.testing.assert_array_equal(compiled.run(x), x.reshape(1, 24, 2))
    with pytest.raises(InputError, match="number of elements is 8, and 0 is needed"):
        compiled.run(np.zeros((1, 2, 4), "float32"))


def test_names_of_torch_dimensions_are_kept_and_inputs_must_agree(tmp_path):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def forward(self, x, mask):
            return x.sum(2) * mask, mask

    frames, batch = torch.export.Dim("frames", min=0, max=64), torch.export.Dim("batch", min=0)
    program = torch.export.export(
        Model(), (torch.zeros(3, 5, 4), torch.zeros(3, 5)),
        dynamic_shapes={"x": {0: batch, 1: frames}, "mask": {0: batch, 1: frames}},
    )  # fmt: skip
    compile(program, "cpu1", cost_model="roofline", cache=False, input_shapes={"frames": 8}).export(tmp_path / "m.so")
    loaded = load(tmp_path / "m.so")
    for n, m in SIZES:
        x, mask = np.ones((n, m, 4), "float32"), np.full((n, m), 2, "float32")
        product, same = loaded.run(x, mask)
        np.testing.assert_array_equal(product, np.full((n, m), 8))
        np.testing.assert_array_equal(same, mask)
    with pytest.raises(InputError, match=r"input 'mask' \('frames'\) is 4, and dimension 1 of input 'x' is 3"):
        loaded.run(np.zeros((2, 3, 4), "float32"), np.zeros((2, 4), "float32"))
    with pytest.raises(InputError, match="sizes from 0 to 64"):
        loaded.run(np.zeros((2, 65, 4), "float32"), np.zeros((2, 65), "float32"))


def test_sizes_that_an_onnx_model_computes_follow_its_inputs():
    text = """(float[n, m, 4] x) => (float[] y, float[] flat) <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0},
        int64[1] rest = {-1}> {
        shape = Shape(x)  rows = Gather(shape, zero)  n1 = Unsqueeze(rows, axis)
        columns = Gather(shape, one)  m1 = Unsqueeze(columns, axis)
        turned = Concat<axis = 0>(m1, n1, rest)  y = Reshape(x, turned)  flat = Flatten(x) }"""
    compiled = compile(onnx_model(text), "cpu1", cost_model="roofline", cache=False)
    for n, m in SIZES:
        x = np.arange(n * m * 4, dtype="float32").reshape(n, m, 4)
        y, flat = compiled.run(x)
        np.testing.assert_array_equal(y, x.reshape(m, n, 4))
        np.testing.assert_array_equal(flat, x.reshape(n, m * 4))


def test_ranges_are_read_and_refused_where_one_shape_is_needed():
    assert parse_shapes(["tokens=1..512"]) == [{"tokens": range(1, 513)}]
    with pytest.raises(InputError, match="the range is empty"):
        parse_shapes(["tokens=5..4"])
    with pytest.raises(InputError, match="gives an input two shapes"):
        one_shape(parse_shapes(["tokens=1..2"]), "here")


def test_emulated_devices_keep_the_refusal():
    module = _module(lambda builder, x, n, m: builder.emit(relax.op.sum(x, [1])))
    with pytest.raises(InputError, match="has no fixed size"):
        compile(module, "v100-server", cost_model="roofline", cache=False)
    with pytest.raises(InputError, match="ranges on devices other than CPUs"):
        compile(module, "v100-server", cost_model="roofline", cache=False, input_shapes={"n": 1, "m": range(1, 3)})


SECOND_BY_SIZE_OF_W = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, 3] x, float[k, 3] w) => (float[a, b] y) {
  s = Shape(w)  zero = Constant<value_ints = [0]>()  d = Gather(s, zero)
  rest = Constant<value_ints = [-1]>()  t = Concat<axis = 0>(rest, d)  y = Reshape(x, t)
}"""


def test_what_a_reshape_leaves_is_divided_by_no_zero():
    onnx = pytest.importorskip("onnx")
    compiled = compile(
        onnx.parser.parse_model(SECOND_BY_SIZE_OF_W), "cpu1", "single", cost_model="roofline", cache=False
    )

    def run(n, k):
        return compiled.run(np.arange(3 * n, dtype=np.float32).reshape(n, 3), np.ones((k, 3), np.float32))

    np.testing.assert_array_equal(run(4, 2), np.arange(12).reshape(6, 2))
    assert run(0, 0).shape == (0, 0)
    for n, k in ((4, 5), (2, 0)):
        with pytest.raises(InputError, match=f"number of elements is {3 * n}, and"):
            run(n, k)


def test_an_example_size_that_does_not_fit_says_that_it_is_one():
    onnx = pytest.importorskip("onnx")
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[a, 11] y) {t=Constant<value_ints=[-1, 11]>()'
    with pytest.raises(
        InputError, match=r"do not fit .*tried with x\[1, 4\], which stands for sizes that are not given"
    ):
        compile(
            onnx.parser.parse_model(f"{text} y = Reshape(x, t)}}"), "cpu1", "single", cost_model="roofline", cache=False
        )


def test_the_plan_of_a_range_has_the_kernels_of_all_sizes():
    """It is that of the largest size that the model admits; nothing is compiled for it alone."""
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] x) => (float[m, 2] y) {
        shape = Shape(x)  one = Constant<value_ints=[0]>()  n = Gather(shape, one)  zero = Constant<value_int=0>()
        step = Constant<value_int=1>()  end = Squeeze(n)  k = Range(zero, end, step)  f = Cast<to=1>(k)
        column = Unsqueeze(f, step)  sum = Add(x, column)  t = Constant<value_ints=[-1, 2]>()  y = Reshape(sum, t) }"""
    model = onnx.parser.parse_model(text)
    call = {"cost_model": "roofline", "cache": False, "input_shapes": {"n": range(2, 8)}}
    module = compile(model, "cpu1", "single", **call).module
    (plan,) = module.plans()
    functions = [{step["function"] for step in each["steps"]} for each in (plan, module.template)]
    assert functions[0] == functions[1]
    assert plan["arguments"][0]["shape"] == [6, 3]  # 7 is odd
    for n in (2, 4, 6):
        x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
        right = (x + np.arange(n, dtype=np.float32)[:, None]).reshape(-1, 2)
        np.testing.assert_array_equal(module.run(x)[0], right)
    with pytest.raises(InputError, match="number of elements is 15, and"):
        module.run(np.ones((5, 3), np.float32))


def test_a_range_outside_of_the_model_s_is_refused():
    torch = pytest.importorskip("torch")
    dim = torch.export.Dim("batch", min=1, max=4)
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),), dynamic_shapes=({0: dim},))
    with pytest.raises(InputError, match="'batch': sizes from 5 to 9 are given; the model allows 1 to 4"):
        compile(program, "cpu1", "single", cost_model="roofline", cache=False, input_shapes={"batch": range(5, 10)})


def test_two_symbols_of_one_declared_name_have_its_range():
    operands = [relax.Var(name, relax.TensorType((tirx.Var("n", "int64"),), "float32")) for name in "xy"]
    builder = relax.BlockBuilder()
    with builder.function("main", operands):
        builder.emit_func_output(operands[0])
    inputs = tuple(DeclaredInput(name, ("n",)) for name in "xy")
    model = AnyShape(builder.finalize(), [], inputs, {"n": (1, 8)})
    assert list(model.symbols().values()) == ["n", "y, 0"]
    assert list(model.limits().values()) == [(1, 8), (1, 8)]


@pytest.fixture(scope="module")
def attention(tmp_path_factory):
    """An artifact with kernels of oneDNN and TVM for x[n, m, 4], whose results have n * m * m elements."""

    def build(builder, x, n, m):
        scores = builder.emit(relax.op.matmul(x, builder.emit(relax.op.permute_dims(x, [0, 2, 1]))))
        return builder.emit(relax.op.sin(builder.emit(relax.op.nn.softmax(scores))))

    path = tmp_path_factory.mktemp("attention") / "m.so"
    compile(_module(build), "cpu2", "single", cost_model="roofline", cache=False).export(path)
    return path


UNDER_FAULTS = """
import os, resource, signal, sys, threading
import numpy as np
from tvm_sched_runtime.errors import ExecutionError
from tvm_sched_runtime.runtime import load

random = np.random.default_rng(0)
values = [random.standard_normal((*size, 4)).astype("float32") for size in random.integers(0, 60, (16, 2)) % [4, 60]]
alone = load(sys.argv[1])
wanted = [alone.run(x)[0] for x in values]
module = load(sys.argv[1])
module.configure(instances=3, kept_sizes=2)
wrong, end = [], threading.Event()

def check(k):
    if not np.array_equal(module.run(values[k])[0], wanted[k]):
        wrong.append(k)

def work(turn):
    random = np.random.default_rng(turn)
    while not end.is_set():
        check(random.integers(len(values)))

threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
for thread in threads:
    thread.start()
statuses = []
for _ in range(5):  # children of a process whose threads run
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        for k in range(4):
            check(k)
        os._exit(len(wrong))
    statuses.append(os.waitpid(child, 0)[1])
end.set()
for thread in threads:
    thread.join()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (200 << 20), resource.RLIM_INFINITY))
refused = 0
for tokens in (4000, 9000, 5500, 7000):  # 61 to 309 MiB of results, and as much between
    try:
        module.run(np.zeros((1, tokens, 4), "float32"))
    except ExecutionError as error:
        refused += "not enough memory" in str(error)
    for k in range(len(values)):
        check(k)
print(wrong, statuses, refused)
"""


@pytest.mark.slow
def test_threads_forks_and_a_lack_of_memory_lose_nothing(attention):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", UNDER_FAULTS, attention], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "[] [0, 0, 0, 0, 0] 3\n", done.stderr


@pytest.mark.slow
def test_a_fork_while_threads_run_a_compiled_model():
    """The lock of their turns, and TVM's machine in the middle of a run, are nobody's in the child."""
    code = """
import os, signal, threading
import numpy as np
from tvm import relax
from tvm_sched.relax import compile
builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((64, 64), "float32"))
with builder.function("main", [x]):
    builder.emit_func_output(builder.emit(relax.op.matmul(x, x)))
model = compile(builder.get(), "cpu1", "single", cost_model="roofline", cache=False)
value, end = np.eye(64, dtype="float32"), threading.Event()
model.run(value)
def work():
    while not end.is_set():
        model.run(value)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
statuses = []
for _ in range(10):
    if (child := os.fork()) == 0:
        signal.alarm(30)
        os._exit(not np.array_equal(model.run(value), value))
    statuses.append(os.waitpid(child, 0)[1])
end.set()
for thread in threads:
    thread.join()
print(statuses)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{[0] * 10}\n", done.stderr


def test_a_range_has_several_schedules_and_a_certificate(monkeypatch, tmp_path):
    """Equal orders share a template; told apart they are as many as anchors, and give the same values."""
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[tokens, 4] x) => (float[tokens, 4] y)
        { a = Exp(x)  b = Softmax(x)  y = Add(a, b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "branches.onnx")
    call = {"input_shapes": {"tokens": range(2, 4097)}, "scheduler": "heft", "cost_model": "roofline"}
    shared = compile(tmp_path / "branches.onnx", "cpu2", **call, anchors=3).module
    monkeypatch.setattr("tvm_sched.relax.api.same_order", lambda one, other: False)
    module = compile(tmp_path / "branches.onnx", "cpu2", **call, anchors=3).module
    certified = module.info()["range"]
    assert shared.info()["range"] == certified
    sizes = [anchor["sizes"][0] for anchor in certified["anchors"]]
    assert (sizes[0], sizes[-1], len(sizes)) == (2, 4096, 3)
    assert certified["symbols"] == [{"name": "tokens", "low": 2, "high": 4096}]
    pairs = zip(certified["anchors"][1:], certified["anchors"], strict=False)
    factor = max(above["latency_ns"] / below["lower_bound_ns"] for above, below in pairs)
    assert certified["factor"] == pytest.approx(factor, rel=1e-3)
    module.configure(trace=True)
    for n in (2, 3, sizes[1] + 1, 4095):
        x = np.random.default_rng(n).random((n, 4), "float32")
        (result,) = module.run(x)
        np.testing.assert_allclose(result, np.exp(x) + np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-5)
        np.testing.assert_array_equal(shared.run(x)[0], result)
        position = next(k for k, size in enumerate(sizes) if size >= n)
        assert module.timeline()["plan"].startswith(f"branches#any{position + 1 if position else ''}[")
    one = compile(tmp_path / "branches.onnx", "cpu2", **call, anchors=1).module
    assert "range" not in one.info()
    assert "anchor" not in one.template["symbols"][0]
