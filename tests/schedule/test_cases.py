"""Cases whose times were worked out by hand. Buses and links carry a byte a nanosecond where not said otherwise."""

import pytest

from schedule.cases import bus, device, graph, problem, schedule, topology
from tvm_sched_runtime.errors import ScheduleError
from tvm_sched_runtime.problem import Link, Switch
from tvm_sched_runtime.schedule import memory_profile, simulate, verify


def spans(problem, schedule):
    """(start, end) of each event: placements, then transfers."""
    return [(event.start_ns, event.end_ns) for event in simulate(problem, schedule).events]


def two_matmuls(*, shared):
    """Operators p and q, each with a parameter of 100 bytes, on two devices whose bus is or is not shared."""
    g = graph({"w1": 100, "w2": 100, "a": 10, "b": 10}, [("p", "w1", "a"), ("q", "w2", "b")], ["a", "b"])
    buses = [bus("pcie")] if shared else [bus("pcie"), bus("pcie2")]
    return problem(g, topology(device("d0", "pcie"), device("d1", buses[-1].name), buses=buses), [[50, 50], [50, 50]])


def test_devices_on_one_bus_load_in_turn():
    # w1 0-100, w2 100-200 on the one bus; p 100-150, q 200-250.
    p = two_matmuls(shared=True)
    s = schedule(p, ["p d0", "q d1"], ["load w1 d0", "load w2 d1"])
    assert spans(p, s) == [(100, 150), (200, 250), (0, 100), (100, 200)]
    assert simulate(p, s).latency_ns == 250


def test_devices_on_two_buses_load_at_once():
    p = two_matmuls(shared=False)
    s = schedule(p, ["p d0", "q d1"], ["load w1 d0", "load w2 d1"])
    assert spans(p, s) == [(100, 150), (100, 150), (0, 100), (0, 100)]


def test_bus_latency_counts_for_each_load_and_rounds_up():
    # 10 bytes at 3 bytes a nanosecond are 3.33 ns, with 5 ns of latency 8.33 ns: 9 ns.
    g = graph({"w1": 10, "a": 1}, [("p", "w1", "a")])
    p = problem(g, topology(device("d0", "pcie"), buses=[bus("pcie", 3e9, 5e-9)]), [[50]])
    assert spans(p, schedule(p, ["p d0"], ["load w1 d0"])) == [(9, 59), (0, 9)]


def parallel_transmission():
    """One operator with two parameters of 100 bytes; two devices, a bus each, a link four times as fast."""
    g = graph({"w1": 100, "w2": 100, "a": 10}, [("p", "w1 w2", "a")], ["a"])
    places = topology(
        device("d0", "pcie0"),
        device("d1", "pcie1"),
        buses=[bus("pcie0"), bus("pcie1")],
        links=[Link(("d0", "d1"), 4e9)],
    )
    return problem(g, places, [[50, 50]])


def test_one_bus_alone_takes_both_parameters():
    # 0-100 and 100-200 on the bus of d0, then p.
    p = parallel_transmission()
    assert simulate(p, schedule(p, ["p d0"], ["load w1 d0", "load w2 d0"])).latency_ns == 250


def test_parallel_transmission_through_a_neighbour():
    # Both buses 0-100; w2 crosses the link 100-125; p 125-175.
    p = parallel_transmission()
    s = schedule(p, ["p d0"], ["load w1 d0", "load w2 d1", "copy w2 d1 d0"])
    assert spans(p, s) == [(125, 175), (0, 100), (0, 100), (100, 125)]
    # Parameters stay where they are loaded: 100 bytes on the neighbour; 200 and the output on d0.
    assert memory_profile(p, s) == [[(0, 100), (100, 200), (125, 210)], [(0, 100)]]


def test_a_direct_read_occupies_the_bus_for_its_bytes_and_the_device_for_longer():
    # p reads w1 directly: bus 0-100, device 0-130 (direct). The load of w2 for q waits for the bus: 100-140.
    # q waits for its parameter and the device: 140-190. On d1, on the same bus, r waits for w3: 140-200, then 200-250.
    g = graph(
        {"w1": 100, "w2": 40, "w3": 60, "a": 1, "b": 1, "c": 1}, [("p", "w1", "a"), ("q", "w2", "b"), ("r", "w3", "c")]
    )
    places = topology(device("d0", "pcie"), device("d1", "pcie"), buses=[bus("pcie")])
    p = problem(g, places, [[50, 50]] * 3, [[130, 130], [None, None], [None, None]])
    s = schedule(p, ["p d0 direct", "q d0", "r d1"], ["host_read p d0", "load w2 d0", "load w3 d1"])
    assert spans(p, s) == [(0, 130), (140, 190), (200, 250), (0, 100), (100, 140), (140, 200)]


