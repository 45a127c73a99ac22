"""The cost models `learned` and `measured`, which convert predictions to `Costs`."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import FORBIDDEN, HOST, Costs, Device, OpGraph, Topology, Uncertainty, graph_on

from .database import CostWarning, Database
from .device_properties import DeviceProperties, properties
from .features import KernelWork, describe
from .host_rereads import crossing_bytes
from .interference import concurrency_of
from .learned_model import LearnedModel, Prediction, load_learned, one_query, several_queries, similar_devices
from .profile import Measurement, Profile, describe_measured, this_machine
from .refine import refine
from .signature import signatures

_LISTED = 20  # names of operators in a warning
_SIZES = ("flops", "read", "parameters", "written", "batch", "m", "n", "k")

Predict = Callable[[KernelWork, DeviceProperties], Prediction]


def learned(graph: OpGraph, topology: Topology) -> Costs:
    """Return the latencies by the shipped model, see ``docs/cost_model.md``.

    Examples
    --------
    >>> from tvm_sched.cost_model import learned
    >>> learned(graph, topology).operator_ns.shape
    (3, 2)
    """
    return costs_of(graph, topology, load_learned().predict, "learned")


def measured(graph: OpGraph, topology: Topology) -> Costs:
    """Return the latencies that `tvm-sched profile` measured on this machine; other operators are predicted.

    Raises
    ------
    InputError
        The topology has other devices than CPUs, or no operator was measured.

    Examples
    --------
    >>> from tvm_sched.cost_model import measured
    >>> measured(graph, topology)
    Traceback (most recent call last):
        ...
    tvm_sched_runtime.errors.InputError: the cost model 'measured': topology 'pair' has gpu0, gpu1, which ...
    """
    machine = this_machine()
    others = [device.name for device in topology.devices if device.kind != "cpu"]
    if others:
        raise InputError(
            f"the cost model 'measured': topology {topology.name!r} has {', '.join(others)}, which the database of "
            "this machine's CPU kernels does not cover; give a profile measured on such a machine, or use 'learned'"
        )
    threads = max(machine.cores // len(topology.devices), 1)
    known = Database().read(machine, database_key(threads))
    profile = Profile(machine, properties(topology.devices[0]), tuple(known.values()))
    return costs_of_profile(graph, topology, profile, "measured")


def database_key(threads: int) -> str:
    """Return the database key of the CPU's measurements with this many threads per device."""
    return f"cpu, {threads} threads"


def costs_of_profile(graph: OpGraph, topology: Topology, profile: Profile, source: str) -> Costs:
    """Return the profile's latencies; the learned model, refined by the profile, predicts operators that it lacks.

    Raises
    ------
    InputError
        No operator of the graph is in the profile, or no device is of its kind.

    Warns
    -----
    CostWarning
        The profile is of another machine or version, or lacks operators.
    """
    rows = {row.signature: row for row in profile.kernels if row.seconds > 0}
    names = signatures(graph)
    missing = [text for text in dict.fromkeys(names) if text not in rows]
    if graph.operators and len(missing) == len(set(names)):
        raise InputError(
            f"{source}: none of the {len(missing)} distinct kernels of {graph.name!r} was measured, such as {missing[0]!r}; "
            "measure them with `tvm-sched profile MODEL`"
        )
    if not any(_is_measured(device, profile) for device in topology.devices):
        raise InputError(
            f"{source}: measured on {_describe_device(profile.device)}; topology {topology.name!r} has no such device but "
            f"{', '.join(dict.fromkeys(_describe_device(properties(d)) for d in topology.devices))}"
        )
    for difference in profile.differences():
        warnings.warn(f"{source}: {difference}; measure again for reliable times", CostWarning, stacklevel=2)
    if missing:
        operators = dict(
            zip(reversed(names), (o.name for o in reversed(graph.operators)), strict=True)
        )  # the first of each
        listed = ", ".join(operators[text] for text in missing[:_LISTED])
        listed += f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        warnings.warn(
            f"{source}: {len(missing)} of {len(set(names))} distinct kernels were not measured and are predicted: {listed}",
            CostWarning, stacklevel=2,
        )  # fmt: skip
    model = load_learned()
    predict = model.predict if not rows else refined(model, profile, rows)
    devices = [d for d, device in enumerate(topology.devices) if _is_measured(device, profile)]
    exact = {topology.devices[d].name: (names, rows) for d in devices}
    costs = costs_of(graph, topology, predict, source, exact)
    together = concurrency_of(graph, topology, costs.operator_ns, profile, devices)
    if together is None:
        return costs
    return costs.replace(concurrency=together)


