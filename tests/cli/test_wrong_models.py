"""Commands with wrong models and wrong options of models: one message each that says what, where and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cli.conftest import refused, run_command

onnx = pytest.importorskip("onnx")
pytest.importorskip("tvm")
helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT


def value(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(*nodes: Any, inputs: Any = None, outputs: Any = None, weights: Any = (), opset: int = 17, **more: Any) -> Any:
    graph = helper.make_graph(
        nodes, "wrong", inputs or [value("x", [4, 4])], outputs or [value("y", None)],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in dict(weights).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9, **more)


def node(kind: str, inputs: Any = ("x",), outputs: Any = ("y",), **attributes: Any) -> Any:
    return helper.make_node(kind, list(inputs), list(outputs), **attributes)


ONES = np.ones((3, 5), "float32")
GRAPHS = {
    "no such operator": model(node("Rleu")),
    "another domain": model(node("Relu", domain="com.example")),
    "an input that nothing gives": model(node("Add", ("x", "z"))),
    "a result that nothing makes": model(node("Relu"), outputs=[value("z", [4, 4])]),
    "two nodes make one tensor": model(node("Relu"), node("Tanh")),
    "a cycle": model(node("Add", ("x", "y"), ("z",)), node("Relu", ("z",))),
    "no inputs of a node": model(node("Relu", ())),
    "too many inputs": model(node("Relu", ("x", "x"))),
    "shapes of a product": model(node("MatMul", ("x", "w")), weights={"w": ONES}),
    "shapes of a sum": model(node("Add", ("x", "w")), weights={"w": ONES}),
    "types of a sum": model(node("Add", ("x", "w")), weights={"w": np.ones((4, 4), "int64")}),
    "an axis beyond the rank": model(node("Softmax", axis=5)),
    "axes of a transposition": model(node("Transpose", perm=[0, 0])),
    "a length of a transposition": model(node("Transpose", perm=[0, 1, 2])),
    "sizes of a reshape": model(node("Reshape", ("x", "s")), weights={"s": np.array([3, 5])}),
    "two unknown sizes": model(node("Reshape", ("x", "s")), weights={"s": np.array([-1, -1])}),
    "parts of a split": model(node("Split", ("x", "s"), ("y", "z"), axis=0), weights={"s": np.array([1, 1])}),
    "a kernel of a convolution": model(node("Conv", ("x", "w")), weights={"w": np.ones((2, 4, 3, 3), "float32")}),
    "groups of a convolution": model(
        node("Conv", ("x", "w"), group=3), inputs=[value("x", [1, 4, 8, 8])], weights={"w": np.ones((6, 1, 3, 3), "float32")}
    ),
    "a stride of 0": model(
        node("Conv", ("x", "w"), strides=[0, 1]),
        inputs=[value("x", [1, 1, 8, 8])],
        weights={"w": np.ones((1, 1, 3, 3), "float32")},
    ),
    "a negative pad": model(
        node("MaxPool", kernel_shape=[2, 2], pads=[-3, 0, 0, 0]), inputs=[value("x", [1, 1, 4, 4])]
    ),
    "a mode of padding": model(node("Pad", ("x", "p"), mode="mirror"), weights={"p": np.zeros(4, "int64")}),
    "a length of pads": model(node("Pad", ("x", "p")), weights={"p": np.zeros(3, "int64")}),
    "an equation": model(node("Einsum", equation="ij,jk->ik")),
    "an equation of letters": model(node("Einsum", ("x",), equation="i1->i")),
    "an index beyond the axis": model(node("Gather", ("x", "i"), axis=0), weights={"i": np.array([7])}),
    "an unknown type of a cast": model(node("Cast", to=99)),
    "text as data": model(node("Relu"), inputs=[value("x", [4], onnx.TensorProto.STRING)]),
    "strings joined": model(node("StringConcat", ("x", "x")), inputs=[value("x", [2], onnx.TensorProto.STRING)], opset=20),
    "a negative size": model(node("Relu"), inputs=[value("x", [-4, 4])]),
    "an open size": model(node("Relu"), inputs=[value("x", ["n", 4])]),
    "no rank": model(node("Relu"), inputs=[value("x", None)]),
    "a loop without an end": model(
        node("Loop", ("", "c"), ("y",), body=helper.make_graph(
            [node("Identity", ("c1",), ("c2",)), node("Relu", ("s1",), ("s2",))], "body",
            [value("i", [], onnx.TensorProto.INT64), value("c1", [], onnx.TensorProto.BOOL)],
            [value("c2", [], onnx.TensorProto.BOOL)],
        )), weights={"c": np.array(True)},
    ),
    "an older operator set": model(node("Upsample", ("x", "s")), weights={"s": np.ones(3, "float32")}, opset=9),
    "a future operator set": model(node("Relu"), opset=999),
    "a constant without a value": model(node("Constant", ()), node("Relu", ("y",), ("z",)), outputs=[value("z", None)]),
    "a name of nothing": model(node("Relu", ("x",), ("",))),
    "an attribute of another type": model(node("Softmax", axis="last")),
    "an epsilon that is no number": model(
        node("LayerNormalization", ("x", "w"), epsilon="small"), weights={"w": np.ones(4, "float32")}
    ),
    "a scale of another length": model(node("LayerNormalization", ("x", "w")), weights={"w": np.ones(5, "float32")}),
}  # fmt: skip
OPTIONS = {
    "an unknown input": ("--shape", "z:4,4"),
    "another rank": ("--shape", "x:4"),
    "another fixed size": ("--shape", "x:5,4"),
    "a size below 0": ("--shape", "x:-4,4"),
    "a size that is text": ("--shape", "x:four,4"),
    "a shape without sizes": ("--shape", "x:"),
    "an unknown symbol": ("--shape", "batch=4"),
    "no symbol": ("--shape", "=4"),
    "sizes without an end": ("--shape", "x:{4,4"),
    "an unknown constant": ("--constant", "z=1"),
    "a constant of another shape": ("--constant", "x=1,2,3"),
    "a constant without a value": ("--constant", "x="),
    "a constant from a missing file": ("--constant", "x=@missing.npy"),
    "an unknown machine": ("-t", "v100"),
    "a machine without devices": ("-t", "cpu0"),
    "an unknown price": ("--costs", "guess"),
    "parts of rows": ("--row-parts", "many"),
}


@pytest.mark.parametrize("case", GRAPHS)
@pytest.mark.sampled(3)
def test_a_wrong_graph(case, tmp_path):
    file = tmp_path / "wrong.onnx"
    onnx.save(GRAPHS[case], file)
    done = run_command("problem", file, "-t", "cpu2", "-o", tmp_path / "p.json")
    refused(done.status, done.stderr, list(tmp_path.glob("p.json")))


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.sampled(3)
def test_a_wrong_option(case, tmp_path):
    file = tmp_path / "right.onnx"
    onnx.save(model(node("Relu"), outputs=[value("y", [4, 4])]), file)
    done = run_command("problem", file, "-t", "cpu2", "-o", tmp_path / "p.json", *OPTIONS[case])
    refused(done.status, done.stderr, list(tmp_path.glob("p.json")))


def test_a_right_model(tmp_path):
    """Else a command that refuses every model would pass the tests above."""
    file = tmp_path / "right.onnx"
    onnx.save(model(node("Relu"), outputs=[value("y", [4, 4])]), file)
    done = run_command("problem", file, "-t", "cpu2", "--shape", "x:4,4", "-o", tmp_path / "p.json")
    assert (done.status, (tmp_path / "p.json").exists()) == (0, True)
