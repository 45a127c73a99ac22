"""The learned cost model: gradient-boosted trees on top of the roofline, with intervals.

The trees learn log(time / roofline ** `EXPONENT`). They may not fall where an operator's shape grows, and the roofline grows
with it, so a larger operator is never cheaper. Beyond their data, trees return the value at its edge; there a prediction is
a constant times the roofline. One model is for all GPUs, another for all CPUs. A device's rates, processors and cache are
used only if the model was trained on it. Otherwise these columns are missing, as in a part of the training.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.cores import cores
from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.files import check_envelope, convert, read_bytes, write_atomically

from .device_properties import DeviceProperties
from .features import FAMILIES, NAMES, Floats, KernelWork, features, join_seconds, roofline_seconds

FORMAT, VERSION = "tvm_sched.cost_model", 2
COVERAGE = 0.8
"""Fraction of measurements inside the intervals."""
IDENTITY = tuple(NAMES.index(name) for name in ("peak", "bandwidth", "balance", "processors", "cache"))
"""Columns that identify a device."""
SHIPPED = Path(__file__).with_name("learned.msgpack")

TIMES = [NAMES.index(name) for name in ("compute", "memory", "roofline")]
"""Columns that are logarithms of seconds."""
EXTENTS = ("m", "n", "k")
RANGED = tuple(NAMES.index(name) for name in ("flops", "read", "parameters", "written", *EXTENTS))
"""Columns that decide whether an operator is far from the training data."""
EXPONENT = 0.5
"""Power of the roofline that the trees correct. With 1, trees that may not fall could not learn that small operators take
longer than their roofline; with 0, their steps would show between measured sizes."""
_ATTENTION = FAMILIES.index("attention")
_MARGIN = 1.0  # a factor of two beyond the data is still near
_ALIKE = 0.15  # devices whose rates differ by less are the same device


class ErrorInterval(msgspec.Struct, frozen=True):
    """Errors of predictions: quantiles of log(measured / predicted), out of fold."""

    low: float
    high: float
    """A fraction `COVERAGE` of the measurements lies between them."""
    shared: float = 0.0
    """Fraction of the errors' variance that operators of one family on one device share, 0 to 1."""


@dataclass(frozen=True)
class Trees:
    """A booster, and the columns of `features` that it uses."""

    booster: Any
    names: tuple[str, ...]
    reach: tuple[float, ...]
    """Longest roofline in the data of each of the `FAMILIES`, in seconds."""

    @cached_property
    def _positions(self) -> npt.NDArray[np.intp]:
        return np.array([NAMES.index(name) for name in self.names])

    def seconds(self, columns: npt.NDArray[np.float32], roofline: Floats, known: bool) -> Floats:
        """Return the times for rows of `features` and their rooflines; ``known``: the device is in the training data."""
        if not len(columns):
            return np.zeros(0)
        used = columns if known else without_device_columns(columns)
        found = np.asarray(self.booster.inplace_predict(used[:, self._positions]), np.float64)
        beyond = np.maximum(roofline / np.array(self.reach)[columns[:, 0].astype(np.int64)], 1.0)
        return np.asarray(np.exp(found) * roofline**EXPONENT * beyond ** (1 - EXPONENT))


