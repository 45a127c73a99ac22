"""Attention as one kernel: the forms in which models write it out, masks, and rows that see no key."""

from functools import partial

import numpy as np
import pytest
from tvm import relax

from relax.lower.onednn_cases import needs_onednn
from relax.onednn_cases import module, steps
from tvm_sched.relax import compile, make_problem

pytestmark = needs_onednn

op = relax.op
BATCH, HEADS, ROWS, KEYS, WIDTH, OUT = 2, 3, 70, 61, 24, 20


def number(value):
    return relax.const(value, "float32")


def turned(x):
    return op.permute_dims(x, [0, 1, 3, 2])


def heads_first(b, x, heads):
    batch, rows, width = (int(d) for d in x.ty.shape)
    return steps(
        b,
        x,
        lambda v: op.reshape(v, (batch, rows, heads, width // heads)),
        lambda v: op.permute_dims(v, [0, 2, 1, 3]),
    )


def joined(b, x, axes=(0, 2, 1, 3)):
    batch, heads, rows, width = (int(d) for d in x.ty.shape)
    return steps(
        b,
        x,
        lambda v: op.permute_dims(v, axes),
        lambda v: op.reshape(v, (batch, rows, heads * width)),
        lambda v: op.multiply(v, v),
    )


def plain(b, q, k, v, mask=None):
    return steps(
        b,
        q,
        lambda x: op.matmul(x, b.emit(turned(k))),
        lambda x: op.divide(x, number(4.0)),
        *([lambda x: op.add(x, mask)] if mask is not None else []),
        lambda x: op.nn.softmax(x, axis=-1),
        lambda x: op.matmul(x, v),
    )


def projected(b, q, k, v, axes=(0, 2, 1, 3)):
    """Heads next to each other in one row, as projections leave them."""
    return joined(b, plain(b, *(heads_first(b, x, HEADS) for x in (q, k, v))), axes)


def of_pytorch(b, q, k, v, mask, whole=False):
    """As torch.export takes scaled_dot_product_attention apart."""
    flat = [(BATCH * HEADS, *[int(d) for d in x.ty.shape][2:]) for x in (q, k, v)]
    q = steps(b, q, lambda x: op.multiply(x, number(0.5)), lambda x: op.reshape(x, flat[0]))
    k = steps(
        b, k, turned, lambda x: op.multiply(number(0.5), x), lambda x: op.reshape(x, (BATCH * HEADS, WIDTH, KEYS))
    )
    scores = steps(
        b,
        q,
        lambda x: op.matmul(x, k),
        lambda x: op.reshape(x, (BATCH, HEADS, ROWS, KEYS)),
        lambda x: op.add(mask, x),
    )
    found = b.emit(op.nn.softmax(scores, axis=-1))
    none = steps(
        b,
        scores,
        lambda x: op.equal(x, number(-np.inf)),
        op.logical_not,
        lambda x: op.astype(x, "int8"),
        lambda x: op.max(x, -1, True),
        lambda x: op.astype(x, "bool"),
        op.logical_not,
    )
    shape = (BATCH, HEADS, ROWS, KEYS)
    zeros = b.emit(op.full(shape, number(0.0), "float32") if whole else op.full_like(found, number(0.0)))
    return steps(
        b,
        b.emit(op.where(none, zeros, found)),
        lambda x: op.reshape(x, (BATCH * HEADS, ROWS, KEYS)),
        lambda x: op.matmul(x, b.emit(op.reshape(v, flat[2]))),
        lambda x: op.reshape(x, (BATCH, HEADS, ROWS, OUT)),
    )


def reference(q, k, v, scale, mask=None, safe=False):
    scores = np.einsum("bhrw,bhkw->bhrk", q.astype("float64"), k) * scale + (0 if mask is None else mask)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhrk,bhkw->bhrw", np.nan_to_num(weights) if safe else weights, v)


def values(*shapes):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


FOUR = [(BATCH, HEADS, ROWS, WIDTH), (BATCH, HEADS, KEYS, WIDTH), (BATCH, HEADS, KEYS, OUT)]


def run(make, inputs):
    compiled = compile(module(make, [x.shape for x in inputs]), "cpu2", "single")
    kinds = [operator.kind for operator in compiled.problem.graph.operators]
    return compiled.run(*inputs), kinds


@pytest.mark.parametrize("shape", [None, (KEYS,), (1, 1, ROWS, KEYS), (BATCH, 1, 1, KEYS), (HEADS, ROWS, 1)])
def test_values(shape):
    inputs = values(*FOUR, *([shape] if shape else []))
    found, kinds = run(plain, inputs)
    assert kinds == ["onednn.attention"]
    np.testing.assert_allclose(found, reference(*inputs[:3], 0.25, *inputs[3:]), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("mask_of", ["all", "one"])
def test_shifted_windows_have_two_masks(batch, mask_of):
    """A bias of each head, and a mask of each window, for which the scores are reshaped."""
    windows = 4
    shapes = [(batch * windows, HEADS, 64, width) for width in (WIDTH, WIDTH, OUT)]
    mask = (batch if mask_of == "all" else 1, windows, 1, 64, 64)

    def shifted(b, q, k, v, bias, mask):
        return steps(
            b,
            q,
            lambda x: op.matmul(x, b.emit(turned(k))),
            lambda x: op.divide(x, number(4.0)),
            lambda x: op.add(x, bias),
            lambda x: op.reshape(x, (batch, windows, HEADS, 64, 64)),
            lambda x: op.add(x, mask),
            lambda x: op.reshape(x, (batch * windows, HEADS, 64, 64)),
            lambda x: op.nn.softmax(x, axis=-1),
            lambda x: op.matmul(x, v),
        )

    inputs = values(*shapes, (1, HEADS, 64, 64), mask)
    found, kinds = run(shifted, inputs)
    assert "onednn.attention" in kinds
    assert "onednn.softmax" not in kinds
    of_windows = np.broadcast_to(inputs[4], (batch, windows, 1, 64, 64)).reshape(-1, 1, 64, 64)
    np.testing.assert_allclose(found, reference(*inputs[:3], 0.25, inputs[3] + of_windows), rtol=4e-5, atol=4e-6)


def test_scores_with_another_user_keep_their_masks():
    """What is between the masks is wanted, too."""

    def two(b, q, k, bias, mask):
        scores = b.emit(op.add(b.emit(op.matmul(q, b.emit(turned(k)))), bias))
        other = b.emit(op.reshape(b.emit(op.add(b.emit(op.reshape(scores, (1, 2, 3, 64, 64))), mask)), (2, 3, 64, 64)))
        return b.emit(op.add(b.emit(op.nn.softmax(other, axis=-1)), scores))

    q, k, bias, mask = values((2, 3, 64, 8), (2, 3, 64, 8), (1, 3, 64, 64), (1, 2, 1, 64, 64))
    found, _ = run(two, [q, k, bias, mask])
    scores = np.einsum("bhrw,bhkw->bhrk", q, k) + bias
    weights = np.exp(scores + mask[0])
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True) + scores, rtol=1e-4, atol=1e-4)


def test_scores_are_the_sum_of_a_value_and_itself():
    """Where two masks are looked for, and the first addition adds no mask."""

    def doubled(b, q, k, mask):
        scores = b.emit(op.matmul(q, b.emit(turned(k))))
        split = b.emit(op.reshape(b.emit(op.add(scores, scores)), (1, 2, 3, 64, 64)))
        return b.emit(op.nn.softmax(b.emit(op.reshape(b.emit(op.add(split, mask)), (2, 3, 64, 64))), axis=-1))

    q, k, mask = values((2, 3, 64, 8), (2, 3, 64, 8), (1, 2, 1, 64, 64))
    found, _ = run(doubled, [q, k, mask])
    weights = np.exp(2 * np.einsum("bhrw,bhkw->bhrk", q, k) + mask[0])
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("axes", [(0, 2, 1, 3), (0, -2, -3, -1)])
def test_nothing_is_copied_around_it(axes):
    inputs = values((BATCH, ROWS, HEADS * WIDTH), (BATCH, KEYS, HEADS * WIDTH), (BATCH, KEYS, HEADS * OUT))
    found, kinds = run(lambda b, *given: projected(b, *given, axes), inputs)
    assert kinds == ["onednn.attention", "multiply"]
    q, k, v = (x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3) for x in inputs)
    expected = reference(q, k, v, 0.25).transpose(0, 2, 1, 3).reshape(BATCH, ROWS, -1) ** 2
    np.testing.assert_allclose(found, expected, rtol=4e-5, atol=2e-6)


