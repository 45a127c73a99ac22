"""Torch operators on odd numbers: infinite and half ones, divisors of 0, factors of resizing that are not whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

import tvm_sched.relax

_resize = functional.interpolate
NAN, INF = float("nan"), float("inf")


def _grouped(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The product of transformers' mixtures of experts."""
    import transformers.integrations.moe  # noqa: F401 - declares the operator

    return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)


CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "resize2d": (
        lambda x: tuple(_resize(x, scale_factor=s, mode=m) for s in (1.1, 2.1) for m in ("nearest", "bilinear")),
        [torch.arange(32.0).reshape(1, 2, 4, 4) ** 1.5],
    ),
    "resize1d": (
        lambda x: tuple(_resize(x, scale_factor=s, mode=m) for s in (1.1, 2.1) for m in ("nearest", "linear")),
        [torch.arange(8.0).reshape(1, 2, 4) ** 1.5],
    ),
    "half_by_numbers": (lambda x: (x * 1e5, x / 1e5, x / 1e-8, x * 0.5), [torch.tensor([1e-3, 0, 1, 300]).half()]),
    "half_atan2": (torch.atan2, [torch.tensor(0.5).half(), torch.tensor(-2.0).half()]),
    "half_cumsum": (lambda x: x.cumsum(0), [torch.ones(5000).half()]),
    "variance": (lambda x: tuple(x.var(0, correction=k) for k in (0, 1, 2, 3)), [torch.tensor([1.0, 2.0])]),
    "hypot": (torch.hypot, [torch.tensor([INF, INF, 0, 3, NAN]), torch.tensor([INF, 1, 0, 4, 1])]),
    "norms": (
        lambda x, y, z: (
            *(torch.linalg.vector_norm(x, p, 1) for p in (1, 2, 3, 10, -2, 0, INF)), functional.normalize(x, dim=1),
            functional.cosine_similarity(x, x.flip(1)), torch.cdist(x, x[:1]), torch.linalg.matrix_norm(x[:2]), y.norm(),
            functional.normalize(y, dim=0), z.norm(dim=1), functional.normalize(z, dim=1),
        ),
        [
            torch.tensor([[3e3, 4e3], [3e-3, 4e-3], [3e2, 4e2]]), torch.tensor([300.0, 400]).half(),
            torch.tensor([[3e20, 4e20], [3e-11, 4e-11]], dtype=torch.float64),
        ],
    ),
    "floor_divide": (torch.floor_divide, [torch.tensor([1, -1, 0, 8388609.0, -7]), torch.tensor([0, 0, 0, 1, 2.0])]),
    "bucketize": (
        lambda x, edges: (torch.bucketize(x, edges), torch.bucketize(x, edges, right=True)),
        [torch.tensor([1, NAN, 3, -1]), torch.tensor([0.0, 1, 2])],
    ),
    "divide": (lambda x: (x / 0, x / -0.0, x.int() / 0), [torch.tensor([1.0, -2, 0])]),
    "fmax": (
        lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)),
        [torch.tensor([1, NAN, -INF, NAN, 2]), torch.tensor([NAN, 3, 0, NAN, 1])],
    ),
    "copysign": (
        lambda x, y: (torch.copysign(x, y), torch.copysign(x, -0.0), x.copysign(1)),
        [torch.tensor([1, -2, INF, NAN, 0.0]), torch.tensor([-0.0, 0.0, -1, 1, -3])],
    ),
    "exp2": (torch.exp2, [torch.tensor([-INF, -149, -3.5, 0, 0.1, 127, INF])]),
    "so_far": (
        lambda x, y: (*x.cummax(1), *x.cummin(0), *y.cummax(0), *y.cummin(0)),
        [torch.tensor([[1, 1, 3, NAN, 2, NAN], [2, 1, 3, 0, -1, 5]]), torch.tensor([1, 3, 3, 2, 5, 5, 0]).to(torch.int8)],
    ),
    "nanmedian": (
        lambda x: (x.nanmedian(), *x.nanmedian(1), *x.nanmedian(0, keepdim=True), x[1, 2:].nanmedian()),
        [torch.tensor([[3, NAN, 1, 2], [NAN, INF, NAN, NAN], [4, INF, 7, -1]])],
    ),
    "small_sort": (
        lambda *xs: tuple(y for x in xs for y in torch.sort(x, stable=True)),
        [torch.tensor([3, 255, 0, 3]).to(torch.uint8), torch.tensor([3, -128, 0, 127]).to(torch.int8),
         torch.tensor([3, -400, 0, 127]).to(torch.int16), torch.tensor([True, False, True])],
    ),
    "masked_scatter": (
        lambda x, mask, y: x.masked_scatter(mask, y),
        [torch.zeros(2, 4), torch.tensor([[True], [False]]), torch.arange(1.0, 9)],
    ),
    "distances": (
        lambda x, y: tuple(torch.cdist(x, y, p) for p in (0.0, 1.0, 2.0, 3.0, INF)),
        [torch.tensor([[0.0, 1], [2, 3], [100, 100.001]]), torch.tensor([[0.0, 2], [100, 100]])],
    ),
    "add_batch": (
        lambda x, a, b: torch.addbmm(x, a, b, beta=0.5, alpha=2),
        [torch.ones(2, 2), torch.arange(12.0).reshape(3, 2, 2), torch.arange(12.0).reshape(3, 2, 2)],
    ),
    "batch_norm_in_training": (
        lambda x, w, m, v: (
            functional.batch_norm(x, m, v, w, training=True, eps=0.5),
            functional.batch_norm(x, m, v, w),
            functional.batch_norm(x, None, None, w, training=True),
            functional.instance_norm(x, weight=w),
        ),
        [torch.arange(24.0).reshape(2, 3, 4).sin(), torch.tensor([1, 2.0, -1]), torch.tensor([1.0, 0, 2]),
         torch.tensor([1.0, 4, 0.5])],
    ),
    "norms_with_statistics": (
        lambda x, w: (
            *torch.native_layer_norm(x, (3, 4), None, None, 1e-3), *torch.native_group_norm(x, w, None, 2, 3, 4, 3, 0.1)
        ),
        [torch.arange(24.0).reshape(2, 3, 4).sin(), torch.tensor([1, 2.0, -1])],
    ),
    "adaptive_max": (
        lambda x: (functional.adaptive_max_pool2d(x, (3, 2)), functional.adaptive_max_pool1d(x[0], 2)),
        [torch.arange(70.0).reshape(2, 7, 5).sin()],
    ),
    "max_pool_positions": (
        lambda x, y: (
            *functional.max_pool2d(x, 3, 2, 1, return_indices=True),
            *functional.max_pool2d(y, (2, 3), 1, dilation=2, return_indices=True),
        ),
        [torch.arange(70.0).reshape(2, 7, 5).sin(), torch.tensor([1, 3, 3, 2, 2, 1]).repeat(1, 1, 6, 1)],
    ),
    "shifts": (
        lambda x, y: (x << y, x >> y, x << 3, 1 << y),
        [torch.tensor([5, -7, 0, 1 << 40]), torch.tensor([3, 1, 9, 0])],
    ),
    "fake_quantize": (
        lambda x, scales, zeros: (
            torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7),
            torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, 0, 255),
        ),
        [torch.tensor([[0.05, 0.15, -9.0], [0.25, 0.349, 12]]), torch.tensor([0.1, 0.5, 0.02]),
         torch.tensor([0, 9, 128], dtype=torch.int32)],
    ),
    "phases": (lambda x: torch.fft.rfft(x).angle(), [torch.arange(16.0).reshape(2, 8).cos() - 0.5]),
    "cond": (
        lambda x, y: (
            *torch.cond(x.sum() > 0, lambda a: (a.sqrt(), a.amax()), lambda a: (a.exp(), a.sum()), (x,)),
            *torch.cond(y.sum() > 0, lambda a: (a.sqrt(), a.amax()), lambda a: (a.exp(), a.sum()), (y,)),
        ),
        [torch.tensor([1.0, 4, 9]), torch.tensor([-1.0, -4, -9])],
    ),
    "softmax_of_one": (lambda x: (x.softmax(0), x.log_softmax(0)), [torch.tensor(3.0)]),
    "empty_variance": (lambda x: x.var(1), [torch.zeros(3, 0)]),
    "empty_variance_and_mean": (lambda x: torch.var_mean(x, 1), [torch.zeros(3, 0)]),
    "scatter_reduce": (
        lambda x, y, i: tuple(
            x.scatter_reduce(0, i, y, way, include_self=kept)
            for way in ("sum", "prod", "mean", "amax", "amin") for kept in (True, False)
        ) + tuple(x.int().scatter_reduce(0, i, y.int(), way, include_self=False) for way in ("mean", "amax", "amin")),
        [torch.tensor([5.0, -2, 7, 1]), torch.tensor([1.0, -4, 3, 2, -9]), torch.tensor([0, 1, 0, 3, 3])],
    ),
    "searchsorted": (
        lambda rows, x, row, y: (
            torch.searchsorted(rows, x), torch.searchsorted(rows, x, right=True), torch.searchsorted(row, y, side="right"),
            torch.searchsorted(row, 2.0), torch.bucketize(2, row, out_int32=True),
        ),
        [torch.tensor([[0.0, 1, 1, 2], [-3, -1, 0, 5]]), torch.tensor([[1, NAN, -1.0], [-1, 9, 0]]),
         torch.tensor([1.0, 2, 3]), torch.tensor([[2.0, 0.5], [3, 9]])],
    ),
    "embedding_bag": (
        lambda table, ids, offsets, weight: (
            *(functional.embedding_bag(ids, table, offsets, mode=m) for m in ("sum", "mean", "max")),
            *(functional.embedding_bag(ids, table, offsets, mode=m, padding_idx=3) for m in ("sum", "mean", "max")),
            functional.embedding_bag(ids, table, offsets, mode="sum", per_sample_weights=weight),
            functional.embedding_bag(ids, table, offsets, mode="mean", include_last_offset=True),
            functional.embedding_bag(ids[:6].view(2, 3), table, mode="max"),
        ),
        [torch.arange(24.0).reshape(6, 4).sin(), torch.tensor([5, 3, 3, 0, 1, 1, 2]), torch.tensor([0, 2, 2, 3, 7]),
         torch.arange(7.0).cos()],
    ),
    "grid_sample": (
        lambda x, y, at, to: (
            functional.grid_sample(x, at, "bilinear", "zeros", False), functional.grid_sample(x, at, "nearest",
            "border", True),
            functional.grid_sample(x, at, "bicubic", "border", False),
            functional.grid_sample(y, to, "bilinear", "reflection", False),
        ),
        [torch.arange(60.0).reshape(1, 3, 4, 5).sin() + 3, torch.arange(120.0).reshape(1, 2, 3, 4, 5).sin() + 3,
         torch.arange(36.0).reshape(1, 6, 3, 2).cos() * 1.4, torch.arange(54.0).reshape(1, 3, 3, 2, 3).cos() * 1.4],
    ),
    "grid_sample_far_outside": (
        lambda x, at: functional.grid_sample(x, at, "bicubic", "reflection", False),
        [torch.arange(60.0).reshape(1, 3, 4, 5).sin() + 3, torch.arange(36.0).reshape(1, 6, 3, 2).cos() * 1.4],
    ),
    "complex_and_whole_numbers": (
        lambda x, k: tuple(
            torch.view_as_real(made)
            for z in [torch.view_as_complex(x)]
            for made in (z + k, k - z, z * k, z / k, z + (k > 1), torch.cat([z, k]), z[k - 1])
        ),
        [torch.arange(6.0).reshape(3, 2).sin(), torch.tensor([1, 3, 2])],
    ),
    "large_and_small_complex": (
        lambda x: tuple(torch.view_as_complex(x * factor).abs() for factor in (1e20, 1e-30)),
        [torch.tensor([[3.0, 4], [0, -1], [0, 0]])],
    ),
    "complex": (
        lambda x, w: (
            torch.stft(x, 8, 3, window=torch.hann_window(8), return_complex=True).abs() + 1,
            torch.fft.fft2(x).real, torch.fft.fftn(x, dim=(1,), norm="ortho").imag, torch.fft.rfft(x).conj().angle() + 9,
            torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.view_as_complex(w), n=11, dim=1),
            torch.fft.irfft2(torch.fft.rfft2(x[:, :10]) * 2j),
            torch.view_as_real(torch.view_as_complex(torch.stack([x[:, :6], x[:, 6:12]], -1)) * torch.polar(w[:6,
            0].exp(), w[:6, 1])).flatten(1),
        ),
        [torch.arange(26.0).reshape(2, 13).square().sin() + 2, torch.arange(14.0).reshape(7, 2).cos() + 2],
    ),
    "groups": (
        lambda x, w, ends: (
            _grouped(x, w, ends), _grouped(x[:2], w, ends.clamp(max=2)), _grouped(x, w, ends.clamp(max=3)),
            torch.histc(x, 5, -1, 0.5),
        ),
        [torch.arange(20.0).reshape(5, 4).sin(), torch.arange(48.0).reshape(3, 4, 4).cos(),
         torch.tensor([1, 1, 5], dtype=torch.int32)],
    ),
    "searchsorted_types": (
        lambda rows, x, y: (torch.searchsorted(rows, x), torch.searchsorted(rows[0], y, side="right"),
                             torch.bucketize(y + 0.5, torch.tensor([1, 2, 9])), torch.searchsorted(rows[0], 0.5)),
        [torch.tensor([[0.0, 1, 2], [1, 1, 5]]), torch.tensor([[1, NAN], [1, -3.0]]), torch.tensor([[2.0], [9]])],
    ),
    "scatter": (
        lambda x, i, y: (
            x.scatter(1, i, y, reduce="add"), x.scatter(0, i, 3.0, reduce="multiply"),
            x[0, 0].scatter_add(0, i[0, 0], y[1, 1]),
        ),
        [torch.arange(6.0).reshape(2, 3), torch.tensor([[0, 0], [1, 0]]), torch.tensor([[1.0, 2], [3, 4]])],
    ),
    "isin": (
        lambda x, others: (torch.isin(x, others), torch.isin(x, others, invert=True)),
        [torch.tensor([1, 2]), torch.zeros(0, dtype=torch.int64)],
    ),
}  # fmt: skip
THOROUGH = {
    "grid_sample_far_outside"
}  # TVM needs seconds for it; reflections and cubics are in grid_sample, one at a time


