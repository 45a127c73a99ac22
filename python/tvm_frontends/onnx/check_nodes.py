"""Checks of ONNX nodes against the standard, so that a wrong file is refused by its node and not by a library below.

They run before ONNX's own shape inference, which trusts its input: onnx 1.23 ends the process, or never ends, for wrong
attributes of Einsum, GatherND, LayerNormalization and Split. `check_nodes` follows the standard's schemas. `check_operands`
runs once types and shapes of the inputs are known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import ModelError, UnsupportedNode
from .onnx_files import subgraphs
from .operators.nodes import STANDARD, node_text

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

AGAIN = "export the model again"
MAX_DIMENSIONS = 64
"""Largest rank for which an attribute may name an axis."""

POSITIVE = {
    "blocksize", "dilations", "group", "hidden_size", "kernel_shape", "num_groups", "num_outputs", "output_height",
    "output_width", "strides",
}  # fmt: skip
"""Attributes of whole numbers from 1 on."""

TEXTS = {
    "auto_pad": {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"},
    "direction": {"forward", "reverse", "bidirectional", "LEFT", "RIGHT"},
    "coordinate_transformation_mode": {
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
        "tf_crop_and_resize", "output_half_pixel",
    },
    "reduction": {"none", "add", "mul", "max", "min", "mean", "sum"},
    "padding_mode": {"zeros", "border", "reflection"},
}  # fmt: skip
"""Allowed texts of attributes that mean the same in all operators."""

MODES = {
    "DepthToSpace": {"DCR", "CRD"},
    "Pad": {"constant", "reflect", "edge", "wrap"},
    "Resize": {"nearest", "linear", "cubic"},
    "RoiAlign": {"avg", "max"},
    "Upsample": {"nearest", "linear"},
    "GridSample": {"bilinear", "nearest", "bicubic", "linear", "cubic"},
}
"""Allowed texts of the attribute ``mode``."""


def check_nodes(model: onnx.ModelProto, where: str) -> None:
    """Refuse a model of a version that onnx does not know, and nodes that the standard does not allow.

    A node must have as many inputs and outputs as its operator takes, and all attributes that it needs, and no others, each
    of the type that the standard says. Operators of other domains are not checked.

    Raises
    ------
    ModelError
        It names the node, and what is allowed.
    """
    import onnx

    newest = onnx.defs.onnx_opset_version()
    versions = {("" if each.domain in STANDARD else each.domain): each.version for each in model.opset_import}
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{where}: its IR version is {model.ir_version}; the installed package onnx {onnx.__version__} knows up to "
            f"{onnx.IR_VERSION}: pip install -U onnx, or export the model with an older version"
        )
    if "" not in versions and any(node.domain in STANDARD for node in model.graph.node):
        raise ModelError(f"{where}: it does not say which opset its operators are of (opset_import); {AGAIN}")
    if not 1 <= versions.get("", 1) <= newest:
        raise ModelError(
            f"{where}: its opset is {versions['']}; the installed package onnx {onnx.__version__} knows 1 to {newest}: pip "
            "install -U onnx, or export the model with an older opset"
        )
    own = {(function.domain, function.name) for function in model.functions}
    _check_graph(model.graph, versions, own, where)


def _check_graph(
    graph: onnx.GraphProto, versions: Mapping[str, int], own: Collection[tuple[str, str]], where: str
) -> None:
    """Check the nodes of a graph and its subgraphs; ``own`` are the functions that the model defines itself."""
    for node in graph.node:
        domain = "" if node.domain in STANDARD else node.domain
        known = domain in versions and (node.domain, node.op_type) not in own
        schema = _schema(node.op_type, versions[domain], domain) if known else None
        if schema is not None:
            try:
                _check_node(node, schema)
            except UnsupportedNode as error:
                raise ModelError(f"{where}: {error.problem}") from None
        for attribute in node.attribute:
            for body in subgraphs(attribute):
                _check_graph(body, versions, own, where)


@cache
def _schema(operator: str, version: int, domain: str) -> Any:
    """Return what the standard says of an operator in a version; None if it does not know it, or did away with it."""
    import onnx

    if domain not in ("", "ai.onnx.ml"):
        return None
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def _check_node(node: onnx.NodeProto, schema: Any) -> None:
    """Refuse a node against its schema; attributes of the operator's newest version are taken in older ones, too."""
    import onnx

    subject = node_text(node)
    names = [item.name for item in schema.inputs]
    _check_count(subject, "inputs", _without_left_out(node.input), schema.min_input, schema.max_input, names)
    _check_count(
        subject, "outputs", _without_left_out(node.output), schema.min_output, schema.max_output,
        [item.name for item in schema.outputs],
    )  # fmt: skip
    for name, item in zip(node.input, schema.inputs, strict=False):
        if not name and item.option == type(item.option).Single:
            raise UnsupportedNode(f"{subject} leaves out its input {item.name!r}, which {node.op_type} needs: {AGAIN}")
    given: dict[str, onnx.AttributeProto] = {}
    for attribute in node.attribute:
        if attribute.name in given:
            raise UnsupportedNode(f"{subject} has the attribute {attribute.name!r} twice: {AGAIN}")
        given[attribute.name] = attribute
        allowed = schema.attributes.get(attribute.name)
        if allowed is None:
            allowed = onnx.defs.get_schema(schema.name, schema.domain).attributes.get(attribute.name)
        if allowed is None:
            known = ", ".join(sorted(schema.attributes)) or "none"
            raise UnsupportedNode(
                f"{subject} has the attribute {attribute.name!r}, which {node.op_type} of opset {schema.since_version} does "
                f"not have; it has {known}: {AGAIN}"
            )
        _check_attribute(subject, node.op_type, attribute, allowed)
    for name, allowed in schema.attributes.items():
        if allowed.required and name not in given:
            raise UnsupportedNode(f"{subject} lacks the attribute {name!r}, which {node.op_type} needs: {AGAIN}")
    if node.op_type == "Einsum":
        _check_equation(subject, given["equation"].s.decode(errors="replace"), len(node.input))
    if node.op_type == "Split" and "num_outputs" in given and given["num_outputs"].i != len(node.output):
        raise UnsupportedNode(
            f"{subject}: its attribute num_outputs is {given['num_outputs'].i}, and it has {len(node.output)} outputs: "
            f"{AGAIN}"
        )


