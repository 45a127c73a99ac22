"""No bound is above the latency of any feasible schedule; some are worked out by hand."""

from itertools import combinations, product
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker.cases import chain_of_readers, fan, files_of
from schedule import cases
from schedulers.anytime_cases import diamonds, two_gpus
from schedulers.exhaustive import TooLarge, least_latency, least_layered_latency
from thorough import examples
from tvm_sched.bounds import all_bounds, lower_bound, path_and_bus, region_placement, whole_ns
from tvm_sched.bounds.bus import Crossing, readers_by_tail
from tvm_sched.bounds.device_work import device_work_bound, head_side, tail_side
from tvm_sched.bounds.heads_and_tails import Side, between_ends, device_weights
from tvm_sched.bounds.neighbours import Neighbour, together_or_apart
from tvm_sched.bounds.relaxation import Relaxation
from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched.progress import report_to
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem, random_schedule, random_variants
from tvm_sched_bench.testing.hios_problems import LayeredGraph, random_layered
from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, Bus, Costs, Device, Link, Operator, OpGraph, Problem, Tensor, Topology
from tvm_sched_runtime.schedule import simulate


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(1, 4), devices=st.integers(1, 3))
def test_no_bound_exceeds_the_optimum_of_tiny_problems(seed, operators, devices):
    problem = random_problem(seed, operators, devices)
    try:
        least = least_latency(problem, most_states=1500)
    except TooLarge:
        return
    for bound in all_bounds(problem):
        assert least is None or bound.ns <= least, bound


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(2, 4), devices=st.integers(1, 3), data=st.data())
def test_path_and_bus_hold_by_any_weights(seed, operators, devices, data):
    """Not by those of the linear program alone, for the transfers of any number of operators."""
    problem = random_problem(seed, operators, devices, style="bus")
    relaxation = Relaxation(problem)
    follows, order = readers_by_tail(relaxation)
    if not order:
        return
    try:
        least = least_latency(problem, most_states=1500)
    except TooLarge:
        return
    count = data.draw(st.integers(1, len(order)))
    crossing = Crossing(0.0, follows[order[count - 1]], order[:count])
    flow = {}
    for chain in data.draw(st.lists(st.lists(st.sampled_from(range(operators)), max_size=4), max_size=3)):
        at, weight = -1, data.draw(st.floats(0, 1))
        for o in chain:
            if at < 0 or at in problem.graph.index.predecessors[o]:
                flow[at, o] = flow.get((at, o), 0.0) + weight
                at = o
    dual = path_and_bus.PathDual(relaxation, crossing)
    weights = dual.integer_weights(flow, data.draw(st.floats(0, 1e9)), data.draw(st.floats(0, 1e9)))
    assert least is None or whole_ns(dual.value(weights)) <= least


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(0, 30), devices=st.integers(1, 6))
def test_no_bound_exceeds_a_schedule(seed, operators, devices):
    problem = random_problem(seed, operators, devices)
    latency = simulate(problem, random_schedule(problem, seed)).latency_ns
    for bound in all_bounds(problem) if operators else [lower_bound(problem)]:
        assert bound.ns <= latency, bound


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 100_000),
    operators=st.integers(4, 7),
    devices=st.integers(2, 3),
    communication=st.sampled_from([0.1, 0.5, 1.5]),
)
def test_no_bound_exceeds_the_optimum_where_copies_wait_for_nothing(seed, operators, devices, communication):
    graph = random_layered(seed, operators, 3, operators, communication)
    least = least_layered_latency(graph, devices)
    for bound in all_bounds(graph.problem(devices, concurrency=False)):
        assert bound.ns <= least, bound


