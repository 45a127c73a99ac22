"""Schedules that choose among variants: times, rules, bounds."""

import itertools
import math
from random import Random
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.exhaustive import TooLarge, least_latency
from thorough import examples
from tvm_sched.bounds import lower_bound
from tvm_sched.bounds.variant_relaxation import relaxed
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.anytime import race, scheduler
from tvm_sched.schedulers.anytime.list_rules import list_schedules
from tvm_sched.schedulers.anytime.promising_variants import ChoicePrices
from tvm_sched.schedulers.common.search import Searches
from tvm_sched.schedulers.common.variant_search import ChoiceSearch
from tvm_sched_bench.testing import random_problem, random_schedule, random_variants
from tvm_sched_runtime.errors import ProblemError, ScheduleError
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Alternative,
    Bus,
    Costs,
    Group,
    Link,
    Operator,
    OpGraph,
    Problem,
    Scenario,
    Tensor,
    Topology,
    Variants,
)  # fmt: skip
from tvm_sched_runtime.schedule import (
    Placement,
    Schedule,
    ScheduleIndex,
    Transfer,
    resolved,
    simulate,
    verify,
    violations,
    with_choice,
)
from tvm_sched_runtime.search_budget import Budget, Incumbent, Turn, improve
from variant_cases import CHOICE, gated


def by_hand() -> Schedule:
    """``up`` and the multiplication on one device, the gate's product on the other."""
    placements = (Placement("up", "cpu0"), Placement("product", "cpu1"), Placement("multiply", "cpu0"))
    return Schedule(gated().digest, placements, (Transfer("copy", "cpu0", "b", "cpu1"),), choice=CHOICE)


def test_a_schedule_is_priced_and_verified_with_what_it_chooses():
    problem, schedule = gated(), by_hand()
    verify(problem, schedule)
    assert simulate(problem, schedule).latency_ns == 115
    without, inner = resolved(problem, schedule)
    assert inner.problem == without.digest
    assert not inner.choice
    assert simulate(without, inner).latency_ns == 115
    assert with_choice(problem, inner, schedule.choice) == schedule


def test_files_name_the_choice_only_where_there_is_one(tmp_path):
    schedule = by_hand()
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert b"choice" not in msgspec.structs.replace(schedule, choice={}).to_json()


@pytest.mark.parametrize(
    ("choice", "said"), [({}, "names 'product'"), ({"gate": "else"}, "'else'"), ({"other": "apart"}, "'other'")]
)
def test_a_choice_that_does_not_fit_is_named(choice, said):
    wrong = msgspec.structs.replace(by_hand(), choice=choice)
    assert [v.rule for v in violations(gated(), wrong)] == ["problem"]
    with pytest.raises(ScheduleError, match=said):
        verify(gated(), wrong)


def test_a_choice_of_a_problem_without_variants_is_refused():
    problem = gated().resolve({})
    schedule = msgspec.structs.replace(by_hand(), problem=problem.digest)
    with pytest.raises(ScheduleError, match="no variants"):
        verify(problem, schedule)


def test_the_relaxed_problem_by_hand():
    """A head of 95 ns, and a tail of the 5 ns that it leaves of the fused kernel: at least ``up`` and the tail."""
    problem = relaxed(gated()).problem
    assert problem.costs.operator_ns[:, 0].tolist() == [100, 95, 5]
    assert problem.graph.operators[1].inputs == ("x",)
    assert 105 <= lower_bound(gated()).ns <= 115
    assert lower_bound(gated().resolve({})).ns == 200


