"""Random operator graphs: several sources and sinks, shared parameters, odd outputs, empty tensors."""

from __future__ import annotations

from random import Random

import msgspec

from tvm_sched_runtime.problem import Operator, OpGraph, Tensor
from tvm_sched_runtime.problem.graph import TensorKind


def random_graph(seed: int | Random, operators: int = 8, largest: int = 2000) -> OpGraph:
    """Return a random operator graph.

    Parameters
    ----------
    seed : int or Random
        The same seed gives the same graph.
    operators : int
        How many; 0 is allowed.
    largest : int
        Bytes of the largest tensor. One tensor in twenty has none.

    Notes
    -----
    Among the graphs are: chains, wide ones and unconnected ones; operators that read nothing, or write nothing or
    several tensors; tensors that many read; parameters that several operators share; tensors that nobody reads;
    outputs that are inputs, that are parameters, or that others read; operators listed in any order.

    Examples
    --------
    >>> from tvm_sched_bench.testing import random_graph
    >>> len(random_graph(seed=1, operators=5).operators)
    5
    """
    random = seed if isinstance(seed, Random) else Random(seed)
    return _GraphMaker(random, largest).make(operators)


class _GraphMaker:
    def __init__(self, random: Random, largest: int) -> None:
        self.random, self.largest = random, largest
        self.tensors: list[Tensor] = []
        self.activations: list[str] = []  # oldest first
        self.host: list[str] = []  # inputs and parameters
        self.reach = random.choice([1, 3, 8, 1000])  # how far back an operator reads: 1 makes chains, 1000 tangles
        self.host_rate = random.choice([0.2, 0.6, 0.9])

    def tensor(self, kind: TensorKind) -> str:
        empty = self.random.random() < 0.05
        prefix = {"activation": "a", "input": "x", "parameter": "w"}[kind]
        size = 0 if empty else self.random.randint(1, self.largest)
        self.tensors.append(Tensor(f"{prefix}{len(self.tensors)}", size, kind))
        return self.tensors[-1].name

    def host_tensor(self) -> str:
        """Return a new input or parameter, or one that other operators read, too."""
        if self.host and self.random.random() < 0.3:
            return self.random.choice(self.host)
        self.host.append(self.tensor("parameter" if self.random.random() < 0.75 else "input"))
        return self.host[-1]

    def operator(self, k: int) -> Operator:
        random = self.random
        inputs: list[str] = []
        if self.activations and random.random() < 0.9:
            recent = self.activations[-self.reach :]
            inputs += [random.choice(recent) for _ in range(random.choice([1, 1, 1, 2, 2, 3]))]
        while random.random() < self.host_rate and len(inputs) < 5:
            inputs.append(self.host_tensor())
        random.shuffle(inputs)
        outputs = [self.tensor("activation") for _ in range(random.choices([0, 1, 2, 3], [1, 24, 4, 1])[0])]
        self.activations += outputs
        kind, flops = random.choice(["conv2d", "matmul", "add"]), random.randint(0, 10**6)
        return Operator(f"op{k}", kind, tuple(inputs), tuple(outputs), flops, self.partial_reads(k, inputs))

    def partial_reads(self, k: int, inputs: list[str]) -> dict[str, int] | msgspec.UnsetType:
        """Choose the inputs of which an operator reads only a part.

        The choice has a random generator of its own, so it changes nothing else in the graph.
        """
        dice = Random(self.reach * 100_003 + k)
        if not inputs or dice.random() < 0.8:
            return msgspec.UNSET
        size = {tensor.name: tensor.size for tensor in self.tensors}
        name = dice.choice(inputs)
        return {name: dice.randint(0, size[name])}

    def make(self, count: int) -> OpGraph:
        random = self.random
        operators = [self.operator(k) for k in range(count)]
        if random.random() < 0.3:
            self.host_tensor()  # that nobody reads
        read = {name for operator in operators for name in operator.inputs}
        outputs = [name for name in self.activations if name not in read and random.random() < 0.9]
        outputs += [name for name in self.activations + self.host if random.random() < 0.03]
        random.shuffle(outputs)
        if random.random() < 0.5:
            random.shuffle(operators)
        return OpGraph("random", tuple(operators), tuple(self.tensors), tuple(dict.fromkeys(outputs)))
