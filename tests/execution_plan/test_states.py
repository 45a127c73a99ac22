"""States and workspaces in plans: where they lie, what is counted, and what is refused."""

from dataclasses import dataclass, replace

import msgspec
import pytest

from tvm_sched.cost_model import costs
from tvm_sched.execution_plan import check_states, emit_plan
from tvm_sched.execution_plan.execution_plan import WORKSPACE
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Operator, OpGraph, Problem, Tensor, load_topology
from tvm_sched_runtime.runtime.module import make_module
from tvm_sched_runtime.schedule import Placement, Schedule, Transfer

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


@dataclass(frozen=True)
class InPlace(ShapesOnly):
    """The kernel `new` updates the state in place. In GRAPH, `out` reads its old value, too."""

    @property
    def calls(self):
        return [replace(call, in_place={0: 0}) if call.operator == "new" else call for call in super().calls]


READS_NEW = msgspec.structs.replace(GRAPH, operators=(GRAPH.operators[0], Operator("out", "k", ("t",), ("y",))))


def plan_in_place(graph, states=None):
    topology = load_topology("cpu2")
    problem = Problem(graph, topology, costs(graph, topology))
    first = topology.devices[0].name
    schedule = Schedule(problem.digest, (Placement("new", first), Placement("out", first)), ())
    return emit_plan(
        problem, schedule, InPlace(graph), name="p", backend="cpu", functions={}, values=(),
        states={"s": "t"} if states is None else states,
    )  # fmt: skip


def test_a_state_in_place_is_stored_once():
    made = plan_in_place(READS_NEW)
    assert [state["in_place"] for state in made["states"]] == [True]
    assert made["devices"][0]["extra_bytes"] == SIZE
    kernel = next(step for step in made["steps"] if step["name"] == "new")
    kinds = [made["buffers"][b]["source"]["kind"] for b in (*kernel["inputs"], *kernel["outputs"])]
    assert kinds == ["state", "argument", "next_state"]


def test_what_cannot_be_in_place_is_refused():
    with pytest.raises(InputError, match="'out' reads the old value of the state 's', which 'new' overwrites"):
        plan_in_place(GRAPH)
    with pytest.raises(
        InputError, match="'new' updates its input 's' in place, so its result 't' must be the next value"
    ):
        plan_in_place(READS_NEW, states={})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made["steps"][1]["inputs"].insert(0, 0), 'operator "out" .* reads its old value; one kernel'),
        (lambda made: made["steps"][0]["inputs"].pop(0), 'operator "new" .* writes it without reading it; one kernel'),
    ],
)
def test_the_reader_checks_who_reads_a_state_in_place(change, message):
    made = plan_in_place(READS_NEW)
    assert [step["name"] for step in made["steps"]] == ["new", "out"]
    assert made["buffers"][0]["source"]["kind"] == "state"
    make_module([made], {})
    change(made)
    with pytest.raises(ValueError, match=message):
        make_module([made], {})


def test_plans_agree_on_which_states_are_in_place():
    made = plan_in_place(READS_NEW)
    other = msgspec.json.decode(msgspec.json.encode(made))
    other["name"] = "q"
    other["arguments"][0]["shape"] = [1]
    for buffer in other["buffers"]:
        if buffer["source"]["kind"] == "argument":
            buffer["shape"] = [1]
    make_module([made, other], {})
    del other["states"][0]["in_place"]
    with pytest.raises(
        ValueError, match='state "s" is updated in place in one of the plans "p" and "q" and not in the other'
    ):
        make_module([made, other], {})