def branching() -> Problem:
    """An operator of two results, each read by one of 1,000 ns, on two devices between which copies take 10,000 ns.

    Apart, each result is made by an operator of 10 ns on the device that reads it: 1,010 ns.
    """
    devices = gated().topology.devices
    topology = Topology("two", devices, links=(Link(tuple(d.name for d in devices), 1e9, 1e-5),))
    tensors = (Tensor("x", 1, "input"), *(Tensor(name, 10) for name in ("y1", "y2", "z1", "z2")))
    operators = (
        Operator("both", "", ("x",), ("y1", "y2")),
        Operator("c1", "", ("y1",), ("z1",)),
        Operator("c2", "", ("y2",), ("z2",)),
    )
    apart = Alternative("apart", (Operator("a", "", ("x",), ("y1",)), Operator("b", "", ("x",), ("y2",))))
    variants = Variants([Group("both", ("both",), (apart,))], Costs(np.full((2, 2), 10)))
    graph = OpGraph("branching", operators, tensors, ("z1", "z2"))
    return Problem(graph, topology, Costs(np.array([[10, 10], [1000, 1000], [1000, 1000]])), variants)


def test_the_bound_holds_where_several_operators_make_what_others_read():
    problem = branching()
    placements = (Placement("a", "cpu0"), Placement("b", "cpu1"), Placement("c1", "cpu0"), Placement("c2", "cpu1"))
    schedule = Schedule(problem.digest, placements, (), choice={"both": "apart"})
    verify(problem, schedule)
    assert simulate(problem, schedule).latency_ns == 1010
    assert 990 <= lower_bound(problem).ns <= 1010


def test_the_bound_knows_that_a_copy_may_be_sooner_there_by_way_of_another_device():
    """Work goes from a to b to c in 2 us of copies, while the link from a to c alone takes 10 us."""
    names = ("a", "b", "c")
    devices = tuple(msgspec.structs.replace(gated().topology.devices[0], name=name, bus="bus") for name in names)
    links = (
        Link(("a", "b"), 1e12, latency=1e-6),
        Link(("b", "c"), 1e12, latency=1e-6),
        Link(("a", "c"), 1e12, latency=1e-5),
    )
    tensors = (Tensor("x", 1, "input"), Tensor("p", 1, "parameter"), Tensor("y", 1))
    graph = OpGraph("way round", (Operator("whole", inputs=("x", "p"), outputs=("y",)),), tensors, ("y",))
    parts = (
        Operator("first", inputs=("x", "p"), outputs=("s",)),
        Operator("second", inputs=("s",), outputs=("t",)),
        Operator("third", inputs=("t",), outputs=("y",)),
    )
    apart = Alternative("apart", parts, (Tensor("s", 1), Tensor("t", 1)))
    never = FORBIDDEN
    others = Costs(np.array([[1000, never, never], [never, 1000, never], [never, never, 1000]]))
    variants = Variants([Group("whole", ("whole",), (apart,))], others)
    problem = Problem(
        graph,
        Topology("way", devices, (Bus("bus", 1e12, latency=2e-5),), links),
        Costs(np.array([[never, never, 10**5]])),
        variants,
    )
    placements = tuple(Placement(part.name, name) for part, name in zip(parts, names, strict=True))
    loads = (Transfer("load", "a", "x"), Transfer("load", "a", "p"))
    transfers = (*loads, Transfer("copy", "b", "s", "a"), Transfer("copy", "c", "t", "b"))
    schedule = Schedule(problem.digest, placements, transfers, choice={"whole": "apart"})
    verify(problem, schedule)
    assert lower_bound(problem).ns <= simulate(problem, schedule).latency_ns == 45004


def with_a_table(reader: str) -> Problem:
    """A table of which ``take`` reads a row and a product all, as a language model's whose last product has its embedding.

    The product can be computed in two parts, each of half of the table or, by rows, of all of it.
    """
    names = ("gpu0", "gpu1")
    devices = tuple(
        msgspec.structs.replace(gated().topology.devices[0], name=name, bus=f"bus {name}", kind="cuda", memory=1 << 20)
        for name in names
    )
    buses = tuple(Bus(device.bus, 1e9) for device in devices)
    topology = Topology("two", devices, buses, links=(Link(names, 1e12),))
    tensors = (Tensor("table", 100_000, "parameter"), Tensor("t", 10), Tensor("u", 10), Tensor("y", 20))
    graph = OpGraph(
        "tied",
        (
            Operator("take", inputs=("table",), outputs=("t",), read_bytes={"table": 10}),
            Operator("product", inputs=("t", "table"), outputs=("y",)),
        ),
        (*tensors[:2], tensors[3]),
        ("y",),
    )
    whole = reader == "rows"
    own = tuple(Tensor(f"half {k}", 50_000, "parameter") for k in range(2) if not whole)
    parts = tuple(
        Operator(f"part {k}", inputs=("t", "table" if whole else f"half {k}"), outputs=(f"y {k}",)) for k in range(2)
    )
    tail = Operator("tail", inputs=("y 0", "y 1"), outputs=("y",))
    alternative = Alternative("parts", (*parts, tail), (*own, *(Tensor(f"y {k}", 10) for k in range(2))))
    direct = np.array([[40, 40], [FORBIDDEN, FORBIDDEN]])
    variants = Variants([Group("product", ("product",), (alternative,))], Costs(np.full((3, 2), 100)))
    return Problem(graph, topology, Costs(np.full((2, 2), 200), direct), variants)


