"""What NVML does not answer, and what limits a process, is said and taken cautiously; a fake of NVML answers or refuses."""

import re
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.cost_model.detect import detected
from tvm_sched.cost_model.gpu_specifications import SPECIFICATIONS, specification_of
from tvm_sched.cost_model.recording import Gpu, NvLink, Pair, Recording, record
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import HOST, format_topology, parse_topology

GIB = 1 << 30


class NVMLError(Exception):
    """NVML's error."""


class NVMLError_NotSupported(NVMLError):  # noqa: N801 - NVML's name
    pass


class NVMLError_GpuIsLost(NVMLError):  # noqa: N801
    pass


class NVMLError_Unknown(NVMLError):  # noqa: N801
    pass


class NVMLError_NoPermission(NVMLError):  # noqa: N801
    pass


ERRORS = (NVMLError_NotSupported, NVMLError_GpuIsLost, NVMLError_Unknown, NVMLError_NoPermission)

CARD = {
    "Name": "NVIDIA GeForce RTX 3090", "UUID": "GPU-", "CudaComputeCapability": (8, 6), "NumGpuCores": 10496,
    "MaxPcieLinkGeneration": 4, "MaxPcieLinkWidth": 16, "CurrPcieLinkGeneration": 1, "CurrPcieLinkWidth": 16,
    "MemoryBusWidth": 384, "MigMode": [0, 0], "MaxMigDeviceCount": 7,
}  # fmt: skip


class Nvml:
    """An NVML of made-up GPUs; ``refused`` maps a question and a GPU's number to the error that answers it."""

    NVMLError = NVMLError
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90

    def __init__(self, *gpus, refused=None, peer=0, level=30):
        self.gpus = [
            {**CARD, "UUID": f"GPU-{n}", "memory": 24 * GIB, "free": 24 * GIB, **gpu} for n, gpu in enumerate(gpus)
        ]
        self.refused, self.peer, self.level = refused or {}, peer, level

    def __getattr__(self, question):
        if not question.startswith("nvml"):
            raise AttributeError(question)

        def answer(gpu=None, *more):
            number = gpu if isinstance(gpu, int) else 0
            if (question, number) in self.refused:
                raise self.refused[question, number]("refused")
            return self.answer(question.removeprefix("nvml").removeprefix("DeviceGet"), gpu, *more)

        return answer

    def answer(self, question, gpu, *more):
        if question in ("Init", "Shutdown"):
            return None
        if question == "Count":
            return len(self.gpus)
        if question == "HandleByIndex":
            return gpu
        if isinstance(gpu, tuple):  # a MIG instance
            parent, n = gpu
            instance = self.gpus[parent]["instances"][n]
            if question == "MemoryInfo":
                return SimpleNamespace(total=instance[1], free=instance[1])
            return {"Name": instance[0], "UUID": f"MIG-{n}"}[question]
        card = self.gpus[gpu]
        if question == "PciInfo":
            return SimpleNamespace(busId=f"00000000:{gpu + 1:02x}:00.0")
        if question == "MemoryInfo":
            return SimpleNamespace(total=card["memory"], free=card["free"])
        if question == "MaxClockInfo":
            return {1: 1695, 2: 9751}[more[0]]
        if question == "P2PStatus":
            return self.peer
        if question == "TopologyCommonAncestor":
            return self.level
        if question == "MigDeviceHandleByIndex":
            if more[0] >= len(card.get("instances", ())):
                raise NVMLError_NotSupported("no such instance")
            return gpu, more[0]
        if question.startswith("NvLink"):
            links = card.get("links", ())
            if more[0] >= len(links):
                raise NVMLError_NotSupported("no such link")
            to = links[more[0]]
            return {
                "NvLinkState": 1, "NvLinkVersion": 4, "NvLinkRemoteDeviceType": 2 if to == "switch" else 0,
                "NvLinkRemotePciInfo": SimpleNamespace(busId=f"00000000:{to + 1:02x}:00.0" if to != "switch" else "x:y"),
            }[question]  # fmt: skip
        if question == "FieldValues":
            told = card.get("speed")
            return [SimpleNamespace(nvmlReturn=0 if told else 3, value=SimpleNamespace(uiVal=told or 0))]
        if card[question] is None:
            raise NVMLError_NotSupported("Not Supported")
        return card[question]


