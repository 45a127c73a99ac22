"""Models that `tvm_frontends` refuses are wrong input of tvm_sched."""

import pytest

import tvm_frontends
from tvm_sched.relax import compile, inspect_model, load_model, make_problem
from tvm_sched.relax.model_loading import open_model
from tvm_sched_runtime.errors import InputError

onnx = pytest.importorskip("onnx")
from relax.onnx_models import small_model  # noqa: E402


@pytest.mark.parametrize(
    "use",
    [
        lambda: load_model(3),
        lambda: load_model(small_model(operator="Frobnicate"), {"x": (1, 4)}),
        lambda: open_model("missing.onnx"),
        lambda: open_model(small_model()).combinations({"x": (1, 5)}),
        lambda: open_model(small_model(operator="Frobnicate")).import_with({"x": (1, 4)}, {}),
        lambda: inspect_model(small_model(), {"y": 1}),
        lambda: make_problem(small_model(), "cpu2"),
        lambda: compile(small_model(operator="Frobnicate"), "cpu2", input_shapes={"x": (1, 4)}),
    ],
)
def test_errors_of_the_front_ends_become_input_errors(use):
    with pytest.raises(InputError):
        use()


def test_a_message_stays_the_same():
    with pytest.raises(tvm_frontends.ModelError) as refused:
        tvm_frontends.load_model("missing.onnx")
    with pytest.raises(InputError) as translated:
        load_model("missing.onnx")
    assert str(translated.value) == str(refused.value)


@pytest.mark.parametrize(
    ("use", "advice"),
    [
        (lambda: load_model(small_model()), r"for example --shape batch=1 \(input_shapes=\{'batch': 1\}\)"),
        (lambda: load_model(needs_constant()), r"--constant n=0 \(constants=\{'n': \[0\]\}\)"),
    ],
)
def test_advice_names_the_option_and_the_argument(use, advice):
    with pytest.raises(InputError, match=advice):
        use()


def needs_constant():
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[6] x, int64[1] n) => (float[M, N] y) { y = Unsqueeze(x, n) }'
    )


def test_a_configuration_without_weights_is_a_language_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=r"holds no weights.*without weights, give .*config\.json"):
        load_model(tmp_path)
