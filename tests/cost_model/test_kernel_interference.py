"""Kernels in parallel: what a measured pair says, and what a profile's pairs make of the rule, by hand."""

import pytest

from tvm_sched.cost_model import costs
from tvm_sched.cost_model.contention import Contention
from tvm_sched.cost_model.device_properties import properties
from tvm_sched.cost_model.interference import fit_pairs, pair_arrays, pairs_of_one_device, seconds_in_run
from tvm_sched.cost_model.profile import Measurement, Pair, Profile, this_machine
from tvm_sched.cost_model.signature import graph_of
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import KernelResources, Problem, load_topology
from tvm_sched_runtime.schedule import Placement, Schedule, simulate

TWICE = "multiply|4|a float32[4]|float32[4]"
SUM = "add|4|a float32[4];a float32[4]|float32[4]"
CPU = load_topology("cpu1")
ROWS = {TWICE: Measurement(TWICE, "m", 4e-6), SUM: Measurement(SUM, "m", 8e-6)}


def profile(pairs, threads=2, rows=ROWS):
    return Profile(this_machine(), properties(CPU.devices[0]), tuple(rows.values()), tuple(pairs), threads=threads)


def test_two_that_start_at_once_by_hand():
    # The first ends after 6; by then the second has done 6/12 of its work, and the other half takes 4 of its 8 alone.
    assert Pair(TWICE, SUM, (4.0, 8.0), (6.0, 12.0)).together == pytest.approx(6 + 4)
    assert Pair(SUM, TWICE, (8.0, 4.0), (12.0, 6.0)).together == pytest.approx(6 + 4)
    assert Pair(TWICE, TWICE, (4.0, 4.0), (4.0, 4.0)).together == pytest.approx(4)
    for wrong in ((0.0, 1.0), (1.0, float("nan")), (-1.0, 1.0), (float("inf"), 1.0)):
        with pytest.raises(InputError, match="a time is"):
            Pair(TWICE, SUM, (1.0, 1.0), wrong)


def test_a_pair_is_scaled_to_what_its_kernels_take_in_the_run():
    pair = Pair(TWICE, SUM, (2e-6, 4e-6), (3e-6, 6e-6), 1)
    assert seconds_in_run(pair, ROWS) == pytest.approx(5e-6), "not measured warm: as it is"
    warm = {name: Measurement(name, "m", row.in_run, row.in_run / 2) for name, row in ROWS.items()}
    assert seconds_in_run(pair, warm) == pytest.approx(10e-6)


def test_the_rule_of_the_model_by_hand():
    # On half of the threads, which is what a stage gives them, they take 4 and 7 us by themselves: together the longer.
    pair = Pair(TWICE, SUM, (4e-6, 7e-6), (4e-6, 8e-6), 1)
    seconds, used, crowded, together = pair_arrays([pair], ROWS, CPU.devices[0], 2)
    assert seconds.tolist() == [[4e-6, 7e-6]]
    assert (used[:, :, :2] == 0).all(), "each has cores of its own"
    assert together == pytest.approx([4e-6 + 0.5 * 7e-6])
    for share, expected in ((0.0, 7e-6), (0.5, 9e-6), (1.0, 11e-6)):
        assert Contention(share, 0.0, 0.0).pairs(seconds, used, crowded) == pytest.approx([expected])
    whole = pair_arrays([pair], ROWS, CPU.devices[0], 2, half=False)
    assert whole.seconds.tolist() == [[4e-6, 8e-6]]


@pytest.mark.parametrize(("slowdown", "share"), [(1.0, 0.0), (1.25, 0.25), (1.5, 0.5), (2.0, 1.0)])
def test_the_serial_share_that_pairs_ask_for(slowdown, share):
    # Two of 8 us on two threads: 8 us if nothing is serial, 16 us if all is.
    pair = Pair(SUM, SUM, (8e-6, 8e-6), (slowdown * 8e-6,) * 2, 1)
    found = fit_pairs([pair], ROWS, CPU.devices[0], 2)
    assert found.serial_share == pytest.approx(share)
    assert fit_pairs([pair], {}, CPU.devices[0], 2) == Contention(0.0, 0.0, 0.0)


