"""`emit_plan`: lower a schedule to an execution plan of queues, buffers and steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tvm_sched_runtime.problem import HOST, Problem
from tvm_sched_runtime.schedule import Schedule, moved_parameters

from .arena import ALIGNMENT, GPU_ALIGNMENT, Block, Order, lay_out
from .operator_calls import Calls, KernelCall
from .states import States
from .steps import RESULTS, BufferKey, Step, StepMaker, order_steps, plan_waits

WORKSPACE = 32 << 20
"""Largest workspace of a library on a stream; ``cpp/kernels/cuda/call.cc`` has one for kernels outside of plans."""
_UNIT = 1 << 16  # workspaces are multiples of it


def emit_plan(
    problem: Problem,
    schedule: Schedule,
    extraction: Calls,
    *,
    name: str,
    backend: str,
    functions: Mapping[str, str],
    values: Sequence[str],
    cores: Mapping[str, tuple[int, int]] | None = None,
    states: Mapping[str, str] | None = None,
    workspaces: Collection[str] = (),
) -> dict[str, Any]:
    """Lower a schedule to a plan, see ``docs/formats/plan.md``.

    Parameters
    ----------
    problem, schedule
        ``schedule`` is a feasible schedule of ``problem``, whose graph is ``extraction.graph``.
    name : str
        Name of the plan, unique in its artifact.
    backend : {"cpu", "emulated", "cuda"}
    functions : mapping of str to str
        Name in the artifact of each of its functions; others are global functions.
    values : sequence of str
        Parameters whose values are in the artifact or its parameter file; the others are arguments of each call.
    cores : mapping of str to (int, int), optional
        By operator, its share of the cores (`core_shares`); default: all.
    states : mapping of str to str, optional
        Inputs that the plan keeps from run to run, and the tensors that replace them (`check_states`).
    workspaces : collection of str
        Operators of libraries that need a workspace on each stream: up to `WORKSPACE` bytes, within the free memory.
    """
    kept = dict(states or {})
    emitter = _Emitter(problem, schedule, extraction, functions, set(values), dict(cores or {}), kept, backend)
    emitter.workspaces = frozenset(workspaces)
    return emitter.emit(name)


def output_tensors(extraction: Calls, states: Mapping[str, str] | None = None) -> list[str]:
    """Return the tensors that a run returns, each once: results that are neither arguments nor kept as ``states``."""
    kept = (states or {}).values()
    return [tensor for tensor in extraction.graph.outputs if tensor not in extraction.arguments and tensor not in kept]


class _Emitter:
    def __init__(
        self,
        problem: Problem,
        schedule: Schedule,
        extraction: Calls,
        functions: Mapping[str, str],
        values: set[str],
        cores: dict[str, tuple[int, int]],
        states: dict[str, str],
        backend: str,
    ) -> None:
        self.cores, self.kept, self.backend = cores, states, backend
        self.workspaces: frozenset[str] = frozenset()
        self.problem, self.extraction, self.functions = problem, extraction, functions
        self.tensors = problem.graph.tensors
        self.tensor_id = problem.graph.index.tensor_id
        self.calls = {call.operator: call for call in extraction.calls}
        self.maker = StepMaker(problem, schedule, barriers=backend == "emulated")
        unset = [p for p in extraction.parameters if p not in values]
        self.arguments = [*(name for name in extraction.arguments if name not in states), *unset]
        used = {tensor for call in extraction.calls for tensor in call.inputs} | set(extraction.graph.outputs)
        moved = {name: k for k, name in enumerate(moved_parameters(problem, schedule))}
        self.parameters = [p for p in extraction.parameters if p in values and p in used]
        self.parameters.sort(key=lambda p: moved.get(p, len(moved)))
        self.outputs = [t for t in output_tensors(extraction, states) if t not in unset]
        self.joined = {name for names in schedule.joined for name in names}
        self.sources: dict[BufferKey, dict[str, Any]] = {}  # of buffers outside of arenas
        self.keys: dict[BufferKey, int] = {}  # buffers in the order of first use
        self.blocks: dict[BufferKey, Block] = {}

    def emit(self, name: str) -> dict[str, Any]:
        steps = self.maker.make()
        self.states = States(self.maker, self.kept, self.extraction.calls)
        self.sources |= self.states.sources()
        self._assign_buffers()
        steps = order_steps([*self.states.place(steps, self.maker.kernels), *self._results()])
        sizes = self._lay_out(steps)
        queues = list(dict.fromkeys([*(d.name for d in self.problem.topology.devices), *(s.queue for s in steps)]))
        queue_id = {queue: q for q, queue in enumerate(queues)}
        waits = plan_waits(steps)
        # Registers the buffers, so it comes before them.
        written = [self._step(step, queue_id[step.queue], waits[k]) for k, step in enumerate(steps)]
        devices = [self._device(k, size) for k, size in enumerate(sizes)]
        return {
            "format": "tvm_sched.plan",
            "version": 1,
            "name": name,
            "backend": self.backend,
            **self._queue_depth(),
            "devices": devices,
            "queues": self._queues(queues),
            "arguments": [self._spec(t) for t in self.arguments],
            "parameters": [self._spec(t) for t in self.parameters],
            "outputs": [self._spec(t) for t in self.outputs],
            **({"states": self._states()} if self.kept else {}),
            "buffers": [
                {**self._spec(self.tensors[key.tensor].name), "source": self._source(key)} for key in self.keys
            ],
            "steps": written,
        }

    def _queues(self, queues: list[str]) -> list[dict[str, Any]]:
        device = {d.name: k for k, d in enumerate(self.problem.topology.devices)}
        device |= {step.queue: step.device for step in self.maker.kernels}
        return [{"name": queue, **({"device": device[queue]} if queue in device else {})} for queue in queues]

    def _spec(self, tensor: str) -> dict[str, Any]:
        entry = self.tensors[self.tensor_id[tensor]]
        return {"name": entry.name, "shape": list(entry.shape), "dtype": entry.dtype}

    def _device(self, device: int, arena: int) -> dict[str, Any]:
        """Describe a device: arena, workspace of each stream, states, memory."""
        properties = self.problem.topology.devices[device]
        extra = self.states.bytes_on(device)
        streams = {s.queue for s in self.maker.kernels if s.device == device and s.name in self.workspaces}
        about: dict[str, Any] = {"name": properties.name, "arena_bytes": arena}
        if streams:
            room = max(properties.memory - arena - extra, 0) // len(streams)
            about["workspace_bytes"] = min(WORKSPACE, room // _UNIT * _UNIT)
            extra += len(streams) * about["workspace_bytes"]
        if extra:
            about["extra_bytes"] = extra
        return {**about, "memory_bytes": properties.memory}

    def _states(self) -> list[dict[str, Any]]:
        return [
            {
                **self._spec(self.tensors[state].name),
                "device": home,
                **({"in_place": True} if state in self.states.in_place else {}),
            }
            for state, home in self.states.home.items()
        ]

    def _location(self, tensor: int, device: int, direct: bool) -> BufferKey:
        return self.states.location(tensor, device) or self.maker.location(tensor, device, direct)

    def _assign_buffers(self) -> None:
        """Set the inputs and outputs of each kernel, in the order of its call."""
        at = self.maker.at
        for position, step in enumerate(self.maker.kernels):
            call = self.calls[step.name]
            device, direct = at.device[position], at.direct[position]
            step.inputs = [self._location(self.tensor_id[t], device, direct) for t in call.inputs]
            step.outputs = [BufferKey(self.tensor_id[t], device) for t in call.outputs]
            joined = [BufferKey(self.tensor_id[t], device) for t in call.inputs if t in self.joined and not direct]
            # What a device reads in host memory arrives with no step.
            step.waits += [self.maker.arrival[key] for key in joined if key in self.maker.arrival]

    def _results(self) -> list[Step]:
        """Return the copies of outputs; a producer in host memory writes in place instead."""
        home = {key.tensor: key for step in self.maker.kernels for key in step.outputs}
        copies = []
        for k, tensor in enumerate(self.outputs):
            t = self.tensor_id[tensor]
            key = home.get(t, BufferKey(t, HOST))
            if key.device != HOST and self.problem.topology.devices[key.device].shares_host_memory:
                self.sources[key] = {"kind": "output", "index": k}
                continue
            writer = self.maker.arrival.get(key)
            end = 0 if writer is None else writer.end_ns
            step = Step("copy", tensor, RESULTS, end, end, 0, size=self.tensors[t].size)
            result = BufferKey(t, HOST - 1 - k)
            self.sources[result] = {"kind": "output", "index": k}
            step.inputs, step.outputs = [key], [result]
            step.waits = [] if writer is None else [writer]
            copies.append(step)
        return copies

    def _queue_depth(self) -> dict[str, int]:
        storage = self.problem.topology.storage
        return {"queue_depth": storage.queue_depth} if storage and self.problem.topology.maps_storage else {}

    def _lay_out(self, steps: list[Step]) -> list[int]:
        """Lay out the buffers of each arena by their lifetimes; return the bytes of each arena."""
        index = self.problem.graph.index
        for step in steps:
            for key in step.outputs:
                if key.device >= 0 and key not in self.sources:
                    pinned = self.tensors[key.tensor].kind == "parameter" and not step.evict
                    size = index.size[key.tensor]
                    wide = self.backend == "cuda" and size % GPU_ALIGNMENT == 0
                    alignment = GPU_ALIGNMENT if wide else ALIGNMENT
                    self.blocks[key] = Block(size, step, pinned=pinned, alignment=alignment)
            for key in step.inputs:
                if key in self.blocks:
                    self.blocks[key].readers.append(step)
        devices = self.problem.topology.devices
        by_device: list[list[Block]] = [[] for _ in devices]
        for key, block in self.blocks.items():
            by_device[key.device].append(block)
        warm = any(step.optional for step in steps)
        queues: list[set[str]] = [set() for _ in devices]
        for step in self.maker.kernels:
            queues[step.device].add(step.queue)
        order = Order(steps) if any(len(names) > 1 for names in queues) else None
        return [
            lay_out(by_device[d], device.memory - self.states.bytes_on(d), warm, order if len(queues[d]) > 1 else None)
            for d, device in enumerate(devices)
        ]

    def _source(self, key: BufferKey) -> dict[str, Any]:
        tensor = self.tensors[key.tensor].name
        if key in self.sources:
            return self.sources[key]
        if key.device >= 0:
            return {"kind": "arena", "device": key.device, "offset": self.blocks[key].offset}
        if tensor in self.parameters:
            return {"kind": "parameter", "index": self.parameters.index(tensor)}
        return {"kind": "argument", "index": self.arguments.index(tensor)}

    def _step(self, step: Step, queue: int, waits: list[int]) -> dict[str, Any]:
        result: dict[str, Any] = {"queue": queue, "kind": step.kind, "name": step.name}
        if step.kind == "kernel":
            call: KernelCall = self.calls[step.name]
            result["function"] = self.functions.get(call.function, call.function)
            if call.packed:
                result["calling"] = "packed"
            if (share := self.cores.get(step.name, (1, 1))) != (1, 1):
                result["cores"] = list(share)
        result["inputs"] = [self.keys.setdefault(key, len(self.keys)) for key in step.inputs]
        result["outputs"] = [self.keys.setdefault(key, len(self.keys)) for key in step.outputs]
        result["waits"] = waits
        result["duration_ns"] = step.duration_ns
        if step.evict:
            result["evict"] = True
        if step.event:
            result["event"] = {"kind": step.event, "name": step.name, "lanes": list(step.lanes), "bytes": step.size}
        return result