def test_a_direct_read_waits_for_its_turn_on_the_bus():
    # The load of w2 comes first: bus 0-40. p starts when the bus is free: 40-170, its bus time is 40-140.
    g = graph({"w1": 100, "w2": 40, "a": 1, "b": 1}, [("p", "w1", "a"), ("q", "w2", "b")])
    p = problem(g, topology(device("d0", "pcie"), buses=[bus("pcie")]), [[50], [50]], [[130], [None]])
    s = schedule(p, ["p d0 direct", "q d0"], ["load w2 d0", "host_read p d0"])
    assert spans(p, s) == [(40, 170), (170, 220), (0, 40), (40, 140)]


def chain(places, **rows):
    """Operator p makes a (100 bytes), q reads it."""
    g = graph({"a": 100, "b": 10}, [("p", "", "a"), ("q", "a", "b")], ["b"])
    return problem(g, places, [[50, 50], [50, 50]], **rows)


def test_a_copy_without_a_link_crosses_both_buses():
    # With peer access the copy takes 100 ns at the speed of the slower bus.
    places = topology(device("d0", "pcie0"), device("d1", "pcie1"), buses=[bus("pcie0"), bus("pcie1", 2e9)])
    p = chain(places)
    s = schedule(p, ["p d0", "q d1"], ["copy a d0 d1"])
    assert spans(p, s) == [(0, 50), (150, 200), (50, 150)]
    assert simulate(p, s).events[2].lanes == ("pcie0 up", "pcie1 down")


def test_a_copy_through_host_memory_takes_both_steps():
    # Without peer access: 100 ns up at a byte a nanosecond, then 50 ns down at two.
    places = topology(
        device("d0", "pcie0"), device("d1", "pcie1"), buses=[bus("pcie0"), bus("pcie1", 2e9)], peer_access=False
    )
    p = chain(places)
    assert spans(p, schedule(p, ["p d0", "q d1"], ["copy a d0 d1"])) == [(0, 50), (200, 250), (50, 200)]


def test_a_bus_that_is_not_duplex_carries_one_way_at_a_time():
    # The load of w1 (100 bytes) and the copy upwards share the only channel: the copy waits from 50 to 100.
    g = graph({"w1": 100, "a": 100, "b": 1, "c": 1}, [("p", "", "a"), ("q", "a", "b"), ("r", "w1", "c")])
    for duplex, copied in ((False, (100, 200)), (True, (50, 150))):
        places = topology(
            device("d0", "pcie0"), device("d1", "pcie1"), buses=[bus("pcie0", duplex=duplex), bus("pcie1")]
        )
        p = problem(g, places, [[50, 50]] * 3)
        s = schedule(p, ["p d0", "q d1", "r d0"], ["load w1 d0", "copy a d0 d1"])
        assert spans(p, s)[4] == copied


def test_ports_of_a_switch():
    # p on d0 makes a and b (0-50). Both leave d0 by its one sending port: 50-150, 150-250.
    # c goes from d1 to d2 at once with a's way to d1, for the ports differ: 50-150.
    # b arrives at d2 by the receiving port after c: it is free by then, 150-250.
    g = graph(
        {"a": 100, "b": 100, "c": 100, "e": 1, "f": 1},
        [("p", "", "a b"), ("r", "", "c"), ("q", "a", "e"), ("s", "b c", "f")],
    )
    places = topology(device("d0"), device("d1"), device("d2"), switches=[Switch("sw", ("d0", "d1", "d2"), 1e9)])
    p = problem(g, places, [[50, 50, 50]] * 4)
    s = schedule(p, ["p d0", "r d1", "q d1", "s d2"], ["copy a d0 d1", "copy c d1 d2", "copy b d0 d2"])
    assert spans(p, s)[4:] == [(50, 150), (50, 150), (150, 250)]
    assert spans(p, s)[2:4] == [(150, 200), (250, 300)]


def test_two_tensors_into_one_device_share_its_receiving_port():
    g = graph({"a": 100, "b": 100, "c": 1}, [("p", "", "a"), ("q", "", "b"), ("r", "a b", "c")])
    places = topology(device("d0"), device("d1"), device("d2"), switches=[Switch("sw", ("d0", "d1", "d2"), 1e9)])
    p = problem(g, places, [[50, 50, 50]] * 3)
    s = schedule(p, ["p d0", "q d1", "r d2"], ["copy a d0 d2", "copy b d1 d2"])
    assert spans(p, s)[3:] == [(50, 150), (150, 250)]


