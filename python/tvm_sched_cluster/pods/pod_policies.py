"""Policies that choose a node for a pod, and the GPU of it: first-fit, best-fit, fgd and ours.

`best-fit` and `fgd` follow the program of FGD's authors, not only their paper: scores are whole numbers from 0 to 100, equal
nodes are taken in a random order that is drawn once, and `fgd` counts the most frequent pods only (``docs/cluster.md``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError

from .pod_trace import MILLI, Node, Pod

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

POLICIES = ("anytime", "best-fit", "fgd", "first-fit")
_MOST_CPU, _MOST_GPU = 128_000, 8_000
"""Scales of free CPUs and GPUs in FGD's best fit."""
_STEP = 40.0
"""Differences of fragmentation, in thousandths of a GPU, that count as equal for `anytime`."""
_DIGITS = 6
"""Of an increase; sums of the same numbers in another order are then equal."""
_POPULAR = 0.95
"""Part of the expected pods that `fgd` measures fragmentation by."""


class PodState:
    """Free resources of each node.

    Attributes
    ----------
    cpu, memory : array of int
    gpu : array of int, nodes x most GPUs of a node
        Free thousandths; 0 where there is no GPU.
    kind : array of int
    kinds : list of str
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.kinds = sorted({node.kind for node in nodes})
        self.kind = np.array([self.kinds.index(node.kind) for node in nodes], dtype=np.int64)
        self.cpu = np.array([node.cpu for node in nodes], dtype=np.int64)
        self.memory = np.array([node.memory for node in nodes], dtype=np.int64)
        counts = np.array([node.gpus for node in nodes], dtype=np.int64)
        self.gpu = np.where(np.arange(max(1, counts.max())) < counts[:, None], MILLI, 0)

    def fitting(self, pod: Pod) -> Integers:
        """Return the nodes on which a pod fits."""
        fits = (self.cpu >= pod.cpu) & (self.memory >= pod.memory)
        if pod.kinds:
            fits &= np.isin(self.kind, [k for k, kind in enumerate(self.kinds) if kind in pod.kinds])
        if pod.gpus == 1:
            fits &= self.gpu.max(axis=1) >= pod.milli
        elif pod.gpus:
            fits &= (self.gpu == MILLI).sum(axis=1) >= pod.gpus
        return np.flatnonzero(fits)

    def take(self, node: int, pod: Pod, gpu: int | None = None) -> None:
        """Place a pod; without ``gpu``, a share goes to the GPU with the least that suffices."""
        self.cpu[node] -= pod.cpu
        self.memory[node] -= pod.memory
        if 0 < pod.total < MILLI:
            left = self.gpu[node]
            chosen = int(np.where(left >= pod.milli, left, 2 * MILLI).argmin()) if gpu is None else gpu
            left[chosen] -= pod.milli
        elif pod.gpus:
            self.gpu[node, np.flatnonzero(self.gpu[node] == MILLI)[: pod.gpus]] = 0


class Fragmentation:
    """The expected fragmentation of nodes in thousandths of GPUs (FGD, Section 4.1).

    A node's free GPUs are fragments for a pod that does not fit on it, and for one without GPUs. For another, those GPUs are
    of which less is free than it needs.
    """

    def __init__(self, kinds: Sequence[str], typical: Sequence[Pod]) -> None:
        counts = Counter(_kind(pod) for pod in typical)
        self._share = np.array(list(counts.values()), dtype=float) / len(typical)
        self._cpu, self._gpus, self._milli = (np.array(column) for column in list(zip(*counts, strict=True))[:3])
        self._allowed = np.array([[not each[3] or kind in each[3] for each in counts] for kind in kinds])
        self._levels, self._level = np.unique(self._milli, return_inverse=True)

    def __call__(self, kind: Integers, cpu: Integers, gpu: Integers) -> Floats:
        """Return the fragmentation of each node."""
        total = gpu.sum(axis=1)
        below = np.stack([np.where(gpu < level, gpu, 0).sum(axis=1) for level in self._levels], axis=1)
        most, whole = gpu.max(axis=1)[:, None], (gpu == MILLI).sum(axis=1)[:, None]
        fits = (cpu[:, None] >= self._cpu) & self._allowed[kind] & (self._gpus > 0)
        fits &= np.where(self._gpus > 1, whole >= self._gpus, most >= self._milli)
        return np.asarray(np.where(fits, below[:, self._level], total[:, None]) @ self._share)


_Kind = tuple[int, int, int, tuple[str, ...]]


def _kind(pod: Pod) -> _Kind:
    """Return what fragmentation depends on: CPUs, GPUs, thousandths of each GPU, kinds allowed."""
    return pod.cpu, pod.gpus, pod.milli, pod.kinds


def popular_pods(pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods of the most frequent kinds that make up 95 % of all; among equally frequent kinds, the larger ones."""
    counts = Counter(map(_kind, pods))
    order = sorted(counts, key=lambda k: (counts[k], k[0], k[2], k[1], "|".join(k[3])), reverse=True)
    kept, number = set[_Kind](), 0
    for kind in order:
        if number >= _POPULAR * len(pods):
            break
        kept.add(kind)
        number += counts[kind]
    return [pod for pod in pods if _kind(pod) in kept]


