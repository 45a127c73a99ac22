"""Sets of sizes, symbols and constants: what they expand to, and what each wrong one is told."""

import numpy as np
import pytest

from tvm_frontends.constants import check_constants
from tvm_frontends.errors import ModelError, ModelWarning
from tvm_frontends.shapes import DeclaredInput, Expression, expand_shapes

PAIR = [DeclaredInput("x", ("batch", 3, "h")), DeclaredInput("mask", ("batch", None))]


def shapes(given, declared=PAIR, **options):
    return expand_shapes(declared, given, "m", **options)


def test_the_product_is_over_symbols_not_over_inputs():
    found = shapes({"x": ({8, 1}, 3, {224, 320}), "mask": ({1, 8}, 5)})
    assert found == [{"x": (b, 3, h), "mask": (b, 5)} for b in (1, 8) for h in (224, 320)]


def test_a_symbol_is_bound_in_all_inputs():
    found = shapes({"batch": {2, 4}, "x": (4, 3, 7), "mask": (4, 1)} | {"x": ({2, 4}, 3, 7), "mask": ({2, 4}, 1)})
    assert [each["mask"] for each in found] == [(2, 1), (4, 1)]
    declared = [DeclaredInput("x", ("n", 2)), DeclaredInput("y", ("n",))]
    assert shapes({"n": 3}, declared) == [{"x": (3, 2), "y": (3,)}]


def test_dimensions_without_a_name_are_independent():
    declared = [DeclaredInput("a", ("?", "-1", "", -1)), DeclaredInput("b", ("?",))]
    assert declared[0].shape == (None, None, None, None)
    assert shapes({"a": (1, 2, 3, 4), "b": (5,)}, declared) == [{"a": (1, 2, 3, 4), "b": (5,)}]


def test_an_empty_dimension_is_a_size():
    assert shapes(None, [DeclaredInput("a", (0, 3))]) == [{"a": (0, 3)}]
    assert shapes({"n": 0}, [DeclaredInput("a", ("n",))]) == [{"a": (0,)}]


def test_an_expression_follows_from_its_symbols():
    twice = Expression("2*n", ("n",), lambda sizes: 2 * sizes["n"])
    declared = [DeclaredInput("x", ("n",)), DeclaredInput("y", (twice,))]
    assert shapes({"n": {1, 3}}, declared) == [{"x": (1,), "y": (2,)}, {"x": (3,), "y": (6,)}]
    with pytest.raises(ModelError, match=r"dimension 0 is given as 5, but the model says 2\*n, which is 2"):
        shapes({"n": 1, "y": (5,)}, declared)


def test_defaults_and_numbers_fill_what_is_open():
    assert shapes({"h": 4, "mask": ({1, 2}, 3)}, defaults={"batch": 9}) == [
        {"x": (b, 3, 4), "mask": (b, 3)} for b in (1, 2)
    ]
    declared = [DeclaredInput("sr", ("n", 2)), DeclaredInput("t", None)]
    assert shapes(None, declared, numbers={"sr", "t"}) == [{"sr": (1, 2), "t": ()}]


def test_inputs_that_contradict_each_other_about_a_symbol():
    """As in LORE's table recognition, whose exporter calls the third dimension of each input ``width``."""
    declared = [DeclaredInput("feat", ("n", "h", "w")), DeclaredInput("dets", ("n", "h", "w"))]
    given = {"feat": (1, 54, 256), "dets": (1, 54, 8)}
    with pytest.warns(ModelWarning, match="different sizes for 'w', which the model says are one"):
        assert shapes(given, declared, loose=True) == [given]
    with pytest.raises(ModelError, match="one symbol has one size"):
        shapes(given, declared)
    for mistaken in ({"feat": (1, 54, 256), "n": 2}, {**given, "w": 8}):
        with pytest.raises(ModelError, match="one symbol has one size"):
            shapes(mistaken, declared, loose=True)
    square = [DeclaredInput("x", ("n", "n"))]
    with pytest.raises(ModelError, match="one symbol has one size"):
        shapes({"x": (2, 3)}, square, loose=True)
    with pytest.warns(ModelWarning), pytest.raises(ModelError, match=r"'third'.*'w'.*no fixed size"):
        shapes(given, [*declared, DeclaredInput("third", ("w",))], loose=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": ({1, 2}, 3, 4), "mask": (1, 5)}, r"'batch'.*is given as 1, but input 'x', dimension 0, says \{1,2\}"),
        ({"batch": {1, 2}, "x": (1, 3, 4)}, r"says \{1,2\}; one symbol has one size, or one set of sizes"),
        ({"x": (1, {3, 4}, 5)}, r"given as \{3,4\}, but the model fixes it at 3"),
        ({"size": {1}}, r"symbol 'size', which the model does not have; .* its symbols are batch, h"),
        ({"batch": set()}, "an empty set"),
        ({"batch": {True}}, "given as True; a whole number"),
        ({"x": ({-1}, 3, 4)}, "given as -1; a whole number, 0 or more"),
        ({"batch": 2}, r"dimension 2 \('h'\) has no fixed size.*for example shapes=\{'h': 224"),
    ],
)
def test_wrong_shapes(given, message):
    with pytest.raises(ModelError, match=message):
        shapes(given)


def test_constants_take_the_dtype_of_their_input():
    declared = [
        DeclaredInput("sr", (), "int64"),
        DeclaredInput("size", (2, 2), "float16"),
        DeclaredInput("on", None, "bool"),
    ]
    found = check_constants(declared, {"sr": 16000, "size": [1, 2, 3, 4], "on": True}, "m")
    assert [(name, value.shape, value.dtype.name) for name, value in found.items()] == [
        ("sr", (), "int64"), ("size", (2, 2), "float16"), ("on", (), "bool"),
    ]  # fmt: skip
    assert check_constants(declared, {"size": np.ones((2, 2))}, "m")["size"].dtype == np.float16


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": 1}, r"input 'rate', which the model does not have; its inputs are sr\[\], x\[n, 3\]"),
        ({"sr": 1.5}, "the constant 1.5 is no int32"),
        ({"sr": 1 << 40}, "is no int32"),
        ({"sr": "fast"}, "the constant fast is no number"),
        ({"x": [[1, 2]]}, r"has shape \(1, 2\), the model declares x\[n, 3\]"),
        ({"x": [[1], [2, 3]]}, "rows of different lengths"),
        ([1], "a mapping from input names to values is allowed"),
    ],
)
def test_wrong_constants(given, message):
    with pytest.raises(ModelError, match=message):
        check_constants([DeclaredInput("sr", (), "int32"), DeclaredInput("x", ("n", 3), "float32")], given, "m")
