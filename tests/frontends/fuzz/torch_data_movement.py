"""Steps that extend a random torch module by operators that move elements: shapes, slices, indices."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .torch_builder import Draw, ModuleBuilder, Value


def _axis(draw: Draw, rank: int) -> int:
    return draw(st.integers(-rank, rank - 1))


def _any(b: ModuleBuilder, draw: Draw, least: int = 1) -> Value | None:
    return b.pick(draw, lambda v: v.rank >= least)


def shape(b: ModuleBuilder, draw: Draw) -> None:
    """Add a view, permutation or broadcast."""
    x = b.pick(draw, lambda v: True)
    if x is None:
        return
    rank = x.rank
    forms = [
        f"{x.name}.reshape(-1)",
        f"{x.name}.unsqueeze({draw(st.integers(-rank - 1, rank))})",
        f"{x.name}.squeeze()",
        f"{x.name}.flatten()",
        f"{x.name}.expand({draw(st.sampled_from([2, 1]))}, {', '.join(['-1'] * rank)})",
    ]
    if rank:
        axis = _axis(draw, rank)
        order = tuple(draw(st.permutations(range(rank))))
        size = x.shape[axis]
        forms += [
            f"{x.name}.permute({order})",
            f"{x.name}.transpose({axis}, {_axis(draw, rank)})",
            f"{x.name}.squeeze({axis})",
            f"{x.name}.flip({axis})",
            f"{x.name}.roll({draw(st.integers(-3, 3))}, {axis})",
            f"{x.name}.repeat({', '.join(str(draw(st.integers(1, 2))) for _ in range(rank))})",
            f"{x.name}.repeat_interleave(2, dim={axis})",
            f"{x.name}.permute({order}).contiguous().view(-1)",
            f"{x.name}.flatten({draw(st.integers(0, rank - 1))})",
            f"torch.movedim({x.name}, {axis}, 0)",
            f"{x.name}.unfold({axis}, {max(1, size // 2)}, 1)",
            f"torch.rot90({x.name})",
            f"F.pad({x.name}, ({draw(st.integers(0, 2))}, {draw(st.integers(-1, 2))}), value=1)",
            f"F.pad({x.name}, (1, 1), mode='{draw(st.sampled_from(['reflect', 'replicate', 'circular']))}')",
            f"torch.tril({x.name}, {draw(st.integers(-1, 1))})",
            f"torch.triu({x.name}, {draw(st.integers(-1, 1))})",
            f"torch.diagonal({x.name}, {draw(st.integers(-1, 1))})",
            f"torch.atleast_3d({x.name})",
        ]
        if size % 2 == 0 and size:
            forms.append(f"{x.name}.unflatten({axis}, (2, {size // 2}))")
    b.emit(draw(st.sampled_from(forms)), [x], exact=True)


def join(b: ModuleBuilder, draw: Draw) -> None:
    """Add ``cat`` or ``stack``, also of different types."""
    x = _any(b, draw)
    if x is None:
        return
    axis = _axis(draw, x.rank)
    outer = [size for k, size in enumerate(x.shape) if k != axis % x.rank]
    y = b.pick(draw, lambda v: v.rank == x.rank and [s for k, s in enumerate(v.shape) if k != axis % x.rank] == outer)
    other = y or x
    form = draw(
        st.sampled_from(["torch.cat([{}, {}], {})", "torch.stack([{}, {}], {})", "torch.cat([{0}, {1}, {0}], {2})"])
    )
    b.emit(form.format(x.name, other.name, axis), [x, other], exact=True)


def pieces(b: ModuleBuilder, draw: Draw) -> None:
    """Add ``split``, ``chunk`` or ``unbind``."""
    x = b.pick(draw, lambda v: v.rank > 0 and all(v.shape))
    if x is None:
        return
    axis = _axis(draw, x.rank)
    size = x.shape[axis]
    cut = draw(st.integers(0, size))
    form = draw(
        st.sampled_from(
            [
                f"torch.split({x.name}, {draw(st.integers(1, size))}, {axis})",
                f"{x.name}.unbind({axis})",
                f"torch.split({x.name}, [{cut}, {size - cut}], {axis})",
                f"torch.chunk({x.name}, {draw(st.integers(1, 3))}, {axis})",
                f"torch.tensor_split({x.name}, 2, {axis})",
            ]
        )
    )
    b.emit_all(form, [x], exact=True)


def _slice(draw: Draw, size: int) -> str:
    kind = draw(st.sampled_from(["slice", "all", "step", "last", "none", "one"]))
    if kind == "slice":
        return f"{draw(st.integers(-size, size))}:{draw(st.integers(-size, size))}"
    return {"all": ":", "step": f"{draw(st.integers(0, 2))}::2", "last": "-1", "none": "None", "one": "0"}[kind]


def index(b: ModuleBuilder, draw: Draw) -> None:
    """Add an index expression of slices, numbers, None, lists and tensors."""
    x = _any(b, draw)
    if x is None:
        return
    parts = [_slice(draw, x.shape[k]) for k in range(draw(st.integers(1, x.rank)))]
    if draw(st.booleans()):
        parts.insert(0, "...")
    inputs = [x]
    if draw(st.booleans()) and min(x.shape):
        least = min(x.shape)
        rows = b.random.initial_seed() % least
        listed = f"torch.tensor([{rows}, -1, 0])"
        if draw(st.booleans()):
            y = b.pick(draw, lambda v: v.dtype in ("int64", "int32") and v.exact and v.rank < 3)
            if y is not None:
                inputs.append(y)
                listed = f"{y.name}.clamp(-{least}, {least - 1}).long()"
        for _ in range(draw(st.integers(1, 2))):
            parts[draw(st.integers(0, len(parts) - 1))] = listed
    b.emit(f"{x.name}[{', '.join(parts)}]", inputs, exact=True)


def gather(b: ModuleBuilder, draw: Draw) -> None:
    """Add a gather, scatter or embedding with indices that are inputs."""
    x = b.pick(draw, lambda v: v.rank > 0 and all(v.shape))
    if x is None:
        return
    axis = _axis(draw, x.rank)
    size, name = x.shape[axis], x.name
    form = draw(st.sampled_from([
        "gather", "index_select", "take", "take_along_dim", "scatter", "scatter_add", "index_put", "embedding",
        "one_hot", "index_add", "scatter_value", "select_scatter", "slice_scatter", "masked_scatter", "index_fill",
        "scatter_reduce", "bucketize", "bincount",
    ]))  # fmt: skip
    if form in ("select_scatter", "slice_scatter"):
        text = (
            f"{name}.select_scatter({name}.select({axis}, 0), {axis}, {size - 1})"
            if form == "select_scatter"
            else (f"{name}.slice_scatter({name}.narrow({axis}, 0, 1) * 2, {axis}, {size - 1}, {size})")
        )
        b.emit(text, [x], exact=True)
        return
    if form == "bucketize":
        b.emit(
            f"torch.bucketize({name}, torch.tensor([-1.0, 0.0, 0.5, 2.0]), right={draw(st.booleans())})",
            [x],
            steep=True,
        )
        return
    whole = form in ("gather", "take_along_dim", "scatter", "scatter_add", "scatter_value", "scatter_reduce")
    wanted = x.shape if whole else (draw(st.sampled_from([3, 1, 0])),)
    count = x.tensor.numel() if form == "take" else size
    numbers = b.numbers("int64", wanted).abs() % count
    if form == "scatter" or form == "index_put":  # equal indices would leave the result open
        import torch

        numbers = torch.argsort(b.numbers("float32", x.shape), dim=axis) if whole else torch.arange(min(1, size))
    i = b.add_input(numbers)
    slab = f"{name}.index_select({axis}, {i.name})"
    text = {
        "gather": f"torch.gather({name}, {axis}, {i.name})",
        "index_select": slab,
        "take": f"torch.take({name}, {i.name})",
        "take_along_dim": f"torch.take_along_dim({name}, {i.name}, {axis})",
        "scatter": f"{name}.scatter({axis}, {i.name}, {name} * 2)",
        "scatter_value": f"{name}.scatter({axis}, {i.name}, 1.5)",
        "scatter_add": f"{name}.scatter_add({axis}, {i.name}, {name})",
        "scatter_reduce": f"{name}.scatter_reduce({axis}, {i.name}, {name}, reduce='amax')",
        "index_put": f"{name}.index_put(({i.name} * 0,), {name}[:1] * 2)",
        "embedding": f"F.embedding({i.name}, {name})",
        "one_hot": f"F.one_hot({i.name}, {count + 1})",
        "index_add": f"{name}.index_add({axis}, {i.name}, {slab}, alpha=2)",
        "index_fill": f"{name}.index_fill({axis}, {i.name}, 1.5)",
        "masked_scatter": f"{name}.masked_scatter({name} > 0, {name})",
        "bincount": f"torch.bincount({i.name}, minlength={count})",
    }[form]
    b.emit(text, [x, i], exact=True, steep=form == "masked_scatter")


def creation(b: ModuleBuilder, draw: Draw) -> None:
    """Add a tensor created in the module: a range, fill or mask."""
    x = b.pick(draw, lambda v: True)
    if x is None:
        return
    size = x.shape[0] if x.rank else 2
    text = draw(
        st.sampled_from(
            [
                f"torch.arange({size})",
                f"torch.arange(0, {size}, 0.5)",
                f"torch.zeros_like({x.name})",
                f"torch.ones_like({x.name})",
                f"torch.full_like({x.name}, 3)",
                f"torch.eye({size})",
                f"torch.linspace(-1, 1, {size})",
                f"{x.name}.new_zeros({size}, 2)",
                f"torch.full(({size},), 2.5)",
                "torch.tensor([1, 2, 3])",
                "torch.tensor(0.25)",
                f"torch.ones({size}, dtype=torch.bool)",
                f"{x.name}.new_full(({size},), 2)",
                f"torch.meshgrid(torch.arange({size}), torch.arange(3), indexing='ij')[0]",
                f"torch.zeros({size}, dtype=torch.int32)",
                f"torch.tril_indices({size}, 3)",
                f"torch.ones({size}, {size}).tril().bool()",
            ]
        )
    )
    b.emit(text, [], exact="linspace" not in text)


MOVES: tuple[Any, ...] = (shape, shape, join, pieces, index, gather, creation)
