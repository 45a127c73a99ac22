"""Merge prefill and decode steps of a language model into one problem that loads each parameter once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from ..errors import InputError
from .costs import FORBIDDEN, Costs, Uncertainty, concatenate_costs
from .graph import Operator, OpGraph, Tensor
from .merge import renamed_group, renamed_operators
from .problem import Problem
from .variants import Alternative, Variants

PREFILL, DECODE = "prefill", "decode"


def generation_problem(
    prefill: Problem,
    decode: Problem,
    steps: int = 1,
    carried: Mapping[str, str] | None = None,
    prefill_devices: Collection[str] = (),
    decode_devices: Collection[str] = (),
) -> Problem:
    """Make one problem of a prefill and the decode steps that follow it.

    Its models are ``prefill``, ``decode``, ``decode.2`` and so on; the end of ``prefill`` is the time to the first token. A
    parameter with the same name, size, shape and type in both problems is one tensor. The cache is an activation of the
    prefill: it stays on the device that computed it, and copies bring it to others. Each step also reads the entries that
    earlier steps added to the cache; its kernels take as long as ``decode``'s, although the cache grows. An operator
    ``next_token`` (1 ns) computes the other inputs of a step, such as its token, from the first output of the part before.

    Alternatives with parameters of their own are dropped: the parts would not share them.

    Parameters
    ----------
    prefill, decode : Problem
        Problems on the same machine. The prefill returns logits and the cache. A step takes the cache as parameters or
        inputs, and returns logits and, in the same order, the new entries of the cache, or the whole new cache.
    steps : int
        Number of tokens after the first.
    carried : mapping of str to str, optional
        Outputs of the prefill by the host tensors of the decode that they replace. By default an output after the logits
        replaces the first free host tensor of its shape and type that is no parameter of the prefill.
    prefill_devices, decode_devices : collection of str
        Names of the devices that may compute each of the two; none: all.

    Raises
    ------
    InputError
        Fewer than one step, two topologies, an unknown device, no carried tensor, or tensors that do not fit.
    ProblemError
        An operator can run on none of the devices.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import generation_problem
    >>> both = generation_problem(problem, problem, steps=2, carried={"x": "y"})
    >>> len(both.graph.operators), solve(both, method="heft").certificate.latency_ns
    (9, 9750)
    """
    if steps < 1:
        raise InputError(f"steps is {steps}; 1 or more is allowed")
    if prefill.topology != decode.topology:
        raise InputError(
            f"{prefill.graph.name!r} is for {prefill.topology.name!r} and {decode.graph.name!r} for "
            f"{decode.topology.name!r}; prefill and decode have one topology"
        )
    pairs = _pairs(prefill.graph, decode.graph, carried, steps)
    carries = {pair.tensor for pair in pairs}
    inputs = [t for t in decode.graph.tensors if t.kind == "input" and t.name not in carries]
    step = restrict_to_devices(decode, decode_devices, carries, [tensor.name for tensor in inputs])
    parts = _parts(restrict_to_devices(prefill, prefill_devices), step, pairs, steps)
    operators: list[Operator] = []
    outputs: list[str] = []
    costs: list[Costs] = []
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        graph = part.problem.graph
        operators += part.operators(graph.operators)
        costs.append(part.problem.costs)
        if following is None or not inputs:
            outputs += map(part.named, graph.outputs)
        else:
            outputs += map(part.named, graph.outputs[1:])
            written = tuple(following.named(tensor.name) for tensor in inputs)
            operators.append(
                Operator(f"{part.name}/next_token", "next_token", (part.named(graph.outputs[0]),), written)
            )
            costs.append(_token_costs(part.problem))
    name = f"{prefill.graph.name}+{decode.graph.name}" + (f"x{steps}" if steps > 1 else "")
    names = tuple(part.name for part in parts)
    graph = OpGraph(name, tuple(operators), _tensors(parts), tuple(dict.fromkeys(outputs)), names)
    joinable = prefill.joinable and decode.joinable
    return Problem(graph, prefill.topology, concatenate_costs(costs), _variants(parts), joinable)


class _Pair(NamedTuple):
    """A tensor of the cache: ``output`` of the prefill replaces ``tensor`` of the decode.

    The next step reads a step's output ``added`` (empty: none) beside it if the cache ``grows``, else instead of it.
    """

    output: str
    tensor: str
    added: str
    grows: bool


@dataclass(frozen=True)
class _Part:
    """The prefill or a step: its problem, names of tensors of ``others``, and ``more`` tensors that their readers read."""

    name: str
    problem: Problem
    others: Mapping[str, str]
    more: Mapping[str, Sequence[str]]

    def named(self, tensor: str) -> str:
        """Return a tensor's name in the whole graph."""
        return self.others.get(tensor, f"{self.name}/{tensor}")

    def operators(self, operators: Sequence[Operator]) -> tuple[Operator, ...]:
        """Rename operators as in the whole graph."""
        renamed = renamed_operators(operators, self.name, self.named)
        if not any(self.more.values()):
            return renamed
        more = [dict.fromkeys(t for name in o.inputs for t in self.more.get(name, ())) for o in renamed]
        return tuple(
            msgspec.structs.replace(o, inputs=(*o.inputs, *added)) for o, added in zip(renamed, more, strict=True)
        )