@pytest.fixture
def machine(tmp_path):
    """The files of a machine with 64 GiB and two nodes of 4 cores, without PCI devices."""
    for core in range(8):
        (tmp_path / f"sys/devices/system/node/node{core // 4}/cpu{core}").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       67108864 kB\n")
    return tmp_path


def found(machine, nvml, **environment):
    """The topology of what is recorded, which its file describes as well."""
    result = detected(record(machine, nvml, environment), "m")
    assert parse_topology(format_topology(result.topology, result.comments)) == result.topology
    return result


def bandwidths(result):
    return [result.topology.route(HOST, d).bandwidth for d in range(len(result.topology.devices))]


def test_nothing_is_said_where_all_is_known(machine):
    result = found(machine, Nvml({}, {}))
    assert result.warnings == []
    assert result.topology.peer_access
    assert bandwidths(result) == [24.9e9, 24.9e9]
    assert [device.free_memory for device in result.topology.devices] == [24 * GIB] * 2


def test_lanes_in_use_count(machine):
    result = found(machine, Nvml({}, {"CurrPcieLinkWidth": 4, "MaxPcieLinkGeneration": 3}))
    assert bandwidths(result) == [24.9e9, 3.1e9], "0.985 GB/s a lane, of which copies get 79 %"
    assert result.warnings == ["gpu1: 4 of its 16 PCIe lanes are in use, which limits copies from the host"]


def test_the_slowest_link_of_the_path_counts(machine):
    place = machine / "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    place.mkdir(parents=True)
    for folder, width in ((place, "16"), (place.parent, "8")):
        (folder / "current_link_width").write_text(f"{width}\n")
        (folder / "max_link_speed").write_text("8.0 GT/s PCIe\n")
        link = machine / "sys/bus/pci/devices" / folder.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
    assert bandwidths(found(machine, Nvml({}))) == [6.2e9], "8 lanes of generation 3 at the root port"


@pytest.mark.parametrize(
    ("nvml", "said"),
    [(Nvml({}, {}, peer=5), r"gpu0-gpu1 have no peer access \(not supported\)"),
     (Nvml({}, {}, level=50), "gpu0-gpu1 are on different NUMA nodes"),
     (Nvml({}, {}, refused={("nvmlDeviceGetP2PStatus", 1): NVMLError_Unknown}), "gpu0-gpu1 may have peer access or not")],
)  # fmt: skip
def test_peers_are_those_that_nvml_says_are(machine, nvml, said):
    result = found(machine, nvml)
    assert not result.topology.peer_access
    (warning,) = result.warnings
    assert warning.startswith("copies between GPUs go through host memory (peer_access = false)")
    assert re.search(said, warning)


def test_gpus_whose_ports_are_not_known_share_a_bus(machine):
    result = found(machine, Nvml({}, {}, refused={("nvmlDeviceGetTopologyCommonAncestor", 0): NVMLError_Unknown}))
    assert [device.bus for device in result.topology.devices] == ["pcie0", "pcie0"]
    assert any("share a PCIe bus is not known" in warning for warning in result.warnings)
    assert len(found(machine, Nvml({}, {}, level=10)).topology.buses) == 1, "below one switch"