def _is_measured(device: Device, profile: Profile) -> bool:
    """Return whether a profile is of such a device; all CPU devices have one name, so their rates tell them apart."""
    own = properties(device)
    same = own.kind == profile.device.kind and own.name == profile.device.name
    return same and (own.kind != "cpu" or similar_devices(own, profile.device))


def _describe_device(device: DeviceProperties) -> str:
    return f"{device.name!r} ({device.kind}, {device.rates['float32'] / 1e9:.0f} GFLOP/s)"


def refined(model: LearnedModel, profile: Profile, rows: Mapping[str, Measurement]) -> Predict:
    """Refine the learned model for the profile's device."""
    work = describe_measured(list(rows.values()))
    seconds = np.array([row.seconds for row in rows.values()])
    refinement = refine(work, seconds, model.predict(work, profile.device))

    def predict(asked: KernelWork, device: DeviceProperties) -> Prediction:
        plain = model.predict(asked, device)
        if device.kind != profile.device.kind or not similar_devices(device, profile.device):
            return plain
        found, several = refinement(asked, plain), several_queries(asked)
        if len(several):
            single = one_query(asked.take(several))
            least = refinement(single, model.predict(single, device)).seconds
            found.seconds[several] = np.maximum(found.seconds[several], least)
            found.high[several] = np.maximum(found.high[several], least)
        return found

    return predict


def costs_of(
    graph: OpGraph,
    topology: Topology,
    predict: Predict,
    source: str,
    exact: Mapping[str, tuple[list[str], Mapping[str, Measurement]]] | None = None,
) -> Costs:
    """Return the costs of a graph by a function that predicts operators on a device.

    The topology's launch overhead is added, except on CPUs, whose measured times contain it. With direct host access an
    operator takes at least as long as the bus for its host tensors, on a GPU as often as its kernel reads them
    (`tvm_sched.cost_model.host_rereads`). It occupies the bus as long.

    Parameters
    ----------
    exact : mapping of str to (signatures, measurements), optional
        Measurements that replace predictions, by name of the device.
    """
    work = describe(graph)
    distinct, position = _distinct(work)
    shape = (len(graph.operators), len(topology.devices))
    operator_ns, low, high = (np.empty(shape, np.int64) for _ in range(3))
    shared, far = np.zeros(shape), np.zeros(shape, bool)
    direct_ns = np.full(shape, FORBIDDEN, np.int64)
    held = graph_on(graph, topology)
    index, crossing = held.index, crossing_bytes(held, work)
    host = np.array([sum(read) for read in index.host_bytes])
    in_part = host < np.array([sum(index.size[t] for t in tensors) for tensors in index.host_inputs])
    bus_ns = np.full(shape, FORBIDDEN, np.int64)
    predictions: dict[Device, Prediction] = {}
    for d, device in enumerate(topology.devices):
        key = _without_name(device)
        if key not in predictions:
            predictions[key] = predict(distinct, properties(device))
        predicted = predictions[key]
        launch = 0.0 if device.kind == "cpu" else device.launch_overhead
        for matrix, seconds in ((operator_ns, predicted.seconds), (low, predicted.low), (high, predicted.high)):
            matrix[:, d] = _to_ns(seconds + launch)[position]
        shared[:, d], far[:, d] = predicted.shared[position], predicted.far[position]
        if exact and device.name in exact:
            operator_ns[:, d] = between_measured(graph, work, operator_ns[:, d], exact[device.name][1].values())
            low[:, d], high[:, d] = np.minimum(low[:, d], operator_ns[:, d]), np.maximum(high[:, d], operator_ns[:, d])
            _fill_measured(d, *exact[device.name], operator_ns, low, high, far)
        route = topology.route(HOST, d)
        if route is not None:
            reads = np.array([route.nanoseconds(int(size)) for size in host], dtype=np.int64)
            waits = reads
            if device.kind == "cuda" and not topology.storage:
                waits = np.array([route.nanoseconds(int(size)) for size in crossing], dtype=np.int64)
            least = waits + int(launch * 1e9)
            # A CPU's kernel waits while a page is read from storage; a GPU computes what has arrived meanwhile, and cannot
            # read pages that are not in memory.
            fastest = operator_ns[:, d] + reads if topology.storage else np.maximum(operator_ns[:, d], least)
            if exact and device.name in exact:
                fastest = np.maximum(fastest, _measured_direct(*exact[device.name]))
            reads_directly = (host > 0) & (in_part & topology.maps_storage if topology.storage else True)
            direct_ns[:, d] = np.where(reads_directly, fastest, FORBIDDEN)
            bus_ns[:, d] = np.where(reads_directly & (waits > reads), waits, FORBIDDEN)
    several = bus_ns if (bus_ns != FORBIDDEN).any() else None
    return Costs(operator_ns, direct_ns, source, None, Uncertainty(low, high, shared, far), several)


