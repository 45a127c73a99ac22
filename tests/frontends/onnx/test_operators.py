"""Every operator of the standard that the front end converts: the value of the standard's reference, or a message.

The models are the conformance cases of the package onnx. Each is run with every element type that both sides know, on
numbers among which are NaN, infinities, zeros of both signs, denormal and extreme ones. The reference computes in float64.
Results of operators that round at most once have to have all bits of the right ones, also as zeros and denormal numbers.
"""

from __future__ import annotations

import contextlib
import warnings
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeTypeError
from onnx.reference.ops import op_scatter_elements

import tvm_sched.relax
from thorough import repeated
from tvm_sched_runtime.errors import TvmSchedError

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TOLERANCE = {"float64": 1e-5, "float32": 1e-4, "float16": 4e-3, "bfloat16": 4e-2}
"""Of each result, relative to the greatest finite one. TVM computes some functions of float64 in float32."""

SKIPPED = {
    **dict.fromkeys(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"),
        "results are random",
    ),
    **dict.fromkeys(("If", "Loop", "Scan", "SequenceMap"), "has no arithmetic of its own"),
    **dict.fromkeys(("Scatter", "Upsample"), "the reference has no such old operator; tested by values elsewhere"),
    **dict.fromkeys(
        ("ConcatFromSequence", "Optional", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase"),
        "inputs or outputs are sequences",
    ),
    **dict.fromkeys(("SequenceInsert", "SequenceLength", "SplitToSequence"), "inputs or outputs are sequences"),
    **dict.fromkeys(("OptionalGetElement", "OptionalHasElement"), "inputs are optional"),
    **dict.fromkeys(("GlobalLpPool", "MaxRoiPool"), "the package onnx has no case; test_edge_values.py"),
    **dict.fromkeys(("Cast", "CastLike"), "pairs of types: test_small_types.py and the conformance cases"),
    "Attention": "scores of infinite numbers and of rows that a mask leaves empty: test_transformer_operators.py",
}
"""Operators that are left out, and why."""

UNSAID = {
    "nan": {
        "Resize": "the reference multiplies what it does not take by 0, which gives NaN",
        "OneHot": "the reference multiplies what it does not take by 0; ours takes one of two numbers",
        "MaxPool": "the reference drops NaN; ours keeps it (test_edge_values.py)",
        "LpPool": "the reference drops NaN, which it takes for what lies beyond the padding; ours keeps it",
        "QuantizeLinear": "which integer stands for NaN is not said",
        "DynamicQuantizeLinear": "which integer stands for NaN is not said",
        **dict.fromkeys(("ArgMax", "ArgMin", "Hardmax", "TopK"), "which element is the greatest is not said"),
        "AveragePool": "the reference drops NaN, which it takes for what lies beyond the padding; ours keeps it",
        "RoiAlign": "the reference fails",
        "Det": "the reference's elimination gives 0 at a pivot of 0, whatever the rest is; our sum of products gives NaN",
    },
    "infinity": {
        "OneHot": "the reference multiplies what it does not take by 0; ours takes one of two numbers",
        "QuantizeLinear": "the reference wraps beyond 32 bits; ours saturates (test_edge_values.py)",
        "Resize": "the reference multiplies what it does not take by 0, which gives NaN",
        "DynamicQuantizeLinear": "the scale would be infinite",
        "Det": "the reference's elimination gives 0 at a pivot of 0, whatever the rest is; our sum of products gives NaN",
        "RoiAlign": "the reference multiplies what it does not take by 0, which gives NaN",
    },
    "extreme": {
        **dict.fromkeys(
            (
                "Conv", "ConvTranspose", "DeformConv", "MatMul", "Gemm", "Einsum", "AveragePool", "GlobalAveragePool",
                "LpPool", "CumSum", "Softmax", "LogSoftmax", "LayerNormalization", "BatchNormalization",
                "InstanceNormalization", "GroupNormalization", "RMSNormalization", "MeanVarianceNormalization",
                "LpNormalization", "LRN", "GRU", "LSTM", "RNN", "Resize", "GridSample", "RoiAlign", "DFT", "STFT",
                "AffineGrid", "Mean", "Sum", "Det", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss",
                "ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "ReduceL1", "ReduceL2",
                "ReduceProd", "DynamicQuantizeLinear", "RotaryEmbedding", "Mish",
            ),
            "sums overflow in the type of the result before they do in float64",
        ),
        "QuantizeLinear": "the reference wraps beyond 32 bits; ours saturates (test_edge_values.py)",
        "ScatterND": "products overflow in the type of the result before they do in float64",
        "OneHot": "the reference's difference of two numbers overflows; ours takes one of them",
    },
    "zero": dict.fromkeys(("Div", "Mod"), "division of integers by 0 is not said"),
    "least": dict.fromkeys(("Div", "Mod"), "the least integer by -1 is not said"),
}  # fmt: skip
"""Numbers that are left out, by operator, and why."""

UNTYPED = {
    "Shrink": (("int",),
               "the standard's function casts lambd and bias to the type of the input first; the reference does not"),
    "GridSample": (("int",), "how values between integers are rounded is not said"),
    "RoiAlign": (("float16",), "positions are rounded to the type of the image"),
    "Resize": (("int", "bool"),
               "how a mean of integers is rounded is not said, and the reference has none of booleans"),
    "OneHot": (("bool",), "the reference subtracts, which NumPy does not for booleans"),
}  # fmt: skip
"""Types that are left out, by operator, and why."""

EXACT = (
    "Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Abs", "Neg", "Floor", "Ceil", "Round",
    "CenterCropPad", "Compress", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements",
    "GatherND", "Identity", "Pad", "Reshape", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Squeeze",
    "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
)  # fmt: skip
"""Operators that round at most once, or move numbers: all bits of a result are said, but those of NaN."""
UP_TO_ZERO = ("Max", "Min", "Relu", "PRelu", "Clip", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin", "OneHot")
"""Operators that give one of their inputs, of which the sign of a zero is not said. LeakyRelu is none of them: the
standard's function first rounds its slope, a float32, to the type of the input, while the reference does not."""

FIRST = ("Conv", "ConvTranspose", "DeformConv", "Clip")
"""Only the first input has special numbers: whether padding is multiplied by infinite weights, and what NaN as a bound of
Clip means, is not said."""
FIXED = ("Range", "ConstantOfShape", "Constant")
"""Operators whose inputs say how large something is: they run on the values of the cases."""
VARIABLE = {"Where": "T", "OneHot": "T3"}
"""The type variable that takes all its types, where it is not that of the first input."""
OWN_TYPE = ("DynamicQuantizeLinear", "QuantizeLinear")
"""Defined by roundings in the type of the input: the reference computes in that, too."""


@cache
def cases() -> dict[str, list[tuple[onnx.ModelProto, list[Any]]]]:
    """Models of a single node with inputs, by operator. Cases of a function's expansion are not made."""
    from onnx.backend.test.case import node

    found: dict[str, list[Any]] = {}
    with warnings.catch_warnings(), mock.patch.object(node, "function_testcase_helper", _no_expansions):
        warnings.simplefilter("ignore")
        tests = node.collect_testcases()
    for test in tests:
        model, (inputs, _) = test.model, test.data_sets[0]
        inputs = [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in inputs]
        plain = all(isinstance(v, (np.ndarray, np.generic)) and v.dtype.kind not in "OSUT" for v in inputs)
        if len(model.graph.node) == 1 and model.graph.node[0].domain == "" and plain and "training" not in test.name:
            found.setdefault(model.graph.node[0].op_type, []).append((model, [np.asarray(v) for v in inputs]))
    return found


def _no_expansions(*_: Any, **__: Any) -> tuple[list[Any], int]:
    return [], 0


def operators() -> list[str]:
    """Operators of the standard that the front end has a converter for."""
    from tvm.relax.frontend.onnx import onnx_frontend

    from tvm_frontends.onnx.operators import nodes

    ours = {name for domain, name in nodes.CONVERTERS if domain in nodes.STANDARD}
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    known = {*ours, *onnx_frontend._get_convert_map()} & standard
    return sorted(known - set(SKIPPED))


@dataclass(frozen=True)
class Variant:
    """A case with another element type: its model, inputs, and which of them hold numbers."""

    model: onnx.ModelProto
    inputs: list[Any]
    data: list[int]
    kind: str


def variants(operator: str) -> dict[str, list[Variant]]:
    """The cases of an operator by element type, of all that its schema allows."""
    found: dict[str, list[Variant]] = {}
    for model, inputs in cases().get(operator, []):
        data, kinds = data_inputs(operator, model, inputs)
        for kind in kinds:
            found.setdefault(kind, []).append(retyped(model, inputs, data, kind))
    return found


def data_inputs(operator: str, model: onnx.ModelProto, inputs: list[Any]) -> tuple[list[int], list[str]]:
    """The positions of the inputs of one type variable, mostly the first, and the types that it may be."""
    node = model.graph.node[0]
    schema = onnx.defs.get_schema(operator, model.opset_import[0].version)
    formal = [schema.inputs[min(k, len(schema.inputs) - 1)].type_str for k, name in enumerate(node.input) if name]
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    variable = VARIABLE.get(operator, formal[0] if formal else "")
    if operator in FIXED or variable not in allowed:
        return [], [""]
    left = UNTYPED.get(operator, ((), ""))[0]
    kinds = [
        name
        for name in (*FLOATS, *INTEGERS, "bool")
        if not any(each in name for each in left) and f"tensor({ONNX_NAMES.get(name, name)})" in allowed[variable]
    ]
    return [k for k, name in enumerate(formal) if name == variable], kinds


ONNX_NAMES = {"float32": "float", "float64": "double"}


def retyped(model: onnx.ModelProto, inputs: list[Any], data: list[int], kind: str) -> Variant:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    if kind:
        before = made.graph.input[data[0]].type.tensor_type.elem_type
        for k in data:
            made.graph.input[k].type.tensor_type.elem_type = element_type(kind)
        same = [output.type.tensor_type.elem_type == before for output in made.graph.output]
        for output in made.graph.output:
            output.type.tensor_type.ClearField("elem_type")
        inferred = onnx.shape_inference.infer_shapes(made)
        for output, found, alike in zip(made.graph.output, inferred.graph.output, same, strict=True):
            unknown = element_type(kind) if alike else before
            output.type.tensor_type.elem_type = found.type.tensor_type.elem_type or unknown
    with np.errstate(all="ignore"):
        values = [value if k not in data else converted(value, kind) for k, value in enumerate(inputs)]
    return Variant(made, values, data, kind)


def converted(value: Any, kind: str) -> Any:
    negative = kind.startswith("uint") and value.dtype.kind in "if"
    return (np.abs(value) if negative else value).astype(dtype(kind))


def dtype(kind: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)


def element_type(kind: str) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype(kind))


def drawn(variant: Variant, rng: np.random.Generator) -> list[Any]:
    """Inputs in which some numbers are special."""
    made = list(variant.inputs)
    operator = variant.model.graph.node[0].op_type

    def said(what: str) -> bool:
        return operator not in UNSAID[what]

    for k in variant.data[:1] if operator in FIRST else variant.data:
        kind = dtype(variant.kind)
        shape = made[k].shape
        if variant.kind in FLOATS:
            limits = ml_dtypes.finfo(kind)
            special = [-0.0, 0.0, limits.smallest_subnormal, limits.tiny, 1, -1, 0.5, -2.5, 3]
            special += [np.nan] * said("nan") + [np.inf, -np.inf] * said("infinity")
            special += [limits.max, limits.min] * said("extreme")
        elif variant.kind == "bool":
            special = [False, True]
        else:
            limits = ml_dtypes.iinfo(kind)
            special = [1, 2, 3] + [0] * said("zero") + [limits.max, limits.min + (not said("least"))] * said("extreme")
        chosen = rng.choice(np.array(special, dtype=kind), shape)
        made[k] = np.where(rng.random(shape) < rng.choice([0.05, 0.3, 1]), chosen, made[k]).astype(kind)
    return made


def right_values(variant: Variant, inputs: list[Any]) -> list[Any]:
    """The outputs by the reference, in the widest floating-point type in which it computes the operator."""
    operator = variant.model.graph.node[0].op_type
    if operator == "LogSoftmax":
        return [log_softmax(variant, inputs[0])]
    if operator == "PRelu":  # the reference multiplies a zero by the slope, the standard numbers below 0 alone
        x, slope = (value.astype("float64" if variant.kind in FLOATS else value.dtype) for value in inputs)
        with np.errstate(all="ignore"):
            return [np.where(x < 0, x * slope, x).astype(inputs[0].dtype)]
    if (variant.kind in FLOATS and operator not in OWN_TYPE) or operator == "MaxPool":  # which pads with NaN
        for wide in ("float64", "float32"):
            with contextlib.suppress(KeyError, RuntimeTypeError):  # constants of its functions have a type
                return evaluated(retyped(variant.model, inputs, variant.data, wide), variant)
    return evaluated(Variant(variant.model, inputs, variant.data, variant.kind), variant)


def log_softmax(variant: Variant, x: Any) -> Any:
    """In float64; the reference takes the logarithm of a softmax that has become 0."""
    attributes = {each.name: helper.get_attribute_value(each) for each in variant.model.graph.node[0].attribute}
    axis = attributes.get("axis", -1)
    with np.errstate(all="ignore"):
        below = x.astype("float64") - x.astype("float64").max(axis, keepdims=True)
        return (below - np.log(np.exp(below).sum(axis, keepdims=True))).astype(x.dtype)


def evaluated(wide: Variant, variant: Variant) -> list[Any]:
    model, given = wide.model, wide.inputs
    names = [item.name for item in model.graph.input]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        # Python's max of a number and NaN depends on their order, NumPy's, which ScatterND has, does not.
        with mock.patch.multiple(op_scatter_elements, create=True, max=np.maximum, min=np.minimum):
            found = ReferenceEvaluator(model).run(None, dict(zip(names, given, strict=True)))
        return [
            np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type))
            for value, output in zip(found, variant.model.graph.output, strict=True)
        ]


