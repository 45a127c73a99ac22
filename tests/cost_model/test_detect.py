"""Topologies of recorded machines, and recordings of machines made of files and of a stub of NVML."""

import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from fake_cupy import HOST_RATE, PEER_RATE, FakeCupy
from tvm_sched.cost_model.copies import Bandwidths, PeerCopy
from tvm_sched.cost_model.detect import describe, detected, measure, to_topology
from tvm_sched.cost_model.recording import Gpu, Recording, record
from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.problem import HOST, parse_topology
from tvm_sched_runtime.problem.topology_file import format_topology

RECORDINGS = Path(__file__).parents[1] / "data" / "detect"


def read(name):
    return Recording.load(RECORDINGS / f"{name}.json")


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.json")))
def test_every_recording_makes_a_topology_that_can_be_written(name):
    machine = to_topology(read(name), "m")
    assert parse_topology(format_topology(machine)) == machine


def test_gpus_below_one_root_port_share_a_bus():
    machine = to_topology(read("dgx1_quad"))
    assert [device.bus for device in machine.devices] == ["pcie0", "pcie0", "pcie1", "pcie1"]
    assert machine.buses[0].bandwidth == pytest.approx(12.4e9, rel=0.01), "PCIe 3.0 x16, the part that copies get"
    assert machine.devices[0].arch == "sm_70"
    assert machine.devices[0].peak_flops["float16"] == 125e12
    speeds = {tuple(sorted(link.devices)): (link.bandwidth, link.ways) for link in machine.links}
    assert speeds["gpu0", "gpu3"] == (50e9, 2)
    assert speeds["gpu0", "gpu1"] == (25e9, 1)
    assert len(speeds) == 6


def test_nvswitch():
    machine = to_topology(read("hgx_h200"))
    assert len({device.bus for device in machine.devices}) == 8
    (switch,) = machine.switches
    assert len(switch.devices) == 8
    assert switch.bandwidth == 18 * 25e9
    assert machine.route(0, 7).bandwidth == 450e9
    assert machine.route(HOST, 0).bandwidth == pytest.approx(50e9, rel=0.01)


def test_a_chip_that_is_not_known_by_name():
    recording = read("workstation")
    gpus = tuple(msgspec.structs.replace(gpu, name="NVIDIA GeForce RTX 9999") for gpu in recording.gpus)
    found = detected(msgspec.structs.replace(recording, gpus=gpus))
    machine = found.topology
    assert any("not a known name" in warning for warning in found.warnings)
    assert machine.devices[0].peak_flops == {"float32": 2 * 10496 * 1695e6}
    assert machine.devices[0].memory_bandwidth == 2 * 9751e6 * 384 / 8
    assert not machine.links


def test_too_little_is_known():
    gpu = Gpu("PCI device 0x1234", "0000:01:00.0", ("0000:00:01.0", "0000:01:00.0"), 1 << 30, 4, 16)
    with pytest.raises(InputError, match="install nvidia-ml-py"):
        to_topology(Recording("cpu", (4,), 1 << 30, (gpu,)))


def test_a_pcie_link_that_is_not_known_has_few_lanes():
    gpu = Gpu("NVIDIA L4", "0000:01:00.0", ("0000:00:01.0", "0000:01:00.0"), 24 << 30, 0, 0)
    found = detected(Recording("cpu", (4,), 1 << 30, (gpu,)))
    assert found.topology.buses[0].bandwidth == 6.2e9, "PCIe 4.0 x4, the part that copies get"
    assert found.warnings == ["gpu0: its PCIe link is not known in full: 4 lanes of generation 4 are assumed"]
    assert "# gpu0: its PCIe link is not known" in format_topology(found.topology, found.comments)


def test_a_newer_recording_is_refused(tmp_path):
    text = (RECORDINGS / "hgx_h200.json").read_text().replace('"version": 1', '"version": 3')
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(FormatError, match="newer than this"):
        Recording.load(tmp_path / "r.json")