def _parts(prefill: Problem, decode: Problem, pairs: Sequence[_Pair], steps: int) -> list[_Part]:
    """Make the prefill and the steps, with the tensors that each takes from earlier parts."""
    known = {t.name: t for t in prefill.graph.tensors if t.kind == "parameter"}
    parts = [_Part(PREFILL, prefill, {name: name for name in known}, {})]
    parameters = {
        t.name: t.name if known.get(t.name) == t else f"{DECODE}/{t.name}"
        for t in decode.graph.tensors
        if t.kind == "parameter"
    }
    cache = {pair: [parts[0].named(pair.output)] for pair in pairs}
    for k in range(1, steps + 1):
        others = parameters | {pair.tensor: kept[0] for pair, kept in cache.items()}
        more = {kept[0]: kept[1:] for kept in cache.values()}
        parts.append(_Part(DECODE if k == 1 else f"{DECODE}.{k}", decode, others, more))
        for pair, kept in cache.items():
            if pair.added:
                cache[pair] = [*(kept if pair.grows else ()), parts[-1].named(pair.added)]
    return parts


def _tensors(parts: Sequence[_Part]) -> tuple[Tensor, ...]:
    """Return all tensors, each once; the part before a step makes its inputs."""
    tensors: dict[str, Tensor] = {}
    for k, part in enumerate(parts):
        for tensor in part.problem.graph.tensors:
            new = msgspec.structs.replace(tensor, name=part.named(tensor.name))
            if k and tensor.kind == "input":
                new = msgspec.structs.replace(new, kind="activation")
            tensors.setdefault(new.name, new)
    return tuple(tensors.values())


def _variants(parts: Sequence[_Part]) -> Variants | None:
    """Return the groups of all parts, renamed."""
    known = [(part, part.problem.variants) for part in parts if part.problem.variants is not None]
    groups = []
    for part, variants in known:
        for group in variants.groups:
            new = renamed_group(group, part.name, part.named)
            replaced = tuple(
                msgspec.structs.replace(alternative, operators=part.operators(old.operators))
                for alternative, old in zip(new.alternatives, group.alternatives, strict=True)
            )
            groups.append(msgspec.structs.replace(new, alternatives=replaced))
    return Variants(groups, concatenate_costs([variants.costs for _, variants in known])) if groups else None


def restrict_to_devices(
    problem: Problem,
    devices: Collection[str],
    carried: Collection[str] = (),
    from_before: Collection[str] = (),
    homes: Mapping[str, Collection[str]] | None = None,
) -> Problem:
    """Restrict a problem to some devices, and to alternatives without parameters of their own.

    Tensors ``carried`` and ``from_before`` come from the part before. An operator may read host memory directly if it reads
    other host tensors, but none that is ``carried``: the latency of that is unknown. An operator that reads a tensor of
    ``homes`` keeps to that tensor's devices, as far as they are allowed.

    Raises
    ------
    InputError
        The topology has no device of such a name.
    ProblemError
        An operator can run on none of the devices.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import restrict_to_devices
    >>> (restrict_to_devices(problem, ["gpu1"]).costs.operator_ns[0] < 2**62).tolist()
    [False, True]
    """
    names = [device.name for device in problem.topology.devices]
    if unknown := sorted(set(devices) - set(names)):
        raise InputError(f"{problem.topology.name!r} has no device {unknown[0]!r}; there are {', '.join(names)}")
    everywhere = np.array([not devices or name in devices for name in names])
    owners = {tensor: np.array([name in home for name in names]) for tensor, home in (homes or {}).items()}
    host = {tensor.name for tensor in problem.graph.tensors if tensor.kind != "activation"} - set(from_before)

    def only(costs: Costs, operators: Iterable[Operator]) -> Costs:
        read = [set(operator.inputs) for operator in operators]
        allowed = np.tile(everywhere, (len(read), 1))
        for row, tensors in enumerate(read):
            for tensor in sorted(tensors & owners.keys()):
                own = allowed[row] & owners[tensor]
                allowed[row] = own if own.any() else allowed[row]
        direct = np.array([not each & set(carried) and bool(each & host) for each in read], dtype=bool)
        known = costs.uncertainty
        if known is not None:
            low, high = (np.where(allowed, end, FORBIDDEN) for end in (known.low_ns, known.high_ns))
            known = Uncertainty(low, high, known.shared, known.far)
        return costs.replace(
            operator_ns=np.where(allowed, costs.operator_ns, FORBIDDEN),
            direct_ns=np.where(allowed & direct[:, None], costs.direct_ns, FORBIDDEN),
            concurrency=None,
            uncertainty=known,
        )

    variants = None
    if problem.variants is not None:
        alternatives = [each for group in problem.variants.groups for each in group.alternatives]
        operators = [(operator, _cuts_nothing(each)) for each in alternatives for operator in each.operators]
        costs = only(problem.variants.costs, (operator for operator, _ in operators))
        runs = (np.minimum(costs.operator_ns, costs.direct_ns) != FORBIDDEN).any(axis=1).tolist()
        kept = [whole and possible for (_, whole), possible in zip(operators, runs, strict=True)]
        variants = Variants(problem.variants.groups, costs).only(kept)
    costs = only(problem.costs, problem.graph.operators)
    return Problem(problem.graph, problem.topology, costs, variants, problem.joinable)