def _without_left_out(names: Sequence[str]) -> list[str]:
    """Return the names of inputs or outputs up to the last one that is given."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _check_count(subject: str, what: str, given: Sequence[str], least: int, most: int, names: Sequence[str]) -> None:
    if least <= len(given) <= most:
        return
    count = f"{least}" if least == most else f"{least} to {most}" if most < 1 << 30 else f"{least} or more"
    raise UnsupportedNode(
        f"{subject} has {len(given)} {what}; {count} are allowed ({', '.join(names) or 'none'}): {AGAIN}"
    )


_TYPES = range(1, 64)
"""Numbers of element types, of which later versions of ONNX may have more."""


def _check_attribute(subject: str, operator: str, attribute: onnx.AttributeProto, allowed: Any) -> None:
    if attribute.ref_attr_name:  # within a function
        return
    kind, wanted = attribute.type, int(getattr(allowed.type, "value", allowed.type))
    name = attribute.name
    if kind and kind != wanted:
        type_name = attribute.AttributeType.Name
        raise UnsupportedNode(
            f"{subject}: its attribute {name!r} is of the type {type_name(kind)}; {type_name(wanted)} is allowed: {AGAIN}"
        )
    numbers = [attribute.i] if wanted == attribute.INT else list(attribute.ints)
    if name in POSITIVE and wanted in (attribute.INT, attribute.INTS) and any(number < 1 for number in numbers):
        shown = attribute.i if wanted == attribute.INT else numbers
        raise UnsupportedNode(f"{subject}: its attribute {name} is {shown}; numbers from 1 are allowed: {AGAIN}")
    if name in ("to", "dtype") and wanted == attribute.INT and attribute.i not in _TYPES:
        raise UnsupportedNode(
            f"{subject}: its attribute {name} is {attribute.i}, which is the number of no type: {AGAIN}"
        )
    if name == "batch_dims" and attribute.i < 0:
        raise UnsupportedNode(
            f"{subject}: its attribute batch_dims is {attribute.i}; numbers from 0 are allowed: {AGAIN}"
        )
    if name == "axis" and wanted == attribute.INT and not -MAX_DIMENSIONS <= attribute.i <= MAX_DIMENSIONS:
        raise UnsupportedNode(f"{subject}: its attribute axis is {attribute.i}, which no tensor has: {AGAIN}")
    texts = MODES.get(operator) if name == "mode" else TEXTS.get(name)
    if texts and wanted == attribute.STRING and (text := attribute.s.decode(errors="replace")) not in texts:
        raise UnsupportedNode(
            f"{subject}: its attribute {name} is {text!r}; allowed are {', '.join(sorted(texts))}: {AGAIN}"
        )


_TERM = r"[A-Za-z]*(?:\.\.\.)?[A-Za-z]*"


def _check_equation(subject: str, equation: str, inputs: int) -> None:
    """Refuse an equation of Einsum that is not of the form ``ij,jk->ik``, on which ONNX's shape inference may not end."""
    text = equation.replace(" ", "")
    if not re.fullmatch(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?", text):
        raise UnsupportedNode(
            f"{subject}: its equation is {equation!r}; letters, at most one ... in each term, commas between terms and one "
            f"-> are allowed, as in ij,jk->ik: {AGAIN}"
        )
    left, _, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != inputs:
        raise UnsupportedNode(
            f"{subject}: its equation {equation!r} has {len(terms)} terms for {inputs} inputs: {AGAIN}"
        )
    unknown = set(right) - set(left) - {"."}
    if unknown or len(set(right.replace(".", ""))) < len(right.replace(".", "")):
        raise UnsupportedNode(
            f"{subject}: the result of its equation {equation!r} has a letter twice, or one that no input has: {AGAIN}"
        )


class _Operands:
    """What is known of a node's inputs, and its attributes."""

    def __init__(self, node: ir.Node, opset: int) -> None:
        self.node, self.opset = node, opset
        self.shapes: list[tuple[int, ...] | None] = [_sizes(value) for value in node.inputs]
        """None where an input is left out or its shape is unknown; an unknown size is -1."""

    def shape(self, position: int) -> tuple[int, ...] | None:
        return self.shapes[position] if position < len(self.shapes) else None

    def rank(self, position: int) -> int | None:
        shape = self.shape(position)
        return None if shape is None else len(shape)

    def attribute(self, name: str, default: Any = None) -> Any:
        found = self.node.attributes.get(name)
        return default if found is None or found.is_ref() else found.value

    def constant(self, position: int) -> list[Any] | None:
        """Return the numbers of a constant input; None if it is left out, or known only when the model runs."""
        value = self.node.inputs[position] if position < len(self.node.inputs) else None
        tensor = None if value is None else value.const_value
        return None if tensor is None else list(tensor.numpy().reshape(-1).tolist())

    def wrong(self, why: str) -> UnsupportedNode:
        node = self.node
        kind = f"{node.domain}.{node.op_type}" if node.domain not in STANDARD else node.op_type
        shapes = ", ".join(_text(value, shape) for value, shape in zip(node.inputs, self.shapes, strict=True))
        name = node.name or "->".join(value.name or "" for value in node.outputs)
        return UnsupportedNode(f"{kind} (node {name!r}): {why}; its inputs are {shapes}: {AGAIN}")


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    shape = None if value is None else value.const_value.shape if value.const_value is not None else value.shape
    return None if shape is None else tuple(dim if isinstance(dim, int) else -1 for dim in shape.dims)


def _text(value: ir.Value | None, shape: tuple[int, ...] | None) -> str:
    if value is None:
        return "(left out)"
    sizes = "?" if shape is None else ",".join("?" if size < 0 else str(size) for size in shape)
    dtype = "" if value.dtype is None else f" {value.dtype.name.lower()}"
    return f"{value.name}[{sizes}]{dtype}"


def check_operands(node: ir.Node, opset: int) -> None:
    """Refuse a node of the standard domain whose inputs do not fit together, as far as their types and shapes are known.

    Raises
    ------
    UnsupportedNode
        Types that must be equal differ; or a rank, a size or an axis does not fit the operator.
    """
    if node.domain not in STANDARD:
        return
    schema = _schema(node.op_type, opset, "")
    if schema is None:
        return
    operands = _Operands(node, opset)
    _check_types(operands, schema)
    for position, (least, most) in enumerate(RANKS.get(node.op_type, ())):
        rank = operands.rank(position)
        if rank is not None and not least <= rank <= most:
            allowed = f"{least}" if least == most else f"{least} to {most}" if most < _ANY else f"{least} or more"
            name = schema.inputs[min(position, len(schema.inputs) - 1)].name
            raise operands.wrong(f"its input {name} has {rank} dimensions, and {allowed} are allowed")
    _check_axes(operands)
    if rule := RULES.get(node.op_type):
        rule(operands)


def _newest_types(schema: Any, position: int) -> Collection[str]:
    """Return the types of an input in the operator's newest version: exporters write bfloat16 into older versions, too."""
    import onnx

    inputs = onnx.defs.get_schema(schema.name, schema.domain).inputs
    found: Collection[str] = inputs[min(position, len(inputs) - 1)].types if inputs else ()
    return found


def _check_types(operands: _Operands, schema: Any) -> None:
    """Refuse inputs of types that the operator does not take, or of different types where it wants one for them."""
    import onnx_ir as ir

    bound: dict[str, Any] = {}
    for position, value in enumerate(operands.node.inputs):
        item = schema.inputs[min(position, len(schema.inputs) - 1)] if schema.inputs else None
        if item is None or value is None or value.dtype is None or not item.is_homogeneous:
            continue
        # onnx_ir gives sequences that nodes make the type of their elements: only inputs of graphs are surely tensors.
        tensors = not any(kind.startswith(("seq", "optional")) for kind in item.types)
        declared = value.is_graph_input() and isinstance(value.type, ir.TensorType)
        given = _type_text(value.dtype.name)
        if (tensors or declared) and given not in item.types and given not in _newest_types(schema, position):
            allowed = ", ".join(sorted(kind.removeprefix("tensor(").removesuffix(")") for kind in item.types))
            raise operands.wrong(f"its input {item.name} ({value.name}) may be of the types {allowed}")
        first = bound.setdefault(item.type_str, value)
        if tensors and first.dtype != value.dtype and "(" not in item.type_str:
            raise operands.wrong(f"{first.name} and {value.name} must be of one type")


def _type_text(name: str) -> str:
    """Return the standard's text for a tensor of a type that onnx_ir calls by this name."""
    return f"tensor({name.lower()})"


_ANY = 1 << 30
_MATRIX = (2, 2)
RANKS: dict[str, tuple[tuple[int, int], ...]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger"), ((3, _ANY), (3, _ANY))),
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), ((3, _ANY),)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), ((2, _ANY),)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), ((3, 3), (3, 3), (3, 3))),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), ((4, 4),)),
    **dict.fromkeys(("MatMul", "MatMulInteger"), ((1, _ANY), (1, _ANY))),
    "BatchNormalization": ((1, _ANY), (1, _ANY), (1, _ANY), (1, _ANY), (1, _ANY)),
    "ConstantOfShape": ((1, 1),),
    "Det": ((2, _ANY),),
    "EyeLike": (_MATRIX,),
    "Trilu": ((2, _ANY),),
    "DeformConv": ((3, _ANY), (3, _ANY), (3, _ANY)),
    "Expand": ((0, _ANY), (1, 1)),
    "Gather": ((1, _ANY),),
    "GatherElements": ((1, _ANY), (1, _ANY)),
    "GatherND": ((1, _ANY), (1, _ANY)),
    "Gemm": (_MATRIX, _MATRIX, (0, 2)),
    "GridSample": ((3, _ANY), (3, _ANY)),
    "InstanceNormalization": ((3, _ANY), (1, 1), (1, 1)),
    "LayerNormalization": ((1, _ANY),),
    "LRN": ((2, _ANY),),
    "MaxRoiPool": ((4, 4), _MATRIX),
    "NonMaxSuppression": ((3, 3), (3, 3)),
    "Pad": ((0, _ANY), (1, 2)),  # opset 1 of com.microsoft, and some exporters, have a matrix of one row
    "QLinearConv": ((3, _ANY), (0, _ANY), (0, _ANY), (3, _ANY)),
    "Reshape": ((0, _ANY), (1, 1)),
    "RoiAlign": ((4, 4), _MATRIX, (1, 1)),
    "ScatterElements": ((1, _ANY), (1, _ANY), (1, _ANY)),
    "ScatterND": ((1, _ANY), (1, _ANY)),
    "Tile": ((0, _ANY), (1, 1)),
    "TopK": ((1, _ANY),),
}
"""Least and most dimensions of the inputs, by their position."""

