"""Matrices of discrete Fourier transforms."""

from __future__ import annotations

import numpy as np


def dft_matrix(size: int, length: int, inverse: bool, onesided: bool) -> np.ndarray:
    """Complex matrix of shape (size, frequencies): what each input adds to each output."""
    if inverse and onesided:  # half a spectrum to real values: the other half is its conjugate
        k, n = np.arange(size)[:, None], np.arange(length)
        twice = np.where((k == 0) | ((length % 2 == 0) & (k == length // 2)), 1.0, 2.0)
        return twice * np.exp(2j * np.pi * ((k * n) % length) / length) / length
    frequencies = length // 2 + 1 if onesided else length
    n, k = np.arange(size)[:, None], np.arange(frequencies)
    sign = 2j if inverse else -2j
    return np.exp(sign * np.pi * ((n * k) % length) / length) / (length if inverse else 1)
