"""Results are the caller's to keep and to change: none shares memory with an input, a parameter or another result."""

from itertools import combinations

import numpy as np
import pytest

from tvm_sched_runtime.errors import TvmSchedError
from tvm_sched_runtime.runtime import load, open_library, to_numpy, to_tensor

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
C = np.arange(4, dtype=np.float32)
SHAPES = {
    "x": (2, 3),
    "twice": (2, 3),
    "flat": (6,),
    "y": (2, 3),
    "again": (2, 3),
    "flat_y": (6,),
    "c": (4,),
    "again_c": (4,),
}
WANT = {"x": X, "twice": X, "flat": X.ravel(), "y": -X, "again": -X, "flat_y": -X.ravel(), "c": C, "again_c": C}
TAIL = {"places": (2, None), "places_again": (2, None), "places_flat": (None,)}


def model(names, tail=False):
    """Return a model with these results: the input, a value, a constant, and copies and reshapes of them."""
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("Identity", ["x"], ["twice"]),
        helper.make_node("Reshape", ["x", "six"], ["flat"]),
        helper.make_node("Identity", ["y"], ["again"]),
        helper.make_node("Reshape", ["y", "six"], ["flat_y"]),
        helper.make_node("Identity", ["c"], ["again_c"]),
    ]
    outputs = {name: SHAPES[name] for name in names}
    kinds = dict.fromkeys(outputs, onnx.TensorProto.FLOAT)
    if tail:
        nodes += [
            helper.make_node("NonZero", ["x"], ["places"]),
            helper.make_node("Identity", ["places"], ["places_again"]),
            helper.make_node("Reshape", ["places", "any"], ["places_flat"]),
        ]
        outputs |= TAIL
        kinds |= dict.fromkeys(TAIL, onnx.TensorProto.INT64)
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed & set(node.output):
            needed |= set(node.input)
            kept.insert(0, node)
    values = {"six": np.array([6]), "any": np.array([-1]), "c": C}
    graph = helper.make_graph(
        kept,
        "results",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3))],
        [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in values.items() if name in needed],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def leaves(result):
    return [result] if hasattr(result, "dtype") else [leaf for part in result for leaf in leaves(part)]


def entries(compiled, folder):
    """The ways to run a model, each a function from an array to arrays."""
    import tvm

    compiled.export(folder / "m.so")
    compiled_machine = tvm.relax.VirtualMachine(compiled.executable, tvm.cpu())
    loaded_machine = tvm.relax.VirtualMachine(open_library(folder / "m.so"), tvm.cpu())
    return {
        "compiled": compiled.run,
        "loaded": load(folder / "m.so").run,
        "machine": lambda x: list(map(to_numpy, leaves(compiled_machine["main"](to_tensor(x))))),
        "loaded machine": lambda x: list(map(to_numpy, leaves(loaded_machine["main"](to_tensor(x))))),
    }


def check_own(run, wants):
    x = X.copy()
    first = leaves(run(x))
    for result, want in zip(first, wants, strict=True):
        np.testing.assert_array_equal(result, want)
    for a, b in combinations([x, *first], 2):
        assert not np.shares_memory(a, b)
    x[:] = -9
    for result, want in zip(first, wants, strict=True):
        np.testing.assert_array_equal(result, want)
    for result in first:
        result[...] = 77
    assert (x == -9).all()
    for result, want in zip(leaves(run(X.copy())), wants, strict=True):
        np.testing.assert_array_equal(result, want)
    assert all((result == 77).all() for result in first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "tail", "topology", "backend"),
    [
        (list(SHAPES), False, "cpu2", "cpu"),
        (list(SHAPES), False, "v100-server", "emulated"),
        (["x", "twice"], False, "cpu1", "cpu"),  # nothing is computed
        (["c", "again_c"], False, "cpu1", "cpu"),
        (list(SHAPES), True, "cpu1", "cpu"),
        ([], True, "cpu1", "cpu"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_results_have_memory_of_their_own(names, tail, topology, backend, tmp_path):
    from tvm_sched.relax import compile

    places = np.stack(np.nonzero(X))
    wants = [WANT[name] for name in names] + ([places, places, places.ravel()] if tail else [])
    compiled = compile(model(names, tail), topology, "single", backend=backend)
    for run in entries(compiled, tmp_path).values():
        check_own(run, wants)


@pytest.mark.slow
def test_external_parameters_and_several_plans(tmp_path):
    from tvm_sched.relax import compile

    compiled = compile(model(list(SHAPES)), "cpu2", "single", parameters="external")
    compiled.export(tmp_path / "m.so")
    for run in (compiled.run, load(tmp_path / "m.so").run):
        check_own(run, [WANT[name] for name in SHAPES])


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2])
def test_results_of_pipelines(tmp_path, stages):
    import tvm

    from tvm_sched.relax import compile_pipeline, target
    from tvm_sched_runtime.pipeline import load as load_pipeline

    names = ["x", "y", "flat_y"]
    compiled = compile_pipeline(model(names), "cpu2", stages=stages)
    compiled.export(tmp_path / "m.pipeline")
    for pipeline in (compiled, load_pipeline(tmp_path / "m.pipeline")):
        check_own(lambda x, pipeline=pipeline: pipeline.run([(x,)])[0].value(), [WANT[name] for name in names])
    import tvm_frontends

    imported = tvm_frontends.load_model(model([*names, "again"]))
    built = tvm.compile(imported.with_parameters(), target=target("cpu2", objective="throughput", stages=stages))
    machine = tvm.relax.VirtualMachine(built, tvm.cpu())["main"]
    check_own(lambda x: list(map(to_numpy, leaves(machine(to_tensor(x))))), [WANT[name] for name in (*names, "again")])


@pytest.mark.slow
def test_arrays_of_any_layout_give_the_same_through_each_entry(tmp_path):
    """Strided, reversed, read-only, big-endian, unaligned and broadcast arrays; wrong ones are refused alike."""
    from tvm_sched.relax import compile

    entry = entries(compile(model(["y"]), "cpu1", "single"), tmp_path)
    wide = np.zeros((4, 9), np.float32)
    wide[::2, ::3] = X
    raw = bytearray(1 + X.nbytes)
    raw[1:] = X.tobytes()
    frozen = X.copy()
    frozen.setflags(write=False)
    np.save(tmp_path / "x.npy", X)
    forms = [
        *(
            wide[::2, ::3],
            np.asfortranarray(X),
            np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
            frozen,
            X.astype(">f4"),
        ),
        *(np.frombuffer(raw, np.float32, 6, 1).reshape(2, 3), np.load(tmp_path / "x.npy", mmap_mode="r")),
        *(np.ma.asarray(X), np.broadcast_to(X[:1], (2, 3)), np.broadcast_to(np.float32(2), (2, 3))),
    ]
    for form in forms:
        for name in ("compiled", "loaded"):
            np.testing.assert_array_equal(leaves(entry[name](form))[0], -np.asarray(form, np.float32))
    messages = []
    for name in ("compiled", "loaded"):
        with pytest.raises(
            TvmSchedError, match=r"no plan of this module takes arguments \(float32\[3\]\); it has"
        ) as refused:
            entry[name](X[0])
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