AXIS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        ("ArgMax", "ArgMin", "Compress", "Concat", "Gather", "GatherElements", "Hardmax", "LayerNormalization", "LogSoftmax",
         "LpNormalization", "Scatter", "ScatterElements", "Softmax", "Split", "SplitToSequence", "TopK", "Unique"),
        (0, 0),
    ),
    "Flatten": (0, 1),
    "OneHot": (1, 1),
    "ConcatFromSequence": (0, _ANY),
}  # fmt: skip
"""Operators with an attribute ``axis`` of their first input: by how much it may be below -rank and above rank - 1."""


def _check_axes(operands: _Operands) -> None:
    node, rank = operands.node, operands.rank(0)
    if rank is None:
        return
    axis, slack = operands.attribute("axis"), AXIS.get(node.op_type)
    if slack is not None and isinstance(axis, int) and not -rank - slack[0] <= axis < rank + slack[1]:
        raise operands.wrong(f"its axis is {axis}, outside of a tensor of rank {rank}")
    if node.op_type.startswith("Reduce") or node.op_type in ("Squeeze", "Unsqueeze"):
        given = operands.attribute("axes")
        axes: list[int] = list(given if given is not None else operands.constant(1) or ())
        wide = rank + (len(axes) if node.op_type == "Unsqueeze" else 0)
        for each in axes:
            if not -wide <= each < wide:
                raise operands.wrong(f"its axes are {axes}, outside of a tensor of rank {wide}")
        if len({each % wide for each in axes}) < len(axes):
            raise operands.wrong(f"its axes are {axes}, one of them twice")


