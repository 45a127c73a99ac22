"""`Sampling`: choose the next token from logits, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Raises
    ------
    InputError
        A value that is not allowed.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched_language import Sampling
    >>> greedy = Sampling()
    >>> greedy.choose(numpy.array([0.1, 2.0, 0.3], "float32"), greedy.generator())
    1
    """

    temperature: float = 0.0
    """Logits are divided by it. 0 takes the most likely token."""
    top_k: int = 0
    """Only so many of the most likely tokens are drawn from; 0: all."""
    top_p: float = 1.0
    """Only the fewest tokens are drawn from whose probabilities sum to at least this."""
    seed: int | None = None
    """Equal seeds draw equal tokens. Default: another at each call."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"temperature is {self.temperature}; 0 or more is allowed, 0 takes the most likely token")
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k}; 0 (all tokens) or more is allowed")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; a number above 0 and up to 1 is allowed")
        if self.seed is not None and self.seed < 0:
            raise InputError(f"seed is {self.seed}; 0 or more is allowed")

    def generator(self) -> np.random.Generator:
        """Return a new source of random numbers."""
        return np.random.default_rng(self.seed)

    def choose(self, logits: npt.NDArray[Any], random: np.random.Generator) -> int:
        """Choose a token by its logits, of shape (vocab,); return -1 if the largest is infinite or not a number."""
        if not np.isfinite(logits.max()):
            return -1
        if self.temperature == 0:
            return int(logits.argmax())
        with np.errstate(over="ignore"):  # a temperature near 0 leaves the most likely token alone
            scaled = (logits.astype(np.float64) - logits.max()) / self.temperature
        candidates = np.arange(scaled.size)
        if 0 < self.top_k < scaled.size:
            candidates = np.argpartition(-scaled, self.top_k - 1)[: self.top_k]
        order = candidates[np.argsort(-scaled[candidates], kind="stable")]
        weights = np.exp(scaled[order] - scaled[order[0]])
        shares = weights / weights.sum()
        if self.top_p < 1:
            # The token with which the sum reaches top_p is the last.
            count = int(np.searchsorted(np.cumsum(shares), self.top_p)) + 1
            order, shares = order[:count], shares[:count] / shares[:count].sum()
        return int(order[min(int(np.searchsorted(np.cumsum(shares), random.random(), side="right")), order.size - 1)])
