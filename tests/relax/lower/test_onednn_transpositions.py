"""Between tokens and images nothing is copied, and functions of each element stay with the products."""

import pytest
from tvm import relax

from relax.compare import assert_same
from relax.lower.onednn_cases import needs_onednn
from relax.onednn_cases import arrays, channels, constant, convolution, module, steps
from tvm_sched.relax import compile
from tvm_sched.relax.lower.kernel_libraries.kernel_library import VARIABLE

pytestmark = needs_onednn

op = relax.op
TOKENS = (1, 48, 8)


def mixing(b, x, function, width=6):
    """Tokens through an image, as in vision transformers with convolutions between their products."""
    return steps(
        b,
        x,
        lambda v: op.matmul(v, constant(8, 16)),
        lambda v: op.permute_dims(v, [0, 2, 1]),
        lambda v: op.reshape(v, (1, 16, 48 // width, width)),
        lambda v: convolution(v, 16, 3, groups=16, padding=1),
        lambda v: op.add(v, channels(16)),
        lambda v: op.reshape(v, (1, 16, 48)),
        lambda v: op.permute_dims(v, [0, 2, 1]),
        function,
        lambda v: op.matmul(v, constant(16, 8)),
    )


FUNCTIONS = {
    "gelu": op.nn.gelu,
    "relu": op.nn.relu,
    "clip": lambda v: op.clip(v, -0.5, 0.75),
    "leaky relu": lambda v: op.nn.leakyrelu(v, 0.3),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tokens_through_an_image(monkeypatch, name):
    mod, inputs = module(lambda b, x: mixing(b, x, FUNCTIONS[name]), [TOKENS]), arrays([TOKENS])
    compiled = compile(mod, "cpu1", "single")
    kinds = [operator.kind for operator in compiled.problem.graph.operators]
    assert len(kinds) == 3
    assert all(kind.startswith("onednn.") for kind in kinds)
    monkeypatch.setenv(VARIABLE, "")
    assert_same(compiled.run(*inputs), compile(mod, "cpu1", "single").run(*inputs), rtol=2e-5)


def test_a_transformer_over_patches_has_its_tokens_in_rows(monkeypatch):
    """After the patches, a class token and positions, sums with the tokens take part in the products."""

    def patches(b, x):
        image = convolution(x, 8, 4, strides=4)
        tokens = steps(b, image, lambda v: op.reshape(v, (1, 8, 48)), lambda v: op.permute_dims(v, [0, 2, 1]))
        tokens = b.emit(op.add(b.emit(op.concat([constant(1, 1, 8), tokens], axis=1)), constant(1, 49, 8)))
        for _ in range(2):
            hidden = steps(b, tokens, lambda v: op.matmul(v, constant(8, 8)), lambda v: op.add(v, constant(8)))
            tokens = b.emit(op.add(tokens, hidden))
        return tokens

    shape = (1, 3, 24, 32)
    mod, inputs = module(patches, [shape]), arrays([shape])
    compiled = compile(mod, "cpu1", "single")
    kinds = [operator.kind for operator in compiled.problem.graph.operators]
    assert kinds.count("onednn.matmul_bias_add") == 2
    assert [kind for kind in kinds if "transpose" in kind] == ["transpose"], "the image only"
    monkeypatch.setenv(VARIABLE, "")
    assert_same(compiled.run(*inputs), compile(mod, "cpu1", "single").run(*inputs), rtol=2e-5)


def test_moves_that_change_the_order_remain(monkeypatch):
    def turned(b, x):
        """The image is transposed on the way."""
        return steps(
            b,
            x,
            lambda v: op.reshape(v, (1, 8, 6, 8)),
            lambda v: op.permute_dims(v, [0, 3, 1, 2]),
            lambda v: op.reshape(v, (1, 8, 48)),
            lambda v: op.reshape(v, (1, 8, 6, 8)),
            lambda v: op.permute_dims(v, [0, 3, 2, 1]),
            lambda v: op.reshape(v, TOKENS),
            lambda v: op.nn.relu(op.matmul(v, constant(8, 4))),
        )

    mod, inputs = module(turned, [TOKENS]), arrays([TOKENS])
    compiled = compile(mod, "cpu1", "single")
    monkeypatch.setenv(VARIABLE, "")
    plain = compile(mod, "cpu1", "single")
    assert_same(compiled.run(*inputs), plain.run(*inputs), rtol=2e-5)
    assert len(compiled.problem.graph.operators) > 1


def test_a_value_that_others_read_is_computed_once(monkeypatch):
    def shared(b, x):
        product = b.emit(op.add(b.emit(op.matmul(x, constant(8, 16))), constant(1, 1, 16, seed=4)))
        turned = b.emit(op.permute_dims(product, [0, 2, 1]))
        return relax.Tuple([b.emit(op.nn.gelu(turned)), b.emit(op.reshape(turned, (1, 16, 6, 8))), product])

    mod, inputs = module(shared, [TOKENS]), arrays([TOKENS])
    compiled = compile(mod, "cpu1", "single")
    assert sum("matmul" in operator.kind for operator in compiled.problem.graph.operators) == 1
    monkeypatch.setenv(VARIABLE, "")
    assert_same(compiled.run(*inputs), compile(mod, "cpu1", "single").run(*inputs), rtol=2e-5)
