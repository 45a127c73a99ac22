"""Prefill and decode as one problem: what is shared, what is carried, and what that takes, worked by hand."""

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schedule import cases
from schedulers.exhaustive import least_latency
from thorough import examples
from tvm_sched.bounds import lower_bound
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.common.submodels import split
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.variant_problems import random_variants
from tvm_sched_runtime.errors import GraphError, InputError, ProblemError
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Costs,
    Operator,
    OpGraph,
    Problem,
    Request,
    Tensor,
    Uncertainty,
    Workload,
    generation_problem,
    merge_problems,
    problems_of_models,
)
from tvm_sched_runtime.schedule import model_latencies, simulate
from tvm_sched_runtime.schedule.verifier import verify

MACHINE = cases.topology(
    cases.device("d0", "bus0"), cases.device("d1", "bus1"), buses=(cases.bus("bus0"), cases.bus("bus1"))
)
"""Two devices, each with a bus that carries a byte a nanosecond in both directions."""


def phases(added=4):
    """A prefill that makes a cache of 40 bytes in 50 ns, and a decode that reads it and adds some bytes in 7 ns."""
    prefill = cases.graph({"x": 10, "w": 100, "l": 20, "k": 40}, [("p", "x w", "l k")], outputs=("l", "k"))
    decode = cases.graph({"x": 2, "w": 100, "wk": 40, "l": 5, "n": added}, [("d", "x w wk", "l n")], outputs=("l", "n"))
    return cases.problem(prefill, MACHINE, [[50, 50]]), cases.problem(decode, MACHINE, [[7, 7]])


def test_intervals_of_both_phases_are_kept():
    prefill, decode = (
        Problem(each.graph, each.topology, each.costs.replace(uncertainty=Uncertainty(
            each.costs.operator_ns - 2, each.costs.operator_ns + 9, np.full((1, 2), 0.5), np.full((1, 2), True)
        )))
        for each in phases()
    )  # fmt: skip
    found = generation_problem(prefill, decode, decode_devices=["d1"]).costs.uncertainty
    assert found.low_ns.tolist() == [[48, 48], [1, 1], [FORBIDDEN, 5]]
    assert found.high_ns.tolist() == [[59, 59], [1, 1], [FORBIDDEN, 16]]
    assert found.shared.tolist() == [[0.5, 0.5], [0, 0], [0.5, 0.5]]
    assert generation_problem(prefill, phases()[1]).costs.uncertainty is None


def test_parameters_are_shared_and_the_cache_is_an_edge():
    made = generation_problem(*phases())
    assert [(o.name, o.inputs, o.outputs) for o in made.graph.operators] == [
        ("prefill/p", ("prefill/x", "w"), ("prefill/l", "prefill/k")),
        ("prefill/next_token", ("prefill/l",), ("decode/x",)),
        ("decode/d", ("decode/x", "w", "prefill/k"), ("decode/l", "decode/n")),
    ]
    kinds = {tensor.name: tensor.kind for tensor in made.graph.tensors}
    assert kinds == {
        "prefill/x": "input", "w": "parameter", "prefill/l": "activation", "prefill/k": "activation",
        "decode/x": "activation", "decode/l": "activation", "decode/n": "activation",
    }  # fmt: skip
    assert made.graph.outputs == ("prefill/k", "decode/l", "decode/n")
    assert made.graph.models == ("prefill", "decode")
    assert Problem.from_json(made.to_json()).digest == made.digest


def test_on_one_device_by_hand():
    """Input 10 and parameter 100, then the prefill 50, a nanosecond for the token, and the step 7."""
    made = generation_problem(*phases())
    schedule = solve(made, method="single")
    assert schedule.certificate.latency_ns == 10 + 100 + 50 + 1 + 7
    assert [(each.model, each.latency_ns) for each in model_latencies(made, schedule)] == [
        ("prefill", 161),
        ("decode", 168),
    ]
    warm = Workload([Request(("w",))])
    assert solve(made, warm, "single").certificate.latency_ns == 10 + 50 + 1 + 7


