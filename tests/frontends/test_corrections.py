"""Corrections of TVM: the page lists them all, TVM has what they name, and it still does wrong what ours do right.

A case that fails here since plain TVM became right is a reason to take the correction out.
"""

import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_frontends import load_model
from tvm_frontends.errors import ModelError

from .corrections import PAGE, corrections, patches

onnx = pytest.importorskip("onnx")
ALL = corrections()
INF, NAN = np.inf, np.nan


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


CASES = {
    "IsInf": ("float[3] x) => (bool[3] y) { y = IsInf<detect_negative=0>(x) }", [np.array([INF, -INF, 1], "f")]),
    "PRelu": ("float[2,3,4] x, float[3] s) => (float[2,3,4] y) { y = PRelu(x, s) }", [normal(2, 3, 4), normal(3)]),
    "Elu": ("float16[3] x) => (float16[3] y) { y = Elu(x) }", [normal(3).astype("float16")]),
    "ThresholdedRelu": ("float[3] x) => (float[3] y) { y = ThresholdedRelu(x) }", [np.array([INF, -INF, 2], "f")]),
    "Sign": ("float[3] x) => (float[3] y) { y = Sign(x) }", [np.array([NAN, -2, 0], "f")]),
    "Selu": ("float16[3] x) => (float16[3] y) { y = Selu(x) }", [normal(3).astype("float16")]),
    "Softplus": ("float[2] x) => (float[2] y) { y = Softplus(x) }", [np.array([-30, 3], "f")]),
    "BitShift": (
        'int32[2] x, int32[2] s) => (int32[2] y) { y = BitShift<direction="LEFT">(x, s) }',
        [np.array([7, 7], "int32"), np.array([2, 40], "int32")],
    ),
    "Pow": (
        "float[2] x, int32[2] s) => (float[2] y) { y = Pow(x, s) }",
        [np.array([1.5, 2], "f"), np.array([2, 3], "int32")],
    ),
    "Max": (
        "float[2] x, float[2] z) => (float[2] y) { y = Max(x, z) }",
        [np.array([NAN, 1], "f"), np.array([1, NAN], "f")],
    ),
    "ReduceMax": (
        "float[2,3] x) => (float[2,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
        [np.full((2, 3), -INF, "f")],
    ),
    "ReduceMean": (
        "int32[2,2] x) => (int32[2,1] y) <int64[1] a = {1}> { y = ReduceMean(x, a) }",
        [np.array([[1, 2], [-3, -4]], "int32")],
    ),
    "ReduceLogSumExp": (
        "float[1,2] x) => (float[1,1] y) <int64[1] a = {1}> { y = ReduceLogSumExp(x, a) }",
        [np.array([[INF, 1]], "f")],
    ),
    "ReduceL1": ("float[2] x) => (float[2] y) { y = ReduceL1<noop_with_empty_axes=1>(x) }", [np.array([-3, 2], "f")]),
    "Pad": (
        'float[2] x) => (float[6] y) <int64[2] p = {4, 0}> { y = Pad<mode="reflect">(x, p) }',
        [normal(2)],
    ),
    "LRN": (
        "float16[1,3,2,2] x) => (float16[1,3,2,2] y) { y = LRN<size=3>(x) }",
        [normal(1, 3, 2, 2).astype("float16")],
    ),
    "GlobalMaxPool": (
        "float[1,2,2,2] x) => (float[1,2,1,1] y) { y = GlobalMaxPool(x) }",
        [np.full((1, 2, 2, 2), -INF, "f")],
    ),
    "TopK": (
        "int16[4] x) => (int16[2] y, int64[2] i) <int64[1] k = {2}> { y, i = TopK(x, k) }",
        [np.array([3, -1, 7, 2], "int16")],
    ),
    "Slice": (
        "float[4] x) => (float[0] y) <int64[1] a = {3}, int64[1] b = {1}> { y = Slice(x, a, b) }",
        [normal(4)],
    ),
    "LayerNormalization": (
        "float[2,3] x, float[3] s) => (float[2,3] y, float[2,1] m, float[2,1] d) { y, m, d = LayerNormalization(x, s) }",
        [normal(2, 3), normal(3)],
    ),
    "MaxPool": (
        "float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] i) "
        "{ y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }",
        [normal(1, 1, 4, 4)],
    ),
    "SpaceToDepth": (
        'float[1,2,4,4] x) => (float[1,8,2,2] y) { y = SpaceToDepth<blocksize=2, mode="CRD">(x) }',
        [normal(1, 2, 4, 4)],
    ),
    "Mish": ("float[2] x) => (float[2] y) { y = Mish(x) }", [np.array([-12, 3], "f")]),
    "ConvTranspose": (
        "float[1,1,3] x, float[1,1,3] w) => (float[1,1,8] y) { y = ConvTranspose<output_shape=[8], strides=[2]>(x, w) }",
        [normal(1, 1, 3), normal(1, 1, 3)],
    ),
    "Dropout": ("float[3] x) => (float[3] y, bool[3] m) { y, m = Dropout(x) }", [normal(3)]),
    "EyeLike": (
        "int32[2,3] x) => (float[2,3] y) { y = EyeLike<dtype=1>(x) }",
        [np.zeros((2, 3), "int32")],
    ),
    "Constant": (
        "float[3] x) => (float[3] y) { s = Constant<value_floats=[1.0, 2.0, 3.0]>() y = Add(x, s) }",
        [normal(3)],
    ),
}
"""For a class of TVM's ONNX front end, a graph that it gets wrong or refuses, and its inputs."""
TORCH_CASES = {
    "_binary_op": (lambda torch, x: torch.add(x, x, alpha=2), normal(3)),
    "_elu": (lambda torch, x: torch.nn.functional.selu(x), normal(3)),
    "_log1p": (lambda torch, x: torch.log1p(x), np.array([1e-10, 1], "f")),
    "_avg_pool2d": (lambda torch, x: torch.nn.functional.avg_pool2d(x, 2, divisor_override=3), normal(1, 1, 4, 4)),
    "_grid_sampler_2d": (
        lambda torch, x: torch.nn.functional.grid_sample(x[:, :1], x.movedim(1, -1), align_corners=False),
        normal(1, 2, 3, 3),
    ),
    "_native_group_norm": (lambda torch, x: torch.nn.functional.group_norm(x, 2), normal(1, 4, 2, 2)),
    "_where": (lambda torch, x: torch.where(x > 0, x, torch.tensor(2, dtype=torch.int32)), normal(3)),
    "_topk": (lambda torch, x: torch.topk(x, 2, sorted=False)[0].sum(), normal(4)),
    "_cumsum": (lambda torch, x: torch.cumsum(x > 0, 0), normal(4)),
    "_max_pool2d_with_indices": (
        lambda torch, x: torch.nn.functional.max_pool2d(x, 2, return_indices=True)[1],
        normal(1, 1, 4, 4),
    ),
    "_upsample_nearest2d": (lambda torch, x: torch.nn.functional.interpolate(x, (5, 5)), normal(1, 1, 3, 3)),
}
"""For a method of TVM's torch front end, a function that it gets wrong or refuses, and its input."""