def compiled(variant: Variant) -> tuple[Any, str]:
    """The compiled model, or None and why it is refused."""
    model = onnx.ModelProto()
    model.CopyFrom(variant.model)
    if variant.data:
        kept = [item for k, item in enumerate(model.graph.input) if k in variant.data]
        fixed = [(item.name, variant.inputs[k]) for k, item in enumerate(model.graph.input) if k not in variant.data]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in fixed)
    try:
        return tvm_sched.relax.compile(model, "cpu1", "single"), ""
    except TvmSchedError as error:
        return None, str(error)


IN_NUMPY = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8", "float4_e2m1fn": "float32"}
"""Types below a byte come out as wider ones."""


def check(variant: Variant, inputs: list[Any], executable: Any) -> None:
    operator = variant.model.graph.node[0].op_type
    given = [inputs[k] for k in variant.data] if variant.data else inputs
    found = executable.run(*given)
    found = found if isinstance(found, list) else [found]
    for mine, right in zip(found, right_values(variant, inputs), strict=True):
        right = right.astype(IN_NUMPY.get(right.dtype.name, right.dtype))
        assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
        if right.dtype.kind in "biu" or operator in (*EXACT, *UP_TO_ZERO):
            np.testing.assert_array_equal(mine.astype("float64"), right.astype("float64"))
            if right.dtype.kind not in "biu" and operator in EXACT:
                numbers = ~np.isnan(right)
                np.testing.assert_array_equal(np.signbit(mine[numbers]), np.signbit(right[numbers]))
            continue
        a, b = mine.astype("float64"), right.astype("float64")
        finite = np.isfinite(b)
        np.testing.assert_array_equal(np.where(finite, 0, a), np.where(finite, 0, b))
        tolerance = TOLERANCE.get(variant.kind, 1e-4)
        scale = min(np.abs(b[finite]).max(initial=0), 10)
        least = float(ml_dtypes.finfo(right.dtype).tiny)  # below it numbers keep few bits or none
        np.testing.assert_allclose(a[finite], b[finite], rtol=tolerance, atol=max(tolerance * scale, least))


