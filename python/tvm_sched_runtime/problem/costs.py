"""Latency of each operator on each device, with parameters in its memory or read directly from host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CostsError
from .concurrency import Concurrency

FORBIDDEN = np.iinfo(np.int64).max
"""Latency that means "this operator cannot run there"; null in files."""


LONGEST_NS = 1 << 58
"""Limit of the sum of all times of a problem, nine years, since solvers multiply times."""


@dataclass(frozen=True)
class Uncertainty:
    """Possible errors of the latencies of operators; each field has the shape (operators, devices).

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched_runtime.problem import Costs, Uncertainty
    >>> known = numpy.array([[900], [1800]]), numpy.array([[1100], [2400]])
    >>> errors = Uncertainty(*known, shared=numpy.zeros((2, 1)), far=numpy.zeros((2, 1), bool))
    >>> Costs([[1000], [2000]], uncertainty=errors).uncertainty.high_ns.tolist()
    [[1100], [2400]]
    """

    low_ns: npt.NDArray[np.int64]
    high_ns: npt.NDArray[np.int64]
    """80 % interval of measurements; the latency itself if it is certain; `FORBIDDEN` where the operator cannot run."""
    shared: npt.NDArray[np.float64]
    """Share of the error's variance, 0 to 1, common to operators of one kind on one model of device."""
    far: npt.NDArray[np.bool_]
    """Whether the operator is unlike all measured operators."""

    def to_builtins(self) -> dict[str, Any]:
        """Return plain data for a problem file."""
        return {
            "low_ns": _rows(self.low_ns),
            "high_ns": _rows(self.high_ns),
            "shared": self.shared.round(4).tolist(),
            "far": self.far.tolist(),
        }

    def rows(self, operators: Sequence[int]) -> Uncertainty:
        """Return the uncertainty of some operators, in their order."""
        chosen = list(operators)
        return Uncertainty(self.low_ns[chosen], self.high_ns[chosen], self.shared[chosen], self.far[chosen])

    def columns(self, devices: list[int]) -> Uncertainty:
        """Return the uncertainty on some devices, in their order."""
        return Uncertainty(
            self.low_ns[:, devices], self.high_ns[:, devices], self.shared[:, devices], self.far[:, devices]
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uncertainty) and self.to_builtins() == other.to_builtins()

    __hash__ = None  # type: ignore[assignment]


class Costs:
    """Latency of each operator on each device.

    Times are integer nanoseconds, so that a bound, a plan and a run never differ by rounding.

    Parameters
    ----------
    operator_ns : array of int64, shape (operators, devices)
        Latency with inputs and parameters in the device's memory; `FORBIDDEN` if the operator cannot run there. 0 is raised
        to 1, since by the memory rule a kernel without duration would never hold its inputs and outputs.
    direct_ns : array of int64, shape (operators, devices)
        Latency with direct host access: the kernel reads graph inputs and parameters from host memory through the device's
        bus while it runs. `FORBIDDEN` if that is impossible or useless.
    source : str
        Source of the numbers, such as ``"roofline"`` or ``"measured"``.
    concurrency : Concurrency, optional
        Times of operators that run together on a device. Without it a device runs one operator at a time.
    uncertainty : Uncertainty, optional
        Errors of the latencies, if the source estimates them.
    host_read_ns : array of int64, shape (operators, devices), optional
        Time for which a kernel with direct host access occupies the bus; `FORBIDDEN`, or without it everywhere: the time in
        which each byte crosses the bus once. A kernel whose tiles read their host tensors several times takes longer.

    Examples
    --------
    >>> Costs.from_seconds([[2e-6, float("inf")]]).operator_ns.tolist()
    [[2000, 9223372036854775807]]
    """

    __slots__ = ("concurrency", "direct_ns", "host_read_ns", "operator_ns", "source", "uncertainty")

    def __init__(
        self,
        operator_ns: npt.ArrayLike,
        direct_ns: npt.ArrayLike | None = None,
        source: str = "",
        concurrency: Concurrency | None = None,
        uncertainty: Uncertainty | None = None,
        host_read_ns: npt.ArrayLike | None = None,
    ) -> None:
        self.operator_ns = _matrix("operator_ns", operator_ns)
        if direct_ns is None:
            direct_ns = np.full_like(self.operator_ns, FORBIDDEN)
        self.direct_ns = _matrix("direct_ns", direct_ns)
        self.source = source
        if self.operator_ns.shape != self.direct_ns.shape:
            raise CostsError(
                f"operator_ns is {self.operator_ns.shape}, direct_ns {self.direct_ns.shape}; they must agree"
            )
        self.host_read_ns = None if host_read_ns is None else _matrix("host_read_ns", host_read_ns)
        if self.host_read_ns is not None and self.host_read_ns.shape != self.direct_ns.shape:
            raise CostsError(
                f"host_read_ns is {self.host_read_ns.shape}, direct_ns {self.direct_ns.shape}; they must agree"
            )
        self.concurrency = concurrency
        if concurrency is not None:
            concurrency.check(self.operator_ns != FORBIDDEN)
        self.uncertainty = uncertainty
        if uncertainty is not None:
            _check_uncertainty(uncertainty, self.operator_ns)

    @staticmethod
    def from_seconds(operator: npt.ArrayLike, direct: npt.ArrayLike | None = None, source: str = "") -> Costs:
        """Return the costs from seconds; infinity means "cannot run there"."""
        return Costs(_to_ns("operator", operator), None if direct is None else _to_ns("direct", direct), source)

    def replace(self, **changes: Any) -> Costs:
        """Return the costs with some fields changed."""
        return Costs(**{name: getattr(self, name) for name in self.__slots__} | changes)

    def rows(self, operators: Sequence[int]) -> Costs:
        """Return the costs of some operators, in their order, without measured pairs with others."""
        chosen = list(operators)
        together, known = self.concurrency, self.uncertainty
        return Costs(
            self.operator_ns[chosen],
            self.direct_ns[chosen],
            self.source,
            together.rows(chosen) if together else None,
            known.rows(chosen) if known else None,
            None if self.host_read_ns is None else self.host_read_ns[chosen],
        )

    def columns(self, devices: Sequence[int]) -> Costs:
        """Return the costs on some devices, in their order, without concurrency."""
        chosen, known = list(devices), self.uncertainty
        return Costs(
            self.operator_ns[:, chosen],
            self.direct_ns[:, chosen],
            self.source,
            uncertainty=known.columns(chosen) if known else None,
            host_read_ns=None if self.host_read_ns is None else self.host_read_ns[:, chosen],
        )

    def to_builtins(self) -> dict[str, Any]:
        """Return plain data for a problem file: `FORBIDDEN` is None; unknown parts are omitted, as digests require."""
        data: dict[str, Any] = {
            "source": self.source,
            "operator_ns": _rows(self.operator_ns),
            "direct_ns": _rows(self.direct_ns),
        }
        if self.host_read_ns is not None:
            data["host_read_ns"] = _rows(self.host_read_ns)
        if self.concurrency is not None:
            data["concurrency"] = self.concurrency.to_builtins()
        if self.uncertainty is not None:
            data["uncertainty"] = self.uncertainty.to_builtins()
        return data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Costs) and all(
            np.array_equal(mine, getattr(other, name)) if name.endswith("_ns") else mine == getattr(other, name)
            for name in self.__slots__
            for mine in [getattr(self, name)]
        )

    def __repr__(self) -> str:
        operators, devices = self.operator_ns.shape
        return f"Costs({operators} operators on {devices} devices, source={self.source!r})"


