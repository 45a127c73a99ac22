"""Linear models, normalisation, imputation and labels of ai.onnx.ml, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvm_sched.relax import compile as compile_model
from tvm_sched_runtime.errors import InputError

from .trees_cases import check, make

RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 4)).astype("float32")
BOTH = [TensorProto.INT64, TensorProto.FLOAT]


def linear(targets: int, **more: Any) -> dict[str, Any]:
    weights = np.random.default_rng(targets)
    return {
        "coefficients": weights.standard_normal(targets * 4).tolist(),
        "intercepts": weights.standard_normal(targets).tolist(),
        **more,
    }


@pytest.mark.parametrize(("targets", "kind"), [(1, "NONE"), (3, "NONE"), (3, "SOFTMAX"), (3, "LOGISTIC")])
def test_linear_regressor(targets: int, kind: str) -> None:
    check(
        make("LinearRegressor", X, [TensorProto.FLOAT], 1, targets=targets, post_transform=kind, **linear(targets)), X
    )


@pytest.mark.parametrize("kind", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("labels", [[4, 9], [7, 3, 5]])
def test_linear_classifier(labels: list[int], kind: str) -> None:
    check(make("LinearClassifier", X, BOTH, 1, classlabels_ints=labels, post_transform=kind, **linear(len(labels))), X)


def test_linear_classifier_of_one_score() -> None:
    check(make("LinearClassifier", X, BOTH, 1, classlabels_ints=[4, 9], post_transform="LOGISTIC", **linear(1)), X)


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [7, 3, 5]}, {"classlabels_strings": ["a", "b", "c"]}])
def test_zip_map_gives_the_probabilities_as_a_matrix(labels: dict[str, Any]) -> None:
    model = make("LinearClassifier", X, BOTH, 1, classlabels_ints=[7, 3, 5], post_transform="SOFTMAX", **linear(3))
    kind = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    made = helper.make_map_type_proto(kind, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model.graph.node.append(
        helper.make_node("ZipMap", [model.graph.output[1].name], ["z"], domain="ai.onnx.ml", **labels)
    )
    zipped = helper.make_value_info("z", helper.make_sequence_type_proto(made))
    del model.graph.output[1]
    model.graph.output.append(zipped)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    classes, rows = session.run(None, {session.get_inputs()[0].name: X})
    found = compile_model(model, "cpu1", "heft").run(X)
    np.testing.assert_array_equal(found[0], classes)
    expected = [[row[label] for label in next(iter(labels.values()))] for row in rows]
    np.testing.assert_allclose(found[1], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_linear_models_take_other_types(dtype: str) -> None:
    x = RNG.integers(-3, 4, (7, 4)).astype(dtype)
    check(make("LinearClassifier", x, BOTH, 1, classlabels_ints=[4, 9, 1], **linear(3)), x)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    """A row of zeros stays."""
    x = np.concatenate([X, np.zeros((1, 4), "float32"), -np.abs(X)])
    check(make("Normalizer", x, [TensorProto.FLOAT], 1, norm=norm), x)


def test_imputer() -> None:
    x, whole = X.copy(), np.array([[1, -1, 3], [-1, 5, -1]])
    x[0, 1] = x[3, 3] = np.nan
    every = [0.5, 1.5, -2.0, 3.0]
    check(make("Imputer", x, [TensorProto.FLOAT], 1, imputed_value_floats=every, replaced_value_float=float("nan")), x)
    check(
        make("Imputer", x, [TensorProto.FLOAT], 1, imputed_value_floats=[2.0], replaced_value_float=float(x[2, 2])), x
    )
    model = make("Imputer", whole, [TensorProto.INT64], 1, imputed_value_int64s=[7, 8, 9], replaced_value_int64=-1)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", TensorProto.INT64, whole.shape))
    check(model, whole)


def encoder(x: Any, kind: int, version: int, **attributes: Any) -> Any:
    model = make("LabelEncoder", x, [kind], version, **attributes)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", kind, x.shape))
    return model


def test_label_encoder() -> None:
    """Numbers that are no key give the default; NaN is a key of version 4; of equal keys the first one counts."""
    whole, real = np.array([[1, 5], [-3, 8]]), np.array([0.5, np.nan, 2, -0.0], "float32")
    keys = {"keys_int64s": [5, -3, 1, 5]}
    check(encoder(whole, TensorProto.FLOAT, 2, values_floats=[1.5, 2.5, 3.5, 9.5], default_float=-7.0, **keys), whole)
    check(encoder(whole, TensorProto.INT64, 2, values_int64s=[10, 20, 30, 40], **keys), whole)
    floats = {"keys_floats": [0.5, float("nan"), 0.0]}
    for version in (2, 4):
        check(encoder(real, TensorProto.INT64, version, values_int64s=[1, 2, 3], default_int64=4, **floats), real)
    tensors = {"keys_tensor": [1, 8], "values_tensor": [0.25, 0.75], "default_tensor": [-1.0]}
    given = {name: numpy_helper.from_array(np.array(value, "float64" if name != "keys_tensor" else "int64"))
             for name, value in tensors.items()}  # fmt: skip
    check(encoder(whole, TensorProto.DOUBLE, 4, **given), whole, reference=True)


@pytest.mark.parametrize(
    ("operator", "attributes", "words"),
    [
        ("LinearClassifier", linear(2, classlabels_strings=["a", "b"]), "names of text"),
        ("LinearClassifier", linear(1, classlabels_ints=[4, 9]), "LOGISTIC is allowed"),
        ("LinearRegressor", linear(1, post_transform="LOGISTIC"), "apply it behind the node"),
        ("LinearRegressor", {"coefficients": [1.0, 2.0], "targets": 1}, "2 coefficients and 0 intercepts"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, "text"),
        ("Imputer", {"imputed_value_floats": [1.0, 2.0]}, "2 numbers .* 4 columns"),
        ("Normalizer", {"norm": "L3"}, "allowed are MAX, L1 and L2"),
    ],
)
def test_what_is_refused(operator: str, attributes: dict[str, Any], words: str) -> None:
    outputs = BOTH if operator == "LinearClassifier" else [TensorProto.FLOAT]
    if "classlabels_strings" in attributes:
        outputs = [TensorProto.STRING, TensorProto.FLOAT]
    with pytest.raises(InputError, match=words):
        compile_model(
            make(operator, X, outputs, 1 if operator != "LabelEncoder" else 2, **attributes), "cpu1", "single"
        )
