"""States and workspaces in plans: where they lie, what is counted, and what is refused."""

import msgspec
import pytest

from tvm_sched.cost_model import costs
from tvm_sched.errors import InputError
from tvm_sched.execution_plan import ShapesOnly, check_states, emit_plan
from tvm_sched.execution_plan.execution_plan import WORKSPACE
from tvm_sched.problem import Operator, OpGraph, Problem, Tensor, load_topology
from tvm_sched.schedule import Placement, Schedule, Transfer

SIZE = 4096
GRAPH = OpGraph(
    "step",
    (Operator("new", "k", ("s", "x"), ("t",)), Operator("out", "k", ("t", "s"), ("y",))),
    tuple(
        Tensor(name, SIZE, kind, (SIZE,), "uint8")
        for name, kind in (("s", "input"), ("x", "input"), ("t", "activation"), ("y", "activation"))
    ),
    ("y", "t"),
)


def plan(devices, memory=1 << 30, states=None, workspaces=()):
    """The plan of the step on two GPUs."""
    topology = load_topology("v100-server")
    gpus = tuple(msgspec.structs.replace(device, memory=memory) for device in topology.devices)
    topology = msgspec.structs.replace(topology, devices=gpus)
    problem = Problem(GRAPH, topology, costs(GRAPH, topology))
    first, second = (topology.devices[d].name for d in devices)
    transfers = [Transfer("load", first, "s"), Transfer("load", first, "x")]
    if second != first:
        transfers += [Transfer("load", second, "s"), Transfer("copy", second, "t", first)]
    schedule = Schedule(problem.digest, (Placement("new", first), Placement("out", second)), tuple(transfers))
    return emit_plan(
        problem, schedule, ShapesOnly(GRAPH), name="p", backend="cuda", functions={}, values=(),
        states=states if states is not None else {"s": "t"}, workspaces=workspaces,
    )  # fmt: skip


def copies(made):
    """What is copied, from and to which kind of memory."""
    kinds = [buffer["source"]["kind"] for buffer in made["buffers"]]
    return [
        (step["name"], kinds[step["inputs"][0]], kinds[step["outputs"][0]])
        for step in made["steps"]
        if step["kind"] == "copy"
    ]


def test_a_state_is_not_copied_where_it_is_computed_and_read():
    made = plan((1, 1))
    assert [(state["name"], state["device"]) for state in made["states"]] == [("s", 1)]
    assert [argument["name"] for argument in made["arguments"]] == ["x"]
    assert [output["name"] for output in made["outputs"]] == ["y"]
    assert copies(made) == [("x", "argument", "arena"), ("y", "arena", "output")]
    assert made["devices"][1]["extra_bytes"] == 2 * SIZE
    assert "extra_bytes" not in made["devices"][0]


def test_a_state_is_brought_to_other_devices_that_read_it():
    made = plan((0, 2))
    assert made["states"][0]["device"] == 0, "where its next value is computed"
    assert sorted(copies(made)) == sorted(
        [("x", "argument", "arena"), ("s", "state", "arena"), ("t", "next_state", "arena"), ("y", "arena", "output")]
    )


def test_without_states_a_plan_is_as_before():
    made = plan((0, 0), states={})
    assert "states" not in made
    assert [argument["name"] for argument in made["arguments"]] == ["s", "x"]


def test_workspaces_are_counted_and_get_no_more_than_there_is():
    (plenty,) = (plan((0, 0), workspaces=("new",))["devices"][0],)
    assert plenty["workspace_bytes"] == WORKSPACE
    assert plenty["extra_bytes"] == WORKSPACE + 2 * SIZE
    scarce = plan((0, 0), memory=1 << 20, workspaces=("new",))["devices"][0]
    assert 0 < scarce["workspace_bytes"] < WORKSPACE
    assert scarce["arena_bytes"] + scarce["extra_bytes"] <= scarce["memory_bytes"]
    assert "workspace_bytes" not in plan((0, 1), workspaces=("new",))["devices"][1], "no such kernel runs there"


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"nobody": 1}, "'nobody', which is not an input of the model; its inputs are s, x"),
        ({"s": 2}, "result 2 for 's'; the model has 2 results"),
        ({"s": 1, "x": 1}, "result 1 twice"),
        ({"s": 0, "x": 1}, "all results"),
    ],
)
def test_what_can_be_no_state_is_refused(states, message):
    with pytest.raises(InputError, match=message):
        check_states(GRAPH, ["s", "x"], ["y", "t"], states)


def test_a_state_is_no_result_and_a_run_computes_one():
    with pytest.raises(InputError, match="'s' cannot be a state: the model hands it back as result 1"):
        check_states(GRAPH, ["s", "x"], ["y", "s", "t"], {"s": 2})
    with pytest.raises(InputError, match="all results that the model computes"):
        check_states(GRAPH, ["s", "x"], ["x", "t"], {"s": 1})
    assert check_states(GRAPH, ["s", "x"], ["x", "y", "t"], {"s": 2}) == {"s": "t"}, "an input handed back is no state"


def test_a_state_has_one_type():
    tensors = tuple(msgspec.structs.replace(t, dtype="int8") if t.name == "t" else t for t in GRAPH.tensors)
    with pytest.raises(InputError, match=r"'s' is uint8\[4096\], and result 1.* is int8"):
        check_states(msgspec.structs.replace(GRAPH, tensors=tensors), ["s", "x"], ["y", "t"], {"s": 1})
    with pytest.raises(InputError, match="an input or a parameter"):
        check_states(GRAPH, ["s", "x"], ["y", "x"], {"s": 1})
