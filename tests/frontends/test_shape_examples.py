"""The sizes that a message proposes for open dimensions are usual ones, and the model can be imported with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_frontends import ModelError, open_model
from tvm_frontends.shape_examples import Hints, Proposals, missing_sizes
from tvm_frontends.shapes import DeclaredInput

onnx = pytest.importorskip("onnx")
helper = onnx.helper


def model(inputs: dict[str, tuple[int, list[Any] | None]], nodes: list[Any], **weights: tuple[int, ...]) -> Any:
    values = [onnx.numpy_helper.from_array(np.ones(shape, "float32"), name) for name, shape in weights.items()]
    declared = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    graph = helper.make_graph(nodes, "g", declared, [helper.make_tensor_value_info("y", 1, None)], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def proposed(made: Any, **given: Any) -> dict[str, Any]:
    source = open_model(made)
    with pytest.raises(ModelError, match=r"has no fixed size|how many dimensions") as caught:
        source.combinations(given)
    sizes = dict(caught.value.missing.sizes)  # type: ignore[union-attr]
    assert source.load({**given, **sizes}).mod, "the proposal must work"
    return sizes


def relu(*inputs: str) -> list[Any]:
    return [helper.make_node("Relu", [inputs[0]], ["y"])]


def test_names_of_symbols_say_what_they_are() -> None:
    found = proposed(model({"x": (1, ["batch_size", 3, "height", "width"])}, relu("x")))
    assert found == {"batch_size": 1, "height": 224, "width": 224}


def test_dimensions_without_a_name_are_told_by_their_place() -> None:
    assert proposed(model({"x": (1, [None, None, None, None])}, relu("x"))) == {"x": (1, 3, 224, 224)}
    assert proposed(model({"x": (1, [None, None, None, 3])}, relu("x"))) == {"x": (1, 224, 224, 3)}
    assert proposed(model({"x": (1, None)}, relu("x"))) == {"x": (1, 3, 224, 224)}


def test_weights_say_channels_and_features() -> None:
    conv = [helper.make_node("Conv", ["x", "w"], ["y"])]
    assert proposed(model({"x": (1, ["n", "c", "h", "w_"])}, conv, w=(8, 5, 3, 3)))["c"] == 5
    product = [helper.make_node("Identity", ["x"], ["z"]), helper.make_node("MatMul", ["z", "w"], ["y"])]
    assert proposed(model({"x": (1, [None, None])}, product, w=(48, 2))) == {"x": (1, 48)}
    table = [helper.make_node("Add", ["x", "w"], ["y"])]
    assert proposed(model({"x": (1, ["batch", "sequence", 4])}, table, w=(77, 4)))["sequence"] == 77


def test_a_size_that_the_model_needs_is_found_by_trial() -> None:
    """After a pooling by 32 and Flatten, the product wants an image of 299 // 32 = 9."""
    nodes = [
        helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[32, 32], strides=[32, 32]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["y"]),
    ]
    assert proposed(model({"x": (1, ["batch", 3, "height", "width"])}, nodes, w=(3 * 9 * 9, 2)))["height"] == 299


def test_metadata_say_the_size_of_pictures(tmp_path: Any) -> None:
    made = model({"images": (1, ["batch", 3, "height", "width"])}, relu("images"))
    onnx.save(made, tmp_path / "m.onnx")
    (tmp_path / "config.json").write_text('{"image_size": 384}')
    assert proposed(tmp_path / "m.onnx")["height"] == 384
    helper.set_model_props(made, {"imgsz": "[640, 640]"})
    assert proposed(made)["height"] == 640


def test_a_total_is_the_sum_of_its_parts() -> None:
    inputs = {
        "ids": (7, ["batch", "sequence_length"]), "mask": (7, ["batch", "total_sequence_length"]),
        "past": (1, ["batch", 2, "past_sequence_length", 4]), "sum": (7, ["past_sequence_length + sequence_length"]),
    }  # fmt: skip
    found = proposed(model(inputs, relu("past")))
    assert found["total_sequence_length"] == found["past_sequence_length"] + found["sequence_length"] == 256


def test_only_what_is_left_open_is_proposed() -> None:
    made = model({"x": (1, ["batch", 3, "height", "width"])}, relu("x"))
    assert proposed(made, height=96) == {"batch": 1, "width": 224}


def test_the_first_proposal_stays_if_none_fits_or_time_is_over() -> None:
    declared = [DeclaredInput("x", ("batch", 3, "height", "width"), "float32")]
    first = {"batch": 1, "height": 224, "width": 224}
    for verdict in (False, None):
        assert missing_sizes(declared, {}, {}, Proposals(Hints, lambda _, verdict=verdict: verdict)) == first  # type: ignore[misc]


def torch_programs() -> dict[str, tuple[Any, tuple[Any, ...], Any]]:
    """Modules with inputs, and which of their sizes are open."""
    torch = pytest.importorskip("torch")
    nn, auto, h = torch.nn, torch.export.Dim.AUTO, torch.export.Dim("h")

    class Text(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.places = nn.Embedding(100, 16), nn.Parameter(torch.randn(77, 16))

        def forward(self, ids: Any, mask: Any) -> Any:
            return (self.table(ids) + self.places[: ids.shape[1]]) * mask[..., None]

    class Shifted(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, a: Any, b: Any) -> Any:
            return a + b[:, 1:]

    both = ({0: auto, 1: auto}, {0: auto, 1: auto})
    windows = nn.Sequential(nn.Conv2d(3, 8, 7, 2), nn.Conv2d(8, 8, 7, 2), nn.AdaptiveAvgPool2d(1))
    return {
        "text of at most 77 places": (Text(), (torch.zeros(2, 10, dtype=torch.int64), torch.ones(2, 10)), both),
        "windows of at least 19": (windows, (torch.zeros(2, 3, 64, 64),), ({0: auto, 2: auto, 3: auto},)),
        "sound": (nn.Conv1d(1, 4, 400, 160), (torch.zeros(1, 1, 16000),), ({2: auto},)),
        "one more than another input": (Shifted(), (torch.zeros(3, 5), torch.zeros(3, 6)), ({1: auto}, {1: auto})),
        "multiples of 4": (nn.PixelUnshuffle(4), (torch.zeros(1, 3, 32, 32),), ({2: 4 * h, 3: 4 * h},)),
    }


@pytest.mark.parametrize("case", range(5))
@pytest.mark.sampled(2)
def test_torch_programs_are_proposed_the_sizes_that_they_were_exported_with(case: int, tmp_path: Any) -> None:
    """From a file: `torch.export.load` adds ranges of sizes such as n + 1."""
    from tvm_sched.relax import compile as compile_model

    torch = pytest.importorskip("torch")
    module, inputs, sizes = list(torch_programs().values())[case]
    torch.export.save(torch.export.export(module.eval(), inputs, dynamic_shapes=sizes), tmp_path / "m.pt2")
    found = proposed(tmp_path / "m.pt2")
    built = compile_model(tmp_path / "m.pt2", "cpu1", "single", input_shapes=found)
    wanted = module(*inputs).detach().numpy()
    np.testing.assert_allclose(built.run(*(each.numpy() for each in inputs)), wanted, rtol=1e-4, atol=1e-5)