def test_a_table_that_is_also_weights_is_brought_once():
    """100,000 ns on one bus, half of that on two, whoever reads rows of it besides."""
    halves = lower_bound(with_a_table("columns")).ns
    assert 50_000 <= halves <= 50_400
    choice = {"product": "parts"}
    schedule = with_choice(
        with_a_table("columns"), solve(with_a_table("columns").resolve(choice), method="heft"), choice
    )
    assert halves <= simulate(with_a_table("columns"), schedule).latency_ns


def test_parts_by_rows_need_all_weights_but_no_bus_brings_them_twice():
    problem = with_a_table("rows")
    bound = lower_bound(problem).ns
    assert bound >= 50_000  # a half over each bus, and a copy of the other
    for choice in ({}, {"product": "parts"}):
        for method in ("single", "heft", "peft"):
            chosen = problem.resolve(choice)
            assert bound <= simulate(chosen, solve(chosen, method=method)).latency_ns


def test_the_relaxed_problem_has_names_of_its_own():
    """The graph has an operator and a tensor that are called as heads would be."""
    problem = gated()
    renamed = {"up": "gate/head0", "a": "gate/head0/host"}
    text = problem.to_json().decode()
    for old, new in renamed.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    same = Problem.from_json(text)
    assert same.graph.operators[0].name == "gate/head0"
    assert lower_bound(same).ns == lower_bound(problem).ns


@pytest.mark.parametrize("scheduler", ["anytime", "heft", "peft", "sortinghat"])
def test_schedulers_choose(scheduler):
    options = {"work": 0.1} if scheduler == "anytime" else {}
    schedule = solve(gated(), method=scheduler, options=options)
    assert schedule.choice == CHOICE
    assert schedule.certificate.latency_ns == 115


@pytest.mark.parametrize("scheduler", ["single", "hios-lp", "pipelined"])
def test_others_take_the_way_of_the_graph_and_have_the_bound_over_all(scheduler):
    schedule = solve(gated(), method=scheduler)
    assert not schedule.choice
    assert schedule.certificate.latency_ns == 200
    assert schedule.certificate.lower_bound_ns == lower_bound(gated()).ns


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(1, 12), devices=st.integers(1, 4), groups=st.integers(1, 3))
def test_no_bound_exceeds_a_schedule_of_any_choice(seed, operators, devices, groups):
    problem = random_variants(random_problem(seed, operators, devices, memory="generous"), seed, groups)
    if problem.variants is None:
        return
    bound = lower_bound(problem).ns
    for ways in itertools.islice(
        itertools.product(*(group.alternative_names for group in problem.variants.groups)), 16
    ):
        chosen = problem.resolve({g.name: way for g, way in zip(problem.variants.groups, ways, strict=True)})
        for schedule in (solve(chosen, method="peft"), random_schedule(chosen, seed)):
            assert bound <= simulate(chosen, schedule).latency_ns


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(1, 2), devices=st.integers(1, 2))
def test_no_bound_exceeds_the_optimum_over_all_choices(seed, operators, devices):
    problem = random_variants(random_problem(seed, operators, devices, memory="generous"), seed, 1)
    if problem.variants is None:
        return
    bound, (group,) = lower_bound(problem).ns, problem.variants.groups
    for way in group.alternative_names:
        try:
            least = least_latency(problem.resolve({group.name: way}), most_states=250)
        except TooLarge:
            continue
        assert least is None or bound <= least, way