_refused: list[bool] = []


@pytest.mark.slow
@pytest.mark.sampled(9)
@pytest.mark.xdist_group("onnx_operators")  # one process makes the cases
@pytest.mark.parametrize("operator", operators())
def test_the_reference_s_value_or_a_message(operator: str) -> None:
    """Operators begin with different types and cases; `make test-thorough` runs all types, with several cases each."""
    known = variants(operator)
    start = zlib.crc32(operator.encode())
    kinds = list(known) if repeated(operator) else [list(known)[start % len(known)]]
    chosen = [
        known[kind][(start + n + k) % len(known[kind])]
        for n, kind in enumerate(kinds)
        for k in range(min(2 if repeated(operator) else 1, len(known[kind])))
    ]
    wrong = []
    for number, variant in enumerate(chosen):
        executable, refusal = compiled(variant)
        _refused.append(executable is None)
        assert "\n" not in refusal
        if executable is None:
            continue
        try:
            check(variant, variant.inputs, executable)
            for seed in range(4) if variant.data else ():
                check(variant, drawn(variant, np.random.default_rng(number + seed)), executable)
        except AssertionError as error:
            wrong.append(f"{variant.kind}, {variant.model.graph.name}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.xdist_group("onnx_operators")
def test_few_operators_are_refused() -> None:
    """Run after the test above: a compiler that refuses everything would pass that one."""
    if len(_refused) < 40:
        pytest.skip("needs test_the_reference_s_value_or_a_message in the same process")
    assert sum(_refused) <= 0.2 * len(_refused)
