"""Topology files: what they mean, that they round-trip, and what is said of wrong ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_sched_runtime.errors import FormatError, InputError, TopologyError
from tvm_sched_runtime.problem import (
    Bus,
    Device,
    Link,
    Switch,
    Topology,
    format_topology,
    load_topology,
    parse_topology,
    preset_names,
    read_topology,
    write_topology,
)

HEAD = 'format = "tvm_sched.topology"\nversion = 1\nname = "t"\n'
DEVICES = """
[[devices]]
names = ["a", "b"]
bus = "pcie"
memory = "32 GiB"
memory_bandwidth = "900 GB/s"
launch_overhead = "5 us"
peak_flops = { float32 = "15.7 TFLOP/s" }
"""
BUSES = '[[buses]]\nname = "pcie"\nbandwidth = "16 GB/s"\nlatency = "10 us"\n'
LINKS = '[[links]]\npairs = [["a", "b"]]\nways = 2\nbandwidth_per_way = "25 GB/s"\n'
WHOLE = HEAD + DEVICES + BUSES + LINKS


def test_quantities_and_groups():
    topology = parse_topology(WHOLE)
    assert [device.name for device in topology.devices] == ["a", "b"]
    assert topology.devices[1].memory == 32 << 30
    assert topology.devices[1].memory_bandwidth == 900e9
    assert topology.devices[1].launch_overhead == 5e-6
    assert topology.devices[1].peak_flops == {"float32": 15.7e12}
    assert topology.buses[0].bandwidth == 16e9
    assert (topology.links[0].bandwidth, topology.links[0].ways) == (50e9, 2)


def test_count_and_a_bus_for_each():
    text = HEAD + DEVICES.replace('names = ["a", "b"]', 'name = "gpu"\ncount = 2').replace('"pcie"', '["p0", "p1"]')
    topology = parse_topology(text + BUSES.replace('name = "pcie"', 'names = ["p0", "p1"]'))
    assert [(device.name, device.bus) for device in topology.devices] == [("gpu0", "p0"), ("gpu1", "p1")]


def test_numbers_are_si():
    text = WHOLE.replace('"32 GiB"', "1000").replace('"900 GB/s"', "9e11").replace('"5 us"', "0.000005")
    device = parse_topology(text).devices[0]
    assert (device.memory, device.memory_bandwidth, device.launch_overhead) == (1000, 9e11, 5e-6)


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ('"16 GB/s"', '"16 GB"', FormatError, ["$.buses[0].bandwidth", "'16 GB'", "GB/s"]),
        ('"16 GB/s"', "0", TopologyError, ["$.buses[0].bandwidth", "0", "above 0"]),
        ('"25 GB/s"', '"0 GB/s"', TopologyError, ["$.links[0].bandwidth_per_way", "above 0"]),
        ('"16 GB/s"', "inf", TopologyError, ["$.buses[0].bandwidth", "inf", "finite"]),
        ('"16 GB/s"', "nan", TopologyError, ["$.buses[0].bandwidth", "nan"]),
        ('"16 GB/s"', "[1]", FormatError, ["$.buses[0].bandwidth", "array"]),
        ('"10 us"', "-1", TopologyError, ["$.buses[0].latency", "-1", "0 or more"]),
        ('"32 GiB"', '"1e30 PB"', TopologyError, ["'a'", "memory", "at most 9223372036854775807"]),
        ("peak_flops", 'kind = "tpu"\npeak_flops', TopologyError, ["'a'", "'tpu'", "'cuda' and 'cpu'"]),
        ('name = "t"', 'name = ""', TopologyError, ["topology", "empty name"]),
        ("peak_flops", "threads = 2\npeak_flops", TopologyError, ["'a'", "threads is 2", "kind 'cpu'"]),
        ("peak_flops", 'kind = "cpu"\nthreads = 0\npeak_flops', TopologyError, ["'a'", "threads is 0", "1 to 65536"]),
        ("peak_flops", 'kind = "cpu"\nthreads = 1.5\npeak_flops', FormatError, ["$.devices[0].threads", "int"]),
        ('"32 GiB"', "0", TopologyError, ["$.devices[0].memory", "above 0"]),
        ('"32 GiB"', "1.5", FormatError, ["$.devices[0].memory", "whole number of bytes"]),
        ('"15.7 TFLOP/s"', '"15.7 TFLOP"', FormatError, ["$.devices[0].peak_flops.float32", "TFLOP/s"]),
        ("float32", "float16", TopologyError, ["float32", "float16"]),
        ('["a", "b"]\nbus', '["a", "a"]\nbus', TopologyError, ["device 'a' occurs twice"]),
        ('pairs = [["a", "b"]]', 'pairs = [["a", "c"]]', TopologyError, ["'c'", "['a', 'b']"]),
        ('pairs = [["a", "b"]]', 'pairs = [["a", "b"], ["b", "a"]]', TopologyError, ["link 'a-b' occurs twice"]),
        ('pairs = [["a", "b"]]', 'pairs = [["a", "a"]]', TopologyError, ["to itself"]),
        ('pairs = [["a", "b"]]', 'pairs = [["a"]]', FormatError, ["$.links[0]", "two devices"]),
        ('pairs = [["a", "b"]]', "", FormatError, ["$.links[0]", "`devices`", "`pairs`"]),
        ('bandwidth_per_way = "25 GB/s"', "", FormatError, ["$.links[0]", "`bandwidth_per_way`"]),
        ("ways = 2", "ways = 0", TopologyError, ["$.links[0].ways", "1 or more"]),
        ('bus = "pcie"', 'bus = "pci"', TopologyError, ["'pci'", "['pcie']"]),
        ('bus = "pcie"', 'bus = ["pcie"]', FormatError, ["$.devices[0].bus", "1 buses for 2 devices"]),
        ('names = ["a", "b"]', "", FormatError, ["$.devices[0]", "`names`"]),
        ("latency", "latencyy", FormatError, ["$.buses[0]", "latencyy", "the fields are", "latency, duplex"]),
        ('memory = "32 GiB"', "", FormatError, ["$.devices[0]", "`memory`"]),
        ("ways = 2", 'ways = "2"', FormatError, ["$.links[0].ways", "`int`", "found '2'"]),
        ("version = 1", "version = 2", FormatError, ["version 2", "newer", "reads (version 1)"]),
        ("version = 1", 'version = "1"', FormatError, ["$.version", "'1'"]),
        ("version = 1", "", FormatError, ["$.version", "None"]),
        ("tvm_sched.topology", "tvm_sched.problem", FormatError,
         ["$.format", "tvm_sched.problem", "tvm_sched.topology"]),
        ("[[devices]]", "[[devices", FormatError, ["not a TOML document", "line"]),
    ],
)  # fmt: skip
def test_errors_say_where_what_and_what_is_allowed(old, new, kind, said, tmp_path):
    assert old in WHOLE
    path = tmp_path / "wrong.toml"
    path.write_text(WHOLE.replace(old, new, 1))
    with pytest.raises(kind) as error:
        load_topology(path)
    for part in [str(path), *said]:
        assert part in str(error.value)


def test_no_devices(tmp_path):
    with pytest.raises(TopologyError, match="no devices"):
        parse_topology(HEAD + "devices = []\n")


def test_missing_file(tmp_path):
    path = tmp_path / "none.toml"
    with pytest.raises(FormatError, match="No such file"):
        read_topology(path)
    with pytest.raises(FormatError, match="No such file"):
        load_topology(str(path))


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not a TOML document"):
        load_topology(path)


@pytest.mark.parametrize("name", ["v100-sever", "cpu0", "cpus", "cpu-2", ""])
def test_unknown_names_list_the_presets(name):
    with pytest.raises(InputError) as error:
        load_topology(name)
    assert all(preset in str(error.value) for preset in preset_names())
    assert "cpuN" in str(error.value)
    if name == "v100-sever":
        assert "did you mean 'v100-server'" in str(error.value)


positive = st.floats(1.0, 1e15)
seconds = st.floats(0.0, 1.0)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


@st.composite
def topologies(draw):
    """Topologies with buses, links and a switch, of devices that may be equal in all but their name."""
    names = draw(st.lists(words, min_size=1, max_size=4, unique=True))
    bus_names = draw(st.lists(words, max_size=2, unique=True))
    buses = tuple(Bus(name, draw(positive), draw(seconds), draw(st.booleans())) for name in bus_names)
    kinds = draw(
        st.lists(st.tuples(st.integers(1, 1 << 50), positive, positive, seconds, words), min_size=1, max_size=2)
    )
    devices = []
    for name in names:
        memory, bandwidth, flops, launch, model = draw(st.sampled_from(kinds))
        bus = draw(st.sampled_from(["", *bus_names]))
        peak = {"float32": flops, "float16": 2 * flops}
        devices.append(Device(name, memory, bandwidth, peak, "cuda", launch, bus, model))
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    links = tuple(Link(p, draw(positive), draw(seconds), draw(st.booleans()), draw(st.integers(1, 6))) for p in chosen)
    switches = (Switch("all", tuple(names), draw(positive), draw(seconds)),) if draw(st.booleans()) else ()
    host = draw(st.integers(0, 1 << 40))
    return Topology(
        draw(words), tuple(devices), buses, links, switches, draw(st.booleans()), host, draw(st.text(max_size=9))
    )


@given(topologies())
def test_files_round_trip(topology):
    assert parse_topology(format_topology(topology)) == topology


def test_written_files_read_back(tmp_path):
    path = tmp_path / "out.toml"
    write_topology(path, load_topology("v100-hetero"))
    assert read_topology(path) == load_topology("v100-hetero")
    assert load_topology(str(path)) == load_topology("v100-hetero")


def test_free_memory_and_numbers_are_of_each_device():
    gpus = tuple(
        Device(f"g{n}", 24 << 30, 1e12, {"float32": 1e13}, bus="b", free_memory=(n + 1) << 30, number=7 - n)
        for n in range(2)
    )
    topology = Topology("t", gpus, (Bus("b", 1e10),))
    text = format_topology(topology, {"": "one\ntwo", "g1": "in use"})
    assert parse_topology(text) == topology
    assert text.startswith("# one\n# two\n")
    assert "# g1: in use" in text
    for wrong, said in (('free_memory = "-1 GiB"', "free_memory"), ("number = -1", "number is -1")):
        field = wrong.split()[0]
        changed = "\n".join(wrong if line.startswith(field) else line for line in text.split("\n"))
        with pytest.raises(TopologyError, match=said):
            parse_topology(changed)
