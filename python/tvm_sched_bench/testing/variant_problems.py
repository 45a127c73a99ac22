"""Random variants of a problem's operators."""

from __future__ import annotations

from random import Random

import numpy as np

from tvm_sched_runtime.problem import (
    FORBIDDEN,
    HOST,
    Alternative,
    Costs,
    Group,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Variants,
    all_alternatives,
)


def random_variants(problem: Problem, seed: int, groups: int = 2) -> Problem:
    """Return the problem with alternatives for some of its operators.

    An alternative has heads and a tail, or is a chain of operators. Its heads read parts of the operator's parameters. If
    the operator has several results, one tail makes all of them, or one tail each. Times add up to about the operator's
    time, sometimes less.

    Examples
    --------
    >>> from tvm_sched_bench.testing import random_variants
    >>> [len(group.alternatives) > 0 for group in random_variants(problem, seed=1, groups=1).variants.groups]
    [True]
    """
    random = Random(f"{seed} variants")
    graph = problem.graph
    wanted = [operator for operator in graph.operators if operator.outputs]
    random.shuffle(wanted)
    chosen = [_group(random, graph, operator) for operator in wanted[:groups]]
    if not chosen:
        return problem
    everything = all_alternatives(graph, chosen)
    costs = _costs(random, problem, everything, chosen)
    return Problem(graph, problem.topology, problem.costs, Variants(chosen, costs))


def _group(random: Random, graph: OpGraph, operator: Operator) -> Group:
    kinds = {tensor.name: tensor for tensor in graph.tensors}
    index = graph.index
    used = [
        n for n in operator.outputs if index.consumers[index.tensor_id[n]] or n in graph.outputs
    ] or operator.outputs[:0]
    alternatives = []
    for k in random.sample(range(5), random.choice([1, 2, 3])):
        label = f"heads/{k}" if k else "chain"
        where = f"{operator.name}/{label}"
        own: list[Tensor] = []
        heads: list[Operator] = []
        count = k or 2
        late = [name for name in operator.inputs if random.random() < 0.3]
        for i in range(count):
            inputs = []
            for name in dict.fromkeys(operator.inputs):
                tensor = kinds[name]
                if tensor.kind == "parameter" and random.random() < 0.8:
                    inputs.append(f"{name}/{where}/{i}")
                    own.append(Tensor(inputs[-1], -(-tensor.size // count), "parameter"))
                elif name not in late:
                    inputs.append(name)
            if not k and i:
                inputs.append(heads[-1].outputs[0])
            own.append(Tensor(f"{where}/{i}:0", random.randint(0, 2000)))
            heads.append(Operator(f"{where}/{i}", "head", tuple(inputs), (own[-1].name,), operator.flops // count))
        read = heads if k else heads[-1:]
        apart = len(used) > 1 and random.random() < 0.7
        results = [(name,) for name in used] if apart else [tuple(used)]
        gathered = (*(o.outputs[0] for o in read), *late)
        tails = [Operator(f"{where}/tail{j or ''}", "tail", gathered, outputs) for j, outputs in enumerate(results)]
        alternatives.append(Alternative(label, (*heads, *tails), tuple(own)))
    return Group(f"group of {operator.name}", (operator.name,), tuple(alternatives))


def _costs(random: Random, problem: Problem, everything: OpGraph, groups: list[Group]) -> Costs:
    topology, base = problem.topology, len(problem.graph.operators)
    shape = (len(everything.operators) - base, len(topology.devices))
    normal = np.full(shape, FORBIDDEN, dtype=np.int64)
    direct = np.full(shape, FORBIDDEN, dtype=np.int64)
    row = 0
    for group in groups:
        whole = problem.costs.operator_ns[problem.graph.index.operator_id[group.operators[0]]]
        for alternative in group.alternatives:
            count = len(alternative.operators)
            for _ in alternative.operators:
                host = everything.index.host_inputs[base + row]
                size = sum(everything.index.size[t] for t in host)
                part = random.choice([1.0, 1.0, 0.9, 0.5, 1.3])
                for d in range(shape[1]):
                    time = int(whole[d]) if whole[d] != FORBIDDEN else 500
                    normal[row, d] = max(1, int(time * part / count))
                    route = topology.route(HOST, d)
                    reads_pages = not topology.storage or topology.maps_storage
                    if route and host and random.random() < 0.6 and reads_pages:
                        read = route.nanoseconds(size)
                        direct[row, d] = random.choice([max(read, int(normal[row, d])), max(read, 1)])
                row += 1
    return Costs(normal, direct, "random")