@pytest.fixture
def machine(tmp_path):
    """A file system of a machine with two NVIDIA GPUs below one root port, and a network card."""
    for node, cores in ((0, 4), (1, 4)):
        for core in range(cores):
            (tmp_path / f"sys/devices/system/node/node{node}/cpu{4 * node + core}").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name\t: Some CPU\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1024 kB\n")
    links = tmp_path / "sys/bus/pci/devices"
    links.mkdir(parents=True)
    for address, vendor in (("0000:01:00.0", "0x10de"), ("0000:02:00.0", "0x10de"), ("0000:03:00.0", "0x8086")):
        folder = tmp_path / "sys/devices/pci0000:00/0000:00:01.0" / address
        folder.mkdir(parents=True)
        for name, text in (
            ("vendor", vendor), ("class", "0x030200"), ("device", "0x20b5"), ("max_link_speed", "16.0 GT/s PCIe"),
            ("max_link_width", "16"), ("numa_node", "1"), ("resource", f"0x0 {0xFFFFFF:#x} 0x0\n0x0 0x0 0x0"),
        ):  # fmt: skip
            (folder / name).write_text(text + "\n")
        (links / address).symlink_to(folder)
    said = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    said.mkdir(parents=True)
    (said / "information").write_text("Model: \t\t NVIDIA A100 80GB PCIe\nIRQ: 1\n")
    return tmp_path


class NoDriver(Exception):
    """NVML's error."""


def refuse():
    raise NoDriver


def test_sysfs_without_nvml(machine):
    found = record(machine, nvml=SimpleNamespace(NVMLError=NoDriver, nvmlInit=refuse))
    assert (found.processor, found.numa_cores, found.memory, found.source) == ("Some CPU", (4, 4), 1024 * 1024, "sysfs")
    assert [gpu.name for gpu in found.gpus] == ["NVIDIA A100 80GB PCIe", "PCI device 0x20b5"]
    assert found.gpus[0].path == ("0000:00:01.0", "0000:01:00.0")
    assert (found.gpus[0].generation, found.gpus[0].width, found.gpus[0].numa) == (4, 16, 1)
    assert found.gpus[0].memory == 0x1000000
    assert "NVML is not there" in found.gpus[0].unanswered[0]


def test_nvml(machine):
    def link_state(gpu, n):
        if n > 3:
            raise NoDriver
        return 1

    nvml = SimpleNamespace(
        NVMLError=NoDriver, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda n: n, nvmlDeviceGetName=lambda g: "NVIDIA A100-SXM4-80GB",
        nvmlDeviceGetPciInfo=lambda g: SimpleNamespace(busId=f"00000000:0{g + 1}:00.0"),
        nvmlDeviceGetMemoryInfo=lambda g: SimpleNamespace(total=80 << 30),
        nvmlDeviceGetMaxPcieLinkGeneration=lambda g: 4, nvmlDeviceGetMaxPcieLinkWidth=lambda g: 16,
        nvmlDeviceGetCudaComputeCapability=lambda g: (8, 0), nvmlDeviceGetNvLinkState=link_state,
        nvmlDeviceGetNvLinkVersion=lambda g, n: 3, nvmlDeviceGetNvLinkRemoteDeviceType=lambda g, n: 0,
        nvmlDeviceGetNvLinkRemotePciInfo=lambda g, n: SimpleNamespace(busId=f"00000000:0{2 - g}:00.0"),
    )  # fmt: skip
    found = record(machine, nvml)
    assert found.source == "NVML and sysfs"
    topology = to_topology(found)
    assert [link.bandwidth for link in topology.links] == [4 * 25e9], "both ends tell of the same four links"
    assert len(topology.buses) == 1, "one root port"
    assert topology.devices[0].memory == 80 << 30


def test_without_gpus_each_numa_node_is_a_device():
    assert len(to_topology(Recording("cpu", (4, 4), 1 << 30)).devices) == 2


def addresses(recording):
    return [gpu.address for gpu in recording.gpus]


@pytest.fixture
def four_gpus(monkeypatch):
    """The recording of four GPUs, two below each of two root ports, which cupy numbers in another order."""
    recording = read("dgx1_quad")

    def measured(buses, **machine):
        order = [3, 1, 2, 0]
        where = [f"0000{address}".upper() for address in (addresses(recording)[n] for n in order)]
        monkeypatch.setitem(
            sys.modules, "cupy", FakeCupy(where, [{order.index(n) for n in bus} for bus in buses], **machine)
        )
        return measure(recording)

    return measured