@pytest.mark.parametrize("whole", [False, True])
def test_rows_without_keys_as_pytorch_has_them(whole):
    mask = np.where(np.arange(KEYS) <= np.arange(ROWS)[:, None] - 5, 0, -np.inf).astype("float32")[None, None]
    inputs = [*values(*FOUR), mask]
    found, kinds = run(partial(of_pytorch, whole=whole), inputs)
    assert kinds == ["onednn.attention"]
    assert (found[:, :, :5] == 0).all()
    np.testing.assert_allclose(found, reference(*inputs[:3], 0.25, mask, safe=True), rtol=2e-5, atol=2e-6)


def test_nan_and_rows_without_keys():
    """A NaN makes NaN of its row alone; a row without a key is NaN where the model does not say otherwise."""
    mask = np.zeros((ROWS, KEYS), "float32")
    mask[3] = -np.inf
    q, k, v = values(*FOUR)
    q[1, 2, 5, 0] = np.nan
    for make, shape in ((plain, mask.shape), (of_pytorch, (1, 1, *mask.shape))):
        found, _ = run(make, [q, k, v, mask.reshape(shape)])
        wrong = np.isnan(found).any(-1)
        assert wrong[1, 2, 5]
        assert wrong[:, :, 3].all() == (make is plain)
        assert wrong.sum() == 1 + (BATCH * HEADS if make is plain else 0)


