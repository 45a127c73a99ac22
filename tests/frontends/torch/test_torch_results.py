"""What programs of torch.export return and share: None and numbers among results, views of memory, signs of zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import tvm_frontends
import tvm_sched.relax
from tvm_frontends import ModelError

INF, NAN = float("inf"), float("nan")
X = torch.arange(6.0).reshape(2, 3)


class Module(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a result in order."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors(each)]
    return [value] if isinstance(value, torch.Tensor) else []


def check(function: Callable[..., Any], inputs: list[torch.Tensor], **export: Any) -> None:
    """Results are those of torch, zeros with their signs; what is no tensor is left out."""
    program = torch.export.export(Module(function), tuple(inputs), **export)
    found = tvm_sched.relax.compile(program, "cpu1", "single").run(*(x.numpy() for x in inputs))
    for mine, right in zip(found if isinstance(found, list) else [found], tensors(function(*inputs)), strict=True):
        assert mine.dtype.name == str(right.dtype).removeprefix("torch.")
        np.testing.assert_allclose(mine, right.numpy(), rtol=1e-6)
        zero = np.asarray(mine == 0)
        np.testing.assert_array_equal(np.signbit(mine[zero]), np.signbit(right.numpy()[zero]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (None, x.sum(), (None, x)),
        lambda x: {"y": x * 2, "n": None, "x": [x, 3.5, {"size": x.shape[0], "sum": x.sum()}]},
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_none_and_numbers_are_left_out(function):
    check(function, [X])


def test_names_of_results_without_none():
    program = torch.export.export(Module(lambda x: {"y": x * 2, "n": None, "k": 3, "x": [x + 1, None]}), (X,))
    assert tvm_frontends.load_model(program).output_names == ("y", "x.0")


@pytest.mark.filterwarnings("ignore")
def test_a_size_that_stays_open_until_compilation_is_left_out():
    program = torch.export.export(
        Module(lambda x: (x + 1, x.shape[0])), (X,), dynamic_shapes=(({0: torch.export.Dim("n", min=2)},),)
    )
    found = tvm_sched.relax.compile(program, "cpu1", "single", input_shapes={"inputs_0": (4, 3)}).run(
        np.ones((4, 3), "f4")
    )
    np.testing.assert_array_equal(found[0] if isinstance(found, list) else found, np.full((4, 3), 2, "float32"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (x, x.sum().item()), "the program returns this number, which depends on tensor values"),
        (lambda x: (None, 3), "the program returns no tensor"),
    ],
)
def test_results_that_compiled_programs_cannot_have(function, message):
    with pytest.raises(ModelError, match=message):
        tvm_frontends.load_model(torch.export.export(Module(function), (X,)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.linalg.det, r"operator _linalg_det.default \(node '_linalg_det'\): it solves equations with a matrix"),
        (torch.linalg.inv,
         r"operator linalg_inv_ex.default \(node 'linalg_inv_ex'\): it solves equations with a matrix"),
        (torch.linalg.cholesky,
         r"operator linalg_cholesky_ex.default .* it decomposes a matrix, for which there are no"),
        (torch.linalg.svdvals, r"operator _linalg_svd.default .*: compute it outside of the model, .* is constant$"),
    ],
)  # fmt: skip
def test_linear_algebra_without_kernels_is_refused(function, message):
    with pytest.raises(ModelError, match=message):
        tvm_frontends.load_model(torch.export.export(Module(function), (torch.eye(3),)))


def test_distances_of_pairs():
    check(lambda x: [torch.pdist(x, p) for p in (0.0, 1.0, 2.0, 3.0, INF)], [torch.randn(4, 3)])


def test_as_strided_reads_the_memory_behind_views():
    check(
        lambda x: (
            torch.as_strided(x[0:6], (6, 4), (1, 1)), x.as_strided((5, 3), (2, 1)), x.as_strided((0, 3), (1, 1)),
            x.reshape(4, 6).t()[1:3].as_strided((2, 3), (6, 2)), x.reshape(4, 6).as_strided((4, 3), (3, 1), 1),
            x.split(8)[1].as_strided((2, 2), (1, 4)), (x.reshape(4, 6).t() + 0.5).as_strided((3, 2), (1, 3), 2),
            torch.as_strided_scatter(x.reshape(4, 6), x[:4].reshape(2, 2), (2, 2), (7, 2), 3),
            x[:9].reshape(3, 3).clone().fill_diagonal_(5.0),
        ),
        [torch.arange(24.0)],
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (x + 1).as_strided((2,), (1,), 5), "it reads memory beside the tensor that it is a view of"),
        (lambda x: x.as_strided((2,), (1,)), "the tensor whose memory it reads has gaps"),
    ],
)
def test_memory_that_the_program_does_not_have_is_refused(function, message):
    """torch.export checks neither against the memory of the example."""
    x = torch.arange(12.0).reshape(2, 6)[:, ::2]
    program = torch.export.export(Module(function), (x,))
    with pytest.raises(ModelError, match=message):
        tvm_frontends.load_model(program)


@pytest.mark.filterwarnings("ignore")
def test_views_as_another_type():
    check(
        lambda x, b, h, m: (
            x.view(torch.int32), x.view(torch.uint8), x.view(torch.int16), b.view(torch.float32), b.view(torch.int64),
            h.view(torch.int16), m.view(torch.uint8), m.view(torch.uint8).view(torch.bool),
        ),
        [torch.tensor([[1.5, -0.0], [INF, -3e-40]]), torch.arange(16, dtype=torch.uint8).reshape(1, 16),
         torch.tensor([1.0, -2]).half(), torch.tensor([True, False])],
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_zeros_keep_what_a_sum_or_product_makes_of_them():
    check(
        lambda x: (x + 0.0, 0 + x, x - (-0.0), x * 0, x - 0.0, x[1] + 0.0, x + (-0.0)),
        [torch.tensor([0.0, -0.0, INF, NAN, -2])],
    )


@pytest.mark.filterwarnings("ignore")
def test_divisors_and_logarithms():
    check(
        lambda x, i, j, b: (
            x.logcumsumexp(1), x.logcumsumexp(0), x[0, 0].logcumsumexp(0), (x[0] * 8).logcumsumexp(0),
            x[0].half().logcumsumexp(0), i.gcd(j), i.lcm(j), i.int().gcd(j.int()[0]), i[0, 0].gcd(j[0, 1]), b.gcd(b.flip(0)),
            torch.lgamma(x), torch.kaiser_window(5) + i[0, 0], torch.blackman_window(5) + i[0, 0],
        ),
        [torch.tensor([[0.5, -1000, 1000, INF, 3], [-INF, -INF, 2, 2.5, NAN]]),
         torch.tensor([[6, -4, 9, 0], [2**40, 8, 0, 7]]), torch.tensor([[4, 6, -3, 0], [2**35 * 3, 0, 5, -7]]),
         torch.tensor([250, 100, 36], dtype=torch.uint8)],
    )  # fmt: skip