@pytest.mark.parametrize(
    ("capability", "name", "told", "rate"),
    [((8, 6), "NVIDIA RTX A6000", None, 14.0625e9), ((8, 0), "NVIDIA A100-SXM4-80GB", None, 25e9),
     ((10, 0), "NVIDIA B200", None, 50e9), ((9, 0), "NVIDIA H100 80GB HBM3", 20000, 20e9),
     ((11, 0), "NVIDIA Next", None, 14.0625e9), ((11, 0), "NVIDIA Next", 100000, 100e9)],
)  # fmt: skip
def test_nvlinks_have_the_rate_of_their_gpu(machine, capability, name, told, rate):
    card = {"CudaComputeCapability": capability, "Name": name, "speed": told}
    result = found(machine, Nvml({**card, "links": (1, 1)}, {**card, "links": (0, 0)}))
    (link,) = result.topology.links
    assert (link.bandwidth, link.ways) == (2 * rate, 2)
    assert any("rate of its NVLinks" in warning for warning in result.warnings) == (name == "NVIDIA Next" and not told)


def test_of_two_reports_of_a_link_the_lower_counts(machine):
    result = found(machine, Nvml({"links": (1, 1, 1, 1)}, {"links": (0, 0)}))
    assert [(link.ways, link.bandwidth) for link in result.topology.links] == [(2, 2 * 14.0625e9)]


def test_links_without_peer_access_are_none(machine):
    result = found(machine, Nvml({"links": (1,)}, {"links": (0,)}, peer=4))
    assert not result.topology.links
    assert not result.topology.peer_access
    assert any("disabled by the driver's settings" in warning for warning in result.warnings)
    switched = found(machine, Nvml({"links": ("switch",)}, {"links": ("switch",)}, peer=5))
    assert not switched.topology.switches
    assert found(machine, Nvml({"links": ("switch",)}, {"links": ("switch",)})).topology.switches


def test_a_lost_gpu_is_left_out(machine):
    for question in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"):
        result = found(machine, Nvml({}, {}, {}, refused={(question, 1): NVMLError_GpuIsLost}))
        assert [device.number for device in result.topology.devices] == [0, 2]
        assert "GPU 1 does not answer (refused); it is left out" in result.warnings
    with pytest.raises(InputError, match="no GPU can be used: GPU 0 does not answer"):
        found(machine, Nvml({}, refused={("nvmlDeviceGetHandleByIndex", 0): NVMLError_GpuIsLost}))


def test_a_gpu_that_shares_the_hosts_memory(machine):
    card = dict.fromkeys(("MaxPcieLinkGeneration", "MaxPcieLinkWidth", "CurrPcieLinkWidth", "MemoryBusWidth"))
    gb10 = {**card, "Name": "NVIDIA GB10", "CudaComputeCapability": (12, 1)}
    result = found(machine, Nvml(gb10, refused={("nvmlDeviceGetMemoryInfo", 0): NVMLError_NotSupported}))
    (device,) = result.topology.devices
    assert device.memory == 48 * GIB, "three quarters of 64 GiB"
    assert device.memory_bandwidth == 273e9
    assert any("memory (refused)" in warning for warning in result.warnings)
    assert any("it uses the host's memory, of which 48 GiB" in warning for warning in result.warnings)


def test_memory_that_is_not_known_is_that_of_the_data_sheet(machine):
    result = found(machine, Nvml({}, refused={("nvmlDeviceGetMemoryInfo", 0): NVMLError_NoPermission}))
    assert result.topology.devices[0].memory == 24_000_000_000
    assert "gpu0: its memory is not known: 22.4 GiB are assumed" in result.warnings


def test_mig_instances_are_devices(machine):
    card = {"Name": "NVIDIA A100-SXM4-80GB", "memory": 80 * GIB, "free": 80 * GIB, "MigMode": [1, 1]}
    names = ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40 * GIB), ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 10 * GIB)
    result = found(machine, Nvml({**card, "instances": names}))
    large, small = result.topology.devices
    assert (large.memory, small.memory) == (40 * GIB, 10 * GIB)
    assert small.peak_flops["float16"] == pytest.approx(312e12 / 7)
    assert small.memory_bandwidth == pytest.approx(large.memory_bandwidth / 4)
    assert large.bus == small.bus
    assert not result.topology.peer_access
    assert any("MIG instances, of which a process uses one" in warning for warning in result.warnings)
    with pytest.raises(InputError, match=r"GPU 0 .* has MIG on, and no instance of it is known"):
        found(machine, Nvml(card))
    assert [gpu.name for gpu in record(machine, Nvml(card, {})).gpus] == ["NVIDIA GeForce RTX 3090"]