def without_device_columns(columns: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return features without the columns that tell devices apart."""
    columns = columns.copy()
    columns[:, IDENTITY] = np.nan
    return columns


class KindModel(msgspec.Struct, frozen=True, dict=True):
    """The model of one kind of devices."""

    booster: bytes
    """XGBoost's own UBJSON."""
    names: tuple[str, ...]
    """Columns of the features that it uses."""
    reach: tuple[float, ...]
    """Longest roofline in the data of each of the `FAMILIES`, in seconds."""
    families: dict[str, tuple[tuple[float, ...], tuple[float, ...]]]
    """Bounds of the columns `RANGED` for each family in the data."""
    bits: tuple[float, ...]
    """Sizes of the data's dtypes."""
    devices: tuple[DeviceProperties, ...]
    """Devices in the training data."""
    known: dict[str, ErrorInterval]
    unknown: dict[str, ErrorInterval]
    """Errors by family on the devices in the training data and on others; ``""`` is for all families together."""
    far: ErrorInterval
    """Errors far from the data: those of `far_ratio` for the families of the data, each left out, all counted alike."""
    far_ratio: float
    """log(time / roofline) of an operator whose family is not in the data."""

    @cached_property
    def trees(self) -> Trees:
        """The booster, ready to predict."""
        import xgboost

        booster = xgboost.Booster({"nthread": cores()})
        booster.load_model(bytearray(self.booster))
        atexit.register(booster.__del__)  # later, its library may be gone, and Python shows an error
        return Trees(booster, self.names, self.reach)

    def knows(self, device: DeviceProperties) -> bool:
        """Return whether a device is in the training data."""
        return any(similar_devices(device, other) for other in self.devices)

    def predict(self, work: KernelWork, device: DeviceProperties) -> Prediction:
        """Return the seconds of each operator with their intervals."""
        known = self.knows(device)
        seconds, far = self._seconds(work, device, known)
        several = several_queries(work)
        if len(several):  # another family, with data of its own
            single, _ = self._seconds(one_query(work.take(several)), device, known)
            seconds[several] = np.maximum(seconds[several], single)
        seconds += join_seconds(work, device, seconds)
        spreads = self.known if known else self.unknown
        table = [spreads.get(family, spreads[""]) for family in FAMILIES]
        low, high, shared = (
            np.where(far, getattr(self.far, name), np.array([getattr(s, name) for s in table])[work.family])
            for name in ("low", "high", "shared")
        )
        return Prediction(seconds, seconds * np.exp(low), seconds * np.exp(high), shared, far)

    def _seconds(self, work: KernelWork, device: DeviceProperties, known: bool) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return the seconds of each operator on ideal threads, and which operators are far from the data."""
        own = features(work, device)
        far, columns = self._far(own), features(self._within(work), device)
        columns[:, TIMES] = np.minimum(own[:, TIMES], np.log2(self.reach)[work.family, None])
        ideal = roofline_seconds(work, device)
        in_data = np.array([family in self.families for family in FAMILIES])[work.family]
        return np.where(in_data, self.trees.seconds(columns, ideal, known), ideal * np.exp(self.far_ratio)), far

    def _within(self, work: KernelWork) -> KernelWork:
        """Return operators no larger than the largest of their family in the data.

        The trees' value at the edge of a family's data holds beyond it, too. They would go on rising where another family
        has larger operators, and the roofline rises besides.
        """
        most = np.full((len(FAMILIES), len(EXTENTS)), np.inf)
        for name, (_, highest) in self.families.items():
            if name in FAMILIES:
                most[FAMILIES.index(name)] = np.exp2(highest[-len(EXTENTS) :])
        limits = dict(zip(EXTENTS, most[work.family].T, strict=True))
        return replace(work, **{name: np.minimum(getattr(work, name), limit) for name, limit in limits.items()})

    def _far(self, columns: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Return the rows outside the training data: an unknown family or dtype, or sizes beyond its range."""
        low, high = (np.full((len(FAMILIES), len(RANGED)), value) for value in (np.inf, -np.inf))
        for name, (lowest, highest) in self.families.items():
            if name in FAMILIES:
                position = FAMILIES.index(name)
                low[position], high[position] = np.subtract(lowest, _MARGIN), np.add(highest, _MARGIN)
        family = columns[:, 0].astype(np.int64)
        values = columns[:, RANGED]
        outside = ((values < low[family]) | (values > high[family])).any(axis=1)
        return np.asarray(outside | ~np.isin(columns[:, 1], self.bits))


def several_queries(work: KernelWork) -> npt.NDArray[np.intp]:
    """Return the positions of attention with more than one query."""
    return np.flatnonzero((work.family == _ATTENTION) & (work.m > 1))


def one_query(work: KernelWork) -> KernelWork:
    """Return attention of the same keys by one query of each sequence: no number of queries takes less."""
    rest = work.written * (1 - 1 / work.m)  # queries are as large as results
    return replace(
        work,
        family=np.full(len(work), FAMILIES.index("decode_attention")),
        flops=work.flops / work.m,
        read=np.maximum(work.read - rest, 0),
        written=work.written - rest,
        m=np.ones(len(work)),
    )


def similar_devices(a: DeviceProperties, b: DeviceProperties) -> bool:
    """Return whether two devices have the same processors, and about the same bandwidth and rates."""
    if a.processors != b.processors or abs(np.log(a.bandwidth / b.bandwidth)) > _ALIKE:
        return False
    dtypes = ("bfloat16", "float32") if a.kind == "cuda" else ("float32",)
    return any(abs(np.log(a.peak(dtype) / b.peak(dtype))) <= _ALIKE for dtype in dtypes)


@dataclass(frozen=True)
class Prediction:
    """Latencies of operators on one device."""

    seconds: Floats
    low: Floats
    high: Floats
    """The median, and an interval with a fraction `COVERAGE` of the measurements."""
    shared: Floats
    """Fraction of the error's variance that operators of a family on a device share."""
    far: npt.NDArray[np.bool_]
    """Whether the operator is outside the training data, so that the roofline decides."""


class LearnedModel(msgspec.Struct, frozen=True):
    """A trained model, see ``docs/cost_model.md``."""

    parts: dict[str, KindModel]
    """Models by kind of devices."""
    about: dict[str, str] = {}
    """Sources, seed and versions."""

    def predict(self, work: KernelWork, device: DeviceProperties) -> Prediction:
        """Return the seconds of each operator with their intervals; the roofline for an unmeasured kind of devices."""
        part = self.parts.get(device.kind)
        if part is None:
            seconds = roofline_seconds(work, device)
            nothing = np.zeros(len(work))
            return Prediction(seconds, seconds / 2, seconds * 4, nothing + 0.5, np.ones(len(work), bool))
        return part.predict(work, device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model's file."""
        body = {"format": FORMAT, "version": VERSION, **msgspec.to_builtins(self, builtin_types=(bytes,))}
        write_atomically(path, msgspec.msgpack.encode(body))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> LearnedModel:
        """Read and check a model's file.

        Raises
        ------
        FormatError
            The file is not a model, newer than this reader, or trained with other features.
        """
        where = os.fspath(path)
        try:
            data = msgspec.msgpack.decode(read_bytes(path))
        except msgspec.DecodeError as error:
            raise FormatError(f"{where}: not a file of a learned cost model ({error})") from None
        if not isinstance(data, dict):
            raise FormatError(f"{where}: not a file of a learned cost model")
        check_envelope(data, FORMAT, VERSION, where)
        model = convert(data, LearnedModel, where)
        for kind, part in model.parts.items():
            if not set(part.names) <= set(NAMES):
                raise FormatError(
                    f"{where}: the model of {kind} devices was trained with features that this version of tvm_sched does "
                    "not have; train it again with `tvm-sched learn`"
                )
        return model


@lru_cache(maxsize=4)
def _load(path: str, changed: int) -> LearnedModel:
    return LearnedModel.load(path)


def load_learned(path: str | os.PathLike[str] | None = None) -> LearnedModel:
    """Load a model file, by default the shipped one; each file is read once."""
    file = Path(SHIPPED if path is None else path)
    if not file.is_file():
        raise InputError(f"{file}: no such file; `tvm-sched learn` trains one")
    return _load(os.fspath(file), file.stat().st_mtime_ns)


def error_interval(
    errors: Floats,
    groups: Sequence[object] | npt.NDArray[Any],
    alike: Sequence[object] | npt.NDArray[Any] | None = None,
) -> ErrorInterval:
    """Return the interval of errors log(measured / predicted): conformal quantiles, and the fraction shared by groups.

    ``alike``: groups that count alike in the quantiles, however many measurements each has; default: measurements do.
    """
    weights = np.ones(len(errors))
    if alike is not None:
        _, member, size = np.unique(np.asarray(alike), return_inverse=True, return_counts=True)
        weights = 1 / size[member]
    order = np.argsort(errors)
    below = np.cumsum(weights[order]) - weights[order] / 2
    rank = min(COVERAGE / 2 + 0.5 + 1 / (len(errors) + 1), 1.0)  # split conformal: one more than the sample
    low, high = np.interp([1 - rank, rank], below / weights.sum(), errors[order])
    _, code = np.unique(np.asarray(groups), return_inverse=True)
    count = np.bincount(code)
    between = float((count * (np.bincount(code, weights=errors) / count) ** 2).sum())
    total = float((errors**2).sum())
    return ErrorInterval(min(float(low), 0.0), max(float(high), 0.0), between / total if total else 0.0)