def test_decode_on_another_device_by_hand():
    """The parameter comes over both buses at once; the cache, 40 ns, follows the prefill, and the token the cache."""
    made = generation_problem(*phases(), prefill_devices=["d0"], decode_devices=["d1"])
    schedule = cases.schedule(
        made,
        ["prefill/p d0", "prefill/next_token d0", "decode/d d1"],
        ["load prefill/x d0", "load w d0", "load w d1", "copy prefill/k d0 d1", "copy decode/x d0 d1"],
    )
    verify(made, schedule)
    assert simulate(made, schedule).latency_ns == 160 + 40 + 2 + 7
    best = solve(made, method="anytime", options={"work": 0.1})
    assert best.certificate.latency_ns == 209
    assert lower_bound(made).ns <= 209
    assert least_latency(made) == 209


def test_the_best_of_all_schedules_stays_on_one_device():
    """Where nothing says otherwise: 41 ns less than with a copy of the cache."""
    made = generation_problem(*phases())
    assert least_latency(made) == solve(made, method="anytime", options={"work": 0.1}).certificate.latency_ns == 168


def test_where_each_part_may_be():
    made = generation_problem(*phases(), steps=2, prefill_devices=["d1"], decode_devices=["d0"])
    may = {
        o.name: [ns != FORBIDDEN for ns in row]
        for o, row in zip(made.graph.operators, made.costs.operator_ns, strict=True)
    }
    assert may == {
        "prefill/p": [False, True], "prefill/next_token": [False, True],
        "decode/d": [True, False], "decode/next_token": [True, False], "decode.2/d": [True, False],
    }  # fmt: skip


def test_steps_read_what_was_added_before():
    made = generation_problem(*phases(), steps=3)
    reads = {o.name: o.inputs for o in made.graph.operators}
    assert reads["decode.2/d"] == ("decode.2/x", "w", "prefill/k", "decode/n")
    assert reads["decode.3/d"] == ("decode.3/x", "w", "prefill/k", "decode/n", "decode.2/n")
    assert reads["decode.2/next_token"] == ("decode.2/l",)
    assert solve(made, method="single").certificate.latency_ns == 160 + 3 * (1 + 7)


def test_a_step_may_return_the_whole_cache():
    reads = {o.name: o.inputs for o in generation_problem(*phases(added=44), steps=3).graph.operators}
    assert reads["decode.2/d"] == ("decode.2/x", "w", "decode/n")
    assert reads["decode.3/d"] == ("decode.3/x", "w", "decode.2/n")


def test_other_sizes_are_other_parameters():
    prefill, decode = phases()
    tensors = tuple(msgspec.structs.replace(t, size=90) if t.name == "w" else t for t in decode.graph.tensors)
    decode = Problem(msgspec.structs.replace(decode.graph, tensors=tensors), MACHINE, decode.costs)
    made = generation_problem(prefill, decode, steps=2)
    assert [t.name for t in made.graph.tensors if t.kind == "parameter"] == ["w", "decode/w"]


def test_direct_reads_stay_where_there_is_something_to_read():
    """Not of the cache, which is on a device, nor of a token alone."""
    prefill, _ = phases()
    graph = cases.graph(
        {"x": 2, "w": 100, "wk": 40, "e": 5, "a": 5, "l": 5, "n": 4},
        [("embed", "x w", "e"), ("attend", "e wk", "a n"), ("mask", "x a", "l")],
        outputs=("l", "n"),
    )
    decode = cases.problem(graph, MACHINE, [[7, 7]] * 3, [[110, 110]] * 3)
    made = generation_problem(prefill, decode)
    direct = dict(zip((o.name for o in made.graph.operators), made.costs.direct_ns[:, 0].tolist(), strict=True))
    assert {name for name, ns in direct.items() if ns != FORBIDDEN} == {"decode/embed"}


