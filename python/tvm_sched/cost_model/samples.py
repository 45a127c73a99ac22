"""`Samples`: measured latencies of operators on devices, the common form of all sources of training data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError

from .device_properties import DeviceProperties
from .features import NAMES, Floats, KernelWork, features, join_seconds, roofline_seconds, without_join

Array = TypeVar("Array", bound=npt.NDArray[Any])


@dataclass(frozen=True)
class Samples:
    """Operators, the device that each ran on, and how long it took."""

    work: KernelWork
    seconds: Floats
    """Above 0 and finite."""
    devices: tuple[DeviceProperties, ...]
    device: npt.NDArray[np.int64]
    """Position in ``devices``."""
    group: npt.NDArray[np.str_]
    """Groups that cross-validation holds out together: by the weights' shape, or by the model of the kernel."""

    def __post_init__(self) -> None:
        bad = ~(np.isfinite(self.seconds) & (self.seconds > 0))
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"measurement {row} ({self.devices[self.device[row]].name}) is {self.seconds[row]} s; "
                "above 0 and finite is allowed"
            )

    def __len__(self) -> int:
        return len(self.seconds)

    @staticmethod
    def on(
        device: DeviceProperties, work: KernelWork, seconds: npt.ArrayLike, group: Sequence[str] | npt.NDArray[np.str_]
    ) -> Samples:
        """Return measurements on one device."""
        values = np.asarray(seconds, dtype=np.float64)
        return Samples(work, values, (device,), np.zeros(len(work), np.int64), np.asarray(group, dtype=np.str_))

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Samples:
        """Return some of the measurements."""
        return Samples(self.work.take(rows), self.seconds[rows], self.devices, self.device[rows], self.group[rows])

    def of(self, name: str) -> Samples:
        """Return measurements on devices of a name."""
        return self.take(np.array([device.name == name for device in self.devices])[self.device])

    @staticmethod
    def concatenate(parts: Sequence[Samples]) -> Samples:
        """Return all measurements of several sources.

        Raises
        ------
        InputError
            There are no measurements.
        """
        parts = [part for part in parts if len(part)]
        if not parts:
            raise InputError("there are no measurements to learn from; give a profile, or install tvm-sched[data]")
        first = np.cumsum([0, *(len(part.devices) for part in parts[:-1])])
        return Samples(
            KernelWork.concatenate([part.work for part in parts]),
            np.concatenate([part.seconds for part in parts]),
            tuple(device for part in parts for device in part.devices),
            np.concatenate([part.device + offset for part, offset in zip(parts, first, strict=True)]),
            np.concatenate([part.group for part in parts]),
        )

    def features(self) -> npt.NDArray[np.float32]:
        """Compute the `features` of each operator on its device."""
        return self._on_devices(features, np.empty((len(self), len(NAMES)), dtype=np.float32))

    def roofline(self) -> Floats:
        """Compute the `roofline_seconds` of each operator on its device."""
        return self._on_devices(roofline_seconds, np.empty(len(self)))

    def with_join(self, seconds: Floats) -> Floats:
        """Add the `join_seconds` of each operator on its device to its time on ideal threads."""
        rows = self._on_devices(join_seconds, np.empty(len(self)), seconds)
        return seconds + rows

    def without_join(self) -> Floats:
        """Return the measured times without the overhead of joining threads (`without_join`)."""
        return self._on_devices(without_join, np.empty(len(self)), self.seconds)

    def _on_devices(self, describe: Callable[..., Array], result: Array, *columns: Floats) -> Array:
        """Fill ``result`` with values computed for the operators of each device, and their rows of ``columns``."""
        for d, device in enumerate(self.devices):
            rows = np.flatnonzero(self.device == d)
            result[rows] = describe(self.work.take(rows), device, *(column[rows] for column in columns))
        return result