@pytest.mark.parametrize(("price", "place"), [(2.0, 1), (100.0, 5), (math.inf, None)])
def test_the_graphs_own_ways_are_searched_beside_a_better_choice_that_is_alike(price, place):
    """Of forty groups one has another way; eight others differ in a fifth of the groups."""
    alike = {"g0": "apart"}
    others = [{f"g{i}": f"way{k}" for i in range(8)} for k in range(8)]
    prices = {1.0: alike, price: {}, **{3.0 + k: other for k, other in enumerate(others)}}
    known = {tuple(sorted(choice.items())): cost for cost, choice in prices.items()}
    problem = SimpleNamespace(variants=SimpleNamespace(groups=range(40)))
    found = ChoicePrices(problem, Budget(), known).best()
    assert (len(found), found[0]) == (6, alike)
    assert (found.index({}) if {} in found else None) == place


@pytest.mark.parametrize("seed", [25, 43])
def test_more_work_prices_a_choice_by_more_rules(seed):
    """The first rules miss the best list schedule of these problems by 13 %."""
    scenario = Scenario(random_variants(random_problem(seed, 18, 4, memory="generous"), seed, 3))
    one = scenario.resolve({})
    best = min(ScheduleIndex.of_sequence(one, each).objective_ns for each, _ in list_schedules(one, Searches(one)))
    little, much = (ChoicePrices(scenario, Budget(work)).of({}) for work in (0.001, 10.0))
    assert much <= best < little


def test_an_interrupted_choice_gives_the_best_so_far(monkeypatch):
    """Ctrl-C while list scheduling chooses: the search ends with what it has."""
    monkeypatch.setattr(scheduler, "quick_answers", lambda *_: ([], False))
    tried = []

    def step(self):
        if tried:
            raise KeyboardInterrupt
        tried.append(self._try({"gate": "apart"}))
        return True

    monkeypatch.setattr(ChoiceSearch, "step", step)
    schedule = solve(gated(), method="anytime", options={"work": 5.0})
    assert schedule.certificate.status == "interrupted"
    assert schedule.choice == CHOICE


def test_an_interrupt_in_the_race_is_said_of_the_best_of_all(monkeypatch):
    """Ctrl-C in the search with the graph's own ways, after that with better ones had its turn."""

    def interrupted_without_choice(state, turns, budget):
        status = improve(state, turns, budget)
        state.bound = 0.0  # so that it is not proved
        return "interrupted" if "gate" in state.scenario.graph.index.operator_id else status

    monkeypatch.setattr(scheduler, "promising_choices", lambda *_: ([CHOICE, {}], False))
    monkeypatch.setattr(race, "improve", interrupted_without_choice)
    schedule = solve(gated(), method="anytime", options={"work": 0.1})
    assert schedule.choice == CHOICE
    assert schedule.certificate.status == "interrupted"


def test_an_interrupt_before_the_second_choice_has_a_schedule_keeps_that_of_the_first(monkeypatch):
    """Ctrl-C in the first quick method of the graph's own ways."""
    monkeypatch.setattr(scheduler, "quick_answers", lambda *_: ([], False))

    def interrupted_without_choice(state, turns, budget):
        if "gate" in state.scenario.graph.index.operator_id:
            raise KeyboardInterrupt
        status = improve(state, turns, budget)
        state.bound = 0.0  # so that it is not proved
        return status

    monkeypatch.setattr(race, "improve", interrupted_without_choice)
    monkeypatch.setattr(scheduler, "promising_choices", lambda *_: ([CHOICE, {}], False))
    schedule = solve(gated(), method="anytime", options={"work": 0.1})
    assert (schedule.choice, schedule.certificate.status) == (CHOICE, "interrupted")
    monkeypatch.setattr(scheduler, "promising_choices", lambda *_: ([{}, CHOICE], False))
    with pytest.raises(KeyboardInterrupt):
        solve(gated(), method="anytime", options={"work": 0.1})