def test_scores_that_are_wanted_are_computed_as_well():
    def make(b, q, k, v):
        weights = steps(b, q, lambda x: op.matmul(x, b.emit(turned(k))), lambda x: op.nn.softmax(x, axis=-1))
        return relax.Tuple([b.emit(op.matmul(weights, v)), weights])

    inputs = values(*FOUR)
    (found, weights), _ = run(make, inputs)
    np.testing.assert_allclose(found, reference(*inputs, 1.0), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("axis", [1, 2])
def test_another_softmax_is_no_attention(axis):
    def make(b, q, k, v):
        return steps(
            b,
            q,
            lambda x: op.matmul(x, b.emit(turned(k))),
            lambda x: op.nn.softmax(x, axis=axis),
            lambda x: op.matmul(x, v),
        )

    _, kinds = run(make, values(*FOUR))
    assert "onednn.attention" not in kinds


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("rows", [1, 5])
def test_shared_keys_and_values_are_not_repeated(batch, rows):
    """Queries of several heads with the keys of one, as decoders repeat them; a batch of several is left to copies."""
    heads, groups, keys = 6, 2, 37

    def repeated(b, x):
        shape = (batch, groups, heads // groups, keys, WIDTH)
        return steps(
            b,
            x,
            lambda v: op.expand_dims(v, 2),
            lambda v: op.broadcast_to(v, shape),
            lambda v: op.reshape(v, (batch, heads, keys, WIDTH)),
        )

    inputs = values((batch, heads, rows, WIDTH), *[(batch, groups, keys, WIDTH)] * 2, (1, heads, rows, keys))
    found, kinds = run(lambda b, q, k, v, m: plain(b, q, repeated(b, k), repeated(b, v), m), inputs)
    assert (kinds == ["onednn.attention"]) == (batch == 1)
    k, v = (np.repeat(x, heads // groups, axis=1) for x in inputs[1:3])
    np.testing.assert_allclose(found, reference(inputs[0], k, v, 0.25, inputs[3]), rtol=4e-5, atol=2e-6)


@pytest.mark.parametrize("form", ["slice", "split"])
def test_query_key_and_value_of_one_projection(form):
    """Windows of few rows, cut out of one tensor."""

    def make(b, x):
        parts = steps(
            b, x, lambda v: op.reshape(v, (5, 9, 3, HEADS, WIDTH)), lambda v: op.permute_dims(v, [2, 0, 3, 1, 4])
        )
        cut = op.split(parts, 3, 0) if form == "split" else None
        whole = b.emit(cut) if cut is not None else None
        each = [
            b.emit(relax.TupleGetItem(whole, k))
            if whole is not None
            else b.emit(op.strided_slice(parts, [0], [k], [k + 1]))
            for k in range(3)
        ]
        return plain(b, *(b.emit(op.squeeze(v, [0])) for v in each))

    inputs = values((5, 9, 3 * HEADS * WIDTH))
    found, kinds = run(make, inputs)
    assert kinds == ["onednn.attention"]
    q, k, v = inputs[0].reshape(5, 9, 3, HEADS, WIDTH).transpose(2, 0, 3, 1, 4)
    np.testing.assert_allclose(found, reference(q, k, v, 0.25), rtol=4e-5, atol=2e-6)


def test_softmax_of_all_rows_in_one_matrix():
    """As older opsets have it: between two reshapes."""
    q, k, v = values(*FOUR)

    def flattened(b, q, k, v):
        return steps(
            b,
            q,
            lambda x: op.matmul(x, b.emit(turned(k))),
            lambda x: op.reshape(x, (BATCH * HEADS * ROWS, KEYS)),
            lambda x: op.nn.softmax(x, axis=-1),
            lambda x: op.reshape(x, (BATCH, HEADS, ROWS, KEYS)),
            lambda x: op.matmul(x, v),
        )

    found, kinds = run(flattened, [q, k, v])
    assert kinds == ["onednn.attention"]
    np.testing.assert_allclose(found, reference(q, k, v, 1.0), rtol=2e-5, atol=2e-6)


def expected(q, k, v, added):
    scores = np.einsum("bqhw,bkhw->bhqk", q, k).astype(np.float64) / np.sqrt(q.shape[-1]) + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhw->bqhw", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("masked", ["", "TopLeft", "BottomRight", "bias"])
def test_the_operator_of_relax(masked):
    rows, keys = (ROWS, KEYS) if masked in ("", "bias") else (KEYS, ROWS)
    rng = np.random.default_rng(4)
    shapes = [(BATCH, rows, HEADS, WIDTH), (BATCH, keys, HEADS, WIDTH), (BATCH, keys, HEADS, OUT)]
    values = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    added = np.zeros((rows, keys))
    if masked == "bias":
        values.append(rng.standard_normal((1, 1, rows, keys)).astype("float32"))
        added = values[-1]
    elif masked:
        added = np.where(np.tri(rows, keys, keys - rows if masked == "BottomRight" else 0), 0, -np.inf)
    variables = [relax.Var(f"x{k}", relax.TensorType(value.shape, "float32")) for k, value in enumerate(values)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(
                op.nn.attention(*variables, causal_mask=None if masked == "bias" else masked or None)
            )
        builder.emit_func_output(result)
    made = compile(builder.get(), "cpu1", "single")
    assert [operator.kind for operator in made.problem.graph.operators] == ["onednn.attention"]
    np.testing.assert_allclose(made.run(*values), expected(*values[:3], added), rtol=1e-4, atol=1e-5)


def test_heads_that_share_keys_remain_tvms():
    shapes = [(1, 64, 4, 16), (1, 64, 2, 16), (1, 64, 2, 16)]
    variables = [relax.Var(f"x{k}", relax.TensorType(shape, "float32")) for k, shape in enumerate(shapes)]
    call = op.nn.attention(*variables)
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    kinds = [each.kind for each in make_problem(builder.get(), "cpu1", cost_model="roofline").graph.operators]
    assert "onednn.attention" not in kinds


def test_few_scores_are_one_kernel_where_heads_would_be_copied():
    """Below `FEWEST_SCORES`: heads beside each other in a row, or scaled queries and keys, as PyTorch exports them."""

    def scaled(b, q, k, v):
        half = number(0.5)
        return steps(b, plain(b, b.emit(op.multiply(q, half)), b.emit(op.multiply(k, half)), v), op.nn.relu)

    rows, heads = [(1, 9, 24)] * 3, [(1, 3, 9, 8)] * 3
    for make, shapes, expected in ((projected, rows, 1), (scaled, heads, 1), (plain, heads, 0)):
        problem = make_problem(module(make, shapes), "cpu1")
        assert [operator.kind for operator in problem.graph.operators].count("onednn.attention") == expected
