"""Schedules for ranges of sizes: the certificate holds at every size, and the standalone checker agrees."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule.cases import wired
from schedulers.exhaustive import TooLarge, least_latency
from strategies import SEEDS, scheduled_problems
from thorough import examples
from tvm_sched.bounds.resident_relaxation import of_run
from tvm_sched.schedulers import solve
from tvm_sched.size_ranges import fits_at_any_times, schedule_range
from tvm_sched_bench.testing import random_problem
from tvm_sched_check import Refused
from tvm_sched_check.ranges import check, check_memory
from tvm_sched_check.verdict import replays
from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Alternative,
    Concurrency,
    Costs,
    Device,
    Group,
    Link,
    Operator,
    OpGraph,
    Problem,
    Request,
    Scenario,
    Tensor,
    Topology,
    Variants,
    Workload,
)
from tvm_sched_runtime.schedule import Placement, Schedule, ScheduleIndex, Transfer
from tvm_sched_runtime.schedule.simulator import simulate
from tvm_sched_runtime.schedule.verifier import violations


def pair(per_size=(10, 10), devices=2, memory=10**6):
    """Two operators that read one input and take 10 ns for each token, on equal devices in host memory."""
    machine = tuple(Device(f"cpu{i}", memory, 1e12, {"float32": 1e12}) for i in range(devices))
    links = (Link(("cpu0", "cpu1"), 1e9),) if devices == 2 else ()

    def problem(tokens):
        tensors = (Tensor("x", tokens, "input"), Tensor("y", tokens), Tensor("z", tokens))
        operators = (Operator("f", "", ("x",), ("y",)), Operator("g", "", ("x",), ("z",)))
        times = np.array([[ns * tokens] * devices for ns in per_size])
        return Problem(
            OpGraph("pair", operators, tensors, ("y", "z")), Topology("two", machine, (), links), Costs(times)
        )

    return lambda sizes: problem(sizes["tokens"])


def test_two_operators_by_hand(tmp_path):
    """Both run at once, for 10 ns a token. With anchors at 1 and 4 the factor is 40 / 10; one at 2 makes it 40 / 20."""
    found = schedule_range(pair(), {"tokens": (1, 4)}, method="heft", factor=2)
    assert [(anchor.sizes, anchor.latency_ns, anchor.bound_ns) for anchor in found.anchors] == [
        ((1,), 10, 10), ((2,), 20, 20), ((4,), 40, 40)
    ]  # fmt: skip
    factors = {cell.low[0]: cell.factor for cell in found.cells}
    assert factors == {1: 1, 2: 1, 3: 2, 4: 1}
    assert [found.take({"tokens": size}).sizes[0] for size in (1, 2, 3, 4)] == [1, 2, 4, 4]
    found.save(tmp_path / "range.json")
    verdict = check(tmp_path / "range.json")
    assert (verdict.factor, verdict.claimed, verdict.anchors) == (2, 2, 3)
    assert verdict.lines == [
        "tokens from 1 to 4: 3 anchors",
        "latency at most 2.0000 times the least possible; the file claims 2.0000",
    ]


def grown(problem, seed, most, falls=0.0):
    """A function from sizes 0 to ``most`` to problems: ``problem`` at 0, and numbers that grow or, rarely, fall from there.

    ``falls`` is how likely a number falls in a step.
    """
    rng = np.random.default_rng(seed)

    def table(values):
        values = np.asarray(values)
        steps = rng.choice([0, 0, 1, 3], (most, *values.shape)) * values // 4
        factors = np.concatenate([values[None], values + np.cumsum(steps, axis=0)])
        fallen = rng.random(factors.shape) < falls
        return np.where(values == FORBIDDEN, FORBIDDEN, np.where(fallen, factors // 2, factors))

    graph, costs = problem.graph, problem.costs
    sizes = table([t.size for t in graph.tensors])
    operator_ns, direct_ns = table(costs.operator_ns), table(costs.direct_ns)
    read_ns = None if costs.host_read_ns is None else table(costs.host_read_ns)

    def at(sizes_of):
        n = sizes_of["n"]
        tensors = [
            Tensor(t.name, t.size if t.kind == "parameter" else int(size), t.kind)
            for t, size in zip(graph.tensors, sizes[n], strict=True)
        ]
        size = {t.name: t.size for t in tensors}
        operators = [
            msgspec.structs.replace(
                o, read_bytes=o.read_bytes and {t: min(b, size[t]) for t, b in o.read_bytes.items()}
            )
            for o in graph.operators
        ]
        moved = OpGraph(graph.name, tuple(operators), tuple(tensors), graph.outputs, graph.models)
        once = Problem.derive(moved, problem.topology, Costs(costs.operator_ns, costs.direct_ns)).host_reads_ns
        reads = None if read_ns is None else np.where(read_ns[n] == FORBIDDEN, FORBIDDEN, np.maximum(read_ns[n], once))
        least = once if reads is None else np.where(reads == FORBIDDEN, once, reads)
        direct = np.where(direct_ns[n] == FORBIDDEN, FORBIDDEN, np.maximum(direct_ns[n], least))
        return Problem(
            moved, problem.topology, Costs(operator_ns[n], direct, host_read_ns=reads), joinable=problem.joinable
        )

    return at


@settings(max_examples=examples(40), deadline=None)
@given(seed=SEEDS, operators=st.integers(1, 4), devices=st.integers(1, 2), most=st.integers(1, 6), warm=st.booleans())
def test_the_factor_holds_at_every_size(tmp_path_factory, seed, operators, devices, most, warm):
    """Beside the exact optimum; also where the memory is tight, at each size between the anchors."""
    base = random_problem(seed, operators=operators, devices=devices, memory="generous")
    at = grown(base, seed, most)
    parameters = [t.name for t in base.graph.tensors if t.kind == "parameter"]
    workload = Workload((Request(tuple(parameters)),)) if warm and parameters else None
    resident = parameters if workload else []
    found = schedule_range(at, {"n": (0, most)}, workload, "heft", factor=1.2, most=4)
    assert not found.adjusted
    file = tmp_path_factory.mktemp("range") / "range.json"
    found.save(file)
    verdict = check(file)
    assert verdict.factor == verdict.claimed
    for n in range(most + 1):
        problem, schedule = at({"n": n}), found.take({"n": n}).schedule
        latency = simulate(problem, schedule, resident=resident, other_problem=True).latency_ns
        try:
            least = least_latency(of_run(Scenario(problem, frozenset(resident))))
        except TooLarge:
            continue
        assert latency <= verdict.factor * least
        assert found.factor * least >= latency


@settings(max_examples=examples(30), deadline=None)
@given(seed=SEEDS, operators=st.integers(1, 5), most=st.integers(1, 4), varied=st.booleans())
def test_where_numbers_fall_the_factor_holds_for_all_problems_that_were_priced(
    tmp_path_factory, seed, operators, most, varied
):
    at = grown(random_problem(seed, operators=operators, devices=2, memory="generous"), seed, most, falls=0.3)
    of = (lambda sizes: with_alternatives(at(sizes), seed)) if varied else at
    problems = {}

    def priced(sizes):
        return problems.setdefault(sizes["n"], of(sizes))

    found = schedule_range(priced, {"n": (0, most)}, method="heft", factor=1, most=4)
    file = tmp_path_factory.mktemp("range") / "range.json"
    found.save(file)
    verdict = check(file)
    assert verdict.factor == verdict.claimed
    assert found.adjusted == any("below" in anchor for anchor in json.loads(file.read_text())["anchors"])
    for n, problem in {} if varied else problems.items():
        chosen = found.take({"n": n}).schedule.replace(problem=problem.digest, certificate=None)
        latency = simulate(problem, chosen).latency_ns
        try:
            least = least_latency(problem)
        except TooLarge:
            continue
        assert latency <= verdict.factor * least


def with_alternatives(problem, seed):
    """The first operator may also run as two, of two thirds of its time each."""
    first, *others = problem.graph.operators
    read = {name for operator in others for name in operator.inputs} | {*problem.graph.outputs}
    middle = Tensor("middle", problem.graph.tensors[0].size)
    parts = (
        Operator("part 0", inputs=first.inputs, outputs=("middle",), read_bytes=first.read_bytes),
        Operator("part 1", inputs=("middle",), outputs=tuple(name for name in first.outputs if name in read)),
    )
    ns, direct = problem.costs.operator_ns[:1], problem.costs.direct_ns[:1]
    part = np.where(ns == FORBIDDEN, FORBIDDEN, ns * 2 // 3 + 1)
    reads = None if problem.costs.host_read_ns is None else problem.costs.host_read_ns[[0, 0]]
    own = Costs(
        np.concatenate([part, part]), np.concatenate([direct, np.full_like(direct, FORBIDDEN)]), host_read_ns=reads
    )
    group = Group("first", (first.name,), (Alternative("apart", parts, (middle,)),))
    if problem.topology.maps_storage:
        return problem
    return Problem(problem.graph, problem.topology, problem.costs, Variants([group], own), problem.joinable)


def exchange(times, memory=100):
    """`a` runs on gpu0 and goes to gpu1, where `b`, `c` (which reads b) and `d` (which reads a's and c's) run."""
    devices = (Device("gpu0", 1000, 1e12, {"float32": 1e12}), Device("gpu1", memory, 1e12, {"float32": 1e12}))
    topology = Topology("two", devices, (), (Link(("gpu0", "gpu1"), 1e12),))
    reads = {"a": "", "b": "", "c": "b", "d": "a c"}
    graph = wired(reads, {"a": 60, "b": 60, "c": 1, "d": 1})
    costs = np.array([[times[0], FORBIDDEN], *([[FORBIDDEN, ns] for ns in times[1:]])])
    return Problem(graph, topology, Costs(costs))


def test_memory_that_suffices_may_not_suffice_where_every_operator_is_faster(tmp_path):
    """`a` arrives at gpu1 at 101 when `b` is gone since 20; if only `a` gets faster, it arrives while `b` is there."""
    slow, fast = exchange((100, 10, 10, 10)), exchange((5, 10, 10, 10))
    schedule = solve(slow, method="heft").replace(certificate=None)
    assert violations(slow, schedule) == []
    assert [v.rule for v in violations(fast, schedule.replace(problem=fast.digest))] == ["memory"]
    assert not fits_at_any_times(ScheduleIndex.of(slow, schedule))
    assert fits_at_any_times(ScheduleIndex.of(exchange((100, 10, 10, 10), 121), schedule))
    with pytest.raises(InfeasibleError, match="n=9 is known to fit into the devices' memory at all smaller sizes"):
        schedule_range(lambda sizes: exchange((5 + sizes["n"] * 10, 10, 10, 10)), {"n": (3, 9)}, method="heft")
    wide = schedule_range(lambda sizes: exchange((5 + sizes["n"] * 10, 10, 10, 10), 130), {"n": (3, 9)}, method="heft")
    wide.save(tmp_path / "range.json")
    document = json.loads((tmp_path / "range.json").read_text())
    assert check(tmp_path / "range.json").all_proved
    for anchor in document["anchors"]:
        anchor["problem"]["topology"]["devices"][1]["memory"] = 100
    (tmp_path / "range.json").write_text(json.dumps(document))
    with pytest.raises(Refused, match=r"'gpu1' may hold 12[01] bytes at sizes below"):
        check(tmp_path / "range.json")


@settings(max_examples=examples(60), deadline=None)
@given(case=scheduled_problems(max_operators=10, max_devices=3, min_operators=1), seed=SEEDS)
def test_what_fits_at_any_times_fits_at_random_times(case, seed):
    """The checker, which shares no code, decides alike."""
    problem, schedule = case
    fits = fits_at_any_times(ScheduleIndex.of(problem, schedule))
    rng, costs = np.random.default_rng(seed), problem.costs
    if not violations(problem, schedule, limit=1):
        document = json.loads(problem.to_json())
        (run,) = replays(document, json.loads(schedule.to_json()), [])
        try:
            check_memory(run, ())
            assert fits
        except Refused:
            assert not fits
    if fits:
        for _ in range(5):
            other = np.where(costs.operator_ns == FORBIDDEN, FORBIDDEN, rng.integers(1, 1000, costs.operator_ns.shape))
            direct = np.where(costs.direct_ns == FORBIDDEN, FORBIDDEN, problem.host_reads_ns + other % 1000)
            changed = Problem.derive(
                problem.graph, problem.topology, Costs(other, direct, host_read_ns=costs.host_read_ns)
            )
            assert violations(changed, schedule.replace(problem=changed.digest), limit=1) == []


def test_operators_that_overlap_may_take_longer_where_one_is_faster():
    """`b` and `c` overlap on gpu0 once `a` is fast, which delays `d`, for which nothing else makes up."""
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}) for i in range(2))
    topology = Topology("two", devices, (), (Link(("gpu0", "gpu1"), 1e15),))
    graph = wired({"a": "", "b": "", "c": "a", "d": "b"}, 0)

    def problem(a):
        together = Concurrency(np.full((4, 2, 1), 0.6))
        return Problem(
            graph, topology, Costs(np.array([[a, a], [100, 100], [100, 100], [100, 100]]), concurrency=together)
        )

    def latency(a):
        one = problem(a)
        placements = tuple(
            Placement(n, f"gpu{d}", s) for n, d, s in (("a", 1, 0), ("b", 0, 0), ("c", 0, 1), ("d", 1, 0))
        )
        moves = (Transfer("copy", "gpu0", "a", "gpu1"), Transfer("copy", "gpu1", "b", "gpu0"))
        return simulate(one, Schedule(one.digest, placements, moves)).latency_ns

    assert latency(50) > latency(100)
    with pytest.raises(InputError, match="a run can take longer where operators take less"):
        schedule_range(lambda sizes: problem(sizes["n"]), {"n": (50, 100)}, method="heft")


def test_two_symbols_are_covered_and_the_fastest_fitting_schedule_is_taken(tmp_path):
    def problem(sizes):
        return pair()({"tokens": sizes["batch"] * sizes["tokens"]})

    found = schedule_range(problem, {"batch": (1, 4), "tokens": (1, 8)}, method="heft", factor=2, most=12)
    found.save(tmp_path / "range.json")
    verdict = check(tmp_path / "range.json")
    assert verdict.factor == verdict.claimed == found.worst.factor
    for batch in range(1, 5):
        for tokens in range(1, 9):
            taken = found.take({"batch": batch, "tokens": tokens})
            assert taken.sizes >= (batch, tokens)
            assert taken.sizes[1] >= tokens
            assert taken.latency_ns <= verdict.factor * 10 * batch * tokens


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d["anchors"][0]["problem"]["costs"]["operator_ns"][0].__setitem__(0, 99), "is less than at"),
        (lambda d: d["anchors"].pop(0), "no anchor is below the sizes"),
        (lambda d: d["anchors"].pop(), "no anchor is above the sizes"),
        (lambda d: d["anchors"][1]["problem"]["graph"]["operators"][0].update(inputs=[]), "differ in more than sizes"),
        (lambda d: d["anchors"][1]["problem"]["topology"]["devices"][0].update(memory=7), "differ in more than sizes"),
        (lambda d: d["anchors"][1].update(sizes=[1, 2]), "does not have a size for each of 1 symbols"),
        (lambda d: d["symbols"][0].update(low=9), "a range from 9 to 4 is empty"),
        (lambda d: d["anchors"][1]["problem"]["costs"].update(concurrency={}), "operators run together"),
        (lambda d: d.pop("factor"), "not as its format says"),
        (lambda d: d["anchors"][0]["evidence"]["lemmas"][0].update(ns=11), "proves|says|ns"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, damage, message):
    found = schedule_range(pair(), {"tokens": (1, 4)}, method="heft", factor=2)
    found.save(tmp_path / "range.json")
    document = json.loads((tmp_path / "range.json").read_text())
    damage(document)
    (tmp_path / "range.json").write_text(json.dumps(document))
    with pytest.raises(Refused, match=message):
        check(tmp_path / "range.json")


def test_a_smaller_factor_than_is_proved_is_said(tmp_path):
    found = schedule_range(pair(), {"tokens": (1, 4)}, method="heft", factor=2)
    found.save(tmp_path / "range.json")
    document = json.loads((tmp_path / "range.json").read_text())
    document["factor"] = [199, 100]
    (tmp_path / "range.json").write_text(json.dumps(document))
    assert not check(tmp_path / "range.json").all_proved


def test_sizes_run_the_first_anchor_in_the_file_that_is_large_enough(tmp_path):
    found = schedule_range(pair(), {"tokens": (1, 4)}, method="heft", factor=2)
    found.save(tmp_path / "range.json")
    document = json.loads((tmp_path / "range.json").read_text())
    document["anchors"].reverse()  # so all run that of 4 tokens: 40 ns, where 10 are possible
    (tmp_path / "range.json").write_text(json.dumps(document))
    assert check(tmp_path / "range.json").factor == 4


def test_problems_that_differ_in_more_than_sizes_are_refused():
    with pytest.raises(
        InputError, match=r"graph at tokens=4 is not that at tokens=1 .* devices or results differ at 'two'"
    ):
        schedule_range(lambda sizes: pair(devices=1 + (sizes["tokens"] == 4))(sizes), {"tokens": (1, 4)}, method="heft")
    with pytest.raises(InputError, match="1 anchors; a factor of 1 or more, and at least 2"):
        schedule_range(pair(), {"tokens": (1, 4)}, most=1)
