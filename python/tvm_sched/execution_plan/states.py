"""States in a plan: inputs whose values the previous run left in the memory of the device that computed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import OpGraph

from .operator_calls import KernelCall
from .steps import BufferKey, Step, StepMaker

QUEUE = "states"
"""The queue of the copies of states to other devices that read them."""


class States:
    """The states of a schedule, each stored on the device whose kernel computes its next value.

    Parameters
    ----------
    maker : StepMaker
        The schedule whose steps are built (`StepMaker.make`).
    next_of : mapping of str to str
        By input, the tensor that replaces it in the next run.
    calls : sequence of KernelCall
        Calls with `KernelCall.in_place` update states in place (`check_in_place`).
    """

    def __init__(self, maker: StepMaker, next_of: Mapping[str, str], calls: Sequence[KernelCall]) -> None:
        self.problem = maker.problem
        identity = self.problem.graph.index.tensor_id
        self.next = {identity[state]: identity[tensor] for state, tensor in next_of.items()}
        writers = {key.tensor: step.device for step in maker.kernels for key in _outputs(maker, step)}
        self.home = {state: writers[tensor] for state, tensor in self.next.items()}
        self.in_place = {identity[state] for state in check_in_place(calls, next_of)}
        self._copies: dict[BufferKey, Step] = {}

    def location(self, tensor: int, device: int) -> BufferKey | None:
        """Return where a reader on ``device`` finds a tensor; None if it is not a state."""
        if tensor not in self.home:
            return None
        home = self.home[tensor]
        shared = all(self.problem.reads_host_in_place(d) for d in (home, device))
        return BufferKey(tensor, home if shared else device)

    def place(self, steps: list[Step], kernels: list[Step]) -> list[Step]:
        """Return the steps, in which states are read from the devices that store them and not loaded from the host."""
        moved = {id(step): step for step in steps if self._brings_state(step)}
        for step in steps:
            step.waits = [other for other in step.waits if id(other) not in moved]
            step.after = _without(step.after, moved)
        for kernel in kernels:
            for key in kernel.inputs:
                if key.tensor in self.home and key.device != self.home[key.tensor]:
                    kernel.waits.append(self._copy(key))
        return [*(step for step in steps if id(step) not in moved), *self._copies.values()]

    def _brings_state(self, step: Step) -> bool:
        """Return whether a step brings a state from the host: a copy, or with storage a read of a file."""
        brought = {"copy": step.outputs, "read": step.inputs}.get(step.kind, [])
        return any(key.tensor in self.home for key in brought)

    def _copy(self, key: BufferKey) -> Step:
        if key not in self._copies:
            tensor, home = self.problem.graph.tensors[key.tensor], self.home[key.tensor]
            route = self.problem.route(home, key.device)
            time = route.nanoseconds(tensor.size)
            lanes = tuple(self.problem.topology.channels[c] for c in route.channels)
            step = Step("copy", tensor.name, QUEUE, 0, time, time, lanes, tensor.size, "copy")
            step.inputs, step.outputs = [BufferKey(key.tensor, home)], [key]
            self._copies[key] = step
        return self._copies[key]

    def sources(self) -> dict[BufferKey, dict[str, Any]]:
        """Return the buffers of states and next states."""
        sources: dict[BufferKey, dict[str, Any]] = {}
        for k, (state, tensor) in enumerate(self.next.items()):
            home = self.home[state]
            sources[BufferKey(state, home)] = {"kind": "state", "index": k}
            sources[BufferKey(tensor, home)] = {"kind": "next_state", "index": k}
        return sources

    def bytes_on(self, device: int) -> int:
        """Return the bytes of states on a device; each is stored twice, old and new, unless it is updated in place."""
        size = self.problem.graph.index.size
        return sum(
            (1 if state in self.in_place else 2) * size[state] for state, home in self.home.items() if home == device
        )


def check_states(graph: OpGraph, inputs: list[str], results: list[str], states: Mapping[str, int]) -> dict[str, str]:
    """Return for each input that is a state the tensor that replaces it.

    Parameters
    ----------
    inputs, results : list of str
        Tensors that the model takes, and tensors that it returns, in order.
    states : mapping of str to int
        By input, the position of a result.

    Raises
    ------
    InputError
        Unknown input or result; a result that is not computed, is listed twice or has another type; a state that is also a
        result; no computed result remains.
    """
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    computed = {name for operator in graph.operators for name in operator.outputs}
    next_of: dict[str, str] = {}
    for state, position in states.items():
        if state not in inputs:
            raise InputError(
                f"states names {state!r}, which is not an input of the model; its inputs are {', '.join(inputs)}"
            )
        if state in results:
            raise InputError(
                f"{state!r} cannot be a state: the model hands it back as result {results.index(state)}, and a run does not "
                "return states; leave that result out, or let the model compute a copy"
            )
        if not 0 <= position < len(results):
            raise InputError(
                f"states names result {position} for {state!r}; the model has {len(results)} results, counted from 0"
            )
        name = results[position]
        if name not in computed or results.count(name) > 1:
            raise InputError(
                f"result {position} cannot be the next {state!r}: it is an input or a parameter, or another result, too; "
                "a state needs a result of its own that the model computes"
            )
        old, new = tensors[state], tensors[name]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise InputError(
                f"state {state!r} is {old.dtype}{list(old.shape)}, and result {position}, which should take its place, is "
                f"{new.dtype}{list(new.shape)}"
            )
        if name in next_of.values():
            raise InputError(f"states names result {position} twice")
        next_of[state] = name
    if next_of and not computed.intersection(results).difference(next_of.values()):
        raise InputError(
            "states names all results that the model computes, so that a run would have nothing to return; leave one out"
        )
    return next_of


def check_in_place(calls: Sequence[KernelCall], next_of: Mapping[str, str]) -> set[str]:
    """Return the states that a kernel updates in place (`KernelCall.in_place`).

    Raises
    ------
    InputError
        A kernel updates an input that is not the state whose next value it computes, or another kernel reads that state's
        old value.
    """
    writer: dict[str, str] = {}
    for call in calls:
        for output, position in call.in_place.items():
            state = call.inputs[position]
            if next_of.get(state) != call.outputs[output]:
                raise InputError(
                    f"operator {call.operator!r} updates its input {state!r} in place, so its result "
                    f"{call.outputs[output]!r} must be the next value of a state: states={{{state!r}: POSITION}}"
                )
            writer[state] = call.operator
    for call in calls:
        for state in writer.keys() & set(call.inputs):
            if writer[state] != call.operator:
                raise InputError(
                    f"operator {call.operator!r} reads the old value of the state {state!r}, which {writer[state]!r} "
                    "overwrites; let it read the new value"
                )
    return set(writer)


def _outputs(maker: StepMaker, step: Step) -> list[BufferKey]:
    return [BufferKey(t, step.device) for t in maker.problem.graph.index.outputs[step.operator]]


def _without(after: list[Step], moved: Mapping[int, Step]) -> list[Step]:
    """Replace moved steps by the steps before them."""
    kept: list[Step] = []
    for step in after:
        kept += _without(step.after, moved) if id(step) in moved else [step]
    return kept
