"""Stream allocation and launch orders: small graphs by hand, and what holds for all."""

from functools import partial
from itertools import combinations, pairwise
from random import Random

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from schedule.cases import device, graph, problem, schedule, topology
from strategies import scheduled_problems
from thorough import examples
from tvm_sched.streams import (
    ALLOCATORS,
    LAUNCH_ORDERS,
    allocate_streams,
    choose_streams,
    count_synchronizations,
    limit_streams,
    order_launches,
)
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Concurrency, Costs, Demand, KernelResources, Link, Problem
from tvm_sched_runtime.schedule import simulate, violations


def dag(edges, names=None):
    """Operators of 100 ns on one device, listed in order of name, which is topological; edges "ab"."""
    names = sorted(set("".join(edges))) if names is None else list(names)
    operators = [(n, " ".join(e for e in edges if e[1] == n), " ".join(e for e in edges if e[0] == n)) for n in names]
    return problem(graph(dict.fromkeys(edges, 8), operators), topology(device("d0")), [[100]] * len(names))


def in_order(p):
    return schedule(p, [f"{operator.name} d0" for operator in p.graph.operators])


def streams(p, method):
    found = allocate_streams(p, in_order(p), method)
    return "".join(str(placement.stream) for placement in found.placements)


# a feeds b, c and d; b and c feed e, e and d feed f; f also reads a's result, which its order implies.
INCEPTION = dag(["ab", "ac", "ad", "be", "ce", "ef", "df", "af"])


def test_one_stream():
    assert streams(INCEPTION, "one") == "000000"


def test_opara_gives_each_operator_the_stream_of_its_first_predecessor_that_nothing_follows():
    # b follows a, c and d need new streams; e follows b (0), f follows d (2): its predecessors are a, d and e in order.
    assert streams(INCEPTION, "opara") == "001202"


def algorithm_1(names, edges):
    """Opara's Algorithm 1 as printed; streams are numbered in the order in which they are launched."""
    flag, stream, launched = dict.fromkeys(names, False), dict.fromkeys(names), 0
    for v in names:
        for p in sorted(u for u, w in edges if w == v):
            if not flag[p]:
                stream[v], flag[p] = stream[p], True
                break
        if stream[v] is None:
            stream[v], launched = launched, launched + 1
    return list(stream.values())


def test_opara_is_algorithm_1_as_printed():
    for seed in range(100):
        random = Random(seed)
        names = "abcdefghij"[: random.randint(2, 10)]
        edges = [a + b for a, b in combinations(names, 2) if random.random() < 0.35]
        p = dag(edges, names)
        found = allocate_streams(p, in_order(p), "opara")
        assert [placement.stream for placement in found.placements] == algorithm_1(names, edges), edges


def test_nimble_needs_as_many_streams_as_operators_that_run_at_once():
    found = streams(INCEPTION, "nimble")
    assert len(set(found)) == 3
    assert found[0] == found[1] == "0"


def test_wavefront_spreads_each_depth():
    assert streams(INCEPTION, "wavefront") == "001200"


def test_synchronisations_that_remain():
    # Streams 001202: c and d wait for a, e for c, f for e. f need not wait for a: its stream does.
    s = allocate_streams(INCEPTION, in_order(INCEPTION), "opara")
    assert count_synchronizations(INCEPTION, s) == 4
    assert count_synchronizations(INCEPTION, allocate_streams(INCEPTION, in_order(INCEPTION), "one")) == 0


def test_a_wait_that_another_implies_is_none():
    # Streams by hand: a, b on 0; c, d on 1. c waits for b, which follows a: d's wait for a is implied.
    p = dag(["ab", "bc", "ad", "cd"])
    placements = tuple(
        msgspec.structs.replace(q, stream=k) for q, k in zip(in_order(p).placements, (0, 0, 1, 1), strict=True)
    )
    assert count_synchronizations(p, msgspec.structs.replace(in_order(p), placements=placements)) == 1


def test_nimble_matches_where_greed_would_not():
    # a can go on with c or d, b only with c: two chains, a-d and b-c.
    p = dag(["ac", "ad", "bc"])
    assert len(set(streams(p, "nimble"))) == 2


MODULES = dag(["ab", "ac", "bd", "cd", "de", "df", "eg", "fg"])
"""Two modules of two branches each."""


def test_fewest_goes_on_with_any_operator_that_follows():
    assert len(set(streams(MODULES, "opara"))) == 3
    assert len(set(streams(MODULES, "fewest"))) == 2


def test_nimble_joins_a_chain_with_one_that_begins_behind_its_end():
    # Chains of edges: a b d e g, c and f. From c's end a path leads to f, so that they share a stream.
    assert streams(MODULES, "nimble") == "0010010"