def test_no_choice_enters_a_race_after_its_deadline():
    """Where one has a schedule: what quick methods take is not counted as work."""

    class Slow:
        name = ""

        def step(self, state, budget):
            begun.append(state)
            race_budget.deadline = 0.0
            state.cost, state.best = 1.0, True
            return False

    begun: list[Incumbent] = []
    racers = [race.Racer({"number": str(k)}, Incumbent()) for k in range(4)]
    race_budget = Budget(2.0)
    found, status = race.race(racers, race_budget, lambda *_: [Turn(Slow(), 1.0)])
    assert begun == [racers[0].state]
    assert (found, status) == (racers[0], "time limit")


def test_the_graphs_own_ways_are_searched_where_no_other_fits(monkeypatch):
    """Nothing is found for the ways that seemed the best."""
    turns = scheduler.turns

    def only_for_the_graph(problem, *arguments, **named):
        return turns(problem, *arguments, **named) if "gate" in problem.graph.index.operator_id else []

    monkeypatch.setattr(scheduler, "quick_answers", lambda *_: ([], False))
    monkeypatch.setattr(scheduler, "promising_choices", lambda *_: ([CHOICE], False))
    monkeypatch.setattr(scheduler, "turns", only_for_the_graph)
    schedule = solve(gated(), method="anytime", options={"work": 0.1})
    assert not schedule.choice
    assert schedule.certificate.latency_ns == 200


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_race_ends_with_the_best_and_no_more_work_than_there_is(count):
    """Racers that need more or less work; the one that is last in the beginning is the best."""

    class Step:
        name = ""

        def __init__(self, racer, cost):
            self.racer, self.cost = racer, cost

        def step(self, state, budget):
            spent.setdefault(self.racer.choice["number"], []).append(budget.work)
            budget.spend(budget.work)
            state.cost, state.best = min(state.cost, self.cost), True
            return False

    spent: dict[int, list[float]] = {}
    racers = [race.Racer({"number": k}, Incumbent()) for k in range(count)]
    budget = Budget(2.0)
    found, _ = race.race(racers, budget, lambda racer, work, _: [Turn(Step(racer, 10.0 - racer.choice["number"]), 1.0)])
    assert found.choice["number"] == count - 1
    assert budget.spent == pytest.approx(2.0)
    assert spent[count - 1] == sorted(spent[count - 1])
    assert spent[count - 1][-1] == pytest.approx(2.0 if count == 1 else 2.0 * (1 - race.RACE))
    assert sum(len(each) for each in spent.values()) == {1: 1, 2: 3, 3: 6, 6: 12}[count]


def test_no_byte_of_weights_is_lost_where_ways_divide_two_products_differently():
    """Products with weights of 3,000 and 1,000 bytes; in parts, four kernels have 750 of the one, two 500 of the other."""
    bus = Bus("pcie", 1e9)
    changes = {"bus": "pcie", "memory": 1 << 20, "kind": "cuda"}
    devices = tuple(msgspec.structs.replace(device, **changes) for device in gated().topology.devices)
    topology = Topology("two", devices, (bus,), gated().topology.links)
    weights = {"w": 3000, "v": 1000, **{f"w{k}": 750 for k in range(4)}, **{f"v{k}": 500 for k in range(2)}}
    tensors = {name: Tensor(name, size, "parameter") for name, size in weights.items()}
    of_graph = (Tensor("x", 10, "input"), Tensor("a", 10), Tensor("y", 10), tensors["w"], tensors["v"])
    operators = (Operator("first", "product", ("x", "w"), ("a",)), Operator("second", "product", ("a", "v"), ("y",)))
    made = tuple(Operator(f"first/{k}", "product", ("x", f"w{k}"), (f"a{k}",)) for k in range(4))
    ends = tuple(
        Operator(f"second/{k}", "product", (f"a{2 * k}", f"a{2 * k + 1}", f"v{k}"), (f"b{k}",)) for k in range(2)
    )
    join = Operator("join", "add", ("b0", "b1"), ("y",))
    own = tuple(Tensor(operator.outputs[0], 10) for operator in (*made, *ends))
    parts = Alternative("tensor/2", (*made, *ends, join), (*own, *(tensors[n] for n in weights if n not in ("w", "v"))))
    graph = OpGraph("two products", operators, of_graph, ("y",))
    costs = Costs(np.full((2, 2), 100)), Costs(np.full((7, 2), 50))
    problem = Problem(graph, topology, costs[0], Variants([Group("both", ("first", "second"), (parts,))], costs[1]))
    sizes = {
        tensor.name: tensor.size for tensor in relaxed(problem).problem.graph.tensors if tensor.kind == "parameter"
    }
    assert sizes.pop(relaxed(problem).combined["both"]) == 10  # the input
    assert sum(sizes.values()) == 4000


