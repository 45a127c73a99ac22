"""Whether runs are so short that handing them to another thread costs more than they do."""

from __future__ import annotations

from collections import deque

SHORT_SECONDS = 2e-4
"""Below this, a run is short."""
_RUNS, _OUTLIERS = 16, 2


class RecentRuns:
    """Tells from the seconds of the last runs whether the thread that receives requests should run them itself."""

    def __init__(self) -> None:
        self.short = False
        """Whether all but two of the last 16 runs took less than 0.2 ms."""
        self._long: deque[bool] = deque(maxlen=_RUNS)

    def note(self, seconds: float) -> None:
        """Add a run."""
        self._long.append(seconds >= SHORT_SECONDS)
        known = self._long.copy()  # other threads note runs
        self.short = len(known) == _RUNS and sum(known) <= _OUTLIERS
