"""Runs an exported program on devices as tvm-sched planned: `place(torch.export.load(path))` is called as the model is.

A tensor is copied once to each device that reads it; copies between GPUs have a stream of their own, and what computes with
them waits for it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tvm_sched_plans.runtimes._copies_script import copied

ENVIRONMENT: dict[str, str] = {}
"""Variables under which CUDA counts the GPUs as the plan does; it reads them when it starts, so import this before."""
RUNS: dict[str, str] = {}
"""The first operator of each run of operators, and the device that has them up to the next one."""


def place(program: torch.export.ExportedProgram, devices: Mapping[str, str] | None = None) -> torch.nn.Module:
    """Return a module that takes the program's inputs.

    ``devices`` maps the plan's devices to others, e.g. ``{"cuda:0": "cpu", "cuda:1": "cpu"}`` to try it without GPUs.
    """
    return Placed(program.module(), {k: torch.device((devices or {}).get(v, v)) for k, v in RUNS.items()})


class Placed(torch.nn.Module):
    """A graph whose nodes run on devices of their own."""

    def __init__(self, graph: torch.fx.GraphModule, runs: Mapping[str, torch.device]) -> None:
        super().__init__()
        self.graph_module = graph
        here = next(iter(runs.values()))
        self.device: dict[str, torch.device] = {}
        for node in graph.graph.nodes:
            here = runs.get(node.name, here)
            self.device[node.name] = here
        missing = sorted(set(runs) - set(self.device))
        if missing:
            raise ValueError(f"the program has no operators {missing}: the plan was made for another one")
        self.constants = {n.name: _attribute(graph, n.target) for n in graph.graph.nodes if n.op == "get_attr"}
        self._spread()

    def _spread(self) -> None:
        """Move each parameter to the device of its readers, to each of them once."""
        self.copies: dict[tuple[str, torch.device], torch.Tensor] = {}
        for node in self.graph_module.graph.nodes:
            value = self.constants.get(node.name)
            if isinstance(value, torch.Tensor):
                for device in {self.device[user.name] for user in node.users}:
                    self.copies[node.name, device] = value.to(device)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the nodes in their order."""
        with torch.no_grad():
            return _Run(self).run(*self._flat(args, kwargs))

    def _flat(self, args: Any, kwargs: Any) -> list[Any]:
        names = [node.target for node in self.graph_module.graph.nodes if node.op == "placeholder"]
        return [*args, *(kwargs[name] for name in names[len(args) :])]


class _Run(torch.fx.Interpreter):
    def __init__(self, placed: Placed) -> None:
        super().__init__(placed.graph_module)
        self.placed = placed
        self.there: dict[tuple[str, torch.device], Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node on its device, with its inputs there."""
        if n.op in ("placeholder", "get_attr"):
            return super().run_node(n)
        device = self.placed.device[n.name]
        args, kwargs = torch.fx.node.map_arg((n.args, n.kwargs), lambda x: self._at(x, device))
        if n.op == "call_function" and isinstance(kwargs.get("device"), torch.device):
            kwargs = {**kwargs, "device": device}
        result = getattr(self, n.op)(n.target, args, kwargs)
        for x in self.user_to_last_uses.get(n, ()):
            for key in [key for key in self.there if key[0] == x.name]:
                del self.there[key]
        return result

    def _at(self, node: torch.fx.Node, device: torch.device) -> Any:
        """Return a node's value on a device; it is copied there once for all readers."""
        key = node.name, device
        if key in self.placed.copies:
            return self.placed.copies[key]
        if key not in self.there:
            self.there[key] = _moved(self.env[node], device)
        return self.there[key]


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.device == device else copied(value, device)
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(each, device) for each in value)
    return value


def _attribute(module: Any, target: Any) -> Any:
    for part in str(target).split("."):
        module = getattr(module, part)
    return module