def between_measured(
    graph: OpGraph, work: KernelWork, latency_ns: npt.NDArray[np.int64], rows: Iterable[Measurement]
) -> npt.NDArray[np.int64]:
    """Return latencies between those of measured shapes of the operator: a larger one takes no less, a smaller one no more.

    If a larger shape was measured to take less than a smaller one, those in between take no less than the smaller one.
    """
    by_kind: dict[str, list[Measurement]] = {operator.kind: [] for operator in graph.operators}
    for row in rows:
        by_kind.get(row.signature.partition("|")[0], []).append(row)
    kinds, result = np.array([operator.kind for operator in graph.operators]), latency_ns.copy()
    for kind, of_kind in by_kind.items():
        if not of_kind:
            continue
        measured, asked = describe_measured(of_kind), np.flatnonzero(kinds == kind)
        smaller = measured.dtype == work.dtype[asked][:, None]
        larger = smaller.copy()
        for name in _SIZES:
            size, own = getattr(measured, name), getattr(work, name)[asked][:, None]
            smaller &= size <= own
            larger &= size >= own
        times = np.array([_nanoseconds(row) for row in of_kind])
        most = np.where(larger, times, FORBIDDEN).min(axis=1)
        result[asked] = np.maximum(np.minimum(result[asked], most), np.where(smaller, times, 0).max(axis=1))
    return result


def _fill_measured(
    d: int,
    names: list[str],
    rows: Mapping[str, Measurement],
    operator_ns: npt.NDArray[np.int64],
    low: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    far: npt.NDArray[np.bool_],
) -> None:
    """Write measured times into a device's column, with the confidence interval of their median."""
    for o, text in enumerate(names):
        row = rows.get(text)
        if row is not None:
            nanoseconds = _nanoseconds(row)
            reach = round(nanoseconds * min(row.error, 0.9))
            operator_ns[o, d], far[o, d] = nanoseconds, False
            low[o, d], high[o, d] = max(nanoseconds - reach, 1), nanoseconds + reach


def _nanoseconds(row: Measurement) -> int:
    return max(round(row.seconds * 1e9), 1)


def _measured_direct(names: list[str], rows: Mapping[str, Measurement]) -> npt.NDArray[np.int64]:
    """Return the nanoseconds with parameters in host memory; 0 if they were not measured."""
    return np.array([round(rows[name].direct * 1e9) if name in rows else 0 for name in names], dtype=np.int64)


def _distinct(work: KernelWork) -> tuple[KernelWork, npt.NDArray[np.int64]]:
    """Return the operators without repetitions, and the position of each operator among them."""
    columns = [getattr(work, field.name) for field in dataclasses.fields(work) if field.name != "dtype"]
    numbers = np.stack([np.unique(work.dtype, return_inverse=True)[1], *columns], axis=1).astype(np.float64)
    rows = np.ascontiguousarray(numbers).view(np.dtype((np.void, numbers.dtype.itemsize * numbers.shape[1]))).ravel()
    _, first, position = np.unique(rows, return_index=True, return_inverse=True)
    return work.take(first), position


def _without_name(device: Device) -> Device:
    from msgspec.structs import replace

    return replace(device, name="device", bus="", memory=1, peak_flops=_Frozen(device.peak_flops))


class _Frozen(dict[str, float]):
    """Rates as a hashable part of a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items())))


def _to_ns(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Convert to nanoseconds, from 1 to 2 ** 58, which a problem refuses with a message."""
    return np.clip(np.nan_to_num(seconds * 1e9, nan=1e18), 1, 2.0**58).astype(np.int64)