def test_googlenet_has_28_chains_of_edges_and_four_streams_by_nimble():
    # Nine modules of four branches, each between two operators that all branches meet.
    operators = [("o0", "", "t0")]
    for m in range(9):
        branches = [(f"b{m}{k}", f"t{m}", f"u{m}{k}") for k in range(4)]
        operators += [*branches, (f"o{m + 1}", " ".join(f"u{m}{k}" for k in range(4)), f"t{m + 1}")]
    tensors = dict.fromkeys((made for _, _, made in operators), 8)
    p = problem(graph(tensors, operators), topology(device("d0")), [[100]] * len(operators))

    def count(method):
        return len({q.stream for q in allocate_streams(p, in_order(p), method).placements})

    assert {method: count(method) for method in ("opara", "nimble", "fewest")} == {
        "opara": 28,
        "nimble": 4,
        "fewest": 4,
    }


@pytest.mark.parametrize(
    ("method", "expected"),
    [("depth-first", "adcbef"), ("breadth-first", "abcdef"), ("critical-path", "abcdef"), ("opara", "adbcef")],
)
def test_launch_orders(method, expected):
    # Opara: memory-bound a and d, the rest compute-bound; b asks for less than c. After a comes a compute-bound one if
    # there is one: none but b and c are free, and d.
    demands = {
        n: Demand((KernelResources(1, 32 * warps),), n in "ad", "launch")
        for n, warps in zip("abcdef", (1, 2, 3, 1, 1, 1), strict=True)
    }
    if method == "opara":
        expected = "abdcef"
    found = order_launches(INCEPTION, in_order(INCEPTION), method, demands)
    assert "".join(placement.operator for placement in found.placements) == expected


def test_oparas_program_begins_with_compute_lets_turns_lapse_and_asks_for_shared_memory_alone():
    # No compute-bound one is free at first, so that its turn lapses and a begins; d is next, since it is memory's turn.
    # c takes less shared memory than b, though more threads; memory's turn lapses before b.
    warps, shared = dict(zip("abcdef", (1, 2, 3, 1, 1, 1), strict=True)), {"b": 2048, "c": 1024}
    demands = {
        n: Demand((KernelResources(1, 32 * warps[n], shared_memory=shared.get(n, 0)),), n in "ad", "launch")
        for n in "abcdef"
    }
    found = order_launches(INCEPTION, in_order(INCEPTION), "opara-program", demands)
    assert "".join(placement.operator for placement in found.placements) == "adcbef"


def test_best_is_never_slower_than_one_stream_and_takes_streams_that_help():
    p = INCEPTION
    for used, latency in ((0.3, 400), (1.0, 600)):
        together = Concurrency(np.full((6, 1, 1), used))
        q = Problem(p.graph, p.topology, Costs(p.costs.operator_ns, concurrency=together))
        assert simulate(q, allocate_streams(q, in_order(q), "best")).latency_ns == latency


def costly(p, stream_overhead, wait_overhead=0.0, used=0.3):
    """The problem with operators that overlap, on a device whose streams cost something."""
    (d,) = p.topology.devices
    d = msgspec.structs.replace(d, stream_overhead=stream_overhead, wait_overhead=wait_overhead)
    together = Concurrency(np.full((len(p.graph.operators), 1, 1), used))
    return Problem(
        p.graph, msgspec.structs.replace(p.topology, devices=(d,)), Costs(p.costs.operator_ns, concurrency=together)
    )


@pytest.mark.parametrize(
    ("stream", "wait", "method", "latency"),
    [
        (0, 0, "nimble", 500),  # a, b and c, d, e and f, g
        (30e-9, 0, "opara", 560),  # two streams more
        (30e-9, 0, "fewest", 530),  # one
        (30e-9, 0, "one", 700),
        (0, 7e-9, "fewest", 528),  # c, d, f and g wait for the other stream
    ],
)
def test_streams_and_waits_cost_what_the_device_says(stream, wait, method, latency):
    p = costly(MODULES, stream, wait)
    assert simulate(p, allocate_streams(p, in_order(p), method)).latency_ns == latency


def test_the_best_streams_are_few_where_they_cost_something_and_one_where_they_gain_nothing():
    for overhead, count, latency in ((30e-9, 2, 530), (250e-9, 1, 700)):
        p = costly(MODULES, overhead)
        for choose in (partial(allocate_streams, method="best"), choose_streams):
            found = choose(p, in_order(p))
            assert len({placement.stream for placement in found.placements}) == count
            assert simulate(p, found).latency_ns == latency


