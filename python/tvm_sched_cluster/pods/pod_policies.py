"""Policies that choose a node for a pod, and the GPU of it: first-fit, best-fit, fgd and ours.

`best-fit` and `fgd` round scores as the authors' program does, to hundredths, and choose among equal ones at random; with
exact scores `fgd` allocates less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tvm_sched.errors import InputError

from .pod_trace import MILLI, Node, Pod

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

POLICIES = ("anytime", "best-fit", "fgd", "first-fit")
_MOST_CPU, _MOST_GPU = 128_000, 8_000
"""Scales of free CPUs and GPUs in FGD's best fit."""
_STEP = 40.0
"""Differences of fragmentation, in thousandths of a GPU, that count as equal for `anytime`."""


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
        counts = Counter((pod.cpu, pod.gpus, pod.milli, pod.kinds) for pod in typical)
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
        Of the choice among equal nodes.

    Raises
    ------
    InputError
        There is no such policy for pods.
    """

    def __init__(self, nodes: Sequence[Node], policy: str, typical: Sequence[Pod], seed: int = 0) -> None:
        if policy not in POLICIES:
            raise InputError(f"there is no policy {policy!r} for pods on nodes; there are {', '.join(POLICIES)}")
        self.state, self.policy = PodState(nodes), policy
        self._random = np.random.default_rng([seed, 3])
        self._fragmentation = Fragmentation(self.state.kinds, typical)
        self._now = self._fragmentation(self.state.kind, self.state.cpu, self.state.gpu)
        self._increases: dict[Pod, _Increase] = {}

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
            node = self._any_best(nodes, np.floor(100 * (1 - left / 2)))
        else:
            increase = self._increase(pod, nodes)
            if self.policy == "fgd":
                node = self._any_best(nodes, np.floor(100 / (1 + np.exp(increase.amount[nodes] / MILLI))))
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

    def _any_best(self, nodes: Integers, scores: Floats) -> int:
        return int(nodes[self._random.choice(np.flatnonzero(scores == scores.max()))])

    def _increase(self, pod: Pod, nodes: Integers) -> _Increase:
        """Return the increases on the nodes on which a pod fits, and the GPU for its share."""
        increase = self._increases.setdefault(pod, _Increase(len(self._now)))
        new, state = nodes[~increase.known[nodes]], self.state
        if not new.size:
            return increase
        if 0 < pod.total < MILLI:
            row, gpu = np.nonzero(state.gpu[new] >= pod.milli)
            left = state.gpu[new][row]
            left[np.arange(len(row)), gpu] -= pod.milli
            more = self._fragmentation(state.kind[new][row], state.cpu[new][row] - pod.cpu, left) - self._now[new][row]
            order = np.lexsort((gpu, np.round(more, 6), row))
            first = order[np.unique(row[order], return_index=True)[1]]
            increase.amount[new], increase.gpu[new] = more[first], gpu[first]
        else:
            left = state.gpu[new]
            whole = left == MILLI
            left[whole & (np.cumsum(whole, axis=1) <= pod.gpus)] = 0
            increase.amount[new] = self._fragmentation(state.kind[new], state.cpu[new] - pod.cpu, left) - self._now[new]
        increase.known[new] = True
        return increase