def _cuts_nothing(alternative: Alternative) -> bool:
    return all(tensor.kind == "activation" for tensor in alternative.tensors)


def _token_costs(problem: Problem) -> Costs:
    """Return the costs of choosing a token: a certain nanosecond on each device that may compute the part."""
    possible = (problem.costs.operator_ns != FORBIDDEN).any(axis=0)
    one, none = np.where(possible, 1, FORBIDDEN)[None], np.zeros((1, len(possible)))
    certain = None if problem.costs.uncertainty is None else Uncertainty(one, one, none, none > 0)
    return Costs(one, source=problem.costs.source, uncertainty=certain)


def _pairs(prefill: OpGraph, decode: OpGraph, carried: Mapping[str, str] | None, steps: int) -> list[_Pair]:
    """Pair the tensors of the cache."""
    outputs = list(prefill.outputs)
    known = {tensor.name: tensor for tensor in prefill.tensors}
    host = {tensor.name: tensor for tensor in decode.tensors if tensor.kind != "activation"}
    carried_outputs = _matching(prefill, decode) if carried is None else dict(carried)
    if not carried_outputs:
        raise InputError(
            f"no input or parameter of {decode.name!r} has the shape and type of an output of {prefill.name!r} after its "
            "first, so no cache could be carried over; give a prefill that returns the cache, a decode for as many cached "
            "tokens, or the names of output and tensor (carried, --carry)"
        )
    pairs = []
    sizes = {tensor.name: tensor.size for tensor in decode.tensors}
    for tensor, output in carried_outputs.items():
        if tensor not in host or output not in outputs or known[output].kind != "activation":
            raise InputError(
                f"carried: {output!r} for {tensor!r}; the first must be an output that {prefill.name!r} computes, the "
                f"second an input or parameter of {decode.name!r}"
            )
        if host[tensor].size != known[output].size:
            raise InputError(
                f"carried: {tensor!r} of {decode.name!r} has {host[tensor].size} bytes and {output!r} of {prefill.name!r} "
                f"{known[output].size}; their sizes must be equal"
            )
        added = next(iter(decode.outputs[outputs.index(output) :]), "")
        if not added and steps > 1:
            raise InputError(
                f"{decode.name!r} returns {len(decode.outputs)} tensors and none that corresponds to {output!r}, output "
                f"{outputs.index(output)} of {prefill.name!r}: what a step adds to the cache is unknown; plan one step"
            )
        pairs.append(_Pair(output, tensor, added, bool(added) and sizes[added] < host[tensor].size))
    if len({pair.output for pair in pairs}) < len(pairs):
        raise InputError("carried: one output of the prefill stands for two tensors of the decode; one is allowed")
    return pairs


def _matching(prefill: OpGraph, decode: OpGraph) -> dict[str, str]:
    """Match outputs of the prefill to host tensors of the decode by shape and type."""
    known = {tensor.name: tensor for tensor in prefill.tensors}
    free = [known[name] for name in prefill.outputs[1:] if known[name].kind == "activation"]
    matches: dict[str, str] = {}
    for tensor in decode.tensors:
        if tensor.kind != "activation" and known.get(tensor.name) != tensor:
            same = (t for t in free if (t.shape, t.dtype, t.size) == (tensor.shape, tensor.dtype, tensor.size))
            if (output := next(same, None)) is not None:
                matches[tensor.name] = output.name
                free.remove(output)
    return matches