def in_parts(problem: Problem, seed: int) -> Problem | None:
    """The problem in which an operator and the one reader of its result can be computed in parts, which are added.

    In some each part has its part of all parameters, in others all of them, as parts by rows do.
    """
    random, graph, index = Random(f"{seed} parts"), problem.graph, problem.graph.index
    pairs = [
        (a, b)
        for a, first in enumerate(graph.operators)
        if len(first.outputs) == 1 and (t := index.outputs[a][0]) not in index.graph_outputs
        for b in set(index.consumers[t])
        if len(set(index.consumers[t])) == 1 and graph.operators[b].outputs
    ]
    if not pairs:
        return None
    first, last = (graph.operators[o] for o in random.choice(pairs))
    size = {tensor.name: tensor for tensor in graph.tensors}
    count, own, operators, times = random.choice([2, 3]), list[Tensor](), list[Operator](), list[int]()
    shared = set(last.inputs) - set(first.outputs)
    rows = random.random() < 0.4
    for k in range(count):
        for operator, made in ((first, f"first {k}"), (last, f"last {k}")):
            inputs = [f"first {k}"] if operator is last else []
            for name in dict.fromkeys(operator.inputs):
                if size[name].kind == "parameter" and rows:
                    inputs.append(name)
                elif size[name].kind == "parameter":
                    own.append(Tensor(f"{name}/{operator.name}/{k}", -(-size[name].size // count), "parameter"))
                    inputs.append(own[-1].name)
                elif operator is first or (
                    name in shared and size[name].kind == "activation" and random.random() < 0.5
                ):
                    inputs.append(name)
            own.append(Tensor(made, random.randint(0, 2000)))
            operators.append(Operator(made, "part", tuple(inputs), (made,)))
            whole = int(problem.costs.operator_ns[index.operator_id[operator.name]].min())
            times.append(max(1, whole // random.choice([1, count, 2 * count])))
    late = [name for name in dict.fromkeys(last.inputs) if name in shared and size[name].kind == "activation"]
    operators.append(Operator("sum", "add", (*(f"last {k}" for k in range(count)), *late), last.outputs))
    times.append(random.randint(1, 50))
    devices = len(problem.topology.devices)
    alternative = Alternative(f"tensor/{count}", tuple(operators), tuple(own))
    costs = Costs(np.repeat(np.array(times)[:, None], devices, 1))
    group = Group(last.name, (first.name, last.name), (alternative,))
    try:
        return Problem(graph, problem.topology, problem.costs, Variants([group], costs))
    except ProblemError:  # another path leads from one to the other
        return None


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(2, 10), devices=st.integers(1, 4))
def test_no_bound_exceeds_a_schedule_of_operators_in_parts(seed, operators, devices):
    problem = in_parts(random_problem(seed, operators, devices, memory="generous"), seed)
    if problem is None:
        return
    bound, (group,) = lower_bound(problem).ns, problem.variants.groups
    for way in group.alternative_names:
        chosen = problem.resolve({group.name: way})
        for schedule in (
            solve(chosen, method="peft"),
            solve(chosen, method="anytime", options={"work": 0.05}),
            random_schedule(chosen, seed),
        ):
            assert bound <= simulate(chosen, schedule).latency_ns