def _windows(operands: _Operands, spatial: int) -> None:
    """Check the numbers of a kernel, strides, dilations and padding against the number of spatial dimensions."""
    for name, count in (("kernel_shape", spatial), ("strides", spatial), ("dilations", spatial), ("pads", 2 * spatial)):
        given = operands.attribute(name)
        if given and len(given) != count:
            raise operands.wrong(f"its {name} {list(given)} should have {count} numbers")


def _convolution(operands: _Operands, weights: int = 1) -> None:
    x, w = operands.shape(0), operands.shape(weights)
    if x is None:
        return
    _windows(operands, len(x) - 2)
    if w is None:
        return
    if len(w) != len(x):
        raise operands.wrong(f"its weights have {len(w)} dimensions and its input {len(x)}")
    group, transposed = operands.attribute("group", 1), operands.node.op_type == "ConvTranspose"
    wanted = w[0] if transposed else w[1] * group
    if min(x[1], w[0], w[1]) >= 0 and (x[1] != wanted or (not transposed and w[0] % group)):
        raise operands.wrong(f"its weights are for {wanted} channels in {group} groups, and its input has {x[1]}")
    kernel = operands.attribute("kernel_shape")
    if kernel and all(size >= 0 for size in w[2:]) and tuple(kernel) != w[2:]:
        raise operands.wrong(f"its kernel_shape is {list(kernel)}, and that of its weights {list(w[2:])}")
    if not transposed:
        _fits_kernel(operands, x, w[2:])