def test_a_launch_order_that_is_not_topological_keeps_its_streams():
    d = msgspec.structs.replace(device("d0"), stream_overhead=30e-9)
    tensors, operators = {"t": 8, "y": 8}, [("a", "", "t"), ("b", "t", "y")]
    together = Concurrency(np.full((2, 2, 1), 0.3))
    devices = d, msgspec.structs.replace(d, name="d1")
    place = topology(*devices, links=[Link(("d0", "d1"), 1e9)])
    p = Problem(graph(tensors, operators), place, Costs([[100, 100]] * 2, concurrency=together))
    backwards = schedule(p, ["b d1", "a d0"], ["copy t d0 d1"])
    assert simulate(p, backwards).latency_ns == 208
    assert choose_streams(p, backwards) == backwards


def test_streams_that_cost_something_are_joined():
    # a feeds eight others, of which a half of the device takes two: with eight streams more is paid than gained.
    p = costly(dag([f"a{n}" for n in "bcdefghi"]), 60e-9, used=0.25)
    found = choose_streams(p, in_order(p))
    assert len({placement.stream for placement in found.placements}) == 4
    assert simulate(p, found).latency_ns == 100 + 2 * 100 + 3 * 60
    with pytest.raises(InputError, match="most is 0"):
        limit_streams(p, found, 0)


def test_what_is_refused():
    s = in_order(INCEPTION)
    with pytest.raises(InputError, match="no stream allocator 'two'; there are one, opara"):
        allocate_streams(INCEPTION, s, "two")
    with pytest.raises(InputError, match="no launch order 'x'"):
        order_launches(INCEPTION, s, "x")
    with pytest.raises(InputError, match="demands has no 'a'"):
        order_launches(INCEPTION, s, "opara", {})
    staged = msgspec.structs.replace(
        s, placements=(msgspec.structs.replace(s.placements[0], stage=1), *s.placements[1:])
    )
    with pytest.raises(InputError, match="has stages"):
        allocate_streams(INCEPTION, staged)
    backwards = (s.placements[1], s.placements[0], *s.placements[2:])
    with pytest.raises(InputError, match="'b' stands before one that it reads from"):
        allocate_streams(INCEPTION, msgspec.structs.replace(s, placements=backwards))


@settings(max_examples=examples(80), deadline=None)
@given(scheduled_problems(max_operators=16, max_devices=3, min_operators=1))
def test_streams_and_orders_keep_schedules_feasible(case):
    p, s = case
    for method in LAUNCH_ORDERS:
        t = order_launches(p, s, method)
        assert {v.rule for v in violations(p, t)} <= {"memory"}
        for allocator in ALLOCATORS:
            u = allocate_streams(p, t, allocator)
            assert {v.rule for v in violations(p, u)} <= {"memory"}
            assert count_synchronizations(p, u) == reduced(p, u)


@settings(max_examples=examples(80), deadline=None)
@given(case=scheduled_problems(max_operators=16, max_devices=1, min_operators=1))
def test_chains_are_as_few_as_a_largest_matching_leaves(case):
    p, s = case
    s = order_launches(p, s, "breadth-first")
    g = dependences(p)
    reach = {o: nx.descendants(g, o) for o in g}
    count = {}
    for method in ("nimble", "fewest"):
        rows = {}
        for placement in allocate_streams(p, s, method).placements:
            rows.setdefault(placement.stream, []).append(placement.operator)
        for row in rows.values():
            assert all(b in reach[a] for a, b in pairwise(row))
        count[method] = len(rows)
    assert count["fewest"] == unmatched(nx.transitive_closure(g))
    assert count["fewest"] <= count["nimble"] <= unmatched(nx.transitive_reduction(g))


def unmatched(g):
    """Return how many operators follow no other one in a largest matching."""
    matching = nx.Graph()
    matching.add_nodes_from((("from", o) for o in g), bipartite=0)
    matching.add_edges_from((("from", a), ("to", b)) for a, b in g.edges)
    return len(g) - len(nx.bipartite.hopcroft_karp_matching(matching, [("from", o) for o in g])) // 2


def dependences(p):
    g = nx.DiGraph()
    names = [operator.name for operator in p.graph.operators]
    g.add_nodes_from(names)
    g.add_edges_from((names[b], names[o]) for o, row in enumerate(p.graph.index.predecessors) for b in row)
    return g


def reduced(p, s):
    """Edges between streams of one device in the transitive reduction of dependences and stream orders."""
    g = dependences(p)
    last, where = {}, {}
    for placement in s.placements:
        where[placement.operator] = key = placement.device, placement.stream
        if key in last:
            g.add_edge(last[key], placement.operator)
        last[key] = placement.operator
    edges = nx.transitive_reduction(g).edges
    return sum(where[a] != where[b] and where[a][0] == where[b][0] for a, b in edges)
