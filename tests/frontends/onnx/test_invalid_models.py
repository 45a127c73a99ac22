"""ONNX files that are not valid are refused by their node, and neither end the process nor are taken as they are."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_frontends
from tvm_frontends import ModelError

onnx = pytest.importorskip("onnx")
helper = onnx.helper
FLOAT, INT64 = 1, 7


def model(node: Any, *shapes: Any, opset: int = 18, kinds: Any = (), weights: Any = ()) -> Any:
    inputs = [
        helper.make_tensor_value_info(f"i{k}", kinds[k] if kinds else FLOAT, shape) for k, shape in enumerate(shapes)
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info(node.output[0])], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def made(operator: str, *shapes: Any, opset: int = 18, kinds: Any = (), outputs: int = 1, **attributes: Any) -> Any:
    names, results = [f"i{k}" for k in range(len(shapes))], [f"y{k}" for k in range(outputs)]
    return model(helper.make_node(operator, names, results, **attributes), *shapes, opset=opset, kinds=kinds)


IMAGE = (1, 4, 5, 5)
ENDS_THE_PROCESS = {
    "einsum, two ellipses in a term": made("Einsum", (2, 3), equation="a...b...->ab"),
    "einsum, points": made("Einsum", (), equation="..,..->.."),
    "gather, negative batch": made("GatherND", (1, 3, 2), (1, 3), kinds=(FLOAT, INT64), batch_dims=-7),
    "layer normalisation, axis far out": made("LayerNormalization", (2, 2), (2,), opset=17, axis=2**31),
    "split, more parts than outputs": made("Split", (7, 2), num_outputs=3, outputs=1),
}
"""On these onnx 1.23 ends the process, or does not come back."""
INVALID = {
    **ENDS_THE_PROCESS,
    "too few inputs": made("Add", (2,)),
    "too many inputs": made("Relu", (2,), (2,)),
    "too many outputs": made("Relu", (2,), outputs=2),
    "an input left out": model(helper.make_node("Add", ["i0", ""], ["y"]), (2,)),
    "attribute missing": made("Concat", (2,), (2,)),
    "attribute unknown": made("Relu", (2,), alpha=1.0),
    "attribute of another type": made("Softmax", (2, 3), axis=1.5),
    "attribute twice": made("Softmax", (2, 3), axis=1),
    "mode": made("DepthToSpace", IMAGE, blocksize=2, mode="XYZ"),
    "kernel of 0": made("MaxPool", IMAGE, kernel_shape=[0, 2]),
    "stride of 0": made("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[0, 1]),
    "negative dilation": made("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[-1, 1]),
    "three strides": made("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[1, 1, 1]),
    "kernel larger than the picture": made("MaxPool", IMAGE, kernel_shape=[9, 9]),
    "no groups": made("Conv", IMAGE, (4, 4, 3, 3), group=0),
    "scalar weights": made("Conv", IMAGE, ()),
    "channels": made("Conv", IMAGE, (4, 3, 3, 3)),
    "scalar factor": made("Gemm", (2, 3), ()),
    "factors": made("MatMul", (2, 3), (4, 5)),
    "addends": made("Add", (2, 3), (4, 5)),
    "types": made("Add", (2,), (2,), kinds=(FLOAT, INT64)),
    "type of sizes": made("Reshape", (2, 3), (2,)),
    "axes twice": made("Transpose", (2, 3), perm=[0, 0]),
    "axes far out": made("Transpose", (2, 3), perm=[0, 5]),
    "axis of concat": made("Concat", (2, 3), (2, 3), axis=9),
    "ranks of concat": made("Concat", (2, 3), (2,), axis=0),
    "sizes of concat": made("Concat", (2, 3), (2, 4), axis=0),
    "axis of softmax": made("Softmax", (2, 3), axis=-7),
    "axis of reduction": made("ReduceMax", (2, 3), opset=13, axes=[4]),
    "block": made("DepthToSpace", (1, 6, 2, 2), blocksize=2),
    "einsum, terms": made("Einsum", (2, 3), equation="ij,jk->ik"),
    "einsum, letters": made("Einsum", (2, 3), equation="ij->iz"),
    "einsum, sizes": made("Einsum", (2, 3), (4, 5), equation="ij,jk->ik"),
    "einsum, rank": made("Einsum", (2, 3), equation="ijk->i"),
    "recurrent weights": made("LSTM", (5, 1, 3), (1, 8, 4), (1, 8, 2), hidden_size=2),
    "features": made("BatchNormalization", IMAGE, (3,), (3,), (3,), (3,)),
}  # fmt: skip
INVALID["attribute twice"].graph.node[0].attribute.append(helper.make_attribute("axis", 0))


@pytest.mark.parametrize("case", INVALID)
def test_a_node_that_is_not_valid_is_refused_by_its_name(case: str) -> None:
    proto = INVALID[case]
    with pytest.raises(ModelError, match=rf"^model: {proto.graph.node[0].op_type} \(node 'y.*export the model again$"):
        tvm_frontends.load_model(proto)


def whole(change: Any) -> Any:
    proto = made("Relu", (2, 3))
    change(proto)
    return proto


def tensor(**fields: Any) -> Any:
    made = onnx.numpy_helper.from_array(np.ones((2, 3), "float32"), "i0")
    for name, value in fields.items():
        if name == "dims":
            del made.dims[:]
            made.dims.extend(value)
        else:
            setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.opset_import.pop(), "does not say which opset"),
        (lambda m: setattr(m.opset_import[0], "version", 99), "opset is 99; .* knows 1 to "),
        (lambda m: setattr(m, "ir_version", 99), "IR version is 99; .* up to "),
        (lambda m: m.graph.output.pop(), "no outputs"),
        (lambda m: setattr(m.graph.input[0], "name", ""), "has no name"),
        (
            lambda m: m.graph.initializer.append(tensor(dims=(2, 4))),
            r"'i0' holds 24 bytes; its shape \[2, 4\] .*need 32",
        ),
        (lambda m: m.graph.initializer.append(tensor(dims=(-2, 3))), r"'i0' has the shape \[-2, 3\]"),
        (lambda m: m.graph.initializer.append(tensor(data_type=99)), "'i0' has a type of the number 99"),
        (lambda m: m.graph.initializer.append(tensor(raw_data=b"")), "'i0' holds 0 bytes"),
    ],
)
def test_a_model_that_is_not_valid_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tvm_frontends.load_model(whole(change))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "zero"}, "its entry 'offset' is 'zero'; a number of bytes, 0 or more"),
        ({"offset": "-4"}, "its entry 'offset' is '-4'"),
        ({"length": "20"}, "20 bytes of it by its entry 'length'; its shape .* need 24"),
        ({"offset": "8"}, "ends at byte 24 where 32 are needed"),
    ],
)
def test_external_data_that_do_not_fit(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    (tmp_path / "data").write_bytes(bytes(24))
    value = tensor(name="w")
    value.ClearField("raw_data")
    value.data_location = value.EXTERNAL
    for key, text in {"location": "data", **entries}.items():
        value.external_data.add(key=key, value=text)
    path = tmp_path / "m.onnx"
    node = helper.make_node("Add", ["i0", "w"], ["y0"])
    path.write_bytes(model(node, (2, 3), weights=[value]).SerializeToString())
    with pytest.raises(ModelError, match=message):
        tvm_frontends.load_model(path)


def test_a_model_without_shapes_of_its_results_keeps_the_advice() -> None:
    """ONNX's checker, asked about a model that could not be converted, wants these shapes."""
    node = helper.make_node("Unsqueeze", ["i0", "i1"], ["y"])
    with pytest.raises(ModelError, match=r"constants=\{'i1': \[0, 1\]\}") as caught:
        tvm_frontends.load_model(model(node, (2, 3), (2,), kinds=(FLOAT, INT64)))
    examples = {name: np.array(value) for name, value in caught.value.missing.examples.items()}  # type: ignore[union-attr]
    assert tvm_frontends.load_model(model(node, (2, 3), (2,), kinds=(FLOAT, INT64)), constants=examples).inputs


