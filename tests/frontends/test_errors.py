"""What other libraries say of a wrong model reaches the user without their internals."""

import pytest

from tvm_frontends.errors import ModelError, first_line, refused


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ValueError(
                'In ir.Op(span=None, ty=ir.Type(span=None), name="relax.permute_dims", attrs_type_key="relax.attrs", '
                "num_inputs=1, support_level=10), axes must be unique"
            ),
            "axes must be unique",
        ),
        (ValueError("Check failed: pb->value != 0 (0 vs. 0) : Divide by zero"), "Divide by zero"),
        (
            ValueError("Check failed: (!has_arrow) is false: only one arrow"),
            "only one arrow",
        ),
        (ValueError("Check failed: (a < b) is false"), "Check failed: (a < b) is false"),
        (
            RuntimeError(
                "onnx.version_converter failed: RuntimeError: /project/onnx/adapters/gemm_6_7.h:28: adapt_gemm_6_7: "
                "Assertion `B.size() == 2` failed: Gemm input B must have exactly 2 dimensions"
            ),
            "onnx.version_converter failed: Gemm input B must have exactly 2 dimensions",
        ),
        (
            RuntimeError("[ShapeInferenceError] the axis is too large"),
            "the axis is too large",
        ),
        (ValueError("bad node ==> Context: Bad node spec for node. Name: x"), "bad node"),
        (
            ValueError('Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: bad axes'),
            "bad axes",
        ),
        (ValueError("too many values to unpack (expected 2)"), "a list has more or fewer entries than it should"),
        (OverflowError("Python int too large to convert to C long"), "a number is too large"),
        (
            AttributeError("'NoneType' object has no attribute 'ty'"),
            "a value is missing, or of another kind than it should be",
        ),
        (KeyError("axis"), "'axis' is missing"),
        (RecursionError("maximum recursion depth exceeded"), "it is nested too deeply"),
        (AssertionError(), "something that it takes for granted does not hold"),
        (FileNotFoundError(2, "No such file or directory", "w.bin"), "w.bin: No such file or directory"),
    ],
)
def test_internals_are_left_out(error, text):
    assert first_line(error) == text


@pytest.mark.parametrize("error", [KeyError("scale"), ValueError("too short"), RecursionError(), IndexError()])
def test_errors_of_other_libraries_become_one_of_the_model(error):
    with pytest.raises(ModelError, match=r"^m\.onnx: cannot be read: ") as caught, refused("m.onnx", "cannot be read"):
        raise error
    assert caught.value.__cause__ is error
