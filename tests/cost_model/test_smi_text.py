"""Machines described by what nvidia-smi prints, in the forms of several drivers."""

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.cost_model.detect import detected
from tvm_sched.cost_model.smi_text import read_smi
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import format_topology, parse_topology

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""
TWO = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
TWO += "GPU0\t X \t{0}\t0-31\t0\t\tN/A\nGPU1\t{0}\t X \t0-31\t{1}\t\tN/A\n"
PEERS = " \tGPU0\tGPU1\t\n GPU0\tX\t{0}\t\n GPU1\t{0}\tX\t\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"


def names(count, name):
    return "".join(f"GPU {n}: {name} (UUID: GPU-{n})\n" for n in range(count))


def found(*texts):
    result = detected(read_smi(texts))
    assert parse_topology(format_topology(result.topology, result.comments)) == result.topology
    return result


def board(count, links, nics=True):
    """`topo -m` of a board with NVSwitch, whose rows and columns are underlined by a terminal."""
    columns = [*(f"GPU{n}" for n in range(count)), *(f"NIC{n}" for n in range(count) if nics)]
    lines = ["\t" + "\t".join(f"\x1b[4m{column}" for column in columns) + "\tCPU Affinity\tNUMA Affinity\x1b[0m"]
    for n in range(count):
        cells = [" X " if m == n else f"NV{links}" for m in range(count)]
        cells += ["PIX" if m == n else "NODE" if m // 4 == n // 4 else "SYS" for m in range(count) if nics]
        lines.append("\t".join([f"GPU{n}", *cells, f"{48 * (n // 4)}-{48 * (n // 4) + 47}", str(n // 4)]))
    lines += ["\t".join([f"NIC{n}", *["SYS"] * len(columns)]) for n in range(count) if nics]
    return "\n".join(lines) + LEGEND


def test_two_cards_without_peer_access():
    result = found(TWO.format("PHB", 0) + LEGEND, PEERS.format("GNS"), names(2, "NVIDIA GeForce RTX 5090"))
    assert not result.topology.peer_access
    assert [device.bus for device in result.topology.devices] == ["pcie0", "pcie1"]
    assert result.topology.devices[0].memory == 32_000_000_000
    assert any("have no peer access (the GPU does not support it)" in warning for warning in result.warnings)
    assert any("PCIe link is not known" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("level", "numa", "state", "peer", "buses"),
    [("PHB", 0, "OK", True, 2), ("NODE", 0, "OK", True, 2), ("SYS", 1, "OK", False, 2), ("PIX", 0, "OK", True, 1),
     ("PXB", 0, "OK", True, 1), ("SOC", 1, "OK", False, 2), ("PHB", 0, "U", False, 2), ("PHB", 0, "CNS", False, 2),
     ("PHB", 0, "NS", False, 2), ("PHB", 0, "TNS", False, 2), ("PHB", 0, "DR", False, 2)],
)  # fmt: skip
def test_levels_and_states(level, numa, state, peer, buses):
    result = found(TWO.format(level, numa) + PEERS.format(state) + names(2, "NVIDIA L4"))
    assert (result.topology.peer_access, len(result.topology.buses)) == (peer, buses)
    if state == "OK":
        assert not found(TWO.format(level, numa), names(2, "NVIDIA L4")).topology.peer_access, "nothing tells"


@pytest.mark.parametrize(
    ("name", "links", "rate"),
    [("NVIDIA H100 80GB HBM3", 18, 25e9), ("NVIDIA A100-SXM4-80GB", 12, 25e9), ("NVIDIA B200", 18, 50e9),
     ("NVIDIA H800", 8, 25e9)],
)  # fmt: skip
def test_a_board_with_a_switch(name, links, rate):
    result = found(board(8, links), names(8, name))
    (switch,) = result.topology.switches
    assert (len(switch.devices), switch.bandwidth) == (8, links * rate)
    assert len({device.bus for device in result.topology.devices}) == 8, "their NICs tell that they share no switch"
    assert len(found(board(8, links, nics=False), names(8, name)).topology.switches) == 1


def test_bridges_join_pairs():
    result = found(TWO.format("NV4", 0), PEERS.format("OK"), names(2, "NVIDIA RTX A6000"))
    (link,) = result.topology.links
    assert (link.devices, link.ways, link.bandwidth) == (("gpu0", "gpu1"), 4, 4 * 14.0625e9)
    assert not found(TWO.format("NV4", 0), PEERS.format("NS"), names(2, "NVIDIA RTX A6000")).topology.links


TABLE = """
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.82.09              Driver Version: 580.82.09      CUDA Version: 13.0     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA GeForce RTX 3090        On  |   00000000:01:00.0 Off |                  N/A |
| 30%   35C    P8             20W /  350W |       4MiB /  24576MiB |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA GeForce RTX 3060        Off |   00000000:41:00.0 Off |                  N/A |
| 30%   35C    P8             20W /  170W |    8192MiB /  12288MiB |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|    0   N/A  N/A            1234      G   /usr/lib/xorg/Xorg                        4MiB |
+-----------------------------------------------------------------------------------------+
"""


def test_the_table():
    result = found(TABLE)
    assert [device.memory >> 20 for device in result.topology.devices] == [24576, 12288]
    assert [device.free_memory >> 20 for device in result.topology.devices] == [24320, 4096]
    assert [gpu.address for gpu in result.recording.gpus] == ["0000:01:00.0", "0000:41:00.0"]
    assert any("gpu1: 8 GiB of its 12 GiB are in use" in warning for warning in result.warnings)


def test_csv():
    text = (
        "index, name, memory.total [MiB], memory.free [MiB], pcie.link.gen.max, pcie.link.width.current, "
        "pcie.link.width.max\n"
        "0, NVIDIA GeForce RTX 3090, 24576 MiB, 20000 MiB, 3, 4, 16\n"
        "1, NVIDIA GeForce RTX 3090, 24576 MiB, 24000 MiB, [N/A], 16, 16\n"
    )
    result = found(text, TWO.format("PHB", 0))
    assert [bus.bandwidth for bus in result.topology.buses] == [3.1e9, 24.9e9]
    assert "gpu0: 4 of its 16 PCIe lanes are in use, which limits copies from the host" in result.warnings


def test_mig_instances():
    text = (
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-a)\n"
        "  MIG 3g.40gb     Device  0: (UUID: MIG-a)\n  MIG 1g.10gb     Device  1: (UUID: MIG-b)\n"
    )
    result = found(text)
    assert [device.memory for device in result.topology.devices] == [40_000_000_000, 10_000_000_000]
    assert not result.topology.peer_access
    enabled = TABLE.replace("GeForce RTX 3090", "A100-SXM4-80GB  ").replace("N/A |\n+", "Enabled |\n+")
    with pytest.raises(InputError, match="has MIG on, and the text lists no instance"):
        found(re.sub(r" +Enabled \|", "              Enabled |", enabled).replace("GeForce RTX 3060", "A100-SXM4-80GB"))


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no GPU is found in the text"), ("hello GPU", "no GPU is found"),
     (TWO.format("PHB", 0), r"no name of GPU 0, 1; give that of `nvidia-smi -L` as well: known are A10, "),
     (names(1, "NVIDIA Next"), "GPU 0 is 'NVIDIA Next', which is not known; known are A10"),
     (names(1, "NVIDIA GeForce ..."), "the name is cut off")],
)  # fmt: skip
def test_what_is_missing_is_said(text, said):
    with pytest.raises(InputError, match=said):
        found(text)


PIECES = st.sampled_from(
    [*re.split(r"(\n)", TABLE + TWO.format("NV4", 0) + PEERS.format("OK") + names(3, "NVIDIA L4")), "\t"]
)


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
@settings(max_examples=examples(100), deadline=None)
def test_any_text_is_a_machine_or_our_error(text):
    with contextlib.suppress(InputError):
        found(text)