def concatenate_costs(parts: Sequence[Costs]) -> Costs:
    """Concatenate the costs of several graphs' operators; drop fields that some of them lack."""
    known = [part.uncertainty for part in parts if part.uncertainty is not None]
    uncertainty = None
    if parts and len(known) == len(parts):
        low, high = (np.concatenate([getattr(each, name) for each in known]) for name in ("low_ns", "high_ns"))
        shared, far = (np.concatenate([getattr(each, name) for each in known]) for name in ("shared", "far"))
        uncertainty = Uncertainty(low, high, shared, far)
    reads = [np.full_like(p.direct_ns, FORBIDDEN) if p.host_read_ns is None else p.host_read_ns for p in parts]
    return Costs(
        np.concatenate([part.operator_ns for part in parts]),
        np.concatenate([part.direct_ns for part in parts]),
        "+".join(dict.fromkeys(part.source for part in parts)),
        uncertainty=uncertainty,
        host_read_ns=None if all(part.host_read_ns is None for part in parts) else np.concatenate(reads),
    )


def _check_uncertainty(uncertainty: Uncertainty, operator_ns: npt.NDArray[np.int64]) -> None:
    for name in ("low_ns", "high_ns", "shared", "far"):
        if getattr(uncertainty, name).shape != operator_ns.shape:
            raise CostsError(
                f"uncertainty.{name} is {getattr(uncertainty, name).shape}, operator_ns {operator_ns.shape}"
            )
    if not ((uncertainty.low_ns <= operator_ns) & (operator_ns <= uncertainty.high_ns)).all():
        o, d = np.argwhere((uncertainty.low_ns > operator_ns) | (operator_ns > uncertainty.high_ns))[0]
        raise CostsError(
            f"operator_ns[{o}][{d}] is {operator_ns[o, d]} ns, outside of its interval "
            f"{uncertainty.low_ns[o, d]} to {uncertainty.high_ns[o, d]} ns"
        )
    if not ((uncertainty.shared >= 0) & (uncertainty.shared <= 1)).all():
        raise CostsError("uncertainty.shared has a value outside of 0 to 1")


def _rows(matrix: npt.NDArray[np.int64]) -> list[list[int | None]]:
    return [[None if value == FORBIDDEN else value for value in row] for row in matrix.tolist()]


def _to_ns(what: str, seconds: npt.ArrayLike) -> npt.NDArray[np.int64]:
    values = np.asarray(seconds, dtype=np.float64)
    if np.isnan(values).any():
        o, d = np.argwhere(np.isnan(np.atleast_2d(values)))[0]
        raise CostsError(f"{what}[{o}][{d}] is not a number; a latency is 0 or more seconds, or infinity")
    forbidden = np.isinf(values) & (values > 0)
    if (too_long := (values > LONGEST_NS / 1e9) & ~forbidden).any():
        o, d = np.argwhere(np.atleast_2d(too_long))[0]
        raise CostsError(
            f"{what}[{o}][{d}] is {np.atleast_2d(values)[o, d]} s; at most {LONGEST_NS / 1e9:g} are allowed"
        )
    rounded = np.rint(np.where(forbidden, 0, values) * 1e9).astype(np.int64)
    return np.where(forbidden, np.int64(FORBIDDEN), rounded)


def _matrix(what: str, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    matrix = np.array(values, dtype=np.int64)
    if matrix.size == 0:
        matrix = matrix.reshape(matrix.shape if matrix.ndim == 2 else (0, 0))
    if matrix.ndim != 2:
        raise CostsError(
            f"{what} has {matrix.ndim} dimensions; it is a row for each operator, a column for each device"
        )
    if (matrix < 0).any():
        o, d = np.argwhere(matrix < 0)[0]
        raise CostsError(f"{what}[{o}][{d}] is {matrix[o, d]} ns; a latency is 0 or more")
    matrix = np.maximum(matrix, 1)
    matrix.setflags(write=False)
    return matrix
