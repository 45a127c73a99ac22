"""The rules of placements: ``docs/model.md``, Clusters. Nothing here knows how placements are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tvm_sched_runtime.errors import ScheduleError
from tvm_sched_runtime.schedule.rules import Violation

from .cluster import Cluster
from .placement_pricing import price
from .service import Service, by_name
from .service_placement import Allocation, Circuit, ServicePlacement

RULES = (
    "cluster",
    "request-twice",
    "service",
    "gpu-unknown",
    "gpu-twice",
    "operators",
    "stage-order",
    "circuit",
    "fibre",
    "fibre-twice",
    "failed",
    "memory",
    "throughput",
    "latency",
    "figures",
)
"""The rules that `violations` checks."""


def verify(cluster: Cluster, services: Sequence[Service], allocation: Allocation) -> None:
    """Check that every service is complete and meets its requirements, and that no GPU or fibre is held twice.

    Raises
    ------
    ScheduleError
        At the first broken rule; the message names the rule, the request, and the GPU or link.

    Examples
    --------
    >>> from tvm_sched_cluster import verify
    >>> verify(cluster, [chat], state.allocation)
    """
    for violation in _find(cluster, services, allocation):
        raise ScheduleError(violation.message)


def violations(cluster: Cluster, services: Sequence[Service], allocation: Allocation) -> list[Violation]:
    """Return every broken rule.

    Examples
    --------
    >>> from tvm_sched_cluster import violations
    >>> violations(cluster, [chat], state.allocation)
    []
    """
    return list(_find(cluster, services, allocation))


def placement_violations(cluster: Cluster, service: Service, placement: ServicePlacement) -> Iterator[Violation]:
    """Yield the rules that a single placement breaks. Its requirements are checked only if it breaks no other rule."""
    broken = False
    for rules in (_gpus, _operators, _circuits):
        for violation in rules(cluster, service, placement):
            broken = True
            yield violation
        if broken:
            return
    yield from _requirements(cluster, service, placement)


def _broken(rule: str, placement: ServicePlacement, message: str, gpu: str = "") -> Violation:
    return Violation(rule, f"rule {rule!r}: request {placement.request!r}: {message}", device=gpu)


def _find(cluster: Cluster, services: Sequence[Service], allocation: Allocation) -> Iterator[Violation]:
    if allocation.cluster != cluster.digest:
        yield Violation(
            "cluster",
            f"rule 'cluster': the allocation was made for cluster {allocation.cluster!r}, this is {cluster.digest!r} "
            f"({cluster.name!r})",
        )
        return
    known: Mapping[str, Service] = by_name(services)
    names = Counter(placement.request for placement in allocation.placements)
    for name in (name for name, count in names.items() if count > 1):
        yield Violation("request-twice", f"rule 'request-twice': request {name!r} occurs {names[name]} times")
    for placement in allocation.placements:
        service = known.get(placement.service)
        if service is None or service.digest != placement.service_digest:
            fault = "is not there" if service is None else "is another one than was placed"
            yield _broken("service", placement, f"service {placement.service!r} {fault}")
            continue
        yield from placement_violations(cluster, service, placement)
    yield from _shared(cluster, allocation)


def _shared(cluster: Cluster, allocation: Allocation) -> Iterator[Violation]:
    """Yield GPUs and fibres that two services hold, or that have failed and are held."""
    gpus: dict[str, str] = {}
    fibres: dict[tuple[int, int], str] = {}
    failed = set(allocation.failed)
    for placement in allocation.placements:
        for gpu in placement.gpus:
            if gpu in gpus:
                yield _broken("gpu-twice", placement, f"GPU {gpu!r} has a stage of request {gpus[gpu]!r}", gpu)
            if gpu in failed:
                yield _broken("failed", placement, f"GPU {gpu!r} has failed", gpu)
            gpus[gpu] = placement.request
        for hop in placement.hops:
            link = cluster.link_id.get(hop.link)
            if link is None:
                continue
            key = (link, hop.fibre)
            if key in fibres:
                message = f"fibre {hop.fibre} of link {hop.link!r} carries a circuit of request {fibres[key]!r}"
                yield _broken("fibre-twice", placement, message)
            if cluster.links[link].name in failed:
                yield _broken("failed", placement, f"link {hop.link!r} has failed")
            fibres[key] = placement.request


def _gpus(cluster: Cluster, service: Service, placement: ServicePlacement) -> Iterator[Violation]:
    if not placement.stages:
        yield _broken("operators", placement, "it has no stages")
    for gpu in placement.gpus:
        if gpu not in cluster.gpu_id:
            yield _broken("gpu-unknown", placement, f"cluster {cluster.name!r} has no GPU {gpu!r}", gpu)


def _operators(cluster: Cluster, service: Service, placement: ServicePlacement) -> Iterator[Violation]:
    """Check that each operator is in one stage, and that data goes to later stages, except over loops."""
    stage_of: dict[str, int] = {}
    for s, stage in enumerate(placement.stages):
        for name in stage.operators:
            if name not in service.operator_id:
                yield _broken("operators", placement, f"service {service.name!r} has no operator {name!r}", stage.gpu)
            elif name in stage_of:
                yield _broken(
                    "operators", placement, f"operator {name!r} is in stages {stage_of[name]} and {s}", stage.gpu
                )
            stage_of[name] = s
    missing = [name for name in service.operator_id if name not in stage_of]
    if missing:
        yield _broken("operators", placement, f"operators {', '.join(missing)} are in no stage")
        return
    for edge in service.all_edges:
        forward = service.operator_id[edge.source] < service.operator_id[edge.target]
        if forward and stage_of[edge.source] > stage_of[edge.target]:
            yield _broken(
                "stage-order",
                placement,
                f"operator {edge.target!r} of stage {stage_of[edge.target]} reads what {edge.source!r} of stage "
                f"{stage_of[edge.source]} makes",
            )


def _circuits(cluster: Cluster, service: Service, placement: ServicePlacement) -> Iterator[Violation]:
    """Check that each pair of stages joined by an edge has a circuit, whose fibres lead from one to the other."""
    stage_of = {name: s for s, stage in enumerate(placement.stages) for name in stage.operators}
    needed = {(stage_of[e.source], stage_of[e.target]) for e in service.all_edges}
    needed = {(a, b) for a, b in needed if a != b}
    there = Counter((circuit.source, circuit.target) for circuit in placement.circuits)
    for a, b in sorted(needed - there.keys()):
        yield _broken("circuit", placement, f"no circuit leads from stage {a} to stage {b}")
    for (a, b), count in there.items():
        if count > 1 or (a, b) not in needed:
            yield _broken(
                "circuit",
                placement,
                f"{count} circuits lead from stage {a} to stage {b}; {int((a, b) in needed)} needed",
            )
    for circuit in placement.circuits:
        if (circuit.source, circuit.target) in needed:
            yield from _route_violations(cluster, placement, circuit)


def _route_violations(cluster: Cluster, placement: ServicePlacement, circuit: Circuit) -> Iterator[Violation]:
    what = f"the circuit from stage {circuit.source} to stage {circuit.target}"
    ends = [cluster.gpus[cluster.gpu_id[placement.stages[s].gpu]] for s in (circuit.source, circuit.target)]
    at, aim = (cluster.racks[gpu.rack].switch for gpu in ends)
    for hop in circuit.hops:
        if hop.link not in cluster.link_id:
            yield _broken("fibre", placement, f"{what} passes link {hop.link!r}, which is not there")
            return
        link = cluster.links[cluster.link_id[hop.link]]
        if not 0 <= hop.fibre < link.fibres:
            yield _broken(
                "fibre", placement, f"{what} holds fibre {hop.fibre} of {hop.link!r}, which has {link.fibres}"
            )
        if at not in link.switches:
            yield _broken(
                "circuit", placement, f"{what} passes link {hop.link!r} from switch {at!r}, which it does not touch"
            )
            return
        at = link.switches[1] if link.switches[0] == at else link.switches[0]
    if at != aim:
        yield _broken("circuit", placement, f"{what} ends at switch {at!r} instead of {aim!r}")


def _requirements(cluster: Cluster, service: Service, placement: ServicePlacement) -> Iterator[Violation]:
    priced = price(cluster, service, placement)
    for s, (stage, held) in enumerate(zip(placement.stages, priced.memory, strict=True)):
        kind = cluster.kinds[cluster.gpus[cluster.gpu_id[stage.gpu]].kind]
        if held > kind.memory:
            message = f"stage {s} holds {held} bytes, GPU {stage.gpu!r} ({kind.name}) has {kind.memory}"
            yield _broken("memory", placement, message, stage.gpu)
    if priced.cycle_ns > service.cycle_limit_ns:
        message = (
            f"the cycle takes {priced.cycle_ns} ns, {service.throughput:g} a second allow {service.cycle_limit_ns}"
        )
        yield _broken("throughput", placement, message)
    if priced.latency_ns > service.latency_limit_ns:
        message = f"the latency is {priced.latency_ns} ns, {service.latency_limit_ns} are allowed"
        yield _broken("latency", placement, message)
    claimed = placement.cycle_ns, placement.latency_ns
    if claimed != (priced.cycle_ns, priced.latency_ns):
        message = (
            f"it claims cycle {claimed[0]} and latency {claimed[1]} ns, not {priced.cycle_ns} and {priced.latency_ns}"
        )
        yield _broken("figures", placement, message)
