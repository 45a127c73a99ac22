"""Plans whose queues and waits order all accesses to the same memory, and plans that miss a wait."""

import copy
import json

import pytest

from tvm_sched.execution_plan import emit_plan
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_bench.testing.streams import random_concurrency, random_stages, random_streams
from tvm_sched_check.document import Refused
from tvm_sched_check.plans import Accesses, check, check_plan


def by_hand(waits=((), (0,)), offset=64, reads=0):
    """A kernel of queue a writes a tensor of 8 bytes, then one of queue b reads a tensor and writes another."""
    buffers = [
        {"name": name, "shape": [2], "dtype": "float32", "source": {"kind": "arena", "device": 0, "offset": at}}
        for name, at in (("x", 0), ("y", offset))
    ]
    steps = [
        {"queue": 0, "kind": "kernel", "name": "first", "outputs": [0], "waits": list(waits[0])},
        {"queue": 1, "kind": "kernel", "name": "second", "inputs": [reads], "outputs": [1], "waits": list(waits[1])},
    ]
    return {
        "format": "tvm_sched.plan",
        "version": 1,
        "name": "p",
        "devices": [{"name": "d"}],
        "queues": [{"name": "a"}, {"name": "b"}],
        "buffers": buffers,
        "steps": steps,
    }


def test_a_reader_that_waits_for_its_writer_is_ordered():
    assert check_plan(by_hand()) == "plan 'p': 2 steps in 2 queues; 1 pairs that share memory are ordered"


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (by_hand(waits=((), ())), "share the memory of 'x' (bytes 0 to 8 of arena 0 of 'd')"),
        (by_hand(offset=4), "writes 'y' (bytes 4 to 12 of arena 0 of 'd') over what it reads"),
        (by_hand(reads=1), "reads 'y' (bytes 64 to 72 of arena 0 of 'd'), which no earlier step writes"),
        (by_hand(waits=((), (1,))), "step 1 waits for 1, which is no earlier step"),
        ({**by_hand(), "steps": 3}, "the plan is not as its format says"),
        ({**by_hand(), "version": 2}, "is not of format 'tvm_sched.plan' and version 1"),
    ],
)
def test_what_is_not_ordered_is_refused(plan, why):
    with pytest.raises(Refused) as refused:
        check_plan(plan)
    assert why in str(refused.value)


def test_bytes_that_were_overwritten_are_refused():
    plan = by_hand()
    plan["buffers"].append({**plan["buffers"][0], "name": "z"})
    plan["steps"].append({"queue": 1, "kind": "kernel", "name": "third", "outputs": [2], "waits": []})
    check_plan(plan)
    plan["steps"].append({"queue": 1, "kind": "kernel", "name": "fourth", "inputs": [0], "waits": []})
    with pytest.raises(Refused, match=r"whose bytes step 2 .* has overwritten with 'z'"):
        check_plan(plan)


def test_a_writer_waits_for_each_reader_of_its_bytes():
    plan = by_hand()
    plan["queues"] += [{"name": "c"}, {"name": "d"}]
    plan["buffers"].append({**plan["buffers"][0], "name": "z"})
    plan["steps"].append({"queue": 2, "kind": "kernel", "name": "third", "inputs": [0], "waits": [0]})
    plan["steps"].append({"queue": 3, "kind": "kernel", "name": "fourth", "outputs": [2], "waits": [1, 2]})
    check_plan(plan)
    for reader in (1, 2):
        plan["steps"][3]["waits"] = [reader]
        with pytest.raises(Refused, match=rf"step 3 .* and step {3 - reader} .* share the memory of 'z'"):
            check_plan(plan)


def test_a_copy_that_a_warm_run_leaves_out_orders_nothing_else():
    plan = by_hand(waits=((), (1,)))
    weight = {"name": "w", "shape": [2], "dtype": "float32"}
    plan["buffers"] += [
        {**weight, "source": {"kind": "parameter", "index": 0}},
        {**weight, "source": {"kind": "arena", "device": 0, "offset": 128}},
    ]
    load = {"queue": 2, "kind": "copy", "name": "w", "inputs": [2], "outputs": [3], "waits": [0]}
    plan["queues"].append({"name": "bus"})
    plan["steps"].insert(1, {**load, "evict": True})
    check_plan(plan)  # it moves in each run, so the second kernel comes after the first
    plan["steps"][1] = load
    with pytest.raises(Refused, match="share the memory of 'x'"):
        check_plan(plan)


def random_plan(seed):
    problem = random_problem(seed)
    problem = random_concurrency(problem, seed) if seed % 3 else problem
    schedule = random_schedule(problem, seed)
    if seed % 3:
        schedule = (random_streams, random_stages)[seed % 3 - 1](problem, schedule, seed)
    weights = [tensor.name for tensor in problem.graph.tensors if tensor.kind == "parameter"]
    return emit_plan(
        problem,
        schedule,
        ShapesOnly(problem.graph),
        name="p",
        backend=("cpu", "emulated")[seed % 2],
        functions={},
        values=weights,
    )


@pytest.mark.parametrize("seed", [s for s in range(30) if all(t.size for t in random_problem(s).graph.tensors)])
def test_plans_order_their_accesses_and_need_each_wait_for_it(seed):
    plan = random_plan(seed)
    accesses = Accesses(plan)
    accesses.check()
    assert accesses.pairs
    for later, step in enumerate(plan["steps"]):
        for earlier in step["waits"]:
            # Who waits for a copy that may be left out names it, even if another step, which always runs, waits for it.
            if (earlier, later) in accesses.pairs and earlier not in accesses.optional:
                mutant = copy.deepcopy(plan)
                mutant["steps"][later]["waits"].remove(earlier)
                with pytest.raises(Refused):
                    check_plan(mutant)


def test_a_file_has_a_plan_or_several(tmp_path):
    file = tmp_path / "plans.json"
    file.write_text(json.dumps([by_hand(), {**by_hand(), "symbols": [{"name": "n"}]}]))
    assert [line.split(":")[0] for line in check(file).lines] == ["plan 'p'", "plan 'p'"]
    assert "a template" in check(file).lines[1]