def _pool(operands: _Operands) -> None:
    x = operands.shape(0)
    if x is None:
        return
    _windows(operands, len(x) - 2)
    _fits_kernel(operands, x, tuple(operands.attribute("kernel_shape") or ()))


def _fits_kernel(operands: _Operands, x: tuple[int, ...], kernel: Sequence[int]) -> None:
    """Refuse a window that is larger than the padded input, so that there would be no result, or one of negative size."""
    spatial = x[2:]
    if _decoded(operands.attribute("auto_pad", "NOTSET")) != "NOTSET" or len(kernel) != len(spatial):
        return
    pads = operands.attribute("pads") or [0] * (2 * len(spatial))
    dilations = operands.attribute("dilations") or [1] * len(spatial)
    for axis, size in enumerate(spatial):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        padded = size + pads[axis] + pads[axis + len(spatial)]
        if size > 0 and padded < window:
            raise operands.wrong(
                f"its window of {window} is larger than its padded input of {padded} in dimension {axis + 2}"
            )


def _decoded(text: Any) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)


def _gather_nd(operands: _Operands) -> None:
    data, indices, batch = operands.shape(0), operands.shape(1), operands.attribute("batch_dims", 0)
    if data is None or indices is None:
        return
    if not 0 <= batch < min(len(data), len(indices)):
        raise operands.wrong(f"its batch_dims is {batch}")
    if indices[-1] != -1 and not 1 <= indices[-1] <= len(data) - batch:
        raise operands.wrong(
            f"the last dimension of its indices is {indices[-1]}; 1 to {len(data) - batch} are allowed"
        )