def test_of_a_table_that_is_read_directly_its_rows_cross():
    """A lookup of 30 of 1000 bytes, then 50 ns of work on another parameter of 100 bytes: at a byte a nanosecond."""
    lookup = Operator("lookup", "take", ("w table",), ("a",), read_bytes={"w table": 30})
    work = Operator("work", "matmul", ("a", "w"), ("b",))
    tensors = (Tensor("w table", 1000, "parameter"), Tensor("w", 100, "parameter"), Tensor("a", 1), Tensor("b", 1))
    topology = cases.topology(cases.device("d", "bus"), buses=[cases.bus("bus")])
    problem = cases.problem(OpGraph("case", (lookup, work), tensors, ("b",)), topology, [[10], [50]], [[35], [None]])
    whole = cases.problem(
        OpGraph("case", (msgspec.structs.replace(lookup, read_bytes=msgspec.UNSET), work), tensors, ("b",)),
        topology,
        [[10], [50]],
    )
    for each, latency in ((problem, 30 + 100 + 50), (whole, 1000 + 100 + 50)):
        certificate = solve(each, method="anytime", options={"work": 0.1}).certificate
        assert (certificate.latency_ns, certificate.status) == (latency, "optimal")


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 100_000),
    operators=st.integers(6, 40),
    devices=st.integers(2, 9),
    layers=st.integers(2, 6),
    stages=st.booleans(),
)
def test_no_bound_exceeds_a_good_schedule_of_a_layered_graph(seed, operators, devices, layers, stages):
    edges = min(2 * operators, operators * operators // 5)
    try:
        graph = random_layered(seed, operators, layers, edges)
    except ValueError:  # more edges than fit between so few layers
        return
    problem = graph.problem(devices, concurrency=stages)
    latency = solve(problem, method="anytime", options={"work": 0.05}).certificate.latency_ns
    for bound in all_bounds(problem):
        assert bound.ns <= latency, bound


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("most_devices", "decided"), [(1, 10), (16, 2)])
def test_no_bound_exceeds_a_schedule_where_regions_are_simplified(monkeypatch, most_devices, decided):
    monkeypatch.setattr(region_placement, "MOST_DEVICES", most_devices)
    monkeypatch.setattr(region_placement, "DECIDED", {decided: 1000})
    for seed in range(examples(20)):
        problem = random_problem(seed, 12, 3, memory="generous")
        options = {"work": 0.05}
        latency = solve(problem, method="anytime", options=options).certificate.latency_ns
        assert all(bound.ns <= latency for bound in all_bounds(problem))


def test_bounds_of_a_diamond_by_hand():
    problem = Problem(diamonds(1), two_gpus(), Costs([[100, 100]] * 3))
    bounds = {bound.name: bound.ns for bound in all_bounds(problem)}
    # One parameter (1000 ns) must come before a branch and the join; 2008 bytes over both buses take 1004, then 200 follow.
    # The device work is 300 over two devices, of which neither starts before 1000 and one has no join: what it ends with
    # is followed by a copy of 8 and the join, (1000 + 1000 + 300 + 108) / 2.
    # Latencies are whole nanoseconds, and so are bounds of them: nothing is lost to rounding.
    assert bounds["critical path"] == 1200
    assert bounds["bus"] == 1204
    assert bounds["device work"] == 1204


def test_path_and_buses_are_weighed_together():
    """Normal 10 and 200 on the bus, or direct 160 and 150: by a quarter and three quarters 152.5 either way, then 7.5."""
    problem = chain_of_readers(4)
    bounds = {bound.name: bound.ns for bound in all_bounds(problem)}
    assert bounds == {"critical path": 610, "device work": 610, "bus": 610, "path and bus": 618}
    assert lower_bound(problem).ns <= solve(problem, method="anytime", options={"work": 0.2}).certificate.latency_ns