class Module(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in THOROUGH else ()) for name in CASES]
)
@pytest.mark.sampled(6)
def test_as_torch(name: str) -> None:
    check_as_torch(*CASES[name])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_max_pool_positions_of_infinity_and_nan() -> None:
    """In a window of negative infinity the first position counts, and the last NaN before all numbers."""
    x = torch.tensor([[[[-INF, -INF, 1, 2], [-INF, -INF, 3, INF], [NAN, 1, 5, NAN], [INF, 2, NAN, INF]]]])
    assert functional.max_pool2d(x, 2, return_indices=True)[1].flatten().tolist() == [0, 7, 8, 14]
    check_as_torch(
        lambda x: tuple(y for padding in (0, 1) for y in functional.max_pool2d(x, 2, 2, padding, return_indices=True)),
        [x],
    )


def check_as_torch(function: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    program = torch.export.export(Module(function), tuple(inputs))
    compiled = tvm_sched.relax.compile(program, "cpu1", "heft", cost_model="roofline")
    found, right = compiled.run(*(x.numpy() for x in inputs)), function(*inputs)
    for mine, theirs in zip(
        found if isinstance(found, list) else [found], right if isinstance(right, tuple) else [right], strict=True
    ):
        assert mine.dtype.name == str(theirs.dtype).removeprefix("torch.")
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-3 if mine.dtype == np.float16 else 1e-5)


def test_a_converter_that_fails_is_told_from_tvms(monkeypatch):
    from tvm_frontends.torch import convert_program
    from tvm_sched_runtime.errors import InputError

    def fail(call):
        raise IndexError("out of the tuple")

    program = torch.export.export(Module(torch.tanh).eval(), (torch.zeros(2),))
    monkeypatch.setitem(convert_program.CONVERTERS, "tanh.default", fail)
    with pytest.raises(
        InputError, match=r"operator tanh.default \(node 'tanh'\): its converter failed: out of the tuple"
    ):
        tvm_sched.relax.compile(program, "cpu1", "single")