def _einsum(operands: _Operands) -> None:
    equation = _decoded(operands.attribute("equation", "")).replace(" ", "")
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.partition("->")[0].split(","), operands.shapes, strict=False):
        if shape is None:
            continue
        letters, dots = term.replace("...", ""), "..." in term
        if len(shape) < len(letters) or (not dots and len(shape) != len(letters)):
            raise operands.wrong(f"the term {term!r} of its equation {equation!r} does not fit {len(shape)} dimensions")
        before = term.partition("...")[0] if dots else term
        after = term.partition("...")[2]
        named = [*zip(before, shape, strict=False), *zip(after, shape[len(shape) - len(after) :], strict=True)]
        for letter, size in named:
            if size < 0 or size == 1:
                continue
            if sizes.setdefault(letter, size) != size:
                raise operands.wrong(
                    f"the letter {letter!r} of its equation {equation!r} stands for {sizes[letter]} and {size}"
                )


def _transpose(operands: _Operands) -> None:
    rank, perm = operands.rank(0), operands.attribute("perm")
    if rank is not None and perm is not None and sorted(perm) != list(range(rank)):
        raise operands.wrong(f"its perm is {list(perm)}; an order of the axes 0 to {rank - 1} is allowed")


def _concat(operands: _Operands) -> None:
    shapes = [shape for shape in operands.shapes if shape is not None]
    axis = operands.attribute("axis", 1)
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        raise operands.wrong("its inputs must have the same number of dimensions")
    for position, sizes in enumerate(zip(*shapes, strict=True)):
        if position != axis % len(shapes[0]) and len({size for size in sizes if size >= 0}) > 1:
            raise operands.wrong(f"its inputs must be equal in all dimensions but {axis}")