def test_what_pairs_lose_beyond_the_devices_bandwidth():
    # Copies at the full bandwidth: two take 16 us by their parts, and 24 were measured: 8 us lost for 8 us of one too many.
    size = 10**6
    copy = f"copy|0|a float32[{size // 8}]|float32[{size // 8}]"
    seconds = size / CPU.devices[0].memory_bandwidth
    rows = {copy: Measurement(copy, "m", seconds)}
    half, full = Pair(copy, copy, (2 * seconds,) * 2, (2 * seconds,) * 2, 1), (1.12 * 2 * seconds,) * 2
    assert fit_pairs([half], rows, CPU.devices[0], 2) == Contention(0.0, 0.0, 0.0)
    found = fit_pairs([Pair(copy, copy, (seconds,) * 2, full, 1)], rows, CPU.devices[0], 2)
    assert (found.serial_share, found.excess) == (0.0, pytest.approx(0.24)), "2.24 times as long as one"


def test_costs_of_a_profile_know_concurrency(tmp_path):
    pair = Pair(TWICE, SUM, (4e-6, 8e-6), (6e-6, 12e-6), 1)
    profile([pair]).save(tmp_path / "p.json")
    graph = graph_of([TWICE, SUM, TWICE])
    found = costs(graph, CPU, str(tmp_path / "p.json")).concurrency
    assert found.pairs == ((0, 0, 1, 10_000), (0, 1, 2, 10_000)), "both calls of the first kernel, with the second"
    assert found.utilisation[:, 0, 0].tolist() == [0.5] * 3, "no faster on two threads than on one"
    assert found.threads == (2,)
    assert found.serial_share == pytest.approx(0.5), "10 us are half way from 8 to 12"


@pytest.mark.parametrize("scaling", [1.0, 0.55])
def test_the_fit_says_what_the_simulator_says_of_a_stage(tmp_path, scaling):
    # Products at 0.8 and 0.7 of the device's arithmetic by the data sheet: each has its own. On both threads they take
    # `scaling` of that: what is serial is so at the pace of the thread that each has.
    device = CPU.devices[0]
    names = [f"onednn.matmul|{2 * n**3}|a float32[{n},{n}];p float32[{n},{n}]|float32[{n},{n}]" for n in (448, 512)]
    one_thread = [2 * n**3 / device.peak_flops["float32"] / part for n, part in ((448, 0.8), (512, 0.7))]
    rows = {name: Measurement(name, "m", scaling * s) for name, s in zip(names, one_thread, strict=True)}
    pairs = [Pair(n, n, (s, s), (1.3 * s, 1.3 * s), 1) for n, s in zip(names, one_thread, strict=True)]
    profile(pairs, rows=rows).save(tmp_path / "p.json")
    graph = graph_of(names)
    problem = Problem(graph, CPU, costs(graph, CPU, str(tmp_path / "p.json")))
    assert not problem.costs.concurrency.pairs
    assert problem.costs.concurrency.serial_share == pytest.approx(0.3)
    stage = tuple(Placement(o.name, device.name, stream=n, stage=1) for n, o in enumerate(graph.operators))
    fitted, both = fit_pairs(pairs, rows, device, 2), Pair(*names, tuple(one_thread), tuple(one_thread), 1)
    arrays = pair_arrays([*pairs, both], rows, device, 2)
    (expected,) = fitted.pairs(*(each[-1:] for each in arrays[:3]))
    assert simulate(problem, Schedule(problem.digest, stage)).latency_ns == pytest.approx(1e9 * expected, rel=1e-4)


def test_pairs_of_two_devices_say_nothing_of_one(tmp_path):
    pair = Pair(TWICE, SUM, (4e-6, 8e-6), (6e-6, 12e-6), 1)
    assert pairs_of_one_device(profile([pair], threads=1)) == []
    profile([pair], threads=1).save(tmp_path / "p.json")
    assert costs(graph_of([TWICE, SUM]), CPU, str(tmp_path / "p.json")).concurrency is None
    profile([]).save(tmp_path / "q.json")
    assert costs(graph_of([TWICE, SUM]), CPU, str(tmp_path / "q.json")).concurrency is None


def test_a_gpus_kernels_take_places_for_blocks(tmp_path):
    topology = load_topology("h200x8")
    half = KernelResources(132 * 4, 256)  # of 132 processors with 2,048 threads each
    rows = tuple(Measurement(name, "m", row.in_run, direct=5e-5, launches=(half,)) for name, row in ROWS.items())
    pair = Pair(TWICE, SUM, (4e-6, 8e-6), (4e-6, 8e-6))
    Profile(this_machine(), properties(topology.devices[0]), rows, (pair,)).save(tmp_path / "p.json")
    found = costs(graph_of([TWICE, SUM]), topology, str(tmp_path / "p.json"))
    assert found.concurrency.utilisation[:, :, 0] == pytest.approx(0.5)
    assert found.concurrency.pairs[0] == (0, 0, 1, 8000)
    assert (found.direct_ns >= 50_000).all(), "measured with inputs in host memory"
