"""Variants of a machine: their parts by count, and what routes carry."""

import pytest

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import HOST, load_topology
from tvm_sched_runtime.problem.topology_changes import with_bandwidth, with_devices, with_disk, with_link


def test_fewer_devices_are_the_first_ones_with_their_buses_and_links():
    machine = with_devices(load_topology("v100-server"), 3)
    assert [device.name for device in machine.devices] == ["gpu1", "gpu2", "gpu3"]
    assert [bus.name for bus in machine.buses] == ["pcie0", "pcie1"]
    assert sorted(link.devices for link in machine.links) == [("gpu1", "gpu2"), ("gpu1", "gpu3"), ("gpu2", "gpu3")]
    alone = with_devices(load_topology("v100-server"), 1)
    assert (len(alone.buses), alone.links) == (1, ())


def test_more_devices_are_copies_with_buses_and_links_of_their_own():
    base = load_topology("v100-server")
    machine = with_devices(base, 6)
    assert [device.name for device in machine.devices[4:]] == ["gpu1.2", "gpu2.2"]
    assert [device.bus for device in machine.devices[4:]] == ["pcie0.2", "pcie0.2"]
    assert [bus.name for bus in machine.buses] == ["pcie0", "pcie1", "pcie0.2"]
    assert ("gpu1.2", "gpu2.2") in [link.devices for link in machine.links]
    between = machine.route(0, 4)
    assert {machine.channels[c] for c in between.channels} == {"pcie0 up", "pcie0.2 down"}
    for source in (HOST, *range(4)):
        for target in range(4):
            own, before = machine.route(source, target), base.route(source, target)
            assert (own and own.bandwidth) == (before and before.bandwidth)


def test_a_switch_joins_the_copies():
    base = load_topology("p4d")
    machine = with_devices(base, 16)
    (switch,) = machine.switches
    assert len(switch.devices) == 16
    assert with_devices(base, 1).switches == ()


@pytest.mark.parametrize(("kind", "lanes"), [("pcie3", 15.76e9), ("pcie4", 31.5e9), ("pcie5", 63e9)])
def test_pcie_sets_the_buses_and_leaves_no_links(kind, lanes):
    machine = with_link(load_topology("v100-server"), kind)
    assert {bus.bandwidth for bus in machine.buses} == {lanes * 0.79}
    assert (machine.links, machine.switches) == ((), ())


def test_nvlink_joins_all_devices_and_leaves_the_buses():
    base = load_topology("v100-server")
    machine = with_link(base, "nvlink2")
    assert machine.buses == base.buses
    assert machine.route(0, 2).bandwidth == 150e9 * 0.96
    assert with_link(base, "nvlink") == with_link(base, "nvlink3")


def test_bandwidths_are_scaled_and_latencies_stay():
    base = load_topology("v100-server")
    machine = with_bandwidth(base, 2)
    assert machine.route(HOST, 0).bandwidth == 2 * base.route(HOST, 0).bandwidth
    assert machine.route(0, 1).bandwidth == 2 * base.route(0, 1).bandwidth
    assert machine.route(HOST, 0).latency == base.route(HOST, 0).latency


def test_wrong_changes_are_refused():
    base = load_topology("v100-server")
    with pytest.raises(InputError, match="from 1"):
        with_devices(base, 0)
    with pytest.raises(InputError, match="pcie3, pcie4"):
        with_link(base, "token-ring")


def test_a_disk_before_host_memory():
    base = load_topology("v100-server")
    cold = with_disk(with_devices(base, 2), "3.5GB/s")
    assert (cold.storage.name, cold.storage.bandwidth) == ("disk", 3.5e9)
    assert cold.route(HOST, 1).bandwidth == 3.5e9, "the disk is slower than the bus"
    assert with_disk(cold, "100 GB/s").route(HOST, 1).bandwidth == base.route(HOST, 1).bandwidth, "the bus is slower"
    assert with_disk(cold, "none") == with_devices(base, 2)
