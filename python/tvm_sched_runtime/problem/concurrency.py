"""How long operators take when they run together on one device (``docs/model.md``, "Parallel operators")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CostsError


class Concurrency:
    """How operators on several streams of a device slow each other down.

    A set ``S`` of operators that take ``t`` alone and use the part ``u[r]`` of each resource ``r`` of the device takes::

        t(S) = serial_share * sum(t) + (1 - serial_share) * max(max over r of sum(t * u[r]), max(t))

    together; operators of one stream count as one. ``excess`` and ``crowding`` add contention. ``serial_share=0.5`` and one
    resource give the formula of HIOS's simulation; ``serial_share=0`` with occupancy and bandwidth gives a roofline of
    several kernels.

    Parameters
    ----------
    utilisation : array of float, shape (operators, devices, resources)
        Above 0, at most 1. At least one resource.
    serial_share : float
        Part of the time that does not overlap, from 0 to 1.
    pairs : iterable of (device, operator, operator, nanoseconds)
        Measured times of two operators (positions in the graph) together. The formula of a set is scaled by the mean of
        measured over predicted time of its pairs.
    threads : iterable of int
        For each device, the threads that it gives to the streams of a stage (``docs/model.md``); 0 or empty: it shares its
        resources among all running operators. With ``T`` threads an operator's share of the first resource, the cores, is
        its time on one thread over ``T`` times its time on all: ``1 / T`` or more.
    excess : iterable of float
        For each resource, seconds lost per second in which the demand is twice the supply; 0 or more. Empty: none.
    crowding : array of float, shape (operators, devices)
        Share of its time by which an operator is slower if others fill the device at its start; 0 or more. Empty: none.
    factor : float
        Factor above 0 of the times of sets without a measured pair; no set gets faster than its longest operator.
    interval : (float, float)
        90 % of measured pairs take between these factors times the predicted time; around 1.

    Raises
    ------
    CostsError
        A number out of range; a pair of an operator with itself, or twice.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Concurrency
    >>> Concurrency([[[0.5, 0.25, 0.1]], [[0.25, 0.5, 0.1]]], serial_share=0.1).utilisation.shape
    (2, 1, 3)
    """

    __slots__ = ("crowding", "excess", "factor", "interval", "pairs", "serial_share", "threads", "utilisation")

    def __init__(
        self,
        utilisation: npt.ArrayLike,
        serial_share: float = 0.0,
        pairs: Iterable[tuple[int, int, int, int]] = (),
        threads: Iterable[int] = (),
        *,
        excess: Iterable[float] = (),
        crowding: npt.ArrayLike = (),
        factor: float = 1.0,
        interval: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        self.utilisation = _numbers("utilisation", utilisation)
        self.serial_share = float(serial_share)
        self.pairs = tuple((int(d), int(min(a, b)), int(max(a, b)), int(ns)) for d, a, b, ns in pairs)
        self.threads = tuple(int(count) for count in threads)
        self.excess = tuple(float(part) for part in excess)
        self.crowding = _numbers("crowding", crowding)
        self.factor = float(factor)
        self.interval = (float(interval[0]), float(interval[1]))
        if self.utilisation.ndim != 3 or 0 in self.utilisation.shape[2:]:
            raise CostsError(
                f"utilisation has shape {self.utilisation.shape}; a number for each operator, device and resource is needed"
            )
        if not ((self.utilisation > 0) & (self.utilisation <= 1)).all():
            o, d, r = np.argwhere(~((self.utilisation > 0) & (self.utilisation <= 1)))[0]
            raise CostsError(
                f"utilisation[{o}][{d}][{r}] is {self.utilisation[o, d, r]}; above 0 and at most 1 is allowed"
            )
        if not 0 <= self.serial_share <= 1:
            raise CostsError(f"serial_share is {serial_share}; a fraction from 0 to 1 is allowed")
        self._check_contention()
        self.utilisation.setflags(write=False)
        self.crowding.setflags(write=False)

    @property
    def contends(self) -> bool:
        """Whether operators may take longer together than one after another."""
        return any(self.excess) or bool(self.crowding.any())

    def _check_contention(self) -> None:
        resources = self.utilisation.shape[2]
        if len(self.excess) not in (0, resources) or not all(0 <= part < np.inf for part in self.excess):
            raise CostsError(
                f"excess is {self.excess}; a number of 0 or more for each of {resources} resources is needed, or none"
            )
        if self.crowding.size and self.crowding.shape != self.utilisation.shape[:2]:
            raise CostsError(
                f"crowding has shape {self.crowding.shape}; a number for each of {self.utilisation.shape[:2]} operators and "
                "devices is needed, or none"
            )
        if not ((self.crowding >= 0) & (self.crowding < np.inf)).all():
            raise CostsError(f"crowding has {self.crowding.min()}; 0 or more is allowed")
        if not 0 < self.factor < np.inf:
            raise CostsError(f"factor is {self.factor}; a number above 0 is allowed")
        if not 0 < self.interval[0] <= 1 <= self.interval[1] < np.inf:
            raise CostsError(
                f"interval is {self.interval}; a number above 0 and at most 1, then one of 1 or more, is allowed"
            )

    def check(self, runs: npt.NDArray[np.bool_]) -> None:
        """Raise `CostsError` if the shape differs from that of ``runs``, or a pair cannot run on its device."""
        shape = runs.shape
        if self.utilisation.shape[:2] != shape:
            raise CostsError(
                f"utilisation is for {self.utilisation.shape[:2]} operators and devices, latencies for {shape}"
            )
        self._check_threads(shape[1])
        seen = set()
        for pair in self.pairs:
            d, a, b, ns = pair
            known = 0 <= d < shape[1] and 0 <= a < b < shape[0] and ns > 0
            if not known or not (runs[a, d] and runs[b, d]) or pair[:3] in seen:
                raise CostsError(
                    f"pairs has {pair}; a device, two different operators that run on it and nanoseconds above 0 are "
                    "allowed, each pair once"
                )
            seen.add(pair[:3])

    def _check_threads(self, devices: int) -> None:
        if len(self.threads) not in (0, devices) or any(count < 0 for count in self.threads):
            raise CostsError(
                f"threads is {self.threads}; a number from 0 is needed for each of {devices} devices, or none"
            )
        for d, count in enumerate(self.threads):
            cores = self.utilisation[:, d, 0]
            if count and len(cores) and cores.min() * count < 1 - 1e-9:
                raise CostsError(
                    f"utilisation[{int(cores.argmin())}][{d}][0] is {cores.min()}; on a device with {count} threads an "
                    f"operator uses one at least: {1 / count} or more is allowed"
                )

    def rows(self, operators: Sequence[int]) -> Concurrency:
        """Return the concurrency of some operators, in their order, without pairs with others."""
        place = {o: k for k, o in enumerate(operators)}
        pairs = [(d, place[a], place[b], ns) for d, a, b, ns in self.pairs if a in place and b in place]
        crowding = self.crowding[list(operators)] if self.crowding.size else ()
        return Concurrency(
            self.utilisation[list(operators)], self.serial_share, pairs, self.threads,
            excess=self.excess, crowding=crowding, factor=self.factor, interval=self.interval,
        )  # fmt: skip

    def times(self, factor: float, of_operators: npt.NDArray[np.float64] | None = None) -> Concurrency:
        """Scale unmeasured sets by ``factor``, and measured pairs by the mean of their operators' factors.

        ``of_operators`` has the shape (operators, devices).
        """
        pairs = self.pairs
        if of_operators is not None:
            scaled = of_operators
            pairs = tuple((d, a, b, max(1, round(ns * (scaled[a, d] + scaled[b, d]) / 2))) for d, a, b, ns in pairs)
        return Concurrency(
            self.utilisation, self.serial_share, pairs, self.threads,
            excess=self.excess, crowding=self.crowding, factor=self.factor * factor, interval=self.interval,
        )  # fmt: skip

    def to_builtins(self) -> dict[str, Any]:
        """Return plain data for a problem file."""
        return {
            "utilisation": self.utilisation.tolist(),
            "serial_share": self.serial_share,
            "pairs": [list(pair) for pair in self.pairs],
            **({"threads": list(self.threads)} if self.threads else {}),
            **({"excess": list(self.excess)} if self.excess else {}),
            **({"crowding": self.crowding.tolist()} if self.crowding.size else {}),
            **({"factor": self.factor} if self.factor != 1 else {}),
            **({"interval": list(self.interval)} if self.interval != (1.0, 1.0) else {}),
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Concurrency) and self.to_builtins() == other.to_builtins()

    __hash__ = None  # type: ignore[assignment]


def _numbers(what: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    try:
        return np.array(values, dtype=np.float64)
    except ValueError:
        raise CostsError(f"rows of {what} differ in length, or have something else than numbers") from None