def test_submodels_follow_each_other():
    made = generation_problem(*phases(), steps=2)
    names = [[made.graph.operators[o].name for o in group] for group in split(made, 1, 48)]
    assert [name.split("/")[0] for group in names for name in group] == ["prefill"] * 2 + ["decode"] * 2 + ["decode.2"]
    found = solve(made, method="sortinghat", options={"time_limit": 0.0, "total_time_limit": 0.0})
    assert found.certificate.latency_ns <= 176
    with pytest.raises(InputError, match="leave weights out"):
        split(made, 1, 48, [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="none of them can be scheduled alone"):
        problems_of_models(made)


def test_models_stand_in_the_order_in_which_they_follow_each_other():
    graph = generation_problem(*phases()).graph
    with pytest.raises(GraphError, match="of a later model"):
        msgspec.structs.replace(graph, models=("decode", "prefill"))
    assert graph.models_in_turn
    assert not merge_problems([*phases()]).graph.models_in_turn


def test_variants_that_cut_no_parameter_stay():
    prefill, decode = (random_variants(problem, 3) for problem in phases())
    made = generation_problem(prefill, decode, steps=2, carried={"wk": "k"})
    for group in made.variants.groups if made.variants else ():
        assert all(t.kind == "activation" for alternative in group.alternatives for t in alternative.tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"prefill_devices": ["gpu7"]}, "no device 'gpu7'"),
        ({"carried": {"wk": "l2"}}, "'l2' for 'wk'; the first must be an output"),
        ({"carried": {"nothing": "k"}}, "'k' for 'nothing'"),
        ({"carried": {"w": "k"}}, "has 100 bytes and 'k'"),
        ({"carried": {}}, "no cache could be carried over"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        generation_problem(*phases(), **change)


def test_what_a_step_adds_has_to_be_known_for_several_steps():
    prefill, decode = phases()
    decode = Problem(msgspec.structs.replace(decode.graph, outputs=("l",)), MACHINE, decode.costs)
    assert generation_problem(prefill, decode).graph.models == ("prefill", "decode")
    with pytest.raises(InputError, match="plan one step"):
        generation_problem(prefill, decode, steps=2)


def test_two_machines_and_impossible_devices_are_refused():
    prefill, decode = phases()
    other = Problem(decode.graph, msgspec.structs.replace(MACHINE, name="other"), decode.costs)
    with pytest.raises(InputError, match="one topology"):
        generation_problem(prefill, other)
    nowhere = Problem(decode.graph, MACHINE, Costs([[7, FORBIDDEN]]))
    with pytest.raises(ProblemError, match="can run on no device"):
        generation_problem(prefill, nowhere, decode_devices=["d1"])


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10_000), steps=st.integers(1, 3), variants=st.booleans())
def test_random_phases_are_ordinary_problems(seed, steps, variants):
    """Schedulers' answers obey the rules and stand above the bound (`solve` looks at both); parts end in their order."""
    prefill, decode = _random_phases(seed)
    if variants:
        prefill, decode = random_variants(prefill, seed), random_variants(decode, seed)
    made = generation_problem(prefill, decode, steps, {"cache": "made"})
    assert len(made.graph.models) == steps + 1
    for name, options in (("heft", {}), ("anytime", {"work": 0.02}), ("sortinghat", {"total_time_limit": 0.0})):
        schedule = solve(made, method=name, options=options)
        assert schedule.certificate.lower_bound_ns <= schedule.certificate.latency_ns
    assert Problem.from_json(made.to_json()).digest == made.digest


def _random_phases(seed):
    """A random problem with one more output, and the same with one more parameter of its size."""
    base = random_problem(seed, 5, 2, memory="generous")
    outputs = [t for t in base.graph.tensors if t.kind == "activation"]
    assume(outputs)
    # How long reading a cache directly takes is not known, so an operator that can do nothing else is refused.
    assume((base.costs.operator_ns != FORBIDDEN).any(axis=1).all())
    roomy = tuple(msgspec.structs.replace(device, memory=10**9) for device in base.topology.devices)
    machine = msgspec.structs.replace(base.topology, devices=roomy)
    last = base.graph.operators[base.graph.index.order[-1]]
    cost = [[100] * len(machine.devices)]
    first = (outputs[0].name, *base.graph.outputs)

    def with_operator(operator, tensors):
        graph = OpGraph(
            base.graph.name, (*base.graph.operators, operator), (*base.graph.tensors, *tensors),
            tuple(dict.fromkeys((first[0], *operator.outputs, *first))),
        )  # fmt: skip
        direct = [*base.costs.direct_ns.tolist(), [FORBIDDEN] * len(machine.devices)]
        return Problem(graph, machine, Costs([*base.costs.operator_ns.tolist(), *cost], direct))

    prefill = with_operator(Operator("make", inputs=last.outputs[:1], outputs=("made",)), [Tensor("made", 300)])
    decode = with_operator(
        Operator("read", inputs=("cache",), outputs=("added",)), [Tensor("cache", 300, "parameter"), Tensor("added", 7)]
    )
    return prefill, decode
