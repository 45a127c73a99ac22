"""Cluster and service files, presets, and the simulator's format."""

import msgspec
import pytest

from tvm_sched_cluster import (
    Allocation,
    Edge,
    Service,
    ServiceOperator,
    demand_of_services,
    format_cluster,
    load_cluster,
    load_services,
    operator_ns,
    parse_cluster,
    parse_services,
    preset_names,
    write_services,
)
from tvm_sched_cluster.files.rampa_simulator_files import read_graph, read_model, read_models, read_requests
from tvm_sched_runtime.errors import FormatError, GraphError, InputError, TopologyError

GRAPH = """link_sw,0.0001
link_resource,0.00005
bw,10000000000
Csw,2,0.00003,0-1-4
gpu,1,16,0.000101,30300,24,300,0
gpu,1,12,0.000101,14000,32,900,1
"""
MODEL = "ID,1\nOPE,2\nFLOPs,3.9,48.17\nMEM,0.19255,0.03246\nOUT,109.6,9.96\nTIME,100\nTHROUGH,60\n"


@pytest.mark.parametrize(
    ("name", "gpus", "kinds", "links", "bandwidth"),
    [
        ("rampa-base", 640, 4, 32, 1.25e9),
        ("rampa-high-bandwidth", 640, 4, 32, 12.5e9),
        ("rampa-high-performance", 640, 2, 32, 1.25e9),
        ("rampa-large", 1440, 4, 72, 1.25e9),
    ],
)
def test_presets_are_those_of_the_paper(name, gpus, kinds, links, bandwidth):
    cluster = load_cluster(name)
    assert name in preset_names()
    assert (len(cluster.gpus), len(cluster.kinds), len(cluster.links)) == (gpus, kinds, links)
    assert {link.fibres for link in cluster.links} == {4}
    assert {link.bandwidth for link in cluster.links} == {rack.bandwidth for rack in cluster.racks} == {bandwidth}
    assert {len(servers) for servers in cluster.servers.values()} == {8}
    assert len(cluster.servers) == 5 * len(cluster.racks)
    touched = [switch for link in cluster.links for switch in link.switches]
    assert {touched.count(switch.name) for switch in cluster.switches} == {4}  # a torus


def test_services_are_those_of_the_paper():
    services = load_services()
    assert [len(service.operators) for service in services] == [15, 26, 35, 29, 49, 67]
    assert [service.throughput for service in services] == [60, 30, 30, 5, 0.1, 0.25]
    assert [service.latency for service in services] == [0.1, 0.2, 0.05, 0.8, 10, 5]
    layer, l4 = services[0].operators[1], load_cluster("rampa-base").kinds[0]
    assert operator_ns(layer, l4) == pytest.approx(1e9 * (48.17e9 / 30.3e12 + 32.46e6 / 300e9), abs=1)


@pytest.mark.parametrize("case", ["same", "high-throughput", "low-delay", "huge-model"])
def test_demands_are_probabilities(case):
    demand = demand_of_services(case, load_services())
    assert sum(demand.values()) == pytest.approx(1)
    assert len(demand) == 6


def test_written_services_are_read_back(tmp_path):
    paper = load_services()
    write_services(tmp_path / "paper.toml", paper)
    assert load_services(tmp_path / "paper.toml") == paper
    operators = tuple(ServiceOperator(name, 1.5, 2, 3, {"L4": 0.25}) for name in "ab")
    (tmp_path / "models").mkdir()
    mine = [
        Service("mine", operators, 1, 2, (Edge("a", "b", 7),), model_file=str(tmp_path / "m.onnx"),
                input_shapes={"x": (1, 3)}),
        Service("apart", operators, 1, 2, ()),
    ]  # fmt: skip
    write_services(tmp_path / "models" / "mine.toml", mine)
    assert list(load_services(tmp_path / "models" / "mine.toml")) == [
        msgspec.structs.replace(mine[0], model_file=str(tmp_path / "models" / ".." / "m.onnx")),
        mine[1],
    ]


@pytest.mark.parametrize("name", ["rampa-base", "rampa-large"])
def test_a_written_cluster_is_read_back(name):
    cluster = load_cluster(name)
    assert parse_cluster(format_cluster(cluster)) == cluster


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("version = 1", "version = 2", FormatError, "version 2 of tvm_sched.cluster is newer"),
        ('flops = "30.3 TFLOP/s"', 'flops = "30.3 TB"', FormatError, "`$.kinds[0].flops`: found '30.3 TB'"),
        ('flops = "30.3 TFLOP/s"', "flops = 0", TopologyError, "flops of GPU kind 'L4' is 0.0"),
        ("fibres = 4", "fibres = 0", TopologyError, "fibres of link 'sw0-sw1' is 0"),
        ("fibres = 4", "fibers = 4", FormatError, "unknown field `fibers`"),
        ('["sw0", "sw1"]', '["sw0", "sw99"]', TopologyError, "names switch 'sw99', which is not there"),
        ('kind = "L4"', 'kind = "L5"', TopologyError, "names kind of GPU 'L5', which is not there"),
        ('"rack4"', '"rack0"', TopologyError, "rack 'rack0' stands there 2 times"),
    ],
)
def test_wrong_cluster_files_are_refused(old, new, error, message):
    text = format_cluster(load_cluster("rampa-base"))
    assert old in text
    with pytest.raises(error) as caught:
        parse_cluster(text.replace(old, new, 1), "mine.toml")
    assert str(caught.value).startswith("mine.toml: ")
    assert message in str(caught.value)