def test_the_page_lists_all_corrections():
    rows = re.findall(r"^\| `\w+/.*$", PAGE.read_text(), re.MULTILINE)
    assert rows == [correction.row() for correction in ALL], "python tests/frontends/corrections.py prints the table"


def test_the_page_says_of_each_row_without_a_patch_why():
    _, text = PAGE.read_text().split("\n## Rows without a patch\n")
    reasons = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ")][1:]
    assert sorted(re.findall(r"`(\w+)`", "".join(reasons))) == sorted(each.symbol for each in ALL if not each.patch)


def test_tvm_has_what_corrections_name():
    from tvm.relax.frontend.onnx import onnx_frontend

    converters = onnx_frontend._get_convert_map()
    for correction in ALL:
        if correction.where.endswith("onnx_frontend.py"):
            assert correction.symbol in converters or hasattr(onnx_frontend, correction.symbol), correction
        else:
            pytest.importorskip("torch")
            from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

            assert hasattr(ExportedProgramImporter, correction.symbol), correction


def test_cases_are_of_corrections():
    assert CASES.keys() | TORCH_CASES.keys() <= {correction.symbol for correction in ALL}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_tvm_is_wrong_and_the_correction_right(name):
    from onnx.reference import ReferenceEvaluator
    from tvm.relax.frontend.onnx import from_onnx

    graph, inputs = CASES[name]
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> g ({graph}')
    names = [item.name for item in model.graph.input]
    expected = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    imported = load_model(model)
    assert same(run(imported.mod, [*inputs, *imported.parameters.values()]), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plain = run(from_onnx(model), inputs)
        except Exception:  # AssertionError, AttributeError, InternalError of C++, ...: TVM refuses in many ways
            return
    assert not same(plain, expected), f"TVM {tvm.__version__} is right: the correction of {name} can go"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TORCH_CASES)
def test_tvm_is_wrong_on_torch_and_the_correction_right(name):
    torch = pytest.importorskip("torch")
    from tvm.relax.frontend.torch import from_exported_program

    function, x = TORCH_CASES[name]

    class Function(torch.nn.Module):
        def forward(self, x):
            return function(torch, x)

    program = torch.export.export(Function(), (torch.from_numpy(x),))
    expected = [function(torch, torch.from_numpy(x)).numpy()]
    imported = load_model(program)
    assert same(run(imported.mod, [x, *imported.parameters.values()]), expected)
    try:
        plain = run(from_exported_program(program), [x])
    except Exception:  # TVM refuses in many ways
        return
    assert not same(plain, expected), f"TVM {tvm.__version__} is right: the correction of {name} can go"


def test_tvm_loses_the_digits_of_centred_values():
    from tvm.relax.frontend.onnx import from_onnx

    graph = "float[1,1,2,2] x) => (float[1,1,2,2] y) { y = MeanVarianceNormalization(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 13]> g ({graph}')
    x = 1000 + 0.1 * normal(1, 1, 2, 2)
    wide = x.astype("float64")
    expected = [((wide - wide.mean()) / wide.std()).astype("float32")]
    assert same(run(load_model(model).mod, [x]), expected)
    assert not same(run(from_onnx(model), [x]), expected)  # if equal, the correction can go


def test_tvm_rounds_the_factors_of_integers():
    from tvm.relax.frontend.onnx import from_onnx

    graph = "int32[2,2] a, int32[2,2] b) => (int32[2,2] y) { y = Gemm<alpha=0.5>(a, b) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> g ({graph}')
    with pytest.raises(ModelError, match=r"alpha is 0\.5"):
        load_model(model)
    assert "Gemm" in {each.symbol for each in ALL}
    ones = [np.ones((2, 2), "int32")] * 2
    assert not same(run(from_onnx(model), ones), ones[:1])  # 0.5 * 2; if equal, the correction of Gemm can go


def test_each_patch_is_of_a_correction_and_has_a_test():
    for patch in patches():
        assert any(each.patch[:2] == patch.path.stem[:2] for each in ALL), patch.path
        assert patch.title.startswith("[Relax][Frontend]"), patch.path
        assert patch.tests, patch.path
        noticed = {*CASES, *TORCH_CASES, "Gemm", "MeanVarianceNormalization"}
        assert all(re.match(r"\w+", entry)[0] in noticed for entry in patch.corrects), patch.path
        assert patch.unnecessary_from, patch.path


@pytest.mark.thorough
@pytest.mark.skipif("TVM_SOURCE" not in os.environ, reason="TVM_SOURCE names no checkout of apache/tvm")
def test_patches_apply_alone_and_in_their_order():
    source, before = Path(os.environ["TVM_SOURCE"]), []
    for patch in patches():
        assert patch.applies(source), patch.path
        assert patch.applies(source, *before), patch.path
        before.append(patch)


def run(mod, inputs):
    """The results of a module that TVM's own pipeline builds."""
    mod = relax.transform.DecomposeOpsForInference()(mod)
    machine = relax.VirtualMachine(tvm.relax.build(tvm.relax.get_pipeline("zero")(mod), "llvm"), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, inputs))
    return [part.numpy() for part in ([result] if hasattr(result, "numpy") else result)]


def same(results, expected):
    """Whether results have the expected types, shapes and values, small ones with their digits."""
    return all(
        ours.dtype == right.dtype
        and ours.shape == right.shape
        and np.allclose(ours.astype("float64"), right.astype("float64"), rtol=2e-3, atol=1e-30, equal_nan=True)
        for ours, right in zip(results, expected, strict=True)
    )
