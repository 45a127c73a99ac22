"""The grid of SortingHat's evaluation: cells that are kept, speed-ups by hand, the page."""

import sys

import msgspec
import pytest
from _grid import Case, Cell, Cells, Method, emulate, make_problem, measure, predict, replay
from _sortinghat_page import repriced, write_page

from tvm_sched.cost_model.host_rereads import WIDTH
from tvm_sched.schedulers import names, solve
from tvm_sched_runtime.problem import HOST, preset_names
from tvm_sched_runtime.problem.decoder_config import PRESETS, DecoderConfig
from tvm_sched_runtime.schedule import evaluate

SINGLE, EXACT = Method("single", "single"), Method("anytime", "anytime", {"time_limit": 1.0})


@pytest.fixture(autouse=True, scope="module")
def tiny():
    """A model of two layers among the presets."""
    config = DecoderConfig(name="tiny", layers=2, hidden=64, heads=4, vocab=100, intermediate=96)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("_grid.PRESETS", {**PRESETS, "tiny": config})
        yield


@pytest.mark.parametrize("name", ["cells.json", "cells.json.xz"])
def test_finished_cells_are_found_again(tmp_path, name):
    path = tmp_path / name
    case = Case("p4d", "tiny", 1, 8, EXACT)
    cells = Cells(path)
    assert cells.get(case) is None
    cells.add(case, Cell(latency=2.0))
    assert Cells(path).get(case) == Cell(latency=2.0)
    longer = msgspec.structs.replace(case, method=Method("anytime", "anytime", {"time_limit": 2.0}))
    assert Cells(path).get(longer) is None
    assert Cells(path).get(msgspec.structs.replace(case, costs="learned")) is None
    assert not list(tmp_path.glob("*.tmp"))