def test_a_link_in_two_directions():
    g = graph({"a": 100, "b": 100, "c": 1, "e": 1}, [("p", "", "a"), ("q", "", "b"), ("r", "a", "c"), ("s", "b", "e")])
    for duplex, second in ((True, (50, 150)), (False, (150, 250))):
        places = topology(device("d0"), device("d1"), links=[Link(("d0", "d1"), 1e9, duplex=duplex)])
        p = problem(g, places, [[50, 50]] * 4)
        s = schedule(p, ["p d0", "q d1", "r d1", "s d0"], ["copy a d0 d1", "copy b d1 d0"])
        assert spans(p, s)[5] == second


def test_devices_that_share_host_memory_load_nothing():
    g = graph({"w1": 100, "x1": 10, "a": 10}, [("p", "w1 x1", "a")], ["a"])
    p = problem(g, topology(device("d0")), [[50]])
    s = schedule(p, ["p d0"])
    assert simulate(p, s).latency_ns == 50
    assert memory_profile(p, s) == [[(0, 10)]]


def chain_of_three(memory):
    """Operators p, q, r, 50 ns each, on one device: p makes a (100), q makes b (60), r makes c (30), the output."""
    g = graph({"x1": 20, "a": 100, "b": 60, "c": 30}, [("p", "x1", "a"), ("q", "a", "b"), ("r", "b", "c")], ["c"])
    return problem(g, topology(device("d0", "pcie", memory), buses=[bus("pcie")]), [[50]] * 3)


def test_memory_over_time():
    # x1 arrives 0-20 and is held until p (20-70) has ended; a from 20 to 120, b from 70 to 170, c from 120 on.
    p = chain_of_three(160)
    s = schedule(p, ["p d0", "q d0", "r d0"], ["load x1 d0"])
    assert memory_profile(p, s) == [[(0, 20), (20, 120), (70, 160), (120, 90), (170, 30)]]
    verify(p, s)  # 160 bytes are just enough


def early_load(memory):
    """The same chain, where r reads w1 (20 bytes) too."""
    g = graph({"x1": 20, "w1": 20, "a": 100, "b": 60, "c": 30}, [("p", "x1", "a"), ("q", "a", "b"), ("r", "b w1", "c")])
    return problem(g, topology(device("d0", "pcie", memory), buses=[bus("pcie")]), [[50]] * 3)


def test_an_early_load_takes_memory_early():
    # w1, which r needs at 120 ns, lies there from 20 ns on and stays: 180 bytes at 70 ns.
    p = early_load(180)
    s = schedule(p, ["p d0", "q d0", "r d0"], ["load x1 d0", "load w1 d0"])
    assert memory_profile(p, s) == [[(0, 20), (20, 140), (70, 180), (120, 110), (170, 20)]]
    verify(p, s)


def test_one_byte_less_is_too_little():
    p = early_load(179)
    message = (
        "device 'd0' holds 180 bytes at 70 ns, while operator 'q' runs; that is 1 more than its memory of 179 bytes. "
        r"It holds 3 tensors, the largest are 'a' \(100\), 'b' \(60\), 'w1' \(20\)"
    )
    with pytest.raises(ScheduleError, match=message):
        verify(p, schedule(p, ["p d0", "q d0", "r d0"], ["load x1 d0", "load w1 d0"]))


def test_a_tensor_nobody_reads_goes_when_it_is_made():
    g = graph({"a": 100, "b": 10, "c": 30}, [("p", "", "a b"), ("q", "b", "c")])
    p = problem(g, topology(device("d0")), [[50], [50]])
    assert memory_profile(p, schedule(p, ["p d0", "q d0"])) == [[(0, 110), (50, 40), (100, 0)]]


def test_a_copied_tensor_is_held_until_the_copy_has_left():
    # a is made 0-50 on d0, copied 50-150; q on d1 reads it 150-200.
    p = chain(topology(device("d0"), device("d1"), links=[Link(("d0", "d1"), 1e9)]))
    s = schedule(p, ["p d0", "q d1"], ["copy a d0 d1"])
    assert memory_profile(p, s) == [[(0, 100), (150, 0)], [(50, 100), (150, 110), (200, 10)]]