def test_wrong_services_are_refused():
    head = 'format = "tvm_sched.services"\nversion = 1\n[[services]]\nname = "a"\nlatency = "1 s"\n'
    with pytest.raises(GraphError, match="service 'a' has no operators"):
        parse_services(head + "throughput = 1.0\noperators = []")
    operators = 'operators = [{ name = "x", flops = "1 GFLOP", memory = 5 }]\n'
    with pytest.raises(InputError, match=r"throughput is 0\.0"):
        parse_services(head + "throughput = 0.0\n" + operators)
    with pytest.raises(InputError, match=r"throughput asks for 1e\+300 s; at most"):
        parse_services(head + "throughput = 1e-300\n" + operators)
    with pytest.raises(GraphError, match="an edge names operator 'y', which is not there"):
        parse_services(head + "throughput = 1.0\n" + operators + 'edges = [{ source = "x", target = "y", bytes = 1 }]')


def test_an_unknown_cluster_names_its_likeness():
    with pytest.raises(FormatError, match="did you mean 'rampa-base'"):
        load_cluster("rampa-bas")


def test_a_graph_of_the_simulator(tmp_path):
    (tmp_path / "graph.txt").write_text(GRAPH)
    cluster = load_cluster(tmp_path / "graph.txt")
    assert [len(pool.gpus) for pool in cluster.pools] == [16, 12]
    assert [len(gpus) for gpus in cluster.servers.values()] == [8, 8, 8, 4]
    assert cluster.kinds[1].flops == 14e12
    assert cluster.kinds[1].memory == 32 * 10**9
    assert cluster.links[0].fibres == 4
    assert cluster.links[0].bandwidth == 1.25e9
    assert cluster.links[0].delay == pytest.approx(0.1e-6)
    assert cluster.racks[0].delay == pytest.approx(0.05e-6)


@pytest.mark.parametrize(
    ("old", "new", "line", "field"),
    [
        ("14000,32,900,1", "14000.32,900,1", 6, 8),  # as the published graph3.txt has it: a field too few
        ("0-1-4", "0-1-418-19-4", 4, 4),  # as the published graph4.txt has it
        ("0-1-4", "0-2-4", 4, 4),
        ("30300", "fast", 5, 5),
        ("900,1", "900,2", 6, 8),
        ("bw,10000000000", "bw", 3, 2),
        ("gpu,1,16", "cpu,1,16", 5, 1),
    ],
)
def test_a_malformed_graph_row_is_refused_with_line_and_field(tmp_path, old, new, line, field):
    refuses(read_graph, tmp_path / "graph.txt", GRAPH.replace(old, new, 1), line, field)


def refuses(read, path, text, line, field):
    path.write_text(text)
    with pytest.raises(FormatError, match=rf"{path.name}: line {line}, field {field}: found"):
        read(path)


def test_models_of_the_simulator(tmp_path):
    (tmp_path / "model1.txt").write_text(MODEL)
    (tmp_path / "model2.txt").write_text(MODEL.replace("ID,1", "ID,2"))
    first, second = read_models(tmp_path)
    assert (first.name, second.name) == ("service1", "service2")
    assert first.operators[0].memory == 192_550_000
    assert first.operators[0].output == 109_600_000
    assert (first.throughput, first.latency) == (60, 0.1)


@pytest.mark.parametrize(
    ("old", "new", "line", "field"),
    [("48.17", "48,17", 3, 4), ("OPE,2", "OPE,3", 3, 4), ("TIME,100", "TIME,soon", 6, 2), (",0.03246", "", 4, 3)],
)
def test_a_malformed_model_row_is_refused(tmp_path, old, new, line, field):
    refuses(read_model, tmp_path / "model1.txt", MODEL.replace(old, new, 1), line, field)


def test_request_sequences_of_the_simulator(tmp_path):
    path = tmp_path / "sequence.txt"
    path.write_text("2,allocate,5,10\n3,allocate,2,10\n")
    assert [(r.service, r.time, r.lifetime) for r in read_requests(path)] == [("service5", 2, 10), ("service2", 3, 10)]
    path.write_text("2,allocate,5,10\n3,release,2,10\n")
    with pytest.raises(FormatError, match="line 2, field 2: found 'release', expected 'allocate'"):
        read_requests(path)


def test_a_newer_allocation_is_refused():
    text = Allocation("0", ()).to_json().replace(b'"version": 1', b'"version": 2')
    with pytest.raises(FormatError, match=r"version 2 of tvm_sched\.allocation is newer"):
        Allocation.from_json(text)
    assert msgspec.json.decode(Allocation("0", ()).to_json())["format"] == "tvm_sched.allocation"
