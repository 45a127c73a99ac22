"""Operator graphs: what is refused, and the graph in integers."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_sched_bench.testing import random_graph
from tvm_sched_runtime.errors import GraphError
from tvm_sched_runtime.problem import Operator, OpGraph, Tensor


def chain(*operators, tensors=("a", "b", "c"), outputs=("c",)):
    made = (Tensor("x", 4, "input"), *(Tensor(name, 4) for name in tensors))
    return OpGraph("g", operators, made, outputs)


A = Operator("A", "k", ("x",), ("a",))
B = Operator("B", "k", ("a",), ("b",))
C = Operator("C", "k", ("a", "b", "a"), ("c",))


def test_index():
    index = chain(C, A, B).index
    assert index.operator_id == {"C": 0, "A": 1, "B": 2}
    assert index.order == [1, 2, 0]
    assert index.inputs[0] == (1, 2)
    assert index.predecessors == [[1, 2], [], [1]]
    assert index.successors == [[], [0, 2], [0]]
    assert index.producer == [-1, 1, 2, 0]
    assert index.consumers == [[1], [0, 2], [0], []]
    assert index.host_inputs == [(), (0,), ()]
    assert index.graph_outputs == (3,)


def test_an_operator_may_read_a_part_of_a_tensor():
    lookup = msgspec.structs.replace(A, read_bytes={"x": 1})
    index = chain(lookup, B, C).index
    assert index.host_bytes == [(1,), (), ()]
    assert chain(A, B, C).index.host_bytes == [(4,), (), ()]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"w": 1}, "read_bytes names 'w', which is not one of its inputs"),
        ({"x": -1}, "reads -1 bytes of 'x'; 0 or more"),
        ({"x": 5}, "reads 5 bytes of 'x', which has 4"),
    ],
)
def test_parts_that_cannot_be_are_refused(parts, message):
    with pytest.raises(GraphError, match=message):
        chain(Operator("A", "k", ("x",), ("a",), read_bytes=parts), B, C)


def test_empty_graph():
    graph = OpGraph("constants only", (), (Tensor("w", 4, "parameter"),), ("w",))
    assert graph.index.order == []
    assert graph.index.graph_outputs == (0,)


@pytest.mark.parametrize(
    ("operators", "said"),
    [
        ((A, B, Operator("B", "k", (), ("c",))), "operator name 'B' occurs twice"),
        ((A, B, Operator("C", "k", ("z",), ("c",))), "operator 'C' names tensor 'z'"),
        ((A, B), "tensor 'c' is an activation, but no operator makes it"),
        ((A, B, C, Operator("D", "k", (), ("c",))), "tensor 'c' is made by 'C' and again by 'D'"),
        ((A, B, C, Operator("D", "k", (), ("x",))), "operator 'D' writes 'x', which is of kind 'input'"),
        ((A, Operator("B", "k", ("c",), ("b",)), C), "cycle: "),
    ],
)
def test_errors(operators, said):
    with pytest.raises(GraphError) as error:
        chain(*operators)
    assert said in str(error.value)


def test_a_tensor_twice_and_an_unknown_output():
    with pytest.raises(GraphError, match="tensor name 'a' occurs twice"):
        chain(A, B, C, tensors=("a", "a", "b", "c"))
    with pytest.raises(GraphError, match="output 'z' is not a tensor"):
        chain(A, B, C, outputs=("z",))


def test_a_cycle_names_its_operators_in_order():
    loop = [
        Operator(name, "k", (before,), (after,))
        for name, before, after in (("P", "c", "a"), ("Q", "a", "b"), ("R", "b", "c"))
    ]
    tail = Operator("T", "k", ("c",), ("d",))
    with pytest.raises(GraphError) as error:
        chain(*loop, tail, tensors=("a", "b", "c", "d"))
    names = str(error.value).split("cycle: ")[1].split(" -> ")
    assert names[0] == names[-1]
    assert sorted(names[1:]) == ["P", "Q", "R"]
    assert "".join(names) in "PQRPQRPQR"


@pytest.mark.parametrize(
    "make", [lambda: Tensor("", 1), lambda: Tensor("t", -1), lambda: Operator(""), lambda: Operator("o", flops=-1)]
)
def test_fields(make):
    with pytest.raises(GraphError):
        make()


@given(st.integers(0, 10**6), st.integers(0, 30))
def test_order_is_topological(seed, operators):
    index = random_graph(random.Random(seed), operators).index
    place = {o: i for i, o in enumerate(index.order)}
    assert sorted(place) == list(range(operators))
    assert all(place[p] < place[o] for o in place for p in index.predecessors[o])
    assert all(o in index.successors[p] for o in place for p in index.predecessors[o])