def test_what_takes_too_little_for_the_solver_still_starts_the_path():
    """Operators of 1000, 1e11 and 1e12 ns: the solver tells 1e-9 of the run from nothing as little as it likes."""
    chain, never = chain_of_readers(3), FORBIDDEN
    costs = Costs([[never], [never], [never]], [[1000], [10**11], [10**12]])
    dual = path_and_bus.PathDual(
        Relaxation(Problem(chain.graph, chain.topology, costs)), Crossing(0.0, 850.0, [0, 1, 2])
    )
    steps = {(0, 1): 1.0, (1, 2): 1.0}  # as by a solver that takes the first one to end at 0
    assert dual.value(dual.integer_weights(steps, 0.0, 0.0)) == 1.1 * 10**12 + 1000
    assert dual.value(dual.integer_weights({}, 0.0, 0.0)) == 0
    some = dual.integer_weights({(-1, 0): 0.25, (0, 1): 0.5, (1, 2): 0.75}, 0.0, 0.0)
    assert [some.steps[step] / path_and_bus.SCALE for step in ((-1, 0), (0, 1), (-1, 1), (1, 2))] == [
        0.5,
        0.5,
        0.25,
        0.75,
    ]


def test_where_no_schedule_exists_there_is_no_bound():
    """Between a source and a join, of two branches each can run on a device of its own alone, and nothing joins these."""
    never, topology = FORBIDDEN, cases.topology(cases.device("d0"), cases.device("d1"))
    problem = Problem(fan(10).graph, topology, Costs([[1, never], [1, never], [never, 1], [1, never]]))
    for ask in (lower_bound, lambda each: solve(each, method="anytime", options={"work": 0.01})):
        with pytest.raises(InfeasibleError, match="without a route"):
            ask(problem)


def test_a_host_tensor_bound_counts_direct_reads():
    direct = [[1050, 1050], [1050, 1050], [2**63 - 1] * 2]
    problem = Problem(diamonds(1), two_gpus(), Costs([[100, 100]] * 3, direct))
    bound = lower_bound(problem)
    # 1004 ns on the buses, at least 42 ns of a kernel that reads directly, the join.
    assert 1004 + 42 + 100 <= bound.ns <= solve(problem, method="anytime", options={"work": 0.2}).certificate.latency_ns


def test_unequal_devices_share_the_work():
    # Ten operators of 10 on the fast and 30 on the slow device: at best the fast one has three quarters of them.
    weights = device_weights(np.array([[10.0, 30.0]] * 10))
    assert 74 < (np.array([[10.0, 30.0]] * 10) * weights).min(axis=1).sum() <= 75
    assert abs(weights.sum() - 1) < 1e-9


def test_neighbours_share_a_device_or_pay_for_copies():
    # Two of 100 from time 0, copies of 30: together 200; one apart, 130 with the other here at 100: the least is 130.
    assert together_or_apart([Neighbour(0, 100, 130), Neighbour(0, 100, 130)]) == 130
    # Copies of 300: both together, 200. One may start only at 150: 250.
    assert together_or_apart([Neighbour(0, 100, 400), Neighbour(0, 100, 400)]) == 200
    assert together_or_apart([Neighbour(0, 100, 400), Neighbour(150, 100, 550)]) == 250
    # One copy is long, the other short: the first here, 100, the second's copy at 110.
    assert together_or_apart([Neighbour(0, 100, 400), Neighbour(0, 100, 110)]) == 110


@pytest.mark.parametrize(("linked", "ns"), [(False, 280), (True, 190)])
def test_copies_to_a_device_take_turns(linked, ns, tmp_path):
    """Four operators of 100 ns hand copies of 90 ns to a fifth of 10, on three GPUs on buses, or joined by links as well."""
    devices = tuple(Device(f"g{k}", 10**6, 1e9, {"float32": 1e9}, bus=f"b{k}") for k in range(3))
    pairs = combinations([device.name for device in devices], 2)
    links = tuple(Link(pair, 1e9) for pair in pairs) if linked else ()
    machine = Topology("gpus", devices, tuple(Bus(f"b{k}", 1e9) for k in range(3)), links)
    operators = [Operator(f"o{k}", outputs=(f"a{k}",)) for k in range(4)]
    operators.append(Operator("last", inputs=tuple(f"a{k}" for k in range(4)), outputs=("y",)))
    graph = OpGraph("five", tuple(operators), (*(Tensor(f"a{k}", 90) for k in range(4)), Tensor("y", 1)), ("y",))
    problem = Problem(graph, machine, Costs([[100] * 3] * 4 + [[10] * 3]))
    assert {bound.name: bound.ns for bound in all_bounds(problem)}["critical path"] == ns + 10
    best = solve(problem, options={"work": 0.1})
    assert files_of(problem, best).check(tmp_path).all_proved


