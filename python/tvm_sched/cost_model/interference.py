"""How long operators take together on a device that was measured: the rule of ``docs/model.md``, refined by pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..problem import Concurrency, Device, OpGraph, Topology
from .occupancy_model import occupancy_share, utilisation
from .profile import Measurement, Pair, Profile
from .signature import graph_of, signatures

_SHARES = np.linspace(0, 1, 41)
Pairs = list[tuple[int, int, int]]


def concurrency_of(
    graph: OpGraph, topology: Topology, operator_ns: npt.NDArray[np.int64], profile: Profile, devices: Sequence[int]
) -> Concurrency | None:
    """What the profile's pairs say of parallel operators; None where it has none of two streams of one device.

    All pairs together give the serial share, the one with which the rule comes nearest to them in the median; those whose
    kernels the graph has are kept, so that their times are the measured ones.

    Parameters
    ----------
    operator_ns : array of int64, shape (operators, devices)
    devices : sequence of int
        Positions of the devices that were measured.
    """
    pairs = pairs_of_one_device(profile)
    if not pairs or not devices:
        return None
    rows = {row.signature: row for row in profile.kernels}
    names = signatures(graph)
    taken = np.ones(operator_ns.shape)
    for d in devices:
        taken[:, d] = [_occupancy(topology.devices[d], rows.get(name), profile.threads, name) for name in names]
    used = utilisation(graph, topology, operator_ns, taken)
    where: dict[str, list[int]] = {}
    for o, name in enumerate(names):
        where.setdefault(name, []).append(o)
    kept: dict[tuple[int, int, int], int] = {}
    for pair in pairs:
        for d in devices:
            for a in where.get(pair.first, ()):
                for b in where.get(pair.second, ()):
                    if a != b:
                        longest = max(operator_ns[a, d], operator_ns[b, d])
                        kept[d, min(a, b), max(a, b)] = max(round(seconds_in_run(pair, rows) * 1e9), int(longest))
    serial = fit_serial_share(pairs, rows, topology.devices[devices[0]], profile.threads)
    return Concurrency(used, serial, [(*key, ns) for key, ns in kept.items()])


def pairs_of_one_device(profile: Profile) -> list[Pair]:
    """The pairs that were measured as two streams of the device: on a CPU each had half of its threads at most."""
    return [pair for pair in profile.pairs if 2 * pair.threads <= profile.threads]


def seconds_in_run(pair: Pair, rows: Mapping[str, Measurement]) -> float:
    """What two kernels take together in a run: as much more than alone as each in its run takes more than warm."""
    found = [rows[name] for name in (pair.first, pair.second) if name in rows]
    known = len(found) == 2 and all(row.in_run and row.warm for row in found)
    scale = sum(row.in_run for row in found) / sum(row.warm for row in found) if known else 1.0
    return pair.together * scale


def fit_serial_share(pairs: Sequence[Pair], rows: Mapping[str, Measurement], device: Device, threads: int) -> float:
    """The serial share of ``docs/model.md`` with the least median error on pairs; 0 where their kernels are not known."""
    known = [pair for pair in pairs if pair.first in rows and pair.second in rows]
    if not known:
        return 0.0
    measured = np.array([seconds_in_run(pair, rows) for pair in known])
    predicted = np.stack([predict_pairs(known, rows, device, threads, share) for share in _SHARES])
    errors = np.median(np.abs(np.log(predicted / measured)), axis=1)
    return float(_SHARES[int(np.argmin(errors))])


def predict_pairs(
    pairs: Sequence[Pair], rows: Mapping[str, Measurement], device: Device, threads: int, share: float
) -> npt.NDArray[np.float64]:
    """Seconds of pairs by the rule t(S) of ``docs/model.md``, from what each kernel takes and uses alone."""
    names = list(dict.fromkeys(name for pair in pairs for name in (pair.first, pair.second)))
    graph, topology = graph_of(names), Topology("one", (_alone(device),))
    ns = np.array([[max(round(rows[name].seconds * 1e9), 1)] for name in names], dtype=np.int64)
    taken = np.array([[_occupancy(device, rows[name], threads, name)] for name in names])
    used = utilisation(graph, topology, ns, taken)[:, 0]
    position = {name: n for n, name in enumerate(names)}
    chosen = np.array([(position[pair.first], position[pair.second]) for pair in pairs])
    seconds = ns[chosen, 0] / 1e9
    needed = (seconds[:, :, None] * used[chosen]).sum(axis=1).max(axis=1)
    return np.asarray(share * seconds.sum(axis=1) + (1 - share) * np.maximum(needed, seconds.max(axis=1)))


def _alone(device: Device) -> Device:
    from msgspec.structs import replace

    return replace(device, bus="")


def _occupancy(device: Device, row: Measurement | None, threads: int, name: str) -> float:
    """Part of a device that a kernel takes: of a GPU's places for blocks, of a CPU's threads; compiled kernels use one."""
    if device.kind == "cuda":
        return max((occupancy_share(device, launch) for launch in row.launches), default=1.0) if row else 1.0
    return 1.0 if "." in name.partition("|")[0] else 1 / max(threads, 1)
