"""Steps that extend a random torch module by functions of tensors, a family a function.

A step draws inputs among the module's values, draws the arguments and adds a line; it adds none without a fitting value,
or if torch refuses the line.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .torch_builder import Draw, ModuleBuilder, Value

_SMOOTH = (
    "torch.tanh({})", "torch.sigmoid({})", "F.relu({})", "F.gelu({})", "F.gelu({}, approximate='tanh')", "F.silu({})",
    "F.elu({}, 0.7)", "F.selu({})", "F.celu({}, 1.5)", "F.leaky_relu({}, 0.2)", "F.softplus({})",
    "F.softplus({}, 2.0, 1.0)", "F.mish({})", "F.hardswish({})", "F.hardsigmoid({})", "F.hardtanh({}, -0.5, 2.0)",
    "F.relu6({})", "F.softsign({})", "F.logsigmoid({})", "F.tanhshrink({})", "torch.erf({})", "torch.sin({})",
    "torch.cos({})", "torch.atan({})", "torch.exp({}.clamp(max=3))", "torch.expm1({}.clamp(max=3))",
    "torch.log1p({}.abs())", "torch.sqrt({}.abs() + 1)", "torch.rsqrt({}.abs() + 1)", "torch.log({}.abs() + 0.5)",
    "torch.log2({}.abs() + 0.5)", "torch.reciprocal({}.abs() + 1)", "{}.square()", "{} ** 3", "{} ** 2.0",
    "2.0 ** {}.clamp(-3, 3)", "torch.sinh({}.clamp(-2, 2))", "torch.asinh({})", "torch.acos({}.clamp(-0.9, 0.9))",
    "F.threshold({}.abs(), -1.0, 5.0)", "torch.nan_to_num({})", "torch.erfc({})",
)  # fmt: skip
_STEEP = (
    "torch.floor({})", "torch.ceil({})", "torch.round({})", "torch.trunc({})", "torch.sign({})", "torch.frac({})",
    "torch.isnan({})", "torch.isinf({})", "torch.logical_not({})", "{}.bool()", "{} > 0", "{} == 1", "{} <= 0.5",
    "{} != 2", "F.hardshrink({}, 0.4)", "F.softshrink({}, 0.4)", "torch.heaviside({}, torch.tensor(0.5))",
    "torch.isfinite({})", "torch.signbit({})", "torch.bitwise_not({})", "{} & 3", "{} | 1", "{} ^ 5", "{} // 2",
    "{} % 3", "torch.remainder({}, 1.5)", "torch.fmod({}, 3)", "torch.div({}, 2, rounding_mode='trunc')",
    "torch.div({}, 3, rounding_mode='floor')", "{}.abs()", "-{}", "{}.clamp(-1, 2)", "{}.clamp(min=0)",
    "{}.clamp(max=1)",
)  # fmt: skip
_SCALARS = ("1", "2", "-3", "0.5", "1.5", "True")
_DTYPES = ("float32", "int64", "int32", "bool", "uint8", "int8", "float64", "float16", "bfloat16", "int16")


def unary(b: ModuleBuilder, draw: Draw) -> None:
    """Add a smooth function of one number, of integers too."""
    if (x := b.pick(draw, lambda v: True)) is not None:
        b.emit(draw(st.sampled_from(_SMOOTH)).replace("{}", x.name), [x])


def rounding(b: ModuleBuilder, draw: Draw) -> None:
    """Add a steep function, on exact values only."""
    if (x := b.pick(draw, lambda v: v.exact)) is not None:
        b.emit(draw(st.sampled_from(_STEEP)).replace("{}", x.name), [x], steep=True)


def _partner(b: ModuleBuilder, draw: Draw, x: Value, steep: bool = False) -> Value | None:
    return b.pick(draw, lambda v: (v.exact or not steep) and _broadcasts(v.shape, x.shape))


def _broadcasts(a: tuple[int, ...], c: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(c), strict=False))


def binary(b: ModuleBuilder, draw: Draw) -> None:
    """Add arithmetic of two tensors of any types, with broadcasting."""
    x = b.pick(draw, lambda v: True)
    y = x and _partner(b, draw, x)
    if x is None or y is None:
        return
    form = draw(st.sampled_from([
        "{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.minimum({}, {})", "{} / ({}.abs() + 1)",
        "torch.add({}, {}, alpha=2)", "torch.sub({}, {}, alpha=0.5)", "torch.atan2({}, {}.abs() + 1)",
        "torch.lerp({}, {}, 0.3)", "torch.addcmul({0}, {0}, {1}, value=0.5)", "torch.hypot({}, {})",
        "torch.logaddexp({}, {})", "torch.rsub({}, {})", "torch.addcdiv({0}, {0}, {1}.abs() + 1)",
        "({}.abs() + 0.5) ** {}.clamp(-2, 2)",
    ]))  # fmt: skip
    names = [x.name, y.name] if draw(st.booleans()) else [y.name, x.name]
    b.emit(form.format(*names), [x, y], exact=not (x.is_float or y.is_float) or "imum" in form)


def comparison(b: ModuleBuilder, draw: Draw) -> None:
    """Add a comparison or logical operator of two tensors."""
    x = b.pick(draw, lambda v: v.exact)
    y = x and _partner(b, draw, x, steep=True)
    if x is None or y is None:
        return
    form = draw(st.sampled_from([
        "{} < {}", "{} >= {}", "{} == {}", "{} != {}", "torch.logical_and({}, {})", "torch.logical_or({}, {})",
        "torch.logical_xor({}, {})", "{} & {}", "{} | {}", "{} ^ {}", "torch.where({0} > 0, {0}, {1})",
        "{} // ({}.abs() + 1)", "{} % ({}.abs() + 1)", "torch.isin({}, {})",
    ]))  # fmt: skip
    b.emit(form.format(x.name, y.name), [x, y], steep=True)


def scalar(b: ModuleBuilder, draw: Draw) -> None:
    """Add arithmetic with a Python number, whose type torch promotes."""
    x = b.pick(draw, lambda v: True)
    if x is None:
        return
    number = draw(st.sampled_from(_SCALARS))
    form = draw(st.sampled_from(["{} + {}", "{1} - {0}", "{} * {}", "{} / {}", "torch.add({}, {}, alpha=2)"]))
    b.emit(form.format(x.name, number), [x], exact="." not in number and "/" not in form and not x.is_float)


def cast(b: ModuleBuilder, draw: Draw) -> None:
    """Add a cast; to integers only from small exact values, for which C defines the result."""
    x = b.pick(draw, lambda v: True)
    if x is None:
        return
    dtype = draw(st.sampled_from(_DTYPES))
    if x.is_float and dtype.startswith("uint"):
        return
    whole = not dtype.startswith(("float", "bfloat"))
    b.emit(f"{x.name}.to(torch.{dtype})", [x], exact=True, steep=whole and x.is_float)


def select(b: ModuleBuilder, draw: Draw) -> None:
    """Add ``where`` or ``masked_fill`` with a condition of the module."""
    condition = b.pick(draw, lambda v: v.dtype == "bool")
    x = condition and _partner(b, draw, condition)
    y = (
        x
        and condition
        and b.pick(draw, lambda v: _broadcasts(v.shape, x.shape) and _broadcasts(v.shape, condition.shape))
    )
    if condition is None or x is None or y is None:
        return
    form = draw(
        st.sampled_from(
            [
                "torch.where({}, {}, {})",
                "torch.where({}, {}, 2)",
                "torch.where({}, 1.5, {})",
                "{1}.masked_fill({0}, -3)",
                "{1}.masked_fill({0}, 0.5)",
                "{1}.masked_fill({0}, float('-inf')).clamp(min=-100)",
            ]
        )
    )
    b.emit(form.format(condition.name, x.name, y.name), [condition, x, y], exact=True)


def reduction(b: ModuleBuilder, draw: Draw) -> None:
    """Add a reduction over some dimensions or all."""
    name = draw(st.sampled_from([
        "sum", "mean", "amax", "amin", "var", "std", "logsumexp", "norm", "any", "all", "prod", "argmax", "argmin",
        "max", "min", "count_nonzero", "nansum", "std_mean", "median", "aminmax", "cummax",
    ]))  # fmt: skip
    steep = name in ("any", "all", "argmax", "argmin", "max", "min", "count_nonzero", "median", "cummax")
    x = b.pick(draw, lambda v: v.exact or not steep)
    if x is None:
        return
    dims = _dimensions(draw, x.rank)
    one = name in ("argmax", "argmin", "max", "min", "prod", "median", "aminmax", "cummax")
    keep = draw(st.sampled_from(["", ", keepdim=True"])) if name not in ("count_nonzero", "cummax") else ""
    if (not dims and name not in ("logsumexp",)) or (one and draw(st.booleans())):
        arguments = ""
    else:
        arguments = f"dim={dims[0] if one and dims else tuple(dims)}{keep}"
    if name == "cummax":  # it has no default
        arguments = f"dim={dims[0] if dims else 0}"
    if name == "std" and draw(st.booleans()):
        arguments = ", ".join(filter(None, [arguments, "correction=0"]))
    text = (
        f"{x.name}.{name}({arguments})"
        if name != "std_mean"
        else f"torch.std_mean({x.name}{', ' * bool(arguments)}{arguments})"
    )
    whole = not x.is_float
    if (one and "dim" in arguments and name not in ("argmax", "argmin", "prod")) or name == "std_mean":
        b.emit_all(text, [x], exact=True, steep=steep and not _is_settled(x))
    else:
        b.emit(text, [x], exact=whole or name in ("amax", "amin"), steep=steep)


def _is_settled(x: Value) -> bool:
    """Whether all elements differ, so that the position of the largest is unique."""
    return int(x.tensor.unique().numel()) == x.tensor.numel()


def _dimensions(draw: Draw, rank: int) -> list[int]:
    if rank == 0:
        return []
    chosen: list[int] = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))
    return [axis - rank if draw(st.booleans()) else axis for axis in chosen]


def ordering(b: ModuleBuilder, draw: Draw) -> None:
    """Add a sort; tensors with equal elements get stable sorts only."""
    x = b.pick(draw, lambda v: v.exact and v.rank > 0)
    if x is None:
        return
    axis = draw(st.integers(-x.rank, x.rank - 1))
    down = draw(st.booleans())
    form = draw(st.sampled_from(["topk", "sort", "argsort", "kthvalue"]))
    if form == "topk":
        if _is_settled(x) and x.shape[axis]:
            b.emit_all(f"torch.topk({x.name}, {draw(st.integers(1, x.shape[axis]))}, {axis}, {down})", [x], steep=True)
    elif form == "sort":
        b.emit_all(f"torch.sort({x.name}, dim={axis}, descending={down}, stable=True)", [x], steep=True)
    elif form == "argsort":
        b.emit(f"torch.argsort({x.name}, dim={axis}, descending={down}, stable=True)", [x], steep=True)
    elif _is_settled(x) and x.shape[axis]:
        b.emit_all(f"torch.kthvalue({x.name}, {draw(st.integers(1, x.shape[axis]))}, {axis})", [x], steep=True)


def scan(b: ModuleBuilder, draw: Draw) -> None:
    """Add a running sum or product, softmax, or difference."""
    x = b.pick(draw, lambda v: v.rank > 0)
    if x is None:
        return
    axis = draw(st.integers(-x.rank, x.rank - 1))
    form = draw(st.sampled_from([
        "torch.cumsum({}, {})", "torch.cumprod({}, {})", "torch.softmax({}, {})", "torch.log_softmax({}, {})",
        "torch.diff({}, dim={})", "F.normalize({}, dim={})", "F.softmin({}, dim={})", "F.glu({}, {})",
        "torch.cumsum({}, {}, dtype=torch.float32)", "torch.logcumsumexp({}, {})",
        "torch.softmax({}, {}, dtype=torch.float32)",
    ]))  # fmt: skip
    b.emit(form.format(x.name, axis), [x], exact=not x.is_float and form.startswith(("torch.cum", "torch.diff")))


def product(b: ModuleBuilder, draw: Draw) -> None:
    """Add a matrix product or einsum of values that fit, or with a new input."""
    x = b.pick(draw, lambda v: v.rank > 0)
    if x is None:
        return
    inner = x.shape[-1]
    y = b.pick(draw, lambda v: v.dtype == x.dtype and v.rank > 1 and v.shape[-2] == inner)
    if y is None or draw(st.booleans()):
        y = b.input(x.dtype, [inner, draw(st.sampled_from([3, 1, 5]))])
    form = draw(st.sampled_from([
        "{} @ {}", "torch.matmul({}, {})", "torch.einsum('...i,ij->...j', {}, {})",
        "torch.einsum('...i,ij->j', {}, {})", "torch.tensordot({}, {}, 1)", "torch.einsum('bij,jk->bki', {}, {})",
        "torch.bmm({}, {})", "torch.addmm({1}[0], {0}, {1}, beta=0.5, alpha=2)", "torch.mv({1}.T, {0})",
    ]))  # fmt: skip
    b.emit(form.format(x.name, y.name), [x, y], exact=not x.is_float)


STEPS: tuple[Any, ...] = (
    unary, unary, rounding, binary, binary, comparison, scalar, cast, select, reduction, reduction, ordering, scan,
    product,
)  # fmt: skip