def test_neighbours_share_a_device_in_the_best_of_all_sets():
    random = Random(37)
    for _ in range(200):
        heads = [random.randint(0, 30) for _ in range(random.randint(1, 6))]
        beside = [Neighbour(head, work := random.randint(0, 20), head + work + random.randint(0, 60)) for head in heads]
        least = np.inf
        for chosen in product((False, True), repeat=len(beside)):
            here = [each for each, on in zip(beside, chosen, strict=True) if on]
            first = [one.head + sum(other.work for other in here if other.head >= one.head) for one in here]
            least = min(least, max([*first, *(each.apart for each, on in zip(beside, chosen, strict=True) if not on)]))
        assert together_or_apart(beside) == least


def test_thousands_of_neighbours_with_long_copies_are_few_steps():
    steps = 0

    class Counted(Neighbour):
        @property
        def work(self):
            nonlocal steps
            steps += 1
            return 1.0

    count = 1000  # all share the device: each copy takes longer than all work
    assert together_or_apart([Counted(0.0, 1.0, 1e6 + i) for i in range(count)]) == count
    assert steps < 20 * count


def test_work_between_both_ends():
    # Ten units of work from 5 on that 7 must follow, and a little before and after: neither end alone gives 5 + 10 + 7.
    work, start, after = np.array([1.0, 10.0, 1.0]), np.array([0.0, 5.0, 15.0]), np.array([17.0, 7.0, 0.0])
    assert between_ends(work, Side.level(start), Side.level(after), np.array([1.0])).ns == 22


def test_devices_without_a_seed_start_late():
    # Two devices of weight a half. A seed runs from 0 to 2; others of 8 and 9 may start beside it at 2, elsewhere at 6 and
    # at 7. Of these two, one device has the first at 2 at best, the other at 6: (2 + 6 + 8 + 9) / 2, no less than 7 (with
    # the seed it is (0 + 6 + 2 + 8 + 9) / 2, the same). From the other end it is alike.
    ramp = Side(np.array([0.0, 2, 2]), np.array([np.inf, 6, 7]), 1)
    level, half = Side.level(np.zeros(3)), np.array([0.5, 0.5])
    work = half[0] * np.array([2.0, 8, 9])
    assert between_ends(work, ramp, level, half).ns == 12.5
    assert between_ends(work, level, ramp, half).ns == 12.5


def test_devices_have_different_first_operators():
    # Three of 10 that may start at 0, 1 and 2, on two devices: (0 + 1 + 30) / 2.
    start, level = Side.level(np.array([0.0, 1, 2])), Side.level(np.zeros(3))
    assert between_ends(np.full(3, 5.0), start, level, np.array([0.5, 0.5])).ns == 15.5


def test_idle_devices_lift_no_bound():
    # One operator of 2 from 0 on and one from 100 on, followed by nothing: one device may have both. 102, not (100 + 4) / 2
    # of both, nor (0 + 2) / 2 + 100.
    start, level = Side.level(np.array([0.0, 100])), Side.level(np.zeros(2))
    assert between_ends(np.full(2, 1.0), start, level, np.array([0.5, 0.5])).ns <= 102