def test_every_input_that_decides_is_named_at_once() -> None:
    node = helper.make_node("Slice", ["i0", "i1", "i2", "i3"], ["y"])
    proto = model(node, (2, 3), (1,), (1,), (1,), kinds=(FLOAT, INT64, INT64, INT64))
    with pytest.raises(ModelError, match=r"its inputs 1 \('i1'\), 2 \('i2'\), 3 \('i3'\) decide") as caught:
        tvm_frontends.load_model(proto)
    assert tvm_frontends.load_model(proto, constants=caught.value.missing.examples).inputs  # type: ignore[union-attr]


def test_the_only_input_and_data_are_not_to_be_frozen() -> None:
    only = model(helper.make_node("Unsqueeze", ["i0", "i0"], ["y"]), (1,), kinds=(INT64,))
    with pytest.raises(ModelError, match="'i0', the model's only input: export the model with a constant"):
        tvm_frontends.load_model(only)
    data = model(helper.make_node("Tile", ["i0", "i1"], ["y"]), (4,), (100,), kinds=(FLOAT, INT64))
    data.graph.node[0].input[1] = "i1"
    with pytest.raises(ModelError, match="'i1', which are data"):
        tvm_frontends.load_model(data)


CHILD = """
import sys, onnx, tvm_frontends
import warnings
warnings.simplefilter("ignore")
for line in sys.stdin:
    print(line.strip(), flush=True)
    try:
        tvm_frontends.load_model(onnx.ModelProto.FromString(bytes.fromhex(line)))
    except tvm_frontends.ModelError:
        pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
def test_random_nodes_do_not_end_the_process(seed: int) -> None:
    """Nodes of all operators with random shapes and attributes are refused or imported, and raise no other error."""
    lines = "".join(f"{_random_node(random.Random(1000 * seed + n)).SerializeToString().hex()}\n" for n in range(400))
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=lines, capture_output=True, text=True, timeout=600, check=False
    )
    last = (done.stdout.splitlines() or [""])[-1]
    assert done.returncode == 0, (done.stderr[-500:], onnx.ModelProto.FromString(bytes.fromhex(last)))


def _random_node(rng: random.Random) -> Any:
    schemas = [s for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated]
    schema = rng.choice(sorted(schemas, key=lambda s: s.name))
    kinds, shapes = [], []
    for _ in range(rng.randint(schema.min_input, max(schema.min_input, min(schema.max_input, 6)))):
        kinds.append(rng.choice([FLOAT, FLOAT, INT64]))
        shapes.append([rng.choice([0, 1, 2, 3, 7]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 5]))])
    attributes = {
        name: value for name, each in schema.attributes.items() if (value := _random_value(rng, each)) is not None
    }
    outputs = rng.randint(1, max(1, min(schema.max_output, 3)))
    return made(schema.name, *shapes, opset=20, kinds=kinds, outputs=outputs, **attributes)


def _random_value(rng: random.Random, attribute: Any) -> Any:
    kinds = type(attribute.type)
    numbers = [-(2**33), -7, -1, 0, 1, 2, 3, 9, 2**31]
    if not attribute.required and rng.random() < 0.5:
        return None
    return {
        kinds.INT: lambda: rng.choice(numbers),
        kinds.INTS: lambda: [rng.choice(numbers) for _ in range(rng.randint(1, 4))],
        kinds.FLOAT: lambda: rng.choice([0.0, -1.0, 1e30]),
        kinds.FLOATS: lambda: [rng.choice([0.0, -1.0, 1.0]) for _ in range(rng.randint(1, 3))],
        kinds.STRING: lambda: rng.choice(
            ["", "ij,jk->ik", "...->", "a...b...->ab", "linear", "SAME_UPPER", "xyz", "DCR"]
        ),
        kinds.TENSOR: lambda: onnx.numpy_helper.from_array(np.zeros(2, "float32")),
    }.get(attribute.type, lambda: None)()


def test_nothing_of_tvm_is_printed_beside_a_refusal(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM's builder warns on standard error if a block is left open."""
    with pytest.raises(ModelError, match="only input"):
        tvm_frontends.load_model(model(helper.make_node("Unsqueeze", ["i0", "i0"], ["y"]), (1,), kinds=(INT64,)))
    gc.collect()
    assert capfd.readouterr() == ("", "")
