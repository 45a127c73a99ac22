"""Interference of operators on a measured device: fit the parameters of the rule in ``docs/model.md`` to pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tvm_sched_runtime.problem import Concurrency, Device, OpGraph, Topology

from .contention import Contention, crowded, fit_contention, median_error, squared_error
from .occupancy_model import occupancy_share, utilisation
from .profile import QUIET_LOAD, Measurement, Pair, Profile
from .signature import graph_of, signatures

_FEWEST_PAIRS = 8
_OF_CORES = slice(0, 2)
"""Resources that streams with separate threads do not share: threads and arithmetic."""
_UNSHARED = 1e-6
"""Use of a resource that is not shared; `Concurrency` does not allow 0."""
Array = npt.NDArray[np.float64]


class PairArrays(NamedTuple):
    """Arguments of `Contention.pairs`, and the measured seconds of each pair together, shape (pairs,)."""

    seconds: Array
    used: Array
    crowded: Array
    together: Array


def concurrency_of(
    graph: OpGraph, topology: Topology, operator_ns: npt.NDArray[np.int64], profile: Profile, devices: Sequence[int]
) -> Concurrency | None:
    """Fit the concurrency to the profile's pairs; None if it has no pairs of two streams of one device.

    Serial share and contention are fitted to all pairs. Pairs whose kernels the graph has keep their measured times. A CPU
    device with several threads divides them among the streams of a stage, as it did in the measurements.

    Parameters
    ----------
    operator_ns : array of int64, shape (operators, devices)
    devices : sequence of int
        Positions of the measured devices.
    """
    pairs = pairs_of_one_device(profile)
    if not pairs or not devices:
        return None
    rows = {row.signature: row for row in profile.kernels}
    names = signatures(graph)
    half = _half_times(pairs)
    taken, crowding = np.ones(operator_ns.shape), np.zeros(operator_ns.shape)
    fitted = fit_pairs(pairs, rows, topology.devices[devices[0]], profile.threads)
    for d in devices:
        for o, name in enumerate(names):
            taken[o, d] = _occupancy(topology.devices[d], rows.get(name), profile.threads, name, half)
            crowding[o, d] = fitted.crowding * _crowded(topology.devices[d], rows.get(name), graph.operators[o].flops)
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
    several = profile.threads if profile.threads > 1 else 0
    if several:  # the first resource is left out by the rule for devices with threads
        used[:, list(devices), 1] = _UNSHARED
    return Concurrency(
        used, fitted.serial_share, [(*key, ns) for key, ns in kept.items()],
        [several if d in devices else 0 for d in range(len(topology.devices))] if several else (),
        excess=(fitted.excess,) * used.shape[2], crowding=crowding, interval=fitted.interval,
    )  # fmt: skip


def pairs_of_one_device(profile: Profile) -> list[Pair]:
    """Return the pairs that ran as two streams of one device: on a CPU each kernel had at most half of the threads."""
    return [pair for pair in profile.pairs if 2 * pair.threads <= profile.threads]


def seconds_in_run(pair: Pair, rows: Mapping[str, Measurement]) -> float:
    """Return the time of two kernels together in a run: the warm time, scaled as the times of the kernels alone."""
    kernels = [rows[name] for name in (pair.first, pair.second) if name in rows]
    known = len(kernels) == 2 and all(row.in_run and row.warm for row in kernels)
    scale = sum(row.in_run for row in kernels) / sum(row.warm for row in kernels) if known else 1.0
    return pair.together * scale


def fit_pairs(pairs: Sequence[Pair], rows: Mapping[str, Measurement], device: Device, threads: int) -> Contention:
    """Fit serial share and contention to measured pairs; both are 0 if no pair has known kernels.

    On a CPU the fit minimises the median error, since other processes slow some pairs down by large factors. On a GPU it
    minimises the mean square, since large slowdowns are the contention itself. Pairs that were measured beside other
    processes count only if there are too few quiet pairs.
    """
    known = [pair for pair in pairs if pair.first in rows and pair.second in rows]
    quiet = [pair for pair in known if pair.load <= QUIET_LOAD]
    known = quiet if len(quiet) >= _FEWEST_PAIRS else known
    if not known:
        return Contention(0.0, 0.0, 0.0)
    arrays = pair_arrays(known, rows, device, threads)
    return fit_contention(*arrays, error=squared_error if device.kind == "cuda" else median_error)


def fit_profile(profile: Profile) -> Contention | None:
    """Fit serial share and contention to the profile of a CPU device; None if it has no pairs of two streams."""
    pairs, measured = pairs_of_one_device(profile), profile.device
    if not pairs or measured.kind != "cpu":
        return None
    device = Device(measured.name, 1, measured.bandwidth, dict(measured.rates), kind="cpu")
    return fit_pairs(pairs, {row.signature: row for row in profile.kernels}, device, profile.threads)


def pair_arrays(
    pairs: Sequence[Pair], rows: Mapping[str, Measurement], device: Device, threads: int, half: bool = True
) -> PairArrays:
    """Return the time of each kernel in some pairs, and the part of the device that it uses.

    On a CPU each kernel has half of the threads. Its time is that of the kernel alone on these threads. It shares neither
    threads nor arithmetic, only bandwidth, as in a stage (``docs/model.md``, "threads"). With ``half=False`` the times are
    those on all threads; for short kernels they are mostly the time to wake threads.
    """
    names = list(dict.fromkeys(name for pair in pairs for name in (pair.first, pair.second)))
    position = {name: n for n, name in enumerate(names)}
    chosen = np.array([(position[pair.first], position[pair.second]) for pair in pairs])
    alone = np.array([rows[name].seconds for name in names])
    own_cores = half and threads > 0
    if own_cores:
        times = _half_times(pairs)
        alone = np.array([times[name] for name in names])
    graph, topology = graph_of(names), Topology("one", (replace(device, bus=""),))
    ns = np.maximum(np.rint(alone * 1e9), 1).astype(np.int64)[:, None]
    taken = np.array([[_occupancy(device, rows[name], threads, name, {})] for name in names])
    used = utilisation(graph, topology, ns, taken)[:, 0]
    if own_cores:
        used[:, _OF_CORES] = 0
    crowding = np.array([_crowded(device, rows[name], o.flops) for name, o in zip(names, graph.operators, strict=True)])
    together = np.array([pair.together if own_cores else seconds_in_run(pair, rows) for pair in pairs])
    return PairArrays(alone[chosen], used[chosen], crowding[chosen], together)


def _half_times(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the median seconds of each kernel alone, with as many threads as it has in a pair."""
    times: dict[str, list[float]] = {}
    for pair in pairs:
        for name, seconds in zip((pair.first, pair.second), pair.alone, strict=True):
            times.setdefault(name, []).append(seconds)
    return {name: float(np.median(seconds)) for name, seconds in times.items()}


def _occupancy(device: Device, row: Measurement | None, threads: int, name: str, half: Mapping[str, float]) -> float:
    """Return the part of a device that a kernel takes: of a GPU's places for blocks, or of a CPU's threads.

    On a CPU it follows by Amdahl's law from the times on half of the threads and on all of them. Without both times, a
    library's kernel takes all threads and a compiled one takes one.
    """
    if device.kind == "cuda":
        return max((occupancy_share(device, launch) for launch in row.launches), default=1.0) if row else 1.0
    least = 1 / max(threads, 1)
    if row and row.seconds and name in half and threads > 1:
        whole = row.warm or row.seconds
        parallel = (half[name] - whole) / (2 / threads - least)
        return min(max((whole + parallel * (1 - least)) / (threads * whole), least), 1.0)
    return 1.0 if "." in name.partition("|")[0] else least


def _crowded(device: Device, row: Measurement | None, flops: int) -> float:
    if device.kind != "cuda" or row is None or not row.seconds:
        return 0.0
    arithmetic = min(1.0, flops / device.peak_flops["float32"] / row.seconds)
    return max((crowded(device, launch, arithmetic) for launch in row.launches), default=0.0)
