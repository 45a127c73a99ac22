"""Bound how many requests of a sequence any allocator places, by integer prices of GPUs and fibres.

Proof: Theorem 4 of ``docs/proofs/cluster_mixes.md``. Any prices from 0 give a bound: each placement is worth at least as
much as the cheapest placement of its service, and all placements together are worth at most as much as the whole cluster.
"""

from __future__ import annotations

from itertools import combinations
from math import inf
from typing import Any, NamedTuple

from ..document import Refused, count
from .document import Cluster, Service

MOST_KINDS = 8


class Prices(NamedTuple):
    """Prices of a GPU by kind, of a fibre over each cut (the kinds on one side, with the price), and of any fibre."""

    gpus: list[int]
    cuts: list[tuple[set[int], int]]
    fibre: int


def bound_of(cluster: Cluster, services: dict[str, Service], requests: list[str], prices: dict[str, Any]) -> int:
    """Return the largest number of requests, in their order, that any allocator can place."""
    if len(cluster.kinds) > MOST_KINDS:
        raise Refused(f"the cluster has {len(cluster.kinds)} kinds of GPUs; at most {MOST_KINDS} are covered here")
    kinds = cluster.kind_names
    cuts = [({kinds.index(name) for name in cut["kinds"]}, count(cut["price"])) for cut in prices["cuts"]]
    of = Prices([count(prices["gpus"][name]) for name in kinds], cuts, count(prices["fibre"]))
    left = sum(of.gpus[gpu.kind] for gpu in cluster.gpus.values())
    left += of.fibre * sum(link.fibres for link in cluster.links.values())
    left += sum(price * _fibres_over(cluster, cut) for cut, price in cuts)
    worth = {name: _least_worth(cluster, services[name], of) for name in set(requests)}
    for placed, name in enumerate(requests):
        if worth[name] == inf:
            return placed
        left -= int(worth[name])
        if left < 0:
            return placed
    return len(requests)


def _switches(cluster: Cluster, kinds: set[int]) -> set[int]:
    return {gpu.switch for gpu in cluster.gpus.values() if gpu.kind in kinds}


def _fibres_over(cluster: Cluster, cut: set[int]) -> int:
    """Return the number of fibres between the switches of the kinds in a cut and all other switches (Lemma 3)."""
    inside = _switches(cluster, cut)
    if inside & _switches(cluster, set(range(len(cluster.kinds))) - cut):
        raise Refused("a cut is around kinds of GPUs that share a switch with others")
    return sum(link.fibres for link in cluster.links.values() if len({end in inside for end in link.ends}) == 2)


def _least_worth(cluster: Cluster, service: Service, prices: Prices) -> Any:
    """Return the least worth of any placement of a service: its GPUs and the fibres that join them."""
    present = sorted({gpu.kind for gpu in cluster.gpus.values()})
    sets = [set(chosen) for size in range(1, len(present) + 1) for chosen in combinations(present, size)]
    least, chain = inf, _Chain(cluster, service)
    for kinds in sorted(sets, key=lambda kinds: _joining(cluster, kinds, prices)):
        joining = _joining(cluster, kinds, prices)
        least = min(least, joining + chain.cheapest({k: prices.gpus[k] for k in kinds}, least - joining))
    return least


def _joining(cluster: Cluster, kinds: set[int], prices: Prices) -> int:
    """Return the least worth of the fibres that join GPUs of these kinds: those over cuts, and a minimum spanning tree."""
    tree, joined, far = 0, {min(kinds)}, set(kinds) - {min(kinds)}
    while far:
        hops = {k: min(_hops(cluster, k, other) for other in joined) for k in far}
        nearest = min(far, key=hops.__getitem__)
        tree, joined, far = tree + hops[nearest], joined | {nearest}, far - {nearest}
    return sum(price for cut, price in prices.cuts if kinds & cut and kinds - cut) + prices.fibre * tree


def _hops(cluster: Cluster, a: int, b: int) -> int:
    """Return the fewest links between GPUs of two kinds; one more than the cluster has if no path joins them."""
    reached, aims, hops = _switches(cluster, {a}), _switches(cluster, {b}), 0
    while not reached & aims and hops <= len(cluster.links):
        reached |= {end for link in cluster.links.values() if reached & {*link.ends} for end in link.ends}
        hops += 1
    return hops


class _Chain:
    """A service reduced to its chain of operators, with all transfers over the fastest circuit of the cluster (Lemma 1)."""

    def __init__(self, cluster: Cluster, service: Service) -> None:
        self.cluster, self.service, edges = cluster, service, service.chain()
        gpus = cluster.gpus.values()
        head = 2 * min(gpu.delay for gpu in gpus) + min(cluster.switch_ns)
        fastest = max(gpu.bandwidth for gpu in gpus)
        self.incoming = [0, *edges]
        self.transfer = [0, *(head - (-size * 1_000_000_000 // fastest) for size in edges)]

    def cheapest(self, prices: dict[int, int], limit: Any) -> Any:
        """Return the least worth of the GPUs of a placement on these kinds, or ``limit`` if none is below it.

        With m stages the latency is at least m cycles and m - 1 transfers. So no stage and no transfer takes longer than the
        m-th part of what the latency limit leaves after m - 1 least transfers.
        """
        best, own, least = limit, self.service, min(self.transfer[1:], default=0)
        for stages in range(1, min(len(own.ns), len(self.cluster.gpus)) + 1):
            longest = min(own.cycle_limit, (own.latency_limit - (stages - 1) * least) // stages)
            if longest < 0 or stages * min(prices.values()) >= best:
                break
            runs, reached = self._runs(prices, longest), {0: 0}
            for _ in range(stages):
                following: dict[int, int] = {}
                for start, paid in reached.items():
                    for end, price in runs[start].items():
                        following[end] = min(following.get(end, paid + price), paid + price)
                reached = following
            best = min(best, reached.get(len(own.ns), best))
        return best

    def _runs(self, prices: dict[int, int], longest: int) -> list[dict[int, int]]:
        """Return, by operator, the ends of stages that may begin there, and the price of the cheapest GPU for each."""
        own, runs = self.service, list[dict[int, int]]()
        for start in range(len(own.ns)):
            ends: dict[int, int] = {}
            for kind, price in prices.items() if self.transfer[start] <= longest else ():
                work, held = 0, self.incoming[start]
                for o in range(start, len(own.ns)):
                    work, held = work + own.ns[o][kind], held + own.memory[o]
                    if work > longest or held > self.cluster.kinds[kind]["memory"]:
                        break
                    ends[o + 1] = min(ends.get(o + 1, price), price)
            runs.append(ends)
        return [*runs, {}]
