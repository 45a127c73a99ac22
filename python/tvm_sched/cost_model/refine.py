"""Refinement for a device: correct the predictions for all operators by a few measurements on the device.

The method is a Gaussian process on log(measured / predicted). Its error has three parts: one that all operators of the
device share, one that the operators of a family share, and one that is similar for operators of a family with similar
predictions. The corrected time may not fall where a family's prediction rises, so a larger operator is never cheaper. For
operators unlike all measured ones the learned model's prediction stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from .features import Floats, KernelWork
from .learned_model import COVERAGE, Prediction

_LENGTH = 1.0  # operators whose predictions differ by a factor of four have little in common
_DEVICE, _FAMILY, _ALIKE, _NOISE = 1.0**2, 0.5**2, 0.5**2, 0.2**2
"""Variances of the logarithm. On a new processor predictions are wrong by up to a factor of three, mostly the same one."""
_PRIOR = _DEVICE + _FAMILY + _ALIKE
_MOST = 1500  # measurements; solving takes the cube of their number
_STEP, _BEYOND = 0.25, 4.0
"""Distance between the points of `Refinement.rising`, and how far they go beyond the measurements, in factors of two."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Refinement:
    """Corrections from measurements; call it with a prediction for the same device."""

    predicted: Floats
    """Logarithms of the predictions for the measured operators, to the base 2."""
    family: Ids
    weights: Floats
    inverse: Floats

    def __call__(self, work: KernelWork, predicted: Prediction) -> Prediction:
        """Correct a prediction; its intervals are those of errors with each measurement left out."""
        logarithms, family = np.log2(predicted.seconds), work.family.astype(np.int64)
        left = np.full(len(work), self._left(_covariance(np.zeros(1), np.array([-1]), self.predicted, self.family))[0])
        for each, (points, _, of_points) in self.rising.items():
            left[family == each] = np.interp(logarithms[family == each], points, of_points)
        width = np.sqrt(np.maximum(left / _PRIOR, 0.02))
        seconds = predicted.seconds * np.exp(_DEVICE * self.weights.sum())
        low, high = (seconds * (ends / predicted.seconds) ** width for ends in (predicted.low, predicted.high))
        wrong = np.sqrt(left + _NOISE)
        for each, (points, values, _) in self.rising.items():
            own = family == each
            place = np.clip(logarithms[own], points[0], points[-1])
            seconds[own] = np.exp2(np.interp(place, points, values) + logarithms[own] - place)
            low[own], high[own] = (seconds[own] * np.exp(end * wrong[own]) for end in self.ends)
        return Prediction(seconds, low, high, predicted.shared, predicted.far & (width > 0.5))

    @cached_property
    def rising(self) -> dict[int, tuple[Floats, Floats, Floats]]:
        """Predictions of each measured family, the corrected times there, and the variance that is left.

        Predictions and times are logarithms to the base 2; both rise. A corrected time is the mean of the largest up to
        this prediction and the smallest from it on.
        """
        found = {}
        for each in np.unique(self.family):
            own = self.predicted[self.family == each]
            points = np.arange(own.min() - _BEYOND, own.max() + _BEYOND + _STEP, _STEP)
            across = _covariance(points, np.full(len(points), each), self.predicted, self.family)
            times = points + across @ self.weights / np.log(2)
            least = np.minimum.accumulate(times[::-1])[::-1]
            found[int(each)] = points, (np.maximum.accumulate(times) + least) / 2, self._left(across)
        return found

    def _left(self, across: Floats) -> Floats:
        """Return the variance that the measurements leave, given the covariances with them."""
        return np.clip(_PRIOR - ((across @ self.inverse) * across).sum(axis=1), 0.0, _PRIOR)

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Conformal quantiles of the errors with each measurement left out, in their expected sizes."""
        errors = np.sort(self.weights / np.sqrt(np.diag(self.inverse)))
        rank = COVERAGE / 2 + 0.5 + 1 / (len(errors) + 1)
        low, high = np.quantile(errors, [max(1 - rank, 0.0), min(rank, 1.0)])
        # So few errors have no such quantile: no less than of a normal distribution.
        least = NormalDist().inv_cdf(COVERAGE / 2 + 0.5) if rank > 1 else 0.0
        return min(float(low), -least), max(float(high), least)


def refine(work: KernelWork, measured: Floats, predicted: Prediction) -> Refinement:
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
    logarithms, family = np.log2(predicted.seconds[rows]), work.family[rows].astype(np.int64)
    error = np.log(measured[rows] / predicted.seconds[rows])
    covariance = _covariance(logarithms, family, logarithms, family) + _NOISE * np.eye(len(rows))
    inverse = np.asarray(np.linalg.inv(covariance), np.float64)
    return Refinement(logarithms, family, inverse @ error, inverse)


def _covariance(a: Floats, of_a: Ids, b: Floats, of_b: Ids) -> Floats:
    distance = (a[:, None] - b[None]) / _LENGTH
    same = of_a[:, None] == of_b[None]
    return np.asarray(_DEVICE + same * (_FAMILY + _ALIKE * np.exp(-(distance**2) / 2)))
