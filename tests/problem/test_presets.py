"""Presets: what the papers and data sheets say of the machines."""

import itertools

import pytest

from tvm_sched.cost_model.device_properties import properties
from tvm_sched_runtime.problem import (
    HOST,
    format_topology,
    load_topology,
    multiprocessors_of,
    parse_topology,
    preset_names,
)

ALL = [*preset_names(), "cpu1", "cpu2", "cpu7"]


def route(topology, source, target):
    return topology.route(topology.device_id[source], topology.device_id[target])


def ways(topology):
    return {tuple(sorted(link.devices)): link.ways for link in topology.links}


def share_bus(topology, a, b):
    loads = [topology.route(HOST, topology.device_id[name]) for name in (a, b)]
    return bool(set(loads[0].channels) & set(loads[1].channels))


def test_names():
    assert preset_names() == ("a100-mig7", "a40x2", "a6000-server", "h200x8", "p4d", "v100-hetero", "v100-server")


@pytest.mark.parametrize("name", ALL)
def test_all_presets(name):
    topology = load_topology(name)
    assert topology.name == name
    assert topology.source
    assert topology.host_memory > 0
    assert parse_topology(format_topology(topology)) == topology
    for a, b in itertools.permutations(range(len(topology.devices)), 2):
        assert topology.route(a, b) is not None


@pytest.mark.parametrize("name", ["v100-server", "v100-hetero"])
def test_v100(name):
    topology = load_topology(name)
    assert share_bus(topology, "gpu1", "gpu2")
    assert share_bus(topology, "gpu3", "gpu4")
    assert not any(share_bus(topology, a, b) for a in ("gpu1", "gpu2") for b in ("gpu3", "gpu4"))
    two = {("gpu1", "gpu4"), ("gpu2", "gpu3")}
    assert ways(topology) == {
        pair: 2 if pair in two else 1 for pair in itertools.combinations(["gpu1", "gpu2", "gpu3", "gpu4"], 2)
    }
    assert route(topology, "gpu1", "gpu4").bandwidth == 2 * route(topology, "gpu1", "gpu3").bandwidth


def test_v100_hetero_slows_two_devices():
    slow = {device.name: device.peak_flops["float32"] for device in load_topology("v100-hetero").devices}
    assert slow["gpu1"] == slow["gpu4"]
    assert slow["gpu2"] == slow["gpu3"]
    assert slow["gpu1"] / slow["gpu2"] == pytest.approx(1500 / 135, rel=0.01)


def test_a6000():
    topology = load_topology("a6000-server")
    assert ways(topology) == {("gpu2", "gpu3"): 4}
    over_pcie = route(topology, "gpu1", "gpu3")
    loads = topology.route(HOST, topology.device_id["gpu3"])
    assert set(loads.channels) < set(over_pcie.channels)
    assert over_pcie.bandwidth < route(topology, "gpu2", "gpu3").bandwidth


def test_p4d():
    topology = load_topology("p4d")
    shared = [pair for pair in itertools.combinations(topology.device_id, 2) if share_bus(topology, *pair)]
    assert shared == [("gpu0", "gpu1"), ("gpu2", "gpu3"), ("gpu4", "gpu5"), ("gpu6", "gpu7")]
    assert len(topology.buses) == 4
    assert not set(route(topology, "gpu0", "gpu1").channels) & set(route(topology, "gpu2", "gpu3").channels)


def test_slices_of_a_gpu():
    whole, slices = load_topology("p4d").devices[0], load_topology("a100-mig7")
    assert len(slices.devices) == 7
    assert all(share_bus(slices, "slice0", device.name) for device in slices.devices)
    up_and_down = route(slices, "slice0", "slice6")
    assert set(slices.route(HOST, 6).channels) < set(up_and_down.channels)
    assert up_and_down.bandwidth == slices.buses[0].bandwidth / 2
    for device in slices.devices:
        processor, count = multiprocessors_of(device)
        assert (processor, count) == (multiprocessors_of(whole)[0], 14)
        assert properties(device).processors == 14
        for dtype, rate in device.peak_flops.items():
            assert rate == pytest.approx(whole.peak_flops[dtype] * 14 / 108, rel=0.005), dtype
        assert device.memory == whole.memory / 8


def test_h200_and_a40():
    h200 = load_topology("h200x8")
    assert len(h200.devices) == len(h200.buses) == 8
    assert {device.memory for device in h200.devices} == {141_000_000_000}
    a40 = load_topology("a40x2")
    assert [device.memory_bandwidth for device in a40.devices] == [696e9, 696e9]
    assert ways(a40) == {("gpu0", "gpu1"): 4}


def test_cpu_devices_share_memory():
    one, two, many = (load_topology(f"cpu{count}") for count in (1, 2, 64))
    assert [device.name for device in two.devices] == ["cpu0", "cpu1"]
    assert all(device.shares_host_memory and device.kind == "cpu" for device in two.devices)
    assert two.route(HOST, 0) is None
    assert [two.channels[c] for c in route(two, "cpu0", "cpu1").channels] == ["memory: cpu0 out", "memory: cpu1 in"]
    assert sum(device.memory for device in two.devices) <= one.devices[0].memory
    assert not one.switches
    assert many.devices[0].peak_flops["float32"] <= one.devices[0].peak_flops["float32"]
