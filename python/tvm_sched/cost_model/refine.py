"""Refinement for a device: correct the predictions for all operators by a few measurements on the device.

The method is a Gaussian process on log(measured / predicted). Its error has three parts: one that all operators of the
device share, one that the operators of a family share, and one that is similar for operators of similar shape. For
operators unlike all measured ones the learned model's prediction stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .device_properties import DeviceProperties
from .features import NAMES, Floats, KernelWork, features
from .learned_model import Prediction

_SHAPE = [NAMES.index(name) for name in ("flops", "read", "parameters", "written", "m", "n", "k")]
_LENGTH = 2.0  # operators that differ by a factor of four in each size have little in common
_DEVICE, _FAMILY, _ALIKE, _NOISE = 1.0**2, 0.5**2, 0.5**2, 0.2**2
"""Variances of the logarithm. On a new processor predictions are wrong by up to a factor of three, mostly the same one."""
_MOST = 1500  # measurements; solving takes the cube of their number


@dataclass(frozen=True)
class Refinement:
    """Corrections from measurements; call it with a prediction for the same device."""

    columns: npt.NDArray[np.float32]
    weights: Floats
    inverse: Floats

    def __call__(self, work: KernelWork, device: DeviceProperties, predicted: Prediction) -> Prediction:
        """Correct a prediction; its intervals shrink for operators similar to measured ones."""
        across = _covariance(features(work, device), self.columns)
        factor = np.exp(across @ self.weights)
        prior = _DEVICE + _FAMILY + _ALIKE
        left = 1 - np.einsum("ij,jk,ik->i", across, self.inverse, across, optimize=True) / prior
        width = np.sqrt(np.clip(left, 0.02, 1.0))
        seconds = predicted.seconds * factor
        low = seconds * (predicted.low / predicted.seconds) ** width
        high = seconds * (predicted.high / predicted.seconds) ** width
        return Prediction(seconds, low, high, predicted.shared, predicted.far & (width > 0.5))


def refine(work: KernelWork, device: DeviceProperties, measured: Floats, predicted: Prediction) -> Refinement:
    """Learn from measurements on one device.

    Parameters
    ----------
    work : KernelWork
        The measured operators; if there are more than 1,500, an evenly spread part of them is used.
    measured : array of float
        Seconds.
    predicted : Prediction
        The learned model's prediction for them.
    """
    rows = np.unique(np.linspace(0, len(work) - 1, min(len(work), _MOST)).round().astype(np.int64))
    columns = features(work.take(rows), device)
    error = np.log(measured[rows] / predicted.seconds[rows])
    inverse = np.asarray(np.linalg.inv(_covariance(columns, columns) + _NOISE * np.eye(len(rows))), np.float64)
    return Refinement(columns, inverse @ error, inverse)


def _covariance(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> Floats:
    x, y = (each[:, _SHAPE].astype(np.float64) / _LENGTH for each in (a, b))
    distance = (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * x @ y.T
    same = a[:, 0][:, None] == b[:, 0][None]
    return np.asarray(_DEVICE + same * (_FAMILY + _ALIKE * np.exp(-np.maximum(distance, 0) / 2)))