def test_gpus_that_share_a_bus_have_its_bandwidth_together(four_gpus):
    found = four_gpus([{0, 1}, {2, 3}])
    assert found.bandwidths.from_host == {address: pytest.approx(HOST_RATE) for address in addresses(found)}
    assert found.bandwidths.at_once == {address: pytest.approx(HOST_RATE / 2) for address in addresses(found)}
    machine, comments = describe(found)
    assert [device.bus for device in machine.devices] == ["pcie0", "pcie0", "pcie1", "pcie1"]
    assert [bus.bandwidth for bus in machine.buses] == [HOST_RATE, HOST_RATE]
    assert {link.bandwidth for link in machine.links} == {PEER_RATE}
    assert "bandwidths of copies measured" in machine.source
    assert comments["pcie0"] == "measured: 10, 10 GB/s from pinned host memory, each alone; 5, 5 GB/s at once"
    assert comments["gpu0-gpu3"] == "measured: 40, 40 GB/s at least and at most"


def test_gpus_that_share_no_bus_have_one_each(four_gpus):
    machine, _ = describe(four_gpus([{2, 3}]))
    assert [device.bus for device in machine.devices] == ["pcie0", "pcie1", "pcie2", "pcie2"]
    assert [bus.bandwidth for bus in machine.buses] == [HOST_RATE] * 3


def test_a_link_over_which_copies_do_not_go_keeps_its_specification(four_gpus):
    found = four_gpus([{0, 1}, {2, 3}], apart={(3, 1)})  # cupy's numbers of gpu0 and gpu1
    machine, comments = describe(found)
    speeds = {link.devices: link.bandwidth for link in machine.links}
    assert speeds["gpu0", "gpu1"] == 25e9
    assert comments["gpu0-gpu1"] == "from the specification"
    assert machine.peer_access, "the two have a link"


def test_copies_over_buses_need_peer_access():
    gpus = tuple(msgspec.structs.replace(gpu, links=()) for gpu in read("dgx1_quad").gpus[:2])
    a, b = (gpu.address for gpu in gpus)

    def peer_access(rate):
        rates = Bandwidths({a: 1e10, b: 1e10}, {a: 5e9, b: 5e9}, (PeerCopy(a, b, 1e10), PeerCopy(b, a, rate)))
        return to_topology(Recording("cpu", (4,), 1 << 30, gpus, bandwidths=rates)).peer_access

    assert peer_access(9e9)
    assert not peer_access(0.0)


def test_a_switch_is_as_fast_as_its_slowest_pair():
    recording = read("hgx_h200")
    pairs = [(a, b) for a in addresses(recording) for b in addresses(recording) if a != b]
    rates = tuple(PeerCopy(a, b, (400 + n) * 1e9) for n, (a, b) in enumerate(pairs))
    machine, comments = describe(msgspec.structs.replace(recording, bandwidths=Bandwidths(peers=rates)))
    assert machine.switches[0].bandwidth == 400e9
    assert comments["nvswitch"] == "measured: 400, 455 GB/s at least and at most"
    assert comments["pcie0"] == "from the specification", "copies from the host were not measured"


def test_the_file_says_what_was_measured_and_reads_back(four_gpus, tmp_path):
    found = four_gpus([{0, 1}])
    found.save(tmp_path / "r.json")
    assert Recording.load(tmp_path / "r.json") == found
    machine, comments = describe(found)
    text = format_topology(machine, comments)
    assert "# pcie0: measured: 10, 10 GB/s from pinned host memory" in text
    assert parse_topology(text) == machine
    assert "# pcie0: from the specification" in format_topology(*describe(read("dgx1_quad")))


def test_what_cannot_be_measured(four_gpus, monkeypatch):
    with pytest.raises(InputError, match="no GPU to measure on"):
        measure(Recording("cpu", (4,), 1 << 30))
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(["0000:ff:00.0"]))
    with pytest.raises(InputError, match="cupy sees none of"):
        measure(read("dgx1_quad"))
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InputError, match="needs cupy"):
        measure(read("dgx1_quad"))
    with pytest.raises(InputError, match="finite number above 0"):
        Bandwidths({"0000:06:00.0": 0.0})


def test_a_gpu_whose_memory_is_in_use(monkeypatch):
    recording = read("dgx1_quad")
    fake = FakeCupy(addresses(recording))

    def full(size):
        raise MemoryError("out of memory")

    fake.cuda.alloc = full
    monkeypatch.setitem(sys.modules, "cupy", fake)
    with pytest.raises(InputError, match="cannot be measured"):
        measure(recording)