@pytest.mark.parametrize(
    ("listed", "numbers"), [("2,0", [2, 0]), ("GPU-1", [1]), ("1,7,0", [1]), ("0", [0]), ("0,0,1", [0]), ("2", [2])]
)
def test_visible_devices_are_the_gpus_in_their_order(machine, listed, numbers):
    cards = [{"memory": (8 + 8 * n) * GIB, "free": (8 + 8 * n) * GIB} for n in range(3)]
    result = found(machine, Nvml(*cards), CUDA_VISIBLE_DEVICES=listed)
    assert [device.memory for device in result.topology.devices] == [(8 + 8 * n) * GIB for n in numbers]
    told = [device.number for device in result.topology.devices]
    assert told == (numbers if numbers != [0] else [msgspec.UNSET]), "only where positions are other numbers"
    assert f"CUDA_VISIBLE_DEVICES={listed} leaves {len(numbers)} of 3 GPUs" in result.warnings
    order = any("CUDA counts its fastest GPU first" in warning for warning in result.warnings)
    assert order == listed[0].isdigit()
    ordered = found(machine, Nvml(*cards), CUDA_VISIBLE_DEVICES=listed, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert len(ordered.warnings) == 1


@pytest.mark.parametrize("listed", ["", "-1", "NoDevFiles"])
def test_without_visible_devices_the_processor_is_described(machine, listed):
    result = found(machine, Nvml({}), CUDA_VISIBLE_DEVICES=listed)
    assert [device.kind for device in result.topology.devices] == ["cpu", "cpu"]
    assert any("leaves 0 of 1 GPUs" in warning for warning in result.warnings)


def test_links_to_gpus_that_are_not_visible_are_none(machine):
    result = found(machine, Nvml({"links": (1,)}, {"links": (0,)}), CUDA_VISIBLE_DEVICES="1")
    assert len(result.warnings) == 1
    assert not result.topology.links


def test_memory_in_use_is_said(machine):
    result = found(machine, Nvml({}, {"free": 4 * GIB + 5}))
    assert [device.free_memory for device in result.topology.devices] == [24 * GIB, 4 * GIB]
    assert result.warnings == ["gpu1: 20 GiB of its 24 GiB are in use; `plan --free` plans with the rest"]


def test_the_limits_of_a_container(machine):
    (machine / "proc/self/status").write_text("Name:\tpython\nCpus_allowed_list:\t0-2,5\n")
    assert record(machine, Nvml()).numa_cores == (3, 1)
    group = machine / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{8 * GIB}\n")
    (group / "cpu.max").write_text("200000 100000\n")
    recorded = record(machine, Nvml())
    assert (recorded.memory, recorded.numa_cores) == (8 * GIB, (2,))
    result = detected(recorded)
    assert [device.memory for device in result.topology.devices] == [8 * GIB]
    assert result.warnings == [
        "the container may use 8 GiB of 64 GiB of host memory", "the container's CPU quota is 2 of 4 cores"
    ]  # fmt: skip
    (group / "memory.max").write_text("max\n")
    (group / "memory").mkdir()
    (group / "memory/memory.limit_in_bytes").write_text(f"{4 * GIB}\n")
    assert record(machine, Nvml()).memory == 4 * GIB, "the first version of control groups"


QUESTIONS = [
    f"nvml{name}"
    for name in ("Init", "Shutdown", "DeviceGetCount", "DeviceGetHandleByIndex", "DeviceGetPciInfo", "DeviceGetMemoryInfo",
                 "DeviceGetMaxClockInfo", "DeviceGetP2PStatus", "DeviceGetTopologyCommonAncestor", "DeviceGetNvLinkState",
                 "DeviceGetNvLinkVersion", "DeviceGetNvLinkRemoteDeviceType", "DeviceGetNvLinkRemotePciInfo",
                 "DeviceGetFieldValues", "DeviceGetMigDeviceHandleByIndex", *(f"DeviceGet{each}" for each in CARD))
]  # fmt: skip
ANY_REFUSED = st.dictionaries(
    st.tuples(st.sampled_from(QUESTIONS), st.integers(0, 2)), st.sampled_from(ERRORS), max_size=12
)
CARDS = (
    {"links": (1, 1)},
    {"links": (0, 0), "Name": "NVIDIA A100-SXM4-80GB", "MigMode": [1, 1], "instances": (("MIG 1g.10gb", 10 * GIB),)},
    {"links": ("switch",), "Name": "NVIDIA H100 80GB HBM3"},
    {"Name": "NVIDIA Next", "CudaComputeCapability": (13, 0)},
)


@given(st.lists(st.sampled_from(CARDS), min_size=1, max_size=3), ANY_REFUSED)
@settings(max_examples=examples(200), deadline=None)
def test_any_question_may_be_refused(tmp_path_factory, cards, refused):
    root = tmp_path_factory.getbasetemp() / "empty"
    nvml = Nvml(*cards, refused=refused)
    recorded = record(root, nvml, {})
    again = msgspec.json.decode(msgspec.json.encode(recorded), type=Recording)
    assert again == recorded
    try:
        result = detected(recorded)
    except InputError:
        return
    machine = result.topology
    assert parse_topology(format_topology(machine, result.comments)) == machine
    # More answers never make the machine slower or smaller than fewer ones, if the same GPUs are there.
    if recorded.gpus and len(recorded.gpus) == len(cards):
        full = detected(record(root, Nvml(*cards), {}))
        if [gpu.address for gpu in full.recording.gpus] == [gpu.address for gpu in recorded.gpus]:
            assert machine.peer_access <= full.topology.peer_access
            assert len(machine.links) <= len(full.topology.links)
            assert all(a <= b for a, b in zip(bandwidths(result), bandwidths(full), strict=True))


@pytest.mark.parametrize(
    ("name", "known"),
    [("NVIDIA A100-SXM4-40GB", "A100 40GB"), ("NVIDIA A100 80GB PCIe", "A100"), ("NVIDIA H100 PCIe", "H100"),
     ("NVIDIA H100 80GB HBM3", "H100 HBM3"), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
     ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 ADA"), ("Quadro RTX 6000", "QUADRO RTX 6000"), ("A6000", "RTX A6000"),
     ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 TI SUPER"), ("NVIDIA TITAN RTX", "TITAN RTX"),
     ("NVIDIA GeForce RTX 3060 Laptop GPU", None), ("NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 SFF ADA"),
     ("", None)],
)  # fmt: skip
def test_specifications_by_product_name(name, known):
    found = specification_of(name)
    assert (found.name if found else None) == known


def test_a_slower_card_of_a_chip_has_lower_rates():
    pcie, module = specification_of("NVIDIA H100 PCIe"), specification_of("NVIDIA H100 80GB HBM3")
    assert set(pcie.rates) == set(module.rates)
    assert all(pcie.rates[dtype] < module.rates[dtype] for dtype in pcie.rates)
    assert len({known.name for known in SPECIFICATIONS}) == len(SPECIFICATIONS)


def test_a_recording_keeps_pairs_and_limits():
    gpus = tuple(Gpu("NVIDIA L4", f"0000:0{n}:00.0", (f"0000:0{n}:00.0",), 1, 4, 8, number=n) for n in (1, 2))
    linked = msgspec.structs.replace(gpus[0], links=(NvLink("0000:09:00.0", 4, 2),))
    pair = Pair(gpus[0].address, gpus[1].address, "PHB", "OK")
    result = detected(Recording("cpu", (4,), 1 << 30, (linked, gpus[1]), pairs=(pair,), notes=("a note",)))
    assert result.topology.peer_access
    assert "a note" in result.comments[""]
    assert "gpu0: 2 of its NVLinks lead to no GPU of the topology (0000:09:00.0)" in result.warnings
