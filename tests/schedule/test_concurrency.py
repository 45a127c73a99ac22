"""Parallel operators: stages and streams, worked out by hand; the bounds hold for them, too."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule.cases import bus, device, graph, problem, schedule, topology
from strategies import SEEDS, problems
from thorough import examples
from tvm_sched.bounds import lower_bound
from tvm_sched.streams import core_shares
from tvm_sched_bench.testing import random_concurrency, random_schedule, random_stages, random_streams
from tvm_sched_runtime.errors import CostsError
from tvm_sched_runtime.problem import Concurrency, Costs, Problem, Switch
from tvm_sched_runtime.schedule import simulate, verify, violations


def at_once(times, utilisation=0.6, serial_share=0.5, pairs=(), edges=(), devices=1, threads=(), **contention):
    """Operators a, b, ... on equal devices; each edge "ab" is a tensor of 10 bytes, copies take 10 ns."""
    names = "abcdefgh"[: len(times)]
    reads = {n: [e for e in edges if e[1] == n] for n in names}
    writes = {n: [e for e in edges if e[0] == n] for n in names}
    g = graph(dict.fromkeys(edges, 10), [(n, " ".join(reads[n]), " ".join(writes[n])) for n in names])
    places = topology(
        *(device(f"d{d}") for d in range(devices)),
        switches=[Switch("s", ("d0", f"d{devices - 1}"), 1e9)][: devices - 1],
    )
    base = problem(g, places, [[t] * devices for t in times])
    used = np.broadcast_to(np.array(utilisation, dtype=float).reshape(-1, 1, 1), (len(times), devices, 1))
    together = Concurrency(used, serial_share, pairs, threads, **contention)
    return Problem(base.graph, base.topology, Costs(base.costs.operator_ns, concurrency=together))


def place(p, *texts):
    """Placements "operator device stream stage"."""
    made = schedule(p, [" ".join(text.split()[:2]) for text in texts])
    fields = [[int(n) for n in text.split()[2:]] for text in texts]
    placements = tuple(
        msgspec.structs.replace(q, stream=f[0], stage=f[1]) for q, f in zip(made.placements, fields, strict=True)
    )
    return msgspec.structs.replace(made, placements=placements)


def spans(p, s):
    return [(event.start_ns, event.end_ns) for event in simulate(p, s).events]


def test_a_stage_takes_the_time_of_the_set():
    # 0.5 (100 + 50) + 0.5 max(60 + 30, 100) = 125; both end then.
    p = at_once([100, 50])
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, 125), (0, 125)]


def test_operators_of_one_stream_in_a_stage_run_one_after_another():
    # a, then b (20 + 30 on stream 0) beside c (100): 0.5 150 + 0.5 max(0.6 150, 100) = 125 by the formula. Sharing: beside c
    # each is 1.6 times slower, so b is done at 80 and c, which has 50 left, at 130. b may read what a made.
    p = at_once([20, 30, 100], edges=["ab"])
    s = place(p, "a d0 0 1", "b d0 0 1", "c d0 1 1")
    verify(p, s)
    assert spans(p, s) == [(0, 130)] * 3


def test_stages_follow_each_other_and_wait_for_all_their_inputs():
    # c ends at 40 on d1, its tensor is there at 50: the stage of a and b (160 long) waits for it; d follows.
    p = at_once([100, 100, 40, 10], edges=["cb", "ad"], devices=2)
    s = place(p, "c d1 0 0", "a d0 0 1", "b d0 1 1", "d d0 0 0")
    s = msgspec.structs.replace(s, transfers=schedule(p, [], ["copy cb d1 d0"]).transfers)
    verify(p, s)
    assert spans(p, s) == [(0, 40), (50, 210), (50, 210), (210, 220), (40, 50)]


def test_streams_share_the_device_while_they_overlap():
    # Together each is 0.5 2 + 0.5 1.2 = 1.6 times slower: b is done at 80, a has 50 of 100 left and ends at 130.
    p = at_once([100, 50])
    s = place(p, "a d0 0 0", "b d0 1 0")
    verify(p, s)
    assert spans(p, s) == [(0, 130), (0, 80)]


def test_one_stream_runs_one_after_another_whatever_the_costs_know():
    p = at_once([100, 50])
    assert spans(p, place(p, "a d0 3 0", "b d0 3 0")) == [(0, 100), (100, 150)]


def test_streams_mean_nothing_where_the_costs_know_nothing():
    p = at_once([100, 50])
    p = Problem(p.graph, p.topology, Costs(p.costs.operator_ns))
    assert spans(p, place(p, "a d0 0 0", "b d0 1 0")) == [(0, 100), (100, 150)]


def test_small_operators_overlap_for_nothing():
    # No serial share, a third of the device each: three at once take as long as one.
    p = at_once([90, 90, 90], utilisation=1 / 3, serial_share=0)
    assert spans(p, place(p, "a d0 0 0", "b d0 1 0", "c d0 2 0")) == [(0, 90)] * 3
    assert lower_bound(p).ns in (89, 90)


def test_measured_pairs_refine_the_formula():
    # Predicted 160, measured 140: stages take 140, streams are 1.6 * 140 / 160 = 1.4 times slower.
    p = at_once([100, 100], pairs=[(0, 1, 0, 140)])
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, 140)] * 2
    assert spans(p, place(p, "a d0 0 0", "b d0 1 0")) == [(0, 140)] * 2
    assert lower_bound(p).ns in (139, 140)


def test_a_stream_waits_for_another_only_for_its_tensors():
    # a 0-100 alone; then b (stream 0) and c (stream 1, reads a's) together: 1.6 * 50 = 80.
    p = at_once([100, 50, 50], edges=["ac"])
    assert spans(p, place(p, "a d0 0 0", "b d0 0 0", "c d0 1 0")) == [(0, 100), (100, 180), (100, 180)]


@pytest.mark.parametrize(
    ("rule", "placements", "message"),
    [
        ("stage-split", ["a d0 0 1", "b d0 0 0", "c d0 1 1"], "do not follow each other"),
        ("stage-streams", ["a d0 0 1", "b d0 1 1", "c d0 2 0", "d d0 3 0"], "one or the other"),
        ("deadlock", ["a d0 0 1", "c d0 1 1"], "'a'"),
    ],
)
def test_broken_stages(rule, placements, message):
    p = at_once([10, 10, 10, 10], edges=["ac"])
    used = [text.split()[0] for text in placements]
    s = place(p, *placements, *(f"{o} d0 {'0 0' if 'streams' not in rule else '3 0'}" for o in "abcd" if o not in used))
    found = violations(p, s)
    assert [v.rule for v in found] == [rule]
    assert message in found[0].message


def test_a_stage_needs_costs_of_operators_together():
    p = at_once([10, 10])
    p = Problem(p.graph, p.topology, Costs(p.costs.operator_ns))
    assert {v.rule for v in violations(p, place(p, "a d0 0 1", "b d0 1 1"))} == {"stage-unknown"}


def test_direct_host_access_is_for_no_stage():
    g = graph({"w1": 10, "y": 1}, [("p", "w1", "y")])
    p = problem(g, topology(device("d0", "pcie"), buses=[bus("pcie")]), [[10]], [[20]])
    p = Problem(p.graph, p.topology, Costs(p.costs.operator_ns, p.costs.direct_ns, "", Concurrency([[[0.5]]])))
    s = schedule(p, ["p d0 direct"], ["host_read p d0"])
    s = msgspec.structs.replace(s, placements=(msgspec.structs.replace(s.placements[0], stage=1),))
    assert [v.rule for v in violations(p, s)] == ["stage-direct"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Concurrency([[0.5]]), "shape"),
        (lambda: Concurrency([[[0.0]]]), r"utilisation\[0\]\[0\]\[0\] is 0.0"),
        (lambda: Concurrency([[[0.5]]], serial_share=2), "serial_share is 2"),
        (lambda: Concurrency([[[0.5]]], excess=[-1]), "excess is"),
        (lambda: Concurrency([[[0.5]]], excess=[1, 1]), "for each of 1 resources"),
        (lambda: Concurrency([[[0.5]]], crowding=[[float("nan")]]), "crowding has nan"),
        (lambda: Concurrency([[[0.5]]], crowding=[[1, 2]]), "crowding has shape"),
        (lambda: Concurrency([[[0.5]]], factor=0), "factor is 0"),
        (lambda: Concurrency([[[0.5]]], interval=(1.1, 1.2)), "interval is"),
        (lambda: Costs([[1], [1]], concurrency=Concurrency([[[0.5]]])), "utilisation is for"),
        (lambda: Costs([[1], [1]], concurrency=Concurrency([[[0.5]]] * 2, 0, [(0, 1, 1, 5)])), "pairs has"),
        (lambda: Costs([[1], [2**63 - 1]], concurrency=Concurrency([[[0.5]]] * 2, 0, [(0, 0, 1, 5)])), "pairs has"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(CostsError, match=message):
        make()


def test_streams_of_a_stage_share_the_threads_of_a_device():
    # On one thread a takes 4 * 100 = 400 and b 0.25 * 4 * 50 = 50, the same as on four. Two more threads go to a, which
    # takes 400 / 3 then; b ends earlier.
    p = at_once([100, 50], [1, 0.25], serial_share=0, threads=[4])
    s = place(p, "a d0 0 1", "b d0 1 1")
    assert spans(p, s) == [(0, 134), (0, 134)]
    assert core_shares(p, s) == {"a": (3, 4), "b": (1, 4)}
    alone = place(p, "a d0 0 0", "b d0 0 0")
    assert simulate(p, alone).latency_ns == 150
    assert core_shares(p, alone) == {"a": (1, 1), "b": (1, 1)}


def test_what_does_not_scale_follows_amdahl():
    # a: 100 on four threads, 160 on one, so 20 of each thread's share in parallel: 80 + 80 / p; on two threads 120.
    p = at_once([100, 100], 0.4, serial_share=0, threads=[4])
    s = place(p, "a d0 0 1", "b d0 1 1")
    assert spans(p, s) == [(0, 120), (0, 120)]
    assert core_shares(p, s) == {"a": (1, 2), "b": (1, 2)}


def test_more_streams_than_threads_take_turns():
    # One thread each: 40, 30 and 20; the third starts when the second has ended.
    p = at_once([20, 15, 10], 1.0, serial_share=0, threads=[2])
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1", "c d0 2 1")) == [(0, 50)] * 3


def test_outside_of_stages_a_device_with_threads_runs_one_operator_at_a_time():
    p = at_once([100, 50], 0.5, serial_share=0, threads=[2])
    assert spans(p, place(p, "a d0 0 0", "b d0 1 0")) == [(0, 100), (100, 150)]


@pytest.mark.parametrize(
    ("threads", "text"), [([2, 2], "for each of 1 devices"), ([-1], "from 0"), ([4], "0.25 or more is allowed")]
)
def test_threads_that_make_no_sense_are_refused(threads, text):
    with pytest.raises(CostsError, match=text):
        at_once([100], 0.2, threads=threads)


def test_what_streams_ask_for_beyond_the_device_comes_on_top():
    # Together they ask for 1.8 of the device: 1.8 + 0.5 * 0.8 = 2.2 times slower, so b is done at 110 and a at 160. One by
    # one they take 150. The stage: 0.9 * 150, and 0.4 for the 50 in which both run.
    p = at_once([100, 50], 0.9, serial_share=0, excess=[0.5])
    assert spans(p, place(p, "a d0 0 0", "b d0 1 0")) == [(0, 160), (0, 110)]
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, 155)] * 2
    assert lower_bound(p).ns <= 150, "one after another there is no contention"


def test_small_operators_do_not_contend():
    p = at_once([100, 50], 0.5, serial_share=0, excess=[9])
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, 100)] * 2


def test_blocks_that_start_beside_a_full_device_crowd():
    # b fills the device: a has three times its work, 300. Both are 1.5 times slower until b is done at 75; a has 250 left.
    crowding = [[2], [0]]
    p = at_once([100, 50], [0.5, 1], serial_share=0, crowding=crowding)
    assert spans(p, place(p, "a d0 0 0", "b d0 1 0")) == [(0, 325), (0, 75)]
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, 300)] * 2
    # Beside c, which has half of the device, a has 150; it has its places when b starts at 20, and keeps them.
    p = at_once([100, 50, 20], [0.5, 1, 0.5], serial_share=0, crowding=[*crowding, [0]])
    assert spans(p, place(p, "c d0 1 0", "a d0 0 0", "b d0 1 0"))[1:] == [(0, 175), (20, 95)]


def test_a_measured_pair_holds_its_contention():
    p = at_once([100, 100], pairs=[(0, 0, 1, 140)], excess=[1], crowding=[[5], [5]], factor=3)
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, 140)] * 2
    assert spans(p, place(p, "a d0 0 0", "b d0 1 0")) == [(0, 140)] * 2


def test_streams_on_threads_of_their_own_contend_for_what_lies_behind_the_cores():
    # Two threads, each operator 100 on one and 50 on both. The second resource: 80 % of it in 50, so 40 % in 100 each: no
    # excess. With 100 % it is half each: 1.0 together. Three streams would be more.
    used = [[[1.0, 0.8]], [[1.0, 0.8]]]
    base = at_once([50, 50], 1.0)
    for part, latency in ((0.8, 100), (1.0, 100)):
        together = Concurrency(np.array(used) * [1, part / 0.8], 0, threads=[2], excess=[7, 1])
        p = Problem(base.graph, base.topology, Costs(base.costs.operator_ns, concurrency=together))
        assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, latency)] * 2
    together = Concurrency(
        [[[0.5, 1.0]], [[0.5, 1.0]]], 0, threads=[2], excess=[7, 1]
    )  # they do not scale: 50 on one, too
    p = Problem(base.graph, base.topology, Costs(base.costs.operator_ns, concurrency=together))
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, 150)] * 2, "twice the bandwidth: 100, and 50 more lost"


def test_the_factor_is_of_sets_and_no_faster_than_the_longest():
    p = at_once([100, 50], factor=0.5)
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, 100)] * 2, "half of 125"
    assert spans(p, place(p, "a d0 0 0", "b d0 0 0")) == [(0, 100), (100, 150)]
    assert lower_bound(p).ns <= 100
    p = at_once([100, 50], factor=2)
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, 250)] * 2


def test_a_problem_file_keeps_what_is_known():
    contention = {"excess": [0.1], "crowding": [[1], [2]], "factor": 1.1, "interval": (0.8, 1.3)}
    p = at_once([100, 50], pairs=[(0, 0, 1, 140)], threads=[2], **contention)
    again = Problem.from_json(p.to_json())
    assert again.costs == p.costs
    assert again.digest == p.digest
    assert Problem(p.graph, p.topology, Costs(p.costs.operator_ns)).digest != p.digest


def test_what_is_serial_takes_its_time_on_the_threads_that_it_has():
    # On one thread a takes 100 and b 40, on both half: 0.5 (100 + 40) + 0.5 max(100, 40).
    p = at_once([50, 20], 1.0, threads=[2])
    assert spans(p, place(p, "a d0 0 1", "b d0 1 1")) == [(0, 120)] * 2


def test_the_bound_takes_a_pair_as_the_stage_does():
    # a and b take 80 where 100 are said, a's time on its thread: 0.8 times. So do all four: 120 are said, since b, c and d
    # (20 + 50 + 50) follow each other on the other thread, which makes 96. All cores are busy for 110 by what is said.
    p = at_once([50, 10, 25, 25], 1.0, serial_share=0, threads=[2], pairs=[(0, 0, 1, 80)])
    s = place(p, "a d0 0 1", "b d0 1 1", "c d0 2 1", "d d0 3 1")
    assert simulate(p, s).latency_ns == 96
    assert lower_bound(p).ns <= 96


def test_the_bound_allows_for_the_simulator_s_rounding():
    # Exactly 2.0009 and 2.000001 ns together, which the simulator takes for 2.
    p = at_once([2, 2], 0.500225, serial_share=0)
    assert simulate(p, place(p, "a d0 0 1", "b d0 1 1")).latency_ns == 2
    assert lower_bound(p).ns == 2
    p = at_once([2, 2], 0.50000025, serial_share=0)
    assert simulate(p, place(p, "a d0 0 0", "b d0 1 0")).latency_ns == 2
    assert lower_bound(p).ns == 2


@settings(max_examples=examples(200), deadline=None)
@given(
    base=problems(max_operators=14, max_devices=3, min_operators=1),
    seed=SEEDS,
    change=st.sampled_from([random_stages, random_streams]),
)
def test_no_bound_exceeds_operators_concurrently(base, seed, change):
    p = random_concurrency(base, seed)
    s = change(p, random_schedule(p, seed), seed)
    assert {v.rule for v in violations(p, s)} <= {"memory"}
    assert lower_bound(p).ns <= simulate(p, s).latency_ns