def _matmul(operands: _Operands) -> None:
    a, b = operands.shape(0), operands.shape(1)
    if a is None or b is None:
        return
    inner, other = a[-1], b[-2] if len(b) > 1 else b[0]
    if min(inner, other) >= 0 and inner != other:
        raise operands.wrong(
            f"the last dimension of the first, {inner}, and that of the second, {other}, must be equal"
        )
    if broadcast(a[:-2], b[:-2]) is None:
        raise operands.wrong("their leading dimensions cannot be broadcast")


def _square(operands: _Operands) -> None:
    x = operands.shape(0)
    if x is not None and len(x) > 1 and min(x[-2:]) >= 0 and x[-1] != x[-2]:
        raise operands.wrong("the last two dimensions must be equal")


def _gemm(operands: _Operands) -> None:
    a, b, c = operands.shape(0), operands.shape(1), operands.shape(2)
    if a is None or b is None:
        return
    rows, inner = a[::-1] if operands.attribute("transA", 0) else a
    other, columns = b[::-1] if operands.attribute("transB", 0) else b
    if min(inner, other) >= 0 and inner != other:
        raise operands.wrong(f"the inner dimensions {inner} and {other} must be equal")
    if c is not None and min((*c, rows, columns), default=0) >= 0 and broadcast(c, (rows, columns)) != (rows, columns):
        raise operands.wrong(f"its third input cannot be broadcast to the result of {rows} x {columns}")


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape to which shapes are broadcast, with -1 for unknown sizes; None if they cannot be."""
    result: list[int] = []
    for position in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {shape[-position] for shape in shapes if len(shape) >= position} - {1}
        known = sizes - {-1}
        if len(known) > 1:
            return None
        result.append(min(known) if known else -1 if sizes else 1)
    return tuple(result[::-1])


_NUMPY_BROADCASTING = 7
"""Opset from which on operands are broadcast as in NumPy."""


def _elementwise(operands: _Operands) -> None:
    if (
        operands.opset >= _NUMPY_BROADCASTING
        and broadcast(*(shape for shape in operands.shapes if shape is not None)) is None
    ):
        raise operands.wrong("their shapes cannot be broadcast")


def _blocks(operands: _Operands) -> None:
    x, block = operands.shape(0), operands.attribute("blocksize")
    if x is None or block is None:
        return
    parts = (x[1] % (block * block),) if operands.node.op_type == "DepthToSpace" else (x[2] % block, x[3] % block)
    if min(x) >= 0 and any(parts):
        raise operands.wrong(f"its blocksize {block} does not divide its input")


def _recurrent(operands: _Operands) -> None:
    x, w, r = (operands.shape(position) for position in range(3))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operands.node.op_type]
    hidden = operands.attribute("hidden_size")
    if x and w and min(x[2], w[2]) >= 0 and x[2] != w[2]:
        raise operands.wrong(f"its weights W are for {w[2]} numbers a step, and its input has {x[2]}")
    if r and min(r) >= 0 and r[1] != gates * r[2]:
        raise operands.wrong(f"its weights R are {list(r)}; the second dimension is {gates} times the third")
    if r and hidden is not None and r[2] not in (-1, hidden):
        raise operands.wrong(f"its hidden_size is {hidden}, and its weights R are for {r[2]}")


def _per_channel(operands: _Operands) -> None:
    """Check vectors of one number for each channel."""
    x = operands.shape(0)
    if x is None or len(x) < 2 or x[1] < 0:
        return
    for position in range(1, len(operands.shapes)):
        vector = operands.shape(position)
        if vector is not None and len(vector) == 1 and vector[0] not in (-1, x[1]):
            raise operands.wrong(f"its input {position} has {vector[0]} numbers for {x[1]} channels")


def _reshape(operands: _Operands) -> None:
    x, asked = operands.shape(0), operands.constant(1)
    if x is None or asked is None:
        return
    if any(size < -1 for size in asked) or asked.count(-1) > 1:
        raise operands.wrong(f"its shape is {asked}; sizes from 0 and at most one -1 are allowed")
    zero = operands.attribute("allowzero", 0)
    if not zero and any(size == 0 and position >= len(x) for position, size in enumerate(asked)):
        raise operands.wrong(f"its shape is {asked}, where 0 stands for a dimension that its input does not have")
    if min(x, default=0) < 0:
        return
    sizes = [x[position] if size == 0 and not zero else size for position, size in enumerate(asked)]
    rest = math.prod(size for size in sizes if size != -1)
    total = math.prod(x)
    if (rest != total) if -1 not in sizes else (rest == 0 and total != 0) or (rest != 0 and total % rest):
        raise operands.wrong(f"it has {total} numbers, which do not fit the shape {asked}")


def _expand(operands: _Operands) -> None:
    x, asked = operands.shape(0), operands.constant(1)
    if x is not None and asked is not None and (any(size < 0 for size in asked) or broadcast(x, asked) is None):
        raise operands.wrong(f"it cannot be broadcast to {asked}")


def _split(operands: _Operands) -> None:
    x, count, axis = operands.shape(0), len(operands.node.outputs), operands.attribute("axis", 0)
    if x is None or not -len(x) <= axis < len(x):
        return
    sizes = operands.attribute("split")
    sizes = operands.constant(1) if sizes is None else sizes
    if sizes is None:
        return
    if len(sizes) != count:
        raise operands.wrong(f"it is split into {len(sizes)} sizes, and has {count} outputs")
    if any(size < 0 for size in sizes) or (x[axis] >= 0 and sum(sizes) != x[axis]):
        raise operands.wrong(f"its sizes {list(sizes)} do not add up to {x[axis]}")


def _pads(operands: _Operands) -> None:
    node, rank = operands.node, operands.rank(0)
    axes = len(node.inputs) > 3 and node.inputs[3] is not None
    given = operands.attribute("pads") or operands.constant(1)
    if rank is not None and given is not None and not axes and len(given) != 2 * rank:
        raise operands.wrong(f"its pads {list(given)} should have {2 * rank} numbers")


def _tile(operands: _Operands) -> None:
    rank, repeats = operands.rank(0), operands.constant(1)
    if rank is None or repeats is None:
        return
    if len(repeats) != rank or any(count < 0 for count in repeats):
        raise operands.wrong(f"its repeats are {repeats}; {rank} numbers from 0 are allowed")


def _same(names: Iterable[str], rule: Callable[[_Operands], None]) -> dict[str, Callable[[_Operands], None]]:
    return dict.fromkeys(names, rule)


RULES: dict[str, Callable[[_Operands], None]] = {
    **_same(("Conv", "ConvTranspose", "ConvInteger"), _convolution),
    "QLinearConv": lambda operands: _convolution(operands, 3),
    **_same(("AveragePool", "MaxPool", "LpPool"), _pool),
    **_same(("MatMul", "MatMulInteger"), _matmul),
    **_same(("DepthToSpace", "SpaceToDepth"), _blocks),
    **_same(("LSTM", "GRU", "RNN"), _recurrent),
    **_same(("BatchNormalization", "InstanceNormalization"), _per_channel),
    **_same(
        ("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual", "Less",
         "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"),
        _elementwise,
    ),
    "Concat": _concat,
    "Det": _square,
    "Einsum": _einsum,
    "Expand": _expand,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "Pad": _pads,
    "Reshape": _reshape,
    "Split": _split,
    "Tile": _tile,
    "Transpose": _transpose,
}  # fmt: skip
"""Further checks of the operands."""
