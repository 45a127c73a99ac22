"""Merge several models that run at once: their graphs, or their problems on one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from ..errors import InputError
from .costs import concatenate_costs
from .graph import Operator, OpGraph, Tensor
from .problem import Problem
from .variants import Group, Variants
from .workload import Scenario


def merge_graphs(graphs: Sequence[OpGraph]) -> OpGraph:
    """Merge several independent graphs into one.

    Names of operators and tensors get their graph's name as a prefix (``gpt2-large/take``). Graphs of the same name are
    numbered (``gpt2-large.2/take``), and a slash in a graph's name becomes a dot. The merged name joins them with ``+``.

    Raises
    ------
    InputError
        There is no graph.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import merge_graphs
    >>> [operator.name for operator in merge_graphs([graph, graph]).operators]
    ['fork/left', 'fork/right', 'fork/join', 'fork.2/left', 'fork.2/right', 'fork.2/join']
    """
    if not graphs:
        raise InputError("there is no graph to merge; give one or more")
    if len(graphs) == 1:
        return graphs[0]
    renamed = [_prefixed(graph, name) for graph, name in zip(graphs, _model_names(graphs), strict=True)]
    return OpGraph(
        "+".join(graph.name for graph in graphs),
        tuple(operator for graph in renamed for operator in graph.operators),
        tuple(tensor for graph in renamed for tensor in graph.tensors),
        tuple(output for graph in renamed for output in graph.outputs),
        tuple(model for graph in renamed for model in graph.models or (graph.name,)),
    )


def merge_problems(problems: Sequence[Problem]) -> Problem:
    """Merge problems on the same machine into one: all models run at once, and the latency is that of the last.

    Names of operators and tensors begin with the name of their model and a slash.

    Raises
    ------
    InputError
        There is no problem, or two are for different machines.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import merge_problems
    >>> both = merge_problems([problem, problem])
    >>> both.graph.models, solve(both).certificate.latency_ns
    (('fork', 'fork.2'), 4500)
    """
    if not problems:
        raise InputError("there is no problem to merge; give one or more")
    first = problems[0]
    for problem in problems:
        if problem.topology != first.topology:
            raise InputError(
                f"{problem.graph.name!r} is for {problem.topology.name!r} and {first.graph.name!r} for "
                f"{first.topology.name!r}; problems that are merged have one topology"
            )
    if len(problems) == 1:
        return first
    graphs = [problem.graph for problem in problems]
    names = _model_names(graphs)
    known = [(problem.variants, name) for problem, name in zip(problems, names, strict=True) if problem.variants]
    variants = None
    if known:
        groups = [renamed_group(group, name, _prefix(name)) for each, name in known for group in each.groups]
        variants = Variants(groups, concatenate_costs([each.costs for each, _ in known]))
    costs = concatenate_costs([problem.costs for problem in problems])
    joinable = all(problem.joinable for problem in problems)
    return Problem(merge_graphs(graphs), first.topology, costs, variants, joinable)


def merge_scenarios(scenarios: Sequence[Scenario]) -> Scenario:
    """Merge the problems (`merge_problems`) and the resident parameters of several runs.

    Raises
    ------
    InputError
        As `merge_problems`.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Scenario, merge_scenarios
    >>> merged = merge_scenarios([Scenario(problem, frozenset({"w"})), Scenario(problem)])
    >>> sorted(merged.resident)
    ['fork/w']
    """
    merged = merge_problems([scenario.problem for scenario in scenarios])
    if len(scenarios) == 1:
        return Scenario(merged, scenarios[0].resident)
    names = _model_names([scenario.graph for scenario in scenarios])
    resident = [f"{name}/{each}" for one, name in zip(scenarios, names, strict=True) for each in one.resident]
    return Scenario(merged, frozenset(resident))


def problems_of_models(problem: Problem) -> list[Problem]:
    """Split a problem into one for each of its models, alone on the machine; one model: the problem itself.

    Names stay those of the merged graph.

    Raises
    ------
    InputError
        Models read tensors of others (`generation_problem`), so none can be a separate problem.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import merge_problems, problems_of_models
    >>> [part.graph.name for part in problems_of_models(merge_problems([problem, problem]))]
    ['fork', 'fork.2']
    """
    graph, known = problem.graph, problem.variants
    if not graph.models:
        return [problem]
    if graph.models_in_turn:
        raise InputError(
            f"{graph.name!r}: {', '.join(graph.models)} follow each other, so that none of them can be scheduled alone; "
            "schedule their own problem files instead"
        )
    parts: list[Problem] = []
    for name, members in zip(graph.models, graph.operators_of_models, strict=True):
        operators = tuple(graph.operators[o] for o in members)
        own = {operator.name for operator in operators}
        tensors = tuple(tensor for tensor in graph.tensors if graph.model_of(tensor.name) == name)
        outputs = tuple(output for output in graph.outputs if graph.model_of(output) == name)
        variants = known.of_groups([group.operators[0] in own for group in known.groups]) if known else None
        part = Problem(
            OpGraph(name, operators, tensors, outputs),
            problem.topology,
            problem.costs.rows(members),
            variants,
            problem.joinable,
        )
        parts.append(part)
    return parts


def _model_names(graphs: Sequence[OpGraph]) -> list[str]:
    """Make the graphs' names unique by numbers, and replace slashes, which separate model and operator."""
    names = [graph.name.replace("/", ".") for graph in graphs]
    taken, seen, result = set(names), Counter[str](), []
    for name in names:
        seen[name] += 1
        candidate = name
        while seen[name] > 1 and (candidate in taken):
            candidate = f"{name}.{seen[name]}"
            seen[name] += candidate in taken
        taken.add(candidate)
        result.append(candidate)
    return result


def _prefixed(graph: OpGraph, name: str) -> OpGraph:
    tensor = _prefix(name)
    operators = renamed_operators(graph.operators, name, tensor)
    tensors = renamed_tensors(graph.tensors, tensor)
    return OpGraph(name, operators, tensors, tuple(map(tensor, graph.outputs)), tuple(map(tensor, graph.models)))


def _prefix(name: str) -> Callable[[str], str]:
    return lambda each: f"{name}/{each}"


def renamed_group(group: Group, name: str, tensor: Callable[[str], str]) -> Group:
    """Prefix the names of a group and its operators with the name of their graph, and rename the tensors."""
    replace = msgspec.structs.replace
    alternatives = tuple(
        replace(
            each,
            operators=renamed_operators(each.operators, name, tensor),
            tensors=renamed_tensors(each.tensors, tensor),
        )
        for each in group.alternatives
    )
    operators = tuple(map(_prefix(name), group.operators))
    return replace(group, name=f"{name}/{group.name}", operators=operators, alternatives=alternatives)


def renamed_operators(operators: Iterable[Operator], name: str, tensor: Callable[[str], str]) -> tuple[Operator, ...]:
    """Prefix the names of operators with the name of their graph, and rename their tensors."""

    def renamed(o: Operator) -> Operator:
        inputs, outputs = tuple(map(tensor, o.inputs)), tuple(map(tensor, o.outputs))
        parts = o.read_bytes and {tensor(each): size for each, size in o.read_bytes.items()}
        return msgspec.structs.replace(o, name=f"{name}/{o.name}", inputs=inputs, outputs=outputs, read_bytes=parts)

    return tuple(renamed(operator) for operator in operators)


def renamed_tensors(tensors: Iterable[Tensor], tensor: Callable[[str], str]) -> tuple[Tensor, ...]:
    """Rename tensors."""
    return tuple(msgspec.structs.replace(each, name=tensor(each.name)) for each in tensors)