def test_speed_ups_by_several_prices_stand_side_by_side(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need the extra report")
    cells, plan, made = Cells(None), [], {"learned": (6.0, 4.0), "roofline": (4.0, 1.0)}
    for costs, latencies in made.items():
        for method, latency in zip((SINGLE, Method("DeepPlan", "deepplan")), latencies, strict=True):
            for tokens in (8, 16):
                plan.append(Case("v100-server", "tiny", 1, tokens, method, costs))
                if (costs, tokens, latency) != ("learned", 16, 4.0):  # not computed yet, so the cell does not count
                    cells.add(plan[-1], Cell(latency=latency, critical_path=1.0, warm=[1.0] * 5))
    write_page(plan, cells, tmp_path / "page.md", shared="roofline")
    page = (tmp_path / "page.md").read_text()
    assert "over the 1 cells that have all methods" in page
    assert "| DeepPlan | 1 | 1.50 | 1.50 | 4.00 | 4.00 | 1.93 | 2.14 |" in page
    assert "| tiny 1x8 | **6.00** (4.00) | 1.00 (1.00) | 1.50 (4.00) |" in page
    assert "`single` takes 1.50 times as long by `learned` as by `roofline`" in page
    assert "during the search by `roofline`; the others had a core to themselves" in page
    assert "v100-server,tiny,1x8,DeepPlan,1.50,4.00,-,-,-" in (tmp_path / "data" / "page.csv").read_text()


def test_schedules_of_one_price_are_priced_by_the_other():
    methods, place = (SINGLE, Method("DeepPlan", "deepplan")), ("a6000-server", "tiny", "1x512")
    by = {costs: make_problem("tiny", 1, 512, place[0], costs=costs) for costs in ("roofline", "learned")}
    cases = {costs: [Case(place[0], "tiny", 1, 512, method, costs) for method in methods] for costs in by}
    made, priced = ([(case, predict(case, by[costs], False)) for case in cases[costs]] for costs in by)
    wrong = evaluate(by["learned"], made[1][1].schedule)[0] / 1e9
    assert wrong > priced[1][1].latency
    assert repriced(made, priced, [place])["DeepPlan"] == {place: priced[0][1].latency / wrong}


def test_cells_have_the_prices_that_they_name():
    by = {costs: make_problem("tiny", 1, 512, "a6000-server", costs=costs) for costs in ("roofline", "learned")}
    assert [problem.costs.source.partition(" ")[0] for problem in by.values()] == list(by)
    graph, topology = by["roofline"].graph, by["roofline"].topology
    bus = topology.route(HOST, 0)
    weights = [o for o, product in enumerate(graph.operators) if "matmul" in product.kind and graph.index.host_bytes[o]]
    assert weights
    for o in weights:  # tiles of 32 rows read each weight 16 times, by narrower accesses than a copy's
        read = by["learned"].costs.direct_ns[o, 0]
        assert read >= bus.nanoseconds(int(WIDTH * 16) * max(graph.index.host_bytes[o]))
        assert read > by["roofline"].costs.direct_ns[o, 0]


def test_a_cell_of_a_tiny_model():
    p = make_problem("tiny", 1, 8, "v100-server")
    cell = predict(Case("v100-server", "tiny", 1, 8, SINGLE), p, spans=True)
    assert cell.wall is None
    assert cell.latency >= cell.bound > 0
    runs = [measure(p, cell) for _ in range(3)]  # other work that keeps the machine busy can only make a run longer
    assert min(run.record for run in runs) == pytest.approx(cell.latency, rel=1e-3)
    assert all(run.wall >= run.record for run in runs)
    assert cell.warm[0] == cell.latency
    assert cell.warm == sorted(cell.warm, reverse=True)
    old = msgspec.structs.replace(cell, made="2026-11-23, commit 1234567-dirty", warm=[])
    again = replay(p, old, "2026-11-29, commit 7654321")
    assert again.made == "2026-11-23 by a tree with changes, priced and checked again 2026-11-29, commit 7654321"
    assert (again.latency, again.warm) == (cell.latency, cell.warm)
    other = msgspec.structs.replace(old, latency=cell.latency * 1.01)
    assert replay(p, other, "2026-11-29, commit 7654321") is other
    lanes = {lane for lane, *_ in cell.spans}
    assert lanes == {"gpu1/0", "pcie0 down"}
    assert max(end for *_, end in cell.spans) == pytest.approx(cell.latency)


@pytest.mark.thorough
def test_a_model_that_does_not_fit_is_a_cell_too():
    p = make_problem("openllama-7b", 1, 32, "v100-server")
    small = tuple(msgspec.structs.replace(d, memory=24 * 10**9) for d in p.topology.devices)
    p = type(p)(p.graph, msgspec.structs.replace(p.topology, devices=small), p.costs)
    cell = measure(p, predict(Case("v100-server", "openllama-7b", 1, 32, SINGLE), p, spans=False))
    assert cell.latency is None
    assert cell.error.startswith("out of memory")
    short = int(cell.error.split("short of ")[1].split()[0])
    assert 26_953_662_464 - 24 * 10**9 <= short < 26_953_662_464 - 24 * 10**9 + 10**9  # weights, and some activations
    spread = solve(p, method="anytime", options={"work": 0.5})
    assert len({placement.device for placement in spread.placements}) > 1
    record, _ = emulate(p, spread)
    assert record >= 0.999 * spread.certificate.latency  # other work can only make a run longer


def test_the_page_of_a_run(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="pictures need the extra report")
    cases = [Case("v100-server", "openllama-7b", 1, 32, m) for m in (SINGLE, EXACT)]
    cells = Cells(None)
    for case, latency in zip(cases, (6.0, 2.0), strict=True):
        cells.add(
            case,
            Cell(latency=latency, bound=1.5, critical_path=4.0, record=latency, wall=1.1 * latency, warm=[1.0] * 5),
        )
    monkeypatch.setattr(sys, "argv", ["sortinghat.py", "--quick"])
    page = tmp_path / "page.md"
    write_page(cases, cells, page, tmp_path / "rows.json")
    text = page.read_text()
    assert "| anytime | 1 | 3.00 | 3.00 | - | - |" in text
    assert "| openllama-7b 1x32 | 1.50 | 1.00 | **3.00** |" in text
    assert "| anytime | 1 | 25.0% | 25.0% |" in text
    assert (tmp_path / "page-figure-9-v100-server.svg").stat().st_size < 50_000
    assert (tmp_path / "page-figure-11.svg").is_file()


@pytest.fixture(scope="module")
def decided_case():
    """A case of SortingHat whose programs have no time, and what came of it."""
    case = Case("v100-server", "tiny", 1, 8, Method("SortingHat", "sortinghat", {"time_limit": 0.0}))
    return case, predict(case, make_problem("tiny", 1, 8, "v100-server"), spans=False)


def test_what_decided_a_schedule_is_in_the_page(decided_case):
    from _sortinghat_page import HEAD, decided, solver_gap

    case, cell = decided_case
    told = cell.schedule.notes["submodels"]
    heft = msgspec.structs.replace(cell, schedule=cell.schedule.replace(notes={"instead": "HEFT's schedule"}))
    (row,) = decided([(case, cell), (case, heft), (case, Cell(latency=1.0))])
    said = dict(zip(HEAD, row, strict=True))
    assert said["submodels"] == str(len(told))
    assert {each["status"] for each in told} <= {"alike", "limit", "no solution", "not asked"}
    assert said["proved"] == "0"
    assert said["simulated"] == f"{cell.latency * 1e3:.3g} ms"
    assert solver_gap({"objective_ns": 200, "bound_ns": 150}) == 0.25
    assert solver_gap({"objective_ns": 200, "bound_ns": None}) is None


def test_methods_that_cannot_be_run_say_why():
    assert SINGLE.why_not() == ""
    assert "no scheduler 'nobody'" in Method("x", "nobody").why_not()
    assert "no option colour" in Method("x", "single", {"colour": 1}).why_not()
    assert {"single", "anytime"} <= set(names())
    import sortinghat

    assert set(sortinghat.SERVERS) <= set(preset_names())


def test_each_model_shape_and_server_has_two_thorough_cells_which_come_before_the_others():
    from collections import Counter

    import sortinghat

    cells = [(m, s, v) for m in sortinghat.MODELS for s in sortinghat.SHAPES for v in sortinghat.SERVERS]
    chosen = [cell for cell in cells if sortinghat.thorough(*cell)]
    assert set(Counter(name for cell in chosen for name in cell).values()) == {2}
    paper = next(method for method in sortinghat.METHODS if method.label == "SortingHat")
    order = {cell: sortinghat.stage(Case(cell[2], cell[0], *map(int, cell[1].split("x")), paper)) for cell in cells}
    assert max(order[cell] for cell in chosen) < min(place for cell, place in order.items() if cell not in chosen)
    single = Case("p4d", "gpt2-xl", 1, 32, SINGLE)
    assert sortinghat.stage(single) < min(order.values())


def test_the_page_has_total_latency_and_queues_per_gpu(decided_case):
    pytest.importorskip("matplotlib", reason="pictures need the extra report")
    import _sortinghat_page
    from _result_page import Page

    case, cell = decided_case
    heft = msgspec.structs.replace(cell, schedule=cell.schedule.replace(notes={"instead": "HEFT's schedule"}))
    page = Page("Grid")
    _sortinghat_page.total_latency(page, [(case, cell), (case, heft)])
    total = cell.schedule.notes["total_latency_ns"] / 1e9
    emulated = msgspec.structs.replace(cell, record=1.02 * cell.latency, wall=total / 1.04)
    _sortinghat_page.figure_11(page, [(case, emulated)])
    _sortinghat_page.figure_13(page, [(case, cell)])
    error = cell.schedule.notes["total_latency_ns"] / 1e9 / cell.latency - 1
    assert f"| v100-server | 1 | {abs(error):.2%}".replace("%", " %") in "\n".join(page.lines)
    text = "\n".join(page.lines)
    assert "TotalLatency is 4.00 % from the emulated run by the wall clock, on average over 1 cases" in text
    assert "by more than 1 %: tiny 1x8 on v100-server, SortingHat (2 %)." in text
    (row,) = [line for line in page.lines if line.startswith("| tiny 1x8 on v100-server, SortingHat |")]
    assert row.split(" | ")[1] == f"{cell.latency * 1e3:.1f}"
