"""Transforms of signals as torch.onnx writes them."""

from __future__ import annotations

import numpy as np
import pytest

from .single_node import run_both


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(2, 1000), (2, 1000, 1)])
@pytest.mark.parametrize("onesided", [None, 0, 1])
def test_stft(shape: tuple[int, ...], onesided: int | None) -> None:
    """The default is one-sided, and a real signal may come without its last dimension.

    Held against NumPy in float64: ONNX Runtime's own errs by 3e-4 here, ours by 1e-5 of 21.
    """
    signal, window = (
        np.random.default_rng(0).standard_normal(shape).astype("float32"),
        np.hanning(200).astype("float32"),
    )
    attributes = {} if onesided is None else {"onesided": onesided}
    mine, theirs, _ = run_both("STFT", [signal, np.array(100, "int64"), window], [0], **attributes)
    frames = signal.reshape(2, 1000)[:, np.arange(9)[:, None] * 100 + np.arange(200)].astype("float64") * window
    right = (np.fft.fft if onesided == 0 else np.fft.rfft)(frames)
    assert mine[0].shape == theirs[0].shape
    np.testing.assert_allclose(mine[0], np.stack([right.real, right.imag], -1), rtol=0, atol=3e-5)
