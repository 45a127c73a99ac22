"""The benchmark of throughput partitioning: graphs from files, measurements that are kept, tables."""

import json
import sys

import mtpp
import pytest
from mtpp import Measurement

from tvm_sched_bench.testing.regal import regal_local, with_short_memory
from tvm_sched_runtime.errors import FormatError


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the benchmark with some arguments; gives the rows that it wrote."""

    def main(*arguments):
        rows = tmp_path / "rows.json"
        monkeypatch.setattr(sys, "argv", ["mtpp.py", "--seconds", "1", *map(str, arguments), "--json", str(rows)])
        mtpp.main()
        return {(row["case"], row["method"], row["unit"]): row["figure"] for row in json.loads(rows.read_text())}

    return main


@pytest.fixture
def chain(tmp_path):
    """A folder with one graph, a chain of 4, 4, 4 and 8 that sends 1 each: the best two stages cost 13."""
    folder = tmp_path / "graphs"
    folder.mkdir()
    nodes = [
        {"id": name, "work": work, "size_param": 0, "size_out": 1}
        for name, work in zip("abcd", (4, 4, 4, 8), strict=True)
    ]
    edges = [{"source": a, "target": b} for a, b in ("ab", "bc", "cd")]
    (folder / "chain.json").write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return folder


def test_graphs_from_files(run, chain):
    rows = run("--instances", chain, "--stages", "2")
    assert rows["k=2", "anytime, 1 s", "graphs"] == 1
    assert rows["k=2", "simple", "bound / best"] == pytest.approx(10 / 13)
    assert rows["k=2", "anytime, 1 s", "bound / best"] == pytest.approx(1, rel=1e-5)
    assert rows["k=2", "anytime, 1 s", "partition / simple bound"] == pytest.approx(1.3)


def test_each_bound_and_order_has_its_row(run, chain):
    rows = run("--instances", chain, "--stages", "2", "--bounds", "--bound-seconds", "1", "--orders")
    for bound in mtpp.BOUNDS:
        assert 10 / 13 <= rows["k=2", f"{bound}, 1 s", "bound / best"] <= 1 + 1e-9
    for order in mtpp.ORDERS:
        assert rows["k=2", order, "partition / best"] >= 1


def test_a_run_goes_on_where_the_last_one_ended(run, chain, tmp_path, monkeypatch):
    kept = tmp_path / "kept.json"
    assert run("--instances", chain, "--stages", "2", "--resume", kept, "--minutes", "0") == {}
    run("--instances", chain, "--stages", "2", "--resume", kept)
    first = json.loads(kept.read_text())
    assert [m["method"] for m in first] == ["anytime", "brkga-10000"]
    measured = []
    measure = mtpp.measure_graph
    monkeypatch.setattr(mtpp, "measure_graph", lambda *given: measured.append(given[2]) or measure(*given))
    rows = run("--instances", chain, "--stages", "2,3", "--resume", kept)
    assert measured == [3, 3]
    assert json.loads(kept.read_text())[:2] == first
    assert ("k=2", "simple", "bound / best") in rows


def test_means_are_geometric_and_over_the_best_partition_of_each_graph():
    measured = [
        Measurement("a", 4, "anytime", 60, 10, 50, 100, 90, "semidefinite", 60),
        Measurement("a", 4, "brkga-10000", 0, 10, 50, 110, None, "", 1),
        Measurement("b", 4, "anytime", 60, 10, 20, 50, 40, "exact", 50),
        Measurement("b", 4, "brkga-10000", 0, 10, 20, 40, None, "", 3),
    ]
    rows = {(row.method, row.unit): row.figure for row in mtpp.rows_of(measured)}
    assert rows["anytime, 60 s", "bound / best"] == pytest.approx((0.9 * 1.0) ** 0.5)
    assert rows["anytime, 60 s", "least"] == pytest.approx(0.9)
    assert rows["brkga-10000", "partition / best"] == pytest.approx(1.1**0.5)
    assert rows["brkga-10000", "s a graph"] == 2
    assert rows["simple", "bound / best"] == pytest.approx(0.5)


def test_costs_against_memory(run, chain):
    rows = run("--instances", chain, "--stages", "2", "--methods", "random-100", "--memory", "0.5,inf")
    assert rows["k=2, unlimited", "best of all", "cost / unlimited"] == 1
    assert rows["k=2, memory 0.5", "best of all", "cost / unlimited"] > 1
    for case in ("k=2, unlimited", "k=2, memory 0.5"):
        assert 0 < rows[case, "simple", "bound / best"] <= 1
        assert rows[case, "random-100", "peak given / least"] == 1  # a chain has one order
        assert rows[case, "random-100", "proved least, %"] == 100


def test_rows_of_memory_are_over_the_cheapest_of_the_same_memory():
    given = {
        (0.5, "anytime"): (200, 90, 220, 1.2, 1.0), (0.5, "random-1"): (250, None, 250, 1.0, 0.5),
        (float("inf"), "anytime"): (100, 95, 100, 1.1, 1.0),
    }  # fmt: skip
    measured = [
        Measurement("a", 4, name, 0, 10, 50, cost, bound, "", 1, "", memory, before, peaks, proved)
        for (memory, name), (cost, bound, before, peaks, proved) in given.items()
    ]
    rows = {(row.case, row.method, row.unit): row.figure for row in mtpp.memory_rows(measured)}
    assert rows["k=4, memory 0.5", "best of all", "cost / unlimited"] == pytest.approx(2)
    assert rows["k=4, memory 0.5", "anytime", "bound / best"] == pytest.approx(0.45)
    assert rows["k=4, memory 0.5", "random-1", "partition / best"] == pytest.approx(1.25)
    assert rows["k=4, memory 0.5", "anytime", "given / least-peak order"] == pytest.approx(1.1)
    assert rows["k=4, memory 0.5", "anytime", "peak given / least"] == pytest.approx(1.2)
    assert rows["k=4, memory 0.5", "random-1", "proved least, %"] == 50
    assert rows["k=4, unlimited", "anytime", "bound / best"] == pytest.approx(0.95)
    strongest = "strongest, of this or more memory"
    assert rows["k=4, memory 0.5", strongest, "bound / best"] == pytest.approx(95 / 200)
    assert rows["k=4, unlimited", strongest, "bound / best"] == pytest.approx(0.95)


def test_short_memories_are_shares_of_the_parameters_of_a_stage():
    graph = regal_local(0)
    short = with_short_memory(graph, 3, 4, 0.75)
    assert short.memory == pytest.approx(0.75 * short.parameters.sum() / 4)
    assert short.overflow_time == pytest.approx(graph.tensors[0].transfer / graph.tensors[0].size)
    assert 0.3 < (short.parameters > 0).mean() < 0.7
    assert with_short_memory(graph, 3, 4, float("inf")).fits_anywhere
    assert (short.parameters == with_short_memory(graph, 3, 16, 1).parameters).all()


def test_families_of_graphs_have_rows_of_their_own():
    measured = [
        Measurement(f"seed {seed}", 4, "anytime", 60, 10, 50, 100, bound, "semidefinite", 60)
        for seed, bound in ((0, 90), (3, 40), (1, 100))
    ]
    rows = {(row.case, row.unit): row.figure for row in mtpp.rows_of(measured)}
    assert rows["k=4, Erdős–Rényi", "graphs"] == 2
    assert rows["k=4, Erdős–Rényi", "bound / best"] == pytest.approx(0.6)
    assert rows["k=4, Erdős–Rényi", "least"] == pytest.approx(0.4)
    assert rows["k=4, Barabási–Albert", "bound / best"] == 1
    assert ("k=4, Watts–Strogatz", "graphs") not in rows


def test_one_method_alone(run, chain):
    rows = run("--instances", chain, "--stages", "2", "--methods", "anytime")
    assert {method for _, method, _ in rows} == {"simple", "anytime, 1 s"}
    with pytest.raises(SystemExit, match="there is no method 'best'"):
        run("--instances", chain, "--methods", "best")
    with pytest.raises(SystemExit):
        run("--instances", chain, "--memory", "0.5,0")


def test_pictures(run, chain, tmp_path):
    run("--instances", chain, "--stages", "2,3", "--pictures", tmp_path / "pictures")
    assert sorted(file.name for file in (tmp_path / "pictures").iterdir()) == ["mtpp-2.svg", "mtpp-3.svg"]


def test_a_folder_without_graphs_and_a_file_that_is_none_are_named(run, tmp_path):
    with pytest.raises(SystemExit, match="holds no graphs"):
        run("--instances", tmp_path)
    (tmp_path / "bad.json").write_text('{"nodes": [{"id": 1, "work": 1}], "edges": []}')
    with pytest.raises(FormatError, match=r"bad\.json.*size_out"):
        run("--instances", tmp_path)