def _score(increase: Floats) -> Floats:
    """Return FGD's scores of increases of fragmentation in thousandths of a GPU: whole numbers, 50 for no increase."""
    return np.asarray(np.floor(100 / (1 + np.exp(increase / MILLI))))


class _Increase:
    """Increases of fragmentation by pods of one kind on all nodes. They are computed again for nodes that changed."""

    def __init__(self, nodes: int) -> None:
        self.known = np.zeros(nodes, dtype=bool)
        self.amount = np.zeros(nodes)
        self.gpu = np.zeros(nodes, dtype=np.int64)


class PodScheduler:
    """Places pods by a policy.

    Parameters
    ----------
    nodes : sequence of Node
    policy : str
        One of `POLICIES`.
    typical : sequence of Pod
        Pods that are expected: fragmentation is measured by them.
    seed : int
        Of the order of equal nodes.

    Raises
    ------
    InputError
        There is no such policy for pods.
    """

    def __init__(self, nodes: Sequence[Node], policy: str, typical: Sequence[Pod], seed: int = 0) -> None:
        if policy not in POLICIES:
            raise InputError(f"there is no policy {policy!r} for pods on nodes; there are {', '.join(POLICIES)}")
        self.state, self.policy = PodState(nodes), policy
        self._rank = np.random.default_rng([seed, 3]).permutation(len(nodes))
        self._fragmentation = Fragmentation(self.state.kinds, popular_pods(typical) if policy == "fgd" else typical)
        self._now = self._fragmentation(self.state.kind, self.state.cpu, self.state.gpu)
        self._increases: dict[tuple[int, int, int], _Increase] = {}

    def place(self, pod: Pod) -> int | None:
        """Place a pod and return its node; None if it fits nowhere."""
        state, nodes = self.state, self.state.fitting(pod)
        if not nodes.size:
            return None
        gpu = None
        if self.policy == "first-fit":
            node = int(nodes[0])
        elif self.policy == "best-fit":
            left = (state.cpu[nodes] - pod.cpu) / _MOST_CPU + (state.gpu[nodes].sum(axis=1) - pod.total) / _MOST_GPU
            node = self._best(nodes, np.floor(100 * (1 - left / 2)))
        else:
            increase = self._increase(pod, nodes)
            if self.policy == "fgd":
                node = self._best(nodes, _score(increase.amount[nodes]))
            else:
                steps = np.round(increase.amount[nodes] / _STEP)
                node = int(nodes[np.lexsort((state.gpu[nodes].sum(axis=1), steps))[0]])
            gpu = int(increase.gpu[node])
        state.take(node, pod, gpu)
        if self.policy in ("fgd", "anytime"):
            one = slice(node, node + 1)
            self._now[node] = self._fragmentation(state.kind[one], state.cpu[one], state.gpu[one])[0]
            for each in self._increases.values():
                each.known[node] = False
        return node

    def _best(self, nodes: Integers, scores: Floats) -> int:
        best = nodes[scores == scores.max()]
        return int(best[self._rank[best].argmin()])

    def _increase(self, pod: Pod, nodes: Integers) -> _Increase:
        """Return the increases on the nodes on which a pod fits, and the GPU for its share."""
        increase = self._increases.setdefault((pod.cpu, pod.gpus, pod.milli), _Increase(len(self._now)))
        new, state = nodes[~increase.known[nodes]], self.state
        if not new.size:
            return increase
        if 0 < pod.total < MILLI:
            row, gpu = np.nonzero(state.gpu[new] >= pod.milli)
            left = state.gpu[new][row]
            left[np.arange(len(row)), gpu] -= pod.milli
            after = self._fragmentation(state.kind[new][row], state.cpu[new][row] - pod.cpu, left)
            more = np.round(after - self._now[new][row], _DIGITS)
            order = np.lexsort((gpu, -_score(more) if self.policy == "fgd" else more, row))
            first = order[np.unique(row[order], return_index=True)[1]]
            increase.amount[new], increase.gpu[new] = more[first], gpu[first]
        else:
            left = state.gpu[new]
            whole = left == MILLI
            left[whole & (np.cumsum(whole, axis=1) <= pod.gpus)] = 0
            after = self._fragmentation(state.kind[new], state.cpu[new] - pod.cpu, left)
            increase.amount[new] = np.round(after - self._now[new], _DIGITS)
        increase.known[new] = True
        return increase