def test_what_idle_devices_lift_only_by_rounding_is_no_bound():
    """Two operators in turn, devices of speeds 1, 2, 3, 2: 4 + 6 + 4 of both is the last start and the longest tail, 7 + 7.

    With weights in integers, as evidence has them, it may be less than these. The first alone: 0 + 3 + 7.
    """
    weights = np.array([6, 3, 2, 3]) / 14
    work = (np.outer([7, 7], [1, 2, 3, 2]) * weights).min(axis=1)
    start, after = Side.level(np.array([0.0, 7])), Side.level(np.array([7.0, 0]))
    assert between_ends(work, start, after, weights).ns == pytest.approx(10)


def test_devices_wait_for_copies_at_both_ends():
    # A source, eight behind it, a sink, each of 100, copies of 30: elsewhere than the source nothing starts before 130,
    # elsewhere than the sink nothing is followed by less than 130. The sink starts at 230, beside one of the eight.
    edges = tuple((0, o, 3e-5) for o in range(1, 9)) + tuple((o, 9, 3e-5) for o in range(1, 9))
    relaxation = Relaxation(LayeredGraph((1e-4,) * 10, (1.0,) * 10, edges).problem(3, concurrency=False))
    start, after = head_side(relaxation), tail_side(relaxation)
    assert start.elsewhere.tolist() == [np.inf, *[130] * 8, 230]
    assert after.elsewhere.tolist() == [430, *[130] * 8, np.inf]
    assert (start.seeds, after.seeds) == (1, 1)
    # Source and sink of one device, or of two: (0 + 130 + 130 + 1000 + 0 + 130 + 130) / 3.
    assert device_work_bound(relaxation) == pytest.approx(1520 / 3)


def test_evidence_reports_its_parts():
    said = []
    for seed in range(2):
        problem = random_problem(seed, operators=6)
        with report_to(lambda *heard: said.append(heard)):
            evidence(problem if seed else random_variants(problem, seed))
    assert said == [(what, done, 4) for done, what in enumerate(("bound", "variants", "arguments", "lemmas"))] * 2


@pytest.mark.parametrize("seed", range(12))
def test_work_between_ends_is_the_best_of_all_thresholds_and_prefixes(seed):
    # In whole numbers: weights are parts of 8, so every sum is exact.
    random = Random(seed)
    operators, shares = random.randint(1, 7), [[8], [4, 4], [5, 3], [3, 3, 2]][seed % 4]
    work = [random.randint(0, 40) * 8 for _ in range(operators)]
    sides = []
    for _ in range(2):
        anywhere = [random.randint(0, 30) for _ in range(operators)]
        seeds = random.randint(0, 1)
        elsewhere = [np.inf if o < seeds else t + seeds * random.randint(0, 9) for o, t in enumerate(anywhere)]
        sides.append((anywhere, elsewhere, seeds))

    def least_sum(side, chosen):
        """Return the least sum of shares times the times of different operators, and the largest time in it."""
        anywhere, elsewhere, seeds = side
        others = sorted(elsewhere[o] for o in chosen if elsewhere[o] < np.inf)
        times = [min(anywhere[o] for o in chosen)] * seeds + others
        times = (times or [min(anywhere[o] for o in chosen)])[: len(shares)]
        times += [times[-1]] * (len(shares) - len(times))
        return sum(share * t for share, t in zip(shares, times, strict=True)), times[-1]

    best, (start, after) = 0, sides
    order = sorted(range(operators), key=lambda o: -after[1][o])
    for threshold in {t for t in start[1] if t < np.inf}:
        late = [o for o in order if start[1][o] >= threshold]
        for count in range(1, len(late) + 1):
            (before, latest), (behind, longest) = (least_sum(side, late[:count]) for side in sides)
            bound = before + sum(work[o] for o in late[:count]) + behind
            if bound > 8 * (latest + longest):
                best = max(best, bound)
    start, after = (Side(np.array(a, float), np.array(e, float), seeds) for a, e, seeds in sides)
    assert between_ends(np.array(work) / 8, start, after, np.array(shares) / 8).ns == best / 8
